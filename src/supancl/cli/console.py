"""Output of the commands: the terminal, tables, and one-line errors."""

from __future__ import annotations

import shutil
import sys

from supancl.distributed import should_report_failure
from supancl.errors import make_visible
from supancl.reports.terminal import SafeConsole as SafeConsole
from supancl.reports.terminal import Terminal as Terminal
from supancl.reports.terminal import duration as duration
from supancl.reports.terminal import line_width as line_width
from supancl.reports.terminal import make_console as make_console
from supancl.reports.terminal import print_warning as print_warning
from supancl.reports.wrapping import FittingTable, wrap_line


def table(title: str, columns: list[str], rows: list[list[str]]) -> FittingTable:
    """A table for the terminal; columns of numbers are right-aligned."""
    result = FittingTable(title=make_visible(title), title_justify="left")
    rows = [[make_visible(cell) for cell in cells] for cells in rows]
    starts = [{cells[i].strip()[:1] for cells in rows} - {""} for i in range(len(columns))]
    sides = ["right" if i > 0 and starts[i] <= set("0123456789+-−.") else "left" for i in range(len(columns))]
    result.add_cells([make_visible(column) for column in columns], rows, sides)
    return result


def print_error(text: str) -> None:
    if should_report_failure():
        line = f"supancl: {make_visible(text)}"
        if sys.stderr.isatty():
            line = wrap_line(line, shutil.get_terminal_size().columns)
        print(line, file=sys.stderr)
