"""Figure 3 from your runs: t-SNE of chosen classes, a panel per run (`supancl paper figure`, docs/tables.md)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.core.losses import Align
from supancl.data.opening import absolute_source
from supancl.data.splits import Split
from supancl.errors import BadInput, did_you_mean, plural
from supancl.evaluate import EvaluatedEncoder
from supancl.evaluate.sources import EvaluationData, open_evaluation_data, own_source, was_trained_on
from supancl.files import jsonable, write_text
from supancl.paper.tables.layouts import METHOD_TITLES
from supancl.probes import Features, knn_leave_one_out, variance
from supancl.reports.pictures import PAGE, Panel, class_styles, draw_panels, perplexity, tsne_map
from supancl.weights.provenance import commit, versions

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
NEIGHBOURS = 5  # of the shown points; a class may have few
MOST_BY_DEFAULT = 20  # classes that are shown where none are named and the paper's are not there


class Asked(NamedTuple):
    """Which images to show: of which data (None: the runs' own), classes and split, and how many of a class."""

    data: str | None
    classes: list[str]
    groups: dict[str, list[str]]
    split: str
    per_class: int
    seed: int  # of the choice of images and of t-SNE
    layer: str = "pooled"


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

    subject: EvaluatedEncoder
    features: Features
    images: list[str]
    overlaps_training: bool


def draw_figure(subjects: Sequence[EvaluatedEncoder], titles: Sequence[str], asked: Asked, out: Path) -> dict[str, Any]:
    """Draw a panel for each subject and write the numbers beside the figure; returns those numbers."""
    since = time.perf_counter()
    shown, drawn = collect(subjects, asked)
    titles = panel_titles([one.subject for one in drawn], titles)
    rows = [row_of(title, one, asked.seed) for title, one in zip(titles, drawn, strict=True)]
    labels = drawn[0].features.labels
    panels = [Panel(row["title"], np.array(row["points"]), labels.numpy(), panel_note(row)) for row in rows]
    draw_panels(panels, shown.titles, out, shown.groups, PAGE, most_named=len(shown.classes))
    result = {
        "figure": "3",
        "out": str(out),
        "data": absolute_source(own_source(drawn[0].subject, asked.data)),
        "classes": [
            {"name": name, "title": title, "group": shown.group_of(place)}
            for place, (name, title) in enumerate(zip(shown.classes, shown.titles, strict=True))
        ],
        "labels": labels.tolist(),
        "images": drawn[0].images,
        "settings": {
            "split": asked.split,
            "per_class": asked.per_class,
            "seed": asked.seed,
            "layer": asked.layer,
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
    return result


def panel_note(row: Mapping[str, Any]) -> str:
    return f"{row['k']}-NN {row['knn']:.1f}%, S_W/S_T {row['ratio']:.2f}"


def collect(found: Sequence[EvaluatedEncoder], asked: Asked) -> tuple[Shown, list[Drawn]]:
    """The classes, which the first run's data have, and the features of the same images by every run."""
    shown: Shown | None = None
    drawn: list[Drawn] = []
    for subject in found:
        evaluation = open_evaluation_data(subject, asked.data, asked.split)
        where = own_source(subject, asked.data)
        if shown is None:
            shown = choose_classes(evaluation.data.classes, where, asked.classes, asked.groups)
            class_styles(shown.groups)  # more classes than colours are refused before features are taken
        drawn.append(take(subject, evaluation, where, shown, asked))
        check_same_images(drawn[0], drawn[-1], asked.split)
    assert shown is not None
    return shown, drawn


def panel_titles(subjects: Sequence[EvaluatedEncoder], given: Sequence[str]) -> list[str]:
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


def method_title(subject: EvaluatedEncoder) -> str:
    recipe = subject.recipe
    if recipe is None:
        return subject.label
    name = METHOD_TITLES.get(recipe.method, recipe.method).rstrip("†")
    if isinstance(recipe.loss, Align) and recipe.method in ("supsiam", "supbyol"):
        return f"{name}, alpha = {recipe.loss.alpha:g}"
    return name


# --- classes ----------------------------------------------------------------------------------------------------------


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
        raise BadInput(f"{where}: {plural(len(classes), 'class', 'classes')} to show; name two or more with --classes")
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
        raise BadInput(f"{where}: no class {name!r}{did_you_mean(name, spelled)}")
    return found


# --- images -----------------------------------------------------------------------------------------------------------


def take(subject: EvaluatedEncoder, evaluation: EvaluationData, where: str, shown: Shown, asked: Asked) -> Drawn:
    """The features of the images of one panel; labels are places in the figure's classes."""
    data, split, split_name = evaluation.data, evaluation.images, evaluation.taken_from
    ids = [data.classes.index(name) if name in data.classes else -2 for name in shown.classes]
    chosen = choose_images(split, ids, asked.per_class, asked.seed)
    for name, label in zip(shown.classes, ids, strict=True):
        if not bool((split.labels == label).any()):
            raise BadInput(
                f"{subject.where}: no image of class {name!r} among those to show ({split_name}); name "
                "other --classes, or another --split"
            )
    images = split.take(chosen)
    features = subject.features(images)
    labels = torch.tensor([ids.index(label) for label in features.labels.tolist()])
    seen = asked.split == "train" or was_trained_on(subject, where, split_name)
    return Drawn(subject, Features(features.values, labels), images.names_at(torch.arange(len(images))), seen)


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
