"""Checksums of the images of a run, so that a resumed run notices images that were replaced."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from supancl.files import open_regular

BLOCK_BYTES = 4096
SAMPLED_BLOCKS = 16  # of a shard, evenly spaced; reading shards whole would take hours


@dataclass(frozen=True)
class Content:
    """A value that changes with each image (`pixels`) or shard (`shards`), in the order of the data.

    `stamps` (n, 2) are time and inode of each shard: they differ for a copy, so they alone prove no change.
    """

    kind: Literal["pixels", "shards"]
    values: np.ndarray  # (n,) uint64
    stamps: np.ndarray  # (n, 2) int64; (0, 2) for pixels
    names_at: Callable[[Sequence[int]], list[str]]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.kind.encode() + np.ascontiguousarray(self.values).tobytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The values and stamps as an npz file."""
        file = io.BytesIO()
        np.savez(file, values=self.values, stamps=self.stamps)
        return file.getvalue()

    def changed_names(self, saved: Content | None) -> list[str]:
        """Names of the images or shards that differ from the saved ones; empty if those do not fit."""
        if saved is None or saved.values.shape != self.values.shape:
            return []
        return self.names_at(np.flatnonzero(saved.values != self.values).tolist())

    def has_other_stamps(self, saved: Content | None) -> bool:
        return saved is not None and not np.array_equal(saved.stamps, self.stamps)


def join_content(contents: Sequence[Content]) -> Content:
    """One content for several splits; the shards of a stream hold all of its splits."""
    if len(contents) == 1 or contents[0].kind == "shards":
        return contents[0]
    starts = np.cumsum([0, *(len(content.values) for content in contents)])

    def names_at(positions: Sequence[int]) -> list[str]:
        numbers = np.searchsorted(starts, positions, side="right") - 1
        pairs = zip(numbers.tolist(), positions, strict=True)
        return [contents[number].names_at([position - int(starts[number])])[0] for number, position in pairs]

    values, stamps = (np.concatenate([getattr(content, name) for content in contents]) for name in ("values", "stamps"))
    return Content(contents[0].kind, values, stamps, names_at)


def read_content(path: Path) -> Content | None:
    """Saved values and stamps; None if the file is missing or damaged: then names cannot be given."""
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            return Content("pixels", arrays["values"], arrays["stamps"], lambda positions: [])
    except Exception:  # numpy, zipfile and zlib each raise something else
        return None


def shard_content(shards: Sequence[Path]) -> Content:
    """Sizes and sampled bytes of files that are too large to read whole."""
    values, stamps = np.zeros(len(shards), np.uint64), np.zeros((len(shards), 2), np.int64)
    for number, path in enumerate(shards):
        status = path.stat()
        stamps[number] = status.st_mtime_ns, status.st_ino
        values[number] = _sample(path, status.st_size)
    return Content("shards", values, stamps, lambda positions: [str(shards[position]) for position in positions])


def _sample(path: Path, size: int) -> int:
    content = hashlib.sha256(str(size).encode())
    with open_regular(path) as file:
        for start in np.unique(np.linspace(0, max(0, size - BLOCK_BYTES), SAMPLED_BLOCKS).astype(int)).tolist():
            file.seek(start)
            content.update(file.read(BLOCK_BYTES))
    return int.from_bytes(content.digest()[:8], "little")
