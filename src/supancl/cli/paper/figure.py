"""`supancl paper figure`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.checks import split_title
from supancl.cli.encoders import check_at_least, open_encoders, parse_names
from supancl.distributed import require_single_process
from supancl.errors import BadInput, did_you_mean, plural, program_name
from supancl.files import check_writable
from supancl.paper.figure import FigureRequest, draw_figure, panel_note
from supancl.reports.page import check_picture_place

FORMATS = (".png", ".svg", ".pdf")


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_single_process("a figure")
    descriptions = figures()
    number = re.sub(r"^fig(ure)?\.?\s*", "", (args.number or "").strip().lower())
    if number and number not in descriptions:
        raise BadInput(f"unknown figure {args.number!r}{did_you_mean(number, descriptions)}")
    if number != "3" or not args.runs:
        if args.runs:
            raise BadInput(f"figure {number} needs no run: {descriptions[number]}")
        descriptions = {number: descriptions[number]} if number else descriptions
        for name, text in descriptions.items():
            console.print(f"Figure {name}: {text}")
        return {"figures": descriptions}
    return draw(args, console)


def figures() -> dict[str, str]:
    """What each figure of the paper shows, and the command that draws it."""
    return {
        "1": "the framework, a drawing and not a result",
        "2": f"t-SNE of SupSiam's features of the toy data by alpha; draw it with: {program_name()} paper toy",
        "3": "t-SNE of 15 dog and 5 bird classes of ImageNet-100, SupSiam by alpha; draw it, or any classes of any "
        f"runs, with: {program_name()} paper figure 3 [TITLE=]RUN... --data SOURCE [--classes A,B,C] --out figure3.png",
    }


def draw(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Draw Figure 3 and write its numbers next to it; returns those numbers."""
    out = Path(args.out)
    check_out(out)
    check_at_least(args.per_class, 1, "--per-class")
    check_at_least(args.seed, 0, "--seed")
    classes, groups = requested_classes(args.classes, args.groups)
    request = FigureRequest(args.data, classes, groups, args.split, args.per_class, args.seed, args.layer)
    titled = [split_title(text) for text in args.runs]
    args.encoder = [path for _, path in titled]
    result = draw_figure(
        open_encoders(args, console, saves_results=False), [title for title, _ in titled], request, out
    )
    for panel in result["panels"]:
        console.print(f"{panel['title']}: {panel_note(panel)}")
    console.print(
        f"{out}: {plural(len(result['labels']), 'image')} of {plural(len(result['classes']), 'class', 'classes')}; "
        f"numbers in {out.with_suffix('.json')}"
    )
    return result


def check_out(out: Path) -> None:
    if out.suffix.lower() not in FORMATS:
        raise BadInput(f"--out {out}: must end in {', '.join(FORMATS)}")
    if out.is_dir():
        raise BadInput(f"--out {out}: is a folder; give a file")
    check_picture_place(out, "--out")
    check_writable(out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)


def requested_classes(classes: str | None, groups: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The names in --classes, or its file, and those of each --groups."""
    listed: list[str] = []
    if classes is not None and os.path.isfile(classes):  # False for names that are too long for a path
        listed = [line.strip() for line in Path(classes).read_text(encoding="utf-8").splitlines() if line.strip()]
    elif classes is not None:
        listed = parse_names(classes)
    grouped: dict[str, list[str]] = {}
    for text in groups:
        group, equals, members = text.partition("=")
        if not equals or not group.strip() or not parse_names(members):
            raise BadInput(f"--groups {text}: must be GROUP=A,B, such as dogs=Doberman,Rottweiler")
        grouped.setdefault(group.strip(), []).extend(parse_names(members))
    if classes is not None and not listed:
        raise BadInput(f"--classes {classes}: no class name in it; give names or a file with one per line")
    return listed, grouped
