"""One table, written as text, Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from supancl.errors import BadInput, did_you_mean
from supancl.probes.ranking import Mark

LEGEND = "* best, + second best"
HLINES = (r"\hline",) * 3
NO_SIGNS: Mapping[str, str] = {}
BOOKTABS = (r"\toprule", r"\midrule", r"\bottomrule")
LATEX_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


class Cell(NamedTuple):
    """A number or a word; `spread` stands behind a ± and is marked with it, `beside` follows unmarked."""

    text: str
    spread: str = ""
    mark: Mark = ""
    beside: str = ""
    latex: str = ""  # LaTeX code instead of `text`


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Columns and rows; a row that is one string is the title of the rows below it.

    `align` has a letter for each column: l for words, r for numbers, w for words that may wrap. Empty: all are l.
    """

    columns: Row
    rows: Sequence[Row | str]
    align: str = ""
    caption: str = ""
    notes: Sequence[str] = ()
    legend: str = LEGEND  # what text says of its marks

    @property
    def alignment(self) -> str:
        return self.align or "l" * len(self.columns)


def place_mark(place: int) -> Mark:
    """0 is the best, 1 the second best; other places have no mark."""
    return "best" if place == 0 else "second" if place == 1 else ""


def mean_text(mean: float | None, sd: float | None, decimals: int) -> str:
    """`61.18 +- 0.30`; no deviation where there is none (None or nan), and - without a mean."""
    if mean is None or math.isnan(mean):
        return "-"
    return f"{mean:.{decimals}f}" + ("" if sd is None or math.isnan(sd) else f" +- {sd:.{decimals}f}")


def write_table(table: Table, form: str) -> str:
    """The table in the format of that name."""
    if form not in FORMATS:
        raise BadInput(f"table format {form!r}{did_you_mean(form, FORMATS)}")
    return FORMATS[form](table)


def _written(row: Row, write: Callable[[Cell], str]) -> list[str]:
    return [write(_as_cell(cell)) for cell in row]


def _as_cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _replaced(text: str, signs: Mapping[str, str]) -> str:
    for sign, code in signs.items():
        text = text.replace(sign, code)
    return text


def _joined(cell: Cell, text: str, marks: Mapping[Mark, str]) -> str:
    """The text with its spread, put into the mark's pattern, and what stands beside it."""
    number = f"{text} ± {cell.spread}" if cell.spread else text
    return " ".join(part for part in (marks[cell.mark].format(number) if number else "", cell.beside) if part)


# --- text -------------------------------------------------------------------------------------------------------------


def cell_text(cell: Cell) -> str:
    """`61.18 ± 0.30*`: * is the best, + the second best."""
    return _joined(cell, cell.text, {"best": "{}*", "second": "{}+", "": "{}"})


def to_text(table: Table) -> str:
    """Columns of equal width; a table with a caption stands by itself, with a rule below its header."""
    rows = [row if isinstance(row, str) else list(map(_as_cell, row)) for row in table.rows]
    marked = {i for row in rows if not isinstance(row, str) for i, cell in enumerate(row) if cell.mark}

    def padded(row: Sequence[Cell]) -> list[str]:  # numbers stay below one another where some have a mark behind them
        return [cell_text(cell) + " " * (i in marked and not cell.mark) for i, cell in enumerate(row)]

    header = _written(table.columns, cell_text)
    body = [row if isinstance(row, str) else padded(row) for row in rows]
    widths = [
        max(map(len, column)) for column in zip(header, *(row for row in body if not isinstance(row, str)), strict=True)
    ]

    def line(row: list[str] | str) -> str:
        if isinstance(row, str):
            return row
        laid = zip(row, widths, table.alignment, strict=True)
        cells = [cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in laid]
        return "  ".join(cells).rstrip()

    lines = [line(header), *map(line, body)]
    if table.caption:
        rule = "  ".join("-" * width for width in widths)
        lines = [table.caption, "", lines[0], rule, *lines[1:], ""]
    return "\n".join([*lines, *([table.legend] if marked else []), *table.notes]) + "\n"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def to_markdown(table: Table, signs: Mapping[str, str] = NO_SIGNS) -> str:
    """The best in bold, the second best underlined; numbers are set to the right where `align` says so.

    `signs`: what is written for characters that would mean something else.
    """

    def write(cell: Cell) -> str:
        text = _replaced(cell.text, signs)
        return _joined(cell, text, {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}).replace("|", "\\|")

    rule = ["---:" if side == "r" else "---" for side in table.alignment]
    blank = [""] * (len(table.columns) - 1)
    body = [[f"*{row}*", *blank] if isinstance(row, str) else _written(row, write) for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (_written(table.columns, write), rule, *body)]
    top = [f"**{table.caption}**", ""] if table.caption else []
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([*top, *lines, *notes]) + "\n"


# --- LaTeX ------------------------------------------------------------------------------------------------------------


def to_latex(
    table: Table, layout: str = "", rules: tuple[str, str, str] = HLINES, signs: Mapping[str, str] = NO_SIGNS
) -> str:
    """A tabular; caption and notes are comments above it.

    `layout`: LaTeX's own letters for the columns. `rules`: at the top, below the header, at the end. `signs`: what is
    written for characters that LaTeX has as commands.
    """

    def escaped(text: str) -> str:
        return _replaced(text.translate(LATEX_SPECIAL), signs)

    def write(cell: Cell) -> str:
        text = cell.latex or escaped(cell.text)
        patterns: dict[Mark, str] = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}
        written = Cell(text, cell.spread, cell.mark, escaped(cell.beside))
        return _joined(written, text, patterns).replace("±", r"$\pm$")

    top, middle, bottom = rules
    letters = layout or table.alignment.replace("w", "l")
    lines = [
        *(f"% {line}" for line in (table.caption, *table.notes) if line),
        rf"\begin{{tabular}}{{{letters}}}",
        top,
        " & ".join(_written(table.columns, write)) + r" \\",
        middle,
    ]
    for number, row in enumerate(table.rows):
        if isinstance(row, str):
            lines += [middle] if number else []
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{escaped(row)}}} \\")
        else:
            lines.append(" & ".join(_written(row, write)) + r" \\")
    return "\n".join([*lines, bottom, r"\end{tabular}"]) + "\n"


# --- CSV and HTML -----------------------------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """Texts alone: numbers that belong together are columns of their own, and sections are a column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in (table.columns, *table.rows):
        writer.writerow(_written(row, lambda cell: cell.text))
    return out.getvalue()


def to_html(table: Table) -> str:
    """The best in bold, the second best underlined; `spread` and `beside` are in the class spread."""
    kinds = {"l": ' class="word"', "w": ' class="word long"', "r": ""}

    def escaped(text: str) -> str:
        return html.escape(text).replace("−", "&minus;").replace("±", "&plusmn;")

    def write(cell: Cell) -> str:
        number = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}[cell.mark].format(escaped(cell.text))
        behind = [text for text in (f"± {cell.spread}" if cell.spread else "", cell.beside) if text]
        return number + "".join(f' <span class="spread">{escaped(text)}</span>' for text in behind)

    def line(row: Row, tag: str) -> str:
        cells = zip(_written(row, write), table.alignment, strict=True)
        return "<tr>" + "".join(f"<{tag}{kinds[side]}>{cell}</{tag}>" for cell, side in cells) + "</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    return f'<div class="wide"><table><thead>{line(table.columns, "th")}</thead><tbody>{body}</tbody></table></div>'


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
