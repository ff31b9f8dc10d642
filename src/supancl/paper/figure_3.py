"""Figure 3 from your runs: t-SNE of chosen classes, a panel per run (`supancl paper figure`, docs/tables.md)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.core.losses import Align
from supancl.data.opening import absolute_source
from supancl.data.splits import Split
from supancl.errors import BadInput, did_you_mean
from supancl.evaluation.data import open_evaluation_data, resolve_source
from supancl.evaluation.encoder import EvaluatedEncoder, warn_if_trained_on
from supancl.files import write_json
from supancl.probes import Features, knn_leave_one_out, variance
from supancl.reports.pictures import PAGE, Panel, draw_panels, tsne_map
from supancl.runs.provenance import commit, versions

# The paper shows 15 dog and 5 bird classes of ImageNet-100 and names only Doberman and Rottweiler. The list of classes
# has five birds; these are the first 15 of its 19 dogs.
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
CLASS_TITLES = DOGS | BIRDS
NEIGHBOURS = 5  # k of the k-NN over the shown points; a class may have few
MAX_DEFAULT_CLASSES = 20  # with at most so many classes all are shown, unless some are named


class FigureRequest(NamedTuple):
    """Which images to show: data (None: what each run was trained on), classes, split, and how many per class."""

    data: str | None
    classes: list[str]
    groups: dict[str, list[str]]
    split: str
    per_class: int
    seed: int  # of the choice of images and of t-SNE
    layer: str = "pooled"


def draw_figure(
    encoders: Sequence[EvaluatedEncoder], titles: Sequence[str], request: FigureRequest, out: Path
) -> dict[str, Any]:
    """Draw a panel for each encoder and write its numbers as JSON next to the figure; returns those numbers."""
    started = time.perf_counter()
    panels: list[dict[str, Any]] = []
    groups: dict[str, list[str]] = {}
    shown: tuple[list[str], list[int]] | None = None
    for evaluated, title in zip(encoders, titles, strict=True):  # the classes are chosen from the first run's data
        evaluation = open_evaluation_data(evaluated, request.data, request.split).by_leaf()
        evaluation.images.all_labels.check_single(evaluation.location, "figure 3")
        source, names = resolve_source(evaluated, request.data), evaluation.classes
        groups = groups or choose_classes(names, source, request.classes, request.groups)
        classes = [name for members in groups.values() for name in members]
        positions = {group: [classes.index(name) for name in members] for group, members in groups.items()}
        ids = [names.index(name) if name in names else -2 for name in classes]
        if missing := [name for name, label in zip(classes, ids, strict=True) if label not in evaluation.images.labels]:
            raise BadInput(f"{evaluated.location}: no image of class {missing[0]!r} in {evaluation.taken_from}")
        images = evaluation.images.take(choose_images(evaluation.images, ids, request.per_class, request.seed))
        features = evaluated.features(images)
        labels = torch.tensor([ids.index(label) for label in features.labels.tolist()])
        overlaps = request.split == "train" or warn_if_trained_on(evaluated, source, evaluation.drawn_from)
        paths = images.names_at(torch.arange(len(images)))
        same = [Path(name).name for name in paths], labels.tolist()
        if shown not in (None, same):
            raise BadInput(f"{evaluated.location} would show other images than the first; name data with a test split")
        shown = same
        row = measure_panel(evaluated, Features(features.values, labels), request.seed)
        panels.append({"title": title or method_title(evaluated), **row, "overlaps_training": overlaps})
    drawn = [Panel(row["title"], np.array(row["points"]), labels.numpy(), panel_note(row)) for row in panels]
    described = [
        {"name": name, "title": CLASS_TITLES.get(name, name).replace("_", " "), "group": group or None}
        for group, members in groups.items()
        for name in members
    ]
    draw_panels(drawn, [str(one["title"]) for one in described], out, positions, PAGE)
    result = {
        "figure": "3",
        "out": str(out),
        "data": absolute_source(resolve_source(encoders[0], request.data)),
        "classes": described,
        "labels": labels.tolist(),
        "images": paths,
        "settings": {
            key: value for key, value in request._asdict().items() if key not in ("data", "classes", "groups")
        },
        "panels": panels,
        "seconds": round(time.perf_counter() - started, 2),
        "commit": commit(),
        "versions": versions(),
    }
    write_json(out.with_suffix(".json"), result)
    return result


def panel_note(row: Mapping[str, Any]) -> str:
    return f"{row['k']}-NN {row['knn']:.1f}%, S_W/S_T {row['ratio']:.2f}"


def method_title(evaluated: EvaluatedEncoder) -> str:
    recipe = evaluated.recipe
    if recipe is None:
        return evaluated.label
    if isinstance(recipe.loss, Align) and recipe.loss.supervised:
        return f"{recipe.method}, alpha = {recipe.loss.alpha:g}"
    return recipe.method


def measure_panel(evaluated: EvaluatedEncoder, features: Features, seed: int) -> dict[str, Any]:
    """The numbers of one panel: the map's points, and k-NN and variance of the features themselves."""
    recipe, k = evaluated.recipe, min(NEIGHBOURS, len(features.labels) - 1)
    return {
        "encoder": evaluated.location,
        "weights": evaluated.weights,
        "recipe": recipe and recipe.name,
        "alpha": recipe and getattr(recipe.loss, "alpha", None),
        "trained_with_seed": recipe and recipe.train.seed,
        "k": k,
        "knn": knn_leave_one_out(features, k),
        **{name: getattr(variance(features), name) for name in ("within", "total", "ratio")},
        "points": [[round(float(x), 3), round(float(y), 3)] for x, y in tsne_map(features, seed)],
    }


# --- classes and images -----------------------------------------------------------------------------------------------


def choose_classes(
    names: Sequence[str], source: str, requested: Sequence[str], grouped: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """The classes to show, by their names in the data, group by group; without groups in one that has no name.

    Unless some are asked for: the paper's classes if the data have all of them, else all if a figure can hold them.
    """
    if not requested and not grouped:
        if all(match_class(name, names) for name in CLASS_TITLES):
            grouped = {"dogs": list(DOGS), "birds": list(BIRDS)}
        elif len(requested := names) > MAX_DEFAULT_CLASSES:
            raise BadInput(f"{source}: classes: {len(names)}; choose some with classes, such as {','.join(names[:3])}")
    groups = {group: [find_class(name, names, source) for name in members] for group, members in grouped.items()}
    members = [name for group in groups.values() for name in group]
    others = [
        name for name in dict.fromkeys(find_class(name, names, source) for name in requested) if name not in members
    ]
    if len(set(members)) < len(members) or len(members) + len(others) < 2:
        raise BadInput(f"{source}: name two or more classes, and none in two groups")
    return groups | ({"others" if groups else "": others} if others else {})


def match_class(name: str, class_names: Sequence[str]) -> str | None:
    """The class with this name; case and punctuation do not matter, and the paper's classes also match by wnid.

    >>> match_class("doberman", ["n02107142", "cat"]), match_class("Sweet Pepper", ["sweet_pepper"])
    ('n02107142', 'sweet_pepper')
    """

    def plain(text: str) -> str:
        return re.sub(r"[\W_]", "", text.lower())

    wnids = [wnid for wnid, title in CLASS_TITLES.items() if plain(title) == plain(name)]
    spellings = {plain(name), plain(CLASS_TITLES.get(name, name)), *wnids}
    return next((one for one in (name, *class_names) if one in class_names and plain(one) in spellings), None)


def find_class(name: str, class_names: Sequence[str], source: str) -> str:
    match = match_class(name, class_names)
    if match is None:
        raise BadInput(f"{source}: no class {name!r}{did_you_mean(name, class_names)}")
    return match


def choose_images(split: Split, labels: Sequence[int], per_class: int, seed: int) -> Tensor:
    """Positions of at most `per_class` random images of each label, in the order of the split."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    shuffled = split.labels[order]
    return torch.cat([order[shuffled == label][:per_class] for label in labels]).sort().values
