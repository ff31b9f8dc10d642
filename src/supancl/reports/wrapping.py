"""Lines and tables that fit into a terminal without a break inside a word."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from supancl.errors import program_name


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
    start = len(text) - len(text.lstrip())
    command = re.escape(program_name()) + r" [a-z]+ (?:(?!; |\. |, ).)+"
    pieces = re.findall(rf"{command}\S*\s*|\S+\s*", text.strip())
    return fill_lines(pieces, width, start)


def fill_lines(pieces: Sequence[str], width: int, indent: int = 0) -> str:
    """The pieces, each with the spaces after it, in lines of at most this width where possible."""
    lines = [" " * indent]
    for piece in pieces:
        if lines[-1].strip() and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append(" " * (indent + 2))
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


class FittingTable(Table):
    """A table whose columns are as wide as their longest word, or wider; without frame if it does not fit otherwise.

    If words do not fit even so, each row becomes a block with a line per column.
    """

    def add_cells(self, columns: Sequence[str], rows: Sequence[Sequence[str]], justify: Sequence[str]) -> None:
        self.cells = [list(columns), *map(list, rows)]
        for name, side in zip(columns, justify, strict=True):
            self.add_column(name, justify="right" if side == "right" else "left")
        for row in rows:
            self.add_row(*row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = [max(_longest_word(cell) for cell in column) for column in zip(*self.cells, strict=True)]
        if sum(needed) + self._extra_width + sum(self._padding_widths()) > options.max_width:
            self.box, self.show_edge, self.padding = None, False, (0, 1, 0, 0)
        free = options.max_width - self._extra_width - sum(self._padding_widths()) - sum(needed)
        if free < 0:
            yield from self._blocks(options.max_width)
            return
        full = [max(map(cell_len, column)) for column in zip(*self.cells, strict=True)]
        for column, width in zip(self.columns, _share_width(needed, full, free), strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _padding_widths(self) -> list[int]:
        return [self._get_padding_width(index) for index in range(len(self.columns))]

    def _blocks(self, width: int) -> RenderResult:
        names, *rows = self.cells
        longest = max(map(cell_len, names))
        yield Text(str(self.title or ""))
        for row in rows:
            for name, cell in zip(names, row, strict=True):
                padding = " " * (longest - cell_len(name))
                yield Text(wrap_line(f"{name}{padding}  {cell}", width), no_wrap=True, overflow="ignore")
            yield Segment.line()


def _share_width(needed: list[int], full: list[int], free: int) -> list[int]:
    """The widths that are needed, and of the free width one more for each column in turn until it has all it can use.

    >>> _share_width([3, 3, 3], [10, 4, 3], 4)
    [6, 4, 3]
    """
    widths = list(needed)
    while free > 0 and (growing := [index for index in range(len(widths)) if widths[index] < full[index]]):
        for index in growing[:free]:
            widths[index] += 1
        free -= len(growing[:free])
    return widths


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
