"""The arguments of `supancl map`."""

from __future__ import annotations

import argparse
from pathlib import Path

from supancl.cli.checks import check_data, check_encoders, split_title
from supancl.cli.flags import ENCODER, add_feature_flags
from supancl.errors import BadInput
from supancl.reports.page import check_page_place, check_picture_place

PICTURES = (".png", ".svg", ".pdf")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="[TITLE=]RUN", help=f"one map each, side by side: {ENCODER}")
    parser.add_argument("--data", required=True, help="the images: anything that pretrain's --data takes")
    parser.add_argument("--out", default="map.html", metavar="FILE", help="the page to write (default map.html)")
    parser.add_argument(
        "--static", metavar="FILE", help="draw the maps as a .png, .svg or .pdf instead of writing the page"
    )
    parser.add_argument("--classes", metavar="A,B|FILE", help="class names, or a file with one per line (default: all)")
    parser.add_argument(
        "--limit", type=int, default=100_000, metavar="N", help="images at most, chosen at random (default 100000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of images and of t-SNE (default 0)")
    add_feature_flags(parser)


def check(args: argparse.Namespace) -> None:
    for flag, path, suffixes in (("--out", args.out, (".html",)), ("--static", args.static, PICTURES)):
        if path is not None and Path(path).suffix.lower() not in suffixes:
            raise BadInput(f"{flag} {path}: must end in {', '.join(suffixes)}")
        if path is not None and Path(path).is_dir():
            raise BadInput(f"{flag} {path}: is a folder; give a file")
    if args.static is None:
        check_page_place(Path(args.out))
    else:
        check_picture_place(Path(args.static), "--static")
    check_encoders(*(split_title(text)[1] for text in args.runs))
    check_data(args.data)
