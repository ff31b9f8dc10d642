"""Where a call from Python shows its progress."""

from __future__ import annotations

import builtins
import sys

from supancl.errors import in_python_words
from supancl.reporter import Reporter
from supancl.reports.terminal import Terminal, make_console


class PythonTerminal(Terminal):
    """A terminal whose lines name arguments of Python, where those of the command name flags."""

    def note(self, text: str) -> None:
        super().note(in_python_words(text))

    def warn(self, text: str) -> None:
        super().warn(in_python_words(text))


def progress_reporter(verbose: bool | None) -> Reporter:
    """Shows progress if `verbose`; None means: in a terminal and in a notebook, not in a file."""
    shows = sys.stdout.isatty() or is_notebook() if verbose is None else verbose
    return PythonTerminal(make_console(quiet=False, json_to_stdout=False)) if shows else Reporter()


def is_notebook() -> bool:
    """Whether this process runs the cells of a notebook: IPython with a kernel."""
    get_shell = getattr(builtins, "get_ipython", None)
    return get_shell is not None and getattr(get_shell(), "kernel", None) is not None
