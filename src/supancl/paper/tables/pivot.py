"""A table of the paper as a pivot of rows: our scores next to the paper's numbers, average ranks, marks and notes."""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from supancl.errors import BadInput
from supancl.paper.tables.layouts import METHOD_TITLES, NO, NO_PAPER_ROW, YES, Head, Layout, Section
from supancl.paper.tables.results import Entry, Group, Score, Way, group_entries
from supancl.probes.ranking import shared_ranks
from supancl.reports.tables import LEGEND, Cell, Row, Table, mark_for_rank, to_csv, to_latex, to_markdown, to_text

DECIMALS = {"ssl": 4, "sup": 4, "within": 3}
UNMARKED = ("ssl", "sup", "within", "ratio", "collapsed")  # for these no value is better than another
UNRANKED = 9  # the rank of a cell that is not marked
LATEX_TITLES = {
    "alpha": r"$\alpha$",
    "l_ssl": r"$\ell_{\mathrm{ssl}}$",
    "l_sup": r"$\ell_{\mathrm{sup}}$",
    "S_W": r"$S_W$",
    "S_W/S_T %": r"$S_W / S_T$ (\%)",
    "k-NN": r"$k$-NN",
    "M": "$M$",
    **{name: rf"\textit{{{name}}}" for name in ("Avg", "Avg.Rank", "CL", "Sup", "EMA")},
}
LATEX_SIGNS = {YES: r"$\checkmark$", NO: r"$\times$", "†": r"$^\dagger$", "*": "$^*$", " x ": r" $\times$ "}


@dataclass
class Line:
    """One line: the cells left of the numbers, our scores and the paper's numbers by column."""

    section: str
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
    """Fill the paper's rows with groups of runs, and add a line for each group that the paper has no row for."""
    groups = group_entries(entries)
    rows = [NO_PAPER_ROW if group.recipe is None else layout.rows.of(group.recipe) for group in groups]
    if layout.by_method:
        rows = [None if group.recipe is None else row for row, group in zip(rows, groups, strict=True)]
    placed = [(row, group) for row, group in zip(rows, groups, strict=True) if row is not None]
    outside = [group.description for row, group in zip(rows, groups, strict=True) if row is None]
    if outside and not placed:
        raise BadInput(
            f"none of the runs belongs in Table {layout.name} ({layout.rows.requirement}); the first is {outside[0]}"
        )
    lines = _lines_by_data_pair(layout, placed) if layout.by_method else _lines_by_row(layout, placed)
    _number_equal_heads(lines)
    notes = [f"paper, in brackets: {layout.setting}", *_line_notes(layout, lines, placed)]
    notes += _way_notes(layout, lines)
    notes += [layout.remark] * (bool(layout.remark) and any(line.ours for line in lines))
    for section in layout.sections:
        section_lines = [line for line in lines if line.section == section.key]
        notes += _summarize(layout, section_lines, section)
        for column in () if layout.by_method else layout.paper.columns:
            if column not in UNMARKED:
                _mark([(line, column) for line in section_lines if column in line.ours])
    for line in lines if layout.by_method else ():
        _mark([(line, column) for column in line.ours])
    notes += [f"not in this table: {description}" for description in outside]
    notes += [text for group in groups for text in group.copies]
    notes += sorted({text for group in groups for entry in group.entries for text in entry.excluded})
    scores = [score for line in lines for score in line.ours.values()]
    if any(not math.isnan(score.sd) for score in scores):
        notes.append("±: standard deviation over the runs, or of a single run over its detectors")
    if any(not math.isnan(score.interval) for score in scores):
        notes.append("± of a single run: half the 95% interval of its evaluation")
    return FilledTable(layout, lines, notes)


# --- lines ------------------------------------------------------------------------------------------------------------


def _lines_by_row(layout: Layout, placed: Sequence[tuple[str, Group]]) -> list[Line]:
    lines = []
    for section in layout.sections:
        inside = [(row, group) for row, group in placed if section.accepts(group.recipe)]
        for row in layout.paper.rows[section.key]:
            head, paper = layout.rows.head(row), layout.paper.numbers(section.key, row)
            ours = [_line(layout, section, group) for key, group in inside if key == row]
            for line in ours:
                pairs = zip(line.head, head, strict=True)
                line.paper = paper
                line.head = tuple(cell if cell == theirs else f"{cell} ({theirs})" for cell, theirs in pairs)
            lines += ours or [Line(section.key, head, paper=paper)]
        others = [group for row, group in inside if row not in layout.paper.rows[section.key]]
        lines += [_line(layout, section, group) for group in others]
    return lines


def _line(layout: Layout, section: Section, group: Group) -> Line:
    unknown = (group.entries[0].path.name, *[""] * (len(layout.rows.titles) - 1))
    head = unknown if group.recipe is None else layout.rows.head_of(group.recipe)
    scores = {column: group.score(_measure(column, section), layout.probe) for column in layout.paper.columns}
    ours = {column: score for column, score in scores.items() if score is not None}
    return Line(section.key, head, ours, groups=[group])


def _measure(column: str, section: Section) -> str:
    return f"{column}:{section.key}" if column.startswith("fewshot:") else column


def _lines_by_data_pair(layout: Layout, placed: Sequence[tuple[str, Group]]) -> list[Line]:
    """Table H.1: a line per pair (pretrained on, evaluated on), a column per method."""
    cells: dict[tuple[str, str], Group] = {}
    for method, group in placed:
        family = group.entries[0].pretrained_on
        if (family, method) in cells:
            raise BadInput(
                f"Table {layout.name} has one cell for {family}.{method}, and the runs have two settings of it: "
                f"{cells[family, method].description}; and {group.description}; give the runs of one setting"
            )
        cells[family, method] = group
    pairs = [tuple(row.split()) for row in layout.paper.rows[""]]
    pairs += [(family, other) for family, _ in cells for other in (family, "cifar10", "cifar100")]
    lines = []
    for family, other in dict.fromkeys(pairs):
        row = f"{family} {other}"
        line = Line("", layout.rows.head(row), paper=layout.paper.numbers("", row))
        for method in layout.paper.columns:
            cell_group = cells.get((family, method))
            score = None if cell_group is None else cell_group.score(f"linear:{other}", layout.probe)
            if cell_group is not None and score is not None:
                line.ours[method] = score
                line.groups.append(cell_group)
        lines += [line] * bool(line.paper or line.ours)
    return lines


def _number_equal_heads(lines: Sequence[Line]) -> None:
    """Number the lines that have equal heads, so that the notes can refer to them."""
    heads = Counter((line.section, line.head) for line in lines)
    numbers: Counter[tuple[str, Head]] = Counter()
    for line in lines:
        key = (line.section, line.head)
        if heads[key] > 1 and line.groups:
            numbers[key] += 1
            line.head = (f"{line.head[0]} [{numbers[key]}]".strip(), *line.head[1:])


# --- averages and marks -----------------------------------------------------------------------------------------------


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
    ours = [line for line in lines if line.ours]
    if kind is None or not ours:
        return []
    columns = [column for column in layout.paper.columns if column != kind]
    common = [column for column in columns if all(column in line.ours for line in ours)]
    title = f"{layout.column_title(kind)}{f' in {section.title}' if section.title else ''}"
    if not common or (kind == "rank" and len(ours) < 2):
        return [f"{title}: blank, it needs {'two lines with ' if kind == 'rank' else ''}a data set in common"]
    means = [[line.ours[column].mean for column in common] for line in ours]
    for line, rank, values in zip(ours, average_ranks(means), means, strict=True):
        average = line.groups[0].mean_of([_measure(column, section) for column in common])
        line.ours[kind] = Score(rank) if kind == "rank" else average or Score(statistics.fmean(values))
    names = ", ".join(map(layout.column_title, common))
    if len(common) < len(columns):
        return [f"{title}: ours over {len(common)} of {len(columns)} data sets ({names}), the paper's over all"]
    return [f"{title}: ours among the lines with runs ({len(ours)})"] * (kind == "rank")


def _ranked_way(scores: Sequence[Score]) -> Way:
    """The most frequent way of measuring, the first one if equal; only its scores are ranked."""
    return Counter(score.way for score in scores).most_common(1)[0][0]


def _mark(cells: Sequence[tuple[Line, str]]) -> None:
    """Mark the best and the second-best of these scores of ours as printed."""
    if not cells:
        return
    way = _ranked_way([line.ours[column] for line, column in cells])
    ranked = [(line, column) for line, column in cells if line.ours[column].way == way]
    if len(ranked) < 2:
        return
    order = sorted({round(line.ours[column].mean, 2) for line, column in ranked}, reverse=ranked[0][1] != "rank")
    for line, column in ranked:
        line.rankings[column] = order.index(round(line.ours[column].mean, 2))


# --- notes ------------------------------------------------------------------------------------------------------------


def _line_notes(layout: Layout, lines: Sequence[Line], placed: Sequence[tuple[str, Group]]) -> list[str]:
    """Describe each of our lines, and name those without a measurement."""
    if layout.by_method:
        named = [(METHOD_TITLES[method], group) for method, group in placed]
    else:
        named = [(layout.line_name(line.head), line.groups[0]) for line in lines if line.groups]
    filled = {id(group) for line in lines if line.ours for group in line.groups}
    notes = [f"{name}: {group.description}" for name, group in named]
    missing = dict.fromkeys(name for name, group in named if id(group) not in filled)
    notes += [f"not measured yet: {', '.join(missing)}; supancl evaluate and supancl detect fill it"] * bool(missing)
    return list(dict.fromkeys(notes))


def _way_notes(layout: Layout, lines: Sequence[Line]) -> list[str]:
    """How the numbers of a column were measured, and which lines differ in that."""
    columns: dict[str, list[tuple[str, Score]]] = {}
    for line in lines:
        for column, score in line.ours.items():
            title, name = layout.column_title(column), layout.line_name(line.head)
            title, name = (" -> ".join(line.head), title) if layout.by_method else (title, name)
            columns.setdefault(title, []).extend([(name, score)] * (score.way != Way()))
    notes: dict[str, list[str]] = {}  # text -> columns
    for title, cells in columns.items():
        names: dict[Way, list[str]] = {}
        for name, score in cells:
            names.setdefault(score.way, []).append(name)
        if len(names) == 1:
            notes.setdefault(str(next(iter(names))), []).append(title)
        elif names:
            text = "; ".join(f"{way} ({', '.join(of)})" for way, of in names.items())
            ranked = _ranked_way([score for _, score in cells])
            notes.setdefault(f"{text}; only {ranked} is ranked", []).append(title)
    texts = [f"{', '.join(titles)}: {note}" for note, titles in notes.items()]
    ways = {score.way for cells in columns.values() for _, score in cells}
    is_held_out = any(way.images == "held-out" and not way.layer for way in ways)
    return texts + ["the paper's k-NN and linear accuracies are on test images"] * is_held_out


# --- formats ----------------------------------------------------------------------------------------------------------


def our_cell(line: Line, column: str) -> Cell:
    """`61.18 ± 0.30`: the mean over runs and its standard deviation, or a single run's interval."""
    score = line.ours.get(column)
    if score is None:
        return Cell("")
    mark, decimals = mark_for_rank(line.rankings.get(column, UNRANKED)), DECIMALS.get(column, 2)
    if column == "collapsed":
        count = round(score.mean * score.n)
        return Cell({0: "no", score.n: "yes"}.get(count, f"{count} of {score.n} runs"), mark=mark)
    deviation = score.interval if math.isnan(score.sd) else score.sd
    return Cell(f"{score.mean:.{decimals}f}", "" if math.isnan(deviation) else f"{deviation:.{decimals}f}", mark)


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
            rows.append(titles[line.section])
            section = line.section
        ours, theirs = [our_cell(line, column) for column in columns], [paper_cell(line, column) for column in columns]
        if not apart:
            both = [cell._replace(suffix=number) for cell, number in zip(ours, theirs, strict=True)]
            rows.append([*line.head, *both])
        elif line.ours:
            rows.append([*line.head, *ours])
            rows += [[*[""] * len(line.head), *theirs]] * bool(line.paper)
        else:
            rows.append([*line.head, *theirs])
    names = [*layout.rows.titles, *map(layout.column_title, columns)]
    return Table(
        [Cell(name, latex=LATEX_TITLES.get(name, "")) for name in names],
        rows,
        "l" * len(layout.rows.titles) + "r" * len(columns),
        f"Table {layout.name}: {layout.title}",
        filled.notes,
        LEGEND.replace("best,", "best of ours,"),
    )


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


def write(filled: FilledTable, form: str, width: int = sys.maxsize) -> str:
    """The table as text that is `width` characters wide, as Markdown, as LaTeX for booktabs, or as numbers in csv."""
    if form == "csv":
        return to_csv(as_numbers(filled))
    if form == "markdown":
        return to_markdown(as_table(filled), {"*": r"\*"})
    if form == "latex":
        heads = len(filled.layout.rows.titles)
        columns = f"{'l' * heads}|{'c' * len(filled.layout.paper.columns)}"
        return to_latex(as_table(filled), columns, LATEX_SIGNS)
    return to_text(as_table(filled, apart=True), width)
