"""Handwritten digits (8 x 8, scikit-learn): the demo, and the small form of every study and table.

Not a setting of the paper. All values are our choice: those of SimSiam, SupSiam, BYOL and SupBYOL are the best of four
settings on held-out images (docs/log.md). The other methods use the same values and are not tuned; those of `semi`
alone (temperature, confidence, warm-up) are chosen in docs/labels.md.

    supancl pretrain digits.supsiam

About half a minute on two CPU cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from supancl.core.heads import MLP
from supancl.core.losses import SemiAlign
from supancl.core.methods import METHODS
from supancl.core.schedules import ScheduleSpec
from supancl.core.specs import EncoderSpec, HeadSpec
from supancl.data.splits import DataSpec
from supancl.data.views.specs import Crops
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec

SIAM_HEADS = HeadSpec(MLP((256,), 256, last_norm="batch-no-affine"), MLP((64,), 256))
BYOL_HEADS = HeadSpec(MLP((256,), 64), MLP((256,), 64))
CONTRAST_HEADS = HeadSpec(MLP((64,), 64, norm="none"))
MOCO3_HEADS = HeadSpec(MLP((256,), 64, last_norm="batch-no-affine"), MLP((256,), 64, last_norm="batch-no-affine"))
CLASSIFIER = HeadSpec(MLP((), None, norm="none"))
HEADS = {
    "simsiam": SIAM_HEADS, "supsiam": SIAM_HEADS, "semi": SIAM_HEADS, "byol": BYOL_HEADS, "supbyol": BYOL_HEADS,
    "simclr": CONTRAST_HEADS, "supcon": CONTRAST_HEADS, "moco2": CONTRAST_HEADS, "supmoco": CONTRAST_HEADS,
    "moco3": MOCO3_HEADS, "crossentropy": CLASSIFIER,
}  # fmt: skip
MOMENTUM = {
    "byol": (0.99, 1.0),
    "supbyol": (0.99, 1.0),
    "moco3": (0.99, 1.0),
    "moco2": (0.99, 0.99),
    "supmoco": (0.99, 0.99),
}  # at the start and at the end; 0.999 would be too slow for the 1,680 steps of a run


def build(method: str) -> Recipe:
    components, momentum = METHODS[method], MOMENTUM.get(method)
    branches, loss = components.branches, components.loss
    if isinstance(loss, SemiAlign):
        loss = replace(loss, warmup=200)  # about ten epochs
    if momentum is not None:
        branches = replace(branches, momentum=momentum[0], momentum_end=momentum[1])
    return Recipe(
        name=f"digits.{method}",
        method=method,
        paper="not in the paper: the demo",
        data=DataSpec(source="digits", holdout=0.25),
        # no flip, because a mirrored digit is not a digit; grey images have no colour to jitter
        views=Crops(size=16, scale=(0.5, 1.0), flip=0.0, hue=0.0, grey=0.0, blur=0.0),
        encoder=EncoderSpec("cnn", channels=1, size=16, width=64, mean=(0.5,), std=(0.5,)),
        heads=HEADS[method],
        branches=branches,
        pool=replace(components.pool, size=1024),
        loss=loss,
        optimizer=OptimizerSpec("sgd", lr=0.1, reference_batch=64, weight_decay=5e-4),
        schedule=ScheduleSpec(warmup_epochs=5, predictor="follows" if method == "moco3" else "constant"),
        train=TrainSpec(epochs=80, batch_size=64),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {f"digits.{method}": partial(build, method) for method in HEADS}
