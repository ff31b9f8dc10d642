"""A recipe: one complete, frozen configuration, with the source of each of its values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from supancl.config import (
    AUTOMATIC,
    FREE_IN_A_SHARED_STEP,
    INCIDENTAL,
    MAY_CHANGE_ON_RESUME,
    Count,
    Fraction,
    Natural,
    NotNegative,
    UnknownField,
    Within,
    flattened,
    from_json,
    hints,
    marked,
    replaced,
    validated,
)
from supancl.core.losses import Align, Loss
from supancl.core.methods import METHODS, Method
from supancl.core.schedules import ScheduleSpec
from supancl.core.specs import BranchSpec, EncoderSpec, HeadSpec, PoolSpec, check_size
from supancl.data.splits import DataSpec
from supancl.data.views.specs import Crops, ViewSpec
from supancl.errors import BadInput, counted
from supancl.recipes.plugins import STANDINS, check_known, own_sections

OUR_CHOICE = "our choice"


@dataclass(frozen=True)
class OptimizerSpec:
    """`lr` belongs to `reference_batch`; another batch size scales it linearly (App. F.3)."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Within(0, 1e6, exclusive_low=True)] = marked(0.2, FREE_IN_A_SHARED_STEP)
    reference_batch: Count = marked(128, FREE_IN_A_SHARED_STEP)
    momentum: Fraction = 0.9
    weight_decay: NotNegative = 1e-4  # on every parameter, batch norm and bias included


@dataclass(frozen=True)
class TrainSpec:
    """How long, how many at a time, on what."""

    epochs: Count = 200
    batch_size: Count = 128
    accumulate: Count = 1  # micro-batches per step; the batch size is that of the whole step
    seed: Annotated[int, Within(0, 2**63 - 1)] = marked(0, INCIDENTAL, FREE_IN_A_SHARED_STEP)
    device: Literal["auto", "cpu", "cuda"] = marked("auto", INCIDENTAL, FREE_IN_A_SHARED_STEP)
    precision: Literal["auto", "fp32", "bf16"] = marked("auto", AUTOMATIC)  # auto: bf16 on a GPU that has it
    # None: on a GPU, for runs long enough to earn the minute it takes
    compile: bool | None = marked(None, AUTOMATIC, MAY_CHANGE_ON_RESUME, INCIDENTAL)
    # None: on a GPU the step is captured once and replayed
    replay: bool | None = marked(None, AUTOMATIC, MAY_CHANGE_ON_RESUME, INCIDENTAL)
    sync_norm: bool = True  # batch norm sees the whole batch, however many ranks share it
    gradients: Literal["fp32", "bf16"] = "fp32"  # as what they travel between ranks
    deterministic: bool = marked(False, INCIDENTAL)
    log_every: Count = marked(10, INCIDENTAL, FREE_IN_A_SHARED_STEP)  # steps
    # steps; beside the one at the end of each epoch
    checkpoint_every: Count | None = marked(None, INCIDENTAL, FREE_IN_A_SHARED_STEP)
    monitor_every: Natural = marked(1, INCIDENTAL, FREE_IN_A_SHARED_STEP)  # epochs; 0 turns the monitor off
    on_collapse: Literal["warn", "stop"] = marked("warn", MAY_CHANGE_ON_RESUME, INCIDENTAL, FREE_IN_A_SHARED_STEP)
    on_nan: Literal["stop", "skip", "rollback"] = marked("stop", MAY_CHANGE_ON_RESUME, INCIDENTAL)


@dataclass(frozen=True)
class Recipe:
    """Everything a run needs to know. `paper` says which setting of the paper it is."""

    name: str = field(metadata={FREE_IN_A_SHARED_STEP: True})
    method: str = field(metadata={FREE_IN_A_SHARED_STEP: True})
    paper: str = field(metadata={FREE_IN_A_SHARED_STEP: True, INCIDENTAL: True})
    data: DataSpec
    views: ViewSpec
    encoder: EncoderSpec
    heads: HeadSpec
    branches: BranchSpec
    pool: PoolSpec
    loss: Loss
    optimizer: OptimizerSpec
    schedule: ScheduleSpec = field(metadata={FREE_IN_A_SHARED_STEP: True})
    train: TrainSpec
    compat: Literal["paper", "released-code"] = "paper"
    sources: Mapping[str, str] = field(default_factory=dict, metadata={INCIDENTAL: True, FREE_IN_A_SHARED_STEP: True})

    def __post_init__(self) -> None:
        # a loss of one's own that nobody has registered lacks these, and is refused later by its name
        keeps_all = getattr(self.loss, "stores_unlabelled", False)
        if getattr(self.loss, "needs_pool", False) and self.pool.kind == "none":
            what = (
                f"loss.against = {self.loss.against!r}" if hasattr(self.loss, "against") else f"loss {self.loss.kind!r}"
            )
            raise BadInput(f"{what} needs a pool; set pool.kind=queue")
        if self.pool.sharded and (self.pool.kind != "prototypes" or keeps_all):
            raise BadInput(
                f"pool.sharded: {self.method} with pool.kind = {self.pool.kind!r} needs its whole pool on "
                "every rank; set pool.sharded=false, or pool.kind=prototypes with supsiam or supbyol"
            )
        if self.pool.start == "random" and not (self.pool.kind == "queue" and keeps_all):
            raise BadInput(
                f"pool.start = 'random': {self.method} with pool.kind = {self.pool.kind!r} has no use for "
                "targets without a label; set pool.start=empty, or pool.kind=queue with moco2 or supmoco"
            )
        if self.views.kind == "crops" and self.views.size != self.encoder.size:
            raise BadInput(f"views.size = {self.views.size} and encoder.size = {self.encoder.size} differ; set both")
        if self.views.kind == "crops" and self.views.local is not None:
            if not getattr(self.loss, "takes_local_views", True):
                raise BadInput(
                    f"views.local: {self.method} takes two views and has no use for local crops; "
                    "set views.local=null, or choose simsiam, supsiam, byol or supbyol"
                )
            if self.views.local.size != self.encoder.size and fixed_size(self.encoder.name):
                raise BadInput(
                    f"views.local.size = {self.views.local.size}: encoder {self.encoder.name} takes "
                    f"{self.encoder.size} px only; set views.local=null, or choose a convolutional encoder"
                )
        if self.train.batch_size % self.train.accumulate:
            raise BadInput(
                f"train.batch_size = {self.train.batch_size} does not divide into "
                f"train.accumulate = {self.train.accumulate} micro-batches"
            )
        if self.train.batch_size // self.train.accumulate < 2:
            raise BadInput(
                f"train.batch_size = {self.train.batch_size} leaves fewer than 2 images a micro-batch; "
                "batch norm needs 2"
            )

    def with_set(self, overrides: Mapping[str, Any], because: str = "--set") -> Recipe:
        """The recipe with dotted fields set, each checked, and their source noted.

        >>> from supancl.recipes import recipe
        >>> recipe("cifar100.supsiam").with_set({"loss.alpha": 0.3}).loss.alpha
        0.3
        """
        changed = self
        size = {key: overrides[key] for key in ("views.size", "encoder.size") if key in overrides}
        if len(size) == 1 and isinstance(self.views, Crops):  # one side length: naming either sets both
            value = next(iter(size.values()))
            changed = replace(
                changed,
                views=replaced(changed.views, "size", value, "views"),
                encoder=replaced(changed.encoder, "size", value, "encoder"),
            )
        rest = {key: value for key, value in overrides.items() if key not in size or len(size) == 2}
        sections: dict[str, Any] = {}
        for dotted, value in rest.items():
            section, _, inner = dotted.partition(".")
            if section in INTERNAL:
                raise BadInput(f"{section} cannot be set; choose another recipe instead (supancl recipes)")
            if not inner or section not in SECTIONS:
                if section == "compat":
                    raise BadInput(
                        f"compat = {value!r} changes more than this field; give --compat, or in Python "
                        "recipe(NAME, compat=...)"
                    )
                if section in SECTIONS:
                    replaced(changed, dotted, value)  # says what is wrong with it
                raise BadInput(f"unknown field {dotted!r}{self._meant(dotted)}")
            try:
                sections[section] = replaced(sections.get(section, getattr(changed, section)), inner, value, section)
            except UnknownField as error:
                raise BadInput(f"unknown field {dotted!r}{self._meant(dotted, error.beside)}") from None
        changed = replace(changed, **sections)
        out = "heads.predictor.out"
        if out in overrides and changed.heads != following(changed.heads):
            raise BadInput(
                f"{out} = {overrides[out]!r} differs from heads.projector.out = "
                f"{changed.heads.projector.out}, and a prediction is compared with a projection; set "
                "heads.projector.out alone, the predictor follows"
            )
        if _draws_in_vain(changed) and not _draws_in_vain(self):  # runs that were kept so are read, and go on
            raise BadInput(
                f"loss.samples = {getattr(changed.loss, 'samples', None)} has no effect with pool.kind = "
                f"{changed.pool.kind!r}, of which no M targets can be drawn; set loss.samples=null, or "
                "pool.kind=queue or class-queues; one call, or one command, may set both"
            )
        both = ("views.size", "encoder.size") if len(size) == 1 and isinstance(self.views, Crops) else ()
        noted = {key: because for key in (*overrides, *both) if self.sources.get(key) != because}
        return validated_recipe(replace(changed, sources={**self.sources, **noted}))

    def fields(self) -> dict[str, tuple[Any, str]]:
        """Each dotted field with its value and where the value comes from."""
        values = flattened(replace(self, sources={}))
        return {key: (value, self._source(key)) for key, value in values.items() if key not in INTERNAL}

    def _meant(self, dotted: str, beside: tuple[str, ...] = ()) -> str:
        """The end of an error about an unknown field: which one may have been meant, or where they are listed."""
        known = sorted({*self.fields(), *beside})
        last = dotted.rpartition(".")[2]
        same = [key for key in known if key.rpartition(".")[2] == last]
        if not same or len(same) > 1:  # the whole name then tells more than its last part
            same = get_close_matches(dotted, same or known, n=1, cutoff=0.8) or same
        if not same:
            ends = get_close_matches(last, {key.rpartition(".")[2] for key in known}, n=1, cutoff=0.7)
            same = [key for key in known if key.rpartition(".")[2] in ends]
        if same:
            return f"; did you mean {' or '.join(map(repr, same))}?"
        within = beside or [f"{section}.*" for section in SECTIONS]
        return f"; known: {', '.join(within)} (supancl recipes {self.name} lists all)"

    def _source(self, dotted: str) -> str:
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            found = self.sources.get(".".join(parts[:length]))
            if found is not None:
                return found
        return OUR_CHOICE

    @property
    def learning_rate(self) -> float:
        """The peak rate at this batch size."""
        return self.optimizer.lr * self.train.batch_size / self.optimizer.reference_batch


INTERNAL = ("name", "method", "paper", "sources")
SECTIONS = ("data", "views", "encoder", "heads", "branches", "pool", "loss", "optimizer", "schedule", "train")


def validated_recipe(recipe: Recipe) -> Recipe:
    """Every value checked; sources of fields it does not have (a contrastive loss has no alpha) are dropped.

    The predictor's width becomes what is built, also of runs whose recipe.json was written with another.
    """
    for name, hint in hints(Recipe).items():
        if name in SECTIONS:
            check_known(name, getattr(recipe, name), hint)
    heads = following(recipe.heads)
    if heads != recipe.heads:
        noted = {"heads.predictor.out": "follows heads.projector.out"}
        recipe = replace(recipe, heads=heads, sources={**recipe.sources, **noted})
    fields = [f"{key}." for key in flattened(replace(recipe, sources={}))]
    sources = {key: text for key, text in recipe.sources.items() if any(f.startswith(f"{key}.") for f in fields)}
    sections = {name: validated(getattr(recipe, name), name) for name in SECTIONS}
    check_size(sections["encoder"])
    return replace(recipe, sources=sources, **sections)


def resolve_warmup(recipe: Recipe) -> Recipe:
    """The recipe with a warm-up of at most half of its epochs, and the reason as its source.

    A run cut short (--epochs 10 of a recipe with 40 warm-up epochs) must still reach its peak rate and decay from it.
    This is not part of `with_set`: a recipe that is first shortened and then lengthened again has its own warm-up.

    >>> from supancl.recipes import recipe
    >>> resolve_warmup(recipe("imagenet100.supsiam").with_set({"train.epochs": 30})).schedule.warmup_epochs
    15
    """
    written, longest = recipe.schedule.warmup_epochs, recipe.train.epochs // 2
    if written <= longest:
        return recipe
    reason = {"schedule.warmup_epochs": f"half of train.epochs: {written} would leave too few to decay in"}
    schedule = replace(recipe.schedule, warmup_epochs=longest)
    return replace(recipe, schedule=schedule, sources={**recipe.sources, **reason})


def describe_resolution(written: Recipe, resolved: Recipe) -> str:
    """One line for the user where `resolve_warmup` changed the recipe; empty where it did not."""
    before, after = written.schedule.warmup_epochs, resolved.schedule.warmup_epochs
    if before == after:
        return ""
    return (
        f"schedule.warmup_epochs = {after} instead of {before}: half of the "
        f"{counted(resolved.train.epochs, 'epoch')}, so that the learning rate reaches its peak and decays"
    )


def _draws_in_vain(recipe: Recipe) -> bool:
    """Whether M is set where nothing is drawn: prototypes hold one target a class, a batch is taken as a whole."""
    draws = type(recipe.pool) is not PoolSpec or recipe.pool.kind in ("queue", "class-queues")
    return type(recipe.loss) is Align and recipe.loss.samples is not None and not draws


def following(heads: HeadSpec) -> HeadSpec:
    """A prediction is compared with a projection: it has the same width."""
    if heads.predictor is None or heads.predictor.out == heads.projector.out:
        return heads
    return replace(heads, predictor=replace(heads.predictor, out=heads.projector.out))


def recipe_from_json(text: str, where: str) -> Recipe:
    """A recipe from the `recipe` object of a recipe.json."""
    try:
        content = json.loads(text)
        stored = content["recipe"]
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{where}: not a recipe.json of supancl") from None
    if not isinstance(stored, dict):
        raise BadInput(f"{where}: not a recipe.json of supancl")
    plugins = content.get("plugins")
    own = own_sections(stored, plugins if isinstance(plugins, list) else ())
    read = from_json(Recipe, {**stored, **{name: STANDINS[name] for name in own}}, "")
    return resolve_warmup(validated_recipe(replace(read, **own)))  # 0.1.0 wrote what was asked for, and ran this


def fixed_size(encoder: str) -> bool:
    """Whether an encoder takes images of one size only, as vision transformers do."""
    if not encoder.startswith("timm:"):
        return encoder in ("vit-small", "linear") or encoder.startswith("torchvision:vit_")
    import timm

    name = encoder.removeprefix("timm:")
    settings = timm.get_pretrained_cfg(name) if timm.is_model(name) else None  # building it is what says it is unknown
    return settings is not None and bool(settings.fixed_input_size)


def row(method: str) -> Method:
    return METHODS[method]
