"""Figure 3 from your runs: t-SNE of chosen classes, a panel per run (`supancl paper figure`, docs/tables.md)."""

from __future__ import annotations

import math
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
from supancl.errors import BadInput, did_you_mean
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.overlap import warn_if_trained_on
from supancl.evaluation.sources import open_evaluation_data, resolve_source
from supancl.files import write_json
from supancl.paper.layouts import METHOD_TITLES
from supancl.probes import Features, knn_leave_one_out, variance
from supancl.reports.pictures import PAGE, Panel, class_styles, draw_panels, perplexity, tsne_map
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


class PanelImages(NamedTuple):
    """What one panel shows: the encoder, the features of the images, and the images' names."""

    evaluated: EvaluatedEncoder
    features: Features  # labels are positions in the figure's classes
    images: list[str]
    overlaps_training: bool


def draw_figure(
    encoders: Sequence[EvaluatedEncoder], titles: Sequence[str], request: FigureRequest, out: Path
) -> dict[str, Any]:
    """Draw a panel for each encoder and write its numbers as JSON next to the figure; returns those numbers."""
    started = time.perf_counter()
    panels: list[PanelImages] = []
    groups: dict[str, list[str]] = {}
    for evaluated in encoders:  # the classes are chosen from the first run's data
        evaluation = open_evaluation_data(evaluated, request.data, request.split)
        source = resolve_source(evaluated, request.data)
        groups = groups or choose_classes(evaluation.data.classes, source, request.classes, request.groups)
        classes = [name for members in groups.values() for name in members]
        positions = {group: [classes.index(name) for name in members] for group, members in groups.items()}
        class_styles(positions)  # more classes than colours are refused before features are taken
        ids = [evaluation.data.classes.index(name) if name in evaluation.data.classes else -2 for name in classes]
        if missing := [name for name, label in zip(classes, ids, strict=True) if label not in evaluation.images.labels]:
            raise BadInput(
                f"{evaluated.location}: no image of class {missing[0]!r} in {evaluation.taken_from}; choose other "
                "classes, or another split"
            )
        images = evaluation.images.take(choose_images(evaluation.images, ids, request.per_class, request.seed))
        features = evaluated.features(images)
        labels = torch.tensor([ids.index(label) for label in features.labels.tolist()])
        overlaps = request.split == "train" or warn_if_trained_on(evaluated, source, evaluation.drawn_from)
        names = images.names_at(torch.arange(len(images)))
        panels.append(PanelImages(evaluated, Features(features.values, labels), names, overlaps))
        check_same_images(panels[0], panels[-1], request.split)
    titles = panel_titles(encoders, titles)
    rows = [panel_row(title, panel, request.seed) for title, panel in zip(titles, panels, strict=True)]
    labels = panels[0].features.labels
    drawn = [Panel(row["title"], np.array(row["points"]), labels.numpy(), panel_note(row)) for row in rows]
    class_titles = [CLASS_TITLES.get(name, name).replace("_", " ") for name in classes]
    draw_panels(drawn, class_titles, out, positions, PAGE)
    group_of = {name: group for group, members in groups.items() for name in members}
    result = {
        "figure": "3",
        "out": str(out),
        "data": absolute_source(resolve_source(encoders[0], request.data)),
        "classes": [
            {"name": name, "title": title, "group": group_of[name] or None}
            for name, title in zip(classes, class_titles, strict=True)
        ],
        "labels": labels.tolist(),
        "images": panels[0].images,
        "settings": {
            "split": request.split,
            "per_class": request.per_class,
            "seed": request.seed,
            "layer": request.layer,
            "normalize": True,
            "view": "margin",
            "perplexity": perplexity(len(labels)),
        },
        "panels": rows,
        "seconds": round(time.perf_counter() - started, 2),
        "commit": commit(),
        "versions": versions() | {name: version(name) for name in ("scikit-learn", "matplotlib")},
    }
    write_json(out.with_suffix(".json"), result)
    return result


# --- panels -----------------------------------------------------------------------------------------------------------


def panel_note(row: Mapping[str, Any]) -> str:
    if math.isnan(row["ratio"]):
        return "one image per class: k-NN and S_W/S_T are not measurable"
    return f"{row['k']}-NN {row['knn']:.1f}%, S_W/S_T {row['ratio']:.2f}"


def panel_titles(encoders: Sequence[EvaluatedEncoder], requested: Sequence[str]) -> list[str]:
    """The requested titles, else method and alpha; equal titles get the seed or, if that is equal too, the folder."""
    titles = [title or method_title(evaluated) for evaluated, title in zip(encoders, requested, strict=True)]
    with_seed = [
        title if evaluated.recipe is None else f"{title}, seed {evaluated.recipe.train.seed}"
        for evaluated, title in zip(encoders, titles, strict=True)
    ]
    return [
        title
        if titles.count(title) == 1
        else seeded
        if with_seed.count(seeded) == 1
        else f"{title} ({Path(evaluated.location).name})"
        for title, seeded, evaluated in zip(titles, with_seed, encoders, strict=True)
    ]


def method_title(evaluated: EvaluatedEncoder) -> str:
    recipe = evaluated.recipe
    if recipe is None:
        return evaluated.label
    name = METHOD_TITLES.get(recipe.method, recipe.method).rstrip("†")
    if isinstance(recipe.loss, Align) and recipe.method in ("supsiam", "supbyol"):
        return f"{name}, alpha = {recipe.loss.alpha:g}"
    return name


def panel_row(title: str, panel: PanelImages, seed: int) -> dict[str, Any]:
    """The numbers of one panel: the map's points, and k-NN and variance of the features themselves."""
    recipe, features = panel.evaluated.recipe, panel.features
    k = min(NEIGHBOURS, len(features.labels) - 1)
    scatter = variance(features)
    return {
        "title": title,
        "encoder": panel.evaluated.location,
        "weights": panel.evaluated.weights,
        "recipe": None if recipe is None else recipe.name,
        "method": None if recipe is None else recipe.method,
        "alpha": recipe.loss.alpha if recipe is not None and isinstance(recipe.loss, Align) else None,
        "trained_with_seed": None if recipe is None else recipe.train.seed,
        "overlaps_training": panel.overlaps_training,
        "k": k,
        "knn": knn_leave_one_out(features, k),
        "within": scatter.within,
        "total": scatter.total,
        "ratio": scatter.ratio,
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
        elif len(names) <= MAX_DEFAULT_CLASSES:
            requested = names
        else:
            raise BadInput(
                f"{source}: does not have the paper's 15 dog and 5 bird classes; choose from its {len(names)} classes "
                f"with classes, such as {','.join(names[:3])}"
            )
    groups = {group: [find_class(name, names, source) for name in members] for group, members in grouped.items()}
    listed = [find_class(name, names, source) for name in requested]
    members = [name for group in groups.values() for name in group]
    for name in members:
        if (listed and name not in listed) or members.count(name) > 1:
            raise BadInput(f"groups: {name!r} is in two groups, or not in classes; a class has one group")
    others = [name for name in dict.fromkeys(listed) if name not in members]
    if others:
        groups["others" if groups else ""] = others
    if len(members) + len(others) < 2:
        raise BadInput(f"{source}: fewer than two classes to show; name two or more with classes")
    return groups


def match_class(name: str, class_names: Sequence[str]) -> str | None:
    """The class with this name; case and punctuation do not matter, and the paper's classes also match by wnid.

    >>> match_class("doberman", ["n02107142", "cat"]), match_class("Sweet Pepper", ["sweet_pepper"])
    ('n02107142', 'sweet_pepper')
    """

    def plain(text: str) -> str:
        return re.sub(r"[\W_]", "", text.lower())

    if name in class_names:
        return name
    pairs = [{plain(wnid), plain(title)} for wnid, title in CLASS_TITLES.items()]
    spellings = {plain(name)}.union(*(pair for pair in pairs if plain(name) in pair))
    matches = [class_name for class_name in class_names if plain(class_name) in spellings]
    return matches[0] if len(matches) == 1 else None


def find_class(name: str, class_names: Sequence[str], source: str) -> str:
    match = match_class(name, class_names)
    if match is None:
        spellings = {*class_names, *(CLASS_TITLES[other] for other in class_names if other in CLASS_TITLES)}
        raise BadInput(f"{source}: no class {name!r}{did_you_mean(name, spellings)}")
    return match


def choose_images(split: Split, labels: Sequence[int], per_class: int, seed: int) -> Tensor:
    """Positions of at most `per_class` random images of each label, in the order of the split."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    shuffled = split.labels[order]
    return torch.cat([order[shuffled == label][:per_class] for label in labels]).sort().values


def check_same_images(first: PanelImages, other: PanelImages, split: str) -> None:
    """Refuse panels that would show different images."""
    first_names, other_names = ([Path(name).name for name in panel.images] for panel in (first, other))
    if first_names != other_names or not torch.equal(first.features.labels, other.features.labels):
        raise BadInput(
            f"{first.evaluated.location} and {other.evaluated.location} would show different images (split {split}), "
            "because their data or held-out images differ; give data with a source that has a test split, and split "
            "test"
        )
