"""An experiment whose rows are trained one after the other, with one result file each: audit and labels."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from supancl.files import write_json
from supancl.runs.provenance import commit
from supancl.training.cuda.reuse import share_step


def row_parser(about: str | None, rows: Mapping[str, Any], epochs: int) -> argparse.ArgumentParser:
    """The arguments that such experiments share; `about` is the docstring of the module."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the unpacked data sets")
    parser.add_argument("--out", type=Path, required=True, help="gets NAME.json of every row, and runs/")
    parser.add_argument("--only", nargs="*", default=list(rows), choices=list(rows), metavar="NAME")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--commit", help="of the code, where there is no repository")
    return parser


def rows_to_run(args: argparse.Namespace) -> Iterator[str]:
    """The names of the rows without a result; consecutive ones share a captured step if they can."""
    args.out.mkdir(parents=True, exist_ok=True)
    with share_step():
        for name in args.only:
            if not (args.out / f"{name}.json").exists():
                yield name


def write_row(args: argparse.Namespace, name: str, found: Mapping[str, Any]) -> None:
    write_json(args.out / f"{name}.json", {**found, "commit": args.commit or commit()})
