"""Tables of the paper's LaTeX source as plain cells; run as a module it writes tests/facts/paper_tables.json anew."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from supancl.paper.numbers import PAPER
from tests.facts import TABLES, PrintedTable

LABELS = {name: table.label for name, table in PAPER.items()} | {"sizes": "datasets"}
SYMBOLS = {
    r"\cmark": "✓",
    r"\xmark": "✗",
    r"\pm": "±",
    r"\times": "×",
    r"\dagger": "†",
    r"\alpha": "α",
    r"\sigma": "σ",
    r"\ell": "l",
    r"\#": "#",
}


def plain(cell: str) -> str:
    """A cell without LaTeX: what a reader sees, in Unicode."""
    cell = re.sub(r"\\citep\{[^}]*\}|\\multi(row|column)\{[^}]*\}\{[^}]*\}|\\shortstack\[c\]", "", cell)
    for command, symbol in SYMBOLS.items():
        cell = cell.replace(command, symbol)
    return " ".join(re.sub(r"\\[a-zA-Z]+|[{}$^|]", "", cell.replace(r"\\", " ")).split())


def split_rows(body: str) -> list[list[str]]:
    """Rows of plain cells; a row may go over several lines, and a line break in braces ends no row."""
    body = re.sub(r"\\(cmidrule(\(\w+\))?\{[^}]*\}|midrule|toprule)", "", body)
    rows = [row.split("&") for row in re.split(r"\\\\\s*(?:\n|$)", body) if row.strip()]
    return [[plain(cell) for cell in row for _ in range(columns_of(cell))] for row in rows]


def columns_of(cell: str) -> int:
    """How many columns the cell goes over."""
    found = re.search(r"\\multicolumn\{(\d+)\}", cell)
    return int(found[1]) if found else 1


def read_table(text: str, label: str) -> PrintedTable:
    """The table with this label in the paper's source. Rows of one cell are the titles of sections."""
    start = text.index(r"\begin{tabular}", text.index(rf"\label{{{label}}}"))
    head, _, body = text[text.index(r"\toprule", start) : text.index(r"\bottomrule", start)].partition(r"\midrule")
    sections: dict[str, list[list[str]]] = {}
    title = ""
    for row in split_rows(body):
        if len(row) == 1:
            title = row[0]
        else:
            sections.setdefault(title, []).append(row)
    titles = zip(*split_rows(head), strict=True)
    return PrintedTable(label, [" ".join(filter(None, title)) for title in titles], sections)


def read_paper(source: Path) -> dict[str, PrintedTable]:
    """Every table of tests/facts/paper_tables.json, from the paper's source."""
    text = source.read_text(encoding="utf-8")
    return {name: read_table(text, label) for name, label in LABELS.items()}


def write_tables(tables: dict[str, PrintedTable]) -> None:
    """Write the file of facts with a line per row of a table."""
    content = json.dumps({name: table._asdict() for name, table in tables.items()}, ensure_ascii=False, indent=1)
    flat = re.sub(r"\[\s+(\"[^\[\]]*\")\s+\]", lambda found: "[" + re.sub(r"\n\s+", " ", found[1]) + "]", content)
    TABLES.write_text(flat + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_tables(read_paper(Path(sys.argv[1])))
