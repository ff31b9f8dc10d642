"""A table of the paper as a pivot of rows: our scores next to the paper's numbers, average ranks, marks and notes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from supancl.errors import BadInput
from supancl.evaluation.suite import shared_ranks
from supancl.paper.layouts import Layout, Section
from supancl.paper.results import Entry, Group, Score, Way, group_entries
from supancl.reports.tables import LEGEND, Cell, Row, Table, mark_for_rank, mean_text, write_table

DECIMALS = {"ssl": 4, "sup": 4, "within": 3}
UNMARKED = ("ssl", "sup", "within", "ratio", "collapsed")  # for these no value is better than another
UNRANKED = 9  # the rank of a cell that is not marked


@dataclass
class Line:
    """One line: the cells left of the numbers, our scores and the paper's numbers by column."""

    layout: Layout
    section: Section
    row: str
    group: Group | None = None
    ours: dict[str, Score] = field(default_factory=dict)
    rankings: dict[str, int] = field(default_factory=dict)  # 0: best of ours, 1: second-best

    def __post_init__(self) -> None:
        suffix = f":{self.section.key}"  # of few-shot columns
        for column in self.layout.paper.columns if self.group else ():
            measured = column + suffix * column.startswith("fewshot:")
            score = self.group.score(measured, self.layout.probe) if self.group else None
            if score is not None:
                self.ours[column] = score

    @property
    def paper(self) -> dict[str, tuple[float, float]]:
        return self.layout.paper.numbers(self.section.key, self.row)


@dataclass
class FilledTable:
    """The whole table, ready to be written in any format."""

    layout: Layout
    lines: list[Line]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        lines = [
            {
                "section": line.section.key,
                "row": line.row,
                "ours": {
                    column: {**score._asdict(), "way": ", ".join(score.way)} for column, score in line.ours.items()
                },
                "paper": {column: {"mean": mean, "interval": half} for column, (mean, half) in line.paper.items()},
                "best": [column for column, ranking in line.rankings.items() if ranking == 0],
                "second": [column for column, ranking in line.rankings.items() if ranking == 1],
                "runs": [str(entry.path) for entry in line.group.entries] if line.group else [],
            }
            for line in self.lines
        ]
        paper = self.layout.paper
        names = {"table": self.layout.name, "label": paper.label, "columns": list(paper.columns)}
        return {**names, "lines": lines, "notes": self.notes}


def fill(layout: Layout, entries: Sequence[Entry]) -> FilledTable:
    """Fill the paper's rows with groups of runs; a row that the paper does not have comes last."""
    placed: list[tuple[Section, str, Group]] = []
    outside: list[Group] = []
    for group in group_entries(entries):
        recipe = group.recipe
        row = group.entries[0].path.name if recipe is None else layout.row_of(recipe)
        sections = [section for section in layout.sections if section.accepts(recipe)]
        placed += [(section, row, group) for section in sections if row is not None]
        outside += [] if sections and row is not None else [group]
    if outside and not placed:
        raise BadInput(
            f"none of the runs belongs in Table {layout.name} ({layout.title}); the first is {outside[0].description}"
        )
    lines: list[Line] = []
    notes = [f"paper, in brackets: {layout.setting}"]
    for section in layout.sections:
        made: dict[str, list[Line]] = {row: [] for row in layout.paper.rows[section.key]}
        for _, row, group in (place for place in placed if place[0] is section):  # two settings of one row stay apart
            made.setdefault(row, []).append(Line(layout, section, row, group))
        inside = [line for row, found in made.items() for line in found or [Line(layout, section, row)]]
        lines += inside
        ours = [line for line in inside if line.ours]
        notes += _summarize(layout, ours, section)
        for column in layout.paper.columns:
            _mark([line for line in ours if column in line.ours], column)
    notes += dict.fromkeys(f"{line.row}: {line.group.description}" for line in lines if line.group)
    notes += _way_notes(layout, lines)
    notes += [f"not in this table: {group.description}" for group in outside]
    groups = [*(group for _, _, group in placed), *outside]
    notes += dict.fromkeys(text for group in groups for entry in group.entries for text in entry.notes)
    if any(not math.isnan(score.interval) for line in lines for score in line.ours.values()):
        notes.append("±: half a 95% interval: of a mean over the seeds, of a single run over its images or detectors")
    return FilledTable(layout, lines, notes)


# --- averages and marks -----------------------------------------------------------------------------------------------


def average_ranks(scores: Sequence[Sequence[float]], decimals: int = 2) -> list[float]:
    """The mean over columns of each line's rank, 1 for the highest score; scores that print the same share a rank.

    >>> average_ranks([[90.0, 70.001], [80.0, 70.0]])
    [1.25, 1.75]
    """
    printed = np.array([[round(value, decimals) for value in line] for line in scores], dtype=np.float64)
    return [float(value) for value in shared_ranks(printed).mean(axis=1)]


def _summarize(layout: Layout, ours: Sequence[Line], section: Section) -> list[str]:
    """Add Avg or Avg.Rank to our lines, over the data sets that all of them have; returns a note about it."""
    kind = next((column for column in ("rank", "average") if column in layout.paper.columns), None)
    columns = [column for column in layout.paper.columns if column != kind]
    common = [column for column in columns if all(column in line.ours for line in ours)]
    if kind is None or len(ours) < (2 if kind == "rank" else 1) or not common:
        return []
    means = [[line.ours[column].mean for column in common] for line in ours]
    for line, rank, values in zip(ours, average_ranks(means), means, strict=True):
        line.ours[kind] = Score(rank if kind == "rank" else statistics.fmean(values))
    title = f"{layout.column_title(kind)}{f' in {section.title}' if section.title else ''}"
    names = ", ".join(map(layout.column_title, common))
    return [f"{title}: ours over {len(ours)} lines and {len(common)} of {len(columns)} data sets ({names})"]


def _mark(lines: Sequence[Line], column: str) -> None:
    """Mark the best and the second-best of our scores as printed, of those measured in the most frequent way."""
    if column in UNMARKED or not lines:
        return
    way = Counter(line.ours[column].way for line in lines).most_common(1)[0][0]
    ranked = {id(line): round(line.ours[column].mean, 2) for line in lines if line.ours[column].way == way}
    order = sorted(set(ranked.values()), reverse=column != "rank")
    for line in lines if len(ranked) > 1 else ():
        if id(line) in ranked:
            line.rankings[column] = order.index(ranked[id(line)])


def _way_notes(layout: Layout, lines: Sequence[Line]) -> list[str]:
    """How the numbers of a column were measured, and which lines differ in that."""
    titles: dict[str, list[str]] = {}  # text -> columns
    for column in layout.paper.columns:
        ways: dict[Way, list[str]] = {}
        for line in lines:
            if column in line.ours and line.ours[column].way:
                ways.setdefault(line.ours[column].way, []).append(line.row)
        text = "; ".join(", ".join(way) + f" ({', '.join(names)})" * (len(ways) > 1) for way, names in ways.items())
        if text:
            text += "; only the most frequent way is ranked" * (len(ways) > 1)
            titles.setdefault(text, []).append(layout.column_title(column))
    return [f"{', '.join(columns)}: {text}" for text, columns in titles.items()]


# --- formats ----------------------------------------------------------------------------------------------------------


def our_cell(line: Line, column: str) -> Cell:
    """`61.18 ± 0.30`: the mean over runs with half its 95% interval."""
    score = line.ours.get(column)
    if score is None:
        return Cell("")
    if column == "collapsed":
        count = round(score.mean * score.n)
        return Cell({0: "no", score.n: "yes"}.get(count, f"{count} of {score.n} runs"))
    text = mean_text(score.mean, score.interval, DECIMALS.get(column, 2))
    return Cell(text, mark_for_rank(line.rankings.get(column, UNRANKED)))


def paper_cell(line: Line, column: str) -> str:
    """`(61.18 ± 0.30)`: the paper's number with its interval, if printed."""
    if column not in line.paper:
        return ""
    if column == "collapsed":
        return "(yes)" if line.paper[column][0] else "(no)"
    return f"({mean_text(*line.paper[column], DECIMALS.get(column, 2))})"


def as_table(filled: FilledTable) -> Table:
    """Ours and the paper's in two lines."""
    layout, columns = filled.layout, filled.layout.paper.columns
    rows: list[Row | str] = []
    title = ""
    for line in filled.lines:
        if line.section.title != title:
            title = line.section.title
            rows.append(title)
        rows += [[line.row, *(our_cell(line, column) for column in columns)]] if line.ours else []
        theirs = ["" if line.ours else line.row, *(paper_cell(line, column) for column in columns)]
        rows += [theirs] if line.paper or not line.ours else []
    names = [layout.row_title, *map(layout.column_title, columns)]
    align = "l" + "r" * len(columns)
    caption = f"Table {layout.name}: {layout.title}"
    return Table(names, rows, align, caption, filled.notes, LEGEND.replace("best,", "best of ours,"))


def as_numbers(filled: FilledTable) -> Table:
    """Numbers only: per column ours, its standard deviation, interval and n, and the paper's with its interval."""
    suffixes = ("", " sd", " interval", " n", " paper", " paper interval")
    columns, rows = filled.layout.paper.columns, []
    for line in filled.lines:
        values: list[float] = []
        for column in columns:
            score = line.ours.get(column, Score(math.nan, n=0))
            values += [*score[:3], score.n or math.nan, *line.paper.get(column, (math.nan, math.nan))]
        numbers = ("" if math.isnan(value) else f"{value:.6g}" for value in values)
        rows.append([line.section.key, line.row, *numbers])
    titles = [filled.layout.column_title(column) + suffix for column in columns for suffix in suffixes]
    return Table(["Section", filled.layout.row_title, *titles], rows)


def write(filled: FilledTable, form: str) -> str:
    """The table as text, as Markdown, as LaTeX for booktabs, or as numbers in csv."""
    return write_table(as_numbers(filled) if form == "csv" else as_table(filled), form)
