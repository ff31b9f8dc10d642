"""Every setting of the paper by name: `recipe("cifar100.supsiam")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from supancl.errors import BadInput, nearest
from supancl.recipes import cifar, digits, imagenet100, toy, vit
from supancl.recipes.own import NotRegistered, register
from supancl.recipes.recipe import OptimizerSpec, Recipe, TrainSpec, recipe_from_json, validated_recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    **imagenet100.RECIPES,
    **vit.RECIPES,
    **cifar.RECIPES,
    **toy.RECIPES,
    **digits.RECIPES,
}


def recipe(name: str, compat: Literal["paper", "released-code"] = "paper") -> Recipe:
    """The recipe of that name; `compat="released-code"` selects what the authors' code does (docs/deviations.md).

    >>> recipe("imagenet100.supsiam").loss.alpha
    0.5
    """
    if name not in RECIPES:
        parts = [known for known in RECIPES if name in known.split(".")]  # a method, or a setting, alone
        if parts:
            raise BadInput(f"unknown recipe {name!r}; did you mean {', '.join(parts[:-1])} or {parts[-1]}?")
        raise BadInput(f"unknown recipe {name!r}{nearest(name, RECIPES)}")
    built = replace(RECIPES[name](), name=name)  # one's own may have kept the name of the recipe it was made from
    if compat == "released-code":
        built = released(built)
    return validated_recipe(built)


def released(built: Recipe) -> Recipe:
    """What the released code does where it differs from the paper's text.

    The loop reads `compat` for the two differences of the step (z1 is pushed; EMA comes before the target
    forward); the rate that changes once an epoch is a field like any other.
    """
    sources = {**built.sources, "schedule.granularity": "released code", "compat": "released code"}
    return replace(
        built, compat="released-code", schedule=replace(built.schedule, granularity="epoch"), sources=sources
    )


__all__ = ["RECIPES", "NotRegistered", "OptimizerSpec", "Recipe", "TrainSpec", "recipe", "recipe_from_json", "register",
           "released"]
