"""Which runs are seeds of one recipe: one rule, for `evaluate` and for `tables`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from supancl.config import flattened
from supancl.recipes import Recipe

# what makes no other setting of a run: its seed, where and how fast it ran, how often it told or saved something
INCIDENTAL = ("sources", "paper", "train.seed", "train.device", "train.log_every", "train.checkpoint_every",
              "train.monitor_every", "train.on_collapse", "train.on_nan", "train.deterministic", "train.compile",
              "train.replay", "data.source", "data.short_side", "data.cache", "data.memory_gb", "data.skip_bad_images")


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Every field that makes a run another one."""
    return {name: value for name, value in flattened(recipe).items() if name not in INCIDENTAL}


def group_of(recipe: Recipe, fingerprint: str) -> str:
    """The same for runs that differ in their seed alone; the data count by their fingerprint, wherever they lie."""
    text = json.dumps([settings_of(recipe), fingerprint or recipe.data.source], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
