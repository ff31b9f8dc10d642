"""All caches on disk: which there are, how large they are, and how they are removed."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supancl.data.store.cache import FEATURES_FOLDER, TAR_INDEX_FOLDER, cache_root, remove_files
from supancl.data.store.shards import Shard, read_index
from supancl.files import hold_lock, read_json

CACHE_FOLDER_NAME = re.compile(r"-(whole|\d+px)-[0-9a-f]{12}$")  # the root may have other folders


@dataclass(frozen=True)
class CacheFolder:
    """A cache on disk."""

    folder: Path
    source: str
    images: int
    nbytes: int
    last_used: float


def list_caches(root: Path | None = None) -> list[CacheFolder]:
    """Every cache, longest unused first; includes those with a damaged about.json, so that they can be removed."""
    caches = []
    for folder in (root or cache_root()).glob("*"):
        if (
            CACHE_FOLDER_NAME.search(folder.name) or folder.name in (FEATURES_FOLDER, TAR_INDEX_FOLDER)
        ) and folder.is_dir():
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                caches.append(_describe_folder(folder))
    return sorted(caches, key=lambda cache: (cache.last_used, cache.folder))


def _describe_folder(folder: Path) -> CacheFolder:
    about = folder / "about.json"
    content = read_json(about)
    nbytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    channels = content.get("channels")
    shards = [read_index(path, channels if isinstance(channels, int) else 3) for path in folder.glob("shard-*.npz")]
    images = len({name for shard in shards if isinstance(shard, Shard) for name in shard.names})
    last_used = (about if about.exists() else folder).stat().st_mtime
    if folder.name == TAR_INDEX_FOLDER:
        return CacheFolder(folder, TAR_INDEX_FOLDER, 0, nbytes, last_used)
    if folder.name == FEATURES_FOLDER:
        files = [path.stat() for path in folder.glob("*.safetensors")]
        last_used = max((status.st_mtime for status in files), default=last_used)
        return CacheFolder(folder, FEATURES_FOLDER, 0, nbytes, last_used)
    return CacheFolder(folder, str(content.get("source", "(unknown)")), images, nbytes, last_used)


def remove_cache(folder: Path, on_wait: Callable[[str], None] = lambda owner: None) -> None:
    """Delete a cache; a process that has mapped it can go on reading. Of a link only the link is deleted."""
    if folder.is_symlink():
        folder.unlink()
        return
    with hold_lock(folder / ".lock", on_wait):
        remove_files(folder)
        shutil.rmtree(folder, ignore_errors=True)


def evict(
    keep_bytes: float, on_wait: Callable[[str], None] = lambda owner: None, keep: Path | None = None
) -> list[CacheFolder]:
    """Remove the longest unused caches until the others take at most `keep_bytes`; `keep` is never removed."""
    caches, removed = list_caches(), []
    total = sum(cache.nbytes for cache in caches)
    for cache in caches:
        if total > keep_bytes and cache.folder != keep:
            removed.append(cache)
            remove_cache(cache.folder, on_wait)
            total -= cache.nbytes
    return removed
