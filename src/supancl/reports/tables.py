"""Write a table as text, Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

import csv
import html
import io
import math
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from supancl.errors import BadInput, did_you_mean, make_visible, program_name
from supancl.files import escape_formula

if TYPE_CHECKING:  # torch takes seconds, and a list of runs needs none
    from supancl.probes.ranking import Mark

LEAST_WIDTH = 20  # of a column that is wrapped
LEGEND = "* best, + second best"
GAP = "  "  # between columns of text
NO_REPLACEMENTS: Mapping[str, str] = {}
LATEX_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


class Cell(NamedTuple):
    """A number or a word: `plus_minus` follows a ± and is marked with it, `suffix` comes last and is not marked."""

    text: str
    plus_minus: str = ""
    mark: Mark = ""
    suffix: str = ""
    latex: str = ""  # LaTeX code instead of `text`


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Columns and rows; a row that is a string is a section title.

    `align` has a letter per column: l for words, r for numbers, w for words that may wrap. Empty: all l.
    """

    columns: Row
    rows: Sequence[Row | str]
    align: str = ""
    caption: str = ""
    notes: Sequence[str] = ()
    legend: str = LEGEND  # of the marks, in text
    optional: Sequence[str] = ()  # titles of columns that text leaves out, in this order, where it would not fit

    @property
    def alignment(self) -> str:
        return self.align or "l" * len(self.columns)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of words and numbers; columns of numbers are right-aligned."""
    starts = [{row[i].strip()[:1] for row in rows} - {""} for i in range(len(columns))]
    sides = ["r" if i > 0 and starts[i] <= set("0123456789+-−.") else "l" for i in range(len(columns))]
    return Table(columns, rows, "".join(sides), title)


def mark_for_rank(rank: int) -> Mark:
    """0 is the best, 1 the second best; other ranks have no mark."""
    return "best" if rank == 0 else "second" if rank == 1 else ""


def mean_text(mean: float | None, sd: float | None, decimals: int) -> str:
    """`61.18 ± 0.30`; without the deviation if it is None or nan, and `-` without a mean."""
    if mean is None or math.isnan(mean):
        return "-"
    return f"{mean:.{decimals}f}" + ("" if sd is None or math.isnan(sd) else f" ± {sd:.{decimals}f}")


def write_table(table: Table, form: str) -> str:
    """The table as text in this format."""
    if form not in FORMATS:
        raise BadInput(f"table format {form!r}{did_you_mean(form, FORMATS)}")
    return FORMATS[form](table)


def _format_row(row: Row, write: Callable[[Cell], str]) -> list[str]:
    return [write(_as_cell(cell)) for cell in row]


def _as_cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _make_table_visible(table: Table) -> Table:
    """The table with control characters of names as escapes, so that a name stays in its cell and line."""

    def write(cell: str | Cell) -> Cell:
        text, plus_minus, mark, suffix, latex = _as_cell(cell)
        return Cell(make_visible(text), plus_minus, mark, make_visible(suffix), latex)

    return replace(
        table,
        columns=[write(cell) for cell in table.columns],
        rows=[make_visible(row) if isinstance(row, str) else [write(cell) for cell in row] for row in table.rows],
        caption=make_visible(table.caption),
        notes=[make_visible(note) for note in table.notes],
    )


def _replace_all(text: str, replacements: Mapping[str, str]) -> str:
    for sign, code in replacements.items():
        text = text.replace(sign, code)
    return text


def _format_cell(cell: Cell, text: str, marks: Mapping[Mark, str]) -> str:
    """The text and its ± part in the mark's pattern, then the suffix."""
    number = f"{text} ± {cell.plus_minus}" if cell.plus_minus else text
    return " ".join(piece for piece in (marks[cell.mark].format(number) if number else "", cell.suffix) if piece)


# --- text -------------------------------------------------------------------------------------------------------------


def cell_text(cell: Cell) -> str:
    """`61.18 ± 0.30*`: * is the best, + the second best."""
    return _format_cell(cell, cell.text, {"best": "{}*", "second": "{}+", "": "{}"})


def to_text(table: Table, width: int = sys.maxsize) -> str:
    """Aligned columns; a table with a caption also gets a rule below its header.

    In a table that is too wide, optional columns go first; then a last column of words is wrapped; then the columns
    are divided into blocks, one below the other.
    """
    table = _without_optional(_make_table_visible(table), width)
    rows = [row if isinstance(row, str) else list(map(_as_cell, row)) for row in table.rows]
    marked = {i for row in rows if not isinstance(row, str) for i, cell in enumerate(row) if cell.mark}
    header = _format_row(table.columns, cell_text)
    body: list[list[str] | str] = []
    for row in rows:  # a space keeps numbers aligned if some are followed by a mark
        texts = (
            row
            if isinstance(row, str)
            else [cell_text(c) + " " * (i in marked and not c.mark) for i, c in enumerate(row)]
        )
        body.append(texts)
    widths = [
        max(map(cell_len, column)) for column in zip(header, *(r for r in body if not isinstance(r, str)), strict=True)
    ]
    free = width - sum(widths[:-1]) - len(GAP) * len(widths[:-1])
    if widths[-1] > free >= LEAST_WIDTH and not table.alignment.endswith("r"):
        body = [line for row in body for line in ([row] if isinstance(row, str) else _wrap_last(row, free))]
        widths[-1] = free

    def line(row: list[str] | str, shown: Sequence[int]) -> str:
        if isinstance(row, str):
            return row
        spaces = [" " * (widths[i] - cell_len(row[i])) for i in range(len(row))]
        return GAP.join(spaces[i] + row[i] if table.alignment[i] == "r" else row[i] + spaces[i] for i in shown).rstrip()

    blocks = []
    for shown in _divide_columns(widths, table.alignment, width):
        rule = [GAP.join("-" * widths[i] for i in shown)] if table.caption else []
        blocks.append("\n".join([line(header, shown), *rule, *(line(row, shown) for row in body)]))
    lines = [wrap_line(table.caption, width), "", "\n\n".join(blocks), ""] if table.caption else ["\n\n".join(blocks)]
    notes = [*([table.legend] if marked else []), *table.notes]
    return "\n".join([*lines, *(wrap_line(note, width) for note in notes)]) + "\n"


def _divide_columns(widths: Sequence[int], alignment: str, width: int) -> list[list[int]]:
    """The columns of each block. All begin with the words on the left, which name a row; if long, with the first.

    >>> _divide_columns([9, 5, 5, 5], "lrrr", width=24)
    [[0, 1, 2], [0, 3]]
    """

    def total(columns: Sequence[int]) -> int:
        return sum(widths[i] for i in columns) + len(GAP) * (len(columns) - 1)

    heads = list(range(len(alignment) - len(alignment.lstrip("lw"))))
    heads = heads if total(heads) <= width // 2 or total(range(len(widths))) <= width else heads[:1]
    blocks = [heads]
    for column in range(len(heads), len(widths)):
        if total([*blocks[-1], column]) <= width or blocks[-1] == heads:
            blocks[-1] = [*blocks[-1], column]
        else:
            blocks.append([*heads, column])
    return blocks


def _wrap_last(row: list[str], width: int) -> list[list[str]]:
    """The row, with as many further rows as the words of its last cell need."""
    first, *others = textwrap.wrap(row[-1], width) or [""]
    return [[*row[:-1], first], *([*[""] * (len(row) - 1), text] for text in others)]


def _without_optional(table: Table, width: int) -> Table:
    """The table without as many optional columns as must go so that the others fit; a note names them."""
    rows = [row for row in (table.columns, *table.rows) if not isinstance(row, str)]
    columns = [[cell_text(_as_cell(cell)) for cell in column] for column in zip(*rows, strict=True)]
    widths, left_out = {column[0]: max(map(cell_len, column)) for column in columns}, list[str]()
    while sum(widths.values()) + len(GAP) * (len(widths) - 1) > width and len(left_out) < len(table.optional):
        left_out.append(table.optional[len(left_out)])
        del widths[left_out[-1]]
    shown = [i for i, column in enumerate(columns) if column[0] not in left_out]
    return replace(
        table,
        columns=[table.columns[i] for i in shown],
        rows=[row if isinstance(row, str) else [row[i] for i in shown] for row in table.rows],
        align="".join(table.alignment[i] for i in shown),
        notes=[*table.notes, *[f"left out: {', '.join(left_out)} (--json FILE has all)"] * bool(left_out)],
    )


def wrap_line(text: str, width: int) -> str:
    """The line, broken between words; what follows is indented by two more columns than the line.

    A command to copy stays on one line, and so does a word that is longer than the terminal is wide.

    >>> print(wrap_line("  one two three four", 13))
      one two
        three
        four
    """
    if cell_len(text) <= width:
        return text
    command = re.escape(program_name()) + r" [a-z]+ (?:(?!; |\. |, ).)+"
    joined = re.sub(command, lambda found: found[0].replace(" ", "\0"), text.strip())
    start = " " * (len(text) - len(text.lstrip()))
    lines = textwrap.wrap(
        joined,
        width,
        initial_indent=start,
        subsequent_indent=f"{start}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


# --- Markdown ---------------------------------------------------------------------------------------------------------


def to_markdown(table: Table, replacements: Mapping[str, str] = NO_REPLACEMENTS) -> str:
    """The best in bold, the second best underlined; columns are aligned by `align`.

    `replacements` maps characters with a meaning in Markdown to what is written instead.
    """
    table = _make_table_visible(table)

    def write(cell: Cell) -> str:
        text = _replace_all(cell.text, replacements)
        return _format_cell(cell, text, {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}).replace("|", "\\|")

    rule = ["---:" if side == "r" else "---" for side in table.alignment]
    blank = [""] * (len(table.columns) - 1)
    body = [[f"*{row}*", *blank] if isinstance(row, str) else _format_row(row, write) for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (_format_row(table.columns, write), rule, *body)]
    top = [f"**{table.caption}**", ""] if table.caption else []
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([*top, *lines, *notes]) + "\n"


# --- LaTeX ------------------------------------------------------------------------------------------------------------


def to_latex(table: Table, layout: str = "", replacements: Mapping[str, str] = NO_REPLACEMENTS) -> str:
    """A tabular with the rules of the package booktabs; caption and notes are comments above it.

    `layout`: LaTeX's letters for the columns. `replacements` maps characters to LaTeX commands.
    """
    table = _make_table_visible(table)

    def escaped(text: str) -> str:
        return _replace_all(text.translate(LATEX_SPECIAL), replacements)

    def write(cell: Cell) -> str:
        text = cell.latex or escaped(cell.text)
        patterns: dict[Mark, str] = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}
        escaped_cell = Cell(text, cell.plus_minus, cell.mark, escaped(cell.suffix))
        return _format_cell(escaped_cell, text, patterns).replace("±", r"$\pm$")

    letters = layout or table.alignment.replace("w", "l")
    lines = [
        *(f"% {line}" for line in (table.caption, *table.notes) if line),
        rf"\begin{{tabular}}{{{letters}}}",
        r"\toprule",
        " & ".join(_format_row(table.columns, write)) + r" \\",
        r"\midrule",
    ]
    for number, row in enumerate(table.rows):
        if isinstance(row, str):
            lines += [r"\midrule"] if number else []
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{escaped(row)}}} \\")
        else:
            lines.append(" & ".join(_format_row(row, write)) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


# --- CSV and HTML -----------------------------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """Texts alone, without marks; the table must have a column for each number and none of the section titles.

    A text that a spreadsheet would compute, such as =A1, gets an apostrophe in front.
    """
    table = _make_table_visible(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in (table.columns, *table.rows):
        writer.writerow(_format_row(row, lambda cell: escape_formula(cell.text)))
    return out.getvalue()


def to_html(table: Table) -> str:
    """The best in bold, the second best underlined; `plus_minus` and `suffix` have the CSS class `spread`."""
    table = _make_table_visible(table)
    classes = {"l": ' class="word"', "w": ' class="word long"', "r": ""}

    def escaped(text: str) -> str:
        return html.escape(text).replace("−", "&minus;").replace("±", "&plusmn;")

    def write(cell: Cell) -> str:
        number = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}[cell.mark].format(escaped(cell.text))
        small_texts = [text for text in (f"± {cell.plus_minus}" if cell.plus_minus else "", cell.suffix) if text]
        return number + "".join(f' <span class="spread">{escaped(text)}</span>' for text in small_texts)

    def line(row: Row, tag: str) -> str:
        cells = zip(_format_row(row, write), table.alignment, strict=True)
        return "<tr>" + "".join(f"<{tag}{classes[side]}>{cell}</{tag}>" for cell, side in cells) + "</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    return f'<div class="wide"><table><thead>{line(table.columns, "th")}</thead><tbody>{body}</tbody></table></div>'


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
