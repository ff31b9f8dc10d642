"""Run folders without training, whose logs are made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from supancl.data.splits import full_split
from supancl.data.store.memory import ArrayImages
from supancl.evaluation.audit import ListedImages
from supancl.reports.map import NEIGHBOURS, EncoderMap, nearest_images
from supancl.runs.folder import RunFolder
from supancl.runs.log import RunEnd, record_end
from tests.evaluation.made import run_folder

STEPS = 4  # of an epoch


def log_lines(
    ranks: Sequence[float], stds: Sequence[float | None], knns: Sequence[float], losses: Sequence[float | None]
) -> list[str]:
    """The lines of metrics.jsonl: one logged step and one check per epoch."""
    lines = []
    for epoch, (rank, std, knn, loss) in enumerate(zip(ranks, stds, knns, losses, strict=True)):
        step = (epoch + 1) * STEPS
        train = {"loss": loss, "ssl": loss, "sup": loss, "lr": 0.1 / step, "momentum": None, "std": std}
        check = {"std": std, "effective_rank": rank, "s_w/s_t": 0.5, "knn": knn, "linear": knn + 1,
                 "knn_interval": [knn - 2, knn + 2], "knn_queries": 300, "pool_coverage": 1.0}  # fmt: skip
        position = {"step": step, "epoch": epoch}
        lines.append(json.dumps({"kind": "train", **position, **train, "images_per_second": 100.0}))
        lines.append(json.dumps({"kind": "monitor", **position, **check}))
    return lines


def logged_run(
    path: Path,
    ranks: Sequence[float] = (60.0, 50.0, 45.0, 44.0),
    stds: Sequence[float | None] = (0.99, 0.98, 0.99, 0.99),
    knns: Sequence[float] = (20.0, 30.0, 40.0, 44.0),
    losses: Sequence[float | None] = (0.0, -0.2, -0.4, -0.5),
    epochs: int = 4,
    collapsed: bool = False,
    **settings: object,
) -> RunFolder:
    """A run of `epochs` epochs of which as many are logged as there are values; finished if those are all."""
    run_folder(path, train__epochs=epochs, train__batch_size=256, described=bool(settings.get("source")), **settings)
    folder = RunFolder(path)
    folder.metrics_file.write_text("\n".join(log_lines(ranks, stds, knns, losses)) + "\n")
    if len(ranks) == epochs:
        record_end(folder, RunEnd(epochs * STEPS, collapsed), "one")
    return folder


NASTY = '<img src=x onerror="document.title=1"></script><script>document.title = "broken"</script>'


def smooth_images(count: int, side: int = 32, seed: int = 0) -> np.ndarray:
    """Colour images about as hard to compress as photographs: a few large blobs and a little noise."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, 3, 4, 4), dtype=np.uint8).repeat(side // 4, 2).repeat(side // 4, 3)
    noise = random.integers(-12, 13, (1, 3, side, side), dtype=np.int16)
    return np.clip(coarse.astype(np.int16) + noise, 0, 255).astype(np.uint8)


def made_images(
    count: int, classes: tuple[str, ...], pixels: np.ndarray | None = None, source: str = "photos"
) -> ListedImages:
    """Images whose classes take turns; the last tenth are of the test split, and every 50th is unlabelled."""
    pixels = smooth_images(count) if pixels is None else pixels
    labels = np.where(np.arange(count) % 50 == 49, -1, np.arange(count) % len(classes))
    names = [f"photos/{classes[label % len(classes)][:8]}/{i:06d}.png" for i, label in enumerate(labels)]
    split = full_split(ArrayImages(torch.from_numpy(pixels)), torch.from_numpy(labels), names)
    from_split = ["test" if i >= 0.9 * count else "train" for i in range(count)]
    return ListedImages(source, {"all": split}, names, torch.from_numpy(labels), classes, from_split, has_files=False)


def made_map(title: str, count: int, seed: int, exact: bool = True) -> tuple[EncoderMap, np.ndarray]:
    """A map of random points, and the features that its neighbours are of (`exact`; else neighbours are random)."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 8)).astype(np.float32)
    points = random.normal(size=(count, 2)).astype(np.float32)
    if exact:
        rows = nearest_images(torch.from_numpy(features), NEIGHBOURS).rows.numpy()
    else:
        rows = random.integers(0, count, (count, NEIGHBOURS))
    predicted = random.integers(0, 3, count).astype(np.int32)
    return EncoderMap(title, points, rows, predicted, np.full(count, 0.5, np.float32)), features
