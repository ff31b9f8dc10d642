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
from supancl.evaluation.naming import non_default_settings, source_of
from supancl.evaluation.protocols import evaluate
from supancl.evaluation.settings import PROTOCOLS as SETTINGS
from supancl.probes.knn import DEFAULT_K
from supancl.reporter import warn
from supancl.reports.tables import mean_text
from supancl.runs.folder import RunFolder
from supancl.stats import seed_stats
from supancl.sweeps.runner import Runs, Sweep, TrainedRun, run_name
from supancl.training.run import read_result

PROJECTOR = "projector.safetensors"  # in the run folder, if the projector was saved
# measure -> the protocol and the field of its result
PROTOCOLS = {
    "knn": ("knn", "accuracy"),
    "linear": ("linear", "accuracy"),
    "ratio": ("variance", "ratio"),
    "knn_map": ("knn", "map"),  # of images with several labels
    "linear_map": ("linear", "map"),
}
ONE_LABEL_MEASURES = ("knn", "linear", "ratio")
MEASUREMENT_FIELDS = ("split", "probe", "layer", "k")  # settings that a Measurement may vary


@dataclass(frozen=True)
class Measurement:
    """One call of a protocol: on the run's own data, or on `source`."""

    protocol: str
    split: str = "held-out"
    probe: str = "lbfgs"
    layer: str = "pooled"
    source: str | None = None
    k: int | None = DEFAULT_K  # of knn; None: as many as suit the references

    def matches(self, evaluation: dict[str, Any], run_source: str, weights: str) -> bool:
        """Whether a saved evaluation is this measurement of an encoder with these weights."""
        if (evaluation.get("protocol"), evaluation.get("weights")) != (self.protocol, weights):
            return False
        if not is_same_source(source_of(evaluation), self.source or run_source):
            return False
        if self.protocol == "linear" and evaluation.get("probe") != self.probe:
            return False
        k = evaluation.get("default_k") if self.k is None else self.k
        if self.protocol == "knn" and evaluation.get("k") != k:
            return False
        split = "test" if evaluation.get("judged") == "test" else evaluation.get("split")
        is_same_split = split == self.split or evaluation.get("split") == self.split
        return (
            is_same_split
            and evaluation.get("layer") == self.layer
            and not set(non_default_settings(evaluation)) - set(MEASUREMENT_FIELDS)
        )

    def measure(self, evaluated: EvaluatedEncoder) -> dict[str, Any]:
        """Run the protocol; its result is also saved in the run folder."""
        own = {"k": self.k} if self.protocol == "knn" else {"probe": self.probe} if self.protocol == "linear" else {}
        return evaluate(evaluated, SETTINGS[self.protocol].given({**own, "split": self.split}), self.source)


class RunEvaluator:
    """Measures runs one after another; nothing is measured twice, and data stay open for the next run."""

    def __init__(self, device: str) -> None:
        self.device, self.sources = device, SourceCache()
        self._open: tuple[Path, str, EvaluatedEncoder] | None = None

    def open_run(self, run: Path, layer: str = "pooled") -> EvaluatedEncoder:
        """The run's encoder at this layer; the last one stays open."""
        if self._open is None or self._open[:2] != (run, layer):
            options = EvaluationOptions(pick_device(self.device), layer=layer, sources=self.sources)
            self._open = run, layer, open_evaluated_encoder(str(run), options)
        return self._open[2]

    def find_or_measure(self, run: Path, measurement: Measurement) -> dict[str, Any]:
        """The result saved for these weights by an earlier call or `supancl evaluate`, or measured now."""
        evaluated = self.open_run(run, measurement.layer)
        assert evaluated.recipe is not None
        run_source, weights = evaluated.recipe.data.source, evaluated.weights
        evaluation = next(
            (evaluation for evaluation in evaluations_of(run) if measurement.matches(evaluation, run_source, weights)),
            None,
        )
        return evaluation if evaluation is not None else measurement.measure(evaluated)

    def measure_value(self, run: Path, measurement: Measurement, field: str) -> float | None:
        """One number of a result; None, with a warning, if it cannot be measured on these data."""
        try:
            value = self.find_or_measure(run, measurement)[field]
            return None if value is None else float(value)
        except BadInput as error:
            warn(f"{run.name}: {measurement.protocol} is not measured: {error}")
            return None


def measure_run(
    run: TrainedRun,
    folder: Path,
    evaluator: RunEvaluator,
    split: str = "held-out",
    k: int | None = None,
    measures: Iterable[str] = ONE_LABEL_MEASURES,
) -> dict[str, float | None]:
    """Losses of the last epoch, and the measures as in `supancl evaluate`: k-NN, linear accuracy and S_W/S_T.

    A value that cannot be measured on these data is None.
    """
    return {
        "ssl": last_epoch(run, "ssl"),
        "sup": last_epoch(run, "sup"),
        **{
            key: evaluator.measure_value(folder, Measurement(protocol, split, k=k), field)
            for key, (protocol, field) in ((key, PROTOCOLS[key]) for key in measures)
        },
    }


def last_epoch(run: TrainedRun, name: str) -> float:
    """Mean of a logged training value over the last epoch; nan if none was logged."""
    rows = [row for row in run.metrics if row["kind"] == "train"]
    values = [row[name] for row in rows if row["epoch"] == rows[-1]["epoch"] and row[name] is not None]
    return sum(values) / len(values) if values else math.nan


def has_projector(run: Path) -> bool:
    return (run / PROJECTOR).is_file()


def evaluations_of(run: Path) -> Iterator[dict[str, Any]]:
    """The evaluations in a run folder; damaged files count as missing."""
    for file in sorted(RunFolder(run).evaluations.glob("*.json")):
        with suppress(BadInput):
            yield read_result(file)


# --- rows -------------------------------------------------------------------------------------------------------------


Result = dict[str, Any]
Labels = Mapping[str, Mapping[str, Any]]  # row -> fields that name it in results, such as {"alpha": 0.5}
Measures = Mapping[str, tuple[str, int]]  # key -> title and decimals


def collect_results(
    sweep: Sweep,
    runs: Runs,
    labels: Labels,
    measures: Iterable[str],
    measure: Callable[[TrainedRun, Path], Mapping[str, float | None]],
) -> list[Result]:
    """For each run: its row's labels, seed, measured values, whether it collapsed, and why it failed.

    The values of a failed run are None.
    """
    results = []
    for row, label in labels.items():
        for seed in range(sweep.seeds):
            name = run_name(row, seed)
            failure = runs.failed.get(name)
            result: Result = {**label, "seed": seed}
            if failure is None:
                run = runs.trained[name]
                result |= {**measure(run, sweep.out / name), "collapsed": run.collapsed, "failed": None}
            else:
                result |= {**dict.fromkeys(measures), "collapsed": failure.collapsed, "failed": failure.reason}
            results.append(result)
    return results


def summarize(
    results: Sequence[Result], label: Mapping[str, Any], measures: Iterable[str], ends: Sequence[str]
) -> Result:
    """Mean and standard deviation over the runs of a row that did not fail (`measured`), and how many of its `n` runs
    ended how."""
    of_row = [result for result in results if label.items() <= result.items()]
    counts = {"n": len(of_row), "measured": sum(not result["failed"] for result in of_row)}
    entry: Result = {**label, **counts, **{end: sum(bool(result[end]) for result in of_row) for end in ends}}
    for key in measures:
        values = [math.nan if result[key] is None else float(result[key]) for result in of_row if not result["failed"]]
        entry[key], entry[f"{key}_sd"] = seed_stats(values)
    return entry


def mean_cells(entry: Result, measures: Measures) -> list[str]:
    """`mean ± sd` of each measure of a summary."""
    return [mean_text(entry[key], entry[f"{key}_sd"], decimals) for key, (_, decimals) in measures.items()]


def count_cell(count: int, total: int) -> str:
    """`2 of 3`, or `no` for none."""
    return f"{count} of {total}" if count else "no"
