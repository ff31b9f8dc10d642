"""Results as flat rows: one number of one encoder, and how it was measured as fields. Tables are pivots of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from supancl.evaluation.certainty import RANDOM
from supancl.evaluation.naming import DEFAULT_SETTINGS, non_default_settings, source_of
from supancl.runs.folder import RunFolder
from supancl.runs.log import has_collapsed
from supancl.stats import seed_stats
from supancl.training.run import read_results

LARGEST = 1e100  # a larger number in a log or a result is damage
METRICS = ("accuracy", "map", "within", "ratio", "AP", "AP50")
LEAST_GAIN = "least gain"  # the lower end of the interval of the difference from random weights
CONDITIONS = ("base", "by", "split", "judged", "chosen_on", "partial", "overlaps_training", "default_k")
K = TypeVar("K", bound=Hashable)


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
    """Mean and sample standard deviation over n rows."""

    mean: float
    sd: float
    n: int


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


def grouped(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    """The rows by a key, in the order in which keys first occur."""
    groups: dict[K, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def average(values: Sequence[float]) -> Average:
    """Mean over seeds; nan if there is no value, and no deviation of one.

    >>> average([70.0, 71.0, 72.0])
    Average(mean=71.0, sd=1.0, n=3)
    """
    return Average(*seed_stats(values), len(values))
