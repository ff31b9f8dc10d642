"""Train candidates for the same time and keep which held-out images a linear classifier on each gets right.

    python -m experiments.auto.runs --data DIR --out DIR [--seconds 35] [--only NAME ...] [--until SECONDS]

DIR holds cifar100.npz, mini_imagenet.npz, pets/ and gtsrb/ (unpack.py of the shared data makes them); what is not there
yet is waited for. A result is a JSON file per cell and candidate; those that exist are not repeated. Only images held
out of the training split are looked at. The candidates `continued` begin with the encoder of `mini-27000-start`, the
rules trained for five times as long.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supancl.data.opening import open_data
from supancl.data.splits import Data
from supancl.data.survey import survey_data
from supancl.files import write_json
from supancl.probes.features import embed
from supancl.probes.linear import linear_probe
from supancl.recipes import Recipe, recipe
from supancl.recipes.auto import fit_recipe
from supancl.runs.provenance import versions
from supancl.training.start import pretrain, with_short_side, with_speed
from supancl.training.trainer import Trainer


@dataclass(frozen=True)
class Cell:
    """Data that the candidates are compared on; `nearest` is the paper's setting for it."""

    source: str
    nearest: str
    settings: dict[str, Any] = field(default_factory=dict)


CELLS = {
    "mini-27000": Cell("mini_imagenet.npz", "imagenet100", {"data.holdout": 0.1}),
    "cifar100-2000": Cell("cifar100.npz", "cifar100", {"data.limit": 2000, "data.holdout": 0.1}),
    "pets": Cell("pets", "imagenet100", {"data.holdout": 0.25}),
    "mini-5000": Cell("mini_imagenet.npz", "imagenet100", {"data.limit": 5000, "data.holdout": 0.1}),
    "cifar100-45000": Cell("cifar100.npz", "cifar100", {"data.holdout": 0.1}),
    "mini-27000-tenth": Cell("mini_imagenet.npz", "imagenet100", {"data.holdout": 0.1, "data.labelled": 0.1}),
    "gtsrb": Cell("gtsrb/test", "cifar100", {"data.holdout": 0.25}),
}
METHOD = "supsiam"
WARM_UP_STEPS = 12  # on a GPU: they allocate, choose kernels and capture
TIMED_STEPS = 20


def fitted(cell: Cell, data: Data, **changes: Any) -> Recipe:
    return fit_recipe(recipe(f"auto.{METHOD}").with_set({**cell.settings, **changes}), survey_data(data), on_gpu=True)


def large_stem(cell: Cell, data: Data) -> Recipe:
    """The usual first layers above 32 px, which are faster."""
    built = fitted(cell, data)
    return built.with_set({"encoder.name": "resnet18"}) if built.views.size > 32 else built


def paper(cell: Cell, data: Data) -> Recipe:
    """The paper's recipe as it is; a batch may not exceed the number of images."""
    return recipe(f"{cell.nearest}.{METHOD}").with_set(cell.settings)


def changed(settings: dict[str, Any]) -> Callable[[Cell, Data], Recipe]:
    """The rules with these settings."""
    return lambda cell, data: fitted(cell, data).with_set(settings)


CANDIDATES: dict[str, Callable[[Cell, Data], Recipe]] = {
    "rules": fitted, "large-stem": large_stem, "paper": paper, "start": fitted, "continued": fitted,
    "continued-tenth": changed({"optimizer.encoder_lr_scale": 0.1}),
    "continued-third": changed({"optimizer.encoder_lr_scale": 0.3}),
    "continued-no-warmup": changed({"schedule.warmup_epochs": 0}),
    "continued-fixed-norm": fitted,
}  # fmt: skip
START = "mini-27000-start-0"  # the run whose encoder `continued` begins with
LONGER = {"start": 5}  # how many times the seconds of the others


@contextmanager
def fixed_norm() -> Iterator[None]:
    """Normalise in the encoder with the start's running statistics: its batch norm stays in eval mode."""
    norm = torch.nn.BatchNorm2d  # the heads have BatchNorm1d
    norm.training = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]
    try:
        yield
    finally:
        del norm.training


def plan() -> list[tuple[str, str, int]]:
    """Cell, candidate and seed, the most useful first. A candidate that is the same as another one is left out."""
    rows = [
        (cell, candidate, 0)
        for cell in CELLS
        for candidate in ("rules", "large-stem", "paper")
        if not (candidate == "large-stem" and CELLS[cell].nearest == "cifar100")
    ]
    starts = [name for name in CANDIDATES if name.startswith("continued")]
    rows += [("mini-27000", "start", 0), *[("pets", candidate, 0) for candidate in starts]]
    return rows + [("pets", candidate, seed) for seed in (1, 2) for candidate in ("rules", *starts[:2])]


def run(cell: Cell, candidate: str, seed: int, folder: Path, root: Path, seconds: float) -> dict[str, Any]:
    """Train a candidate for this many seconds, and evaluate it on held-out images."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spec = replace(recipe(f"auto.{METHOD}").with_set(cell.settings).data, source=str(root / cell.source))
    preview = open_data(replace(spec, short_side=256), 3)
    chosen = CANDIDATES[candidate](cell, preview).with_set({"train.seed": seed})
    chosen = with_short_side(replace(chosen, data=replace(chosen.data, source=spec.source)))
    data = preview if chosen.data.short_side >= 256 else open_data(chosen.data, 3)
    step = seconds_per_step(chosen, data, device)
    epochs = max(2, round(LONGER.get(candidate, 1) * seconds / (step * (len(data.train) // chosen.train.batch_size))))
    warmup = min(chosen.schedule.warmup_epochs, max(1, epochs // 10))
    chosen = chosen.with_set({"train.epochs": epochs, "schedule.warmup_epochs": warmup, "train.monitor_every": 0})
    began = time.perf_counter()
    with fixed_norm() if "fixed-norm" in candidate else nullcontext():
        trained = pretrain(chosen, data, folder, init=folder.with_name(START) if "continued" in candidate else None)
    took = time.perf_counter() - began
    features = [embed(trained.encoder, split, device, stay=True) for split in (data.train, data.held_out)]
    right = linear_probe(*features, "nothing", tolerance=None).is_correct
    return {
        "cell": cell.source, "candidate": candidate, "recipe": chosen.name, "seed": seed, "epochs": epochs,
        "seconds_per_step": step, "seconds": round(took, 1), "images": len(data.train), "right": pack(right),
        "held_out": len(right), "accuracy": 100 * float(right.double().mean()),
        "settings": {name: value for name, (value, _) in chosen.fields().items()} | {"data.source": cell.source},
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "versions": versions(),
    }  # fmt: skip


def seconds_per_step(chosen: Recipe, data: Data, device: torch.device) -> float:
    """Measured uncompiled, as runs of this length are trained."""
    long = with_speed(chosen.with_set({"train.epochs": 1000, "train.compile": False}), device, len(data.train))
    trainer = Trainer(long, data, device)
    for step in range(WARM_UP_STEPS + TIMED_STEPS):
        if step == WARM_UP_STEPS:
            started = wait_for(device)
        trainer.advance()
        if trainer.captured.is_due:
            trainer.capture()
    return (wait_for(device) - started) / TIMED_STEPS


def wait_for(device: torch.device) -> float:
    """The time after the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def pack(right: torch.Tensor) -> str:
    """One bit per image, as hexadecimal digits."""
    return np.packbits(right.cpu().numpy().astype(np.uint8)).tobytes().hex()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=35.0)
    parser.add_argument("--until", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--only", nargs="*", default=[], help="cells, or CELL-CANDIDATE-SEED")
    args = parser.parse_args()
    started = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    left = [row for row in plan() if not args.only or row[0] in args.only or "-".join(map(str, row)) in args.only]
    while left and time.monotonic() - started < args.until:
        ready = [row for row in left if (args.data / CELLS[row[0]].source).exists()]
        if not ready:
            time.sleep(1)
            continue
        left.remove(ready[0])
        name = "-".join(map(str, ready[0]))
        if not (args.out / f"{name}.json").exists():
            run_and_keep(name, ready[0], args)
            print(f"{time.monotonic() - started:.0f} s, {len(left)} runs left", flush=True)


def run_and_keep(name: str, row: tuple[str, str, int], args: argparse.Namespace) -> None:
    cell, candidate, seed = row
    try:
        found = run(CELLS[cell], candidate, seed, args.out / "runs" / name, args.data, args.seconds)
    except Exception:  # one failure must not cost the others their time
        traceback.print_exc()
        return
    write_json(args.out / f"{name}.json", {**found, "cell": cell})
    print(f"{name}: " + json.dumps({key: found[key] for key in ("epochs", "seconds", "accuracy")}), flush=True)


if __name__ == "__main__":
    main()
