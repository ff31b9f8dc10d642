"""The arguments of `supancl data show|cache|check|where`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_data
from supancl.cli.flags import COLUMNS_HELP, Override, common_flags
from supancl.data.sources.benchmark_rows import BENCHMARKS


def arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="action", required=True)
    show = subparsers.add_parser("show", parents=[common_flags()], help="summary and contact sheets of a source")
    show.add_argument("source", metavar="SOURCE", help="anything that --data takes")
    show.add_argument("--recipe", help="recipe whose views are drawn (default: the one that pretrain would choose)")
    show.add_argument("--columns", dest="data.columns", action=Override, metavar="COLUMNS", help=COLUMNS_HELP)
    show.add_argument("--set", dest="set", action=Override, metavar="data.FIELD=VALUE", help="any field of data")
    show.set_defaults(overrides={})
    show.add_argument("--out", help="folder for the contact sheets (default: runs/show-NNN)")
    cache = subparsers.add_parser("cache", parents=[common_flags()], help="decode images once and cache them on disk")
    cache.add_argument("source", metavar="SOURCE", nargs="?", help="what --data takes and is read from files")
    cache.add_argument("--recipe", default="imagenet100.supsiam", help="recipe whose image size is used")
    cache.add_argument("--short-side", type=int, help="decode to this size instead")
    cache.add_argument("--skip-bad-images", action="store_true", help="leave out unreadable images")
    cache.add_argument("--verify", action="store_true", help="compare every checksum and repair what is damaged")
    cache.add_argument("--remove", action="store_true", help="remove the source's caches of every size")
    cache.add_argument("--list", action="store_true", help="list what is cached")
    cache.add_argument("--keep-gb", type=float, help="remove the longest unused caches until at most this much is left")
    check = subparsers.add_parser(
        "check",
        parents=[common_flags()],
        help="is a benchmark data set complete and in the right layout?",
    )
    check.add_argument("name", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    check.add_argument("--root", required=True, help="the folder that contains the benchmark")
    where = subparsers.add_parser(
        "where", parents=[common_flags()], help="what to download for a benchmark, and where to put it"
    )
    where.add_argument("name", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")


def check(args: argparse.Namespace) -> None:
    if args.action == "show" or (args.action == "cache" and not args.remove):
        check_data(args.source)
