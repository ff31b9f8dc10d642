"""Shards of the packed cache: a file of pixels and its index, written completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from supancl.data.store.memory import image_checksum
from supancl.files import open_regular, reason, sync_folder, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 128 * 2**20
FREE_SPACE_ADVICE = "make room, set SUPANCL_CACHE to another folder, or data.cache=never"


@dataclass(frozen=True)
class Shard:
    """One file of pixels, and the content of its index."""

    path: Path
    names: list[str]
    stamps: np.ndarray  # (n, 2) int64
    sizes: np.ndarray  # (n, 2) int64: height, width
    offsets: np.ndarray  # (n,) int64
    checksums: np.ndarray  # (n,) uint32: crc32 of each image's bytes


class ShardWriter:
    """Writes images into shards of about SHARD_BYTES, each complete before its index appears."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number, self.bytes = folder, number, 0
        self.shards: list[Shard] = []
        self.rows: list[tuple[str, Sequence[int] | np.ndarray, tuple[int, int], int, int, int]] = []
        self.file: IO[bytes] | None = None

    def add(self, name: str, stamp: Sequence[int] | np.ndarray, image: Tensor) -> None:
        if self.file is None:
            self.file = open(self._path().with_suffix(".bin.tmp"), "xb")  # noqa: SIM115 - closed by finish()
        offset = self.file.tell()
        self.file.write(image.numpy().data)
        self.rows.append((name, stamp, (image.shape[1], image.shape[2]), offset, image_checksum(image), image.numel()))
        self.bytes += image.numel()
        if offset + image.numel() >= SHARD_BYTES:
            self.finish()

    def finish(self) -> None:
        """Complete the current shard and write its index. If the disk is full, only this shard is lost."""
        if self.file is None:
            return
        file, self.file, rows, self.rows = self.file, None, self.rows, []
        path = self._path()
        temporary = path.with_suffix(".bin.tmp")
        try:
            with file:
                file.flush()
                if rows:
                    # cut off an image that an interrupted add() left incomplete
                    file.truncate(rows[-1][3] + rows[-1][5])
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
    # names as one UTF-8 string: an array of strings would pad every name to the longest
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

    write_atomically(shard.path.with_suffix(".npz"), write, FREE_SPACE_ADVICE)
    sync_folder(shard.path.parent)


def read_index(index: Path, channels: int) -> Shard | str:
    """The shard, or the reason why it cannot be used. Pixels are checked when they are first read, not here."""
    pixels = index.with_suffix(".bin")
    try:
        with open_regular(index) as file, np.load(file, allow_pickle=False) as arrays:
            names = bytes(arrays["names"]).decode("utf-8", "surrogateescape").split("\0")
            shard = Shard(pixels, names, arrays["stamps"], arrays["sizes"], arrays["offsets"], arrays["checksums"])
    except Exception as error:  # numpy, zipfile and zlib each raise something else
        return f"its index cannot be read: {reason(error)}"
    count, image_bytes = len(names), channels * shard.sizes.prod(-1)
    shapes = [shard.stamps.shape, shard.sizes.shape, shard.offsets.shape, shard.checksums.shape]
    shapes_match = shapes == [(count, 2), (count, 2), (count,), (count,)]
    if not shapes_match or not np.array_equal(shard.offsets, image_bytes.cumsum() - image_bytes):
        return "its index is inconsistent"
    if not pixels.is_file() or pixels.stat().st_size != int(image_bytes.sum()):
        return "its pixels are missing" if not pixels.is_file() else "its length is wrong"
    return shard
