"""A recipe: one complete, frozen configuration, with the source of each of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from supancl.config import (
    AUTOMATIC,
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
from supancl.core.losses import Loss, SemiAlign
from supancl.core.specs import BranchSpec, EncoderSpec, HeadSpec, PoolSpec, ScheduleSpec, check_size
from supancl.data.spec import DataSpec
from supancl.data.views.specs import ViewSpec
from supancl.errors import BadInput
from supancl.recipes.plugins import PLACEHOLDERS, build_plugin_sections, check_registered

OUR_CHOICE = "our choice"


@dataclass(frozen=True)
class OptimizerSpec:
    """`lr` belongs to `reference_batch`; another batch size scales it linearly (App. F.3)."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Within(0, 1e6, exclusive_low=True)] = 0.2
    reference_batch: Count = 128
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
    seed: Annotated[int, Within(0, 2**63 - 1)] = marked(0, INCIDENTAL)
    device: str = marked("auto", INCIDENTAL)  # auto, cpu, cuda or cuda:N
    precision: Literal["auto", "fp32", "bf16"] = marked("auto", AUTOMATIC)  # auto: bf16 on a GPU that has it
    # None: on a GPU, if the run is long enough to repay the minute that compiling takes
    compile: bool | None = marked(None, AUTOMATIC, MAY_CHANGE_ON_RESUME, INCIDENTAL)
    # None: on a GPU the step is captured once and replayed
    replay: bool | None = marked(None, AUTOMATIC, MAY_CHANGE_ON_RESUME, INCIDENTAL)
    sync_norm: bool = True  # batch norm uses the statistics of all ranks
    gradients: Literal["fp32", "bf16"] = "fp32"  # their precision when ranks exchange them
    deterministic: bool = marked(False, INCIDENTAL)
    log_every: Count = marked(10, INCIDENTAL)  # steps
    checkpoint_epochs: Count = marked(1, INCIDENTAL)  # epochs between checkpoints
    # steps; in addition to those at the end of epochs
    checkpoint_every: Count | None = marked(None, INCIDENTAL)
    monitor_every: Natural = marked(1, INCIDENTAL)  # epochs; 0 turns the monitor off
    on_collapse: Literal["warn", "stop"] = marked("warn", MAY_CHANGE_ON_RESUME, INCIDENTAL)
    # checkpoints of the finished run; while it trains there are two, or with "all" every one
    keep: Literal["one", "none", "all"] = marked("one", MAY_CHANGE_ON_RESUME, INCIDENTAL)


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. `paper` says which setting of the paper it is."""

    name: str
    method: str
    paper: str = field(metadata={INCIDENTAL: True})
    data: DataSpec
    views: ViewSpec
    encoder: EncoderSpec
    heads: HeadSpec
    branches: BranchSpec
    pool: PoolSpec
    loss: Loss
    optimizer: OptimizerSpec
    schedule: ScheduleSpec
    train: TrainSpec
    compat: Literal["paper", "released-code"] = "paper"
    sources: Mapping[str, str] = field(default_factory=dict, metadata={INCIDENTAL: True})

    def __post_init__(self) -> None:
        loss, pool, views, encoder, train = self.loss, self.pool, self.views, self.encoder, self.train
        stores_unlabelled = getattr(loss, "stores_unlabelled", False)  # a class that is not registered lacks it
        local = views.local if views.kind == "crops" else None
        out = self.heads.projector.out
        problems = {
            f"pool.kind = none: the loss of {self.method} needs a pool; set pool.kind=queue": (
                getattr(loss, "needs_pool", False) and pool.kind == "none"
            ),
            "pool.sharded: only prototypes can be sharded; set pool.kind=prototypes": (
                pool.sharded and (pool.kind != "prototypes" or stores_unlabelled)
            ),
            "pool.start = random: only the queue of moco2 and supmoco uses it; set pool.start=empty": (
                pool.start == "random" and not (pool.kind == "queue" and stores_unlabelled)
            ),
            "views.size and encoder.size differ; set both": views.kind == "crops" and views.size != encoder.size,
            "heads.projector.out and heads.predictor.out differ; set both": (
                self.heads.predictor is not None and self.heads.predictor.out != out
            ),
            f"views.local: {self.method} takes no local crops; set views.local=null": (
                local is not None and not getattr(loss, "takes_local_views", True)
            ),
            f"views.local.size: encoder {encoder.name} takes {encoder.size} px only; set views.local=null": (
                local is not None and local.size != encoder.size and has_fixed_size(encoder.name)
            ),
            f"train.batch_size = {train.batch_size}: train.accumulate = {train.accumulate} needs equal micro-batches "
            "of at least 2 images": (train.batch_size % train.accumulate or train.batch_size // train.accumulate < 2),
        }
        if problem := next((text for text, is_there in problems.items() if is_there), None):
            raise BadInput(problem)

    def with_set(self, overrides: Mapping[str, Any], because: str = "set") -> Recipe:
        """Return the recipe with dotted fields set and checked; `because` becomes their source.

        >>> from supancl.recipes import recipe
        >>> recipe("cifar100.supsiam").with_set({"loss.alpha": 0.3}).loss.alpha
        0.3
        """
        changes, fields = dict(overrides), self.fields()
        for pair in LINKED:
            for given, other in (pair, pair[::-1]):
                if given in changes and {given, other} <= fields.keys():
                    changes.setdefault(other, changes[given])
        sections: dict[str, Any] = {}
        for dotted, value in changes.items():
            section, _, inner = dotted.partition(".")
            if section in (*INTERNAL, "compat"):
                raise BadInput(f"{section} cannot be set; choose another recipe or compat (supancl recipes)")
            try:
                if section not in SECTIONS:
                    raise UnknownField
                current = sections.get(section, getattr(self, section))
                sections[section] = (
                    replaced(current, inner, value, section) if inner else replaced(self, section, value)
                )
            except UnknownField:
                raise BadInput(f"unknown field {dotted!r}{self._suggest_field(dotted)}") from None
        changed = replace(self, **sections)
        new_sources = {key: because for key in changes if self.sources.get(key) != because}
        return validated_recipe(replace(changed, sources={**self.sources, **new_sources}))

    def fields(self) -> dict[str, tuple[Any, str]]:
        """Each dotted field with its value and the source of the value."""
        values = flattened(replace(self, sources={}))
        return {key: (value, self._source(key)) for key, value in values.items() if key not in INTERNAL}

    def __str__(self) -> str:
        rows = [f"{name:24} {value}" for name, (value, _) in self.fields().items()]
        return "\n".join([f"{self.name}: {self.paper}", *rows])

    def _suggest_field(self, dotted: str) -> str:
        """The end of a message about an unknown field: those of similar names, or where all are listed."""
        names, last = list(self.fields()), dotted.rpartition(".")[2]
        endings = get_close_matches(last, {name.rpartition(".")[2] for name in names}, n=1, cutoff=0.7)
        matches = [name for name in names if name.rpartition(".")[2] in endings]
        return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else f"; known: {', '.join(SECTIONS)}"

    def _source(self, dotted: str) -> str:
        while dotted and dotted not in self.sources:
            dotted = dotted.rpartition(".")[0]
        return self.sources.get(dotted, OUR_CHOICE)

    @property
    def learning_rate(self) -> float:
        """The peak rate at this batch size."""
        return self.optimizer.lr * self.train.batch_size / self.optimizer.reference_batch


INTERNAL = ("name", "method", "paper", "sources")
LINKED = (("views.size", "encoder.size"), ("heads.projector.out", "heads.predictor.out"))  # setting one sets both
SECTIONS = ("data", "views", "encoder", "heads", "branches", "pool", "loss", "optimizer", "schedule", "train")


def validated_recipe(recipe: Recipe) -> Recipe:
    """Check every value; drop sources of fields that the recipe does not have (a contrastive loss has no alpha)."""
    for name, hint in hints(Recipe).items():
        if name in SECTIONS:
            check_registered(name, getattr(recipe, name), hint)
    fields = "\n".join(f"\n{key}." for key in flattened(replace(recipe, sources={})))
    sources = {key: text for key, text in recipe.sources.items() if f"\n{key}." in fields}
    sections = {name: validated(getattr(recipe, name), name) for name in SECTIONS}
    check_size(sections["encoder"])
    return replace(recipe, sources=sources, **sections)


def resolve_warmup(recipe: Recipe, images: int | None = None) -> Recipe:
    """Return the recipe with a warm-up of at most half of its epochs; the reason becomes its source.

    A shortened run (--epochs 10 of a recipe with 40 warm-up epochs) must still reach its peak rate and decay from it.
    `with_set` does not do this, so that shortening and then lengthening a recipe restores its warm-up. With the number
    of training `images`, `loss.warmup` of `semi` is at most half of the steps too, unless the user set it.

    >>> from supancl.recipes import recipe
    >>> resolve_warmup(recipe("imagenet100.supsiam").with_set({"train.epochs": 30})).schedule.warmup_epochs
    15
    """
    half = recipe.train.epochs // 2
    if recipe.schedule.warmup_epochs > half:
        recipe = recipe.with_set({"schedule.warmup_epochs": half}, because="half of train.epochs, to decay in the rest")
    if images is not None and isinstance(recipe.loss, SemiAlign):
        half = images // recipe.train.batch_size * recipe.train.epochs // 2
        if recipe.loss.warmup > half and recipe.fields()["loss.warmup"][1].startswith(OUR_CHOICE):
            recipe = recipe.with_set(
                {"loss.warmup": half}, because="half of the steps, to use the unlabelled in the rest"
            )
    return recipe


def describe_changes(before: Recipe, after: Recipe) -> list[str]:
    """A line for each setting that was chosen: its value and the reason."""
    old, followers = before.fields(), [follower for _, follower in LINKED]
    return [
        f"  {f'{name} = {value}':32} {why}"
        for name, (value, why) in after.fields().items()
        if old.get(name) != (value, why) and value is not None and name not in followers
    ]


def fixed_settings(recipe: Recipe) -> dict[str, Any]:
    """Dotted name -> value as JSON of every setting that a resumed run must have; its data may lie elsewhere."""
    free = {*fields_marked(recipe, MAY_CHANGE_ON_RESUME), "data.source", "data.joined", "sources"}
    return {key: to_json(value) for key, value in flattened(recipe).items() if key not in free}


def first_changed_setting(saved: Mapping[str, Any], recipe: Recipe) -> str | None:
    """The first setting that differs from the saved ones; a field that is newer than those counts with its default."""
    current, defaults = fixed_settings(recipe), fields_marked(recipe, "")
    for key in {**current, **saved}:
        before = saved.get(key, to_json(defaults.get(key, MISSING)))
        if key not in current or (before is not MISSING and before != current[key]):
            return key
    return None


def recipe_from_json(text: str, location: str) -> Recipe:
    """Read the recipe of a recipe.json; `location` is for messages."""
    try:
        content = parse_json(text)
        stored = dict(content["recipe"])
        if isinstance(train := stored.get("train"), dict):
            stored["train"] = {key: value for key, value in train.items() if key != "on_nan"}  # of 0.2.0
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{location}: not a recipe.json of supancl ({error})") from None
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
