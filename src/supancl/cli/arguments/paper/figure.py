"""What `supancl paper figure` takes."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_data
from supancl.cli.flags import ENCODER, add_feature_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", nargs="?", metavar="N", help="of the paper's figure; without one: which there are")
    parser.add_argument("runs", nargs="*", metavar="[TITLE=]RUN", help=f"a panel each: {ENCODER}")
    parser.add_argument("--data", help="the images: anything that pretrain's --data takes (default: the runs' own)")
    parser.add_argument(
        "--classes",
        metavar="A,B|FILE",
        help="class names, or a file with one in a line (default: the "
        "paper's 15 dogs and 5 birds where the data have them, else all where they are at most 20)",
    )
    parser.add_argument(
        "--groups",
        action="append",
        default=[],
        metavar="GROUP=A,B",
        help="classes with a family of colours of their own; may be given several times",
    )
    parser.add_argument("--split", default="held-out", choices=("held-out", "test", "train"), help="(default held-out)")
    parser.add_argument("--per-class", type=int, default=50, metavar="N", help="images of a class at most (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of images and of t-SNE (default 0)")
    parser.add_argument(
        "--out",
        default="figure3.png",
        metavar="FILE",
        help="a .png, .svg or .pdf (default figure3.png); a .json with the numbers goes beside it",
    )
    add_feature_flags(parser)


def check(args: argparse.Namespace) -> None:
    check_data(args.data)
