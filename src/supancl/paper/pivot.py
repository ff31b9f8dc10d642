"""A table of the paper as a pivot of rows: our scores next to the paper's numbers, average ranks, marks and notes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from supancl.errors import BadInput
from supancl.evaluation.suite import shared_ranks
from supancl.paper.layouts import Head, Layout, Section
from supancl.paper.results import Entry, Group, Score, Way, group_entries
from supancl.reports.tables import LEGEND, Cell, Row, Table, mark_for_rank, mean_text, write_table

DECIMALS = {"ssl": 4, "sup": 4, "within": 3}
UNMARKED = ("ssl", "sup", "within", "ratio", "collapsed")  # for these no value is better than another
UNRANKED = 9  # the rank of a cell that is not marked


@dataclass
class Line:
    """One line: the cells left of the numbers, our scores and the paper's numbers by column."""

    section: str
    row: str
    head: Head
    ours: dict[str, Score] = field(default_factory=dict)
    paper: dict[str, tuple[float, float]] = field(default_factory=dict)
    rankings: dict[str, int] = field(default_factory=dict)  # 0: best of ours, 1: second-best
    groups: list[Group] = field(default_factory=list)


@dataclass
class FilledTable:
    """The whole table, ready to be written in any format."""

    layout: Layout
    lines: list[Line]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        def ours(score: Score) -> dict[str, Any]:
            way = {name: value for name, value in score.way._asdict().items() if value}
            return {"mean": score.mean, "sd": score.sd, "interval": score.interval, "n": score.n, "way": way}

        lines = [
            {
                "section": line.section,
                "head": list(line.head),
                "ours": {column: ours(score) for column, score in line.ours.items()},
                "paper": {column: {"mean": mean, "interval": half} for column, (mean, half) in line.paper.items()},
                "best": [column for column, ranking in line.rankings.items() if ranking == 0],
                "second": [column for column, ranking in line.rankings.items() if ranking == 1],
                "runs": [str(entry.path) for group in line.groups for entry in group.entries],
            }
            for line in self.lines
        ]
        layout = self.layout
        names = {"table": layout.name, "label": layout.paper.label, "heads": list(layout.rows.titles)}
        return {**names, "columns": list(layout.paper.columns), "lines": lines, "notes": self.notes}


def fill(layout: Layout, entries: Sequence[Entry]) -> FilledTable:
    """Fill the paper's rows with groups of runs; a row that the paper does not have comes last."""
    groups = group_entries(entries)
    placed = [(key, group) for group in groups if (key := _row_of(layout, group)) is not None]
    if groups and not placed:
        raise BadInput(
            f"none of the runs belongs in Table {layout.name} ({layout.rows.requirement}); the first is "
            f"{groups[0].description}"
        )
    lines: list[Line] = []
    notes = [f"paper, in brackets: {layout.setting}"]
    notes += [f"{layout.column_title(key)}: {group.description}" for key, group in placed if layout.by_method]
    for section in layout.sections:
        made: dict[Any, Line] = {}
        for key, group in placed:
            for row, scores in _cells(layout, section, key, group) if section.accepts(group.recipe) else ():
                place = row if layout.by_method else (row, id(group))  # two settings of one row stay apart
                line = made.setdefault(place, _line(layout, section, row))
                if line.ours.keys() & scores.keys():
                    raise BadInput(
                        f"Table {layout.name} has one cell for {key}, and these runs have two settings of it"
                    )
                line.ours |= scores
                line.groups.append(group)
        for row in dict.fromkeys((*layout.paper.rows[section.key], *(line.row for line in made.values()))):
            lines += [line for line in made.values() if line.row == row] or [_line(layout, section, row)]
        inside = [line for line in lines if line.section == section.key and line.ours]
        notes += _summarize(layout, inside, section)
        ranked = [[(line, column) for column in line.ours] for line in inside]
        if not layout.by_method:  # in Table H.1 a row is ranked, elsewhere a column
            ranked = [[(line, column) for line in inside if column in line.ours] for column in layout.paper.columns]
        for cells in ranked:
            _mark([(line, column) for line, column in cells if column not in UNMARKED])
    if not layout.by_method:
        notes += dict.fromkeys(
            f"{' '.join(filter(None, line.head))}: {g.description}" for line in lines for g in line.groups
        )
    notes += _way_notes(layout, lines)
    ours = [score for line in lines for score in line.ours.values()]
    notes += [layout.remark] * (bool(layout.remark) and bool(ours))
    notes += [f"not in this table: {group.description}" for group in groups if _row_of(layout, group) is None]
    notes += dict.fromkeys(text for group in groups for entry in group.entries for text in entry.notes)
    if any(not math.isnan(score.interval) for score in ours):
        notes.append("±: half a 95% interval: of a mean over the seeds, of a single run over its images or detectors")
    return FilledTable(layout, lines, notes)


# --- lines ------------------------------------------------------------------------------------------------------------


def _row_of(layout: Layout, group: Group) -> str | None:
    if group.recipe is None:
        return None if layout.by_method else group.entries[0].path.name
    return layout.rows.key(group.recipe)


def _line(layout: Layout, section: Section, row: str) -> Line:
    return Line(section.key, row, layout.rows.head(row), paper=layout.paper.numbers(section.key, row))


def _cells(layout: Layout, section: Section, key: str, group: Group) -> Iterator[tuple[str, dict[str, Score]]]:
    """The rows that a group belongs in, and its numbers there by column."""
    if layout.by_method:
        family = group.entries[0].pretrained_on
        wanted = {f"{family} {data}": {key: f"linear:{data}"} for data in (family, "cifar10", "cifar100")}
    else:
        suffix = f":{section.key}" if section.key else ""
        columns = layout.paper.columns
        wanted = {key: {column: column + suffix * column.startswith("fewshot:") for column in columns}}
    for row, measures in wanted.items():
        found = {column: group.score(measure, layout.probe) for column, measure in measures.items()}
        if any(found.values()) or not layout.by_method:
            yield row, {column: score for column, score in found.items() if score is not None}


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


def _ranked_way(scores: Iterable[Score]) -> Way:
    """The most frequent way of measuring, the first one if equal; only its scores are ranked."""
    return Counter(score.way for score in scores).most_common(1)[0][0]


def _mark(cells: Sequence[tuple[Line, str]]) -> None:
    """Mark the best and the second-best of these scores of ours as printed."""
    way = _ranked_way(line.ours[column] for line, column in cells) if cells else None
    ranked = [
        (line, column, round(line.ours[column].mean, 2)) for line, column in cells if line.ours[column].way == way
    ]
    order = sorted({value for _, _, value in ranked}, reverse=bool(cells) and cells[0][1] != "rank")
    for line, column, value in ranked if len(ranked) > 1 else ():
        line.rankings[column] = order.index(value)


def _way_notes(layout: Layout, lines: Sequence[Line]) -> list[str]:
    """How the numbers of a column were measured, and which lines differ in that."""
    columns: dict[str, list[tuple[str, Score]]] = {}
    for line in lines:
        for column, score in line.ours.items():
            title, name = layout.column_title(column), " ".join(filter(None, line.head))
            columns.setdefault(title, []).extend([(name, score)] * (score.way != Way()))
    notes: dict[str, list[str]] = {}  # text -> columns
    for title, cells in columns.items():
        names: dict[Way, list[str]] = {}
        for name, score in cells:
            names.setdefault(score.way, []).append(name)
        text = "; ".join(f"{way} ({', '.join(of)})" if len(names) > 1 else str(way) for way, of in names.items())
        if len(names) > 1:
            text += f"; only {_ranked_way(score for _, score in cells)} is ranked"
        if text:
            notes.setdefault(text, []).append(title)
    return [f"{', '.join(titles)}: {note}" for note, titles in notes.items()]


# --- formats ----------------------------------------------------------------------------------------------------------


def our_cell(line: Line, column: str) -> Cell:
    """`61.18 ± 0.30`: the mean over runs with half its 95% interval."""
    score = line.ours.get(column)
    if score is None:
        return Cell("")
    mark, decimals = mark_for_rank(line.rankings.get(column, UNRANKED)), DECIMALS.get(column, 2)
    if column == "collapsed":
        count = round(score.mean * score.n)
        return Cell({0: "no", score.n: "yes"}.get(count, f"{count} of {score.n} runs"))
    return Cell(mean_text(score.mean, score.interval, decimals), mark)


def paper_cell(line: Line, column: str) -> str:
    """`(61.18 ± 0.30)`: the paper's number with its interval, if printed."""
    if column not in line.paper:
        return ""
    mean, half = line.paper[column]
    if column == "collapsed":
        return "(yes)" if mean else "(no)"
    decimals = DECIMALS.get(column, 2)
    return f"({mean:.{decimals}f})" if math.isnan(half) else f"({mean:.{decimals}f} ± {half:.{decimals}f})"


def as_table(filled: FilledTable, apart: bool = False) -> Table:
    """Ours and the paper's in one cell, or `apart`, in two lines: a dozen data sets leave no room for both in one."""
    layout, columns = filled.layout, filled.layout.paper.columns
    titles = {section.key: section.title for section in layout.sections}
    rows: list[Row | str] = []
    section = ""
    for line in filled.lines:
        if line.section != section:
            section = line.section
            rows.append(titles[section])
        ours, theirs = [our_cell(line, column) for column in columns], [paper_cell(line, column) for column in columns]
        if not apart:
            both = [cell._replace(suffix=number) for cell, number in zip(ours, theirs, strict=True)]
            rows.append([*line.head, *both])
        else:
            rows += [[*line.head, *ours]] if line.ours else []
            head = [""] * len(line.head) if line.ours else line.head
            rows += [[*head, *theirs]] if line.paper or not line.ours else []
    names = [*layout.rows.titles, *map(layout.column_title, columns)]
    align = "l" * len(layout.rows.titles) + "r" * len(columns)
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
        rows.append([line.section, *line.head, *("" if math.isnan(value) else f"{value:.6g}" for value in values)])
    titles = [filled.layout.column_title(column) + suffix for column in columns for suffix in suffixes]
    return Table(["Section", *filled.layout.rows.titles, *titles], rows)


def write(filled: FilledTable, form: str) -> str:
    """The table as text, as Markdown, as LaTeX for booktabs, or as numbers in csv."""
    return write_table(as_numbers(filled) if form == "csv" else as_table(filled, apart=form == "text"), form)


def to_show(filled: FilledTable, form: str) -> Table | str:
    """What a terminal prints; a table fits its width."""
    return as_table(filled, apart=True) if form == "text" else write(filled, form)
