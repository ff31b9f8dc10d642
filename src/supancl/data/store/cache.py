"""The packed cache: every image is decoded and shrunk once, then read at memory speed.

A cache is a folder of shards. A shard is KEY.bin, the pixels of about a thousand images as uint8 (C, H, W), one after
another, and KEY.npz, their sizes and checksums. KEY is a digest of the names and stamps (size and time) of the files,
so a file that has changed makes another shard. A shard is valid once its index exists: an interrupted build continues
with the others. Nothing in a cache is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from supancl.config import parse_json
from supancl.data.decode import (
    DECODE_VERSION,
    Item,
    Resample,
    image_problem,
    item_stamp,
    large_image_remarks,
    map_in_order,
    try_decode,
)
from supancl.data.store.memory import PackedImages, TakenItems, image_checksum
from supancl.errors import BadInput
from supancl.files import (
    hold_lock,
    is_locked,
    make_inner_folder,
    open_regular,
    reason,
    remove_left_over_files,
    write_atomically,
    write_text,
)
from supancl.reporter import report_progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SHARD_IMAGES = 1024  # on average
FEATURES_FOLDER = "features"  # features cached by evaluations: one file per encoder and split
TAR_INDEX_FOLDER = "tars"  # indexes of tar shards: one file per shard
FREE_SPACE_ADVICE = "make room, set SUPANCL_CACHE to another folder, or data.cache=never"
USUAL_GB = 200  # that all caches may take
CACHE_FOLDER_NAME = re.compile(r"-(whole|\d+px)-[0-9a-f]{12}$")  # the root may have other folders


def cache_root() -> Path:
    """$SUPANCL_CACHE, else supancl/ in the user's cache folder."""
    override = os.environ.get("SUPANCL_CACHE")
    if override:
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "supancl"


class Shard(NamedTuple):
    """A file of pixels, and of each image the size, the checksum, or the reason why it cannot be read.

    An unreadable image has the size (0, 0).
    """

    path: Path
    sizes: np.ndarray  # (n, 2) int64: height, width
    checksums: np.ndarray  # (n,) uint32: crc32 of each image's bytes
    reasons: dict[int, str]


class Cache:
    """The cached images of one source at one size; the same source finds the same cache."""

    def __init__(
        self,
        source: str,
        channels: int,
        short_side: int | None,
        resample: Resample = "bilinear",
        root: Path | None = None,
    ) -> None:
        self.source, self.channels, self.short_side, self.resample = source, channels, short_side, resample
        key_fields = [source, channels, short_side, *([] if resample == "bilinear" else [resample])]
        key = hashlib.sha256(json.dumps(key_fields).encode()).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(source).name)[:40].strip("-") or "data"
        side = "whole" if short_side is None else f"{short_side}px"
        self.folder = (root or cache_root()) / f"{name}-{side}-{key}"

    def build(self, items: Sequence[Item | Path]) -> tuple[CachedImages, list[tuple[int, str]], list[str]]:
        """Decode the images that are not cached yet. Returns images, (position, reason) of unreadable ones, remarks."""
        remarks: list[str] = []

        def report_waiting(owner: str) -> None:
            report_progress(f"process {owner} is building the cache {self.folder}; waiting for it", 0, 0)

        try:
            make_inner_folder(self.folder)
            with hold_lock(self.folder / ".lock", report_waiting):
                images, unreadable = self._build_locked(items, remarks)
        except BrokenPipeError:  # raised by a reporter, not by the cache
            raise
        except OSError as error:
            raise BadInput(
                f"the cache {self.folder} cannot be written ({reason(error)}); {FREE_SPACE_ADVICE}"
            ) from None
        keep_to_size(self.folder)
        return images, unreadable, remarks

    def _build_locked(
        self, items: Sequence[Item | Path], remarks: list[str]
    ) -> tuple[CachedImages, list[tuple[int, str]]]:
        """The part of `build` that needs the folder's lock; mapping the images needs it too."""
        about = {"source": self.source, "channels": self.channels, "short_side": self.short_side}
        write_text(self.folder / "about.json", json.dumps(about) + "\n", FREE_SPACE_ADVICE)  # its time: last used
        remove_left_over_files(self.folder, 0)
        names, (stamps, unreadable) = _read_names(items), _read_stamps(items)
        present = other_positions(len(items), unreadable).tolist()
        groups = {_key([names[i] for i in group], stamps[group]): group for group in _in_groups(names, present)}
        shards: dict[str, Shard] = {}
        for key, positions in groups.items():
            shard = read_shard(self.folder / f"{key}.bin", self.channels, len(positions))
            if isinstance(shard, str):
                remarks.append(f"{self.folder / key}.bin of the cache is damaged ({shard}); it is built again")
            elif shard is not None and not any(self._is_readable(items[positions[row]]) for row in shard.reasons):
                shards[key] = shard
        missing = {key: positions for key, positions in groups.items() if key not in shards}
        large: list[str] = []
        total = sum(map(len, missing.values()))
        wanted = chain.from_iterable(missing.values())
        with contextlib.closing(map_in_order(lambda position: self._decode(items[position], large), wanted)) as decoded:
            numbered = enumerate(decoded, start=1)
            for key, members in missing.items():
                shards[key] = self._write_shard(self.folder / f"{key}.bin", islice(numbered, len(members)), total)
        remarks += large_image_remarks(large)
        for path in self.folder.iterdir():
            if path.suffix in (".bin", ".npz") and path.stem not in groups:
                path.unlink()
        ordered = [shards[key] for key in groups]
        for positions_of_shard, shard in zip(groups.values(), ordered, strict=True):
            unreadable += [(positions_of_shard[row], why) for row, why in shard.reasons.items()]
        kept = TakenItems(items, other_positions(len(items), unreadable)) if unreadable else items
        return CachedImages(self, ordered, kept), sorted(unreadable)

    def _decode(self, item: Item | Path, large: list[str] | None = None) -> Tensor | str:
        return try_decode(item, self.channels, self.short_side, self.resample, large)

    def _is_readable(self, item: Item | Path) -> bool:
        return not isinstance(self._decode(item), str)

    def _write_shard(self, path: Path, decoded: Iterator[tuple[int, Tensor | str]], total: int) -> Shard:
        """Write the pixels, then the index; of an interrupted one nothing stays."""
        sizes, checksums, reasons = list[Sequence[int]](), list[int](), dict[int, str]()

        def write_pixels(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                for row, (done, image) in enumerate(decoded):
                    if isinstance(image, str):
                        reasons[row] = image
                    else:
                        file.write(image.numpy().data)
                    sizes.append((0, 0) if isinstance(image, str) else image.shape[1:])
                    checksums.append(0 if isinstance(image, str) else image_checksum(image))
                    if done == 256:
                        _check_room(self.folder, file.tell() / (row + 1) * (total - done))
                    report_progress("decoding images into the cache", done, total)

        def write_index(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                text = np.frombuffer(json.dumps(reasons).encode(), np.uint8)
                np.savez(file, sizes=shard.sizes, checksums=shard.checksums, reasons=text)

        write_atomically(path, write_pixels, FREE_SPACE_ADVICE)
        shard = Shard(path, np.array(sizes, np.int64), np.array(checksums, np.uint32), reasons)
        write_atomically(path.with_suffix(".npz"), write_index, FREE_SPACE_ADVICE)
        return shard


def read_shard(path: Path, channels: int, images: int) -> Shard | str | None:
    """The shard, None if it is not there, or the reason why it cannot be used. Pixels are checked when first read."""
    index = path.with_suffix(".npz")
    if not index.exists():
        return None
    try:
        with open_regular(index) as file, np.load(file, allow_pickle=False) as arrays:
            sizes, checksums, text = arrays["sizes"], arrays["checksums"], bytes(arrays["reasons"])
        reasons = {int(row): str(why) for row, why in parse_json(text).items()}
        nbytes = os.path.getsize(path)
    except Exception as error:  # numpy, zipfile, zlib and json each raise something else
        return reason(error)
    is_sound = sizes.shape == (images, 2) and checksums.shape == (images,) and (sizes >= 0).all()
    if not is_sound or set(reasons) != set(np.flatnonzero(sizes.prod(-1) == 0).tolist()):
        return "its index is inconsistent"
    return (
        Shard(path, sizes, checksums, reasons) if nbytes == channels * sizes.prod(-1).sum() else "its length is wrong"
    )


class CachedImages(PackedImages):
    """Images mapped from a cache. Checksums are compared at the first read.

    They use the system's file cache, not the process's memory.
    """

    def __init__(self, cache: Cache, shards: Sequence[Shard], items: Sequence[Item | Path]) -> None:
        shards = [shard for shard in shards if shard.sizes.any()]
        locations, sizes, checksums = [], [np.zeros((0, 2), np.int64)], [np.zeros(0, np.uint32)]
        for number, shard in enumerate(shards):
            is_readable = shard.sizes.any(1)
            lengths = cache.channels * shard.sizes.prod(1)
            starts = np.stack([np.full(len(lengths), number), lengths.cumsum() - lengths], axis=1)
            locations.append(starts[is_readable])
            sizes.append(shard.sizes[is_readable])
            checksums.append(shard.checksums[is_readable])
        buffers = [torch.from_numpy(np.memmap(shard.path, np.uint8, mode="c")) for shard in shards]
        all_locations = np.concatenate([np.zeros((0, 2), np.int64), *locations])
        super().__init__(
            buffers, torch.from_numpy(all_locations), torch.from_numpy(np.concatenate(sizes)), cache.channels
        )
        self.checksums = np.concatenate(checksums)
        self.cache, self.items, self.paths = cache, items, [shard.path for shard in shards]
        self.verified = np.zeros(len(self.checksums), bool)

    def image(self, index: int) -> Tensor:
        image = super().image(index)
        if not self.verified[index]:
            if image_checksum(image) != self.checksums[index]:
                path = self.paths[int(self.locations[index, 0])]
                with contextlib.suppress(OSError):
                    path.with_suffix(".npz").unlink()
                raise BadInput(
                    f"the pixels of {self.items[index]} in {path} are damaged; start again or use --resume: they are "
                    "decoded again"
                )
            self.verified[index] = True
        return image

    def iter_content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        """Checksums and sizes, so that no pixel is read."""
        yield np.ascontiguousarray(self.checksums[rows.numpy()]).data
        yield self.sizes[rows].contiguous().numpy().data

    def pixel_checksums(self, rows: Tensor) -> np.ndarray:
        checksums: np.ndarray = self.checksums[rows.numpy()]
        return checksums


def other_positions(count: int, unreadable: Sequence[tuple[int, str]]) -> np.ndarray:
    """The positions of the readable images."""
    readable = np.ones(count, bool)
    readable[[position for position, _ in unreadable]] = False
    return np.flatnonzero(readable)


def _read_names(items: Sequence[Item | Path]) -> list[str]:
    """The name of each item: the same from any working folder and through any link."""
    folders: dict[Path, str] = {}

    def name(item: Item | Path) -> str:
        if not isinstance(item, Path):
            return str(item)
        if item.parent not in folders:
            folders[item.parent] = os.path.realpath(item.parent)
        return os.path.join(folders[item.parent], item.name)

    return [name(item) for item in items]


def _read_stamps(items: Sequence[Item | Path]) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """Stamps (n, 2), and (position, reason) of missing items."""
    stamps, gone = np.zeros((len(items), 2), np.int64), list[tuple[int, str]]()
    for position, item in enumerate(items):
        try:
            stamps[position] = item_stamp(item)
        except OSError as error:
            gone.append((position, image_problem(error)))
    return stamps, gone


def _in_groups(names: Sequence[str], positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Neighbours for a shard each. A group begins at certain names, so that a new file changes one group alone."""
    start = 0
    for end in range(1, len(positions) + 1):
        is_last = end == len(positions) or end - start == 4 * SHARD_IMAGES
        if is_last or zlib.crc32(names[positions[end]].encode("utf-8", "surrogateescape")) % SHARD_IMAGES == 0:
            yield positions[start:end]
            start = end


def _key(names: Sequence[str], stamps: np.ndarray) -> str:
    content = hashlib.sha256(str(DECODE_VERSION).encode() + stamps.tobytes())
    content.update("\0".join(names).encode("utf-8", "surrogateescape"))
    return content.hexdigest()[:24]


def _check_room(folder: Path, needed_bytes: float) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise BadInput(
            f"the cache {folder} needs about {needed_bytes / 1e9:.1f} GB more and its disk has "
            f"{free_bytes / 1e9:.1f} GB free; {FREE_SPACE_ADVICE}"
        )


def keep_to_size(used: Path) -> None:
    """Remove the longest unused caches until all take at most $SUPANCL_CACHE_GB, but not the one that is used now.

    A process that has mapped a cache can go on reading it.
    """
    gigabytes = os.environ.get("SUPANCL_CACHE_GB") or str(USUAL_GB)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", gigabytes):
        raise BadInput(f"SUPANCL_CACHE_GB = {gigabytes!r}: must be a number of gigabytes, such as 200")
    limit = float(gigabytes) * 1e9
    with contextlib.suppress(OSError):  # another process may be removing the same ones
        caches = {
            about.parent: (about.stat().st_mtime, sum(path.stat().st_size for path in about.parent.iterdir()))
            for about in used.parent.glob("*/about.json")
            if CACHE_FOLDER_NAME.search(about.parent.name) and not about.parent.is_symlink()
        }
        total = sum(nbytes for _, nbytes in caches.values())
        for folder, (_, nbytes) in sorted(caches.items(), key=lambda cache: cache[1]):
            if total > limit and folder != used and not is_locked(folder / ".lock"):
                shutil.rmtree(folder, ignore_errors=True)
                total -= nbytes
