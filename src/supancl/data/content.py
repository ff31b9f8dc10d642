"""What changes with the content of images, so that a run notices that some were replaced."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from supancl.files import open_regular

BLOCK_BYTES = 4096
SAMPLED_BLOCKS = 16  # of a shard, evenly spaced; reading shards whole would take hours


@dataclass(frozen=True)
class Content:
    """A value that changes with each image (`pixels`) or shard (`shards`), so that a run notices what was replaced."""

    kind: str
    values: np.ndarray  # (n,) uint64

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.kind.encode() + np.ascontiguousarray(self.values).tobytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The values as an npz file."""
        file = io.BytesIO()
        np.savez(file, values=self.values, kind=self.kind)
        return file.getvalue()


def read_content(path: Path) -> Content | None:
    """Saved values; None if the file is missing or damaged: then names cannot be given."""
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            return Content(str(arrays["kind"]), arrays["values"])
    except Exception:  # numpy, zipfile and zlib each raise something else
        return None


def shard_content(shards: Sequence[Path]) -> Content:
    """Sizes and sampled bytes of files that are too large to read whole."""
    values = np.zeros(len(shards), np.uint64)
    for number, path in enumerate(shards):
        size = path.stat().st_size
        content = hashlib.sha256(str(size).encode())
        with open_regular(path) as file:
            for start in np.unique(np.linspace(0, max(0, size - BLOCK_BYTES), SAMPLED_BLOCKS).astype(int)).tolist():
                file.seek(start)
                content.update(file.read(BLOCK_BYTES))
        values[number] = int.from_bytes(content.digest()[:8], "little")
    return Content("shards", values)
