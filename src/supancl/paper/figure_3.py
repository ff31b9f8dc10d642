"""Figure 3 from your runs: t-SNE of chosen classes, a panel per run (`supancl paper figure`, docs/tables.md)."""

from __future__ import annotations

import json
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
from supancl.errors import BadInput, did_you_mean, plural
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.overlap import warn_if_trained_on
from supancl.evaluation.sources import EvaluationData, open_evaluation_data, resolve_source
from supancl.files import jsonable, write_text
from supancl.paper.tables.layouts import METHOD_TITLES
from supancl.probes import Features, knn_leave_one_out, variance
from supancl.reports.pictures import PAGE, Panel, class_styles, draw_panels
from supancl.reports.tsne import perplexity, tsne_map
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
PAPER_GROUPS = {"dogs": DOGS, "birds": BIRDS}
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


class FigureClasses(NamedTuple):
    """The classes of a figure in order, and each group's positions; without groups: one nameless group."""

    classes: list[str]
    groups: dict[str, list[int]]

    @property
    def titles(self) -> list[str]:
        return [CLASS_TITLES.get(name, name).replace("_", " ") for name in self.classes]

    def group_of(self, position: int) -> str | None:
        return next(group for group, positions in self.groups.items() if position in positions) or None


class PanelImages(NamedTuple):
    """What one panel shows: the encoder, the features of the images, and the images' names."""

    evaluated: EvaluatedEncoder
    features: Features
    images: list[str]
    overlaps_training: bool


def draw_figure(
    encoders: Sequence[EvaluatedEncoder], titles: Sequence[str], request: FigureRequest, out: Path
) -> dict[str, Any]:
    """Draw a panel for each encoder and write its numbers as JSON next to the figure; returns those numbers."""
    started = time.perf_counter()
    figure_classes, panel_images = collect_panels(encoders, request)
    titles = panel_titles([images.evaluated for images in panel_images], titles)
    rows = [panel_row(title, images, request.seed) for title, images in zip(titles, panel_images, strict=True)]
    labels = panel_images[0].features.labels
    panels = [Panel(row["title"], np.array(row["points"]), labels.numpy(), panel_note(row)) for row in rows]
    draw_panels(
        panels, figure_classes.titles, out, figure_classes.groups, PAGE, numbered_above=len(figure_classes.classes)
    )
    result = {
        "figure": "3",
        "out": str(out),
        "data": absolute_source(resolve_source(panel_images[0].evaluated, request.data)),
        "classes": [
            {"name": name, "title": title, "group": figure_classes.group_of(position)}
            for position, (name, title) in enumerate(zip(figure_classes.classes, figure_classes.titles, strict=True))
        ],
        "labels": labels.tolist(),
        "images": panel_images[0].images,
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
    write_text(
        out.with_suffix(".json"),
        json.dumps(jsonable(result), indent=1, ensure_ascii=False) + "\n",
        "Make room, or choose another out",
    )
    return result


def panel_note(row: Mapping[str, Any]) -> str:
    if math.isnan(row["ratio"]):
        return "one image per class: k-NN and S_W/S_T are not measurable"
    return f"{row['k']}-NN {row['knn']:.1f}%, S_W/S_T {row['ratio']:.2f}"


def collect_panels(
    encoders: Sequence[EvaluatedEncoder], request: FigureRequest
) -> tuple[FigureClasses, list[PanelImages]]:
    """The classes, chosen from the first run's data, and every run's features of the same images."""
    figure_classes: FigureClasses | None = None
    panel_images: list[PanelImages] = []
    for evaluated in encoders:
        evaluation = open_evaluation_data(evaluated, request.data, request.split)
        source = resolve_source(evaluated, request.data)
        if figure_classes is None:
            figure_classes = choose_classes(evaluation.data.classes, source, request.classes, request.groups)
            class_styles(figure_classes.groups)  # more classes than colours are refused before features are taken
        panel_images.append(extract_panel(evaluated, evaluation, source, figure_classes, request))
        check_same_images(panel_images[0], panel_images[-1], request.split)
    assert figure_classes is not None
    return figure_classes, panel_images


def panel_titles(encoders: Sequence[EvaluatedEncoder], requested: Sequence[str]) -> list[str]:
    """The requested titles, else method and alpha; equal titles get the seed or, if that is equal too, the folder."""
    titles = [title or method_title(evaluated) for evaluated, title in zip(encoders, requested, strict=True)]
    with_seed = [
        title if evaluated.recipe is None else f"{title}, seed {evaluated.recipe.train.seed}"
        for evaluated, title in zip(encoders, titles, strict=True)
    ]
    with_folder = [
        f"{title} ({Path(evaluated.location).name})" for evaluated, title in zip(encoders, titles, strict=True)
    ]
    return [
        next(
            (
                candidate
                for candidate, candidates in ((title, titles), (seed_title, with_seed))
                if candidates.count(candidate) == 1
            ),
            folder_title,
        )
        for title, seed_title, folder_title in zip(titles, with_seed, with_folder, strict=True)
    ]


def method_title(evaluated: EvaluatedEncoder) -> str:
    recipe = evaluated.recipe
    if recipe is None:
        return evaluated.label
    name = METHOD_TITLES.get(recipe.method, recipe.method).rstrip("†")
    if isinstance(recipe.loss, Align) and recipe.method in ("supsiam", "supbyol"):
        return f"{name}, alpha = {recipe.loss.alpha:g}"
    return name


# --- classes ----------------------------------------------------------------------------------------------------------


def choose_classes(
    class_names: Sequence[str], source: str, requested: list[str], grouped: Mapping[str, list[str]]
) -> FigureClasses:
    """The classes to show, by their names in the data; classes of groups come first, group by group."""
    if not requested and not grouped:
        requested, grouped = default_classes(class_names, source)
    groups = {
        group: [find_class(name, class_names, source) for name in grouped_names]
        for group, grouped_names in grouped.items()
    }
    listed = [find_class(name, class_names, source) for name in requested]
    grouped_names = [name for group in groups.values() for name in group]
    outside = [name for name in grouped_names if name not in listed]
    if requested and outside:
        raise BadInput(f"groups: {outside[0]!r} is not in classes; add it there or omit classes")
    if repeated := next((name for name in grouped_names if grouped_names.count(name) > 1), None):
        raise BadInput(f"groups: {repeated!r} is in two groups; a class has one group")
    if groups and (ungrouped := [name for name in listed if name not in grouped_names]):
        groups["others"] = ungrouped
    classes = list(dict.fromkeys([name for group in groups.values() for name in group] or listed))
    if len(classes) < 2:
        raise BadInput(f"{source}: {plural(len(classes), 'class', 'classes')} to show; name two or more with classes")
    groups = groups or {"": classes}
    return FigureClasses(
        classes, {group: [classes.index(name) for name in members] for group, members in groups.items()}
    )


def default_classes(class_names: Sequence[str], source: str) -> tuple[list[str], dict[str, list[str]]]:
    """The paper's classes if the data have all of them, else all classes if a figure can hold them."""
    matches = {match_class(name, class_names) for name in CLASS_TITLES}
    if None not in matches:
        return [], {group: list(members) for group, members in PAPER_GROUPS.items()}
    if len(class_names) <= MAX_DEFAULT_CLASSES:
        return list(class_names), {}
    raise BadInput(
        f"{source}: does not have the paper's 15 dog and 5 bird classes; choose from its {len(class_names)} classes "
        f"with classes, such as {','.join(class_names[:3])}"
    )


def match_class(name: str, class_names: Sequence[str]) -> str | None:
    """The class with this name; case and punctuation do not matter, and the paper's classes also match by wnid.

    >>> match_class("doberman", ["n02107142", "cat"]), match_class("Sweet Pepper", ["sweet_pepper"])
    ('n02107142', 'sweet_pepper')
    """
    if name in class_names:
        return name
    spellings = {normalize_name(name)} | {
        normalize_name(other)
        for pair in CLASS_TITLES.items()
        for other in pair
        if normalize_name(name) in map(normalize_name, pair)
    }
    matches = [class_name for class_name in class_names if normalize_name(class_name) in spellings]
    return matches[0] if len(matches) == 1 else None


def normalize_name(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def find_class(name: str, class_names: Sequence[str], source: str) -> str:
    match = match_class(name, class_names)
    if match is None:
        spellings = {
            *class_names,
            *(CLASS_TITLES[class_name] for class_name in class_names if class_name in CLASS_TITLES),
        }
        raise BadInput(f"{source}: no class {name!r}{did_you_mean(name, spellings)}")
    return match


# --- images -----------------------------------------------------------------------------------------------------------


def extract_panel(
    evaluated: EvaluatedEncoder,
    evaluation: EvaluationData,
    source: str,
    figure_classes: FigureClasses,
    request: FigureRequest,
) -> PanelImages:
    """The features of one panel's images; labels are positions in the figure's classes."""
    data, split, split_name = evaluation.data, evaluation.images, evaluation.taken_from
    ids = [data.classes.index(name) if name in data.classes else -2 for name in figure_classes.classes]
    positions = choose_images(split, ids, request.per_class, request.seed)
    for name, label in zip(figure_classes.classes, ids, strict=True):
        if not bool((split.labels == label).any()):
            raise BadInput(
                f"{evaluated.location}: no image of class {name!r} in {split_name}; choose "
                "other classes, or another split"
            )
    images = split.take(positions)
    features = evaluated.features(images)
    labels = torch.tensor([ids.index(label) for label in features.labels.tolist()])
    overlaps_training = request.split == "train" or warn_if_trained_on(evaluated, source, evaluation.drawn_from)
    return PanelImages(
        evaluated, Features(features.values, labels), images.names_at(torch.arange(len(images))), overlaps_training
    )


def choose_images(split: Split, labels: Sequence[int], per_class: int, seed: int) -> Tensor:
    """Positions of at most `per_class` random images of each label, in the order of the split."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    shuffled = split.labels[order]
    by_label = [order[shuffled == label][:per_class] for label in labels]
    return torch.cat(by_label).sort().values


def check_same_images(first: PanelImages, other: PanelImages, split: str) -> None:
    """Refuse panels that would show different images."""
    first_names, other_names = ([Path(name).name for name in panel.images] for panel in (first, other))
    if first_names != other_names or not torch.equal(first.features.labels, other.features.labels):
        raise BadInput(
            f"{first.evaluated.location} and {other.evaluated.location} would show different images (split "
            f"{split}), because their data or held-out images differ; give data with a source that has a test split, "
            "and split test"
        )


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
