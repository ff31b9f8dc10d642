"""The arguments of `supancl report`."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders that hold runs")
    parser.add_argument(
        "--out", metavar="FILE.html", help="the page (default: RUN/report.html; of several runs ./report.html)"
    )
    parser.add_argument(
        "--no-data", action="store_true", help="leave the data closed: no class histogram and no sample images"
    )
