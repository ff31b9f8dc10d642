"""Where a call from Python shows its progress."""

from __future__ import annotations

import builtins
import sys

from supancl.reporter import Reporter
from supancl.reports.terminal import Terminal, make_console


def progress_reporter(verbose: bool | None) -> Reporter:
    """Shows progress if `verbose`; None means: in a terminal and in a notebook, not in a file."""
    shows = sys.stdout.isatty() or is_notebook() if verbose is None else verbose
    return Terminal(make_console(quiet=False, json_to_stdout=False)) if shows else Reporter()


def is_notebook() -> bool:
    """Whether this process runs the cells of a notebook: IPython with a kernel."""
    get_shell = getattr(builtins, "get_ipython", None)
    return get_shell is not None and getattr(get_shell(), "kernel", None) is not None
