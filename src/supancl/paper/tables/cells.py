"""A table filled: scores of runs beside the paper's numbers, average ranks, best and second-best, and notes."""

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
from supancl.paper.tables.layouts import BEYOND, DECIMALS, METHOD_TITLES, UNMARKED, Layout, Section
from supancl.paper.tables.runs import Group, Score, group_entries
from supancl.probes.ranking import shared_ranks

Number = tuple[float, float]


@dataclass
class Line:
    """One line: the cells on the left, our scores and the paper's numbers by column."""

    section: str
    head: tuple[str, ...]
    ours: dict[str, Score] = field(default_factory=dict)
    paper: dict[str, Number] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)  # 0: best of ours, 1: second-best
    groups: list[Group] = field(default_factory=list)


@dataclass
class Filled:
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
                "best": [column for column, place in line.places.items() if place == 0],
                "second": [column for column, place in line.places.items() if place == 1],
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


def fill(layout: Layout, entries: Sequence[Entry]) -> Filled:
    """Every row of the paper's table, and a line for each set of runs that belongs in it."""
    groups = group_entries(entries)
    placed, left = [], []
    for group in groups:
        row = BEYOND if group.recipe is None else layout.row_of(group.recipe)
        if row is None or (group.recipe is None and layout.by_method):
            left.append(group)
        else:
            placed.append((row, group))
    if left and not placed:
        raise BadInput(
            f"none of the runs belongs in Table {layout.name} ({layout.wants}); the first is {left[0].description}"
        )
    lines = _pivoted(layout, placed) if layout.by_method else _rows(layout, placed)
    _name_apart(lines)
    notes = [f"paper, in brackets: {layout.setting}", *_line_notes(layout, lines, placed)]
    notes += _way_notes(layout, lines)
    if layout.remark and any(line.ours for line in lines):
        notes.append(layout.remark)
    for section in layout.sections:
        here = [line for line in lines if line.section == section.key]
        notes += _summarize(layout, here, section)
        _place(layout, here)
    notes += [f"not in this table: {group.description}" for group in left]
    notes += [text for group in groups for text in group.copies]
    notes += sorted({text for group in groups for entry in group.entries for text in entry.passed_over})
    return Filled(layout, lines, [*notes, *_spread_notes(layout, lines)])


def _rows(layout: Layout, placed: Sequence[tuple[str, Group]]) -> list[Line]:
    lines = []
    for section in layout.sections:
        here = [(row, group) for row, group in placed if section.takes(group.recipe)]
        for row in layout.paper.rows[section.key]:
            paper = {
                column: number
                for column in layout.paper.columns
                if (number := layout.paper.number(section.key, row, column)) is not None
            }
            mine = [_line(layout, section, group) for key, group in here if key == row]
            for line in mine:
                line.paper = paper
                line.head = tuple(
                    ours if ours == theirs else f"{ours} ({theirs})"
                    for ours, theirs in zip(line.head, layout.row_head(row), strict=True)
                )
            lines += mine or [Line(section.key, layout.row_head(row), paper=paper)]
        lines += [_line(layout, section, group) for row, group in here if row not in layout.paper.rows[section.key]]
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


def _pivoted(layout: Layout, placed: Sequence[tuple[str, Group]]) -> list[Line]:
    """Table H.1: a line per data pretrained on and data judged on, a column per method."""
    of: dict[tuple[str, str], Group] = {}
    for method, group in placed:
        family = group.entries[0].pretrained_on
        if (family, method) in of:
            raise BadInput(
                f"Table {layout.name} has one cell for {family}.{method}, and the runs have two settings of "
                f"it: {of[family, method].description}; and {group.description}; give the runs of one of them"
            )
        of[family, method] = group
    families = list(dict.fromkeys(family for family, _ in of))
    pairs = [tuple(row.split()) for row in layout.paper.rows[""]]
    pairs += [
        (family, onto)
        for family in families
        for onto in dict.fromkeys((family, "cifar10", "cifar100"))
        if (family, onto) not in pairs
    ]
    lines = []
    for family, onto in pairs:
        row = f"{family} {onto}"
        line = Line("", layout.row_head(row))
        for method in layout.paper.columns:
            number = layout.paper.number("", row, method)
            if number is not None:
                line.paper[method] = number
            group_here = of.get((family, method))
            score = group_here.score(f"linear:{onto}", layout.probe) if group_here is not None else None
            if group_here is not None and score is not None:
                line.ours[method] = score
                line.groups.append(group_here)
        if line.paper or line.ours:
            lines.append(line)
    return lines


def _name_apart(lines: Sequence[Line]) -> None:
    """Lines that look alike on the left get a number, under which the notes say what they are."""
    for line in lines:
        same_head = [other for other in lines if other.section == line.section and other.head == line.head]
        if len(same_head) > 1:
            for at, other in enumerate(other for other in same_head if other.groups):
                other.head = (f"{other.head[0]} [{at + 1}]".strip(), *other.head[1:])


def _line_notes(layout: Layout, lines: Sequence[Line], placed: Sequence[tuple[str, Group]]) -> list[str]:
    """What each line of ours is, and how to fill it where nothing was measured yet."""
    if layout.by_method:
        named = [(METHOD_TITLES[method], group) for method, group in placed]
        empty = {id(group) for _, group in placed} - {id(group) for line in lines for group in line.groups}
    else:
        named = [(layout.line_name(line.head), line.groups[0]) for line in lines if line.groups]
        empty = {id(line.groups[0]) for line in lines if line.groups and not line.ours}
    notes = [f"{name}: {group.description}" for name, group in named]
    missing = list(dict.fromkeys(name for name, group in named if id(group) in empty))
    if missing:
        notes.append(f"nothing measured yet of {', '.join(missing)}: {_way_out(layout)}")
    return list(dict.fromkeys(notes))


def _way_out(layout: Layout) -> str:
    wanted = dict.fromkeys(column.partition(":")[0] for column in layout.paper.columns)
    if layout.by_method:
        return "supancl evaluate linear RUN --data SOURCE fills it"
    commands = {
        "transfer": "evaluate transfer",
        "fewshot": "evaluate fewshot",
        "linear": "evaluate linear" + (" --probe sgd" if layout.probe == "sgd" else ""),
        "knn": "evaluate knn",
        "ap": "detect train",
    }
    return f"{', '.join(f'supancl {commands[kind]}' for kind in wanted if kind in commands)} would fill it"


def average_ranks(scores: Sequence[Sequence[float]], decimals: int = 2) -> list[float]:
    """The mean over columns of each line's rank, 1 for the highest score; scores that are printed alike share a rank.

    >>> average_ranks([[90.0, 70.001], [80.0, 70.0]])
    [1.25, 1.75]
    """
    printed = np.array([[round(value, decimals) for value in line] for line in scores], dtype=np.float64)
    return [float(value) for value in shared_ranks(printed).mean(axis=1)]


def _summarize(layout: Layout, lines: Sequence[Line], section: Section) -> list[str]:
    """Avg and Avg.Rank of our lines, over the data sets that all of them have."""
    kind = next((column for column in ("rank", "average") if column in layout.paper.columns), None)
    columns = [column for column in layout.paper.columns if column != kind]
    mine = [line for line in lines if line.ours]
    common = [column for column in columns if all(column in line.ours for line in mine)]
    if kind is None or not mine:
        return []
    where = f" in {section.title}" if section.title else ""
    title = layout.column_title(kind)
    if not common or (kind == "rank" and len(mine) < 2):
        return [f"{title}{where}: blank, it takes {'two lines with ' if kind == 'rank' else ''}a data set in common"]
    if kind == "rank":
        ranks = average_ranks([[line.ours[column].mean for column in common] for line in mine])
        for line, rank in zip(mine, ranks, strict=True):
            line.ours[kind] = Score(rank)
    else:
        for line in mine:
            average = line.groups[0].average([_measure(column, section) for column in common])
            line.ours[kind] = average or Score(statistics.fmean(line.ours[column].mean for column in common))
    if len(common) == len(columns):
        return [f"{title}{where}: ours among the {len(mine)} lines with runs"] if kind == "rank" else []
    names = ", ".join(map(layout.column_title, common))
    return [f"{title}{where}: ours over {len(common)} of {len(columns)} data sets ({names}), the paper's over all"]


def _place(layout: Layout, lines: Sequence[Line]) -> None:
    """Best and second-best of ours, as printed: a line apart for Table H.1, down each column otherwise."""
    if layout.by_method:
        for line in lines:
            cells = {(0, column): score for column, score in line.ours.items()}
            _mark([line], cells, lowest=False)
        return
    for column in layout.paper.columns:
        if column not in UNMARKED:
            cells = {(at, column): line.ours[column] for at, line in enumerate(lines) if column in line.ours}
            _mark(lines, cells, lowest=column == "rank")


def ranked_way(scores: Sequence[Score]) -> str:
    """The way of measuring that most scores have, the first of equally many: only those are ranked."""
    return Counter(score.how for score in scores).most_common(1)[0][0]


def _mark(lines: Sequence[Line], cells: dict[tuple[int, str], Score], lowest: bool) -> None:
    cells = {key: score for key, score in cells.items() if score.how == ranked_way(list(cells.values()))}
    if len(cells) < 2:
        return
    printed = {key: round(score.mean, 2) for key, score in cells.items()}
    order = sorted(set(printed.values()), reverse=not lowest)
    for (at, column), value in printed.items():
        lines[at].places[column] = order.index(value)


def _way_notes(layout: Layout, lines: Sequence[Line]) -> list[str]:
    """How the numbers of a column were measured, where there is more than one way, and which lines differ."""
    notes: dict[str, list[str]] = {}  # what is said -> of which columns
    parts: list[tuple[str, list[tuple[str, Score]]]]
    if layout.by_method:
        parts = [
            (" -> ".join(line.head), [(METHOD_TITLES[column], score) for column, score in line.ours.items()])
            for line in lines
        ]
    else:
        parts = [
            (
                layout.column_title(column),
                [(layout.line_name(line.head), line.ours[column]) for line in lines if column in line.ours],
            )
            for column in layout.paper.columns
        ]
    for title, cells in parts:
        ways: dict[str, list[str]] = {}
        for name, score in cells:
            if score.how:
                ways.setdefault(score.how, []).append(name)
        if ways:
            note = "; ".join(ways if len(ways) == 1 else [f"{how} ({', '.join(names)})" for how, names in ways.items()])
            if len(ways) > 1:
                note += f"; only {ranked_way([score for _, score in cells if score.how])} is ranked"
            notes.setdefault(note, []).append(title)
    found = [f"{', '.join(titles)}: {note}" for note, titles in notes.items()]
    if any("held-out images" in note and ("probe" in note or note.startswith("held-out")) for note in notes):
        found.append("the paper's k-NN and linear accuracies are of test images")
    return found


def _spread_notes(layout: Layout, lines: Sequence[Line]) -> list[str]:
    scores = [score for line in lines for score in line.ours.values()]
    notes = []
    spread = [score for score in scores if not math.isnan(score.sd)]
    if spread:
        single = ", of a single run over its detectors" if any(score.n == 1 for score in spread) else ""
        notes.append(f"±: standard deviation over the runs{single}")
    if any(not math.isnan(score.interval) for score in scores):
        notes.append("± of a single run: the 95% interval of its evaluation")
    for line in lines:
        wanted = sum(len(group.entries) for group in line.groups) if len(line.groups) == 1 else 0
        fewer = [column for column, score in line.ours.items() if column != "rank" and score.n < wanted]
        if fewer:
            notes.append(
                f"{layout.line_name(line.head)}: of fewer runs than n: "
                f"{', '.join(f'{layout.column_title(column)} ({line.ours[column].n})' for column in fewer)}"
            )
    return notes
