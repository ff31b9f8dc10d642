"""The arguments of `supancl embed`."""

from __future__ import annotations

import argparse
from pathlib import Path

from supancl.cli.checks import check_data, check_encoders
from supancl.cli.flags import add_encoder_flags, add_view_flag
from supancl.files import check_feature_file


def arguments(parser: argparse.ArgumentParser) -> None:
    add_encoder_flags(parser)
    parser.add_argument("--data", required=True, help="anything that pretrain's --data takes")
    parser.add_argument("--out", required=True, help="the .npz, .csv or .parquet to write")
    add_view_flag(parser)


def check(args: argparse.Namespace) -> None:
    check_feature_file(Path(args.out))
    check_encoders(args.encoder)
    check_data(args.data)
