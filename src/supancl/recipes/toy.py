"""The toy study's SupSiam as a recipe: App. B.

    supancl pretrain toy.supsiam

Three Gaussian classes in 2048 dimensions, linear encoder, projector and predictor; about three minutes on one CPU core.
`supancl paper toy` makes the tables of Sec. 4.3: it trains all alphas and seeds together.
"""

from __future__ import annotations

from collections.abc import Callable

from supancl.core.heads import MLP
from supancl.core.losses import Align
from supancl.core.methods import METHODS
from supancl.core.schedules import ScheduleSpec
from supancl.core.specs import EncoderSpec, HeadSpec, PoolSpec
from supancl.data.splits import DataSpec
from supancl.data.views.specs import Masks
from supancl.recipes.common_sources import own_sources
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec

LINEAR = MLP((), 128, norm="none", bias="none")
SOURCES = {
    **own_sources("supsiam", LINEAR),
    "data.source": "App. B",
    "views": "App. B",
    "encoder": "App. B: one linear layer",
    "encoder.width": "our choice: App. B gives the projector's",
    **dict.fromkeys(("encoder.mean", "encoder.std"), "our choice: as they are"),
    "heads": "App. B: linear, no batch norm",
    "branches": "Sec. 3.1",
    "loss": "Eqs. 1-3",
    "loss.alpha": "our choice: App. B varies it",
    "loss.form": "released code: -cos",
    "pool": "our choice: as large as the data",
    "optimizer": "App. B",
    "schedule": "App. B",
    "schedule.warmup_epochs": "our choice: App. B states none",
    "train.epochs": "App. B",
    "train.batch_size": "App. B",
}


def build() -> Recipe:
    components = METHODS["supsiam"]
    return Recipe(
        name="toy.supsiam",
        method="supsiam",
        paper="Sec. 4.3, App. B (Tables 1 and 2)",
        data=DataSpec(source="toy"),
        views=Masks(share=0.6),
        encoder=EncoderSpec("linear", channels=1, size=2048, width=128, mean=(0.0,), std=(1.0,)),
        heads=HeadSpec(LINEAR, LINEAR),
        branches=components.branches,
        pool=PoolSpec("queue", 3072),
        loss=Align(alpha=0.5),
        optimizer=OptimizerSpec("sgd", lr=0.05, reference_batch=256, weight_decay=5e-4),
        schedule=ScheduleSpec(),
        train=TrainSpec(epochs=200, batch_size=256),
        sources=SOURCES,
    )


RECIPES: dict[str, Callable[[], Recipe]] = {"toy.supsiam": build}
