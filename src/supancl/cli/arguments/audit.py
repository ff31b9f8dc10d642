"""The arguments of `supancl audit`."""

from __future__ import annotations

import argparse
from pathlib import Path

from supancl.cli.checks import as_list, check_data, check_encoders
from supancl.cli.flags import add_encoder_flags, add_view_flag
from supancl.errors import BadInput
from supancl.reports.audit_files import check_corrected, check_folder

LEAST_LEAD = 0.65  # of 20% wrong labels of CIFAR-100, 92 to 94% of those it replaced were wrong: docs/audit.md


def arguments(parser: argparse.ArgumentParser) -> None:
    add_encoder_flags(parser)
    parser.add_argument("--data", help="labelled images: anything that pretrain's --data takes (default: the run's)")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write: tables and audit.html")
    parser.add_argument("--corrected", metavar="FILE.csv", help="also copy a .csv source, with labels replaced")
    parser.add_argument(
        "--lead",
        type=float,
        metavar="SCORE",
        help=f"with --corrected: by how much the suggested label's score must be higher (default {LEAST_LEAD})",
    )
    parser.add_argument("--k", type=int, help="neighbours that vote (default: as for evaluate knn)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the folds (default 0)")
    add_view_flag(parser)


def check(args: argparse.Namespace) -> None:
    if Path(args.out).is_file():
        raise BadInput(f"--out {args.out}: is a file; give a folder")
    check_folder(Path(args.out))
    if args.lead is not None and args.corrected is None:
        raise BadInput(f"--lead {args.lead:g}: says which labels --corrected replaces; name a file with --corrected")
    args.lead = LEAST_LEAD if args.lead is None else args.lead
    if not 0 <= args.lead <= 1:
        raise BadInput(f"--lead {args.lead:g}: must be from 0 (every suspect is replaced) to 1 (none is)")
    check_encoders(args.encoder)
    check_data(args.data)
    if args.corrected is not None:
        check_corrected(Path(args.corrected), *as_list(args.data))
