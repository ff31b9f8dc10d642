"""Shards of the packed cache: a file of pixels and an index beside it, complete or not there at all."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from supancl.files import reason, sync_folder, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 128 * 2**20
ELSEWHERE = "make room, name another folder in SUPANCL_CACHE, or --set data.cache=never"


@dataclass(frozen=True)
class Shard:
    """One file of pixels and what its index says of the images in it."""

    path: Path
    names: list[str]
    stamps: np.ndarray  # (n, 2) int64
    sizes: np.ndarray  # (n, 2) int64: height, width
    offsets: np.ndarray  # (n,) int64
    checksums: np.ndarray  # (n,) uint32: crc32 of each image's bytes


def crc(image: Tensor) -> int:
    """The checksum of an image's bytes."""
    return zlib.crc32(image.numpy().data)


class ShardWriter:
    """Writes images into shards of about SHARD_BYTES, each complete before its index appears."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number, self.bytes = folder, number, 0
        self.shards: list[Shard] = []
        self.rows: list[tuple[str, Sequence[int] | np.ndarray, tuple[int, int], int, int, int]] = []
        self.file: IO[bytes] | None = None

    def add(self, name: str, stamp: Sequence[int] | np.ndarray, image: Tensor) -> None:
        if self.file is None:
            self.file = open(self._path().with_suffix(".bin.tmp"), "wb")  # noqa: SIM115 - closed by finish()
        offset = self.file.tell()
        self.file.write(image.numpy().data)
        self.rows.append((name, stamp, (image.shape[1], image.shape[2]), offset, crc(image), image.numel()))
        self.bytes += image.numel()
        if offset + image.numel() >= SHARD_BYTES:
            self.finish()

    def finish(self) -> None:
        """Give the shard its name and its index. A disk that is full loses this shard at most, and nothing else."""
        if self.file is None:
            return
        file, self.file, rows, self.rows = self.file, None, self.rows, []
        path = self._path()
        temporary = path.with_suffix(".bin.tmp")
        try:
            with file:
                file.flush()
                if rows:
                    file.truncate(rows[-1][3] + rows[-1][5])  # an interrupted add() may have left part of an image
                os.fsync(file.fileno())
            if rows:
                os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                file.close()
            temporary.unlink(missing_ok=True)
            raise
        if not rows:
            temporary.unlink(missing_ok=True)
            return
        names, stamps, sizes, offsets, checksums, _ = zip(*rows, strict=True)
        shard = Shard(
            path,
            list(names),
            np.array(stamps, np.int64),
            np.array(sizes, np.int64),
            np.array(offsets, np.int64),
            np.array(checksums, np.uint32),
        )
        write_index(shard)
        self.shards.append(shard)
        self.number += 1

    def _path(self) -> Path:
        return self.folder / f"shard-{self.number:06d}.bin"


def write_index(shard: Shard) -> None:
    # names as one run of UTF-8: an array of strings would give every name the length of the longest
    text = np.frombuffer("\0".join(shard.names).encode("utf-8", "surrogateescape"), np.uint8)
    arrays: dict[str, Any] = {
        "names": text,
        "stamps": shard.stamps,
        "sizes": shard.sizes,
        "offsets": shard.offsets,
        "checksums": shard.checksums,
    }

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    write_atomically(shard.path.with_suffix(".npz"), write, ELSEWHERE)
    sync_folder(shard.path.parent)


def read_index(index: Path, channels: int) -> Shard | str:
    """A shard, or what is wrong with it. Pixels are checked when they are first read, not here."""
    pixels = index.with_suffix(".bin")
    try:
        with open(index, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            names = bytes(arrays["names"]).decode("utf-8", "surrogateescape").split("\0")
            shard = Shard(pixels, names, arrays["stamps"], arrays["sizes"], arrays["offsets"], arrays["checksums"])
    except Exception as error:  # numpy, zipfile and zlib each have their own ways to say "broken"
        return f"its index cannot be read: {reason(error)}"
    count, each = len(names), channels * shard.sizes.prod(-1)
    shapes = [shard.stamps.shape, shard.sizes.shape, shard.offsets.shape, shard.checksums.shape]
    fitting = shapes == [(count, 2), (count, 2), (count,), (count,)]
    if not fitting or not np.array_equal(shard.offsets, each.cumsum() - each):
        return "its index is inconsistent"
    if not pixels.is_file() or pixels.stat().st_size != int(each.sum()):
        return "its pixels are missing" if not pixels.is_file() else "its length is not what was written"
    return shard
