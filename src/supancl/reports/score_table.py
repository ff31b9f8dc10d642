"""A ranking of encoders as text, CSV, Markdown, LaTeX or JSON: best in bold, second best underlined."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from supancl.errors import make_visible, plural
from supancl.evaluation.comparison import (
    differences,
    different_images_warnings,
    overlap_warnings,
    rankings,
)
from supancl.files import digest, jsonable, read_json, write_text
from supancl.probes.ranking import Mark, Ranking, Score
from supancl.reporter import say, show, warn
from supancl.reports.tables import Cell, Row, Table, write_table
from supancl.stats import t_half_width

MAX_DIFFERENCES = 20  # printed; --json has all
HEADINGS = {"text": "{}\n", "markdown": "**{}**\n\n", "latex": "% {}\n", "csv": "# {}\n"}
TableFormat = Literal["text", "csv", "markdown", "latex", "json"]
SUFFIXES: dict[TableFormat, str] = {"markdown": "md", "latex": "tex", "csv": "csv"}
TABLE_NAME = re.compile(r"[A-Za-z0-9-]+\.(md|tex|csv)")  # never a path to another folder
INTERVAL_NOTE = "± half a 95% interval, over n seeds or over episodes"


def score_table(ranking: Ranking, form: TableFormat = "text", average: bool = False) -> str:
    """The table, with the average rank if data sets are ranked, and the average score if `average`.

    >>> from supancl.probes.ranking import rank_encoders
    >>> print(score_table(rank_encoders({"byol": {"pets": 80.0}, "supbyol": {"pets": 82.5}}), "markdown"), end="")
    | Encoder | pets | Avg. rank |
    | --- | ---: | ---: |
    | byol | <u>80.00</u> | 2.00 |
    | supbyol | **82.50** | 1.00 |
    """
    if form == "json":
        return json.dumps(ranking.to_json(), indent=2, ensure_ascii=False) + "\n"
    has_deviation = any(score is not None and score.uncertainty is not None for row in ranking.cells for score in row)
    notes = [INTERVAL_NOTE] if form == "text" and has_deviation else []
    return write_table(
        numeric_table(ranking, average) if form == "csv" else ranking_table(ranking, average, notes), form
    )


def ranking_table(ranking: Ranking, average: bool = False, notes: list[str] | None = None) -> Table:
    """The printed table: a row per encoder, a column per data set, then average and average rank."""

    def make_cell(score: Score | None, mark: Mark) -> Cell:
        if score is None:
            return Cell("")
        half = score.uncertainty
        if half is not None and score.runs > 1:
            half = t_half_width(half, score.runs)
        return Cell(_fixed(score.mean, ranking.digits), _fixed(half, ranking.digits), mark)

    rows: list[Row] = [
        [
            Cell(encoder, suffix=ranking.seeds(row).strip()),
            *map(make_cell, ranking.cells[row], ranking.marks[row]),
            *[_fixed(ranking.averages[row], ranking.digits)] * average,
            *[_fixed(ranking.average_ranks[row], 2)] * ranking.has_ranks,
        ]
        for row, encoder in enumerate(ranking.encoders)
    ]
    columns = ["Encoder", *ranking.datasets, *["Avg."] * average, *["Avg. rank"] * ranking.has_ranks]
    return Table(columns, rows, "l" + "r" * (len(columns) - 1), notes=notes or ())


def numeric_table(ranking: Ranking, average: bool) -> Table:
    """The table for CSV: mean, deviation and number of runs in separate columns."""
    names = [name for data in ranking.datasets for name in (data, f"{data} spread", f"{data} n")]
    columns = ["encoder", *names, *["average"] * average, *["average rank"] * ranking.compares]
    rows = []
    for row, encoder in enumerate(ranking.encoders):
        cells: list[float | None] = []
        for score in ranking.cells[row]:
            cells += [None] * 3 if score is None else score
        cells += [ranking.averages[row]] * average + [ranking.average_ranks[row]] * ranking.compares
        rows.append([encoder, *("" if cell is None or math.isnan(cell) else str(cell) for cell in cells)])
    return Table(columns, rows)


def _fixed(value: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" if value is not None and math.isfinite(value) else ""


def print_score_tables(results: list[dict[str, Any]], form: TableFormat) -> dict[str, Any]:
    """Print the tables, and as text also the paired differences; returns the result for --json."""
    tables = rankings(results)
    for line in (*different_images_warnings(results), *overlap_warnings(results)):
        warn(line)
    gaps = differences(results)
    if form == "json":
        content = {name: ranking.to_json() for name, ranking in tables.items()}
        show(json.dumps(content, indent=2) + "\n")
    else:
        for protocol, ranking in tables.items():
            if len(tables) > 1 or form in ("text", "markdown"):
                show(HEADINGS[form].format(make_visible(protocol)))
            show(score_table(ranking, form))
    if form == "text":
        for gap in gaps[:MAX_DIFFERENCES]:
            say(
                f"{gap['protocol']} {gap['data']}: {gap['a']} - {gap['b']} = {gap['difference']:+.2f} "
                f"± {gap['interval']:.2f} (same episodes)"
            )
        if len(gaps) > MAX_DIFFERENCES:
            say(f"{plural(len(gaps) - MAX_DIFFERENCES, 'more difference')}: json")
    return {
        "results": results,
        "tables": {name: ranking.to_json() for name, ranking in tables.items()},
        "differences": gaps,
    }


def write_suite(results: Sequence[dict[str, Any]], summary: dict[str, Any], out: Path) -> Path:
    """Write suite.json, and every table as Markdown, LaTeX and CSV; returns the path of suite.json.

    Tables that an earlier call wrote and this one does not have are removed.
    """
    compact = [{key: value for key, value in result.items() if key != "accuracies"} for result in results]
    texts = {
        f"{protocol.replace(' ', '-')}.{suffix}": score_table(ranking, form)
        for protocol, ranking in rankings(results).items()
        for form, suffix in SUFFIXES.items()
    }
    _remove_earlier(out, keep=texts)
    for name, text in texts.items():
        write_text(out / name, text)
    files = {name: digest(out / name) for name in texts}
    content = jsonable({**summary, "results": compact, "files": files})
    write_text(out / "suite.json", json.dumps(content, indent=2) + "\n")
    return out / "suite.json"


def _remove_earlier(out: Path, keep: Iterable[str]) -> None:
    """Remove the tables listed in the last suite.json, unless they were edited since."""
    files = read_json(out / "suite.json").get("files")
    earlier = {str(name): str(checksum) for name, checksum in files.items()} if isinstance(files, dict) else {}
    for name in earlier.keys() - set(keep):
        path = out / name
        if TABLE_NAME.fullmatch(name) and path.is_file() and digest(path) == earlier[name]:
            path.unlink()
