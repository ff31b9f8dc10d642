"""The paper's Figure 3 from your runs: t-SNE of chosen classes, a panel per run (`supancl figure`, docs/tables.md)."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from supancl.cli.encoders import ENCODER, add_feature_flags, at_least, names, subjects
from supancl.core.losses import Align
from supancl.data.splits import Data, Split, absolute_source
from supancl.distributed import by_one
from supancl.errors import BadInput, counted, nearest, program
from supancl.evaluate import Subject
from supancl.evaluate.sources import data_for, judged, own_source, was_trained_on
from supancl.files import check_place, write_text
from supancl.paper.tables.layouts import METHOD_TITLES
from supancl.probes import Features, knn_leave_one_out, variance
from supancl.reports.pictures import PAGE, Panel, class_styles, draw_panels, perplexity, tsne_map
from supancl.weights.run_folder import commit, jsonable, versions

# The paper shows 15 dog and 5 bird classes of ImageNet-100 without naming them, but for Doberman and Rottweiler. The
# list has five birds; of its 19 dogs these are the first 15.
DOGS = {
    "n02107142": "Doberman",
    "n02091831": "Saluki",
    "n02105505": "komondor",
    "n02086910": "papillon",
    "n02085620": "Chihuahua",
    "n02099849": "Chesapeake Bay retriever",
    "n02109047": "Great Dane",
    "n02106550": "Rottweiler",
    "n02087046": "toy terrier",
    "n02113799": "standard poodle",
    "n02086240": "Shih-Tzu",
    "n02089973": "English foxhound",
    "n02093428": "Staffordshire terrier",
    "n02113978": "Mexican hairless",
    "n02089867": "Walker hound",
}
BIRDS = {
    "n01558993": "robin",
    "n02009229": "little blue heron",
    "n01820546": "lorikeet",
    "n02018207": "American coot",
    "n01855672": "goose",
}
PAPER_GROUPS = {"dogs": DOGS, "birds": BIRDS}
READABLE = DOGS | BIRDS
FORMATS = (".png", ".svg", ".pdf")
NEIGHBOURS = 5  # of the shown points; a class may have few
MOST_BY_DEFAULT = 20  # classes that are shown where none are named and the paper's are not there


class Shown(NamedTuple):
    """The classes of a figure in their order, and the places of each group's; without groups one of no name."""

    classes: list[str]
    groups: dict[str, list[int]]

    @property
    def titles(self) -> list[str]:
        return [READABLE.get(name, name).replace("_", " ") for name in self.classes]

    def group_of(self, place: int) -> str | None:
        return next(group for group, places in self.groups.items() if place in places) or None


class Drawn(NamedTuple):
    """What is shown of a run: the features of its images, and what they are called."""

    subject: Subject
    features: Features
    images: list[str]
    overlaps_training: bool


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", nargs="?", metavar="N", help="of the paper's figure; without one: which there are")
    parser.add_argument("runs", nargs="*", metavar="[TITLE=]RUN", help=f"a panel each: {ENCODER}")
    parser.add_argument("--data", help="the images: anything that pretrain's --data takes (default: the runs' own)")
    parser.add_argument(
        "--classes",
        metavar="A,B|FILE",
        help="class names, or a file with one in a line (default: the "
        "paper's 15 dogs and 5 birds where the data have them, else all where they are at most 20)",
    )
    parser.add_argument(
        "--groups",
        action="append",
        default=[],
        metavar="GROUP=A,B",
        help="classes with a family of colours of their own; may be given several times",
    )
    parser.add_argument("--split", default="held-out", choices=("held-out", "test", "train"), help="(default held-out)")
    parser.add_argument("--per-class", type=int, default=50, metavar="N", help="images of a class at most (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of images and of t-SNE (default 0)")
    parser.add_argument(
        "--out",
        default="figure3.png",
        metavar="FILE",
        help="a .png, .svg or .pdf (default figure3.png); a .json with the numbers goes beside it",
    )
    add_feature_flags(parser)


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
        "2": f"t-SNE of SupSiam's features of the toy data by alpha; draw it with: {program()} toy",
        "3": "t-SNE of 15 dog and 5 bird classes of ImageNet-100, SupSiam by alpha; draw it, or any classes of any "
        f"runs, with: {program()} figure 3 [TITLE=]RUN... --data SOURCE [--classes A,B,C] --out figure3.png",
    }


def draw(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Draw Figure 3 and write its numbers beside it; returns those numbers."""
    since, out = time.perf_counter(), Path(args.out)
    check_out(out)
    at_least(args.per_class, 1, "--per-class")
    at_least(args.seed, 0, "--seed")
    titled = [split_title(text) for text in args.runs]
    args.encoder = [where for _, where in titled]
    shown, drawn = collect(subjects(args, console, keeps=False), args)
    titles = panel_titles([one.subject for one in drawn], [title for title, _ in titled])
    rows = [row_of(title, one, args.seed) for title, one in zip(titles, drawn, strict=True)]
    labels = drawn[0].features.labels
    panels = [
        Panel(
            row["title"],
            np.array(row["points"]),
            labels.numpy(),
            f"{row['k']}-NN {row['knn']:.1f}%, S_W/S_T {row['ratio']:.2f}",
        )
        for row in rows
    ]
    draw_panels(panels, shown.titles, out, shown.groups, PAGE, most_named=len(shown.classes))
    result = {
        "figure": "3",
        "out": str(out),
        "data": absolute_source(own_source(drawn[0].subject, args.data)),
        "classes": [
            {"name": name, "title": title, "group": shown.group_of(place)}
            for place, (name, title) in enumerate(zip(shown.classes, shown.titles, strict=True))
        ],
        "labels": labels.tolist(),
        "images": drawn[0].images,
        "settings": {
            "split": args.split,
            "per_class": args.per_class,
            "seed": args.seed,
            "layer": args.layer,
            "normalize": True,
            "view": "margin",
            "perplexity": perplexity(len(labels)),
        },
        "panels": rows,
        "seconds": round(time.perf_counter() - since, 2),
        "commit": commit(),
        "versions": versions() | {name: version(name) for name in ("scikit-learn", "matplotlib")},
    }
    write_text(
        out.with_suffix(".json"),
        json.dumps(jsonable(result), indent=1, ensure_ascii=False) + "\n",
        "Make room, or choose another --out",
    )
    for panel in panels:
        console.print(f"{panel.title}: {panel.note}")
    console.print(
        f"{out}: {counted(len(labels), 'image')} of {counted(len(shown.classes), 'class', 'classes')}; "
        f"numbers in {out.with_suffix('.json')}"
    )
    return result


def collect(found: Sequence[Subject], args: argparse.Namespace) -> tuple[Shown, list[Drawn]]:
    """The classes, which the first run's data have, and the features of the same images by every run."""
    asked = asked_classes(args.classes, args.groups)
    shown: Shown | None = None
    drawn: list[Drawn] = []
    for subject in found:
        data, where = data_for(subject, args.data), own_source(subject, args.data)
        if shown is None:
            shown = choose_classes(data.classes, where, *asked)
            class_styles(shown.groups)  # more classes than colours are refused before features are taken
        drawn.append(take(subject, data, where, shown, args))
        check_same_images(drawn[0], drawn[-1], args.split)
    assert shown is not None
    return shown, drawn


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


def panel_titles(subjects: Sequence[Subject], given: Sequence[str]) -> list[str]:
    """The titles that were given, else method and alpha; where those are the same, with the seed, else the folder."""
    titles = [title or method_title(subject) for subject, title in zip(subjects, given, strict=True)]
    seeded = [
        title if subject.recipe is None else f"{title}, seed {subject.recipe.train.seed}"
        for subject, title in zip(subjects, titles, strict=True)
    ]
    placed = [f"{title} ({Path(subject.where).name})" for subject, title in zip(subjects, titles, strict=True)]
    return [
        next((each for each, among in ((title, titles), (seed, seeded)) if among.count(each) == 1), place)
        for title, seed, place in zip(titles, seeded, placed, strict=True)
    ]


def method_title(subject: Subject) -> str:
    recipe = subject.recipe
    if recipe is None:
        return subject.label
    name = METHOD_TITLES.get(recipe.method, recipe.method).rstrip("†")
    if isinstance(recipe.loss, Align) and recipe.method in ("supsiam", "supbyol"):
        return f"{name}, alpha = {recipe.loss.alpha:g}"
    return name


# --- classes ----------------------------------------------------------------------------------------------------------


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


def choose_classes(known: Sequence[str], where: str, asked: list[str], grouped: Mapping[str, list[str]]) -> Shown:
    """The classes to show, by their names in the data; those that are in a group, group by group, come first."""
    if not asked and not grouped:
        asked, grouped = default_classes(known, where)
    groups = {group: [find_class(name, known, where) for name in members] for group, members in grouped.items()}
    listed = [find_class(name, known, where) for name in asked]
    members = [name for group in groups.values() for name in group]
    outside = [name for name in members if name not in listed]
    if asked and outside:
        raise BadInput(f"--groups: {outside[0]!r} is not in --classes; add it there, or leave --classes out")
    if repeated := next((name for name in members if members.count(name) > 1), None):
        raise BadInput(f"--groups: {repeated!r} is named twice; a class has one group")
    if groups and (rest := [name for name in listed if name not in members]):
        groups["others"] = rest
    classes = list(dict.fromkeys([name for group in groups.values() for name in group] or listed))
    if len(classes) < 2:
        raise BadInput(f"{where}: {counted(len(classes), 'class', 'classes')} to show; name two or more with --classes")
    groups = groups or {"": classes}
    return Shown(classes, {group: [classes.index(name) for name in each] for group, each in groups.items()})


def default_classes(known: Sequence[str], where: str) -> tuple[list[str], dict[str, list[str]]]:
    """The paper's classes where the data have all of them, else all classes where a figure can hold them."""
    there = {match_class(name, known) for name in READABLE}
    if None not in there:
        return [], {group: list(members) for group, members in PAPER_GROUPS.items()}
    if len(known) <= MOST_BY_DEFAULT:
        return list(known), {}
    raise BadInput(
        f"{where}: it has not the paper's 15 dog and 5 bird classes; name some of its {len(known)} classes "
        f"with --classes, such as {','.join(known[:3])}"
    )


def match_class(name: str, known: Sequence[str]) -> str | None:
    """The class of that name, however it is spelled; wnids and names of the paper's classes stand for one another.

    >>> match_class("doberman", ["n02107142", "cat"]), match_class("Sweet Pepper", ["sweet_pepper"])
    ('n02107142', 'sweet_pepper')
    """
    if name in known:
        return name
    spelled = {spell(name)} | {
        spell(other) for pair in READABLE.items() for other in pair if spell(name) in map(spell, pair)
    }
    found = [each for each in known if spell(each) in spelled]
    return found[0] if len(found) == 1 else None


def spell(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def find_class(name: str, known: Sequence[str], where: str) -> str:
    found = match_class(name, known)
    if found is None:
        spelled = {*known, *(READABLE[each] for each in known if each in READABLE)}
        raise BadInput(f"{where}: no class {name!r}{nearest(name, spelled)}")
    return found


# --- images -----------------------------------------------------------------------------------------------------------


def take(subject: Subject, data: Data, where: str, shown: Shown, args: argparse.Namespace) -> Drawn:
    """The features of the images of one panel; labels are places in the figure's classes."""
    if args.split == "train":
        split, split_name = data.train, "train"
    else:
        split, split_name, _ = judged(subject, data, args.split, where)
    ids = [data.classes.index(name) if name in data.classes else -2 for name in shown.classes]
    chosen = choose_images(split, ids, args.per_class, args.seed)
    for name, label in zip(shown.classes, ids, strict=True):
        if not bool((split.labels == label).any()):
            raise BadInput(
                f"{subject.where}: no image of class {name!r} among those to show ({split_name}); name "
                "other --classes, or another --split"
            )
    images = split.take(chosen)
    features = subject.features(images)
    labels = torch.tensor([ids.index(label) for label in features.labels.tolist()])
    seen = args.split == "train" or was_trained_on(subject, where, split_name)
    return Drawn(subject, Features(features.values, labels), images.named(torch.arange(len(images))), seen)


def choose_images(split: Split, labels: Sequence[int], per_class: int, seed: int) -> Tensor:
    """Positions of at most `per_class` images of each label, in the order of the split; the seed chooses."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    shuffled = split.labels[order]
    parts = [order[shuffled == label][:per_class] for label in labels]
    return torch.cat(parts).sort().values


def check_same_images(first: Drawn, other: Drawn, split: str) -> None:
    """Panels show the same images: runs that hold out different ones cannot stand side by side."""
    one, two = ([Path(name).name for name in drawn.images] for drawn in (first, other))
    if one != two or not torch.equal(first.features.labels, other.features.labels):
        raise BadInput(
            f"{first.subject.where} and {other.subject.where} would show different images (--split "
            f"{split}): their data or their held-out images differ; name a source that has "
            "a test split with --data, and --split test"
        )


def row_of(title: str, drawn: Drawn, seed: int) -> dict[str, Any]:
    """The numbers of one panel: where its images lie, and how tight the classes are in the features themselves."""
    recipe, features = drawn.subject.recipe, drawn.features
    k = min(NEIGHBOURS, len(features.labels) - 1)
    spread = variance(features)
    return {
        "title": title,
        "encoder": drawn.subject.where,
        "weights": drawn.subject.weights,
        "recipe": None if recipe is None else recipe.name,
        "method": None if recipe is None else recipe.method,
        "alpha": recipe.loss.alpha if recipe is not None and isinstance(recipe.loss, Align) else None,
        "trained_with_seed": None if recipe is None else recipe.train.seed,
        "overlaps_training": drawn.overlaps_training,
        "k": k,
        "knn": knn_leave_one_out(features, (k,))[k],
        "within": spread.within,
        "total": spread.total,
        "ratio": spread.ratio,
        "points": [[round(float(x), 3), round(float(y), 3)] for x, y in tsne_map(features, seed)],
    }
