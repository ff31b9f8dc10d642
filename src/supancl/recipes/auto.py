"""`auto.METHOD`: a recipe that is fitted to the data and the device.

    supancl pretrain --data photos

RULES is the whole of it: one row per setting, in the order in which they are chosen. A setting that the user names is
left alone, and the rules after it see the user's value. docs/measurements/auto.md shows how they were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from supancl.config import flattened
from supancl.core.losses import Align, SemiAlign
from supancl.core.specs import EncoderSpec
from supancl.data.opening import Survey
from supancl.data.spec import DataSpec
from supancl.data.views.specs import Crops
from supancl.errors import BadInput
from supancl.recipes import paper
from supancl.recipes.recipe import LINKED, Recipe, TrainSpec, describe_changes

TO_BE_CHOSEN = "chosen from the data and the device"
AS_FOR_IMAGENET = "our choice: as for ImageNet"
METHODS = ("simsiam", "supsiam", "byol", "supbyol", "simclr", "supcon", "moco2", "supmoco", "crossentropy", "semi")
VIEW_SIZES = (32, 64, 96, 128, 160, 224)
MANY_CLASSES = 1000
LEAST_IMAGES = 2  # to train on: batch norm needs two
LEAST_SIDE = 32  # of photographs, in pixels
STEPS_PER_EPOCH = 16  # at least, so that a small data set is not one batch
STEPS_BETWEEN_CHECKS = 200
CPU_HEAD = 256  # width of the heads' layers on a CPU
LONG_RUN = 700  # steps; a shorter run from a start stays near it: docs/log.md
SHORT_RUN_RATE = 0.1  # of the encoder, as a part of the projector's
FEW_IMAGES = 2000  # on a CPU, a small network learns more from fewer than these in the same time
START = "timm:tf_efficientnet_lite0"  # trained weights for photographs, on any device


@dataclass(frozen=True)
class Facts:
    """What the rules look at: the data, the device, and the settings chosen so far."""

    data: Survey
    on_gpu: bool
    has_start: bool  # trained weights, with --init
    settings: dict[str, Any]
    is_encoder_open: bool = False

    @property
    def size(self) -> int:
        return int(self.settings["views.size"])

    @property
    def epochs(self) -> int:
        return int(self.settings["train.epochs"])

    @property
    def steps_per_epoch(self) -> int:
        return max(self.data.images // int(self.settings["train.batch_size"]), 1)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    @property
    def is_short_from_start(self) -> bool:
        return self.has_start and self.steps < LONG_RUN

    @property
    def needs_small_network(self) -> bool:
        is_allowed = self.is_encoder_open or self.settings["encoder.name"] == "cnn"
        return is_allowed and not self.on_gpu and self.data.images < FEW_IMAGES


Choice = tuple[Any, str]  # a value and its reason


def choose_size(facts: Facts) -> Choice:
    side, largest = facts.data.side, 224 if facts.on_gpu else 32 if facts.needs_small_network else 64
    size = max((size for size in VIEW_SIZES if size <= min(side, largest)), default=VIEW_SIZES[0])
    is_reduced = side > largest and not facts.on_gpu
    return size, f"short side {side} px" + f"; a CPU is slow above {largest}" * is_reduced


def choose_encoder(facts: Facts) -> Choice:
    if facts.needs_small_network:
        return "cnn", f"small: on a CPU, {facts.data.images:,} images teach a large one little"
    if facts.size <= (64 if facts.on_gpu else 32):  # its layers at full resolution are slow on a CPU
        return "cifar-resnet18", f"its first layers suit views of {facts.size} px"
    is_large = facts.on_gpu and facts.size >= 160 and facts.data.images >= 50_000
    return "resnet50" if is_large else "resnet18", f"views of {facts.size} px, images: {facts.data.images:,}"


def choose_batch(facts: Facts) -> Choice:
    images, batch = facts.data.images, 256 if facts.on_gpu else 64
    while batch > 16 and batch * STEPS_PER_EPOCH > images:
        batch //= 2
    batch = min(batch, max(images, 2))
    return batch, f"steps per epoch: {images // batch:,}"


def choose_epochs(facts: Facts) -> Choice:
    seen, least, most = (2_000_000, 40, 400) if facts.on_gpu else (60_000, 10, 100)
    if facts.needs_small_network:
        seen, most = 150_000, 250
    if facts.has_start and not facts.on_gpu:
        seen, least, most = 5_000, 4, 20
    epochs = min(max(round(seen / max(facts.data.images, 1)), least), most)
    return epochs, f"about {epochs * facts.data.images:,} images are seen in all"


def choose_interval(facts: Facts) -> Choice:
    """Epochs between checks, and between checkpoints: more often would take longer than such epochs themselves."""
    epochs = max(1, min(facts.epochs // 20, STEPS_BETWEEN_CHECKS // facts.steps_per_epoch))
    return epochs, f"steps between them: {epochs * facts.steps_per_epoch:,}"


def choose_head(name: str, facts: Facts) -> Choice:
    value = facts.settings[name]
    if facts.on_gpu:
        return value, "as for CIFAR: App. C and H"
    smaller = [min(width, CPU_HEAD) for width in value] if isinstance(value, tuple) else min(value, CPU_HEAD)
    return smaller, "wide heads are slow on a CPU: docs/log.md"


def choose_pool_kind(facts: Facts) -> Choice:
    kind, classes = facts.settings["pool.kind"], facts.data.classes
    if kind == "queue" and facts.settings["loss.kind"] in ("align", "semi") and classes > MANY_CLASSES:
        return "prototypes", f"a queue holds few of each of {classes:,} classes"
    return kind, "as in the paper"


def choose_pool_size(facts: Facts) -> Choice:
    """As many slots as two epochs of labelled images, so that targets stay fresh; a power of two."""
    labelled, classes = facts.data.labelled, facts.data.classes
    slots = min(max(2 * labelled, 4 * classes, facts.settings["train.batch_size"], 64), 4096)
    return 2 ** math.ceil(math.log2(slots)), f"labelled images: {labelled:,}, classes: {classes:,}"


HEADS = ("heads.projector.hidden", "heads.projector.out", "heads.predictor.hidden")
RULES: dict[str, Callable[[Facts], Choice]] = {
    "views.size": choose_size,
    "views.blur": lambda facts: (
        (0.0, "small images are not blurred: App. H") if facts.size <= 32 else (0.5, "as for ImageNet: Sec. 5.1")
    ),
    "encoder.name": choose_encoder,
    "encoder.width": lambda facts: (
        (256, "best in pilots") if facts.settings["encoder.name"] == "cnn" else (None, "that of its architecture")
    ),
    **{name: partial(choose_head, name) for name in HEADS},
    "train.batch_size": choose_batch,
    "train.epochs": choose_epochs,
    "train.monitor_every": choose_interval,
    "train.checkpoint_epochs": choose_interval,
    "optimizer.lr": lambda facts: (facts.settings["optimizer.lr"], "as for CIFAR, scaled to the batch; best in pilots"),
    "optimizer.encoder_lr_scale": lambda facts: (
        (SHORT_RUN_RATE, f"so few steps ({facts.steps:,}) should stay near the start")
        if facts.is_short_from_start
        else (1.0, "as from random weights")
    ),
    "optimizer.freeze_norm": lambda facts: (
        (True, "new statistics of few images cost accuracy: docs/log.md")
        if facts.is_short_from_start
        else (False, "as from random weights")
    ),
    "schedule.warmup_epochs": lambda facts: (
        (min(1, facts.epochs // 2), f"few steps from a start: {facts.steps:,}")
        if facts.is_short_from_start
        else (min(10, facts.epochs // 10), "a tenth of the epochs, at most 10")
    ),
    "loss.alpha": lambda facts: (0.5, "the paper's for ImageNet; `supancl compare` tries others"),
    "loss.warmup": lambda facts: (facts.steps // 10, "a tenth of the steps"),
    "pool.kind": choose_pool_kind,
    "pool.size": choose_pool_size,
}


def default_recipe(data: Survey) -> str:
    """The recipe for images where none is named: SupSiam if they have labels, else SimSiam."""
    return "auto.supsiam" if data.classes > 1 else "auto.simsiam"


def is_to_be_fitted(recipe: Recipe) -> bool:
    return TO_BE_CHOSEN in recipe.sources.values()


def open_settings(recipe: Recipe) -> list[str]:
    """The settings of a requested recipe that its data decide, or that follow from those."""
    names = [name for name, source in recipe.sources.items() if source == TO_BE_CHOSEN]
    return [*names, "data.short_side", *(second for first, second in LINKED if first in names)] if names else []


def fit_recipe(recipe: Recipe, data: Survey, on_gpu: bool, has_start: bool = False) -> Recipe:
    """Choose the settings that are still open; their sources become the reasons."""
    if data.images < LEAST_IMAGES:
        raise BadInput(f"{recipe.data.location}: training images: {data.images}, of {LEAST_IMAGES} needed; add images")
    for name, rule in RULES.items():
        if recipe.sources.get(name) == TO_BE_CHOSEN:
            is_encoder_open = recipe.sources.get("encoder.name") == TO_BE_CHOSEN
            value, why = rule(Facts(data, on_gpu, has_start, flattened(recipe), is_encoder_open))
            recipe = recipe.with_set({name: value}, because=why)
    return recipe


def describe_choices(
    requested: Recipe, fitted: Recipe, data: Survey, on_gpu: bool, has_start: bool = False
) -> Iterator[str]:
    """What the recipe was fitted to, and each setting that was chosen with its reason."""
    device = "a GPU" if on_gpu else "a CPU"
    yield (
        f"{fitted.name} for {data.images:,} training images, labelled: {data.labelled:,}, classes: {data.classes:,}, "
        f"{data.side} px, on {device}:"
    )
    yield from describe_changes(requested, fitted)
    is_open = not has_start and requested.sources.get("encoder.name") == TO_BE_CHOSEN
    if is_open and fitted.encoder.channels == 3 and data.side >= LEAST_SIDE:
        yield f"worth most: trained weights, --init {START}; or without training: predict {START}"


def with_short_side(recipe: Recipe) -> Recipe:
    """Limit the decoded size of photographs to what the views need: the smallest crop still has the views' size."""
    if recipe.data.short_side is not None or not isinstance(recipe.views, Crops):
        return recipe
    crops = [crop for crop in (recipe.views, recipe.views.local) if crop is not None]
    side = max(math.ceil(crop.size / math.sqrt(crop.scale[0])) for crop in crops)
    return recipe.with_set({"data.short_side": side}, because="views.size and views.scale")


def build(method: str) -> Recipe:
    """The recipe before it is fitted: CIFAR's heads and rates, photographs' views and statistics."""
    base = paper.cifar(f"cifar100.{method}", method)
    is_used = {
        "pool.": base.pool.kind != "none",
        "heads.projector.": base.heads.projector.out is not None,  # not of a classifier
        "heads.predictor.": base.heads.predictor is not None,
        "loss.alpha": isinstance(base.loss, Align) and base.loss.supervised,
        "loss.warmup": isinstance(base.loss, SemiAlign),
    }
    fitted = [name for name in RULES if all(used for part, used in is_used.items() if name.startswith(part))]
    ours = dict.fromkeys(("views.scale", "encoder.mean", "encoder.std"), AS_FOR_IMAGENET)
    return replace(
        base,
        name=f"auto.{method}",
        paper="not in the paper: fitted to the data",
        data=DataSpec(),
        views=Crops(size=64),
        encoder=EncoderSpec("resnet18", size=64),
        train=TrainSpec(epochs=100, batch_size=64, log_every=10),
        sources={**base.sources, **ours, **dict.fromkeys([*fitted, "encoder.size"], TO_BE_CHOSEN)},
    )


RECIPES: dict[str, Callable[[], Recipe]] = {f"auto.{method}": partial(build, method) for method in METHODS}
