"""The arguments of `supancl report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from supancl.errors import BadInput
from supancl.files import did_you_mean_path
from supancl.reports.page import check_page_place
from supancl.weights.run_list import find_runs

PAGE = "report.html"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders that hold runs")
    parser.add_argument(
        "--out", metavar="FILE.html", help=f"the page (default: RUN/{PAGE}; of several runs {PAGE} in this folder)"
    )
    parser.add_argument(
        "--no-data", action="store_true", help="leave the data closed: no class histogram and no sample images"
    )


def check(args: argparse.Namespace) -> None:
    """Find the runs and the place of the page."""
    args.runs = list(dict.fromkeys(path for name in args.runs for path in find_named_runs(Path(name))))
    args.out = Path(args.out) if args.out else (args.runs[0] if len(args.runs) == 1 else Path()) / PAGE
    check_out(args.out)


def find_named_runs(path: Path) -> list[Path]:
    """The run in this folder, or those below it; detectors have no report."""
    if not path.is_dir():
        raise BadInput(f"no run folder {path}{did_you_mean_path(path) or '; supancl runs lists yours'}")
    runs = [run for run in find_runs(path) if not (run / "detect.json").exists()]
    if not runs:
        raise BadInput(f"{path} holds no run of supancl pretrain; name a run folder, or one that holds runs")
    return [path] if path in runs else runs


def check_out(out: Path) -> None:
    """Refuse a page that cannot be written, before data are opened."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"--out {out}: a report is an HTML page; name a file that ends in .html")
    if out.is_dir():
        raise BadInput(f"--out {out}: is a folder; name a file in it, such as {out / PAGE}")
    check_page_place(out)
    if not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.parent}; make it, or name another file")
