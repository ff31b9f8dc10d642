"""The command line: `supancl COMMAND`, in which every command is a public function."""

import sys
from typing import TYPE_CHECKING

from supancl.lazy import lazy_names

if TYPE_CHECKING:
    from supancl.cli.commands import build_parser, main

__all__ = ["build_parser", "entry", "main"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __file__)


def entry() -> None:
    """Run the command of `sys.argv` and end the process. Ctrl-C also ends it quietly while modules are imported."""
    try:
        from supancl.cli.commands import run_and_exit

        run_and_exit()
    except KeyboardInterrupt:
        print("supancl: interrupted", file=sys.stderr)
        sys.exit(130)
