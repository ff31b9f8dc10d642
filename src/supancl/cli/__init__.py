"""The command line: `supancl COMMAND`, a module for each command."""

from supancl.cli.dispatch import build_parser, entry, main

__all__ = ["build_parser", "entry", "main"]
