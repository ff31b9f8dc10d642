"""What benchmarks share: JPEGs and tables, where they ran, and the results kept as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from supancl.reports.tables import Table, to_markdown
from supancl.runs.provenance import commit, hardware, versions

Record = dict[str, Any]


def about(device: torch.device, *peers: str, given: str = "") -> Record:
    """Where and when something was measured, with the versions of ours and of the peers that are installed."""
    found = versions()
    for name in peers:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    return {"hardware": hardware(device), "versions": found, "commit": given or commit(), "date": day}


def rounded(value: Any) -> Any:
    """Five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def keep(file: Path | None, content: Any) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rounded(content), indent=1, default=str) + "\n")


def show(rows: Sequence[Record]) -> None:
    """Records as a Markdown table: a column for each key that any of them has."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[text_of(row.get(key), key) for key in columns] for row in rows]
    print(to_markdown(Table([key.replace("_", " ") for key in columns], cells)), flush=True)


def text_of(value: Any, column: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return " - ".join(text_of(item) for item in value)
    if "bytes" in column:
        return f"{value / 1e6:,.4g} MB"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


# --- JPEGs ------------------------------------------------------------------------------------------------------------


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
