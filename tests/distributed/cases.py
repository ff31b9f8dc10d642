"""What one process and several must do alike: each case trains for some steps in double precision."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from supancl import METHODS, recipe
from supancl.data.opening import open_data
from supancl.data.splits import Data
from supancl.data.store.memory import Batch, ImageStore
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.recipes import Recipe
from supancl.training.trainer import Trainer
from tests.helpers import tiny_data, tiny_recipe

STEPS = 9  # more than an epoch of every case
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A recipe in a few words; `data` are arguments of tiny_data."""

    method: str = "supsiam"
    pool: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    compat: str = "paper"
    joined: bool = False
    fed: bool = False  # pixels come batch by batch, as from a stream


HALF = {"unlabelled": 0.5}
UNEVEN = {"train__batch_size": 10}  # 5 + 5 on two ranks, 3 + 3 + 2 + 2 on four
ODD = {"train__batch_size": 11}  # 6 + 5 and 3 + 3 + 3 + 2
TWICE = {"train__accumulate": 2}
LOCAL = {"views__local": {"count": 2, "size": 6, "scale": [0.2, 0.5]}}

CASES: dict[str, Case] = {method: Case(method) for method in METHODS}
CASES |= {
    f"{method}, {pool}": Case(method, pool)
    for method in ("supsiam", "supbyol", "supmoco")
    for pool in ("class-queues", "prototypes")
}
CASES |= {
    f"{method}, half labelled": Case(method, data=HALF)
    for method in ("supcon", "supmoco", "supsiam", "supsiam-nopool", "crossentropy")
}
CASES |= {
    f"{method}, uneven": Case(method, settings=UNEVEN, data=HALF)
    for method in ("supcon", "moco2", "moco3", "supbyol-nopool", "crossentropy")
}
CASES |= {
    f"{method}, accumulated": Case(method, settings={**UNEVEN, **TWICE}, data=HALF)
    for method in ("supcon", "supsiam", "supmoco", "crossentropy")
}
CASES |= {
    "odd, class queues": Case("supbyol", "class-queues", ODD, HALF),
    "odd, prototypes": Case("supsiam", "prototypes", ODD, HALF),
    "sharded prototypes": Case("supsiam", "prototypes", {"pool__sharded": True, **ODD}, HALF),
    "few of the positives": Case(settings={"loss__samples": 3, **ODD}, data=HALF),
    "released code": Case("supbyol", settings=ODD, compat="released-code"),
    "released code, seen batch": Case("supmoco", compat="released-code"),
    "local crops": Case("supsiam", settings={**LOCAL, **ODD}, data=HALF),
    "local crops, no pool": Case("supsiam-nopool", settings={**LOCAL, **ODD}, data=HALF),
    "blurred": Case("supsiam", settings={"views__blur": 0.2, "views__size": 16, **ODD}, data=HALF),
    "joined views": Case("supbyol", settings=ODD, joined=True),
    "balanced": Case("supsiam", settings={"data__balanced": True}, data=HALF),
    "adamw": Case("moco3", settings={"optimizer__name": "adamw", "optimizer__lr": 0.001}),
    "fed": Case("supcon", settings={**ODD, **TWICE, "train__batch_size": 14}, data=HALF, fed=True),
    "semi, half labelled": Case("semi", settings=ODD, data=HALF),
    "semi, sharded prototypes": Case("semi", "prototypes", {"pool__sharded": True, **ODD}, HALF),
    "toy": Case("toy"),
}
THREE = {"classes": 5, "several": True, "unlabelled": 0.3}  # up to three labels per image
CASES |= {
    "three labels": Case("supsiam", settings=ODD, data=THREE),
    "three labels, some of the positives": Case("supbyol", "class-queues", {"loss__samples": 3, **ODD}, THREE),
    "three labels, sharded prototypes": Case("supsiam", "prototypes", {"pool__sharded": True, **ODD}, THREE),
    "three labels, no pool": Case("supbyol-nopool", settings={**UNEVEN, **TWICE}, data=THREE),
    "three labels, semi": Case("semi", settings={**UNEVEN, **TWICE}, data=THREE),
    "three labels, contrast": Case("supmoco", settings=ODD, data=THREE),
    "three labels, cross-entropy": Case("crossentropy", settings=UNEVEN, data=THREE),
}


# four processes on two cores take turns at every exchange, so they train some of the variants only
ON_FOUR = [
    *METHODS, "odd, class queues", "supbyol, prototypes", "crossentropy, accumulated", "sharded prototypes",
    "few of the positives", "local crops, no pool", "blurred", "fed",
]  # fmt: skip


class Elsewhere(ImageStore):
    """Images that are never resident."""

    def __init__(self, pixels: torch.Tensor) -> None:
        self.pixels, self.asked = pixels, 0

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: torch.Tensor) -> Batch:
        self.asked += len(indices)
        return Batch(self.pixels[indices])


def data_of(case: Case) -> Data:
    if case.method == "toy":
        return open_data(replace(recipe("toy.supsiam").data, limit=56), 1)
    data = tiny_data(64, **case.data)
    if case.fed:
        data = replace(data, train=replace(data.train, store=Elsewhere(data.train.store.pixels)))
    return data


def recipe_of(case: Case) -> Recipe:
    if case.method == "toy":
        settings = {"train.batch_size": 7, "train.epochs": 2, "train.device": "cpu", "pool.size": 20}
        return recipe("toy.supsiam").with_set({**settings, "heads.projector.out": 8, "encoder.width": 8})
    return replace(tiny_recipe(case.method, case.pool, **{"train__epochs": 5, **case.settings}), compat=case.compat)


@contextmanager
def in_double():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def trained(
    case: Case, ranks: Ranks = SINGLE_PROCESS, steps: int = STEPS, state: dict[str, Any] | None = None
) -> Trainer:
    """A trainer of the case, some steps on; `losses` has those of every step."""
    with in_double():
        trainer = Trainer(recipe_of(case), data_of(case), CPU, ranks=ranks)
        if case.joined:
            trainer.model.branches.join_views()
        if state is not None:
            trainer.load(state)
        trainer.losses = []
        for _ in range(steps):
            trainer.inputs.sums.zero_()
            assert trainer.advance() is not None
            trainer.losses.append(trainer.inputs.sums.tolist()[:3])
        trainer.feed.close()
    return trainer


def outcome(trainer: Trainer) -> dict[str, Any]:
    """What must be equal: losses of every step, weights, statistics, momentum copy, optimizer, pool."""
    state = trainer.state()
    kept = {name: state[name] for name in ("branches", "pool", "optimizer", "step")}
    return {"losses": torch.tensor(trainer.losses, dtype=torch.float64), **kept}
