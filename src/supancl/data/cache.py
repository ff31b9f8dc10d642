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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.data.images import Item, PackedImages, decode, in_order, stamp_of, why
from supancl.data.shards import ELSEWHERE, Shard, ShardWriter, crc, read_index
from supancl.errors import BadInput
from supancl.files import held, reason, write_atomically

VERSION = 1

Progress = Callable[[str, int, int], None]
Notes = Callable[[str], None]


def cache_root() -> Path:
    """$SUPANCL_CACHE, else supancl/ in the user's cache folder."""
    named = os.environ.get("SUPANCL_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "supancl"


class Cache:
    """The images of one source at one size. `where` names the source; the same name finds the same cache."""

    def __init__(self, where: str, channels: int, short_side: int | None, root: Path | None = None) -> None:
        self.where, self.channels, self.short_side = where, channels, short_side
        key = hashlib.sha256(json.dumps([where, channels, short_side]).encode()).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(where).name)[:40].strip("-") or "data"
        side = "whole" if short_side is None else f"{short_side}px"
        self.folder = (root or cache_root()) / f"{name}-{side}-{key}"

    # --- building ---------------------------------------------------------------------------------------------------

    def build(
        self, items: Sequence[Item | Path], progress: Progress | None = None, note: Notes | None = None
    ) -> tuple[CachedImages, list[tuple[int, str]], list[str]]:
        """Decode what is not there yet. Gives the images, (position, reason) of unreadable ones, and remarks."""
        remarks: list[str] = []
        tell = note or remarks.append
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = held(self.folder / ".lock", lambda owner: tell(f"process {owner} is building the cache "
                                                                  f"{self.folder}; waiting for it"))
            with lock:
                self._begin(tell)
                shards = self._shards(tell)
                known = _by_name(shards)
                stamps, broken = _stamps(items)
                gone = {position for position, _ in broken}
                missing = [i for i, item in enumerate(items)
                           if i not in gone and known.get(str(item), (None, None, None))[2] != stamps[i]]
                if missing:
                    written, unreadable = self._decode(items, missing, stamps, len(shards), progress)
                    shards += written
                    broken += unreadable
                    self._drop_superseded(shards)
                    shards = [shard for shard in shards if shard.path.exists()]
                os.utime(self.folder / "about.json")  # last used: what eviction goes by
        except OSError as error:
            raise BadInput(f"the cache {self.folder} cannot be written ({reason(error)}); {ELSEWHERE}") from None
        return self._opened(items, shards, {position for position, _ in broken}), sorted(broken), remarks

    def _begin(self, tell: Notes) -> None:
        """A folder of this version, or an empty one."""
        about = self.folder / "about.json"
        version = _version(about)
        if version is not None and version != VERSION:
            tell(f"the cache {self.folder} is of version {version}, this is {VERSION}; built anew")
            _empty(self.folder)
        if version != VERSION:
            content = {"version": VERSION, "source": self.where, "channels": self.channels,
                       "short_side": self.short_side}
            write_atomically(about, lambda path: _dump(content, path), ELSEWHERE)
        for left_over in self.folder.glob("*.tmp"):  # of a build that was killed; the lock is ours
            left_over.unlink(missing_ok=True)

    def _shards(self, tell: Notes) -> list[Shard]:
        """The sound shards, oldest first; a damaged one is removed, so that its images are decoded again."""
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
        self, items: Sequence[Item | Path], missing: Sequence[int], stamps: Sequence[tuple[int, int] | None],
        first: int, progress: Progress | None,
    ) -> tuple[list[Shard], list[tuple[int, str]]]:
        """New shards with these images; an interruption keeps what is finished."""
        numbers = [int(path.stem.removeprefix("shard-")) for path in self.folder.glob("shard-*.npz")]
        writer = ShardWriter(self.folder, max([first - 1, *numbers]) + 1)
        broken: list[tuple[int, str]] = []

        def one(position: int) -> Tensor | str:
            try:
                return decode(items[position], self.channels, self.short_side)
            except (OSError, ValueError) as error:
                return why(error)

        try:
            for done, (position, image) in enumerate(zip(missing, in_order(one, missing), strict=True), start=1):
                if isinstance(image, str):
                    broken.append((position, image))
                else:
                    stamp = stamps[position]
                    assert stamp is not None
                    writer.add(str(items[position]), stamp, image)
                if done == 256:
                    _check_room(self.folder, writer.bytes / done * (len(missing) - done))
                if progress is not None:
                    progress("decoding images into the cache", done, len(missing))
        finally:
            writer.finish()
        return writer.shards, broken

    def _drop_superseded(self, shards: Sequence[Shard]) -> None:
        """Shards all of whose images have been decoded again, because their files have changed."""
        latest = {name: number for number, shard in enumerate(shards) for name in shard.names}
        for number, shard in enumerate(shards):
            if all(latest[name] != number for name in shard.names):
                shard.path.with_suffix(".npz").unlink(missing_ok=True)
                shard.path.unlink(missing_ok=True)

    def _opened(self, items: Sequence[Item | Path], shards: Sequence[Shard], without: set[int]) -> CachedImages:
        known = _by_name(shards)
        rows = [known[str(item)][:2] for i, item in enumerate(items) if i not in without]
        kept = [item for i, item in enumerate(items) if i not in without]
        return CachedImages(self, shards, kept, rows)


class CachedImages(PackedImages):
    """Images mapped from a cache. Each one's checksum is compared when it is first read, and a damaged one is mended
    from its source file; the memory they take is the system's file cache, not the process's own."""

    def __init__(
        self, cache: Cache, shards: Sequence[Shard], items: Sequence[Item | Path], rows: Sequence[tuple[int, int]]
    ) -> None:
        flats = [torch.from_numpy(np.memmap(shard.path, np.uint8, mode="c")) for shard in shards]
        shard_of, row_of = np.array(rows, np.int64).reshape(-1, 2).T
        offsets, sizes = np.zeros(len(rows), np.int64), np.zeros((len(rows), 2), np.int64)
        self.checksums = np.zeros(len(rows), np.uint32)
        for number, shard in enumerate(shards):
            mine = np.flatnonzero(shard_of == number)
            offsets[mine], sizes[mine] = shard.offsets[row_of[mine]], shard.sizes[row_of[mine]]
            self.checksums[mine] = shard.checksums[row_of[mine]]
        places = torch.from_numpy(np.stack([shard_of, offsets], axis=1))
        super().__init__(flats, places, torch.from_numpy(sizes), cache.channels)
        self.cache, self.items, self.paths = cache, items, [shard.path for shard in shards]
        self.sound = np.zeros(len(rows), bool)

    def image(self, index: int) -> Tensor:
        image = super().image(index)
        if not self.sound[index]:
            if crc(image) != self.checksums[index]:
                self._mend(index, image)
            self.sound[index] = True
        return image

    def _mend(self, index: int, image: Tensor) -> None:
        """Decode the source again and put its pixels back, in memory and on disk."""
        item, path = self.items[index], self.paths[int(self.places[index, 0])]
        where = f"the pixels of {item} in {path} are damaged"
        try:
            again = decode(item, self.channels, self.cache.short_side)
        except (OSError, ValueError) as error:
            raise BadInput(f"{where}, and the image cannot be read again ({why(error)}); bring it back, then continue "
                           "with --resume") from None
        if crc(again) != self.checksums[index]:
            raise BadInput(f"{where}, and the image has changed since it was cached; run supancl data cache "
                           f"{self.cache.where} --remove, then begin again")
        image.copy_(again)  # the mapping is private: what follows mends the file itself
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            file.seek(int(self.places[index, 1]))
            file.write(again.numpy().tobytes())

    def verify(self, progress: Progress | None = None) -> int:
        """Compare every checksum now; gives how many images were mended."""
        mended = 0
        for index in range(len(self)):
            mended += crc(super().image(index)) != int(self.checksums[index])
            self.image(index)
            if progress is not None:
                progress("comparing checksums", index + 1, len(self))
        return mended


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
    """Every cache, the longest unused first."""
    found = []
    for about in sorted((root or cache_root()).glob("*/about.json")):
        version = _version(about)
        if version is None:
            continue
        content = json.loads(about.read_text())
        source, channels = str(content.get("source", "?")), int(content.get("channels", 3))
        nbytes = sum(path.stat().st_size for path in about.parent.iterdir() if path.is_file())
        shards = [read_index(path, channels) for path in about.parent.glob("shard-*.npz")]
        images = len({name for shard in shards if isinstance(shard, Shard) for name in shard.names})
        found.append(CacheFolder(about.parent, source, images, nbytes, about.stat().st_mtime))
    return sorted(found, key=lambda cache: cache.last_used)


def remove_cache(folder: Path) -> None:
    """Away with it; a process that has it mapped keeps reading what it mapped."""
    with held(folder / ".lock", lambda owner: None):
        _empty(folder)
    shutil.rmtree(folder, ignore_errors=True)


def evict(keep_bytes: float, root: Path | None = None) -> list[CacheFolder]:
    """Remove the longest unused caches until the rest take no more than `keep_bytes`."""
    caches, removed = list_caches(root), []
    while caches and sum(cache.nbytes for cache in caches) > keep_bytes:
        removed.append(caches.pop(0))
        remove_cache(removed[-1].folder)
    return removed


def _by_name(shards: Sequence[Shard]) -> dict[str, tuple[int, int, tuple[int, int]]]:
    """name -> (shard, row, stamp); of two entries the later one counts."""
    known: dict[str, tuple[int, int, tuple[int, int]]] = {}
    for number, shard in enumerate(shards):
        for row, (name, stamp) in enumerate(zip(shard.names, shard.stamps.tolist(), strict=True)):
            known[name] = (number, row, (stamp[0], stamp[1]))
    return known


def _stamps(items: Sequence[Item | Path]) -> tuple[list[tuple[int, int] | None], list[tuple[int, str]]]:
    stamps: list[tuple[int, int] | None] = []
    gone: list[tuple[int, str]] = []
    for position, item in enumerate(items):
        try:
            stamps.append(stamp_of(item))
        except OSError as error:
            stamps.append(None)
            gone.append((position, why(error)))
    return stamps, gone


def _check_room(folder: Path, wanted: float) -> None:
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise BadInput(f"the cache {folder} needs about {wanted / 1e9:.1f} GB more and its disk has "
                       f"{free / 1e9:.1f} GB free; {ELSEWHERE}")


def _version(about: Path) -> int | None:
    try:
        return int(json.loads(about.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file() and path.name != ".lock":
            path.unlink()


def _dump(content: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
