"""The arguments of `supancl predict`."""

from __future__ import annotations

import argparse
from pathlib import Path

from supancl.cli.checks import check_data, check_encoders
from supancl.cli.flags import add_encoder_flags, add_view_flag
from supancl.reports.prediction_table import check_table


def arguments(parser: argparse.ArgumentParser) -> None:
    add_encoder_flags(parser)
    parser.add_argument("--data", required=True, help="images to label: anything that pretrain's --data takes")
    parser.add_argument("--out", default="labels.csv", help="the .csv to write (default labels.csv)")
    parser.add_argument(
        "--with",
        dest="classifier",
        metavar="CLASSIFIER",
        help="linear (default), knn, means (for classes of very different size), finetuned, or the folder of a "
        "fine-tuned classifier",
    )
    parser.add_argument(
        "--references",
        help="labelled images to compare with (default: those of the run; without a run those of --data)",
    )
    parser.add_argument(
        "--k", type=int, help="nearest neighbours that vote, with --with knn (default: as for evaluate knn)"
    )
    parser.add_argument("--all", action="store_true", help="predict images that have a label too")
    add_view_flag(parser)


def check(args: argparse.Namespace) -> None:
    check_table(Path(args.out))
    check_encoders(args.encoder)
    check_data(args.data, args.references)
