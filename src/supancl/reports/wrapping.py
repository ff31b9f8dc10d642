"""Lines that fit into a terminal without a break inside a word."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len

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
