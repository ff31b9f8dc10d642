"""`supancl map`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.checks import split_title
from supancl.cli.encoders import check_at_least, open_encoders
from supancl.cli.paper.figure import requested_classes
from supancl.distributed import require_single_process
from supancl.errors import plural
from supancl.files import check_writable, make_folder, write_text
from supancl.reports.map_page import map_page
from supancl.reports.maps import MapRequest, build_maps, name_encoders, to_panels
from supancl.reports.pictures import draw_panels


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Write a page with a map per encoder, or draw them as a picture."""
    require_single_process("a map")
    started = time.perf_counter()
    out = Path(args.static or args.out)
    check_writable(out.parent)
    check_at_least(args.limit, 2, "--limit")
    check_at_least(args.seed, 0, "--seed")
    titles, args.encoder = zip(*map(split_title, args.runs), strict=True)
    args.encoder = list(args.encoder)
    encoders = open_encoders(args, console, saves_results=False)
    request = MapRequest(args.data, requested_classes(args.classes, ())[0], args.limit, args.seed)
    images, maps = build_maps(encoders, name_encoders(encoders, titles), request)
    make_folder(out.parent)
    if args.static:
        draw_panels(to_panels(images, maps), images.classes, out)
    else:
        write_text(out, map_page(args.data, images, maps))
    size = out.stat().st_size
    console.print(
        f"{out}: {plural(len(images.names), 'image', number_format=',')}, {plural(len(maps), 'encoder')}, "
        f"{size / 1e6:.1f} MB"
    )
    return {
        "out": str(out),
        "data": args.data,
        "encoders": [evaluated.location for evaluated in encoders],
        "titles": [encoder_map.title for encoder_map in maps],
        "images": len(images.names),
        "classes": len(set(images.class_numbers().flatten().tolist()) - {-1}),
        "seed": args.seed,
        "bytes": size,
        "seconds": round(time.perf_counter() - started, 2),
    }
