"""The paper's tables from your runs: `supancl tables NAME RUN...`, ours beside the paper's (docs/tables.md)."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.errors import BadInput, nearest
from supancl.files import unwritable
from supancl.studies.table_cells import fill
from supancl.studies.table_formats import FORMATS
from supancl.studies.table_layouts import LAYOUTS
from supancl.studies.table_runs import read_entries


def arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(LAYOUTS)
    parser.add_argument("name", metavar="NAME", help=f"one of {known}; table5 and f1 are understood too")
    parser.add_argument("runs", metavar="RUN", nargs="*", default=[],
                        help="run folders, studies, toy studies, folders with evaluate/*.json; none: the paper's alone")
    parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="of the table (default text)")
    parser.add_argument("--out", metavar="FILE", help="write it there instead of on the screen")


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    layout = LAYOUTS[table_name(args.name)]
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
