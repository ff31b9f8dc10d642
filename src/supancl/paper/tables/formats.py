"""A filled table as text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise

from supancl.paper.tables.cells import FilledTable, Line
from supancl.paper.tables.layouts import NO, YES
from supancl.paper.tables.runs import Score
from supancl.reports.tables import (
    LEGEND,
    Cell,
    Row,
    Table,
    mark_for_rank,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)

LATEX_TITLES = {
    "alpha": r"$\alpha$",
    "l_ssl": r"$\ell_{\mathrm{ssl}}$",
    "l_sup": r"$\ell_{\mathrm{sup}}$",
    "S_W": r"$S_W$",
    "S_W/S_T %": r"$S_W / S_T$ (\%)",
    "k-NN": r"$k$-NN",
    "M": "$M$",
    "Avg": r"\textit{Avg}",
    "Avg.Rank": r"\textit{Avg.Rank}",
    "CL": r"\textit{CL}",
    "Sup": r"\textit{Sup}",
    "EMA": r"\textit{EMA}",
}
LATEX_SIGNS = {YES: r"$\checkmark$", NO: r"$\times$", "†": r"$^\dagger$", "*": "$^*$", " x ": r" $\times$ "}


UNRANKED = 9  # the rank of a cell that is not marked


def our_cell(filled: FilledTable, line: Line, column: str) -> Cell:
    """`61.18 ± 0.30`: the mean over runs and its standard deviation, or a single run's interval."""
    score = line.ours.get(column)
    if score is None:
        return Cell("")
    mark = mark_for_rank(line.rankings.get(column, UNRANKED))
    if column == "collapsed":
        return Cell(_collapse_verdict(score), mark=mark)
    decimals = filled.decimals(column)
    deviation = score.interval if math.isnan(score.sd) else score.sd
    return Cell(f"{score.mean:.{decimals}f}", "" if math.isnan(deviation) else f"{deviation:.{decimals}f}", mark)


def paper_cell(filled: FilledTable, line: Line, column: str) -> str:
    """`(61.18 ± 0.30)`: the paper's number with its interval, if printed."""
    number = line.paper.get(column)
    if number is None:
        return ""
    if column == "collapsed":
        return "(yes)" if number[0] else "(no)"
    mean, interval = (f"{value:.{filled.decimals(column)}f}" for value in number)
    return f"({mean})" if math.isnan(number[1]) else f"({mean} ± {interval})"


def _collapse_verdict(score: Score) -> str:
    collapsed = round(score.mean * score.n)
    return "no" if not collapsed else "yes" if collapsed == score.n else f"{collapsed} of {score.n} runs"


def _table(filled: FilledTable, rows_of: Callable[[Line], list[Row]]) -> Table:
    """A writable table: each line becomes rows, below the title of its section."""
    titles = {section.key: section.title for section in filled.layout.sections}
    rows: list[Row | str] = []
    for previous, line in pairwise([None, *filled.lines]):
        assert line is not None
        if (previous is None or previous.section != line.section) and titles[line.section]:
            rows.append(titles[line.section])
        rows += rows_of(line)
    names = [*filled.layout.heads, *map(filled.layout.column_title, filled.columns)]
    return Table(
        [Cell(name, latex=LATEX_TITLES.get(name, "")) for name in names],
        rows,
        "l" * len(filled.layout.heads) + "r" * len(filled.columns),
        f"Table {filled.layout.name}: {filled.layout.title}",
        filled.notes,
        LEGEND.replace("best,", "best of ours,"),
    )


def _with_paper_numbers(filled: FilledTable) -> Table:
    """Ours and the paper's in one cell."""

    def rows(line: Line) -> list[Row]:
        cells = (
            our_cell(filled, line, column)._replace(suffix=paper_cell(filled, line, column))
            for column in filled.columns
        )
        return [[*line.head, *cells]]

    return _table(filled, rows)


def as_text(filled: FilledTable, width: int = sys.maxsize) -> str:
    """Ours above the paper's, in columns: a dozen data sets leave no room for both in one cell."""

    def rows(line: Line) -> list[Row]:
        our_cells = [our_cell(filled, line, column) for column in filled.columns]
        paper_cells = [paper_cell(filled, line, column) for column in filled.columns]
        if line.ours and line.paper:
            return [[*line.head, *our_cells], [*[""] * len(line.head), *paper_cells]]
        return [[*line.head, *(our_cells if line.ours else paper_cells)]]

    return to_text(_table(filled, rows), width)


def as_markdown(filled: FilledTable) -> str:
    return to_markdown(_with_paper_numbers(filled), {"*": r"\*"})


def as_latex(filled: FilledTable) -> str:
    """A tabular for booktabs; ticks need amssymb."""
    columns = f"{'l' * len(filled.layout.heads)}|{'c' * len(filled.columns)}"
    return to_latex(_with_paper_numbers(filled), columns, LATEX_SIGNS)


def as_csv(filled: FilledTable) -> str:
    """Numbers only: per column ours, its standard deviation, interval and n, and the paper's with its interval."""
    suffixes = ("", " sd", " interval", " n", " paper", " paper interval")
    titles = [filled.layout.column_title(column) + suffix for column in filled.columns for suffix in suffixes]
    rows = []
    for line in filled.lines:
        cells: list[str] = []
        for column in filled.columns:
            score, number = line.ours.get(column), line.paper.get(column, (math.nan, math.nan))
            our_numbers = (score.mean, score.sd, score.interval) if score is not None else (math.nan,) * 3
            n = str(score.n) if score is not None else ""
            cells += [*map(_csv_number, our_numbers), n, *map(_csv_number, number)]
        rows.append([line.section, *line.head, *cells])
    return to_csv(Table(["Section", *filled.layout.heads, *titles], rows))


def _csv_number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


FORMATS: dict[str, Callable[[FilledTable], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}
