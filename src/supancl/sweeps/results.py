"""The results of a sweep: one per run, and means over seeds per row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supancl.reports.tables import mean_text
from supancl.stats import seed_stats
from supancl.sweeps.runner import Sweep, run_name
from supancl.sweeps.runs import Runs, TrainedRun

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
