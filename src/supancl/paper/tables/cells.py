"""Fill a table: our scores next to the paper's numbers, average ranks, best and second-best, and notes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from supancl.errors import BadInput
from supancl.paper.tables.entries import Entry
from supancl.paper.tables.layouts import DECIMALS, METHOD_TITLES, NO_PAPER_ROW, UNMARKED, Layout, Section
from supancl.paper.tables.runs import Group, Score, group_entries
from supancl.probes.ranking import shared_ranks

Number = tuple[float, float]


@dataclass
class Line:
    """One line: the cells left of the numbers, our scores and the paper's numbers by column."""

    section: str
    head: tuple[str, ...]
    ours: dict[str, Score] = field(default_factory=dict)
    paper: dict[str, Number] = field(default_factory=dict)
    rankings: dict[str, int] = field(default_factory=dict)  # 0: best of ours, 1: second-best
    groups: list[Group] = field(default_factory=list)


@dataclass
class FilledTable:
    """The whole table, ready to be written in any format."""

    layout: Layout
    lines: list[Line]
    notes: list[str]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.layout.paper.columns

    def decimals(self, column: str) -> int:
        return DECIMALS.get(column, 2)

    def to_json(self) -> dict[str, Any]:
        lines = [
            {
                "section": line.section,
                "head": list(line.head),
                "ours": {column: score._asdict() for column, score in line.ours.items()},
                "paper": {
                    column: {"mean": number, "interval": interval} for column, (number, interval) in line.paper.items()
                },
                "best": [column for column, ranking in line.rankings.items() if ranking == 0],
                "second": [column for column, ranking in line.rankings.items() if ranking == 1],
                "runs": [str(entry.path) for group in line.groups for entry in group.entries],
            }
            for line in self.lines
        ]
        return {
            "table": self.layout.name,
            "label": self.layout.paper.label,
            "heads": list(self.layout.heads),
            "columns": list(self.columns),
            "lines": lines,
            "notes": self.notes,
        }


def fill(layout: Layout, entries: Sequence[Entry]) -> FilledTable:
    """Fill the paper's rows with groups of runs, and add a line for each group that the paper has no row for."""
    groups = group_entries(entries)
    placed, not_placed = [], []
    for group in groups:
        row = NO_PAPER_ROW if group.recipe is None else layout.row_of(group.recipe)
        if row is None or (group.recipe is None and layout.by_method):
            not_placed.append(group)
        else:
            placed.append((row, group))
    if not_placed and not placed:
        raise BadInput(
            f"none of the runs belongs in Table {layout.name} ({layout.requirement}); "
            f"the first is {not_placed[0].description}"
        )
    lines = _lines_by_data_pair(layout, placed) if layout.by_method else _lines_by_row(layout, placed)
    _number_equal_heads(lines)
    notes = [f"paper, in brackets: {layout.setting}", *_line_notes(layout, lines, placed)]
    notes += _procedure_notes(layout, lines)
    if layout.remark and any(line.ours for line in lines):
        notes.append(layout.remark)
    for section in layout.sections:
        section_lines = [line for line in lines if line.section == section.key]
        notes += _summarize(layout, section_lines, section)
        _mark_best(layout, section_lines)
    notes += [f"not in this table: {group.description}" for group in not_placed]
    notes += [text for group in groups for text in group.copies]
    notes += sorted({text for group in groups for entry in group.entries for text in entry.excluded})
    return FilledTable(layout, lines, [*notes, *_deviation_notes(layout, lines)])


def _lines_by_row(layout: Layout, placed: Sequence[tuple[str, Group]]) -> list[Line]:
    lines = []
    for section in layout.sections:
        in_section = [(row, group) for row, group in placed if section.accepts(group.recipe)]
        for row in layout.paper.rows[section.key]:
            paper = {
                column: number
                for column in layout.paper.columns
                if (number := layout.paper.number(section.key, row, column)) is not None
            }
            our_lines = [_line(layout, section, group) for key, group in in_section if key == row]
            for line in our_lines:
                line.paper = paper
                line.head = tuple(
                    our_cell if our_cell == paper_cell else f"{our_cell} ({paper_cell})"
                    for our_cell, paper_cell in zip(line.head, layout.row_head(row), strict=True)
                )
            lines += our_lines or [Line(section.key, layout.row_head(row), paper=paper)]
        lines += [
            _line(layout, section, group) for row, group in in_section if row not in layout.paper.rows[section.key]
        ]
    return lines


def _line(layout: Layout, section: Section, group: Group) -> Line:
    if group.recipe is None:
        head = (group.entries[0].path.name, *[""] * (len(layout.heads) - 1))
    else:
        head = layout.head_of(group.recipe)
    scores = {column: group.score(_measure(column, section), layout.probe) for column in layout.paper.columns}
    return Line(
        section.key, head, {column: score for column, score in scores.items() if score is not None}, groups=[group]
    )


def _measure(column: str, section: Section) -> str:
    return f"{column}:{section.key}" if column.startswith("fewshot:") else column


def _lines_by_data_pair(layout: Layout, placed: Sequence[tuple[str, Group]]) -> list[Line]:
    """Table H.1: a line per pair (pretrained on, evaluated on), a column per method."""
    by_cell: dict[tuple[str, str], Group] = {}
    for method, group in placed:
        family = group.entries[0].pretrained_on
        if (family, method) in by_cell:
            raise BadInput(
                f"Table {layout.name} has one cell for {family}.{method}, but the runs have two settings of "
                f"it: {by_cell[family, method].description}; and {group.description}; give the runs of one setting"
            )
        by_cell[family, method] = group
    families = list(dict.fromkeys(family for family, _ in by_cell))
    pairs = [tuple(row.split()) for row in layout.paper.rows[""]]
    pairs += [
        (family, evaluated_on)
        for family in families
        for evaluated_on in dict.fromkeys((family, "cifar10", "cifar100"))
        if (family, evaluated_on) not in pairs
    ]
    lines = []
    for family, evaluated_on in pairs:
        row = f"{family} {evaluated_on}"
        line = Line("", layout.row_head(row))
        for method in layout.paper.columns:
            number = layout.paper.number("", row, method)
            if number is not None:
                line.paper[method] = number
            cell_group = by_cell.get((family, method))
            score = cell_group.score(f"linear:{evaluated_on}", layout.probe) if cell_group is not None else None
            if cell_group is not None and score is not None:
                line.ours[method] = score
                line.groups.append(cell_group)
        if line.paper or line.ours:
            lines.append(line)
    return lines


def _number_equal_heads(lines: Sequence[Line]) -> None:
    """Number the lines that have equal heads, so that the notes can refer to them."""
    for line in lines:
        same_head = [other for other in lines if other.section == line.section and other.head == line.head]
        if len(same_head) > 1:
            for index, other in enumerate(other for other in same_head if other.groups):
                other.head = (f"{other.head[0]} [{index + 1}]".strip(), *other.head[1:])


def _line_notes(layout: Layout, lines: Sequence[Line], placed: Sequence[tuple[str, Group]]) -> list[str]:
    """Describe each of our lines, and how to fill the ones without a measurement."""
    if layout.by_method:
        named_groups = [(METHOD_TITLES[method], group) for method, group in placed]
        empty = {id(group) for _, group in placed} - {id(group) for line in lines for group in line.groups}
    else:
        named_groups = [(layout.line_name(line.head), line.groups[0]) for line in lines if line.groups]
        empty = {id(line.groups[0]) for line in lines if line.groups and not line.ours}
    notes = [f"{name}: {group.description}" for name, group in named_groups]
    missing = list(dict.fromkeys(name for name, group in named_groups if id(group) in empty))
    if missing:
        notes.append(f"not measured yet: {', '.join(missing)}; {_advice_to_fill(layout)}")
    return list(dict.fromkeys(notes))


def _advice_to_fill(layout: Layout) -> str:
    kinds = dict.fromkeys(column.partition(":")[0] for column in layout.paper.columns)
    if layout.by_method:
        return "supancl evaluate linear RUN --data SOURCE fills it"
    commands = {
        "transfer": "evaluate transfer",
        "fewshot": "evaluate fewshot",
        "linear": "evaluate linear" + (" probe sgd" if layout.probe == "sgd" else ""),
        "knn": "evaluate knn --k 20",
        "ap": "detect train",
    }
    return f"{', '.join(f'supancl {commands[kind]}' for kind in kinds if kind in commands)} would fill it"


def average_ranks(scores: Sequence[Sequence[float]], decimals: int = 2) -> list[float]:
    """The mean over columns of each line's rank, 1 for the highest score; scores that print the same share a rank.

    >>> average_ranks([[90.0, 70.001], [80.0, 70.0]])
    [1.25, 1.75]
    """
    printed = np.array([[round(value, decimals) for value in line] for line in scores], dtype=np.float64)
    return [float(value) for value in shared_ranks(printed).mean(axis=1)]


def _summarize(layout: Layout, lines: Sequence[Line], section: Section) -> list[str]:
    """Add Avg or Avg.Rank to our lines, over the data sets that all of them have; returns notes about it."""
    kind = next((column for column in ("rank", "average") if column in layout.paper.columns), None)
    columns = [column for column in layout.paper.columns if column != kind]
    our_lines = [line for line in lines if line.ours]
    common = [column for column in columns if all(column in line.ours for line in our_lines)]
    if kind is None or not our_lines:
        return []
    location = f" in {section.title}" if section.title else ""
    title = layout.column_title(kind)
    if not common or (kind == "rank" and len(our_lines) < 2):
        return [f"{title}{location}: blank, it needs {'two lines with ' if kind == 'rank' else ''}a data set in common"]
    if kind == "rank":
        ranks = average_ranks([[line.ours[column].mean for column in common] for line in our_lines])
        for line, rank in zip(our_lines, ranks, strict=True):
            line.ours[kind] = Score(rank)
    else:
        for line in our_lines:
            average = line.groups[0].average([_measure(column, section) for column in common])
            line.ours[kind] = average or Score(statistics.fmean(line.ours[column].mean for column in common))
    if len(common) == len(columns):
        return [f"{title}{location}: ours among the {len(our_lines)} lines with runs"] if kind == "rank" else []
    names = ", ".join(map(layout.column_title, common))
    return [f"{title}{location}: ours over {len(common)} of {len(columns)} data sets ({names}), the paper's over all"]


def _mark_best(layout: Layout, lines: Sequence[Line]) -> None:
    """Mark our best and second-best as printed: within a line in Table H.1, within a column in all others."""
    if layout.by_method:
        for line in lines:
            cells = {(0, column): score for column, score in line.ours.items()}
            _mark_cells([line], cells, lowest=False)
        return
    for column in layout.paper.columns:
        if column not in UNMARKED:
            cells = {(index, column): line.ours[column] for index, line in enumerate(lines) if column in line.ours}
            _mark_cells(lines, cells, lowest=column == "rank")


def ranked_procedure(scores: Sequence[Score]) -> str:
    """The most frequent way of measuring, the first one if equal; only its scores are ranked."""
    return Counter(score.how for score in scores).most_common(1)[0][0]


def _mark_cells(lines: Sequence[Line], cells: dict[tuple[int, str], Score], lowest: bool) -> None:
    cells = {key: score for key, score in cells.items() if score.how == ranked_procedure(list(cells.values()))}
    if len(cells) < 2:
        return
    printed = {key: round(score.mean, 2) for key, score in cells.items()}
    order = sorted(set(printed.values()), reverse=not lowest)
    for (index, column), value in printed.items():
        lines[index].rankings[column] = order.index(value)


def _procedure_notes(layout: Layout, lines: Sequence[Line]) -> list[str]:
    """How the numbers of a column were measured, and which lines differ in that."""
    notes: dict[str, list[str]] = {}  # text -> columns
    titled_cells: list[tuple[str, list[tuple[str, Score]]]]
    if layout.by_method:
        titled_cells = [
            (" -> ".join(line.head), [(METHOD_TITLES[column], score) for column, score in line.ours.items()])
            for line in lines
        ]
    else:
        titled_cells = [
            (
                layout.column_title(column),
                [(layout.line_name(line.head), line.ours[column]) for line in lines if column in line.ours],
            )
            for column in layout.paper.columns
        ]
    for title, cells in titled_cells:
        procedures: dict[str, list[str]] = {}
        for name, score in cells:
            if score.how:
                procedures.setdefault(score.how, []).append(name)
        if procedures:
            note = "; ".join(
                procedures
                if len(procedures) == 1
                else [f"{how} ({', '.join(names)})" for how, names in procedures.items()]
            )
            if len(procedures) > 1:
                note += f"; only {ranked_procedure([score for _, score in cells if score.how])} is ranked"
            notes.setdefault(note, []).append(title)
    texts = [f"{', '.join(titles)}: {note}" for note, titles in notes.items()]
    if any("held-out images" in note and ("probe" in note or note.startswith("held-out")) for note in notes):
        texts.append("the paper's k-NN and linear accuracies are on test images")
    return texts


def _deviation_notes(layout: Layout, lines: Sequence[Line]) -> list[str]:
    scores = [score for line in lines for score in line.ours.values()]
    notes = []
    with_sd = [score for score in scores if not math.isnan(score.sd)]
    if with_sd:
        single = ", of a single run over its detectors" if any(score.n == 1 for score in with_sd) else ""
        notes.append(f"±: standard deviation over the runs{single}")
    if any(not math.isnan(score.interval) for score in scores):
        notes.append("± of a single run: the 95% interval of its evaluation")
    for line in lines:
        runs = sum(len(group.entries) for group in line.groups) if len(line.groups) == 1 else 0
        fewer = [column for column, score in line.ours.items() if column != "rank" and score.n < runs]
        if fewer:
            notes.append(
                f"{layout.line_name(line.head)}: fewer runs than n in "
                f"{', '.join(f'{layout.column_title(column)} ({line.ours[column].n})' for column in fewer)}"
            )
    return notes
