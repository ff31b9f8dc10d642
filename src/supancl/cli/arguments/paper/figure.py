"""The arguments of `supancl paper figure`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_data
from supancl.cli.flags import ENCODER, add_feature_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", nargs="?", metavar="N", help="number of the paper's figure (default: list them)")
    parser.add_argument("runs", nargs="*", metavar="[TITLE=]RUN", help=f"one panel each: {ENCODER}")
    parser.add_argument("--data", help="the images: as for pretrain's --data (default: the runs' training data)")
    parser.add_argument(
        "--classes",
        metavar="A,B|FILE",
        help="class names, or a file with one per line (default: the "
        "paper's 15 dogs and 5 birds if the data have them, else all if at most 20)",
    )
    parser.add_argument(
        "--groups",
        action="append",
        default=[],
        metavar="GROUP=A,B",
        help="classes that share a family of colours; may be repeated",
    )
    parser.add_argument("--split", default="held-out", choices=("held-out", "test", "train"), help="(default held-out)")
    parser.add_argument("--per-class", type=int, default=50, metavar="N", help="images per class at most (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of images and of t-SNE (default 0)")
    parser.add_argument(
        "--out",
        default="figure3.png",
        metavar="FILE",
        help="a .png, .svg or .pdf (default figure3.png); the numbers go to a .json next to it",
    )
    add_feature_flags(parser)


def check(args: argparse.Namespace) -> None:
    check_data(args.data)
