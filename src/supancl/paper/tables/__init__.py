"""The paper's tables, ours beside the paper's (docs/tables.md): from your runs, or trained from your data."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.flags import add_recipe_flags
from supancl.errors import BadInput, nearest
from supancl.files import unwritable
from supancl.paper.tables.cells import fill
from supancl.paper.tables.formats import FORMATS
from supancl.paper.tables.layouts import LAYOUTS, Layout
from supancl.paper.tables.make import make_table
from supancl.paper.tables.plan import FAMILIES
from supancl.paper.tables.runs import read_entries
from supancl.sweeps.runner import add_run_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(LAYOUTS)
    parser.add_argument("name", metavar="NAME", help=f"one of {known}; table5 and f1 are understood too")
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        default=[],
        help="run folders, studies, detectors, toy studies, folders with evaluate/*.json; with neither "
        "RUN nor --data: the paper's alone",
    )
    parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="of the table (default text)")
    parser.add_argument(
        "--out",
        metavar="PATH",
        help="file to write instead of the screen; with --data the folder of the runs (default runs/table-NAME)",
    )
    parser.add_argument("--benchmarks", metavar="ROOT", help="folder with the data sets that the columns are of")
    parser.add_argument("--family", choices=FAMILIES, help="recipes that are trained (default: the paper's)")
    parser.add_argument("--recipe", help="recipe whose rows are trained, for tables that vary one (default: supsiam)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1 (default 1)")
    parser.add_argument("--rows", metavar="A,B", help="train only these rows (default: all of the table's)")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and its time, and stop")
    add_run_flags(parser)
    add_recipe_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Lay out the runs given; or train, evaluate and lay out, where data or recipes are given; or print the paper's."""
    layout = LAYOUTS[table_name(args.name)]
    trains = bool(
        args.overrides
        or args.benchmarks
        or args.family
        or args.recipe
        or args.rows
        or args.compat
        or args.dry_run
        or args.retry
        or args.jobs
        or args.seeds != 1
    )
    if trains and args.runs:
        raise BadInput(
            f"{args.runs[0]}: runs that are there are laid out as they are; leave them out to train the "
            "table's rows, or leave out the flags for training"
        )
    return make_table(layout, args, console) if trains else lay_out(layout, args, console)


def lay_out(layout: Layout, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The table of the runs given, on the screen or in a file."""
    out = Path(args.out) if args.out else None
    if out is not None and out.is_dir():
        raise BadInput(f"--out {out}: is a folder; name a file")
    if out is not None and (why := unwritable(out.parent)):
        raise BadInput(f"--out {out}: cannot be written ({why}); name another file")
    filled = fill(layout, read_entries(args.runs))
    text = FORMATS[args.format](filled)
    if out is None:
        console.print(text, end="")
    else:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"--out {out}: cannot be written ({error.strerror}); name another file") from None
        console.print(f"Table {layout.name} in {out}")
    return filled.to_json()


def table_name(text: str) -> str:
    """The paper's name of a table, however it is spelt.

    >>> table_name("table5"), table_name("Table 5"), table_name("f1"), table_name("F.1")
    ('5', '5', 'F.1', 'F.1')
    """
    short = re.sub(r"^tab(le)?|[\s._-]", "", text.strip().lower())
    known = {name.lower().replace(".", ""): name for name in LAYOUTS}
    if short not in known:
        asked = re.sub(r"^TAB(LE)?\s*", "", text.strip().upper())
        raise BadInput(f"unknown table {text!r}{nearest(asked, LAYOUTS)}")
    return known[short]
