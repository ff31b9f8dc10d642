"""Which runs are seeds of one recipe: one rule, for `evaluate` and for `tables`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from supancl.config import flattened
from supancl.evaluate.naming import data_name
from supancl.recipes import Recipe

# what makes no other setting of a run: its seed, where and how fast it ran, how often it told or saved something
INCIDENTAL = (
    "sources",
    "paper",
    "train.seed",
    "train.device",
    "train.log_every",
    "train.checkpoint_every",
    "train.monitor_every",
    "train.on_collapse",
    "train.on_nan",
    "train.deterministic",
    "train.compile",
    "train.replay",
    "data.source",
    "data.short_side",
    "data.cache",
    "data.memory_gb",
    "data.skip_bad_images",
)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Every field that makes a run another one.

    The short side is one of them: a run settles it by its views where nobody did, and another one is other pixels.
    """
    return {
        name: value for name, value in flattened(recipe).items() if name not in INCIDENTAL or name == "data.short_side"
    }


def group_of(recipe: Recipe, fingerprint: str) -> str:
    """The same for runs that differ in their seed alone; the data count by name and fingerprint, wherever they lie.

    The fingerprint is of file names and labels: photos-64 and photos-256 may have the same one.
    """
    data = [data_name(recipe.data.source), fingerprint or recipe.data.source]
    text = json.dumps([settings_of(recipe), data], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
