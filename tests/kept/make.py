"""Write the run folders of supancl 0.1.0 that `test_runs_of_0_1_0.py` reads: run it with the code of commit 8552e40.

    PYTHONPATH=SRC_OF_8552e40:. python tests/kept/make.py tests/kept/0.1.0 /data/drawn

It is kept to show how the folders came to be. Another version's folders go beside them, under its own number.

Each run is stopped at a step by a signal and kept so; `expected.json` holds what 0.1.0 then logged for the steps after
it, and what its evaluations said.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from torch import nn
from torchvision.models import ResNet

from supancl import Reporter, pretrain, recipe
from supancl.cli import main
from supancl.errors import Interrupted
from supancl.weights.run_folder import RunFolder
from tests.detect.drawn import TINY, tiny_resnet, write_voc

SMALL = {
    "encoder.name": "cnn", "encoder.channels": 1, "encoder.width": 8, "views.size": 16, "encoder.mean": [0.5],
    "encoder.std": [0.5], "data.source": "digits", "data.limit": 240, "data.holdout": 0.25, "train.batch_size": 32,
    "train.epochs": 4, "train.log_every": 1, "train.monitor_every": 1, "train.device": "cpu", "heads.projector.out": 16,
}  # fmt: skip
SIAM = {"heads.projector.hidden": [16], "heads.predictor.hidden": [8]}
RUNS = {
    # name -> recipe, settings, compat, the step it is stopped at
    "plain": ("digits.supsiam", {**SIAM, "pool.size": 64, "schedule.warmup_epochs": 1}, "paper", 8),
    "finished": ("digits.supsiam", {**SIAM, "pool.size": 64, "schedule.warmup_epochs": 1}, "paper", None),
    "cut-warmup": ("digits.simsiam", {**SIAM, "schedule.warmup_epochs": 40}, "paper", 3),
    "compat-supbyol": ("digits.supbyol", {**SIAM, "pool.size": 64, "schedule.warmup_epochs": 1}, "released-code", 8),
    "compat-supcon": ("cifar10.supcon", {"heads.projector.hidden": [16], "schedule.warmup_epochs": 0,
                                         "optimizer.lr": 0.05}, "released-code", 8),
    "compat-moco2": ("cifar100.moco2", {"heads.projector.hidden": [16], "pool.size": 64, "schedule.warmup_epochs": 0,
                                        "optimizer.lr": 0.05}, "released-code", 8),
}  # fmt: skip
EVALUATIONS = {
    "knn": ["evaluate", "knn"], "linear": ["evaluate", "linear"], "variance": ["evaluate", "variance"],
    "transfer": ["evaluate", "transfer", "--data", "digits"],
    "fewshot": ["evaluate", "fewshot", "--data", "digits", "--shots", "1,5", "--episodes", "20"],
}  # fmt: skip


class Stop(Reporter):
    """Sends this process SIGTERM once the run has come to a step."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_step(self, step: int, row: object) -> None:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


setattr(Stop, "stepped", Stop.on_step)  # noqa: B010 - its name in 0.1.0, which makes these runs


def train(name: str, out: Path) -> list[dict[str, object]]:
    """The run, stopped where the table says; returns what the rest of it logs, in a copy."""
    base, settings, compat, stop = RUNS[name]
    chosen = recipe(base, compat=compat).with_set({**SMALL, **settings})
    if stop is None:
        pretrain(chosen, out=out)
        return []
    with suppress(Interrupted):
        pretrain(chosen, out=out, reporter=Stop(stop - 1))
    with TemporaryDirectory() as elsewhere:
        copy = shutil.copytree(out, Path(elsewhere) / "run")
        pretrain(None, out=copy, resume=True)
        return [row for row in RunFolder(copy).metrics() if int(row["step"]) > stop]


def slim(folder: Path) -> None:
    """Without what no command reads: locks, pictures, the machine's name, and all checkpoints but the newest."""
    for picture in folder.rglob("*.png"):
        picture.unlink()
    for events in folder.rglob("events.out.tfevents.*"):
        events.rename(events.with_name("events.out.tfevents.0.machine.0.0"))
    for lock in folder.rglob(".lock"):
        lock.unlink()
    for checkpoints in folder.rglob("checkpoints"):
        for old in sorted(checkpoints.glob("step-*.pt"))[:-1]:
            old.unlink()
            old.with_suffix(".sha256").unlink()


def narrow_resnet(weights: None = None) -> ResNet:
    """tests/detect/drawn.py's ResNet, to stand in for a ResNet-18, which would take 45 MB."""
    body = tiny_resnet(4)
    body.fc = nn.Linear(32, 1000)
    return body


def detector(root: Path, out: Path) -> None:
    write_voc(root, {"train": range(4), "val": range(4, 6)})
    words = [
        word
        for name, value in {**TINY, "iters": 4, "batch_size": 2, "checkpoint_every": 2}.items()
        for word in ("--set", f"{name}={json.dumps(value)}")
    ]
    with mock.patch("torchvision.models.resnet18", narrow_resnet):
        assert (
            main(
                ["detect", "train", "random:resnet18", "--data", str(root), "--year", "2012", *words, "--out", str(out)]
            )
            == 0
        )


def stop_detector(finished: Path, out: Path) -> list[dict[str, object]]:
    """The folder as a kill after step 2 would have left it; returns what the run logged after that step."""
    shutil.copytree(finished, out)
    shutil.rmtree(out / "evaluate")
    for name in ("detector.safetensors", "checkpoints/step-000000004.pt", "checkpoints/step-000000004.sha256"):
        (out / name).unlink()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows if row["step"] <= 2))
    return [row for row in rows if row["step"] > 2]


def evaluate(run: Path, only: tuple[str, ...] = tuple(EVALUATIONS)) -> None:
    for name in only:
        head, *rest = EVALUATIONS[name][:2]
        assert main([head, *rest, str(run), *EVALUATIONS[name][2:], "--quiet"]) == 0


def study_words() -> list[str]:
    words = [
        "study",
        "positives",
        "digits.supsiam",
        "--data",
        "digits",
        "--rows",
        "M-1,M-all",
        "--seeds",
        "2",
        "--epochs",
        "1",
    ]
    sets = {**SMALL, **SIAM, "pool.size": 64}
    return words + [
        word
        for key, value in sets.items()
        if key not in ("data.source", "train.epochs")
        for word in ("--set", f"{key}={json.dumps(value)}")
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[1]).resolve()
    where.mkdir(parents=True, exist_ok=True)
    os.chdir(where)
    expected = {name: train(name, Path(name)) for name in RUNS}
    evaluate(Path("finished"))
    evaluate(Path("compat-supcon"), ("knn", "linear"))
    assert main([*study_words(), "--out", "study"]) == 0
    detector(Path(sys.argv[2]), Path("detector"))
    expected["detector-stopped"] = stop_detector(Path("detector"), Path("detector-stopped"))
    slim(Path())
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
