"""CIFAR-10 and CIFAR-100, CIFAR ResNet-18: App. H (Table H.1) and Table 8.

    supancl pretrain cifar100.supsiam --data cifar100.npz

1000 epochs, batch 256. Linear accuracy on CIFAR-100 in the paper: SimCLR 64.77, SupCon 74.03, SimSiam 70.63,
SupSiam 75.05, BYOL 65.42, SupBYOL 74.36. Weight decay, warm-up and crop scale are not stated there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from supancl.core.heads import MLP
from supancl.core.losses import Align, Loss, SemiAlign
from supancl.core.methods import METHODS
from supancl.core.schedules import ScheduleSpec
from supancl.core.specs import EncoderSpec, HeadSpec
from supancl.data.splits import DataSpec
from supancl.data.views.specs import Crops
from supancl.recipes.common_sources import HEAD_SOURCES, own_sources
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec

# 2-layer projector for SimSiam and SupSiam: App. H; its width is not stated, 2048 is App. C's
SIAM_HEADS = HeadSpec(MLP((2048,), 2048, last_norm="batch-no-affine"), MLP((512,), 2048))
BYOL_HEADS = HeadSpec(MLP((4096,), 256), MLP((4096,), 256))
CONTRAST_HEADS = HeadSpec(MLP((512,), 128, norm="none"))
# MoCo-v3's for a ResNet: two layers each, both ending with a batch norm without affine
MOCO3_HEADS = HeadSpec(MLP((4096,), 256, last_norm="batch-no-affine"), MLP((4096,), 256, last_norm="batch-no-affine"))
CLASSIFIER = HeadSpec(MLP((), None, norm="none"))

HEADS = {
    **dict.fromkeys(("simclr", "supcon", "moco2", "supmoco"), CONTRAST_HEADS),
    **dict.fromkeys(("simsiam", "supsiam", "semi"), SIAM_HEADS),
    **dict.fromkeys(("byol", "supbyol"), BYOL_HEADS),
    "moco3": MOCO3_HEADS,
    "crossentropy": CLASSIFIER,
}
LEARNING_RATE = {
    "simclr": 0.7,
    "supcon": 0.6,
    "simsiam": 0.7,
    "supsiam": 0.7,
    "semi": 0.7,
    "byol": 0.6,
    "supbyol": 0.5,  # App. H
    "moco2": 0.06,
    "supmoco": 0.2,  # App. C's, scaled to batch 256
    "moco3": 0.3,
    "crossentropy": 0.1,
}
# where App. H states nothing these replace the above and a decay of 1e-4: the best of RESULTS.md's pilots
TUNED: dict[str, dict[str, float]] = {
    **{method: {"weight_decay": 1e-4} for method in ("simclr", "supcon", "simsiam", "supsiam", "byol", "supbyol")},
    "moco2": {"lr": 0.3, "weight_decay": 1e-4},
    "supmoco": {"lr": 0.2, "weight_decay": 5e-4},
    "crossentropy": {"lr": 0.2, "weight_decay": 5e-4},
}
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}

SOURCES = {
    "views": "released code, following SimCLR (Sec. 5.1)",
    "views.size": "App. H",
    "views.scale": "our choice: App. H states none",
    "views.blur": "App. H: no blur",
    "encoder": "App. H: CIFAR variant of ResNet-18",
    "encoder.mean": "statistics of the training set",
    "encoder.std": "statistics of the training set",
    "heads": "App. C",
    "heads.projector.hidden": "App. C states the depth; the width as in the released code",
    "branches": "App. C",
    "pool": "App. H",
    "loss": "App. C",
    "loss.alpha": "App. H",
    "loss.form": "released code: -cos",
    "optimizer": "App. C",
    "optimizer.lr": "App. H",
    "optimizer.reference_batch": "App. H",
    "optimizer.weight_decay": "our choice: App. H states none, 5e-4 makes SimSiam collapse",
    "schedule": "App. C",
    "schedule.warmup_epochs": "our choice: App. H states none",
    "train.epochs": "App. H",
    "train.batch_size": "App. H",
    "train.monitor_every": "our choice: an epoch lasts 1.4 s on a GPU",
}
TUNED_SOURCE = {
    "cifar100": "our choice: best of the pilots on held-out images (RESULTS.md)",
    "cifar10": "our choice: best of the pilots on CIFAR-100 (RESULTS.md)",
}
# methods that App. H does not run -> the sources that differ from the above
MOCO_SOURCES = {
    "pool": "our choice: the size App. H gives its pools", "optimizer.lr": "our choice: App. C's, scaled to batch 256",
}  # fmt: skip
SIAM_SOURCES = {"heads.projector.hidden": "App. H: 2 layers; the width as in the released code"}
NOT_IN_PAPER = {
    "moco2": MOCO_SOURCES, "supmoco": MOCO_SOURCES,
    "moco3": {**dict.fromkeys(("heads", "heads.projector.hidden"), "our choice: MoCo-v3's for a ResNet"),
              **dict.fromkeys(("branches", "pool", "loss"), "App. G"),
              "schedule.predictor": "App. G", "optimizer.lr": "our choice: as MoCo-v2's; not tuned",
              "optimizer.weight_decay": "our choice: not tuned"},
    "crossentropy": dict.fromkeys(("heads", "branches", "pool", "loss", "loss.form", "optimizer.lr"),
                                  "our choice: a plain classifier"),
    "semi": {**SIAM_SOURCES, "loss": "our choice: docs/labels.md", "loss.warmup": "our choice: about ten epochs",
             **dict.fromkeys(("pool", "loss.alpha", "optimizer.lr"), "as SupSiam's: App. H")},
}  # fmt: skip


def fit_loss(method: str) -> Loss:
    """The method's loss with the values of this setting."""
    loss = METHODS[method].loss
    if method == "supbyol" and isinstance(loss, Align):
        return replace(loss, alpha=0.8)
    return replace(loss, warmup=2000) if isinstance(loss, SemiAlign) else loss


def build(data: str, method: str) -> Recipe:
    components, base = METHODS[method], method.removesuffix("-nopool")
    mean, std = STATISTICS[data]
    pool = replace(components.pool, size=4096) if components.pool.kind == "queue" else components.pool
    tuned = TUNED.get(base, {}) if data == "cifar100" or base in NOT_IN_PAPER else {}
    optimizer = OptimizerSpec(
        "sgd",
        lr=tuned.get("lr", LEARNING_RATE[base]),
        reference_batch=256,
        weight_decay=tuned.get("weight_decay", 1e-4),
    )
    sources = {
        **SOURCES,
        **(SIAM_SOURCES if base in ("simsiam", "supsiam") else {}),
        **own_sources(method, HEADS[base].predictor),
        **HEAD_SOURCES[base],
        **NOT_IN_PAPER.get(method, {}),
        **{f"optimizer.{field}": TUNED_SOURCE[data] for field in tuned},
    }
    return Recipe(
        name=f"{data}.{method}",
        method=method,
        paper="beyond the paper (Table H.1's setting)" if method in NOT_IN_PAPER else "App. H (Table H.1)",
        data=DataSpec(),
        views=Crops(size=32, blur=0.0),
        encoder=EncoderSpec("cifar-resnet18", size=32, mean=mean, std=std),
        heads=HEADS[base],
        branches=components.branches,
        pool=pool,
        loss=fit_loss(method),
        optimizer=optimizer,
        schedule=ScheduleSpec(warmup_epochs=10, predictor="follows" if method == "moco3" else "constant"),
        train=TrainSpec(epochs=1000, batch_size=256, log_every=50, monitor_every=5),
        sources=sources,
    )


def build_table8(data: str, method: str) -> Recipe:
    """A cell of Table 8's collapse ablation: the method trained without a pool."""
    built = build(data, method)
    return replace(
        built,
        paper="Table 8" if data == "cifar100" else "beyond the paper (Table 8's setting)",
        loss=Align(alpha=0.5),
        sources={**built.sources, "pool": "Table 8: none", "loss.alpha": "Sec. 5.1; Table 8 states none"},
    )


PAPER_METHODS = ("simclr", "supcon", "simsiam", "supsiam", "byol", "supbyol")
BUILDERS: dict[str, Callable[[str, str], Recipe]] = {
    **dict.fromkeys((*PAPER_METHODS, *NOT_IN_PAPER), build),
    **dict.fromkeys(("supsiam-nopool", "supbyol-nopool"), build_table8),
}
RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{data}.{method}": partial(builder, data, method) for data in STATISTICS for method, builder in BUILDERS.items()
}
