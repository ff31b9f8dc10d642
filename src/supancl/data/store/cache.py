"""The packed cache: every image decoded once, brought down to size, and then read at memory speed.

A cache is a folder of shards. A shard is a file of pixels, one image after another as uint8 (C, H, W), and an index
beside it: names, stamps (size and time of each source file), sizes, offsets and checksums. A shard counts once its
index is there, so a build that was stopped goes on where it was; an image whose file has changed is decoded into a
new shard, which takes the place of the old entry. Nothing in a cache is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.data.decode import (
    DECODE_VERSION,
    Item,
    Resample,
    decode_or_fault,
    image_fault,
    map_in_order,
    remarks_on_large,
    stamp_of,
)
from supancl.data.store.memory import PackedImages, Progress
from supancl.data.store.shards import ELSEWHERE, Shard, ShardWriter, crc, read_index
from supancl.errors import BadInput
from supancl.files import held, reason, write_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

GONE = -1  # a stamp of nothing
FEATURES = "features"  # of images, kept by evaluations: one file for each encoder and split
TARS = "tars"  # where the images of streamed shards lie: one file for each shard
FOLDER_NAME = re.compile(r"-(whole|\d+px)-[0-9a-f]{12}$")  # other things may lie in the same root

Notes = Callable[[str], None]


def cache_root() -> Path:
    """$SUPANCL_CACHE, else supancl/ in the user's cache folder."""
    named = os.environ.get("SUPANCL_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "supancl"


class Cache:
    """The images of one source at one size. `where` names the source; the same name finds the same cache."""

    def __init__(
        self,
        where: str,
        channels: int,
        short_side: int | None,
        resample: Resample = "bilinear",
        root: Path | None = None,
    ) -> None:
        self.where, self.channels, self.short_side, self.resample = where, channels, short_side, resample
        kind = [where, channels, short_side, *([] if resample == "bilinear" else [resample])]
        key = hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(where).name)[:40].strip("-") or "data"
        side = "whole" if short_side is None else f"{short_side}px"
        self.folder = (root or cache_root()) / f"{name}-{side}-{key}"

    # --- building ---------------------------------------------------------------------------------------------------

    def build(
        self, items: Sequence[Item | Path], progress: Progress | None = None
    ) -> tuple[CachedImages, list[tuple[int, str]], list[str]]:
        """Decode what is not there yet. Gives the images, (position, reason) of unreadable ones, and remarks.

        `progress` with a total of 0 has nothing to count: it is told whom the build is waiting for.
        """
        remarks: list[str] = []

        def waiting(owner: str) -> None:
            text = f"process {owner} is building the cache {self.folder}; waiting for it"
            remarks.append(text) if progress is None else progress(text, 0, 0)

        try:
            with held(self.folder / ".lock", waiting):
                return *self._build_locked(items, progress, remarks), remarks
        except BrokenPipeError:  # who listens to `progress` has gone
            raise
        except OSError as error:
            raise BadInput(f"the cache {self.folder} cannot be written ({reason(error)}); {ELSEWHERE}") from None

    def _build_locked(
        self, items: Sequence[Item | Path], progress: Progress | None, remarks: list[str]
    ) -> tuple[CachedImages, list[tuple[int, str]]]:
        """What `build` does once it holds the folder's lock, under which the images are mapped too."""
        self._prepare_folder(remarks.append)
        shards, names = self._shards(remarks.append), _names(items)
        stamps, broken = _stamps(items)
        rows = _rows(shards, names)
        known = np.concatenate([np.full((1, 2), GONE), *(shard.stamps for shard in shards)])[rows + 1]
        missing = np.flatnonzero((stamps != known).any(1) & (stamps != GONE).any(1)).tolist()
        if missing:
            written, unreadable = self._decode(items, names, missing, stamps, progress, remarks)
            shards, broken = shards + written, sorted(broken + unreadable)
        shards = self._remove_unused(shards, names)
        os.utime(self.folder / "about.json")  # last used: what eviction goes by
        readable = np.ones(len(items), bool)
        readable[[position for position, _ in broken]] = False
        rows = _rows(shards, names)[readable]
        return CachedImages(self, shards, [items[i] for i in np.flatnonzero(readable).tolist()], rows), broken

    def _prepare_folder(self, tell: Notes) -> None:
        """A folder of this version, or an empty one."""
        about = self.folder / "about.json"
        version = _about(self.folder).get("version")
        if version != DECODE_VERSION and any(self.folder.glob("shard-*")):
            other = f"is of version {version}, this is {DECODE_VERSION}"
            tell(f"the cache {self.folder} {'does not say its version' if version is None else other}; built anew")
            _empty(self.folder)
        if version != DECODE_VERSION:
            content = {
                "version": DECODE_VERSION,
                "source": self.where,
                "channels": self.channels,
                "short_side": self.short_side,
                "resample": self.resample,
            }
            write_text(about, json.dumps(content, indent=2) + "\n", ELSEWHERE)
        os.utime(about)  # one that is being built is not the longest unused
        for left_over in self.folder.glob("*.tmp"):  # of a build that was killed; the lock is ours
            left_over.unlink(missing_ok=True)

    def _shards(self, tell: Notes) -> list[Shard]:
        """The undamaged shards, oldest first; a damaged one is removed, so that its images are decoded again."""
        found = []
        for index in sorted(self.folder.glob("shard-*.npz")):
            shard = read_index(index, self.channels)
            if isinstance(shard, str):
                tell(f"{index.with_suffix('.bin')} of the cache is damaged ({shard}); its images are decoded again")
                index.unlink(missing_ok=True)
                index.with_suffix(".bin").unlink(missing_ok=True)
            else:
                found.append(shard)
        indexed = {shard.path for shard in found}
        for pixels in self.folder.glob("shard-*.bin"):
            if pixels not in indexed:  # killed between the two files
                pixels.unlink()
        return found

    def _decode(
        self,
        items: Sequence[Item | Path],
        names: Sequence[str],
        missing: Sequence[int],
        stamps: np.ndarray,
        progress: Progress | None,
        remarks: list[str],
    ) -> tuple[list[Shard], list[tuple[int, str]]]:
        """New shards with these images; an interruption keeps what is finished."""
        numbers = [int(path.stem.removeprefix("shard-")) for path in self.folder.glob("shard-*.npz")]
        writer = ShardWriter(self.folder, max(numbers, default=-1) + 1)
        broken: list[tuple[int, str]] = []
        large: list[str] = []

        def decode_one(position: int) -> Tensor | str:
            return decode_or_fault(items[position], self.channels, self.short_side, self.resample, large)

        try:
            for done, (position, image) in enumerate(
                zip(missing, map_in_order(decode_one, missing), strict=True), start=1
            ):
                if isinstance(image, str):
                    broken.append((position, image))
                else:
                    writer.add(names[position], stamps[position], image)
                if done == 256:
                    _check_room(self.folder, writer.bytes / done * (len(missing) - done))
                if progress is not None:
                    progress("decoding images into the cache", done, len(missing))
        finally:
            writer.finish()
        remarks += remarks_on_large(large)
        return writer.shards, broken

    def _remove_unused(self, shards: Sequence[Shard], names: Sequence[str]) -> list[Shard]:
        """The shards that still hold an image of the source; others (all changed, or removed) are deleted."""
        wanted = set(_places(shards, _rows(shards, names))[0].tolist())
        for number, shard in enumerate(shards):
            if number not in wanted:
                shard.path.with_suffix(".npz").unlink(missing_ok=True)
                shard.path.unlink(missing_ok=True)
        return [shard for number, shard in enumerate(shards) if number in wanted]


class CachedImages(PackedImages):
    """Images mapped from a cache. Each one's checksum is compared when it is first read, and a damaged one is mended
    from its source file; the memory they take is the system's file cache, not the process's own."""

    def __init__(self, cache: Cache, shards: Sequence[Shard], items: Sequence[Item | Path], rows: np.ndarray) -> None:
        flats = [torch.from_numpy(np.memmap(shard.path, np.uint8, mode="c")) for shard in shards]
        shard_of, row_of = _places(shards, rows)
        offsets, sizes = np.zeros(len(rows), np.int64), np.zeros((len(rows), 2), np.int64)
        self.checksums = np.zeros(len(rows), np.uint32)
        for number, shard in enumerate(shards):
            mine = np.flatnonzero(shard_of == number)
            offsets[mine], sizes[mine] = shard.offsets[row_of[mine]], shard.sizes[row_of[mine]]
            self.checksums[mine] = shard.checksums[row_of[mine]]
        places = torch.from_numpy(np.stack([shard_of, offsets], axis=1))
        super().__init__(flats, places, torch.from_numpy(sizes), cache.channels)
        self.cache, self.items, self.paths = cache, items, [shard.path for shard in shards]
        self.inodes = [path.stat().st_ino for path in self.paths]
        self.verified = np.zeros(len(rows), bool)
        self.mended = 0  # images, since it was opened

    def image(self, index: int) -> Tensor:
        image = super().image(index)
        if not self.verified[index]:
            if crc(image) != self.checksums[index]:
                self._mend(index, image)
            self.verified[index] = True
        return image

    def content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        """The checksums, so that no pixel is read."""
        yield np.ascontiguousarray(self.checksums[rows.numpy()]).data
        yield self.sizes[rows].contiguous().numpy().data

    def _mend(self, index: int, image: Tensor) -> None:
        """Decode the source again and put its pixels back, in memory and on disk."""
        item, path = self.items[index], self.paths[int(self.places[index, 0])]
        where = f"the pixels of {item} in {path} are damaged"
        again = decode_or_fault(item, self.channels, self.cache.short_side, self.cache.resample)
        if isinstance(again, str):
            raise BadInput(
                f"{where}, and the image cannot be read again ({again}); bring it back, then continue with --resume"
            )
        if crc(again) != self.checksums[index]:
            raise BadInput(
                f"{where}, and the image has changed since it was cached; run supancl data cache "
                f"{self.cache.where} --remove, then begin again"
            )
        self.mended += 1
        image.copy_(again)  # the mapping is private: what follows mends the file itself
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            if os.fstat(file.fileno()).st_ino == self.inodes[int(self.places[index, 0])]:  # else another build's shard
                file.seek(int(self.places[index, 1]))
                file.write(again.numpy().tobytes())

    def verify(self, progress: Progress | None = None) -> int:
        """Compare every checksum now; gives how many images were mended."""
        before = self.mended
        for index in range(len(self)):
            image = super().image(index)
            if crc(image) != self.checksums[index]:
                self._mend(index, image)
            self.verified[index] = True
            if progress is not None:
                progress("comparing checksums", index + 1, len(self))
        return self.mended - before


# --- all caches -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheFolder:
    """A cache as it lies on disk."""

    folder: Path
    source: str
    images: int
    nbytes: int
    last_used: float


def list_caches(root: Path | None = None) -> list[CacheFolder]:
    """Every cache, the longest unused first; one whose about.json is damaged too, so that it can be removed."""
    found = []
    for folder in (root or cache_root()).glob("*"):
        if (FOLDER_NAME.search(folder.name) or folder.name in (FEATURES, TARS)) and folder.is_dir():
            with contextlib.suppress(FileNotFoundError):  # removed by somebody else at this moment
                found.append(_describe_folder(folder))
    return sorted(found, key=lambda cache: (cache.last_used, cache.folder))


def _describe_folder(folder: Path) -> CacheFolder:
    content, about = _about(folder), folder / "about.json"
    nbytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    channels = content.get("channels")
    shards = [read_index(path, channels if isinstance(channels, int) else 3) for path in folder.glob("shard-*.npz")]
    images = len({name for shard in shards if isinstance(shard, Shard) for name in shard.names})
    last_used = (about if about.exists() else folder).stat().st_mtime
    if folder.name == TARS:
        return CacheFolder(folder, TARS, 0, nbytes, last_used)
    if folder.name == FEATURES:
        files = [path.stat() for path in folder.glob("*.safetensors")]
        last_used = max((status.st_mtime for status in files), default=last_used)
        return CacheFolder(folder, FEATURES, 0, nbytes, last_used)
    return CacheFolder(folder, str(content.get("source", "(unknown)")), images, nbytes, last_used)


def remove_cache(folder: Path, waiting: Callable[[str], None] = lambda owner: None) -> None:
    """Away with it; a process that has it mapped keeps reading what it mapped."""
    with held(folder / ".lock", waiting):
        _empty(folder)
        shutil.rmtree(folder, ignore_errors=True)


def evict(
    keep_bytes: float,
    root: Path | None = None,
    waiting: Callable[[str], None] = lambda owner: None,
    spared: Path | None = None,
) -> list[CacheFolder]:
    """Remove the longest unused caches until all take no more than `keep_bytes`; the `spared` one stays whatever."""
    caches, removed = list_caches(root), []
    total = sum(cache.nbytes for cache in caches)
    for cache in caches:
        if total > keep_bytes and cache.folder != spared:
            removed.append(cache)
            remove_cache(cache.folder, waiting)
            total -= cache.nbytes
    return removed


def _rows(shards: Sequence[Shard], names: Sequence[str]) -> np.ndarray:
    """Where each name is, counted through all shards, -1 for nowhere; of two entries the later one counts."""
    known = {name: row for row, name in enumerate(name for shard in shards for name in shard.names)}
    return np.array([known.get(name, -1) for name in names], np.int64)


def _places(shards: Sequence[Shard], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(shard, row in it) of the rows that are somewhere."""
    ends = np.cumsum([len(shard.names) for shard in shards], dtype=np.int64)
    rows = rows[rows >= 0]
    shard_of = np.searchsorted(ends, rows, side="right")
    return shard_of, rows - np.concatenate([[0], ends])[shard_of]


def _names(items: Sequence[Item | Path]) -> list[str]:
    """What the cache knows each item by: the same from any working folder and through any link."""
    folders: dict[Path, str] = {}

    def name(item: Item | Path) -> str:
        if not isinstance(item, Path):
            return str(item)
        if item.parent not in folders:
            folders[item.parent] = os.path.realpath(item.parent)
        return os.path.join(folders[item.parent], item.name)

    return [name(item) for item in items]


def _stamps(items: Sequence[Item | Path]) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """(n, 2), and which items have gone."""
    stamps = np.full((len(items), 2), GONE, np.int64)
    gone: list[tuple[int, str]] = []
    for position, item in enumerate(items):
        try:
            stamps[position] = stamp_of(item)
        except OSError as error:
            gone.append((position, image_fault(error)))
    return stamps, gone


def _check_room(folder: Path, wanted: float) -> None:
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise BadInput(
            f"the cache {folder} needs about {wanted / 1e9:.1f} GB more and its disk has "
            f"{free / 1e9:.1f} GB free; {ELSEWHERE}"
        )


def _about(folder: Path) -> dict[str, Any]:
    """What about.json says; nothing where it is missing or damaged."""
    try:
        content = json.loads((folder / "about.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file() and path.name != ".lock":
            path.unlink(missing_ok=True)  # features and indices are written by who does not hold the lock
