"""Small things on disk: images, class folders, archives, tables; and the command line, run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from supancl.cli import main

TINY = ["--epochs", "1", "--batch-size", "4", "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16"]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "L") -> Path:
    """An image of noise in a file whose suffix says the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(*size, 3, seed=seed)).convert(mode).save(path)
    return path


def class_folders(root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 6) -> Path:
    for c, name in enumerate(classes):
        for i in range(each):
            picture(root / name / f"{i}.png", seed=100 * c + i)
    return root


def archive(path: Path, **arrays: object) -> Path:
    """A .npz of 20 grey images in two classes; what is named replaces or adds to it, None takes away."""
    content = {"train_images": noise(20, 8, 8), "train_labels": np.arange(20) % 2, **arrays}
    np.savez(path, **{name: np.asarray(value) for name, value in content.items() if value is not None})
    return path


def table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Said(NamedTuple):
    code: int
    out: str
    err: str


def supancl(capsys, *arguments: object) -> Said:
    """The command's exit code and what it printed."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as leaving:  # argparse ends the process itself
        code = leaving.code
    return Said(code, *capsys.readouterr())


def contents(root: Path) -> dict[str, bytes | None]:
    """Every file below the root with its bytes, every folder with None; who holds a lock is no content."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if path.name != ".lock"
    }
