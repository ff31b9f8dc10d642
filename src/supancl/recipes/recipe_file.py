"""A recipe from a file: the recipe.json of a run, or a short list of settings as JSON or YAML.

recipe: cifar100.supsiam
loss:
  alpha: 0.3
train.epochs: 50
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from supancl.config import AUTOMATIC, fields_marked, parse_json
from supancl.errors import BadInput
from supancl.files import did_you_mean_path, read_text, reason
from supancl.recipes import RECIPES, Recipe, recipe, recipe_from_json

SUFFIXES = (".json", ".yaml", ".yml")
Compat = Literal["paper", "released-code"]


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
