"""ImageNet-100, ViT-Small as MoCo-v3 trains it: App. G (Table G.1).

    supancl pretrain vit.supbyol --data FOLDER

200 epochs, batch 256, AdamW. Average rank over 11 data sets in the paper: MoCo-v3 4.00, SupMoCo 2.18, BYOL 2.36,
SupBYOL 1.45. vit.supcon and vit.crossentropy are not in the paper and not tuned; they are here for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from supancl.core.heads import MLP
from supancl.core.losses import Contrast
from supancl.core.methods import METHODS, MOCO3
from supancl.core.schedules import ScheduleSpec
from supancl.core.specs import EncoderSpec, HeadSpec
from supancl.data.splits import DataSpec
from supancl.data.views.specs import Crops
from supancl.recipes.common_sources import HEAD_SOURCES, own_sources
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec

# MoCo-v3 ends both MLPs with a batch norm without affine; the paper keeps its settings
MOCO_HEADS = HeadSpec(
    MLP((4096, 4096), 256, last_norm="batch-no-affine"), MLP((4096,), 256, last_norm="batch-no-affine")
)
BYOL_HEADS = HeadSpec(MLP((4096,), 256), MLP((4096,), 256))
HEADS = {
    "moco3": MOCO_HEADS, "supmoco": MOCO_HEADS, "byol": BYOL_HEADS, "supbyol": BYOL_HEADS,
    "supcon": HeadSpec(MOCO_HEADS.projector), "crossentropy": HeadSpec(MLP((), None, norm="none")),
}  # fmt: skip
LEARNING_RATE = {
    "moco3": 1.5e-4,
    **dict.fromkeys(("supmoco", "byol", "supbyol", "supcon"), 1.5e-3),
    "crossentropy": 2.5e-4,
}

SOURCES = {
    "data.short_side": "released code (resize 256)",
    "views": "released code, following SimCLR (Sec. 5.1); App. G states no other",
    "encoder": "App. G: ViT-Small; MoCo-v3's details",
    **dict.fromkeys(("encoder.size", "encoder.mean", "encoder.std"), "released code"),
    "heads": "App. G",
    "branches": "App. G",
    "pool": "App. G",
    "loss": "App. G",
    "loss.form": "released code: -cos",
    "optimizer": "App. G",
    "schedule": "App. G",
    "train.epochs": "App. G",
    "train.batch_size": "App. G",
}
# methods that App. G does not run -> the sources that differ from the above
NOT_IN_PAPER = {
    "supcon": {"heads": "our choice: MoCo-v3's projector", "branches": "App. C", "loss": "App. C",
               "optimizer.lr": "our choice: that of App. G's supervised methods"},
    "crossentropy": {**dict.fromkeys(("heads", "branches", "loss", "loss.form"), "our choice: a plain classifier"),
                     "optimizer.lr": "our choice: DeiT's 5e-4 at batch 512"},
}  # fmt: skip


def build(method: str) -> Recipe:
    components = METHODS[method]
    norms = HEAD_SOURCES["moco3" if method in ("supmoco", "supcon") else method]
    is_moco = method in ("moco3", "supmoco")
    branches, loss = components.branches, components.loss
    if method == "supmoco":
        branches = MOCO3.branches  # EMA from 0.99, as MoCo-v3
        loss = Contrast(positives="own-class", against="other-view+pool", temperature=0.2)
    return Recipe(
        name=f"vit.{method}",
        method=method,
        paper="beyond the paper (App. G's setting)" if method in NOT_IN_PAPER else "App. G (Table G.1)",
        data=DataSpec(short_side=256),
        views=Crops(size=224),
        encoder=EncoderSpec("vit-small", size=224),
        heads=HEADS[method],
        branches=branches,
        pool=components.pool,
        loss=loss,
        optimizer=OptimizerSpec("adamw", lr=LEARNING_RATE[method], reference_batch=256, weight_decay=0.1),
        schedule=ScheduleSpec(warmup_epochs=40, predictor="follows" if is_moco else "constant"),
        train=TrainSpec(epochs=200, batch_size=256),
        sources={**SOURCES, **own_sources(method, HEADS[method].predictor), **norms, **NOT_IN_PAPER.get(method, {})},
    )


RECIPES: dict[str, Callable[[], Recipe]] = {f"vit.{method}": partial(build, method) for method in HEADS}
