"""The smallest runs that are still whole: random grey images, a small CNN, any method and any pool."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from supancl import METHODS, MLP, Data, HeadSpec, PoolSpec, Recipe, Reporter, from_arrays, recipe
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.spec import DataSpec
from supancl.runs.checkpoint import checkpoints, load_checkpoint
from supancl.training.step import Step

SIDE = 8


def tiny_data(
    images: int = 48, classes: int = 3, unlabelled: float = 0.0, seed: int = 0, several: bool = False
) -> Data:
    """`several`: up to three labels per image, of any weights."""
    random = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    # a class is a bright quarter, so that there is something to learn
    pixels = random.integers(0, 120, (images, SIDE, SIDE), dtype=np.uint8)
    for pixel, label in zip(pixels, labels, strict=True):
        pixel[: SIDE // 2, (label % 2) * 4 : (label % 2) * 4 + 4] += np.uint8(60 + 40 * (label // 2))
    labels = np.where(random.random(images) < unlabelled, -1, labels)
    if several:
        labels = several_labels(labels, classes, random)
    names = [f"class {i}" for i in range(classes)]
    return from_arrays(pixels, labels, classes=names, spec=DataSpec(source=FROM_PYTHON, holdout=0.1))


def several_labels(labels: np.ndarray, classes: int, random: np.random.Generator) -> np.ndarray:
    """Weights (N, classes): the label and up to two more."""
    weights = np.full((len(labels), classes), -1.0)
    for row, label in zip(weights, labels.tolist(), strict=True):
        if label >= 0:
            row[:] = 0
            row[random.choice(classes, 2, replace=False)] = random.uniform(0.1, 0.9, 2)
            row[label] = 1
    return weights


def tiny_recipe(method: str = "supsiam", pool: str | None = None, **overrides: object) -> Recipe:
    """A run of seconds with the method's own row; overrides are dotted names with __ for the dot."""
    row = METHODS[method]
    predictor = MLP((8,), 16) if row.predictor else None
    projector = MLP((), None, norm="none") if method == "crossentropy" else MLP((16,), 16)
    spec = replace(row.pool, size=20) if pool is None else PoolSpec(pool, 20 if pool == "queue" else 4)
    base = recipe("digits.supsiam")
    built = replace(
        base,
        name=f"tiny.{method}",
        method=method,
        branches=row.branches,
        loss=row.loss,
        pool=spec,
        heads=HeadSpec(projector, predictor),
    )
    settings = {
        "views.size": SIDE,
        "encoder.width": 16,
        "train.batch_size": 8,
        "train.epochs": 2,
        "train.log_every": 1,
        "train.device": "cpu",
        "optimizer.reference_batch": 8,
        "optimizer.lr": 0.05,
        "schedule.warmup_epochs": 0,
    }
    if method == "semi":  # in so short a run its samples must be sure early
        settings |= {"loss.warmup": 3, "loss.confidence": 0.4}
    settings |= {name.replace("__", "."): value for name, value in overrides.items()}
    return built.with_set(settings)


class Notes(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint by name: weights, buffers, optimizer, pool, random state."""
    return flat(load_checkpoint(checkpoints(folder / "checkpoints")[-1]))


def flat(value: object, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {name: value}
    if isinstance(value, dict):
        return {key: item for k, v in value.items() for key, item in flat(v, f"{name}.{k}").items()}
    if isinstance(value, (list, tuple)):
        return {key: item for k, v in enumerate(value) for key, item in flat(v, f"{name}.{k}").items()}
    return {}


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different[:5]
    assert len(one) > 10  # weights, optimizer and random state are really there


def poisoned(monkeypatch, at: set[int]) -> None:
    """The views of these steps hold a NaN."""
    original = Step.__call__

    def take(self, batch=None):
        if int(self.inputs.step_tensor) not in at:
            return original(self, batch)
        branches, forward = self.model.branches, self.model.branches.forward
        branches.forward = lambda views, local=None: forward(views * float("nan"), local)
        try:
            return original(self, batch)
        finally:
            del branches.forward

    monkeypatch.setattr(Step, "__call__", take)


class NAType:
    """Stands for pandas.NA, whose class has this name: it does not say whether it equals itself."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> "NAType":  # type: ignore[override]
        return self

    def __ne__(self, other: object) -> "NAType":  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")
