"""The store of listed images: in memory, in the packed cache, or decoded each time they are read.

The packed cache, read at memory speed, is a folder of shards. A shard is KEY.bin, the pixels of about a thousand images
as uint8 (C, H, W), one after another, and KEY.npz, their sizes and checksums. KEY is a digest of the names and stamps
(size and time) of the files, so a file that has changed makes another shard. A shard is valid once its index exists.
When one is opened that is not as it was written, its checksums are compared, and a damaged one is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from supancl.config import parse_json
from supancl.data.decode import (
    DECODE_VERSION,
    Item,
    MadeItem,
    Resample,
    decode_threads,
    file_stamp,
    has_over_8_bits,
    map_in_order,
    shrunk_size,
    try_decode,
    upright_size,
)
from supancl.data.spec import DataSpec
from supancl.data.store.memory import (
    ArrayImages,
    Batch,
    ImageStore,
    PackedImages,
    image_checksum,
    pad_images,
    take_items,
)
from supancl.data.threads import ReadingThreads
from supancl.errors import BadInput
from supancl.files import (
    absolute_path,
    hold_lock,
    is_locked,
    make_inner_folder,
    open_regular,
    reason,
    remove_left_over_files,
    write_atomically,
)
from supancl.reporter import report_progress, track

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from supancl.data.sources.tars import TarItems
else:
    from supancl.lazy import torch

AUTO_CACHE_BYTES = 32 * 2**20  # smaller data are decoded again in a second or two
SAMPLED_IMAGES = 64  # checked in place of all images, which would take too long
DARK_LEVEL = 16  # of 255: the brightest 12-bit value in a 16-bit file, 4095 of 65535
MAX_ASPECT = 2  # longer images of a stream are cut to their middle, so that one canvas fits every image
SHARD_IMAGES = 1024  # on average
FEATURES_FOLDER = "features"  # features cached by evaluations: one file per encoder and split
TAR_INDEX_FOLDER = "tars"  # indexes of tar shards: one file per shard


def cache_root() -> Path:
    """$SUPANCL_CACHE, else supancl/ in the user's cache folder."""
    if override := os.environ.get("SUPANCL_CACHE"):
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "supancl"


class Shard(NamedTuple):
    """A file of pixels, and of each image the size, the checksum, or the reason why it cannot be read (size (0, 0))."""

    path: Path
    sizes: np.ndarray  # (n, 2) int64: height, width
    checksums: np.ndarray  # (n,) uint32: crc32 of each image's bytes
    reasons: dict[int, str]

    def starts(self, channels: int) -> np.ndarray:
        """Where each image begins in the file, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(channels * self.sizes.prod(1))])


class Cache:
    """The cached images of one source at one size; the same source finds the same cache."""

    def __init__(self, source: str, channels: int, short_side: int | None, resample: Resample = "bilinear") -> None:
        self.settings, self.channels = (channels, short_side, resample), channels
        key = hashlib.sha256(json.dumps([source, *self.settings]).encode()).hexdigest()[:12]
        self.folder = cache_root() / f"images-{key}"

    def build(self, items: Sequence[Item]) -> tuple[PackedImages, list[tuple[int, str]]]:
        """Decode the images that are not cached yet. Returns images, and (position, reason) of unreadable ones."""

        def report_waiting(owner: str) -> None:
            report_progress(f"process {owner} is building the cache {self.folder}; waiting for it", 0, 0)

        try:
            make_inner_folder(self.folder)
            with hold_lock(self.folder / ".lock", report_waiting):  # its time says when the cache was last used
                remove_left_over_files(self.folder, 0)
                built = self._build_locked(items)
        except BrokenPipeError:  # raised by a reporter, not by the cache
            raise
        except OSError as error:
            advice = "make room, set SUPANCL_CACHE to another folder, or data.cache=never"
            raise BadInput(f"the cache {self.folder} cannot be written ({reason(error)}); {advice}") from None
        keep_to_size(self.folder)
        return built

    def _build_locked(self, items: Sequence[Item]) -> tuple[PackedImages, list[tuple[int, str]]]:
        """The part of `build` that needs the folder's lock; mapping the images needs it too."""
        groups = _groups_by_key(items)

        def decode(position: int) -> Tensor | str:
            return try_decode(items[position], *self.settings)

        # an unreadable image may have become readable, as by another library or a network disk that is back
        known = {key: read_shard(self.folder / f"{key}.bin", self.channels) for key in groups}
        shards = {
            key: shard
            for key, shard in known.items()
            if shard and all(isinstance(decode(groups[key][row]), str) for row in shard.reasons)
        }
        missing = {key: rows for key, rows in groups.items() if key not in shards}
        total, wanted = sum(map(len, missing.values())), chain.from_iterable(missing.values())
        with contextlib.closing(map_in_order(decode, wanted)) as images:
            decoded = track(images, "decoding images into the cache", total)
            for key, rows in missing.items():
                shards[key] = self._write_shard(self.folder / f"{key}.bin", islice(decoded, len(rows)))
        for path in self.folder.iterdir():
            if path.suffix in (".bin", ".npz") and path.stem not in groups:
                path.unlink()
        unreadable = [(groups[key][row], why) for key in groups for row, why in shards[key].reasons.items()]
        return map_shards([shards[key] for key in groups], self.channels), sorted(unreadable)

    def _write_shard(self, path: Path, decoded: Iterator[Tensor | str]) -> Shard:
        """Write the pixels, then the index; of an interrupted one nothing stays."""
        sizes, checksums, reasons = list[Sequence[int]](), list[int](), dict[int, str]()

        def write_pixels(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                for row, image in enumerate(decoded):
                    if isinstance(image, str):
                        reasons[row] = image
                    else:
                        file.write(image.numpy().data)
                    sizes.append((0, 0) if isinstance(image, str) else image.shape[1:])
                    checksums.append(0 if isinstance(image, str) else image_checksum(image))

        def write_index(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                text = np.frombuffer(json.dumps(reasons).encode(), np.uint8)
                np.savez(file, sizes=shard.sizes, checksums=shard.checksums, reasons=text, stamp=file_stamp(path))

        write_atomically(path, write_pixels)
        shard = Shard(path, np.array(sizes, np.int64), np.array(checksums, np.uint32), reasons)
        write_atomically(path.with_suffix(".npz"), write_index)
        return shard


def read_shard(path: Path, channels: int) -> Shard | None:
    """The shard, or None if it is not there or damaged. Its pixels are read if the file is not as it was written."""
    try:
        with open_regular(path.with_suffix(".npz")) as file, np.load(file, allow_pickle=False) as arrays:
            reasons = {int(row): str(why) for row, why in parse_json(bytes(arrays["reasons"])).items()}
            shard = Shard(path, arrays["sizes"], arrays["checksums"], reasons)
            is_as_written = arrays["stamp"].tolist() == list(file_stamp(path))
        ends = shard.starts(channels)
        if os.path.getsize(path) != ends[-1]:
            return None
        if is_as_written or not ends[-1]:
            return shard
        pixels = np.memmap(path, np.uint8, mode="r").data
        found = [zlib.crc32(pixels[start:end]) for start, end in pairwise(ends.tolist())]
        return shard if found == shard.checksums.tolist() else None
    except Exception:  # numpy, zipfile, zlib and json each raise something else
        return None


def map_shards(shards: Sequence[Shard], channels: int) -> PackedImages:
    """The readable images of shards, mapped: they use the system's file cache, not the process's memory."""
    shards = [shard for shard in shards if shard.sizes.any()]
    buffers = [torch.from_numpy(np.memmap(shard.path, np.uint8, mode="c")) for shard in shards]
    numbers = np.repeat(np.arange(len(shards)), np.array([len(shard.sizes) for shard in shards], np.int64))
    sizes = np.concatenate([np.zeros((0, 2), np.int64), *(shard.sizes for shard in shards)])
    starts = np.concatenate([np.zeros(0, np.int64), *(shard.starts(channels)[:-1] for shard in shards)])
    checksums = np.concatenate([np.zeros(0, np.uint32), *(shard.checksums for shard in shards)])
    is_readable = sizes.any(1)
    locations = torch.from_numpy(np.stack([numbers, starts], axis=1)[is_readable])
    return PackedImages(buffers, locations, torch.from_numpy(sizes[is_readable]), channels, checksums[is_readable])


def _groups_by_key(items: Sequence[Item]) -> dict[str, range]:
    """Neighbours for a shard each, by its key. A group begins at certain names, so a new file changes one group alone.

    A name is the same from any working folder and through any link.
    """
    names = [str(item) if isinstance(item, MadeItem) else absolute_path(str(item)) for item in items]
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    stamps = np.zeros((len(items), 2), np.int64)
    for position, item in enumerate(items):
        with contextlib.suppress(OSError):  # decoding reports a missing file
            stamps[position] = item.stamp() if isinstance(item, MadeItem) else file_stamp(item)
    groups, start = dict[str, range](), 0
    for end in range(1, len(items) + 1):
        is_last = end == len(items) or end - start == 4 * SHARD_IMAGES
        if is_last or zlib.crc32(encoded[end]) % SHARD_IMAGES == 0:
            content = hashlib.sha256(str(DECODE_VERSION).encode() + stamps[start:end].tobytes())
            content.update(b"\0".join(encoded[start:end]))
            while (key := content.hexdigest()[:24]) in groups:  # a table may name files twice
                content.update(b"again")
            groups[key] = range(start, end)
            start = end
    return groups


def keep_to_size(used: Path) -> None:
    """Remove the longest unused caches until all take at most $SUPANCL_CACHE_GB, but not the one that is used now."""
    gigabytes = os.environ.get("SUPANCL_CACHE_GB") or "200"
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", gigabytes):
        raise BadInput(f"SUPANCL_CACHE_GB = {gigabytes!r}: must be a number of gigabytes")
    limit = float(gigabytes) * 1e9
    with contextlib.suppress(OSError):  # another process may be removing the same ones
        caches = {
            lock.parent: (lock.stat().st_mtime, sum(path.stat().st_size for path in lock.parent.iterdir()))
            for lock in used.parent.glob("images-" + "[0-9a-f]" * 12 + "/.lock")
        }
        total = sum(nbytes for _, nbytes in caches.values())
        for folder, (_, nbytes) in sorted(caches.items(), key=lambda cache: cache[1]):
            if total > limit and folder != used and not is_locked(folder / ".lock"):
                shutil.rmtree(folder, ignore_errors=True)
                total -= nbytes


def store_images(
    items: Sequence[Item], cache_name: str, channels: int, spec: DataSpec
) -> tuple[ImageStore, list[tuple[int, str]]]:
    """A store with the readable items in order, and (position, reason) of the unreadable ones.

    Small data are held in memory, large data in the packed cache; without a cache, large data are decoded each time.
    """
    settings = channels, spec.short_side, spec.resample
    estimate = estimate_bytes(items, channels, spec.short_side)
    if spec.cache == "always" or (spec.cache == "auto" and estimate > AUTO_CACHE_BYTES):
        return Cache(cache_name, *settings).build(items)
    in_memory = estimate <= spec.memory_gb * 1e9
    images, checksums, unreadable = [], list[int](), list[tuple[int, str]]()
    decoded = track(map_in_order(lambda item: try_decode(item, *settings), items), "reading images", len(items))
    for position, image in enumerate(decoded):
        if isinstance(image, str):
            unreadable.append((position, image))
        elif in_memory:
            images.append(image)
        else:
            checksums.append(image_checksum(image))
    if len({image.shape for image in images}) == 1:
        return ArrayImages(torch.stack(images)), unreadable
    if images:
        return PackedImages.from_images(images), unreadable
    readable = np.delete(np.arange(len(items)), [position for position, _ in unreadable])
    return FileImages(take_items(items, readable), channels, spec, np.array(checksums, np.uint32)), unreadable


def estimate_bytes(items: Sequence[Item], channels: int, short_side: int | None) -> float:
    """Estimated bytes of decoded pixels, from the headers of some images."""
    sizes = list[int]()
    for i in evenly_spaced_positions(len(items)):
        with contextlib.suppress(Exception):  # decoding reports unreadable images later
            sizes.append(math.prod(shrunk_size(upright_size(items[i]), short_side)))
    return channels * float(np.mean(sizes)) * len(items) if sizes else 0.0


def dark_image_remarks(store: ImageStore, items: Sequence[Item]) -> list[str]:
    """A remark if files of more than 8 bits are nearly black, as unscaled 12-bit camera values in 16-bit files are.

    `items` are those of the store. 8-bit files get no remark: masks of 0 and 1 are meant to be dark.
    """
    checked = [i for i in evenly_spaced_positions(len(items)) if has_over_8_bits(items[i])]
    if not checked or any(int(store.batch(torch.tensor([i])).pixels.max()) > DARK_LEVEL for i in checked):
        return []
    return ["images of more than 8 bits are nearly black; scale 12-bit camera values up first, by 16 for example"]


def evenly_spaced_positions(count: int) -> list[int]:
    """Positions of at most SAMPLED_IMAGES images, from the first to the last."""
    positions: list[int] = np.linspace(0, count - 1, min(SAMPLED_IMAGES, count)).round().astype(int).tolist()
    return positions


class FileImages(ImageStore):
    """Images that several threads decode each time they are read; with their checksums if all were decoded once."""

    def __init__(
        self, items: Sequence[Item], channels: int, spec: DataSpec, checksums: np.ndarray | None = None
    ) -> None:
        self.items, self.settings, self.checksums = items, (channels, spec.short_side, spec.resample), checksums
        self.executor = ReadingThreads(decode_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1))), "decode")

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor) -> Batch:
        return pad_images(list(self.executor.map(self.decode_row, indices.tolist())))

    def decode_row(self, row: int) -> Tensor:
        image = try_decode(self.items[row], *self.settings)
        if isinstance(image, str):
            raise BadInput(unreadable_image(self.items[row], image))
        return image

    def pixel_checksums(self, rows: Tensor) -> np.ndarray | None:
        return None if self.checksums is None else self.checksums[rows.numpy()]


class StreamImages(FileImages):
    """The images of tar shards. Unreadable ones are refused, or black and named in a remark."""

    items: TarItems

    def __init__(self, items: TarItems, channels: int, spec: DataSpec) -> None:
        super().__init__(items, channels, spec)
        self.skip_bad, self.window, short_side = spec.skip_bad_images, spec.window, spec.short_side
        self.shards = [shard.tar for shard in items.shards]
        self.shard_ends = torch.from_numpy(items.ends)
        self.shard_digests = [shard.digest.tobytes() for shard in items.shards]
        self.canvas = None if short_side is None else (MAX_ASPECT * short_side, MAX_ASPECT * short_side)
        self.black: dict[str, bool] = {}  # names of unreadable images; whether they were reported

    def batch(self, indices: Tensor, canvas: tuple[int, int] | None = None) -> Batch:
        for shard in torch.unique(torch.searchsorted(self.shard_ends, indices, right=True)).tolist():
            self.items.shards[shard].check()  # a tar that is missing or has changed is not a bad image
        return pad_images(list(self.executor.map(self.decode_row, indices.tolist())), canvas)

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        return self.batch(indices, self.canvas)

    def decode_row(self, row: int) -> Tensor:
        """The pixels, cut to at most `MAX_ASPECT` times the short side."""
        try:
            image = super().decode_row(row)
        except BadInput:
            if not self.skip_bad:
                raise
            self.black.setdefault(str(self.items[row]), False)
            channels, short_side, _ = self.settings
            return torch.zeros(channels, short_side or 1, short_side or 1, dtype=torch.uint8)
        for axis, limit in enumerate(self.canvas or (), start=1):
            if image.shape[axis] > limit:
                image = image.narrow(axis, (image.shape[axis] - limit) // 2, limit)
        return image

    def has_one_shape(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.canvas is not None

    def new_remarks(self) -> list[str]:
        found = sorted(name for name, is_reported in self.black.items() if not is_reported)
        self.black.update(dict.fromkeys(found, True))
        return [f"unreadable images of the stream, black instead: {', '.join(found)}"] if found else []


def unreadable_image(item: object, why: str) -> str:
    return f"{item}: cannot be read as an image ({why}); repair or remove it, or skip it with skip_bad_images"
