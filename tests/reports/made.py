"""Run folders without training, whose logs are made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

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
