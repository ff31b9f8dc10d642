"""Names of settings without their section: `epochs` for `train.epochs`, as flags and keyword arguments use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from supancl.errors import BadInput
from supancl.recipes.recipe import Recipe

SET_IN_PYTHON = "set in Python"  # the source of such a value


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with these settings; a name without a dot is the field that ends in it.

    >>> from supancl.recipes import recipe
    >>> changed = with_settings(recipe("cifar100.supsiam"), {"epochs": 10, "alpha": 0.3, "views.size": 64})
    >>> changed.train.epochs, changed.loss.alpha, changed.encoder.size
    (10, 0.3, 64)
    """
    if not settings:
        return recipe
    named = {full_name(recipe, name): _plain(value) for name, value in settings.items()}
    return recipe.with_set(named, because=SET_IN_PYTHON)  # all at once: two fields may be valid only together


def full_name(recipe: Recipe, name: str) -> str:
    """The dotted name of a field; a name that no field ends in is returned as it is, for `with_set` to refuse.

    >>> from supancl.recipes import recipe
    >>> full_name(recipe("cifar100.supsiam"), "lr")
    'optimizer.lr'
    """
    if "." in name:
        return name
    fields = [field for field in recipe.fields() if field.rpartition(".")[2] == name and "." in field]
    if len(fields) > 1:
        raise BadInput(f"{name!r} may be {' or '.join(fields)}; write one of these: **{{{fields[0]!r}: ...}}")
    return fields[0] if fields else name


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, because a grid of values often holds them; a torch.device as its name."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if type(value).__module__ == "torch" else value
