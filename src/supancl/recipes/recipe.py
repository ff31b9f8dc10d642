"""A recipe: one complete, frozen configuration, with the source of each of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
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
    fields_marked,
    flattened,
    from_json,
    hints,
    marked,
    parse_json,
    replaced,
    to_json,
    validated,
)
from supancl.core.losses import Align, Loss, SemiAlign
from supancl.core.schedules import ScheduleSpec
from supancl.core.specs import BranchSpec, EncoderSpec, HeadSpec, PoolSpec, check_size
from supancl.data.splits import DataSpec
from supancl.data.views.specs import Crops, ViewSpec
from supancl.errors import BadInput
from supancl.recipes.plugins import PLACEHOLDERS, build_plugin_sections, check_registered

OUR_CHOICE = "our choice"
# other libraries' names -> fields
FIELD_SYNONYMS = {
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "temperature": "loss.temperature",
    "arch": "encoder.name",
    "backbone": "encoder.name",
}


@dataclass(frozen=True)
class OptimizerSpec:
    """`lr` belongs to `reference_batch`; another batch size scales it linearly (App. F.3)."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Within(0, 1e6, exclusive_low=True)] = marked(0.2, FREE_IN_A_SHARED_STEP)
    reference_batch: Count = marked(128, FREE_IN_A_SHARED_STEP)
    momentum: Fraction = 0.9
    weight_decay: NotNegative = 1e-4  # on every parameter, batch norm and bias included
    # the encoder's rate is this times that of the projector; below 1 for a run that starts from good weights
    encoder_lr_scale: Annotated[float, Within(0, 100)] = 1.0
    freeze_norm: bool = False  # the encoder's batch norms keep the statistics that they start with


@dataclass(frozen=True)
class TrainSpec:
    """How long, with which batch size and on which device to train."""

    epochs: Count = 200
    batch_size: Count = 128
    accumulate: Count = 1  # micro-batches per step; they add up to the batch size
    seed: Annotated[int, Within(0, 2**63 - 1)] = marked(0, INCIDENTAL, FREE_IN_A_SHARED_STEP)
    device: str = marked("auto", INCIDENTAL, FREE_IN_A_SHARED_STEP)  # auto, cpu, cuda or cuda:N
    precision: Literal["auto", "fp32", "bf16"] = marked("auto", AUTOMATIC)  # auto: bf16 on a GPU that has it
    # None: on a GPU, if the run is long enough to repay the minute that compiling takes
    compile: bool | None = marked(None, AUTOMATIC, MAY_CHANGE_ON_RESUME, INCIDENTAL)
    # None: on a GPU the step is captured once and replayed
    replay: bool | None = marked(None, AUTOMATIC, MAY_CHANGE_ON_RESUME, INCIDENTAL)
    sync_norm: bool = True  # batch norm uses the statistics of all ranks
    gradients: Literal["fp32", "bf16"] = "fp32"  # their precision when ranks exchange them
    deterministic: bool = marked(False, INCIDENTAL)
    log_every: Count = marked(10, INCIDENTAL, FREE_IN_A_SHARED_STEP)  # steps
    checkpoint_epochs: Count = marked(1, INCIDENTAL, FREE_IN_A_SHARED_STEP)  # epochs between checkpoints
    # steps; in addition to those at the end of epochs
    checkpoint_every: Count | None = marked(None, INCIDENTAL, FREE_IN_A_SHARED_STEP)
    monitor_every: Natural = marked(1, INCIDENTAL, FREE_IN_A_SHARED_STEP)  # epochs; 0 turns the monitor off
    on_collapse: Literal["warn", "stop"] = marked("warn", MAY_CHANGE_ON_RESUME, INCIDENTAL, FREE_IN_A_SHARED_STEP)
    on_nan: Literal["stop", "skip", "rollback"] = marked("stop", MAY_CHANGE_ON_RESUME, INCIDENTAL)
    # checkpoints of the finished run; while it trains there are two, or with "all" every one
    keep: Literal["one", "none", "all"] = marked("one", MAY_CHANGE_ON_RESUME, INCIDENTAL, FREE_IN_A_SHARED_STEP)


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. `paper` says which setting of the paper it is."""

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
        # getattr: an unregistered loss class lacks these and is refused by name later
        stores_unlabelled = getattr(self.loss, "stores_unlabelled", False)
        if getattr(self.loss, "needs_pool", False) and self.pool.kind == "none":
            setting = (
                f"loss.against = {self.loss.against!r}" if hasattr(self.loss, "against") else f"loss {self.loss.kind!r}"
            )
            raise BadInput(f"{setting} needs a pool; set pool.kind=queue")
        if self.pool.sharded and (self.pool.kind != "prototypes" or stores_unlabelled):
            raise BadInput(
                f"pool.sharded: {self.method} with pool.kind = {self.pool.kind!r} needs the whole pool on "
                "every rank; set pool.sharded=false, or pool.kind=prototypes with supsiam, semi or supbyol"
            )
        if self.pool.start == "random" and not (self.pool.kind == "queue" and stores_unlabelled):
            raise BadInput(
                f"pool.start = 'random': {self.method} with pool.kind = {self.pool.kind!r} does not use "
                "unlabelled targets; set pool.start=empty, or pool.kind=queue with moco2 or supmoco"
            )
        if self.views.kind == "crops" and self.views.size != self.encoder.size:
            raise BadInput(f"views.size = {self.views.size} and encoder.size = {self.encoder.size} differ; set both")
        if self.views.kind == "crops" and self.views.local is not None:
            if not getattr(self.loss, "takes_local_views", True):
                raise BadInput(
                    f"views.local: {self.method} uses two views and no local crops; "
                    "set views.local=null, or choose simsiam, supsiam, semi, byol or supbyol"
                )
            if self.views.local.size != self.encoder.size and has_fixed_size(self.encoder.name):
                raise BadInput(
                    f"views.local.size = {self.views.local.size}: encoder {self.encoder.name} takes "
                    f"{self.encoder.size} px only; set views.local=null, or choose a convolutional encoder"
                )
        if self.train.batch_size % self.train.accumulate:
            raise BadInput(
                f"train.batch_size = {self.train.batch_size} is not divisible by "
                f"train.accumulate = {self.train.accumulate} micro-batches; change one of them"
            )
        if self.train.batch_size // self.train.accumulate < 2:
            raise BadInput(
                f"train.batch_size = {self.train.batch_size} leaves fewer than 2 images per micro-batch; "
                "batch norm needs 2, so raise it or lower train.accumulate"
            )

    def with_set(self, overrides: Mapping[str, Any], because: str = "set") -> Recipe:
        """Return the recipe with dotted fields set and checked; `because` becomes their source.

        >>> from supancl.recipes import recipe
        >>> recipe("cifar100.supsiam").with_set({"loss.alpha": 0.3}).loss.alpha
        0.3
        """
        changed = self
        size = {key: overrides[key] for key in ("views.size", "encoder.size") if key in overrides}
        if len(size) == 1 and isinstance(self.views, Crops):  # setting either sets both
            value = next(iter(size.values()))
            changed = replace(
                changed,
                views=replaced(changed.views, "size", value, "views"),
                encoder=replaced(changed.encoder, "size", value, "encoder"),
            )
        remaining = {key: value for key, value in overrides.items() if key not in size or len(size) == 2}
        sections: dict[str, Any] = {}
        for dotted, value in remaining.items():
            section, _, inner = dotted.partition(".")
            if section in INTERNAL:
                raise BadInput(f"{section} cannot be set; choose another recipe instead (supancl recipes)")
            if not inner or section not in SECTIONS:
                if section == "compat":
                    raise BadInput(
                        f"compat = {value!r} changes several fields; pass compat, or in Python recipe(NAME, compat=...)"
                    )
                if section in SECTIONS:
                    replaced(changed, dotted, value)  # raises with the reason
                raise BadInput(f"unknown field {dotted!r}{self._suggest_field(dotted)}")
            try:
                sections[section] = replaced(sections.get(section, getattr(changed, section)), inner, value, section)
            except UnknownField as error:
                raise BadInput(f"unknown field {dotted!r}{self._suggest_field(dotted, error.siblings)}") from None
            except BadInput as error:
                if inner != "kind":
                    raise
                raise BadInput(f"{error}; for another {section} take a recipe that has it (supancl recipes)") from None
        changed = replace(changed, **sections)
        out = "heads.predictor.out"
        if out in overrides and changed.heads != with_matching_widths(changed.heads):
            raise BadInput(
                f"{out} = {overrides[out]!r} differs from heads.projector.out = "
                f"{changed.heads.projector.out}, but the loss compares the two; set "
                "only heads.projector.out, the predictor follows"
            )
        if _has_unused_samples(changed) and not _has_unused_samples(self):  # existing runs with it are still read
            raise BadInput(
                f"loss.samples = {getattr(changed.loss, 'samples', None)} has no effect with pool.kind = "
                f"{changed.pool.kind!r}, which cannot sample targets; set loss.samples=null, or "
                "pool.kind=queue or class-queues in the same command or call"
            )
        linked = ("views.size", "encoder.size") if len(size) == 1 and isinstance(self.views, Crops) else ()
        new_sources = {key: because for key in (*overrides, *linked) if self.sources.get(key) != because}
        return validated_recipe(replace(changed, sources={**self.sources, **new_sources}))

    def fields(self) -> dict[str, tuple[Any, str]]:
        """Each dotted field with its value and the source of the value."""
        values = flattened(replace(self, sources={}))
        return {key: (value, self._source(key)) for key, value in values.items() if key not in INTERNAL}

    def __str__(self) -> str:
        """A short table; `fields()` has every value with its source."""
        fields = self.fields()
        rows = [f"{name:24} {fields[name][0]}" for name in SHOWN if fields.get(name, ("",))[0] not in (None, "")]
        return "\n".join([f"{self.name}: {self.paper}", *rows])

    def _suggest_field(self, dotted: str, siblings: tuple[str, ...] = ()) -> str:
        """The end of a message about an unknown field: a suggestion, or where valid fields are listed."""
        valid_names = sorted({*self.fields(), *siblings})
        last = dotted.rpartition(".")[2]
        matches = [key for key in valid_names if key.rpartition(".")[2] == last]
        if not matches and FIELD_SYNONYMS.get(last) in valid_names:
            matches = [FIELD_SYNONYMS[last]]
        if not matches or len(matches) > 1:  # then compare whole names
            matches = get_close_matches(dotted, matches or valid_names, n=1, cutoff=0.8) or matches
        if not matches:
            endings = get_close_matches(last, {key.rpartition(".")[2] for key in valid_names}, n=1, cutoff=0.7)
            matches = [key for key in valid_names if key.rpartition(".")[2] in endings]
        if matches:
            return f"; did you mean {' or '.join(map(repr, matches))}?"
        available = siblings or [f"{section}.*" for section in SECTIONS]
        return f"; known: {', '.join(available)} (supancl recipes {self.name} lists all)"

    def _source(self, dotted: str) -> str:
        names = dotted.split(".")
        for length in range(len(names), 0, -1):
            source = self.sources.get(".".join(names[:length]))
            if source is not None:
                return source
        return OUR_CHOICE

    @property
    def learning_rate(self) -> float:
        """The peak rate at this batch size."""
        return self.optimizer.lr * self.train.batch_size / self.optimizer.reference_batch


INTERNAL = ("name", "method", "paper", "sources")
SHOWN = (  # when a recipe is printed
    "method", "data.source", "views.size", "encoder.name", "loss.alpha", "loss.temperature", "pool.kind", "pool.size",
    "branches.target", "branches.momentum", "optimizer.name", "optimizer.lr", "optimizer.weight_decay",
    "schedule.warmup_epochs", "train.epochs", "train.batch_size", "train.seed", "train.device",
)  # fmt: skip
SECTIONS = ("data", "views", "encoder", "heads", "branches", "pool", "loss", "optimizer", "schedule", "train")


def validated_recipe(recipe: Recipe) -> Recipe:
    """Check every value; drop sources of fields that the recipe does not have (a contrastive loss has no alpha).

    The predictor gets the projector's width, also where a recipe.json has another one.
    """
    for name, hint in hints(Recipe).items():
        if name in SECTIONS:
            check_registered(name, getattr(recipe, name), hint)
    heads = with_matching_widths(recipe.heads)
    if heads != recipe.heads:
        reason = {"heads.predictor.out": "follows heads.projector.out"}
        recipe = replace(recipe, heads=heads, sources={**recipe.sources, **reason})
    fields = [f"{key}." for key in flattened(replace(recipe, sources={}))]
    sources = {key: text for key, text in recipe.sources.items() if any(f.startswith(f"{key}.") for f in fields)}
    sections = {name: validated(getattr(recipe, name), name) for name in SECTIONS}
    check_size(sections["encoder"])
    return replace(recipe, sources=sources, **sections)


def resolve_warmup(recipe: Recipe) -> Recipe:
    """Return the recipe with a warm-up of at most half of its epochs; the reason becomes its source.

    A shortened run (--epochs 10 of a recipe with 40 warm-up epochs) must still reach its peak rate and decay from it.
    `with_set` does not do this, so that shortening and then lengthening a recipe restores its warm-up.

    >>> from supancl.recipes import recipe
    >>> resolve_warmup(recipe("imagenet100.supsiam").with_set({"train.epochs": 30})).schedule.warmup_epochs
    15
    """
    requested, max_warmup = recipe.schedule.warmup_epochs, recipe.train.epochs // 2
    if requested <= max_warmup:
        return recipe
    reason = {"schedule.warmup_epochs": f"half of train.epochs: {requested} would leave too few to decay in"}
    schedule = replace(recipe.schedule, warmup_epochs=max_warmup)
    return replace(recipe, schedule=schedule, sources={**recipe.sources, **reason})


def fixed_settings(recipe: Recipe) -> dict[str, Any]:
    """Dotted name -> value as JSON of every setting that a resumed run must have; its data may lie elsewhere."""
    free = {*fields_marked(recipe, MAY_CHANGE_ON_RESUME), "data.source", "data.joined", "sources"}
    return {key: to_json(value) for key, value in flattened(recipe).items() if key not in free}


def first_changed_setting(saved: Mapping[str, Any], recipe: Recipe) -> str | None:
    """The first setting that differs from the saved ones; a field that is newer than those counts with its default."""
    current, defaults = fixed_settings(recipe), fields_marked(recipe, "")
    for key, value in current.items():
        before = saved.get(key, to_json(defaults.get(key, MISSING)))
        if _has_fields(key, saved) or (before is not MISSING and before != value):
            return key
    return next((key for key in saved if _has_fields(key, current)), None)


def _has_fields(key: str, settings: Mapping[str, Any]) -> bool:
    """Whether `key` is a section in these settings, and not null."""
    return any(name.startswith(f"{key}.") for name in settings)


def _has_unused_samples(recipe: Recipe) -> bool:
    """Whether loss.samples is set although the pool cannot sample: prototypes hold one target per class."""
    can_sample = type(recipe.pool) is not PoolSpec or recipe.pool.kind in ("queue", "class-queues")
    is_ours = type(recipe.loss) in (Align, SemiAlign)
    return is_ours and getattr(recipe.loss, "samples", None) is not None and not can_sample


def with_matching_widths(heads: HeadSpec) -> HeadSpec:
    """Give the predictor the projector's output width: the loss compares the two."""
    if heads.predictor is None or heads.predictor.out == heads.projector.out:
        return heads
    return replace(heads, predictor=replace(heads.predictor, out=heads.projector.out))


def recipe_from_json(text: str, location: str) -> Recipe:
    """Read the recipe of a recipe.json; `location` is for messages."""
    try:
        content = parse_json(text)
        stored = content["recipe"]
    except ValueError as error:
        raise BadInput(f"{location}: not a recipe.json of supancl ({error})") from None
    except (KeyError, TypeError):
        raise BadInput(f"{location}: not a recipe.json of supancl") from None
    if not isinstance(stored, dict):
        raise BadInput(f"{location}: not a recipe.json of supancl")
    plugins = content.get("plugins")
    plugin_sections = build_plugin_sections(stored, plugins if isinstance(plugins, list) else ())
    parsed = from_json(Recipe, {**stored, **{name: PLACEHOLDERS[name] for name in plugin_sections}}, "")
    return validated_recipe(replace(parsed, **plugin_sections))


def has_fixed_size(encoder: str) -> bool:
    """Whether an encoder takes images of one size only, like vision transformers."""
    if not encoder.startswith("timm:"):
        return encoder in ("vit-small", "linear") or encoder.startswith("torchvision:vit_")
    import timm

    name = encoder.removeprefix("timm:")
    # an unknown name is reported when it is built
    settings = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return settings is not None and bool(settings.fixed_input_size)
