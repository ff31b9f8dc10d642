"""Tar shards made for the purpose, for scaling.py."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def jpeg(seed: int, side: tuple[int, int]) -> bytes:
    """Smooth colours with some noise: near enough to what a photograph costs."""
    random = np.random.default_rng(seed)
    smooth = np.asarray(Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize(side, 3), np.float32)
    noisy = smooth + random.normal(0, 10, smooth.shape)
    content = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(content, "jpeg", quality=90)
    return content.getvalue()


def write_shards(folder: Path, shards: int, each: int, side: tuple[int, int]) -> int:
    """Bytes of one image on average; sixteen different ones."""
    contents = [jpeg(seed, side) for seed in range(16)]
    folder.mkdir()
    for shard in range(shards):
        name = folder / f"{'val' if shard == 0 else 'train'}-{shard:05d}.tar"
        with tarfile.open(name, "w") as tar:
            for i in range(each):
                for part, content in (("jpg", contents[i % 16]), ("cls", str(i % 1000).encode())):
                    about = tarfile.TarInfo(f"{shard * each + i:09d}.{part}")
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))
    return sum(map(len, contents)) // 16
