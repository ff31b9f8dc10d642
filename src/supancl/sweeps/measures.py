"""Measure the runs of a sweep or a table by the protocols of `supancl evaluate`, and reuse results on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supancl.core.precision import pick_device
from supancl.data.opening import is_same_source
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions, SourceCache, open_evaluated_encoder
from supancl.evaluation.protocols import evaluate
from supancl.evaluation.rows import Row, average, rows_of_log, rows_of_result
from supancl.evaluation.settings import PROTOCOLS as SETTINGS
from supancl.probes.knn import DEFAULT_K
from supancl.reporter import warn
from supancl.reports.tables import mean_text
from supancl.runs.folder import RunFolder
from supancl.sweeps.runner import Runs, Sweep, run_name
from supancl.training.run import read_result

# measure -> protocol and metric of its row
MEASURES = {
    "knn": ("knn", "accuracy"),
    "linear": ("linear", "accuracy"),
    "ratio": ("variance", "ratio"),
    "knn_map": ("knn", "map"),  # of images with several labels
    "linear_map": ("linear", "map"),
}
FREE_SETTINGS = {"split", "probe", "layer", "k"}  # that a Measurement may vary
Result = dict[str, Any]
Labels = Mapping[str, Mapping[str, Any]]  # row -> fields that name it in results, such as {"alpha": 0.5}
Titles = Mapping[str, tuple[str, int]]  # measure -> title and decimals


@dataclass(frozen=True)
class Measurement:
    """One call of a protocol: on the run's own data, or on `source`."""

    protocol: str
    split: str = "held-out"
    probe: str = "lbfgs"
    layer: str = "pooled"
    source: str | None = None
    k: int | None = DEFAULT_K  # of knn; None: as many as suit the references

    def matches(self, row: Row, run_source: str, weights: str) -> bool:
        """Whether a saved row is this measurement of an encoder with these weights."""
        settings = row.settings
        k = settings.get("default_k") if self.k is None else self.k
        wanted = {"layer": self.layer, "probe": self.probe, "k": k}
        return (
            (row.protocol, row.digest) == (self.protocol, weights)
            and is_same_source(row.data, self.source or run_source)
            and all(settings[name] == value for name, value in wanted.items() if name in settings)
            and self.split in (settings.get("split"), "test" if settings.get("judged") == "test" else "")
            and not set(row.changed) - FREE_SETTINGS
        )

    def measure(self, evaluated: EvaluatedEncoder) -> dict[str, Any]:
        """Run the protocol; its result is also saved in the run folder."""
        own = {"k": self.k} if self.protocol == "knn" else {"probe": self.probe} if self.protocol == "linear" else {}
        return evaluate(evaluated, SETTINGS[self.protocol].given({**own, "split": self.split}), self.source)


class RunEvaluator:
    """Measures runs one after another; nothing is measured twice, and data stay open for the next run."""

    def __init__(self, device: str, baselines: bool = False) -> None:
        self.device, self.baselines, self.sources = device, baselines, SourceCache()
        self._open: tuple[Path, str, EvaluatedEncoder] | None = None

    def open_run(self, run: Path, layer: str = "pooled") -> EvaluatedEncoder:
        """The run's encoder at this layer; the last one stays open."""
        if self._open is None or self._open[:2] != (run, layer):
            device = pick_device(self.device)
            options = EvaluationOptions(device, layer=layer, sources=self.sources, baselines=self.baselines)
            self._open = run, layer, open_evaluated_encoder(str(run), options)
        return self._open[2]

    def rows(self, run: Path, measurement: Measurement) -> list[Row]:
        """The rows saved for these weights by an earlier call or by `supancl evaluate`, or measured now."""
        evaluated = self.open_run(run, measurement.layer)
        assert evaluated.recipe is not None
        source, weights = evaluated.recipe.data.source, evaluated.weights
        kept = [row for row in saved_rows(run) if measurement.matches(row, source, weights)]
        return kept or rows_of_result(measurement.protocol, measurement.measure(evaluated))

    def value(self, run: Path, measurement: Measurement, metric: str) -> float | None:
        """One number; None, with a warning, if it cannot be measured on these data."""
        try:
            return next((row.value for row in self.rows(run, measurement) if row.metric == metric), None)
        except BadInput as error:
            warn(f"{run.name}: {measurement.protocol} is not measured: {error}")
            return None

    def measure(
        self, run: Path, measures: Iterable[str], split: str = "held-out", k: int | None = None
    ) -> dict[str, float | None]:
        """Losses of the last epoch, and the measures as in `supancl evaluate`: k-NN, linear accuracy and S_W/S_T."""
        losses = {row.metric: row.value for row in rows_of_log(run) if row.protocol == "training"}
        found: dict[str, float | None] = {name: losses.get(name, math.nan) for name in ("ssl", "sup")}
        for name in measures:
            protocol, metric = MEASURES[name]
            found[name] = self.value(run, Measurement(protocol, split, k=k), metric)
        return found


def has_projector(run: Path) -> bool:
    """Whether the projector was saved."""
    return (run / "projector.safetensors").is_file()


def saved_results(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The evaluations in a run folder by name; damaged files count as missing."""
    for file in sorted(RunFolder(run).evaluations.glob("*.json")):
        with suppress(BadInput):
            yield file.stem, read_result(file)


def saved_rows(run: Path) -> list[Row]:
    """The rows of these evaluations."""
    return [row for name, result in saved_results(run) for row in rows_of_result(name, result, str(run))]


# --- the rows of a study ----------------------------------------------------------------------------------------------


def collect_results(
    sweep: Sweep,
    runs: Runs,
    labels: Labels,
    measures: Iterable[str],
    measure: Callable[[Path], Mapping[str, float | None]],
) -> list[Result]:
    """For each run: its row's labels, seed, measured values, whether it collapsed, and why it failed.

    The values of a failed run are None.
    """
    results = []
    for row, label in labels.items():
        for seed in range(sweep.seeds):
            name = run_name(row, seed)
            failure = runs.failed.get(name)
            measured: Result
            if failure is None:
                measured = {**measure(sweep.out / name), "collapsed": runs.trained[name].collapsed, "failed": None}
            else:
                measured = {**dict.fromkeys(measures), "collapsed": failure.collapsed, "failed": failure.reason}
            results.append({**label, "seed": seed, **measured})
    return results


def summarize(
    results: Sequence[Result], label: Mapping[str, Any], measures: Iterable[str], ends: Sequence[str]
) -> Result:
    """Mean and standard deviation over the runs of a row that did not fail (`measured`), and how many of its `n` runs
    ended how."""
    of_row = [result for result in results if label.items() <= result.items()]
    finished = [result for result in of_row if not result["failed"]]
    entry: Result = {**label, "n": len(of_row), "measured": len(finished)}
    entry |= {end: sum(bool(result[end]) for result in of_row) for end in ends}
    for key in measures:
        values = [math.nan if result[key] is None else float(result[key]) for result in finished]
        entry[key], entry[f"{key}_sd"], _ = average(values)
    return entry


def mean_cells(entry: Result, titles: Titles) -> list[str]:
    """`mean ± sd` of each measure of a summary."""
    return [mean_text(entry[key], entry[f"{key}_sd"], decimals) for key, (_, decimals) in titles.items()]


def count_cell(count: int, total: int) -> str:
    """`2 of 3`, or `no` for none."""
    return f"{count} of {total}" if count else "no"
