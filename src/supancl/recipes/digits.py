"""Handwritten digits (8 x 8, scikit-learn): the demo, and the small form of every study and table.

    supancl pretrain digits.supsiam

About half a minute on two CPU cores. Not a setting of the paper: all values are our choice. Those of SimSiam, SupSiam,
BYOL and SupBYOL are the best of four settings on held-out images (docs/log.md). The other methods use the same values
and are not tuned; those of `semi` alone (temperature, confidence, warm-up) are chosen in docs/labels.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from supancl.core.specs import MLP, EncoderSpec, HeadSpec, ScheduleSpec
from supancl.data.spec import DataSpec
from supancl.data.views.specs import Crops
from supancl.recipes.paper import CLASSIFIER, FAMILIES, NO_AFFINE, build
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec

HEADS = {
    "siam": HeadSpec(MLP((256,), 256, last_norm=NO_AFFINE), MLP((64,), 256)),
    "byol": HeadSpec(MLP((256,), 64), MLP((256,), 64)),
    "contrast": HeadSpec(MLP((64,), 64, norm="none")),
    "moco3": HeadSpec(MLP((256,), 64, last_norm=NO_AFFINE), MLP((256,), 64, last_norm=NO_AFFINE)),
    "classifier": CLASSIFIER,
}
DIGITS = {
    "data": DataSpec(source="digits", holdout=0.25),
    # no flip, because a mirrored digit is not a digit; grey images have no colour to jitter
    "views": Crops(size=16, scale=(0.5, 1.0), flip=0.0, hue=0.0, grey=0.0, blur=0.0),
    "encoder": EncoderSpec("cnn", channels=1, size=16, width=64, mean=(0.5,), std=(0.5,)),
    "pool.size": 1024,
    "optimizer": OptimizerSpec("sgd", lr=0.1, reference_batch=64, weight_decay=5e-4),
    "schedule": ScheduleSpec(warmup_epochs=5),
    "train": TrainSpec(epochs=80, batch_size=64),
}
# 0.999 would be too slow for the 1,680 steps of a run
RISING = {"branches.momentum": 0.99, "branches.momentum_end": 1.0}
CONSTANT = {"branches.momentum": 0.99, "branches.momentum_end": 0.99}
OWN: dict[str, dict[str, Any]] = {
    "byol": RISING, "supbyol": RISING, "moco3": {**RISING, "schedule.predictor": "follows"},
    "moco2": CONSTANT, "supmoco": CONSTANT, "semi": {"loss.warmup": 200},  # about ten epochs
}  # fmt: skip


def digits(method: str) -> Recipe:
    values = {**DIGITS, "heads": HEADS[FAMILIES[method]], **OWN.get(method, {})}
    row = {field: (value, "") for field, value in values.items()}
    return build(f"digits.{method}", method, "not in the paper: the demo", row)


RECIPES: dict[str, Callable[[], Recipe]] = {f"digits.{method}": partial(digits, method) for method in FAMILIES}
