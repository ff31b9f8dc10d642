"""`auto.METHOD`: a recipe that is fitted to the data and the device.

    supancl pretrain --data photos

RULES is the whole of it: one row per setting, in the order in which they are chosen. A setting that the user names is
left alone, and the rules after it see the user's value. docs/own-data.md shows how the rules were chosen.
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
from supancl.data.splits import DataSpec
from supancl.data.survey import Survey
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, plural
from supancl.recipes import cifar
from supancl.recipes.recipe import OUR_CHOICE, Recipe, TrainSpec

TO_BE_CHOSEN = "chosen from the data and the device"
AS_FOR_IMAGENET = "our choice: as for ImageNet"
METHODS = ("simsiam", "supsiam", "byol", "supbyol", "simclr", "supcon", "moco2", "supmoco", "crossentropy", "semi")
VIEW_SIZES = (32, 64, 96, 128, 160, 224)
MANY_CLASSES = 1000
LEAST_IMAGES = 2  # to train on: batch norm needs two
LEAST_SIDE = 32  # of photographs, in pixels
STEPS_PER_EPOCH = 16  # at least, so that a small data set is not one batch
STEPS_BETWEEN_CHECKS = 200
CONTRASTIVE_BATCH = 256  # images from which SimCLR was better than SimSiam
FEW_LABELS = 0.2  # of the images; our studies had 1% and 10%
CPU_HEAD = 256  # width of the heads' layers on a CPU
LONG_RUN = 700  # steps; a shorter run from a start stays near it: docs/log.md
SHORT_RUN_RATE = 0.1  # of the encoder, as a part of the projector's
FEW_IMAGES = 2000  # on a CPU, a small network learns more from fewer than these in the same time
START = "timm:tf_efficientnet_lite0"  # trained weights for photographs, on any device
START_GAIN = ""  # over a run from scratch, in words, once docs/starts.md has measured it


@dataclass(frozen=True)
class Facts:
    """What the rules look at: the data, the device, and the settings chosen so far."""

    data: Survey
    on_gpu: bool
    has_start: bool  # trained weights, with --init
    settings: dict[str, Any]
    still_open: frozenset[str] = frozenset()  # settings that are yet to be chosen

    @property
    def size(self) -> int:
        return int(self.settings["views.size"])

    @property
    def batch(self) -> int:
        return int(self.settings["train.batch_size"])

    @property
    def steps(self) -> int:
        return max(self.data.images // self.batch, 1) * int(self.settings["train.epochs"])

    @property
    def is_short_from_start(self) -> bool:
        return self.has_start and self.steps < LONG_RUN

    @property
    def needs_small_network(self) -> bool:
        is_allowed = "encoder.name" in self.still_open or self.settings["encoder.name"] == "cnn"
        return is_allowed and not self.on_gpu and self.data.images < FEW_IMAGES


Choice = tuple[Any, str]  # a value and its reason


def choose_size(facts: Facts) -> Choice:
    largest = 224 if facts.on_gpu else 32 if facts.needs_small_network else 64
    size = max((size for size in VIEW_SIZES if size <= min(facts.data.side, largest)), default=VIEW_SIZES[0])
    if facts.data.side > largest and not facts.on_gpu:
        return size, f"short side {facts.data.side} px; a CPU is slow above {largest}"
    return size, f"images have {facts.data.side} px on their short side"


def choose_encoder(facts: Facts) -> Choice:
    if facts.needs_small_network:
        images = plural(facts.data.images, "image on a CPU teaches", "images on a CPU teach", ",")
        return "cnn", f"small: {images} a large one little"
    if facts.size <= (64 if facts.on_gpu else 32):  # its layers at full resolution are slow on a CPU
        return "cifar-resnet18", f"its first layers suit views of {facts.size} px"
    if facts.on_gpu and facts.size >= 160 and facts.data.images >= 50_000:
        return "resnet50", f"enough images for it: {facts.data.images:,}"
    return "resnet18", f"views of {facts.size} px, {plural(facts.data.images, 'image', number_format=',')}"


def choose_width(facts: Facts) -> Choice:
    return (256, "best in pilots") if facts.settings["encoder.name"] == "cnn" else (None, "that of its architecture")


def choose_batch(facts: Facts) -> Choice:
    most = 256 if facts.on_gpu else 64
    batch = most
    while batch > 16 and batch * STEPS_PER_EPOCH > facts.data.images:
        batch //= 2
    batch = min(batch, max(facts.data.images, 2))
    return batch, f"{plural(facts.data.images // batch, 'step', number_format=',')} per epoch"


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
    steps = max(facts.data.images // facts.batch, 1)
    epochs = max(1, min(int(facts.settings["train.epochs"]) // 20, STEPS_BETWEEN_CHECKS // steps))
    return epochs, "every step" if epochs * steps == 1 else f"every {epochs * steps:,} steps"


def choose_warmup(facts: Facts) -> Choice:
    epochs = int(facts.settings["train.epochs"])
    if facts.is_short_from_start:
        return min(1, epochs // 2), f"few steps from a start: {facts.steps:,}"
    return min(10, epochs // 10), "a tenth of the epochs, at most 10"


def choose_encoder_rate(facts: Facts) -> Choice:
    if facts.is_short_from_start:
        return SHORT_RUN_RATE, f"so few steps ({facts.steps:,}) should stay near the start"
    return 1.0, "as from random weights"


def choose_norm(facts: Facts) -> Choice:
    if facts.is_short_from_start:
        return True, "new statistics of few images cost accuracy: docs/log.md"
    return False, "as from random weights"


def choose_blur(facts: Facts) -> Choice:
    return (0.0, "small images are not blurred: App. H") if facts.size <= 32 else (0.5, "as for ImageNet: Sec. 5.1")


def choose_head(name: str, facts: Facts) -> Choice:
    value = facts.settings[name]
    if facts.on_gpu:
        return value, "as for CIFAR: App. C and H"
    smaller = [min(width, CPU_HEAD) for width in value] if isinstance(value, tuple) else min(value, CPU_HEAD)
    return smaller, "wide heads are slow on a CPU: docs/log.md"


def choose_rate(facts: Facts) -> Choice:
    lr, reference = facts.settings["optimizer.lr"], facts.settings["optimizer.reference_batch"]
    return lr, f"for batch {reference}, scaled to {facts.batch}; best in pilots"


def choose_alpha(facts: Facts) -> Choice:
    return 0.5, "the paper's for ImageNet; `supancl compare` tries others"


def choose_label_warmup(facts: Facts) -> Choice:
    return facts.steps // 10, "a tenth of the steps"


def choose_pool_kind(facts: Facts) -> Choice:
    kind = facts.settings["pool.kind"]
    if kind == "queue" and facts.settings["loss.kind"] in ("align", "semi") and facts.data.classes > MANY_CLASSES:
        return "prototypes", f"a queue holds few of each of {facts.data.classes:,} classes"
    return kind, "as in the paper"


def choose_pool_size(facts: Facts) -> Choice:
    """As many slots as two epochs of labelled images, so that targets stay fresh; a power of two."""
    slots = max(2 * facts.data.labelled, 4 * facts.data.classes, facts.batch)
    size = 64
    while size < min(slots, 4096):
        size *= 2
    images = plural(facts.data.labelled, "labelled image", number_format=",")
    return size, f"{images} in {plural(facts.data.classes, 'class', 'classes', ',')}"


HEADS = ("heads.projector.hidden", "heads.projector.out", "heads.predictor.hidden")
RULES: dict[str, Callable[[Facts], Choice]] = {
    "views.size": choose_size,
    "views.blur": choose_blur,
    "encoder.name": choose_encoder,
    "encoder.width": choose_width,
    **{name: partial(choose_head, name) for name in HEADS},
    "train.batch_size": choose_batch,
    "train.epochs": choose_epochs,
    "train.monitor_every": choose_interval,
    "train.checkpoint_epochs": choose_interval,
    "optimizer.lr": choose_rate,
    "optimizer.encoder_lr_scale": choose_encoder_rate,
    "optimizer.freeze_norm": choose_norm,
    "schedule.warmup_epochs": choose_warmup,
    "loss.alpha": choose_alpha,
    "loss.warmup": choose_label_warmup,
    "pool.kind": choose_pool_kind,
    "pool.size": choose_pool_size,
}


def default_recipe(data: Survey) -> str:
    """The recipe for images where none is named: SupSiam if they have labels, else SimSiam."""
    return "auto.supsiam" if data.is_labelled else "auto.simsiam"


def rival_recipe(data: Survey, batch_size: int) -> str | None:
    """What did better than `default_recipe` in our studies with no or few labels (RESULTS.md, docs/labels.md).

    SimCLR was better than SimSiam with batches of 256, and not with 32 (docs/log.md).
    """
    if not data.is_labelled:
        is_large = batch_size >= CONTRASTIVE_BATCH
        return "auto.simclr" if is_large else None
    return "auto.semi" if data.labelled <= FEW_LABELS * data.images else None


def is_to_be_fitted(recipe: Recipe) -> bool:
    return TO_BE_CHOSEN in recipe.sources.values()


def open_settings(recipe: Recipe) -> list[str]:
    """The settings of a requested recipe that its data decide, or that follow from those."""
    names = [name for name, source in recipe.sources.items() if source == TO_BE_CHOSEN]
    return [*names, "data.short_side"] if names else []


def fit_recipe(recipe: Recipe, data: Survey, on_gpu: bool, has_start: bool = False) -> Recipe:
    """Choose the settings that are still open; their sources become the reasons."""
    if data.images < LEAST_IMAGES:
        raise BadInput(
            f"{recipe.data.location}: training images besides those held out: {data.images}, of {LEAST_IMAGES} needed; "
            "add images"
        )
    for name, rule in RULES.items():
        if recipe.sources.get(name) == TO_BE_CHOSEN:
            facts = Facts(data, on_gpu, has_start, flattened(recipe), frozenset(open_settings(recipe)))
            value, why = rule(facts)
            recipe = recipe.with_set({name: value}, because=why)
    return recipe


def describe_choices(
    requested: Recipe, fitted: Recipe, data: Survey, on_gpu: bool, has_start: bool = False
) -> Iterator[str]:
    """What the recipe was fitted to, and each setting that was chosen with its reason."""
    labels = f"{data.labelled:,} labelled, classes: {data.classes:,}" if data.classes else "no labels"
    device = "a GPU" if on_gpu else "a CPU"
    yield f"{fitted.name} for {data.images:,} training images, {labels}, {data.side} px, on {device}:"
    values, before = fitted.fields(), requested.fields()
    for name in RULES:
        if name in values and before[name] != values[name] and values[name][0] is not None:
            yield f"  {f'{name} = {values[name][0]}':32} {values[name][1]}"
    other = rival_recipe(data, fitted.train.batch_size)
    if fitted.name == default_recipe(data) and other is not None:
        yield f"  {f'try also {other}':32} better with {'few' if data.is_labelled else 'no'} labels: docs/choosing.md"
    is_open = not has_start and requested.sources.get("encoder.name") == TO_BE_CHOSEN
    if is_open and fitted.encoder.channels == 3 and data.side >= LEAST_SIDE:
        gain = START_GAIN and f" ({START_GAIN}: docs/starts.md)"
        yield f"worth most: trained weights{gain}, --init {START}; or without training: predict {START}"


# --- a warm-up that fits the run --------------------------------------------------------------------------------------


def resolve_label_warmup(recipe: Recipe, images: int) -> Recipe:
    """Return the recipe with a `loss.warmup` of at most half of the steps that `images` give.

    Else a short run of semi would end before it begins to use images without a label. A value that someone has set, and
    one that `auto.semi` has fitted, stays.
    """
    if not isinstance(recipe.loss, SemiAlign) or not recipe.fields()["loss.warmup"][1].startswith(OUR_CHOICE):
        return recipe
    steps = count_steps(recipe, images)
    if recipe.loss.warmup <= steps // 2:
        return recipe
    reason = f"half of {steps:,} steps: {recipe.loss.warmup:,} would leave too few to use images without a label in"
    return recipe.with_set({"loss.warmup": steps // 2}, because=reason)


def count_steps(recipe: Recipe, images: int) -> int:
    """The steps of a run on this many training images."""
    return images // recipe.train.batch_size * recipe.train.epochs


def describe_resolution(requested: Recipe, resolved: Recipe, images: int | None = None) -> list[str]:
    """Lines for the user on what `resolve_warmup` and, if `images` are known, `resolve_label_warmup` have changed.

    A `loss.warmup` that stays and outlasts the run has a line too.
    """
    lines = []
    before, after = requested.schedule.warmup_epochs, resolved.schedule.warmup_epochs
    if before != after:
        lines.append(
            f"schedule.warmup_epochs = {after} instead of {before}: at most half of train.epochs = "
            f"{resolved.train.epochs}, so that the learning rate reaches its peak and decays"
        )
    if images is None or not (isinstance(requested.loss, SemiAlign) and isinstance(resolved.loss, SemiAlign)):
        return lines
    steps, label_warmup = count_steps(resolved, images), resolved.loss.warmup
    if label_warmup != requested.loss.warmup:
        lines.append(
            f"loss.warmup = {label_warmup} instead of {requested.loss.warmup}: at most half of the {steps:,} steps, so "
            "that images without a label are drawn to classes in the other half"
        )
    elif label_warmup >= steps:
        lines.append(
            f"loss.warmup = {label_warmup} outlasts the {steps:,} steps, so images without a label are trained as by "
            "supsiam in all of them"
        )
    return lines


def with_short_side(recipe: Recipe) -> Recipe:
    """Limit the decoded size of photographs to what the views need: the smallest crop still has the views' size."""
    if recipe.data.short_side is not None or not isinstance(recipe.views, Crops):
        return recipe
    crops = [(recipe.views.size, recipe.views.scale[0])]
    if recipe.views.local is not None:
        crops.append((recipe.views.local.size, recipe.views.local.scale[0]))
    side = max(math.ceil(size / math.sqrt(scale)) for size, scale in crops)
    return recipe.with_set({"data.short_side": side}, because="views.size and views.scale")


# --- the recipes ------------------------------------------------------------------------------------------------------


def build(method: str) -> Recipe:
    """The recipe before it is fitted: CIFAR's heads and rates, photographs' views and statistics."""
    base = cifar.build("cifar100", method)
    unused = {"pool.kind", "pool.size"} if base.pool.kind == "none" else set()
    if base.heads.projector.out is None:  # a classifier
        unused.update(HEADS)
    if base.heads.predictor is None:
        unused.add(HEADS[-1])
    if not (isinstance(base.loss, Align) and base.loss.supervised):
        unused.add("loss.alpha")
    if not isinstance(base.loss, SemiAlign):
        unused.add("loss.warmup")
    fitted = [name for name in RULES if name not in unused]
    return replace(
        base,
        name=f"auto.{method}",
        paper="not in the paper: fitted to the data",
        data=DataSpec(),
        views=Crops(size=64),
        encoder=EncoderSpec("resnet18", size=64),
        train=TrainSpec(epochs=100, batch_size=64, log_every=10),
        sources={**_sources(base), **dict.fromkeys(fitted, TO_BE_CHOSEN), "encoder.size": TO_BE_CHOSEN},
    )


def _sources(base: Recipe) -> dict[str, str]:
    """Where the other values come from."""
    ours = ("views.scale", "encoder.mean", "encoder.std")
    return {**base.sources, **dict.fromkeys(ours, AS_FOR_IMAGENET)}


RECIPES: dict[str, Callable[[], Recipe]] = {f"auto.{method}": partial(build, method) for method in METHODS}
