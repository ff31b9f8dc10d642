"""The packed cache: every image is decoded and shrunk once, then read at memory speed.

A cache is a folder of shards. A shard is a file of pixels, one image after another as uint8 (C, H, W), and an index:
names, stamps (size and time of each source file), sizes, offsets and checksums. A shard is valid once its index
exists, so an interrupted build continues where it stopped. If a source file has changed, the image is decoded into a
new shard, whose entry replaces the old one. Nothing in a cache is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.columns import TakenItems
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
from supancl.data.store.memory import PackedImages, image_checksum
from supancl.data.store.shards import FREE_SPACE_ADVICE, Shard, ShardWriter, read_index
from supancl.errors import BadInput
from supancl.files import hold_lock, make_inner_folder, read_json, reason, write_text
from supancl.reporter import report_progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

MISSING_STAMP = -1  # of an item without a file
FEATURES_FOLDER = "features"  # features cached by evaluations: one file per encoder and split
TAR_INDEX_FOLDER = "tars"  # indexes of streamed tar shards: one file per shard

AddRemark = Callable[[str], None]


def cache_root() -> Path:
    """$SUPANCL_CACHE, else supancl/ in the user's cache folder."""
    override = os.environ.get("SUPANCL_CACHE")
    if override:
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "supancl"


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

    # --- building ---------------------------------------------------------------------------------------------------

    def build(self, items: Sequence[Item | Path]) -> tuple[CachedImages, list[tuple[int, str]], list[str]]:
        """Decode the images that are not cached yet. Returns images, (position, reason) of unreadable ones, remarks."""
        remarks: list[str] = []

        def report_waiting(owner: str) -> None:
            message = f"process {owner} is building the cache {self.folder}; waiting for it"
            report_progress(message, 0, 0)

        try:
            make_inner_folder(self.folder)
            with hold_lock(self.folder / ".lock", report_waiting):
                return *self._build_locked(items, remarks), remarks
        except BrokenPipeError:  # raised by a reporter, not by the cache
            raise
        except OSError as error:
            raise BadInput(
                f"the cache {self.folder} cannot be written ({reason(error)}); {FREE_SPACE_ADVICE}"
            ) from None

    def _build_locked(
        self, items: Sequence[Item | Path], remarks: list[str]
    ) -> tuple[CachedImages, list[tuple[int, str]]]:
        """The part of `build` that needs the folder's lock; mapping the images needs it too."""
        self._prepare_folder(remarks.append)
        shards, names = self._shards(remarks.append), _cache_names(items)
        stamps, unreadable = _read_stamps(items)
        rows = _find_rows(shards, names)
        cached_stamps = np.concatenate([np.full((1, 2), MISSING_STAMP), *(shard.stamps for shard in shards)])[rows + 1]
        missing = np.flatnonzero((stamps != cached_stamps).any(1) & (stamps != MISSING_STAMP).any(1)).tolist()
        if missing:
            new_shards, undecodable = self._decode(items, names, missing, stamps, remarks)
            shards, unreadable = shards + new_shards, sorted(unreadable + undecodable)
        shards = self._remove_unused(shards, names)
        _touch(self.folder / "about.json")  # last used, for eviction
        readable = np.ones(len(items), bool)
        readable[[position for position, _ in unreadable]] = False
        rows = _find_rows(shards, names)[readable]
        kept_items = items if readable.all() else TakenItems(items, np.flatnonzero(readable))
        return CachedImages(self, shards, kept_items, rows), unreadable

    def _prepare_folder(self, add_remark: AddRemark) -> None:
        """Make the folder, or empty it if it has another version."""
        about = self.folder / "about.json"
        version = read_json(about).get("version")
        if version != DECODE_VERSION and any(self.folder.glob("shard-*")):
            mismatch = f"has version {version}, not {DECODE_VERSION}"
            add_remark(
                f"the cache {self.folder} {'has no version' if version is None else mismatch}; building it again"
            )
            remove_files(self.folder)
        if version != DECODE_VERSION:
            content = {
                "version": DECODE_VERSION,
                "source": self.source,
                "channels": self.channels,
                "short_side": self.short_side,
                "resample": self.resample,
            }
            write_text(about, json.dumps(content, indent=2) + "\n", FREE_SPACE_ADVICE)
        _touch(about)  # in use, so that it is not evicted while being built
        for temporary in self.folder.glob("*.tmp"):  # of a build that was killed; we hold the lock
            temporary.unlink(missing_ok=True)

    def _shards(self, add_remark: AddRemark) -> list[Shard]:
        """The intact shards, oldest first; damaged ones are removed, so that their images are decoded again."""
        shards = []
        for index in sorted(self.folder.glob("shard-*.npz")):
            shard = read_index(index, self.channels)
            if isinstance(shard, str):
                add_remark(
                    f"{index.with_suffix('.bin')} of the cache is damaged ({shard}); its images are decoded again"
                )
                index.unlink(missing_ok=True)
                index.with_suffix(".bin").unlink(missing_ok=True)
            else:
                shards.append(shard)
        indexed_paths = {shard.path for shard in shards}
        for pixels in self.folder.glob("shard-*.bin"):
            if pixels not in indexed_paths:  # the build was killed between the two files
                pixels.unlink()
        return shards

    def _decode(
        self,
        items: Sequence[Item | Path],
        names: Sequence[str],
        missing: Sequence[int],
        stamps: np.ndarray,
        remarks: list[str],
    ) -> tuple[list[Shard], list[tuple[int, str]]]:
        """Decode these images into new shards; an interruption keeps finished shards."""
        numbers = [int(path.stem.removeprefix("shard-")) for path in self.folder.glob("shard-*.npz")]
        writer = ShardWriter(self.folder, max(numbers, default=-1) + 1)
        unreadable: list[tuple[int, str]] = []
        large: list[str] = []

        def decode_one(position: int) -> Tensor | str:
            return try_decode(items[position], self.channels, self.short_side, self.resample, large)

        try:
            for done, (position, image) in enumerate(
                zip(missing, map_in_order(decode_one, missing), strict=True), start=1
            ):
                if isinstance(image, str):
                    unreadable.append((position, image))
                else:
                    writer.add(names[position], stamps[position], image)
                if done == 256:
                    _check_room(self.folder, writer.bytes / done * (len(missing) - done))
                report_progress("decoding images into the cache", done, len(missing))
        finally:
            writer.finish()
        remarks += large_image_remarks(large)
        return writer.shards, unreadable

    def _remove_unused(self, shards: Sequence[Shard], names: Sequence[str]) -> list[Shard]:
        """The shards that still have an image of the source; the others are deleted."""
        used = set(_locate(shards, _find_rows(shards, names))[0].tolist())
        for number, shard in enumerate(shards):
            if number not in used:
                shard.path.with_suffix(".npz").unlink(missing_ok=True)
                shard.path.unlink(missing_ok=True)
        return [shard for number, shard in enumerate(shards) if number in used]


class CachedImages(PackedImages):
    """Images mapped from a cache. Checksums are compared at the first read.

    They use the system's file cache, not the process's memory.
    """

    def __init__(self, cache: Cache, shards: Sequence[Shard], items: Sequence[Item | Path], rows: np.ndarray) -> None:
        buffers = [torch.from_numpy(np.memmap(shard.path, np.uint8, mode="c")) for shard in shards]
        shard_of, row_of = _locate(shards, rows)
        offsets, sizes = np.zeros(len(rows), np.int64), np.zeros((len(rows), 2), np.int64)
        self.checksums = np.zeros(len(rows), np.uint32)
        for number, shard in enumerate(shards):
            in_shard = np.flatnonzero(shard_of == number)
            offsets[in_shard], sizes[in_shard] = shard.offsets[row_of[in_shard]], shard.sizes[row_of[in_shard]]
            self.checksums[in_shard] = shard.checksums[row_of[in_shard]]
        locations = torch.from_numpy(np.stack([shard_of, offsets], axis=1))
        super().__init__(buffers, locations, torch.from_numpy(sizes), cache.channels)
        self.cache, self.items, self.paths = cache, items, [shard.path for shard in shards]
        self.verified = np.zeros(len(rows), bool)

    def image(self, index: int) -> Tensor:
        image = super().image(index)
        if not self.verified[index]:
            if image_checksum(image) != self.checksums[index]:
                raise BadInput(
                    f"the pixels of {self.items[index]} in {self.paths[int(self.locations[index, 0])]} are damaged; "
                    f"run supancl data cache {self.cache.folder.name} --remove, then start again or use --resume"
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

    def verify(self) -> None:
        """Compare every checksum now."""
        for index in range(len(self)):
            self.verified[index] = False
            self.image(index)
            report_progress("comparing checksums", index + 1, len(self))


def _find_rows(shards: Sequence[Shard], names: Sequence[str]) -> np.ndarray:
    """The row of each name, numbered through all shards, -1 if absent; of two entries the later one counts."""
    row_by_name = {name: row for row, name in enumerate(name for shard in shards for name in shard.names)}
    return np.array([row_by_name.get(name, -1) for name in names], np.int64)


def _locate(shards: Sequence[Shard], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shard, and row within it, of each row that is not -1."""
    ends = np.cumsum([len(shard.names) for shard in shards], dtype=np.int64)
    rows = rows[rows >= 0]
    shard_of = np.searchsorted(ends, rows, side="right")
    return shard_of, rows - np.concatenate([[0], ends])[shard_of]


def _cache_names(items: Sequence[Item | Path]) -> list[str]:
    """Each item's name in the cache: the same from any working folder and through any link."""
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
    stamps = np.full((len(items), 2), MISSING_STAMP, np.int64)
    gone: list[tuple[int, str]] = []
    for position, item in enumerate(items):
        try:
            stamps[position] = item_stamp(item)
        except OSError as error:
            gone.append((position, image_problem(error)))
    return stamps, gone


def _check_room(folder: Path, needed_bytes: float) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise BadInput(
            f"the cache {folder} needs about {needed_bytes / 1e9:.1f} GB more and its disk has "
            f"{free_bytes / 1e9:.1f} GB free; {FREE_SPACE_ADVICE}"
        )


def _touch(path: Path) -> None:
    """Set a file's time to now, not through a link."""
    os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)


def remove_files(folder: Path) -> None:
    for path in folder.iterdir():
        if (path.is_file() or path.is_symlink()) and path.name != ".lock":
            path.unlink(missing_ok=True)  # features and indexes are written without the lock
