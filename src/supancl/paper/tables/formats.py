"""A filled table as text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from itertools import pairwise

from supancl.paper.tables.cells import Filled, Line
from supancl.paper.tables.layouts import NO, YES
from supancl.paper.tables.runs import Score
from supancl.paper.toy.tables import marked, marked_in_markdown

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


def ours(filled: Filled, line: Line, column: str) -> str:
    """`61.18 ± 0.30`: the mean over runs and its standard deviation, or a single run's own interval."""
    score = line.ours.get(column)
    if score is None:
        return ""
    if column == "collapsed":
        return _verdict(score)
    return _number(score.mean, score.interval if math.isnan(score.sd) else score.sd, filled.decimals(column))


def paper(filled: Filled, line: Line, column: str) -> str:
    number = line.paper.get(column)
    if number is None:
        return ""
    if column == "collapsed":
        return "(yes)" if number[0] else "(no)"
    return f"({_number(*number, filled.decimals(column))})"


def _verdict(score: Score) -> str:
    collapsed = round(score.mean * score.n)
    return "no" if not collapsed else "yes" if collapsed == score.n else f"{collapsed} of {score.n} runs"


def _number(mean: float, reach: float, decimals: int) -> str:
    return f"{mean:.{decimals}f}" + ("" if math.isnan(reach) else f" ± {reach:.{decimals}f}")


def header(filled: Filled) -> list[str]:
    return [*filled.layout.heads, *map(filled.layout.column_title, filled.columns)]


def caption(filled: Filled) -> str:
    return f"Table {filled.layout.name}: {filled.layout.title}"


def _titled(filled: Filled) -> list[tuple[str, Line]]:
    """Each line with the title of its section where a new one begins."""
    titles = {section.key: section.title for section in filled.layout.sections}
    keys = [None, *(line.section for line in filled.lines)]
    return [
        (titles[line.section] if before != line.section else "", line)
        for (before, _), line in zip(pairwise(keys), filled.lines, strict=True)
    ]


def as_text(filled: Filled) -> str:
    """Ours above the paper's, in columns: a dozen data sets side by side leave no room for both in one cell."""
    rows: list[list[str] | str] = []
    # numbers stay below one another where some of them have a mark behind them
    room = {column: "  " if any(column in line.places for line in filled.lines) else "" for column in filled.columns}

    def mine(line: Line, column: str) -> str:
        place = line.places.get(column, 9)
        return marked(ours(filled, line, column), place) + (room[column] if place > 1 else "")

    for title, line in _titled(filled):
        if title:
            rows.append(title)
        head = list(line.head)
        if line.ours:
            rows.append([*head, *(mine(line, column) for column in filled.columns)])
            head = [""] * len(head)
        if line.paper:
            rows.append([*head, *(paper(filled, line, column) + room[column] for column in filled.columns)])
        elif not line.ours:
            rows.append([*head, *[""] * len(filled.columns)])
    top = header(filled)
    top = [
        *top[: len(filled.layout.heads)],
        *(title + room[column] for title, column in zip(top[len(filled.layout.heads) :], filled.columns, strict=True)),
    ]
    widths = [max(len(row[i]) for row in [top, *rows] if isinstance(row, list)) for i in range(len(top))]

    def laid(row: list[str] | str) -> str:
        if isinstance(row, str):
            return row
        left = len(filled.layout.heads)
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    lines = [caption(filled), "", laid(top), "  ".join("-" * width for width in widths), *map(laid, rows), ""]
    told = ["* best of ours, + second-best"] if any(line.places for line in filled.lines) else []
    return "\n".join([*lines, *filled.notes, *told]) + "\n"


def _cell(filled: Filled, line: Line, column: str, mark: Callable[[str, int], str]) -> str:
    mine, theirs = ours(filled, line, column), paper(filled, line, column)
    place = line.places.get(column, 9)
    return " ".join(part for part in (mark(mine, place) if mine else "", theirs) if part)


def as_markdown(filled: Filled) -> str:
    top = header(filled)
    lines = [f"**{caption(filled)}**", "", f"| {' | '.join(top)} |", f"|{'---|' * len(top)}"]
    for title, line in _titled(filled):
        if title:
            lines.append(f"| *{title}* |{' |' * (len(top) - 1)}")
        head = [cell.replace("*", r"\*") for cell in line.head]
        cells = [*head, *(_cell(filled, line, column, marked_in_markdown) for column in filled.columns)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in filled.notes)]) + "\n"


def as_latex(filled: Filled) -> str:
    """A tabular for booktabs; ticks need amssymb."""
    left, right = len(filled.layout.heads), len(filled.columns)
    top = " & ".join(LATEX_TITLES.get(title, _escaped(title)) for title in header(filled))
    lines = [
        f"% {caption(filled)}",
        *(f"% {note}" for note in filled.notes),
        rf"\begin{{tabular}}{{{'l' * left}|{'c' * right}}}",
        r"\toprule",
        rf"{top} \\",
        r"\midrule",
    ]
    for title, line in _titled(filled):
        if title:
            lines += [] if line is filled.lines[0] else [r"\midrule"]
            lines.append(rf"\multicolumn{{{left + right}}}{{l}}{{{_escaped(title)}}} \\")
        cells = [
            *map(_escaped, line.head),
            *(_cell(filled, line, column, _marked_in_latex).replace("±", r"$\pm$") for column in filled.columns),
        ]
        lines.append(rf"{' & '.join(cells)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _marked_in_latex(text: str, place: int) -> str:
    return rf"\textbf{{{text}}}" if place == 0 else rf"\underline{{{text}}}" if place == 1 else text


def _escaped(text: str) -> str:
    plain = re.sub(r"([&%$#_{}])", r"\\\1", text)
    for sign, command in LATEX_SIGNS.items():
        plain = plain.replace(sign, command)
    return plain


def as_csv(filled: Filled) -> str:
    """Plain numbers: per column ours, its standard deviation, interval and n, and the paper's with its interval."""
    parts = ("", " sd", " interval", " n", " paper", " paper interval")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    titles = [filled.layout.column_title(column) + part for column in filled.columns for part in parts]
    writer.writerow(["Section", *filled.layout.heads, *titles])
    for line in filled.lines:
        cells: list[str] = []
        for column in filled.columns:
            score, number = line.ours.get(column), line.paper.get(column, (math.nan, math.nan))
            mine = (score.mean, score.sd, score.interval) if score is not None else (math.nan,) * 3
            n = str(score.n) if score is not None else ""
            cells += [*map(_plain, mine), n, *map(_plain, number)]
        writer.writerow([line.section, *line.head, *cells])
    return out.getvalue()


def _plain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


FORMATS: dict[str, Callable[[Filled], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}
