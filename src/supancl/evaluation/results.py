"""Results: their names and settings, their main figure, and as flat rows of which tables are pivots.

A row is one number of one encoder, and how it was measured as fields.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from supancl.config import INCIDENTAL, fields_marked, flattened
from supancl.data.opening import absolute_source
from supancl.data.sources.benchmark_rows import ALIASES, BENCHMARKS
from supancl.evaluation import PROTOCOLS
from supancl.recipes import Recipe
from supancl.runs.folder import RunFolder
from supancl.runs.log import has_collapsed
from supancl.stats import seed_stats, t_half_width
from supancl.training.run import read_results

RANDOM, START = "random weights", "its start"  # what an encoder is compared with
LEAST_GAIN = "least gain"  # the lower end of the interval of the difference from random weights
LARGEST = 1e100  # a larger number in a log or a result is damage
METRICS = ("accuracy", "map", "within", "ratio", "AP", "AP50")
CONDITIONS = ("base", "by", "split", "judged", "chosen_on", "partial", "overlaps_training", "default_k")
FIGURES = {"accuracy": "accuracy", "map": "mAP"}  # the main figure of a result by its key -> its name
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# key of a result -> its default, by protocol
DEFAULT_SETTINGS = {name: settings.usual() for name, settings in PROTOCOLS.items()}


def registered_name(source: str) -> str | None:
    """The benchmark's name in NAME@ROOT; None for any other source."""
    name, separator, _ = source.partition("@")
    name = ALIASES.get(name, name)
    return name if separator and name in BENCHMARKS else None


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


def figure_text(result: Mapping[str, Any]) -> str:
    """`66.67% [39.1, 86.2]`, with `mAP ` before it if it is one; of episodes `36.05% ± 0.39`."""
    figure = figure_of(result)
    assert figure is not None
    name = "" if figure.name == "accuracy" else f"{figure.name} "
    ends = "" if figure.interval is None else " [{:.1f}, {:.1f}]".format(*figure.interval)
    half = f" ± {result['interval']:.2f}" if "interval" in result else ""
    return f"{name}{figure.value:.2f}%{half}{ends}"


# --- settings ---------------------------------------------------------------------------------------------------------


def default_metric(source: str) -> Literal["top-1", "mean-per-class"]:
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

    >>> result_name("knn", {"protocol": "knn", "k": 1, "leave_one_out": True, "metric": "l2"})
    'knn-k1-l2-leave_one_out'
    """
    words = [base]
    for key, value in non_default_settings(result).items():
        text = "_".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(_slug(key if value is True else text if isinstance(value, str) else f"{key}{text}"))
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


def data_label(source: str, others: Sequence[str] = ()) -> str:
    """The name of a source in results, with a digest if others or a benchmark (unless it is NAME@ROOT) have it too."""
    name = data_name(source)
    is_taken = name in BENCHMARKS and registered_name(source) is None
    is_taken |= any(data_name(other) == name for other in others if other != source)
    return f"{name}-{short_digest(source)}" if is_taken else name


def data_set_of(source: str) -> str | None:
    """The benchmark that has the name of a source, such as cifar100 for torchvision:CIFAR100@data."""
    name = data_name(source)
    return name if name in BENCHMARKS else None


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


def group_of(recipe: Recipe, fingerprint: str) -> str:
    """A digest that is equal for runs that differ only in their seed; the location of the data does not matter.

    Data are identified by name and fingerprint. The fingerprint covers file names and labels, so photos-64 and
    photos-256 may have the same one.
    """
    ignored = fields_marked(recipe, INCIDENTAL)
    settings = {name: value for name, value in flattened(recipe).items() if name not in ignored}
    data = [data_name(recipe.data.source), fingerprint or recipe.data.source]
    text = json.dumps([settings, data], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A number, of which encoder it is, on which data it was measured, and how."""

    encoder: str  # its run folder, or its file
    data: str  # source, or name of the data set
    protocol: str  # knn, linear, variance, transfer, fewshot, finetune, detect, toy; training and monitor: of the log
    metric: str
    value: float
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the protocol, and which images were evaluated
    interval: float = math.nan  # half a 95% interval
    images: int | None = None
    group: str = ""  # equal for runs that differ only in their seed
    seed: int | None = None
    digest: str = ""  # of the encoder's weights
    name: str = ""  # of the result's file

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that are not the protocol's defaults."""
        return non_default_settings({"protocol": self.protocol, "data": self.data, **self.settings})


class Average(NamedTuple):
    """The mean of n values, their sample standard deviation, and half a 95% interval; nan: unknown."""

    mean: float
    sd: float = math.nan
    interval: float = math.nan
    n: int = 1


def numbers(rows: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """The numbers of this name; a row without it, or with something else there, has none."""
    values = [row.get(key) for row in rows]
    return [float(value) for value in values if isinstance(value, (int, float)) and abs(value) <= LARGEST]


def rows_of_result(name: str, result: Mapping[str, Any], encoder: str = "") -> list[Row]:
    """A row for each number of a result of `supancl evaluate`."""
    protocol = str(result.get("protocol") or name.partition("-")[0])
    kept = {*DEFAULT_SETTINGS.get(protocol, ()), *CONDITIONS}
    images = numbers([result], "tested_images") or numbers([result], "queries")
    values = [(metric, value) for metric in METRICS for value in numbers([result], metric)]
    for baseline in result.get("baselines") or ():
        if baseline["name"] == RANDOM:
            values.append((LEAST_GAIN, baseline["difference_interval"][0]))
    row = Row(
        str(result.get("encoder") or encoder),
        source_of(result),
        protocol,
        "",
        math.nan,
        {key: result[key] for key in kept if key in result},
        next(iter(numbers([result], "interval")), math.nan),
        int(images[0]) if images else None,
        digest=str(result.get("weights") or ""),
        name=str(result.get("base", name)),
    )
    return [replace(row, metric=metric, value=value) for metric, value in values]


def rows_of_log(path: Path) -> list[Row]:
    """The losses of a run's last epoch, and what the monitor saw last."""
    folder = RunFolder(path)
    log, collapsed = folder.metrics(), has_collapsed(folder)
    train, checks = ([row for row in log if row["kind"] == kind] for kind in ("train", "monitor"))
    rows = [] if collapsed is None else [Row(str(path), "", "monitor", "collapsed", float(collapsed))]
    for name in ("ssl", "sup"):
        values = numbers((row for row in train if row["epoch"] == train[-1]["epoch"]), name)
        if values:
            rows.append(Row(str(path), "", "training", name, statistics.fmean(values)))
    for name, key in {"knn": "knn", "within": "s_w", "ratio": "s_w/s_t"}.items():
        rows += [Row(str(path), "", "monitor", name, value) for value in numbers(checks, key)[-1:]]
    return rows


def read_rows(path: Path) -> list[Row]:
    """The rows of every result in a run folder."""
    return [row for name, result in read_results(path).items() for row in rows_of_result(name, result, str(path))]


def grouped(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The rows by a key, in the order in which keys first occur."""
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def average(values: Sequence[float]) -> Average:
    """Over seeds; nan if there is no value.

    >>> [round(value, 2) for value in average([70.0, 71.0, 72.0])]
    [71.0, 1.0, 2.48, 3]
    """
    mean, sd = seed_stats(values)
    return Average(mean, sd, t_half_width(sd, len(values)) if len(values) > 1 else math.nan, len(values))
