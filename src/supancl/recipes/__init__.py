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
from pathlib import Path
from typing import Any, Literal

from supancl.config import AUTOMATIC, fields_marked, parse_json
from supancl.core.losses import Align, Contrast
from supancl.errors import BadInput, did_you_mean
from supancl.files import did_you_mean_path, read_text, reason
from supancl.recipes import auto, digits, paper
from supancl.recipes.plugins import register as register
from supancl.recipes.plugins import register_benchmark as register_benchmark
from supancl.recipes.plugins import register_encoder as register_encoder
from supancl.recipes.recipe import Recipe as Recipe
from supancl.recipes.recipe import recipe_from_json as recipe_from_json
from supancl.recipes.recipe import validated_recipe
from supancl.recipes.shorthands import with_settings

Compat = Literal["paper", "released-code"]
RECIPES: dict[str, Callable[[], Recipe]] = {**paper.RECIPES, **digits.RECIPES, **auto.RECIPES}


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
        is_data = Path(name).exists()
        hint = f"; to train on it: supancl pretrain --data {name}" if is_data else did_you_mean(name, RECIPES)
        raise BadInput(f"unknown recipe {name!r}{hint}")
    built: Any = RECIPES[name]() if callable(RECIPES[name]) else None
    if not isinstance(built, Recipe):  # of a plugin
        raise BadInput(f"recipe {name!r}: must be a function that returns a Recipe: RECIPES[{name!r}] = lambda: ...")
    built = replace(built, name=name)  # a plugin's may still have the name of the one it copies
    return with_settings(validated_recipe(as_released_code(built) if compat == "released-code" else built), settings)


def find_recipe(requested: Recipe | str | Path, compat: str | None = None, settings: Mapping[str, Any] = {}) -> Recipe:
    """The recipe of this name or in this file, or this recipe, with settings."""
    if isinstance(requested, (str, Path)):
        find: Any = recipe_from_file if is_recipe_file(str(requested)) else recipe
        requested = find(str(requested), *([compat] if compat else []))
    if not isinstance(requested, Recipe):
        raise BadInput(f"{requested!r} is no recipe; give a name such as 'cifar100.supsiam', a file, or a Recipe")
    return with_settings(requested, settings)


def as_released_code(built: Recipe) -> Recipe:
    """Apply what the released code does differently from the paper's text (table in docs/deviations.md).

    Two differences are in the step, which reads `compat`: z1 is pushed, and EMA comes before the target forward.
    All others are fields, so a run keeps the values that it started with.
    """
    is_contrastive, has_momentum_target = isinstance(built.loss, Contrast), built.branches.target == "momentum"
    fields: dict[str, Any] = {"schedule.granularity": "epoch"}
    sources = {"compat": "released code"}
    if is_contrastive and built.heads.predictor is None:  # with a predictor it is App. G's, whose code was not released
        fields |= {"heads.projector.hidden": [None], "heads.projector.norm": "batch", "heads.projector.bias": "auto"}
        sources["heads.projector.hidden"] = "released code: null is the encoder's width"
    if is_contrastive and has_momentum_target and built.pool.kind == "queue":
        fields |= {"pool.start": "random"}
    if isinstance(built.loss, Align) and has_momentum_target:
        fields |= {"heads.projector.bias": "none", "branches.momentum_end": built.branches.momentum}
    changed = built.with_set(fields, because="released code")
    return replace(changed, compat="released-code", sources={**changed.sources, **sources})


# --- recipes in files -------------------------------------------------------------------------------------------------


def is_recipe_file(name: str) -> bool:
    """Whether this names a file or a run folder, not a recipe.

    >>> is_recipe_file("runs/digits/recipe.json"), is_recipe_file("mine.yaml"), is_recipe_file("digits.supsiam")
    (True, True, False)
    """
    has_suffix = name.lower().endswith((".json", ".yaml", ".yml"))
    return name not in RECIPES and (has_suffix or (Path(name) / "recipe.json").is_file())


def recipe_from_file(name: str, compat: Compat | None = None) -> Recipe:
    """The recipe in a file or a run folder, for a new run: what a run chose automatically is chosen again."""
    path = Path(name) / "recipe.json" if Path(name).is_dir() else Path(name)
    content = read_mapping(path)
    try:
        if isinstance(content.get("recipe"), str):
            base = recipe(content.pop("recipe"), compat or content.pop("compat", "paper"))
            return base.with_set(flatten({k: v for k, v in content.items() if k != "compat"}), because=path.name)
        built = recipe_from_json(json.dumps(content), str(path))
    except BadInput as error:
        raise BadInput(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    if compat is not None and compat != built.compat:
        raise BadInput(f"compat {compat} differs from {built.compat!r} in {path}; leave it out")
    return for_new_run(built)


def for_new_run(built: Recipe) -> Recipe:
    """The recipe without what belongs to the run alone: automatic choices, and where it was extended."""
    fresh = {
        key: value
        for key, value in fields_marked(built, AUTOMATIC).items()
        if built.sources.get(key, "automatic").startswith("automatic")
    } | {"schedule.restart_epoch": 0, "schedule.restart_rate": 1.0}
    if built.sources.get("data.short_side", "").startswith("views."):
        fresh["data.short_side"] = None
    kept = {key: text for key, text in built.sources.items() if key not in fresh}
    return replace(built.with_set(fresh), sources=kept)


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
        content = parse_json(text) if path.suffix.lower() == ".json" else parse_yaml(text)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read ({reason(error)}){did_you_mean_path(path)}") from None
    if not isinstance(content, dict) or not isinstance(content.get("recipe"), (str, dict)):
        raise BadInput(f"{path}: names no recipe; give a run's recipe.json, or write recipe: NAME and what to change")
    return content


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, of plain types only. Raises ValueError for anything else."""
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs PyYAML: pip install 'supancl[yaml]', or write JSON") from None
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("it has references (*name), which can grow without bound")
        return parse_json(json.dumps(yaml.safe_load(text)))
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise ValueError(reason(error)) from None
