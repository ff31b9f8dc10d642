"""`supancl export`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal
from supancl.export.exporting import export_encoder
from supancl.export.images import ImageChange
from supancl.export.names import parse_formats


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    result = export_encoder(args.encoder, args.out, parse_formats(args.format), Terminal(console))
    batches = ", ".join(map(str, result["batches"]))
    console.print(
        f"{result['out']}: {result['architecture']}, {result['width']} features; each format compared with the run in "
        f"batches of {batches}, on {result['compared_on']}"
    )
    for name, row in result["formats"].items():
        size = sum(row["files"].values()) / 1e6
        ways = [
            f"{way} ({f'difference {difference:.1e}' if difference else 'equal'})"
            for way, difference in row["differences"].items()
        ]
        console.print(f"{name}: {', '.join(row['files'])}, {size:.1f} MB; loads with {', '.join(ways)}")
        for way, why in row["not_loaded"].items():
            console.print(f"  not loaded with {way}: {why}")
    for name, change in result["image_processors"].items():
        console.print(f"images prepared by {name} instead of supancl: {ImageChange(**change)}")
    for name, why in result["left_out"].items():
        console.print(f"left out: {name} ({why})")
    console.print(f"{result['out']}/README.md says how to load each; the weights belong to whoever trained them")
    return result
