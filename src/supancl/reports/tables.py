"""Write a table as text, Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.cells import cell_len

from supancl.errors import BadInput, did_you_mean, make_visible
from supancl.files import escape_formula, write_json, write_text
from supancl.reporter import say, show, warn

if TYPE_CHECKING:  # torch takes seconds, and a list of runs needs none
    from supancl.evaluation.suite import Ranking

Mark = Literal["", "best", "second"]
LEGEND = "* best, + second best"
GAP = "  "  # between columns of text
LATEX_SIGNS = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "*": "$^*$"}
)


class Cell(NamedTuple):
    """A number or a word, and whether it is the best or the second best of its column."""

    text: str
    mark: Mark = ""


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


def mark_best(values: Sequence[float | None], decimals: int) -> list[Mark]:
    """The marks of the best and the second best as printed; none if all are equal."""
    printed = [None if value is None or math.isnan(value) else round(value, decimals) for value in values]
    order = sorted({value for value in printed if value is not None}, reverse=True)
    return ["" if value is None or not order[1:] else mark_for_rank(order.index(value)) for value in printed]


def mean_text(mean: float | None, half: float | None, decimals: int, sign: str = "") -> str:
    """`61.18 ± 0.30`; without the second number if it is None or not finite, and `-` without a mean."""
    if mean is None or math.isnan(mean):
        return "-"
    return f"{mean:{sign}.{decimals}f}" + (
        f" ± {half:.{decimals}f}" if half is not None and math.isfinite(half) else ""
    )


# --- formats ----------------------------------------------------------------------------------------------------------


def write_table(table: Table, form: str) -> str:
    """The table as text in this format."""
    if form not in FORMATS:
        raise BadInput(f"table format {form!r}{did_you_mean(form, FORMATS)}")
    return FORMATS[form](table)


def _rendered(table: Table, marks: Mapping[Mark, str], escape: Callable[[str], str] = str) -> list[list[str] | str]:
    """The header and the rows, each cell as text in the pattern of its mark; control characters are escapes."""

    def write(cell: str | Cell) -> str:
        cell = cell if isinstance(cell, Cell) else Cell(cell)
        text = cell.text
        return marks.get(cell.mark, "{}").format(escape(make_visible(text))) if text else ""

    return [
        escape(make_visible(row)) if isinstance(row, str) else list(map(write, row))
        for row in (table.columns, *table.rows)
    ]


def to_text(table: Table, width: int = sys.maxsize) -> str:
    """Aligned columns; with a caption also a rule below the header. Optional columns go if the table is too wide."""
    rows, titles = _rendered(table, {"best": "{}*", "second": "{}+"}), _rendered(table, {})[0]
    has_marks = [
        any(isinstance(row[i], Cell) and row[i].mark for row in table.rows if not isinstance(row, str))  # type: ignore[union-attr]
        for i in range(len(titles))
    ]
    for line, row in zip(rows[1:], table.rows, strict=True):  # a space keeps numbers aligned if some have a mark
        for i, cell in enumerate(row if isinstance(line, list) else ()):
            line[i] += " " * (has_marks[i] and not (isinstance(cell, Cell) and cell.mark))  # type: ignore[index]
    widths = [
        max(map(cell_len, column)) for column in zip(*(row for row in rows if isinstance(row, list)), strict=True)
    ]
    shown = list(range(len(widths)))
    for title in table.optional:
        if sum(widths[i] for i in shown) + len(GAP) * (len(shown) - 1) > width:
            shown.remove(titles.index(title))

    def line_of(row: list[str] | str) -> str:
        if isinstance(row, str):
            return row
        spaces = {i: " " * (widths[i] - cell_len(row[i])) for i in shown}
        return GAP.join(spaces[i] + row[i] if table.alignment[i] == "r" else row[i] + spaces[i] for i in shown).rstrip()

    lines = [line_of(row) for row in rows]
    if table.caption:
        rule = GAP.join("-" * widths[i] for i in shown)
        lines = [wrap_line(make_visible(table.caption), width), "", lines[0], rule, *lines[1:], ""]
    left_out = [title for i, title in enumerate(titles) if i not in shown]
    notes = [table.legend] * any(has_marks) + list(table.notes)
    notes += [f"left out: {', '.join(left_out)} (--json FILE has all)"] * bool(left_out)
    return "\n".join([*lines, *(wrap_line(make_visible(note), width) for note in notes)]) + "\n"


def wrap_line(text: str, width: int) -> str:
    """The line, broken between words; what follows is indented by two more columns than the line.

    >>> print(wrap_line("  one two three", 13))
      one two
        three
    """
    start = " " * (len(text) - len(text.lstrip()))
    if cell_len(text) <= width:
        return text
    return textwrap.fill(text.strip(), width, initial_indent=start, subsequent_indent=f"{start}  ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def to_markdown(table: Table) -> str:
    """The best in bold, the second best underlined; columns are aligned by `align`."""
    signs = str.maketrans({"*": r"\*", "|": r"\|"})
    header, *body = _rendered(table, {"best": "**{}**", "second": "<u>{}</u>"}, lambda text: text.translate(signs))
    rule = ["---:" if side == "r" else "---" for side in table.alignment]
    blank = [""] * (len(table.columns) - 1)
    rows = [header, rule, *([f"*{row}*", *blank] if isinstance(row, str) else row for row in body)]
    top = [f"**{make_visible(table.caption)}**", ""] if table.caption else []
    notes = ["", *(f"- {make_visible(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*top, *(f"| {' | '.join(row)} |" for row in rows), *notes]) + "\n"


def to_latex(table: Table) -> str:
    """A tabular with the rules of the package booktabs; caption and notes are comments above it."""
    marks: dict[Mark, str] = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    header, *body = _rendered(table, marks, lambda text: text.translate(LATEX_SIGNS))
    lines = [f"% {make_visible(line)}" for line in (table.caption, *table.notes) if line]
    lines += [rf"\begin{{tabular}}{{{table.alignment.replace('w', 'l')}}}", r"\toprule", " & ".join(header) + r" \\"]
    lines.append(r"\midrule")
    for number, row in enumerate(body):
        if isinstance(row, str):
            lines += [r"\midrule"] * bool(number)
            row = [rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{row}}}"]
        lines.append(" & ".join(row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(table: Table) -> str:
    """Texts alone, without marks; a text that a spreadsheet would compute, such as =A1, gets an apostrophe in front."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(_rendered(table, {}, escape_formula))
    return out.getvalue()


def to_html(table: Table) -> str:
    """The best in bold, the second best underlined."""
    classes = {"l": ' class="word"', "w": ' class="word long"', "r": ""}

    def line(row: Sequence[str], tag: str) -> str:
        cells = zip(row, table.alignment, strict=True)
        return "<tr>" + "".join(f"<{tag}{classes[side]}>{cell}</{tag}>" for cell, side in cells) + "</tr>"

    header, *body = _rendered(table, {"best": "<b>{}</b>", "second": "<u>{}</u>"}, html.escape)
    rows = "".join(line(row, "td") for row in body)
    return f'<div class="wide"><table><thead>{line(header, "th")}</thead><tbody>{rows}</tbody></table></div>'


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}


# --- encoders on data sets --------------------------------------------------------------------------------------------


def score_table(ranking: Ranking, form: str = "text") -> str:
    """The table of a ranking: a row per encoder, a column per data set, then the average rank.

    >>> from supancl.evaluation.suite import Average, rank_encoders
    >>> print(score_table(rank_encoders({"a": {"pets": Average(80.0)}, "b": {"pets": Average(82.5)}}), "markdown"))
    | Encoder | pets | Avg. rank |
    | --- | ---: | ---: |
    | a | <u>80.00</u> | 2.00 |
    | b | **82.50** | 1.00 |
    <BLANKLINE>
    """
    scores, datasets = ranking.scores, ranking.datasets
    if form == "csv":  # a row per number
        tidy = [[name, data, *map(str, score)] for name, row in scores.items() for data, score in row.items()]
        return write_table(Table(["encoder", "data", "mean", "sd", "interval", "n"], tidy), form)
    counted = {
        data: [row.get(data) if data not in ranking.unranked else None for row in scores.values()] for data in datasets
    }
    marks = {data: mark_best([score and score.mean for score in column], 2) for data, column in counted.items()}
    has_ranks = len(scores) > 1 and bool(ranking.ranked)
    rows: list[Row] = []
    for number, (encoder, row) in enumerate(scores.items()):
        runs = sorted({score.n for score in row.values()} - {1})
        cells = [
            Cell(mean_text(row[data].mean, row[data].interval, 2) if data in row else "", marks[data][number])
            for data in datasets
        ]
        name = encoder + f" (n = {' or '.join(map(str, runs))})" * bool(runs)
        rows.append([name, *cells, *[mean_text(ranking.average_ranks[number], None, 2)] * has_ranks])
    columns = ["Encoder", *datasets, *["Avg. rank"] * has_ranks]
    notes = ["± half a 95% interval, over n seeds or over episodes"] * (form == "text")
    return write_table(Table(columns, rows, "l" + "r" * (len(columns) - 1), notes=notes), form)


def print_score_tables(results: list[dict[str, Any]], form: str) -> dict[str, Any]:
    """Print the tables, and as text also the paired differences; returns the result for --json."""
    from supancl.evaluation.suite import differences, rankings, table_warnings

    tables, gaps = rankings(results), differences(results)
    for line in table_warnings(results):
        warn(line)
    content = {name: ranking.to_json() for name, ranking in tables.items()}
    if form == "json":
        show(json.dumps(content, indent=2) + "\n")
    for name, ranking in tables.items() if form != "json" else ():
        heading = {"text": "{}\n", "markdown": "**{}**\n\n", "latex": "% {}\n", "csv": "# {}\n"}[form]
        if len(tables) > 1 or form in ("text", "markdown"):
            show(heading.format(make_visible(name)))
        show(score_table(ranking, form))
    for gap in gaps if form == "text" else ():
        pair = f"{gap['a']} - {gap['b']} = {gap['difference']:+.2f} ± {gap['interval']:.2f}"
        say(f"{gap['protocol']} {gap['data']}: {pair} (same episodes)")
    return {"results": results, "tables": content, "differences": gaps}


def write_suite(results: Sequence[dict[str, Any]], summary: dict[str, Any], out: Path) -> Path:
    """Write suite.json, and every table as Markdown, LaTeX and CSV; returns the path of suite.json."""
    from supancl.evaluation.suite import rankings

    for protocol, ranking in rankings(results).items():
        for form, suffix in {"markdown": "md", "latex": "tex", "csv": "csv"}.items():
            write_text(out / f"{protocol.replace(' ', '-')}.{suffix}", score_table(ranking, form))
    compact = [{key: value for key, value in result.items() if key != "accuracies"} for result in results]
    write_json(out / "suite.json", {**summary, "results": compact})
    return out / "suite.json"
