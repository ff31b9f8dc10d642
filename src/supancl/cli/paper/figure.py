"""`supancl paper figure`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.encoders import at_least, names, subjects
from supancl.distributed import by_one
from supancl.errors import BadInput, counted, nearest, program
from supancl.files import check_place
from supancl.paper.figure import Asked, draw_figure, panel_note

FORMATS = (".png", ".svg", ".pdf")


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    by_one("a figure")
    answers = figures()
    number = re.sub(r"^fig(ure)?\.?\s*", "", (args.number or "").strip().lower())
    if number and number not in answers:
        raise BadInput(f"unknown figure {args.number!r}{nearest(number, answers)}")
    if number != "3" or not args.runs:
        if args.runs:
            raise BadInput(f"figure {number} takes no run: {answers[number]}")
        said = {number: answers[number]} if number else answers
        for each, text in said.items():
            console.print(f"Figure {each}: {text}")
        return {"figures": said}
    return draw(args, console)


def figures() -> dict[str, str]:
    """What each figure of the paper shows, and the command that draws it."""
    return {
        "1": "the framework, a drawing and not a result",
        "2": f"t-SNE of SupSiam's features of the toy data by alpha; draw it with: {program()} paper toy",
        "3": "t-SNE of 15 dog and 5 bird classes of ImageNet-100, SupSiam by alpha; draw it, or any classes of any "
        f"runs, with: {program()} paper figure 3 [TITLE=]RUN... --data SOURCE [--classes A,B,C] --out figure3.png",
    }


def draw(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Draw Figure 3 and write its numbers beside it; returns those numbers."""
    out = Path(args.out)
    check_out(out)
    at_least(args.per_class, 1, "--per-class")
    at_least(args.seed, 0, "--seed")
    classes, groups = asked_classes(args.classes, args.groups)
    asked = Asked(args.data, classes, groups, args.split, args.per_class, args.seed, args.layer)
    titled = [split_title(text) for text in args.runs]
    args.encoder = [where for _, where in titled]
    result = draw_figure(subjects(args, console, keeps=False), [title for title, _ in titled], asked, out)
    for panel in result["panels"]:
        console.print(f"{panel['title']}: {panel_note(panel)}")
    console.print(
        f"{out}: {counted(len(result['labels']), 'image')} of {counted(len(result['classes']), 'class', 'classes')}; "
        f"numbers in {out.with_suffix('.json')}"
    )
    return result


def check_out(out: Path) -> None:
    if out.suffix.lower() not in FORMATS:
        raise BadInput(f"--out {out}: must end in {', '.join(FORMATS)}")
    if out.is_dir():
        raise BadInput(f"--out {out}: is a folder; name a file")
    check_place(out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)


def split_title(text: str) -> tuple[str, str]:
    """TITLE=RUN as its two parts; a path that is there is no title, whatever it holds.

    >>> split_title("alpha = 0=runs/a"), split_title("runs/a")
    (('alpha = 0', 'runs/a'), ('', 'runs/a'))
    """
    title, equals, where = text.rpartition("=")
    return ("", text) if not equals or Path(text).exists() else (title.strip(), where)


def asked_classes(classes: str | None, groups: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The names in --classes, or its file, and those of each --groups."""
    listed: list[str] = []
    if classes is not None and Path(classes).is_file():
        listed = [line.strip() for line in Path(classes).read_text(encoding="utf-8").splitlines() if line.strip()]
    elif classes is not None:
        listed = names(classes)
    grouped: dict[str, list[str]] = {}
    for text in groups:
        group, equals, members = text.partition("=")
        if not equals or not group.strip() or not names(members):
            raise BadInput(f"--groups {text}: wanted GROUP=A,B, such as dogs=Doberman,Rottweiler")
        grouped.setdefault(group.strip(), []).extend(names(members))
    if classes is not None and not listed:
        raise BadInput(f"--classes {classes}: no class is named")
    return listed, grouped
