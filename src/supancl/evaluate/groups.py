"""Which runs are seeds of one recipe: one rule, for `evaluate` and for `tables`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from supancl.config import INCIDENTAL, fields_marked, flattened
from supancl.evaluate.naming import data_name
from supancl.recipes import Recipe


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Every field that makes a run another one.

    The short side is one of them: a run settles it by its views where nobody did, and another one is other pixels.
    """
    ignored = fields_marked(recipe, INCIDENTAL).keys() - {"data.short_side"}
    return {name: value for name, value in flattened(recipe).items() if name not in ignored}


def group_of(recipe: Recipe, fingerprint: str) -> str:
    """The same for runs that differ in their seed alone; the data count by name and fingerprint, wherever they lie.

    The fingerprint is of file names and labels: photos-64 and photos-256 may have the same one.
    """
    data = [data_name(recipe.data.source), fingerprint or recipe.data.source]
    text = json.dumps([settings_of(recipe), data], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
