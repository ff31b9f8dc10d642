"""The table, the plot and the LaTeX of `supancl compare` and `supancl sweep`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from supancl.errors import plural
from supancl.files import write_json, write_text
from supancl.reports.tables import Cell, Row, Table, mark_for_rank, to_latex, to_markdown

LATEX_TITLES = {
    "alpha": r"$\alpha$",
    "k-NN %": r"$k$-NN (\%)",
    "linear %": r"linear (\%)",
    "k-NN mAP %": r"$k$-NN mAP (\%)",
    "linear mAP %": r"linear mAP (\%)",
    "S_W/S_T": r"$S_W / S_T$",
}
Result = Mapping[str, Any]
Measures = Mapping[str, tuple[str, int]]


def comparison_table(result: Result, heads: Mapping[str, str], measures: Measures) -> Table:
    """A row per recipe or combination: mean ± half its 95% interval, and the difference to the reference.

    `heads` maps the keys that name a row to the titles of their columns.
    """
    entries = result["summary"]
    ends = [end for end in ("collapsed", "failed") if any(entry[end] for entry in entries)]
    titles = [*heads.values(), *(title for title, _ in measures.values()), "difference", *ends]
    # the mean of a row with a failed run is over other seeds
    ranked = {key: [None if entry["failed"] else entry[key] for entry in entries] for key in scores_among(measures)}
    marks = {key: _marks(values, measures[key][1]) for key, values in ranked.items()}
    differences = {entry["row"]: entry for entry in result["differences"]}
    rows: list[Row] = []
    for number, entry in enumerate(entries):
        cells = [
            _number(entry[key], entry[f"{key}_half_interval"], decimals)._replace(
                mark=marks.get(key, {}).get(number, "")
            )
            for key, (_, decimals) in measures.items()
        ]
        counts = [f"{entry[end]} of {entry['n']}" if entry[end] else "no" for end in ends]
        difference = _difference_cell(differences.get(entry["row"]), entry["row"] == result["reference"])
        rows.append([*(show(entry[key]) for key in heads), *cells, difference, *counts])
    seeds, data = result["seeds"], result["data"]
    caption = (
        f"{result['command']} on {Path(str(data['source'])).name}: "
        f"{' or '.join(map(str, result['epochs']))} {'epoch' if result['epochs'] == [1] else 'epochs'}, "
        f"{plural(len(seeds), 'seed')}, {plural(data['held_out'], 'held-out image')}"
    )
    notes = [f"difference: {result['compared_by']}, seed by seed, to {result['reference']}"] if differences else []
    notes += [f"± half a 95% interval over seeds; of differences {result['intervals']}"] * (len(seeds) > 1)
    columns = [Cell(title, latex=LATEX_TITLES.get(title, "")) for title in titles]
    return Table(columns, rows, "l" * len(heads) + "r" * (len(titles) - len(heads)), caption, notes)


def scores_among(measures: Measures) -> list[str]:
    """The measures in percent: k-NN, linear and transfer, as accuracy or mAP."""
    return [key for key, (title, _) in measures.items() if title.endswith("%")]


def show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(mean: float | None, half: float | None, decimals: int) -> Cell:
    if mean is None or math.isnan(mean):
        return Cell("-")
    has_interval = half is not None and math.isfinite(half)
    return Cell(f"{mean:.{decimals}f}", f"{half:.{decimals}f}" if has_interval else "")


def _difference_cell(difference: Result | None, is_reference: bool) -> Cell:
    if difference is None:
        return Cell("0" if is_reference else "-")
    half = difference["high"] - difference["mean"]
    return Cell(f"{difference['mean']:+.2f}", f"{half:.2f}" if math.isfinite(half) else "")


def _marks(values: Sequence[float | None], decimals: int) -> dict[int, Any]:
    """The best and the second best of a column, as printed; a single row is not marked."""
    printed = [None if value is None or math.isnan(value) else round(value, decimals) for value in values]
    ranked = sorted({value for value in printed if value is not None}, reverse=True)
    if len(ranked) < 2:
        return {}
    return {number: mark_for_rank(ranked.index(value)) for number, value in enumerate(printed) if value is not None}


def write_comparison(result: Result, table: Table, measures: Measures, out: Path) -> None:
    """Write results.json, results.md, results.tex and results.png into the folder."""
    write_json(out / "results.json", dict(result))
    remarks = "".join(f"\n- {line}" for line in result["findings"])
    write_text(out / "results.md", f"{to_markdown(table)}{remarks}\n")
    heads = table.alignment.count("l")
    layout = f"{'l' * heads}|{'c' * (len(table.columns) - heads)}"
    notes = [*table.notes, *result["findings"]]
    write_text(out / "results.tex", to_latex(replace(table, notes=notes), layout))
    draw_comparison(result, measures, out / "results.png")


def draw_comparison(result: Result, measures: Measures, path: Path) -> None:
    """Plot the scores: a dot per seed, the mean over seeds and its 95% interval."""
    from matplotlib.figure import Figure  # here, because tables need no matplotlib

    from supancl.reports.pictures import COLOURS, escape_label

    entries = result["summary"]
    figure = Figure(figsize=(9, 1.4 + 0.32 * len(entries)), layout="constrained")
    axes = figure.subplots(1, len(scores_among(measures)), sharey=True)
    for axis, key in zip(axes, scores_among(measures), strict=True):
        for position, entry in enumerate(entries):
            seeds = [row[key] for row in result["rows"] if row["row"] == entry["row"] and row[key] is not None]
            is_reference = entry["row"] == result["reference"]
            colour = COLOURS[1] if is_reference else COLOURS[0]
            axis.plot(seeds, [position] * len(seeds), "o", color="#bbbbbb", markersize=4, zorder=1)
            if seeds and math.isfinite(entry[key]):
                half = entry[f"{key}_half_interval"]
                error = half if math.isfinite(half) else None
                axis.errorbar(entry[key], position, xerr=error, fmt="D", color=colour, capsize=3, markersize=5)
        axis.set_title(f"{measures[key][0]} of held-out images")
        axis.grid(axis="x", alpha=0.3)
        axis.set_yticks(range(len(entries)), [escape_label(entry["row"]) for entry in entries])
        axis.set_ylim(len(entries) - 0.5, -0.5)
        low, high = axis.get_xlim()
        axis.set_xlim(max(low, -2), min(high, 102))  # few seeds give intervals that no score can have
    seeds_note = "grey: seeds; diamond and bar: their mean and its 95% interval"
    seeds_note = seeds_note if len(result["seeds"]) > 1 else "one seed, so no interval"
    figure.supxlabel(f"{seeds_note}; red: the others are compared with it", fontsize="small")
    figure.savefig(path, dpi=130)
