"""Every setting of the paper: values by field, and the source of each. A recipe is its method's row and these rows.

imagenet100.METHOD: Sec. 5.1, App. C and App. F.3. ResNet-50, 200 epochs, batch 128. Linear accuracy (Table 4): SimCLR
77.35, SupCon 87.40, MoCo-v2 78.37, SupMoCo 86.33, SimSiam 82.15, SupSiam 87.31, BYOL 84.93, SupBYOL 87.43.

vit.METHOD: App. G (Table G.1). ViT-Small as MoCo-v3 trains it, 200 epochs, batch 256, AdamW. Average rank over 11 data
sets: MoCo-v3 4.00, SupMoCo 2.18, BYOL 2.36, SupBYOL 1.45. SupCon and cross-entropy are for comparison, not tuned.

cifar10.METHOD, cifar100.METHOD: App. H (Table H.1) and Table 8. CIFAR ResNet-18, 1000 epochs, batch 256. Linear
accuracy on CIFAR-100: SimCLR 64.77, SupCon 74.03, SimSiam 70.63, SupSiam 75.05, BYOL 65.42, SupBYOL 74.36. Weight
decay, warm-up and crop scale are not stated there.

toy.supsiam: App. B. Three Gaussian classes in 2048 dimensions, linear encoder, projector and predictor; about three
minutes on one CPU core. `supancl paper toy` makes the tables of Sec. 4.3: it trains all alphas and seeds together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from supancl.config import replaced
from supancl.core.losses import Align, Contrast
from supancl.core.methods import METHODS
from supancl.core.specs import MLP, EncoderSpec, HeadSpec, PoolSpec, ScheduleSpec
from supancl.data.spec import DataSpec
from supancl.data.views.specs import Crops, Masks
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec

# field -> its source, or (value, source); without a source ("") it has that of its section
Row = Mapping[str, str | tuple[Any, str]]
NO_AFFINE: Literal["batch-no-affine"] = "batch-no-affine"
FAMILIES = {
    **dict.fromkeys(("simclr", "supcon", "moco2", "supmoco"), "contrast"),
    **dict.fromkeys(("simsiam", "supsiam", "semi"), "siam"),
    **dict.fromkeys(("byol", "supbyol"), "byol"),
    "moco3": "moco3",
    "crossentropy": "classifier",
}  # methods with equal heads
BYOL_HEADS = HeadSpec(MLP((4096,), 256), MLP((4096,), 256))
CLASSIFIER = HeadSpec(MLP((), None, norm="none"))


def build(name: str, method: str, paper: str, *rows: Row) -> Recipe:
    """The method's row of core/methods.py with the values and sources of these rows; later ones win."""
    parts = METHODS[method]
    sections: dict[str, Any] = {
        "data": DataSpec(), "encoder": EncoderSpec(), "branches": parts.branches, "pool": parts.pool,
        "loss": parts.loss, "optimizer": OptimizerSpec(), "schedule": ScheduleSpec(), "train": TrainSpec(),
    }  # fmt: skip
    sources: dict[str, str] = {}
    for field, entry in (pair for row in rows for pair in row.items()):
        if isinstance(entry, tuple):
            section, _, inner = field.partition(".")
            sections[section] = replaced(sections[section], inner, entry[0], section) if inner else entry[0]
        if source := entry if isinstance(entry, str) else entry[1]:
            sources[field] = source
    return Recipe(name=name, method=method, paper=paper, sources=sources, **sections)


# --- sources that settings share --------------------------------------------------------------------------------------

NORMS_AND_BIASES = [
    f"heads.{head}.{field}" for head in ("projector", "predictor") for field in ("norm", "last_norm", "bias")
]
HEAD_SOURCES: dict[str, dict[str, str]] = {
    family: {**dict.fromkeys(NORMS_AND_BIASES, "as in the released code"), **own}
    for family, own in {
        "siam": {},
        "byol": {"heads.projector.bias": "our choice: the released code has none in the last layer"},
        "contrast": {
            "heads.projector.norm": "our choice: the released code has batch norm",
            "heads.projector.bias": "our choice: the released code has none in the first layer",
        },
        "moco3": dict.fromkeys(NORMS_AND_BIASES, "MoCo-v3"),
        "classifier": dict.fromkeys([*NORMS_AND_BIASES, "heads.projector.hidden"], "our choice: a plain classifier"),
    }.items()
}
OURS = ("views.local", "views.solarize_threshold", "encoder.channels", "encoder.width", "pool.rate", "pool.sharded",
        "optimizer.encoder_lr_scale", "schedule.restart_epoch", "schedule.restart_rate")  # fmt: skip
IMAGENET_PIXELS: Row = {
    "data.short_side": (256, "released code (resize 256)"),
    **dict.fromkeys(("encoder.size", "encoder.mean", "encoder.std"), "released code"),
}
PLAIN = "our choice: a plain classifier"


def not_stated(method: str, heads: HeadSpec) -> Row:
    """Sources of what the paper cannot contain: fields of ours, and those that the method does not use."""
    row = METHODS[method]
    unused = [] if row.branches.target == "momentum" else ["branches.momentum", "branches.momentum_end"]
    unused += ["pool.size", "loss.samples"] if row.pool.kind == "none" else []
    unused += ["schedule.predictor"] if heads.predictor is None else []
    is_plain = isinstance(row.loss, Align) and not row.loss.supervised
    return {
        **dict.fromkeys((*OURS, *unused), "our choice"),
        "pool.start": "our choice: the released code's MoCo queues start random",
        "schedule.granularity": "our choice: per step",
        **({"loss.alpha": "Eq. 3: 1 is without labels"} if is_plain else {}),
    }


# --- ImageNet-100, ResNet-50 ------------------------------------------------------------------------------------------

IMAGENET100: Row = {
    **IMAGENET_PIXELS,
    "views": (Crops(size=224), "released code, following SimCLR (Sec. 5.1)"),
    "encoder": (EncoderSpec("resnet50", size=224), "Sec. 5.1: ResNet-50"),
    **dict.fromkeys(("heads", "branches", "loss"), "App. C"),
    "heads.projector.hidden": "App. C states the depth; widths as in the released code",
    "pool": "Sec. 5.1",
    "loss.alpha": "Sec. 5.1",
    "loss.form": "released code: the scale the learning rates belong to",
    "loss.samples": "Sec. 5.1: all positives",
    "optimizer": (OptimizerSpec("sgd", reference_batch=128, weight_decay=1e-4), "App. C"),
    "schedule": (ScheduleSpec(warmup_epochs=0), "App. C"),
    "schedule.warmup_epochs": "none, as App. C states none",
    "train.epochs": (200, "Sec. 5.1"),
    "train.batch_size": (128, "Sec. 5.1"),
}
IMAGENET100_HEADS = {
    "contrast": HeadSpec(MLP((2048,), 128, norm="none")),
    # a 3-layer projector whose last batch norm has no affine: SimSiam, App. C
    "siam": HeadSpec(MLP((2048, 2048), 2048, last_norm=NO_AFFINE), MLP((512,), 2048)),
    "byol": BYOL_HEADS,
    "classifier": CLASSIFIER,
}
IMAGENET100_LR = {
    "simclr": 0.1, "supcon": 0.15, "moco2": 0.03, "supmoco": 0.1, "simsiam": 0.2, "supsiam": 0.2, "semi": 0.2,
    "byol": 0.2, "supbyol": 0.2, "crossentropy": 0.05,
}  # fmt: skip
# methods that the paper does not train: what differs from the above
IMAGENET100_BEYOND: dict[str, Row] = {
    "crossentropy": {
        **dict.fromkeys(("heads", "branches", "pool", "loss", "loss.form"), PLAIN),
        **dict.fromkeys(("optimizer", "schedule"), "as the paper's methods: App. C"),
        "optimizer.lr": "our choice: the usual 0.1 at batch 256",
    },
    "semi": {
        **dict.fromkeys(("heads", "branches", "optimizer", "schedule"), "as SupSiam's: App. C"),
        **dict.fromkeys(("pool", "loss.alpha"), "as SupSiam's: Sec. 5.1"),
        "loss": "our choice: docs/labels.md",
        "loss.warmup": (10_000, "our choice: about ten epochs at batch 128"),
    },
}
SUPCON_POOL: Row = {  # positives and negatives also come from a pool
    "pool": (PoolSpec("queue", 8192), "App. F.3"),
    "pool.size": "App. F.3",
    "loss": (Contrast(positives="own-class", against="both-views+pool", temperature=0.1), ""),
    "loss.against": "App. F.3",
}


def imagenet100(name: str, method: str, has_pool: bool = False, batch: int = 128) -> Recipe:
    """A recipe of Tables 4-6; of Table F.3 with batch 256, for which the learning rate scales linearly."""
    family, heads = FAMILIES[method], IMAGENET100_HEADS[FAMILIES[method]]
    values: Row = {"heads": (heads, ""), "optimizer.lr": (IMAGENET100_LR[method], "")}
    warmup: Row = {"schedule.warmup_epochs": (40, "App. C")} if family == "siam" else {}
    own = IMAGENET100_BEYOND.get(method, {})
    rows: list[Row] = [IMAGENET100, warmup, values, not_stated(method, heads), HEAD_SOURCES[family], own]
    paper = "beyond the paper (Tables 4-6's setting)" if own else "Sec. 5.1, App. C (Tables 4-6)"
    if has_pool:
        paper, rows = "App. F.3 (Table F.3, marked *)", [*rows, SUPCON_POOL]
    if batch == 256:
        is_stated = method in ("supsiam", "supcon")  # with and without a pool
        paper = "App. F.3 (Table F.3)" if is_stated else "beyond the paper (Table F.3's setting)"
        rows.append({"train.batch_size": (256, "App. F.3" if is_stated else "our choice")})
    return build(name, method, paper, *rows)


# --- ImageNet-100, ViT-Small ------------------------------------------------------------------------------------------

VIT: Row = {
    **IMAGENET_PIXELS,
    "views": (Crops(size=224), "released code, following SimCLR (Sec. 5.1); App. G states no other"),
    "encoder": (EncoderSpec("vit-small", size=224), "App. G: ViT-Small; MoCo-v3's details"),
    **dict.fromkeys(("heads", "branches", "pool", "loss"), "App. G"),
    "loss.form": "released code: -cos",
    "optimizer": (OptimizerSpec("adamw", reference_batch=256, weight_decay=0.1), "App. G"),
    "schedule": (ScheduleSpec(warmup_epochs=40), "App. G"),
    "train.epochs": (200, "App. G"),
    "train.batch_size": (256, "App. G"),
}
# MoCo-v3 ends both MLPs with a batch norm without affine; the paper keeps its settings
VIT_MOCO_HEADS = HeadSpec(MLP((4096, 4096), 256, last_norm=NO_AFFINE), MLP((4096,), 256, last_norm=NO_AFFINE))
VIT_METHODS: dict[str, Row] = {
    "moco3": {"heads": (VIT_MOCO_HEADS, ""), "optimizer.lr": (1.5e-4, ""), "schedule.predictor": ("follows", "")},
    "supmoco": {"heads": (VIT_MOCO_HEADS, ""), "optimizer.lr": (1.5e-3, ""), "schedule.predictor": ("follows", ""),
                "branches": (METHODS["moco3"].branches, ""),  # EMA from 0.99, as MoCo-v3
                "loss": (Contrast(positives="own-class", against="other-view+pool", temperature=0.2), "")},
    "byol": {"heads": (BYOL_HEADS, ""), "optimizer.lr": (1.5e-3, "")},
    "supbyol": {"heads": (BYOL_HEADS, ""), "optimizer.lr": (1.5e-3, "")},
    "supcon": {"heads": (HeadSpec(VIT_MOCO_HEADS.projector), "our choice: MoCo-v3's projector"),
               "branches": "App. C", "loss": "App. C",
               "optimizer.lr": (1.5e-3, "our choice: that of App. G's supervised methods")},
    "crossentropy": {"heads": (CLASSIFIER, PLAIN), **dict.fromkeys(("branches", "loss", "loss.form"), PLAIN),
                     "optimizer.lr": (2.5e-4, "our choice: DeiT's 5e-4 at batch 512")},
}  # fmt: skip


def vit(name: str, method: str) -> Recipe:
    """A recipe of Table G.1, or of a method that App. G does not run."""
    own, family = VIT_METHODS[method], "moco3" if method in ("supmoco", "supcon") else FAMILIES[method]
    heads: Any = own["heads"][0]
    is_beyond = method in ("supcon", "crossentropy")
    paper = "beyond the paper (App. G's setting)" if is_beyond else "App. G (Table G.1)"
    return build(name, method, paper, VIT, not_stated(method, heads), HEAD_SOURCES[family], own)


# --- CIFAR ------------------------------------------------------------------------------------------------------------

CIFAR: Row = {
    "views": (Crops(size=32, blur=0.0), "released code, following SimCLR (Sec. 5.1)"),
    "views.size": "App. H",
    "views.scale": "our choice: App. H states none",
    "views.blur": "App. H: no blur",
    "encoder": (EncoderSpec("cifar-resnet18", size=32), "App. H: CIFAR variant of ResNet-18"),
    **dict.fromkeys(("encoder.mean", "encoder.std"), "statistics of the training set"),
    **dict.fromkeys(("heads", "branches", "loss"), "App. C"),
    **dict.fromkeys(("pool", "loss.alpha", "optimizer.lr", "optimizer.reference_batch"), "App. H"),
    "heads.projector.hidden": "App. C states the depth; the width as in the released code",
    "loss.form": "released code: -cos",
    "optimizer": (OptimizerSpec("sgd", reference_batch=256, weight_decay=1e-4), "App. C"),
    "optimizer.weight_decay": "our choice: App. H states none, 5e-4 makes SimSiam collapse",
    "schedule": (ScheduleSpec(warmup_epochs=10), "App. C"),
    "schedule.warmup_epochs": "our choice: App. H states none",
    "train": (TrainSpec(epochs=1000, batch_size=256, log_every=50, monitor_every=5), ""),
    **dict.fromkeys(("train.epochs", "train.batch_size"), "App. H"),
    "train.monitor_every": "our choice: an epoch lasts 1.4 s on a GPU",
}
CIFAR_HEADS = {
    "contrast": HeadSpec(MLP((512,), 128, norm="none")),
    # a 2-layer projector: App. H; its width is not stated, 2048 is App. C's
    "siam": HeadSpec(MLP((2048,), 2048, last_norm=NO_AFFINE), MLP((512,), 2048)),
    "byol": BYOL_HEADS,
    # MoCo-v3's for a ResNet: two layers each, both ending with a batch norm without affine
    "moco3": HeadSpec(MLP((4096,), 256, last_norm=NO_AFFINE), MLP((4096,), 256, last_norm=NO_AFFINE)),
    "classifier": CLASSIFIER,
}
CIFAR_STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
CIFAR_LR = {
    "simclr": 0.7, "supcon": 0.6, "simsiam": 0.7, "supsiam": 0.7, "byol": 0.6, "supbyol": 0.5,  # App. H
    "moco2": 0.06, "supmoco": 0.2,  # App. C's, scaled to batch 256
    "moco3": 0.3, "crossentropy": 0.1, "semi": 0.7,
}  # fmt: skip
# where App. H states nothing these replace the above and a decay of 1e-4: the best of RESULTS.md's pilots
CIFAR_TUNED: dict[str, dict[str, float]] = {
    **{method: {"optimizer.weight_decay": 1e-4} for method in list(CIFAR_LR)[:6]},
    "moco2": {"optimizer.lr": 0.3, "optimizer.weight_decay": 1e-4},
    "supmoco": {"optimizer.lr": 0.2, "optimizer.weight_decay": 5e-4},
    "crossentropy": {"optimizer.lr": 0.2, "optimizer.weight_decay": 5e-4},
}
CIFAR_TUNED_SOURCE = {
    "cifar100": "our choice: best of the pilots on held-out images (RESULTS.md)",
    "cifar10": "our choice: best of the pilots on CIFAR-100 (RESULTS.md)",
}
SIAM_DEPTH = {"heads.projector.hidden": "App. H: 2 layers; the width as in the released code"}
MOCO_SOURCES = {"pool": "our choice: the size App. H gives its pools",
                "optimizer.lr": "our choice: App. C's, scaled to batch 256"}  # fmt: skip
# methods that App. H does not run: what differs from the above
CIFAR_BEYOND: dict[str, Row] = {
    "moco2": MOCO_SOURCES,
    "supmoco": MOCO_SOURCES,
    "moco3": {
        **dict.fromkeys(("heads", "heads.projector.hidden"), "our choice: MoCo-v3's for a ResNet"),
        **dict.fromkeys(("branches", "pool", "loss"), "App. G"),
        "schedule.predictor": ("follows", "App. G"),
        "optimizer.lr": "our choice: as MoCo-v2's; not tuned",
        "optimizer.weight_decay": "our choice: not tuned",
    },
    "crossentropy": dict.fromkeys(("heads", "branches", "pool", "loss", "loss.form", "optimizer.lr"), PLAIN),
    "semi": {
        **SIAM_DEPTH,
        **dict.fromkeys(("pool", "loss.alpha", "optimizer.lr"), "as SupSiam's: App. H"),
        "loss": "our choice: docs/labels.md",
        "loss.warmup": (2000, "our choice: about ten epochs"),
    },
}
CIFAR_METHODS = (*list(CIFAR_LR)[:6], *CIFAR_BEYOND)


def cifar(name: str, method: str) -> Recipe:
    """A recipe of Table H.1, or of a method that App. H does not run; METHOD-nopool is Table 8's collapse ablation."""
    data, base = name.partition(".")[0], method.removesuffix("-nopool")
    heads, (mean, std) = CIFAR_HEADS[FAMILIES[base]], CIFAR_STATISTICS[data]
    tuned = CIFAR_TUNED.get(base, {}) if data == "cifar100" or base in CIFAR_BEYOND else {}
    values: dict[str, Any] = {"encoder.mean": mean, "encoder.std": std, "heads": heads, "optimizer.lr": CIFAR_LR[base]}
    values |= {"pool.size": 4096} if METHODS[method].pool.kind == "queue" else {}
    values |= {"loss.alpha": 0.8} if method == "supbyol" else {}
    rows: list[Row] = [
        CIFAR,
        {field: (value, "") for field, value in values.items()},
        SIAM_DEPTH if base in ("simsiam", "supsiam") else {},
        not_stated(method, heads),
        HEAD_SOURCES[FAMILIES[base]],
        CIFAR_BEYOND.get(method, {}),
        {field: (value, CIFAR_TUNED_SOURCE[data]) for field, value in tuned.items()},
    ]
    paper = "beyond the paper (Table H.1's setting)" if method in CIFAR_BEYOND else "App. H (Table H.1)"
    if method != base:
        rows.append({"loss": (Align(alpha=0.5), ""), "pool": "Table 8: none"})
        rows.append({"loss.alpha": "Sec. 5.1; Table 8 states none"})
        paper = "Table 8" if data == "cifar100" else "beyond the paper (Table 8's setting)"
    return build(name, method, paper, *rows)


# --- the toy study ----------------------------------------------------------------------------------------------------

LINEAR = MLP((), 128, norm="none", bias="none")
TOY: Row = {
    **not_stated("supsiam", HeadSpec(LINEAR, LINEAR)),
    "data.source": ("toy", "App. B"),
    "views": (Masks(share=0.6), "App. B"),
    "encoder": (
        EncoderSpec("linear", channels=1, size=2048, width=128, mean=(0.0,), std=(1.0,)),
        "App. B: one linear layer",
    ),
    "encoder.width": "our choice: App. B gives the projector's",
    **dict.fromkeys(("encoder.mean", "encoder.std"), "our choice: as they are"),
    "heads": (HeadSpec(LINEAR, LINEAR), "App. B: linear, no batch norm"),
    "branches": "Sec. 3.1",
    "pool": (PoolSpec("queue", 3072), "our choice: as large as the data"),
    "loss": (Align(alpha=0.5), "Eqs. 1-3"),
    "loss.alpha": "our choice: App. B varies it",
    "loss.form": "released code: -cos",
    "optimizer": (OptimizerSpec("sgd", lr=0.05, reference_batch=256, weight_decay=5e-4), "App. B"),
    "schedule": "App. B",
    "schedule.warmup_epochs": "our choice: App. B states none",
    "train.epochs": (200, "App. B"),
    "train.batch_size": (256, "App. B"),
}

IMAGENET100_NAMES: dict[str, tuple[str, bool, int]] = {
    f"imagenet100.{method}{'-pool' * has_pool}{suffix}": (method, has_pool, batch)
    for method in IMAGENET100_LR
    for has_pool in ((False, True) if method == "supcon" else (False,))
    for suffix, batch in (("", 128), ("-256", 256))
}
RECIPES: dict[str, Callable[[], Recipe]] = {
    **{name: partial(imagenet100, name, *arguments) for name, arguments in IMAGENET100_NAMES.items()},
    **{f"vit.{method}": partial(vit, f"vit.{method}", method) for method in VIT_METHODS},
    **{
        f"{data}.{method}": partial(cifar, f"{data}.{method}", method)
        for data in CIFAR_STATISTICS
        for method in (*CIFAR_METHODS, "supsiam-nopool", "supbyol-nopool")
    },
    "toy.supsiam": partial(build, "toy.supsiam", "supsiam", "Sec. 4.3, App. B (Tables 1 and 2)", TOY),
}
