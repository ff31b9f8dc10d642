"""How the rows of a comparison differ, with 95% intervals, and what may be said of it.

Recipes are compared with the first one. Combinations of settings are compared with the best one; because that one is
picked, its intervals hold for all pairs together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from supancl.stats import FEW_IMAGES, TOO_FEW_IMAGES, mean_interval, tukey_half_width
from supancl.sweeps.measures import Result

NAMES = {"knn_map": "k-NN mAP", "linear_map": "linear mAP"}  # in sentences; others are called by their key
Against = Literal["first", "best"]
Values = Mapping[str, Mapping[int, float]]  # row -> seed -> score


def compare_rows(
    results: Sequence[Result], rows: Sequence[str], by: str, against: Against, held_out: int | None = None
) -> Result:
    """What results.json says of the differences: the reference, one entry per other row, and sentences.

    `held_out` is the number of labelled images that the rows are compared on. A result may say whether its run
    `learned`, that is, whether it is clearly better than random weights.
    """
    values: dict[str, dict[int, float]] = {row: {} for row in rows}
    for entry in results:
        if entry[by] is not None and math.isfinite(entry[by]):
            values[entry["row"]][entry["seed"]] = entry[by]
    seeds = sorted({entry["seed"] for entry in results})
    complete = [row for row in rows if sorted(values[row]) == seeds]
    intervals = "for all pairs together" if against == "best" else "for each pair by itself"
    compared: Result = {"compared_by": NAMES.get(by, by), "reference": rows[0], "differences": []}
    compared["intervals"] = intervals
    if against == "best":
        if not complete:
            return compared | {"reference": None, "findings": ["nothing is recommended: every row has a failed run"]}
        compared["reference"] = max(complete, key=lambda row: statistics.fmean(values[row].values()))
        half = tukey_half_width([[values[row][seed] for seed in seeds] for row in complete])
    reference = values[compared["reference"]]
    others = [row for row in rows if row != compared["reference"]]
    for row in others:
        common = sorted(values[row].keys() & reference.keys())  # a failed run has no difference
        gaps = [values[row][seed] - reference[seed] for seed in common]
        if against == "best" and row in complete:
            mean = statistics.fmean(gaps)
            compared["differences"].append(_difference(row, mean, mean - half, mean + half, len(gaps)))
        elif against == "first" and gaps:
            compared["differences"].append(_difference(row, *mean_interval(gaps), len(gaps)))
    learned = {entry.get("learned") for entry in results if not entry["failed"]}
    if held_out is not None and held_out < TOO_FEW_IMAGES:
        findings = [
            f"too few images to say which is better: {held_out} held out, {TOO_FEW_IMAGES} are needed; "
            "label more images, or hold out more: data.holdout=0.3"
        ]
    elif learned == {False}:
        findings = ["nothing was learned yet: no run is clearly better than random weights; train for more epochs"]
    else:
        findings = (describe_choice if against == "best" else describe_differences)(compared, values, others)
        if held_out is not None and held_out < FEW_IMAGES and len(seeds) > 1:
            findings.append(f"intervals are over seeds; other images than these {held_out} may change more")
    return compared | {"findings": [*findings, *describe_ends(results)]}


def _difference(row: str, mean: float, low: float, high: float, n: int) -> dict[str, Any]:
    # seeds that differ by exactly as many images have no spread, which says that images are few, not that it is sure
    is_clear = math.isfinite(low) and low < high and (low > 0 or high < 0)
    verdict = "no clear difference" if not is_clear else "better" if mean > 0 else "worse"
    return {"row": row, "mean": mean, "low": low, "high": high, "n": n, "verdict": verdict}


def describe_differences(compared: Result, values: Values, others: Sequence[str]) -> list[str]:
    """A sentence per recipe: how it differs from the first."""
    entries, reference = {entry["row"]: entry for entry in compared["differences"]}, compared["reference"]
    if others and all(entry["n"] < 2 for entry in entries.values()):
        return ["one seed shows no clear difference; run with seeds 3 or more"]
    lines = []
    for row in others:
        entry, start = entries.get(row), f"{compared['compared_by']}, {row} minus {reference}: "
        if entry is None or entry["n"] < 2:
            lines.append(f"{start}no clear difference, seeds in common: {entry['n'] if entry else 0}")
        else:
            lines.append(
                f"{start}{entry['mean']:+.2f} points (95% interval {entry['low']:+.2f} to {entry['high']:+.2f}, "
                f"n = {entry['n']}): {entry['verdict']}"
            )
    return lines


def describe_choice(compared: Result, values: Values, others: Sequence[str]) -> list[str]:
    """Which combination is the best, and how many others are clearly worse; those with a failed run are left out."""
    best, by, entries = compared["reference"], compared["compared_by"], compared["differences"]
    seeds, complete = values[best], [entry["row"] for entry in entries]
    mean = statistics.fmean(seeds.values())
    tied = [row for row in complete if statistics.fmean(values[row].values()) == mean]
    shared = f" and {', '.join(tied)} share" if tied else " has"
    figure = "mAP" if by.endswith(" mAP") else "accuracy"
    text = f"{best}{shared} the best {by.removesuffix(' mAP')} {figure} ({mean:.2f}%, seeds: {len(seeds)})"
    if len(seeds) < 2:
        return [f"{text}, but one seed shows no clear difference; run with seeds 3 or more"]
    close = [entry["row"] for entry in entries if entry["verdict"] != "worse"]
    lines = [f"{text}; clearly worse: {len(entries) - len(close)} of {len(entries)} others"]
    if left_out := [row for row in others if row not in complete]:
        lines.append(f"not compared, because a run of it failed: {', '.join(left_out)}")
    if close:
        lines.append(f"no clear difference from {', '.join(close)}")
    return [*lines, f"its {figure} was used to choose it, so it is a little too high; a test split has not been used"]


def describe_ends(results: Sequence[Result]) -> list[str]:
    """The runs that failed or collapsed."""
    failed = [entry for entry in results if entry["failed"]]
    lines = [f"failed, and in no mean: {entry['row']}, seed {entry['seed']}: {entry['failed']}" for entry in failed]
    collapsed = [f"{entry['row']} (seed {entry['seed']})" for entry in results if entry["collapsed"]]
    return lines + ([f"collapsed: {', '.join(collapsed)}"] if collapsed else [])
