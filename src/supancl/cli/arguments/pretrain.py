"""The arguments of `supancl pretrain`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_training
from supancl.cli.flags import add_recipe_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name (supancl recipes lists them)")
    parser.add_argument("--out", help="run folder (default: runs/RECIPE-NNN)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--init", help="start the encoder from a run folder or an encoder.safetensors")
    add_recipe_flags(parser)


def check(args: argparse.Namespace) -> None:
    check_training(args)
