"""Every setting of the paper by name: `recipe("cifar100.supsiam")`; or a recipe from a file.

A file is the recipe.json of a run, or a short list of settings as JSON or YAML:

recipe: cifar100.supsiam
loss:
  alpha: 0.3
train.epochs: 50
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from supancl.config import AUTOMATIC, fields_marked, parse_json
from supancl.core.losses import Align, Contrast
from supancl.errors import BadInput
from supancl.files import did_you_mean_path, read_text, reason
from supancl.recipes import auto, cifar, digits, imagenet100, toy, vit
from supancl.recipes.plugins import NotRegistered, register, register_benchmark, register_encoder
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec, recipe_from_json, validated_recipe
from supancl.recipes.shorthands import with_settings

SUFFIXES = (".json", ".yaml", ".yml")
Compat = Literal["paper", "released-code"]

RECIPES: dict[str, Callable[[], Recipe]] = {
    **imagenet100.RECIPES,
    **vit.RECIPES,
    **cifar.RECIPES,
    **toy.RECIPES,
    **digits.RECIPES,
    **auto.RECIPES,
}


def recipe(name: str, compat: Compat = "paper", **settings: Any) -> Recipe:
    """The recipe of that name, with `settings` changed.

    A method alone is its recipe for any images: `supsiam` is `auto.supsiam`. A setting is a field's dotted name
    (`**{"views.size": 64}`), or its last part where only one field has it (`epochs=2`). `supancl recipes NAME` lists
    the fields. `compat="released-code"` selects what the authors' code does (docs/deviations.md).

    >>> recipe("imagenet100.supsiam").loss.alpha
    0.5
    >>> recipe("digits.supsiam", epochs=2).train.epochs
    2
    """
    name = f"auto.{name}" if f"auto.{name}" in RECIPES else name
    if name not in RECIPES:
        # NAME may be a method or a setting only
        matches = [candidate for candidate in RECIPES if name in candidate.split(".")]
        if matches:
            raise BadInput(
                f"unknown recipe {name!r}; did you mean "
                f"{' or '.join(filter(None, (', '.join(matches[:-1]), matches[-1])))}?"
            )
        if Path(name).exists():
            raise BadInput(
                f"unknown recipe {name!r}; it is a file or folder: to train on it, supancl pretrain --data {name}"
            )
        close_matches = get_close_matches(name, RECIPES, n=1, cutoff=0.5)
        families = dict.fromkeys(f"{candidate.partition('.')[0]}.METHOD" for candidate in RECIPES)
        hint = f"known: {', '.join(families)} (supancl recipes lists them all; for your own pass --plugin FILE)"
        raise BadInput(
            f"unknown recipe {name!r}; " + (f"did you mean {close_matches[0]!r}?" if close_matches else hint)
        )
    built = replace(build_recipe(name), name=name)  # a plugin's may still have the name of the one it copies
    if compat == "released-code":
        built = as_released_code(built)
    return with_settings(validated_recipe(built), settings)


def find_recipe(requested: Recipe | str | Path, compat: str | None = None, settings: Mapping[str, Any] = {}) -> Recipe:
    """The recipe of this name or in this file, or this recipe, with settings."""
    if isinstance(requested, Recipe):
        return with_settings(requested, settings)
    if not isinstance(requested, (str, Path)):
        kind = type(requested).__name__
        raise BadInput(f"the recipe is of type {kind}; give a name such as 'cifar100.supsiam', a file, or a Recipe")
    if is_recipe_file(str(requested)):
        return with_settings(recipe_from_file(str(requested), compat), settings)  # type: ignore[arg-type]
    return recipe(str(requested), compat or "paper", **settings)  # type: ignore[arg-type]


def build_recipe(name: str) -> Recipe:
    """What the function of this name in RECIPES returns; a plugin's may be no function, or return something else."""
    build: Any = RECIPES[name]
    built = build() if callable(build) else None
    if not isinstance(built, Recipe):
        raise BadInput(f"recipe {name!r}: must be a function that returns a Recipe: RECIPES[{name!r}] = lambda: ...")
    return built


def as_released_code(built: Recipe) -> Recipe:
    """Apply what the released code does differently from the paper's text (table in docs/deviations.md).

    Two differences are in the step, which reads `compat`: z1 is pushed, and EMA comes before the target forward.
    All others are fields, so a run keeps the values that it started with.
    """
    is_contrastive, has_momentum_target = isinstance(built.loss, Contrast), built.branches.target == "momentum"
    fields: dict[str, Any] = {"schedule.granularity": "epoch"}
    if is_contrastive and built.heads.predictor is None:  # with a predictor it is App. G's, whose code was not released
        fields |= {"heads.projector.hidden": [None], "heads.projector.norm": "batch", "heads.projector.bias": "auto"}
    if is_contrastive and has_momentum_target and built.pool.kind == "queue":
        fields |= {"pool.start": "random"}
    if isinstance(built.loss, Align) and has_momentum_target:
        fields |= {"heads.projector.bias": "none", "branches.momentum_end": built.branches.momentum}
    sources = {"compat": "released code", "heads.projector.hidden": "released code: null is the encoder's width"}
    changed = built.with_set(fields, because="released code")
    return replace(
        changed,
        compat="released-code",
        sources={**changed.sources, **{key: text for key, text in sources.items() if key == "compat" or key in fields}},
    )


# --- recipes in files -------------------------------------------------------------------------------------------------


def is_recipe_file(name: str) -> bool:
    """Whether this names a file or a run folder, not a recipe.

    >>> is_recipe_file("runs/digits/recipe.json"), is_recipe_file("mine.yaml"), is_recipe_file("digits.supsiam")
    (True, True, False)
    """
    return name not in RECIPES and (name.lower().endswith(SUFFIXES) or (Path(name) / "recipe.json").is_file())


def recipe_from_file(name: str, compat: Compat | None = None) -> Recipe:
    """The recipe in a file or a run folder, for a new run: what a run chose automatically is chosen again."""
    path = Path(name) / "recipe.json" if Path(name).is_dir() else Path(name)
    content = read_mapping(path)
    if isinstance(content.get("recipe"), str):
        settings = {key: value for key, value in content.items() if key not in ("recipe", "compat")}
        base = recipe(content["recipe"], compat or content.get("compat", "paper"))
        try:
            return base.with_set(flatten(settings), because=path.name)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None
    if not isinstance(content.get("recipe"), dict):
        raise BadInput(
            f"{path}: names no recipe; give the recipe.json of a run, or write recipe: NAME and what to change"
        )
    try:
        built = recipe_from_json(json.dumps(content), str(path))
    except BadInput as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    if compat is not None and compat != built.compat:
        raise BadInput(f"compat {compat} differs from {built.compat!r} in {path}; leave it out")
    return for_new_run(built)


def for_new_run(built: Recipe) -> Recipe:
    """The recipe without what belongs to the run alone: automatic choices, and where it was extended."""
    automatic = {
        key: value
        for key, value in fields_marked(built, AUTOMATIC).items()
        if built.sources.get(key, "automatic").startswith("automatic")
    }
    if built.sources.get("data.short_side", "").startswith("views."):
        automatic["data.short_side"] = None
    restart = {f"schedule.{name}": value for name, value in (("restart_epoch", 0), ("restart_rate", 1.0))}
    fresh = built.with_set({**automatic, **restart})
    sources = {key: text for key, text in fresh.sources.items() if key not in {**automatic, **restart}}
    return replace(fresh, sources=sources)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested and dotted settings by their dotted names.

    >>> flatten({"loss": {"alpha": 0.3}, "train.epochs": 5})
    {'loss.alpha': 0.3, 'train.epochs': 5}
    """
    leaves: dict[str, Any] = {}
    for key, value in settings.items():
        leaves |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def read_mapping(path: Path) -> dict[str, Any]:
    """The JSON or YAML object in a file."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        hint = did_you_mean_path(path) or "; give the recipe.json of a run, or a file with recipe: NAME and settings"
        raise BadInput(f"{path} cannot be read ({reason(error)}){hint}") from None
    try:
        content = parse_json(text) if path.suffix.lower() == ".json" else parse_yaml(text, path)
    except ValueError as error:
        raise BadInput(f"{path}: not valid {path.suffix[1:].upper()} ({error}); correct it") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: holds no settings; write recipe: NAME, and below it what to change")
    return content


def parse_yaml(text: str, path: Path) -> Any:
    """The value of a YAML text, of plain types only. Raises ValueError for anything else."""
    try:
        import yaml
    except ImportError:
        raise BadInput(f"{path}: YAML needs PyYAML: pip install 'supancl[yaml]', or write the file as JSON") from None
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("it has references (*name), which can grow without bound")
        return parse_json(json.dumps(yaml.safe_load(text)))
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ValueError(reason(error)) from None


__all__ = [
    "RECIPES",
    "NotRegistered",
    "OptimizerSpec",
    "Recipe",
    "TrainSpec",
    "as_released_code",
    "recipe",
    "recipe_from_json",
    "register",
    "register_benchmark",
    "register_encoder",
]
