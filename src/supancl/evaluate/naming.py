"""What results are called (protocol, data, unusual settings), and which runs are seeds of one recipe."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supancl.config import INCIDENTAL, fields_marked, flattened
from supancl.data.opening import absolute_source
from supancl.data.sources.benchmarks import ALIASES, BENCHMARKS
from supancl.evaluate.feature_cache import VERSION
from supancl.probes.transfer import TransferMetric
from supancl.recipes import Recipe

_FEATURE_DEFAULTS = {"layer": "pooled", "normalize": False}
# what `evaluate PROTOCOL` does unless told otherwise, under the names that a result has for it
DEFAULT_SETTINGS: dict[str, dict[str, Any]] = {
    "knn": {
        "k": 20,
        "temperature": 0.1,
        "metric": "cosine",
        "leave_one_out": False,
        "split": "held-out",
        "view": "margin",
        **_FEATURE_DEFAULTS,
    },
    "linear": {
        "probe": "lbfgs",
        "augmented": False,
        "epochs": 100,
        "lr": 30.0,
        "batch_size": 256,
        "seed": 0,
        "split": "held-out",
        "view": "margin",
        **_FEATURE_DEFAULTS,
    },
    "variance": {"split": "held-out", "view": "margin", "layer": "pooled"},  # always of unit features
    "transfer": {"metric": "top-1", "view": "whole", **_FEATURE_DEFAULTS},
    "fewshot": {
        "queries": 16,
        "fill_queries": False,
        "episodes": 2000,
        "seed": 0,
        "view": "whole",
        **_FEATURE_DEFAULTS,
    },
    "finetune": {
        "epochs": 20,
        "batch_size": 64,
        "lrs": [0.01, 0.1, 1.0],
        "weight_decay": 1e-4,
        "seed": 0,
        "split": "held-out",
    },
}
# how a file name shows a setting; settings that are not listed appear as their value alone
FILE_NAME_MARKS = {
    "k": "k{}",
    "temperature": "t{}",
    "leave_one_out": "loo",
    "normalize": "unit",
    "augmented": "augmented",
    "epochs": "e{}",
    "lr": "lr{}",
    "lrs": "lr{}",
    "batch_size": "b{}",
    "weight_decay": "wd{}",
    "seed": "seed{}",
    "queries": "q{}",
    "fill_queries": "filled",
    "episodes": "ep{}",
    "layer": "layer-{}",
}


def registered_name(source: str) -> str | None:
    """The registry's name of NAME@ROOT; None for any other source."""
    name, separator, _ = source.partition("@")
    name = ALIASES.get(name, name)
    return name if separator and name in BENCHMARKS else None


# --- settings ---------------------------------------------------------------------------------------------------------


def default_metric(source: str) -> TransferMetric:
    """Of transfer: as the registry has it for its data sets, top-1 for others."""
    name = registered_name(source)
    return "mean-per-class" if name is not None and BENCHMARKS[name].metric == "per_class" else "top-1"


def non_default_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in which a result differs from what its protocol does by itself.

    >>> non_default_settings({"protocol": "knn", "k": 1, "metric": "cosine"})
    {'k': 1}
    """
    defaults = dict(DEFAULT_SETTINGS.get(str(result.get("protocol")), {}))
    if result.get("by") == "study":
        return {}  # a study measures its rows in one way of its own
    if result.get("protocol") == "transfer":
        defaults["metric"] = default_metric(str(result.get("source") or f"{result.get('data')}@"))
    return {key: result[key] for key, value in defaults.items() if key in result and result[key] != value}


def result_name(base: str, result: Mapping[str, Any]) -> str:
    """The file that a result belongs in: its plain name, and what is unusual about it.

    >>> result_name("knn", {"protocol": "knn", "k": 1, "leave_one_out": True})
    'knn-k1-loo'
    """
    words = [base]
    for key, value in non_default_settings(result).items():
        text = "_".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        words.append(_slug(FILE_NAME_MARKS.get(key, "{}").format(text)))
    return "-".join(words)


# --- data -------------------------------------------------------------------------------------------------------------


def data_name(source: str) -> str:
    """What a source is called: the registry's name, or the last part of a path."""
    name, separator, _ = source.partition("@")
    if separator and not Path(source).exists():
        data_set = name.rpartition(":")[2].lower()
        return ALIASES.get(data_set, data_set)
    path = Path(source.rpartition(":")[2])
    stem = path.stem if path.suffix.lower() in (".npz", ".csv", ".tar") else path.name
    return _slug(stem) or "data"


def data_label(source: str) -> str:
    """What a result is called after; the registry's names are for NAME@ROOT alone, others of that name get a mark."""
    name = data_name(source)
    return f"{name}-{short_digest(source)}" if name in BENCHMARKS and registered_name(source) is None else name


def data_names(sources: Sequence[str]) -> list[str]:
    """A name of its own for each source: two folders may have the same last part."""
    names = [data_label(source) for source in sources]
    longer = [
        name if names.count(name) == 1 else f"{data_name(str(Path(source).parent))}-{name}"
        for name, source in zip(names, sources, strict=True)
    ]
    return [name if longer.count(name) == 1 else f"{name}-{i + 1}" for i, name in enumerate(longer)]


def short_digest(source: str) -> str:
    """Six digits that distinguish sources of one name."""
    return hashlib.sha256(absolute_source(source).encode()).hexdigest()[:6]


def source_of(result: Mapping[str, Any]) -> str:
    """The source that a saved result is of; empty where it does not say."""
    named_only = result.get("protocol") in ("transfer", "fewshot")  # their `data` is a name
    return str(result.get("source") or ("" if named_only else result.get("data")) or "")


def _slug(text: str) -> str:
    """Letters of any script, each in one piece; no longer than a file name may be with what stands around it."""
    text = re.sub(r"[^\w.]+", "-", unicodedata.normalize("NFC", text)).strip("-.")
    return text.encode()[:200].decode(errors="ignore")


def has_old_crop(result: Mapping[str, Any]) -> bool:
    """Whether a result was measured through the evaluation crop of 0.1.0, which began at half pixels."""
    return result.get("view") == "margin" and result.get("features_version", 1) < VERSION


# --- seeds of one recipe ----------------------------------------------------------------------------------------------


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Every field that makes a run another one.

    The short side is one of them: a run settles it by its views where nobody did, and another one is other pixels.
    """
    ignored = fields_marked(recipe, INCIDENTAL)
    return {name: value for name, value in flattened(recipe).items() if name not in ignored}


def group_of(recipe: Recipe, fingerprint: str) -> str:
    """The same for runs that differ in their seed alone; the data count by name and fingerprint, wherever they lie.

    The fingerprint is of file names and labels: photos-64 and photos-256 may have the same one.
    """
    data = [data_name(recipe.data.source), fingerprint or recipe.data.source]
    text = json.dumps([settings_of(recipe), data], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
