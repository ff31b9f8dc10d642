"""The arguments of `supancl audit`."""

from __future__ import annotations

import argparse
from pathlib import Path

from supancl.cli.checks import as_list, check_data, check_encoders
from supancl.cli.flags import add_encoder_flags, add_view_flag
from supancl.errors import BadInput
from supancl.reports.audit_files import check_corrected, check_folder

CORRECT_BELOW = 0.05


def arguments(parser: argparse.ArgumentParser) -> None:
    add_encoder_flags(parser)
    parser.add_argument("--data", help="labelled images: anything that pretrain's --data takes (default: the run's)")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write: tables and audit.html")
    parser.add_argument("--corrected", metavar="FILE.csv", help="also copy a .csv source, with labels replaced")
    parser.add_argument(
        "--below",
        type=float,
        metavar="SCORE",
        help=f"with --corrected: replace labels whose score is below this (default {CORRECT_BELOW})",
    )
    parser.add_argument("--k", type=int, help="neighbours that vote (default: as for evaluate knn)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the folds (default 0)")
    add_view_flag(parser)


def check(args: argparse.Namespace) -> None:
    if Path(args.out).is_file():
        raise BadInput(f"--out {args.out}: is a file; give a folder")
    check_folder(Path(args.out))
    if args.below is not None and args.corrected is None:
        raise BadInput(f"--below {args.below:g}: says which labels --corrected replaces; name a file with --corrected")
    args.below = CORRECT_BELOW if args.below is None else args.below
    if not 0 < args.below <= 0.5:
        raise BadInput(
            f"--below {args.below:g}: must be above 0 and at most 0.5, above which no other label fits better"
        )
    check_encoders(args.encoder)
    check_data(args.data)
    if args.corrected is not None:
        check_corrected(Path(args.corrected), *as_list(args.data))
