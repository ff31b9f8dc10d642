"""The table, the page and the LaTeX of `supancl compare`."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from supancl.files import write_json, write_text
from supancl.reports.page import Banner, Section, charts, html_page, write_page
from supancl.reports.report import MAIN_CHARTS, make_charts
from supancl.reports.run_record import RunRecord, read_record
from supancl.reports.tables import Cell, Row, Table, mark_for_rank, to_html, to_latex, to_markdown
from supancl.reports.verdict import find_verdict
from supancl.stats import Tone

LATEX_TITLES = {
    "alpha": r"$\alpha$",
    "k-NN %": r"$k$-NN (\%)",
    "linear %": r"linear (\%)",
    "k-NN mAP %": r"$k$-NN mAP (\%)",
    "linear mAP %": r"linear mAP (\%)",
    "S_W/S_T": r"$S_W / S_T$",
}
PAGE = "comparison.html"
Result = Mapping[str, Any]
Measures = Mapping[str, tuple[str, int]]


def comparison_table(result: Result, heads: Mapping[str, str], measures: Measures) -> Table:
    """A row per recipe or combination: its difference to the reference, and means ± half their 95% intervals.

    `heads` maps the keys that name a row to the titles of their columns.
    """
    entries = result["summary"]
    by = {"k-NN mAP": "knn_map", "linear mAP": "linear_map"}.get(result["compared_by"], result["compared_by"])
    shown = {key: measures[key] for key in sorted(measures, key=lambda key: key != by)}  # the decisive one first
    ends = [end for end in ("collapsed", "failed") if any(entry[end] for entry in entries)]
    titles = [*heads.values(), "difference", *(title for title, _ in shown.values()), *ends]
    differences = {entry["row"]: entry for entry in result["differences"]}
    marks = {key: _marks(entries, key, decimals) for key, (title, decimals) in shown.items() if title.endswith("%")}
    rows: list[Row] = []
    for number, entry in enumerate(entries):
        gap = differences.get(entry["row"])
        none = "0" if entry["row"] == result["reference"] else "-"
        difference = Cell(none) if gap is None else _number(gap["mean"], gap["high"] - gap["mean"], "+.2f")
        cells = [
            _number(entry[key], entry[f"{key}_half_interval"], f".{decimals}f", marks.get(key, {}).get(number, ""))
            for key, (_, decimals) in shown.items()
        ]
        counts = [f"{entry[end]} of {entry['n']}" if entry[end] else "no" for end in ends]
        names = [f"{entry[key]:g}" if isinstance(entry[key], float) else str(entry[key]) for key in heads]
        rows.append([*names, difference, *cells, *counts])
    caption = (
        f"compare on {Path(str(result['data']['source'])).name}: epochs: {' or '.join(map(str, result['epochs']))}, "
        f"seeds: {len(result['seeds'])}, held-out images: {result['data']['held_out']}"
    )
    notes = [f"difference: {result['compared_by']}, seed by seed, to {result['reference']}"] if differences else []
    notes += [f"± half a 95% interval over seeds; of differences {result['intervals']}"] * (len(result["seeds"]) > 1)
    columns = [Cell(title, latex=LATEX_TITLES.get(title, "")) for title in titles]
    return Table(columns, rows, "l" * len(heads) + "r" * (len(titles) - len(heads)), caption, notes)


def _number(mean: float | None, half: float, form: str, mark: Any = "") -> Cell:
    if mean is None or math.isnan(mean):
        return Cell("-")
    return Cell(f"{mean:{form}}", f"{half:{form.lstrip('+')}}" if math.isfinite(half) else "", mark)


def _marks(entries: Sequence[Result], key: str, decimals: int) -> dict[int, Any]:
    """The best and the second best of a column, as printed; the mean of a row with a failed run is over other seeds."""
    printed = {
        number: round(entry[key], decimals)
        for number, entry in enumerate(entries)
        if not entry["failed"] and entry[key] is not None and not math.isnan(entry[key])
    }
    ranked = sorted(set(printed.values()), reverse=True)
    return {number: mark_for_rank(ranked.index(value)) for number, value in printed.items()} if ranked[1:] else {}


def write_comparison(result: Result, table: Table, runs: Mapping[str, Path], out: Path) -> None:
    """Write results.json, results.md, results.tex and the page into the folder; `runs` are the run folders by name."""
    write_json(out / "results.json", dict(result))
    remarks = "".join(f"\n- {line}" for line in result["findings"])
    write_text(out / "results.md", f"{to_markdown(table)}{remarks}\n")
    heads = table.alignment.count("l")
    layout = f"{'l' * heads}|{'c' * (len(table.columns) - heads)}"
    notes = [*table.notes, *result["findings"]]
    write_text(out / "results.tex", to_latex(replace(table, notes=notes), layout))
    learned = {row.get("learned") for row in result["rows"] if not row["failed"]}
    gaps = [entry["low"] > 0 or entry["high"] < 0 for entry in result["differences"]]
    tone: Tone = "bad" if learned <= {False} else "good" if any(gaps) else "unclear"
    write_comparison_page(table, result["findings"], tone, runs, out)


def write_comparison_page(
    table: Table, findings: Sequence[str], tone: Tone, runs: Mapping[str, Path], out: Path
) -> None:
    """Write comparison.html: what was found, the table, curves of the runs, and links to their reports."""
    records = {name: read_record(path) for name, path in runs.items() if path.is_dir()}
    specs, (first, *more) = make_charts(records), findings or ["nothing is compared"]
    names = [name for name in MAIN_CHARTS if name in specs]
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in more)
    notes = "".join(f'<p class="small">{html.escape(note)}</p>' for note in table.notes)
    rows = [_run_row(name, record, out) for name, record in records.items()]
    headline = {"good": "A clear difference.", "unclear": "No clear difference.", "bad": "No winner."}[tone]
    sections: list[Section | str] = [
        to_html(table) + notes + lines,
        Section("Curves", charts(names), "One curve for each run."),
        Section("More curves", charts(name for name in specs if name not in names), is_folded=True),
        Section("Runs", f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""),
    ]
    scripts = ["charts.js"] * bool(specs)
    banners = [Banner(tone, headline, first)]
    title = table.caption[:1].upper() + table.caption[1:]
    page = html_page(title, sections, banners=banners, data={"charts": specs}, scripts=scripts)
    write_page(out / PAGE, page)


def _run_row(name: str, record: RunRecord, out: Path) -> str:
    """A run with its verdict, and a link to its report if there is one."""
    verdict, report = find_verdict(record), record.folder / "report.html"
    link = html.escape(os.path.relpath(report, out))
    label = f'<a href="{link}">{html.escape(name)}</a>' if report.is_file() else html.escape(name)
    text = html.escape(verdict.sentence)
    return f'<tr><td class="word">{label}</td><td class="word long">{text}</td></tr>'
