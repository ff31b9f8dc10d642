"""The arguments of `supancl runs`."""

from __future__ import annotations

import argparse

from supancl.errors import BadInput

ACTIONS = ("list", "prune")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[list|prune] [FOLDER]",
        help="list the runs below a folder (default: runs), or say what can be deleted there; ./list is a folder",
    )
    parser.add_argument("--yes", action="store_true", help="prune: delete it")
    parser.add_argument("--keep-caches", action="store_true", help="prune: leave caches of decoded images alone")


def check(args: argparse.Namespace) -> None:
    """Split the words into an action and a folder."""
    args.action = args.words[0] if args.words and args.words[0] in ACTIONS else "list"
    folders = args.words[1:] if args.words and args.words[0] in ACTIONS else args.words
    if len(folders) > 1:
        raise BadInput(f"{' '.join(folders)}: name one folder; runs below it are found")
    if args.yes and args.action == "list":
        raise BadInput("--yes deletes what prune names; give runs prune --yes")
    args.folder = folders[0] if folders else "runs"
