"""python -m experiments.evidence {plan,run,rows}."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.evidence import driver, pages, repeat
from experiments.evidence.driver import Cell, Work
from experiments.evidence.numbers import RESULTS, ROWS
from experiments.starts import cells as starts
from supancl.errors import BadInput, SupanclError


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        if args.what == "rows":
            pages.write_all()
        elif args.study is None:
            raise BadInput(f"{args.what}: name a study: {', '.join(ROWS)}")
        else:
            {"plan": plan, "run": run}[args.what](args)
        return 0
    except SupanclError as error:
        print(f"evidence: {error}", file=sys.stderr)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.evidence", description="The runs behind the results, and the pages that show them."
    )
    parser.add_argument("what", choices=("plan", "run", "rows"), help="what is left; make it; fill pages and figures")
    parser.add_argument("study", nargs="?", choices=ROWS)
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"), help="holds data/; gets runs/, results/")
    parser.add_argument("--results", type=Path, default=RESULTS, help="of other machines, and of finished studies")
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="cells whose name contains one of these")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="S", help="begin no cell after S seconds")
    parser.add_argument("--commit", help="of the code, where there is no repository")
    parser.add_argument("--quick", action="store_true", help="few steps and small views, to see that everything runs")
    parser.add_argument("--drivers", type=int, default=0, metavar="N", help="N drivers in the background")
    parser.add_argument("--wait", type=float, metavar="S", help="for drivers in the background, at most S seconds")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="pack results and logs into this folder")
    return parser


def planned(args: argparse.Namespace) -> tuple[list[Cell], Work]:
    """The study's cells; those of a finished one come from its result files, and are made again."""
    work = Work(args.work.resolve(), args.study, args.commit, args.results, args.quick)
    cells: Sequence[Cell] = starts.plan() if args.study == "starts" else repeat.cells(args.study, args.results)
    if args.study == "starts":
        driver.earlier_results(work)
    return [cell for cell in cells if not args.only or any(text in cell.name for text in args.only)], work


def plan(args: argparse.Namespace) -> None:
    cells, work = planned(args)
    left = driver.left_of(cells, work)
    print(*(cell.name for cell in left), f"{len(cells) - len(left)} of {len(cells)} cells are done", sep="\n")


def run(args: argparse.Namespace) -> None:
    cells, work = planned(args)
    if args.drivers:
        words = [args.study, "--work", str(work.folder), "--results", str(args.results.resolve())]
        words += ["--until", str(args.until), *["--quick"] * args.quick]
        words += ["--only", *args.only, *(["--commit", args.commit] if args.commit else [])]
        driver.start(work, args.drivers, words)
    if args.drivers or args.wait is not None:
        driver.wait(work, args.wait or 0.0)
    elif not args.collect:
        driver.run(cells, work, args.until)
    if args.collect:
        driver.collect(work, args.collect)


if __name__ == "__main__":
    sys.exit(main())
