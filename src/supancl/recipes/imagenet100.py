"""ImageNet-100, ResNet-50: Sec. 5.1, App. C and App. F.3.

    supancl pretrain imagenet100.supsiam --data FOLDER

200 epochs, batch 128. Linear accuracy in the paper (Table 4): SimCLR 77.35, SupCon 87.40, MoCo-v2 78.37,
SupMoCo 86.33, SimSiam 82.15, SupSiam 87.31, BYOL 84.93, SupBYOL 87.43.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from supancl.core.heads import MLP
from supancl.core.losses import Contrast, SemiAlign
from supancl.core.methods import METHODS
from supancl.core.schedules import ScheduleSpec
from supancl.core.specs import EncoderSpec, HeadSpec, PoolSpec
from supancl.data.splits import DataSpec
from supancl.data.views.specs import Crops
from supancl.recipes.common_sources import HEAD_SOURCES, own_sources
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec

# a 3-layer projector whose last batch norm has no affine: SimSiam, App. C
SIAM_HEADS = HeadSpec(MLP((2048, 2048), 2048, last_norm="batch-no-affine"), MLP((512,), 2048))
BYOL_HEADS = HeadSpec(MLP((4096,), 256), MLP((4096,), 256))
CONTRAST_HEADS = HeadSpec(MLP((2048,), 128, norm="none"))
CLASSIFIER = HeadSpec(MLP((), None, norm="none"))

HEADS = {
    **dict.fromkeys(("simclr", "supcon", "moco2", "supmoco"), CONTRAST_HEADS),
    **dict.fromkeys(("simsiam", "supsiam", "semi"), SIAM_HEADS),
    **dict.fromkeys(("byol", "supbyol"), BYOL_HEADS),
    "crossentropy": CLASSIFIER,
}
LEARNING_RATE = {
    "simclr": 0.1,
    "supcon": 0.15,
    "moco2": 0.03,
    "supmoco": 0.1,
    "simsiam": 0.2,
    "supsiam": 0.2,
    "semi": 0.2,
    "byol": 0.2,
    "supbyol": 0.2,
    "crossentropy": 0.05,
}

SOURCES = {
    "data.short_side": "released code (resize 256)",
    "views": "released code, following SimCLR (Sec. 5.1)",
    "encoder": "Sec. 5.1: ResNet-50",
    **dict.fromkeys(("encoder.size", "encoder.mean", "encoder.std"), "released code"),
    "heads": "App. C",
    "heads.projector.hidden": "App. C states the depth; widths as in the released code",
    "branches": "App. C",
    "pool": "Sec. 5.1",
    "loss": "App. C",
    "loss.alpha": "Sec. 5.1",
    "loss.form": "released code: the scale the learning rates belong to",
    "loss.samples": "Sec. 5.1: all positives",
    "optimizer": "App. C",
    "schedule": "App. C",
    "schedule.warmup_epochs": "none, as App. C states none",
    "train.epochs": "Sec. 5.1",
    "train.batch_size": "Sec. 5.1",
}
# methods that the paper does not train -> the sources that differ from the above
NOT_IN_PAPER = {
    "crossentropy": {
        **dict.fromkeys(("heads", "branches", "pool", "loss", "loss.form"), "our choice: a plain classifier"),
        **dict.fromkeys(("optimizer", "schedule"), "as the paper's methods: App. C"),
        "optimizer.lr": "our choice: the usual 0.1 at batch 256",
    },
    "semi": {
        "pool": "as SupSiam's: Sec. 5.1",
        "loss": "our choice: docs/labels.md",
        "loss.alpha": "as SupSiam's: Sec. 5.1",
        "loss.warmup": "our choice: about ten epochs at batch 128",
        **dict.fromkeys(("heads", "branches", "optimizer", "schedule"), "as SupSiam's: App. C"),
    },
}


def build(method: str) -> Recipe:
    components = METHODS[method]
    loss = components.loss
    if isinstance(loss, SemiAlign):
        loss = replace(loss, warmup=10_000)
    is_siam = method in ("simsiam", "supsiam", "semi")
    return Recipe(
        name=f"imagenet100.{method}",
        method=method,
        paper="beyond the paper (Tables 4-6's setting)" if method in NOT_IN_PAPER else "Sec. 5.1, App. C (Tables 4-6)",
        data=DataSpec(short_side=256),
        views=Crops(size=224),
        encoder=EncoderSpec("resnet50", size=224),
        heads=HEADS[method],
        branches=components.branches,
        pool=components.pool,
        loss=loss,
        optimizer=OptimizerSpec("sgd", lr=LEARNING_RATE[method], reference_batch=128, weight_decay=1e-4),
        schedule=ScheduleSpec(warmup_epochs=40 if is_siam else 0),
        train=TrainSpec(epochs=200, batch_size=128),
        sources={
            **SOURCES,
            **({"schedule.warmup_epochs": "App. C"} if is_siam else {}),
            **own_sources(method, HEADS[method].predictor),
            **HEAD_SOURCES[method],
            **NOT_IN_PAPER.get(method, {}),
        },
    )


def batch_256(recipe: Recipe) -> Recipe:
    """Batch 256; the learning rate scales linearly. App. F.3 has it for SupSiam and SupCon, with and without a pool."""
    is_stated = recipe.method in ("supsiam", "supcon")
    return replace(
        recipe,
        name=f"{recipe.name}-256",
        paper="App. F.3 (Table F.3)" if is_stated else "beyond the paper (Table F.3's setting)",
        train=replace(recipe.train, batch_size=256),
        sources={**recipe.sources, "train.batch_size": "App. F.3" if is_stated else "our choice"},
    )


def with_pool(recipe: Recipe) -> Recipe:
    """App. F.3: SupCon whose positives and negatives also come from a pool of 8192."""
    return replace(
        recipe,
        name=f"{recipe.name}-pool",
        paper="App. F.3 (Table F.3, marked *)",
        pool=PoolSpec("queue", 8192),
        loss=Contrast(positives="own-class", against="both-views+pool", temperature=0.1),
        sources={**recipe.sources, **dict.fromkeys(("pool", "pool.size", "loss.against"), "App. F.3")},
    )


def _build_table() -> dict[str, Callable[[], Recipe]]:
    rows: dict[str, Callable[[], Recipe]] = {}
    for method in HEADS:
        rows[f"imagenet100.{method}"] = partial(build, method)
        rows[f"imagenet100.{method}-256"] = lambda method=method: batch_256(build(method))  # type: ignore[misc]
    rows["imagenet100.supcon-pool"] = lambda: with_pool(build("supcon"))
    rows["imagenet100.supcon-pool-256"] = lambda: batch_256(with_pool(build("supcon")))
    return rows


RECIPES = _build_table()
