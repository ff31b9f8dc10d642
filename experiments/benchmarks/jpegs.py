"""JPEGs for benchmarks. Without our package: before.py needs them in other trees too."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def photograph(seed: int, width: int, height: int) -> Image.Image:
    """Smooth gradients, some shapes, and noise: what a JPEG of a photograph costs to decode, near enough."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / height
    slope = random.normal(size=(3, 4))[..., None, None]
    smooth = 128 + 50 * (slope[:, 0] * x + slope[:, 1] * y) + 30 * np.sin(6 * slope[:, 2] * x + 5 * slope[:, 3] * y)
    picture = Image.fromarray(smooth.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
    pen = ImageDraw.Draw(picture)
    for _ in range(12):
        left, top = random.integers(0, width), random.integers(0, height)
        box = [left, top, left + random.integers(4, width // 3 + 5), top + random.integers(4, height // 3 + 5)]
        pen.ellipse([int(side) for side in box], fill=tuple(random.integers(0, 256, 3).tolist()))
    noisy = np.asarray(picture) + random.normal(0, 14, (height, width, 1))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def write_jpegs(root: Path, sizes: list[tuple[int, int]], count: int, quality: int = 90) -> list[Path]:
    """Folders of ten classes; sixteen different images, (height, width) in turn, each written under many names."""
    paths = [root / f"class{number % 10}" / f"{number:06d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < 16:
            height, width = sizes[number % len(sizes)]
            photograph(number, width, height).save(path, quality=quality)
        else:
            shutil.copyfile(paths[number % 16], path)
    return paths
