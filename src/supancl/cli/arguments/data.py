"""What `supancl data show|cache|check|where` takes."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_data
from supancl.cli.flags import common
from supancl.data.sources.benchmark_rows import BENCHMARKS


def arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="what", required=True)
    show = below.add_parser("show", parents=[common()], help="what is in a source, and a contact sheet of it")
    show.add_argument("source", help="anything that --data takes")
    show.add_argument("--recipe", help="whose views to draw (default: by the size of the images)")
    show.add_argument("--out", help="folder for the contact sheets (default: runs/show-NNN)")
    cache = below.add_parser("cache", parents=[common()], help="decode images once and keep them")
    cache.add_argument("source", nargs="?", help="anything that --data takes and that lies outside memory")
    cache.add_argument("--recipe", default="imagenet100.supsiam", help="whose size to decode to")
    cache.add_argument("--short-side", type=int, help="decode to this size instead")
    cache.add_argument("--skip-bad-images", action="store_true", help="go on without unreadable images")
    cache.add_argument("--verify", action="store_true", help="compare every checksum, and mend what is damaged")
    cache.add_argument("--remove", action="store_true", help="remove the cached images of the source, at every size")
    cache.add_argument("--list", action="store_true", help="list what is cached")
    cache.add_argument("--keep-gb", type=float, help="remove the longest unused caches until this is left")
    check = below.add_parser("check", parents=[common()], help="is a benchmark data set complete and laid out right?")
    check.add_argument("name", help=f"one of {', '.join(BENCHMARKS)}")
    check.add_argument("--root", required=True, help="the folder that holds it")
    where = below.add_parser("where", parents=[common()], help="what to download for a benchmark, and where to put it")
    where.add_argument("name", help=f"one of {', '.join(BENCHMARKS)}")


def check(args: argparse.Namespace) -> None:
    if args.what == "show" or (args.what == "cache" and not args.remove):
        check_data(args.source)
