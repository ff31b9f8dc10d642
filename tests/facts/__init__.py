"""Facts of the paper that tests compare with, as small files: what `make test` knows without the paper's text.

`paper_tables.json` has every table as printed: its label in the paper's source, the column titles, the rows by section.
`imagenet100_classes.sha256` is the checksum of the ImageNet-100 class list. `make test-real` compares these files with
the paper's source and with the published list.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

from supancl.paper.numbers import PAPER, PaperTable

FOLDER = Path(__file__).parent
TABLES = FOLDER / "paper_tables.json"
CLASS_LIST = FOLDER / "imagenet100_classes.sha256"


class PrintedTable(NamedTuple):
    """A table as printed: the titles of its columns, and per section its rows of cells."""

    label: str
    columns: list[str]
    sections: dict[str, list[list[str]]]

    @property
    def rows(self) -> list[list[str]]:
        return [row for rows in self.sections.values() for row in rows]


def read_tables() -> dict[str, PrintedTable]:
    """Every table by the name the paper gives it ("5", "F.1"); "sizes" is its table of data sets."""
    return {name: PrintedTable(**table) for name, table in json.loads(TABLES.read_text(encoding="utf-8")).items()}


def printed_numbers(table: PrintedTable, columns: int) -> list[list[float]]:
    """The numbers of each row's last `columns` cells, intervals after their value; a tick is 1, a cross 0."""
    rows = [" ".join(row[-columns:]).replace("✓", "1").replace("✗", "0") for row in table.rows]
    return [[float(found) for found in re.findall(r"-?\d+\.?\d*", row)] for row in rows]


def package_numbers(table: PaperTable) -> list[list[float]]:
    """The package's numbers, laid out as `printed_numbers`; Table H.1 prints a column per method."""
    rows = []
    for section, named in table.rows.items():
        found = []
        for row in named:
            cells = [table.numbers(section, row).get(column, ()) for column in table.columns]
            found.append([number for cell in cells for number in cell if not math.isnan(number)])
        rows += map(list, zip(*found, strict=True)) if table is PAPER["H.1"] else found
    return rows


def assert_package_has(name: str, printed: PrintedTable) -> None:
    """The package's numbers of a table are the printed ones, row by row."""
    table = PAPER[name]
    assert table.label == printed.label
    # Table 1 prints l_ssl and l_sup as a pair in one cell
    columns = {"1": len(table.columns) - 1, "H.1": 6}.get(name, len(table.columns))
    assert package_numbers(table) == printed_numbers(printed, columns)
