"""What the end-to-end tests of tables share: the smallest settings, whole benchmark trees, and the cells of a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supancl.cli import main
from supancl.data.opening import open_benchmark
from supancl.data.sources.benchmarks import BENCHMARKS
from tests.data.benchmark_trees import BUILDERS, Tree, dtd

SMALL = ("--epochs", "1", "--device", "cpu", "--set", "encoder.width=8", "--set", "schedule.warmup_epochs=0")
TRAIN = (*SMALL, "--jobs", "1")
DIGITS = ("--family", "digits", "--set", "data.limit=128", *TRAIN)


def run(*words: object) -> None:
    """A command of the documentation, which has to succeed."""
    assert main([*map(str, words), "--quiet"]) == 0


def table(name: str, where: Path, *words: object) -> dict[str, Any]:
    """`supancl paper table NAME ...` as JSON."""
    file = where / "table.json"
    run("paper", "table", name, *words, "--json", file)
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def ours(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, float]]:
    """(section, row) -> column -> our number."""
    return {
        (line["section"], line["row"]): {column: score["mean"] for column, score in line["ours"].items()}
        for line in content["lines"]
        if line["ours"]
    }


def edit(file: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change a result file as somebody with an editor would, who removes the digest."""
    file.write_text(json.dumps({**change(json.loads(file.read_text())), "digest": None}))


def few_shot_dtd(root: Path) -> None:
    """DTD's layout with six classes of nine images: enough for 5-way 5-shot episodes."""
    dtd(Tree(root), "abcdef", 3)


def make_benchmarks(root: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Path:
    """Small trees of these data sets; the registry is told their sizes, so that they count as whole."""
    root.mkdir()
    for name in names:
        (few_shot_dtd if name == "dtd" else BUILDERS[name])(root)
        found = open_benchmark(name, root, use="transfer", partial=True)
        sizes = {split: len(images) for split, images in found.splits.items()}
        row = BENCHMARKS[name]
        monkeypatch.setitem(
            BENCHMARKS,
            name,
            replace(
                row,
                classes=len(found.classes),
                split=(sizes["train"], sizes["val"], sizes["test"]),
                images=None if row.images is None else sum(sizes.values()),
                class_sizes={},
                class_order=(),
            ),
        )
    return root


def colours(file: Path, classes: int, train: int, test: int, seed: int = 0, side: int = 32) -> Path:
    """RGB images as a .npz with a test split; a class is a colour."""
    random = np.random.default_rng(seed)
    content = {}
    for split, count in (("train", train), ("test", test)):
        labels = np.arange(count) % classes
        tints = np.random.default_rng(1).integers(0, 120, (classes, 3))
        images = random.integers(0, 120, (count, side, side, 3)) + tints[labels][:, None, None]
        content |= {f"{split}_images": images.astype(np.uint8), f"{split}_labels": labels}
    np.savez(file, **content)
    return file
