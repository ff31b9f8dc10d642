"""Every setting of the paper by name: `recipe("cifar100.supsiam")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from supancl.core.losses import Align, Contrast
from supancl.errors import BadInput
from supancl.recipes import auto, cifar, digits, imagenet100, toy, vit
from supancl.recipes.plugins import NotRegistered, register, register_benchmark, register_encoder
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec, recipe_from_json, validated_recipe
from supancl.recipes.shorthands import with_settings

RECIPES: dict[str, Callable[[], Recipe]] = {
    **imagenet100.RECIPES,
    **vit.RECIPES,
    **cifar.RECIPES,
    **toy.RECIPES,
    **digits.RECIPES,
    **auto.RECIPES,
}


def recipe(name: str, compat: Literal["paper", "released-code"] = "paper", **settings: Any) -> Recipe:
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
    from supancl.recipes.recipe_file import is_recipe_file, recipe_from_file

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
