"""Names of results (protocol, data, settings that are not default), and which runs are seeds of one recipe."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import INCIDENTAL, fields_marked, flattened
from supancl.data.opening import absolute_source
from supancl.data.sources.benchmarks import ALIASES, BENCHMARKS
from supancl.evaluation.settings import PROTOCOLS
from supancl.probes.transfer import TransferMetric
from supancl.recipes import Recipe

# key of a result -> its default, by protocol; and how a file name shows it
DEFAULT_SETTINGS = {name: settings.usual() for name, settings in PROTOCOLS.items()}
FILE_NAME_MARKS = {
    "normalize": "unit",
    "layer": "layer-{}",
    **{key: mark for settings in PROTOCOLS.values() for key, mark in settings.marks().items()},
}


def registered_name(source: str) -> str | None:
    """The benchmark's name in NAME@ROOT; None for any other source."""
    name, separator, _ = source.partition("@")
    name = ALIASES.get(name, name)
    return name if separator and name in BENCHMARKS else None


# --- figures ----------------------------------------------------------------------------------------------------------

FIGURES = {"accuracy": "accuracy", "map": "mAP"}  # the main figure of a result by its key -> its name


class Figure(NamedTuple):
    """The main figure of a result in percent: its name, its value, and both ends of its interval if it has one."""

    name: str
    value: float
    interval: list[float] | None


def figure_of(result: Mapping[str, Any]) -> Figure | None:
    """The main figure of a result, or of a baseline or a level in it; None if it has none.

    >>> figure_of({"map": 61.5, "map_interval": [58.0, 64.5]})
    Figure(name='mAP', value=61.5, interval=[58.0, 64.5])
    """
    for key, name in FIGURES.items():
        value = result.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return Figure(name, float(value), result.get(f"{key}_interval"))
    return None


def data_title(data: str, result: Mapping[str, Any]) -> str:
    """What tables call the column of a data set: figures other than accuracies are named.

    >>> data_title("voc", {"map": 61.5}), data_title("pets", {"accuracy": 80.0})
    ('voc (mAP)', 'pets')
    """
    figure = figure_of(result)
    return data if figure is None or figure.name == "accuracy" else f"{data} ({figure.name})"


# --- settings ---------------------------------------------------------------------------------------------------------


def default_metric(source: str) -> TransferMetric:
    """The metric of transfer: that of the benchmark, or top-1 for other sources."""
    name = registered_name(source)
    return "mean-per-class" if name is not None and BENCHMARKS[name].metric == "per_class" else "top-1"


def non_default_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a result that differ from its protocol's defaults.

    >>> non_default_settings({"protocol": "knn", "k": 1, "metric": "cosine"})
    {'k': 1}
    """
    defaults = dict(DEFAULT_SETTINGS.get(str(result.get("protocol")), {}))
    if result.get("by") == "study":
        return {}  # a study measures all its rows with the same settings
    if result.get("protocol") == "transfer":
        defaults["metric"] = default_metric(str(result.get("source") or f"{result.get('data')}@"))
    return {key: result[key] for key, value in defaults.items() if key in result and result[key] != value}


def result_name(base: str, result: Mapping[str, Any]) -> str:
    """The file name of a result: `base`, and the settings that are not default.

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
    """The name of a source: the benchmark's, or the last component of a path."""
    name, separator, _ = source.partition("@")
    if separator and not Path(source).exists():
        data_set = name.rpartition(":")[2].lower()
        return ALIASES.get(data_set, data_set)
    path = Path(source.rpartition(":")[2])
    stem = path.stem if path.suffix.lower() in (".npz", ".csv", ".tar") else path.name
    return _slug(stem) or "data"


def data_label(source: str) -> str:
    """The name of a source in results; a digest is added if it equals a benchmark's name but is not NAME@ROOT."""
    name = data_name(source)
    return f"{name}-{short_digest(source)}" if name in BENCHMARKS and registered_name(source) is None else name


def data_names(sources: Sequence[str]) -> list[str]:
    """A unique name for each source: two folders may have the same last component."""
    names = [data_label(source) for source in sources]
    longer = [
        name if names.count(name) == 1 else f"{data_name(str(Path(source).parent))}-{name}"
        for name, source in zip(names, sources, strict=True)
    ]
    return [name if longer.count(name) == 1 else f"{name}-{i + 1}" for i, name in enumerate(longer)]


def short_digest(source: str) -> str:
    """Six hexadecimal digits that distinguish sources with the same name."""
    return hashlib.sha256(absolute_source(source).encode()).hexdigest()[:6]


def source_of(result: Mapping[str, Any]) -> str:
    """The source of a saved result; empty if it does not say."""
    named_only = result.get("protocol") in ("transfer", "fewshot")  # their `data` is a name
    return str(result.get("source") or ("" if named_only else result.get("data")) or "")


def _slug(text: str) -> str:
    """Letters of any script, digits, dots and dashes; short enough to be part of a file name."""
    text = re.sub(r"[^\w.]+", "-", unicodedata.normalize("NFC", text)).strip("-.")
    return text.encode()[:200].decode(errors="ignore")


# --- seeds of one recipe ----------------------------------------------------------------------------------------------


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """All fields that distinguish runs, except incidental ones.

    data.short_side is included: the default comes from the views, and another value gives other pixels.
    """
    ignored = fields_marked(recipe, INCIDENTAL)
    return {name: value for name, value in flattened(recipe).items() if name not in ignored}


def group_of(recipe: Recipe, fingerprint: str) -> str:
    """A digest that is equal for runs that differ only in their seed; the location of the data does not matter.

    Data are identified by name and fingerprint. The fingerprint covers file names and labels, so photos-64 and
    photos-256 may have the same one.
    """
    data = [data_name(recipe.data.source), fingerprint or recipe.data.source]
    text = json.dumps([settings_of(recipe), data], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
