"""The arguments of `supancl paper table`."""

from __future__ import annotations

import argparse

from supancl.cli.choices import PAPER_TABLES, RECIPE_FAMILIES, TABLE_FORMATS
from supancl.cli.flags import add_recipe_flags, add_run_flags, add_seeds_flag


def arguments(parser: argparse.ArgumentParser) -> None:
    table_names = ", ".join(PAPER_TABLES)
    parser.add_argument("name", metavar="NAME", help=f"one of {table_names}; table5 and f1 work too")
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        default=[],
        help="run folders, studies, detectors, toy studies, folders with evaluate/*.json; without "
        "RUN and --data: the paper's numbers alone",
    )
    parser.add_argument("--format", choices=TABLE_FORMATS, default="text", help="of the table (default text)")
    parser.add_argument(
        "--out",
        metavar="PATH",
        help="file to write instead of the screen; with --data the folder of the runs (default runs/table-NAME)",
    )
    parser.add_argument("--benchmarks", metavar="ROOT", help="folder with the data sets of the columns")
    parser.add_argument("--family", choices=RECIPE_FAMILIES, help="recipes to train (default: the paper's)")
    parser.add_argument("--recipe", help="recipe to vary, for tables that vary one (default: supsiam)")
    add_seeds_flag(parser, 1)
    parser.add_argument("--rows", metavar="A,B", help="train only these rows (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and the expected time, then stop")
    add_run_flags(parser)
    add_recipe_flags(parser)
