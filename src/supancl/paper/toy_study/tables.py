"""The toy study compared with the paper: the summary over seeds, and Tables 1 and 2."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from supancl.config import to_json
from supancl.paper.numbers import TOY, TOY_TRANSFER
from supancl.paper.toy_study.measures import Row
from supancl.paper.toy_study.training import FULL
from supancl.reports.tables import Cell, Table, mark_for_rank, mean_text
from supancl.stats import SeedStats, mean_interval, seed_stats_numpy

TABLE_1_COLUMNS = ("l_ssl", "l_sup", "S_W", "S_W/S_T", "k-NN", "linear")
TABLE_2_COLUMNS = TOY_TRANSFER
ACCURACIES = ("k-NN", "linear", *TABLE_2_COLUMNS)  # columns in which best and second-best are marked

PAPER = {alpha: dict(zip((*TABLE_1_COLUMNS, *TABLE_2_COLUMNS), values, strict=True)) for alpha, values in TOY.items()}

# largest distance from the paper that counts as met: .05 for losses and ratio (in percent: 5), 3 points of accuracy
TOLERANCES = {"l_ssl": 0.05, "S_W/S_T": 5.0, "k-NN": 3.0, "linear": 3.0}


Summary = dict[float, dict[str, SeedStats]]


def summarize(rows: Sequence[Row]) -> Summary:
    """alpha -> measure -> mean and standard deviation over seeds."""
    values = values_by_alpha(rows)
    return {alpha: {name: seed_stats_numpy(values[alpha][name]) for name in values[alpha]} for alpha in values}


def values_by_alpha(rows: Sequence[Row]) -> dict[float, dict[str, list[float]]]:
    """alpha -> measure -> values in the order of the seeds."""
    values: dict[float, dict[str, list[float]]] = {}
    for row in sorted(rows, key=lambda row: (row["alpha"], row["seed"])):
        by_name = values.setdefault(row["alpha"], {})
        for name, value in row.items():
            if name not in ("alpha", "seed"):
                by_name.setdefault(name, []).append(value)
    return values


def paired_differences(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Inner alphas minus alpha = 0, seed by seed: mean and 95% interval (Student's t; none for one seed)."""
    values = values_by_alpha(rows)
    results = []
    for measure in ("k-NN", "linear"):
        for alpha in (alpha for alpha in values if 0 < alpha < 1):
            pairs = zip(values[alpha][measure], values[0.0][measure], strict=True)
            differences = [ours - supervised for ours, supervised in pairs]
            mean, *ends = mean_interval(differences, seed_stats_numpy)
            results.append(
                {
                    "measure": measure,
                    "alpha": alpha,
                    "mean": mean,
                    "interval": ends if len(differences) > 1 else None,
                    "n": len(differences),
                    "paper": PAPER[alpha][measure] - PAPER[0.0][measure],
                }
            )
    return results


def trends(summary: Summary) -> dict[str, bool]:
    """Whether each conclusion of the paper holds for our means over seeds."""

    def means_by_alpha(name: str) -> list[float]:
        return [summary[alpha][name].mean for alpha in sorted(summary)]

    def is_increasing(values: Sequence[float]) -> bool:
        return all(a < b for a, b in itertools.pairwise(values))

    def is_worst_at_one(name: str) -> bool:
        *others, last = means_by_alpha(name)
        return last < min(others)

    return {
        "S_W/S_T rises with alpha": is_increasing(means_by_alpha("S_W/S_T")),
        "l_sup rises with alpha": is_increasing(means_by_alpha("l_sup")),
        "l_ssl falls with alpha": is_increasing([-value for value in means_by_alpha("l_ssl")]),
        **{
            f"alpha = 0.5 beats alpha = 1 by more than 5 points in {name}": summary[0.5][name].mean
            - summary[1.0][name].mean
            > 5
            for name in ("k-NN", "linear")
        },
        "alpha = 1 is worst in extrapolation": all(
            is_worst_at_one(name) for name in TABLE_2_COLUMNS if name.startswith("extra")
        ),
    }


def levels(summary: Summary) -> list[dict[str, Any]]:
    """How far each mean is from the paper's number, and whether that is within the tolerance."""
    return [
        {
            "measure": name,
            "alpha": alpha,
            "ours": summary[alpha][name].mean,
            "paper": PAPER[alpha][name],
            "off": off,
            "met": abs(off) <= TOLERANCES[name],
        }
        for name in TOLERANCES
        for alpha in sorted(summary)
        for off in [summary[alpha][name].mean - PAPER[alpha][name]]
    ]


def conditions(result: Mapping[str, Any]) -> str:
    """The reading, and the sizes that differ from App. B, of the content of toy.json.

    >>> conditions({"reading": {"name": "near"}, "size": {"epochs": 100, "batch": 256}})
    "reading 'near', not in App. B's size: epochs 100"
    """
    full_size = to_json(FULL)
    changed = ", ".join(
        f"{name} {value}" for name, value in result.get("size", {}).items() if value != full_size.get(name)
    )
    return f"reading {result['reading']['name']!r}" + (f", not in App. B's size: {changed}" if changed else "")


def decimals(name: str) -> int:
    return 3 if name in ("l_ssl", "l_sup", "S_W") else 1


def number(value: float, name: str) -> str:
    return f"{value:.{decimals(name)}f}"


def cell(summary: Summary, alpha: float, name: str) -> Cell:
    """`61.2 ± 0.3 (61.18)`: ours, its standard deviation, the paper's; accuracies are marked."""
    mean, sd = summary[alpha][name]
    better = sum(summary[other][name].mean > mean for other in summary)
    text = f"{mean_text(mean, sd, decimals(name))} ({PAPER[alpha][name]:g})"
    return Cell(text, mark=mark_for_rank(better) if name in ACCURACIES else "")


def table(summary: Summary, columns: Sequence[str]) -> Table:
    """A row per alpha, the first cell naming it."""
    titles = [f"{name} %" if name in ("S_W/S_T", *ACCURACIES) else name for name in columns]
    rows: list[list[str | Cell]] = [
        [f"{alpha:g}", *(cell(summary, alpha, name) for name in columns)] for alpha in sorted(summary)
    ]
    return Table(["alpha", *titles], rows)


def paired_lines(differences: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for row in differences:
        interval = row["interval"]
        between = f", 95% interval {interval[0]:+.2f} to {interval[1]:+.2f}" if interval else ""
        lines.append(
            f"{row['measure']}, alpha = {row['alpha']:g} minus alpha = 0: {row['mean']:+.2f} points"
            f"{between} (n = {row['n']}; paper {row['paper']:+.2f})"
        )
    return lines
