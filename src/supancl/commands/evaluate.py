"""`supancl evaluate`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.console import Terminal
from supancl.errors import BadInput
from supancl.flags import OneLineParser, add_skip_flag, common
from supancl.judge import knn_of


def arguments(parser: argparse.ArgumentParser) -> None:
    protocols = parser.add_subparsers(dest="protocol", required=True, parser_class=OneLineParser)
    knn = protocols.add_parser("knn", parents=[common()], help="k nearest neighbours among the training images")
    knn.add_argument("encoder", help="a run folder or an encoder.safetensors")
    knn.add_argument("--data", help="a source (default: the run's own)")
    knn.add_argument("--k", type=int, default=20)
    knn.add_argument("--temperature", type=float, default=0.1)
    knn.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add_skip_flag(knn)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.k < 1:
        raise BadInput(f"--k {args.k}: must be at least 1")
    if args.temperature <= 0:
        raise BadInput(f"--temperature {args.temperature:g}: must be above 0")
    result = knn_of(args.encoder, args.data, args.k, args.temperature, args.device, Terminal(console),
                    args.skip_bad_images)
    console.print(f"k-NN (k = {args.k}): {result['accuracy']:.2f}% of {result['queries']} images, "
                  f"{result['references']} references, {result['classes']} classes")
    return result
