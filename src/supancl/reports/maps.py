"""What `supancl map` shows: the images of a source, and their place and neighbours in the features of each encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.data.label_pairs import ImageLabels, heaviest_labels
from supancl.data.levels import with_leaf_labels
from supancl.data.splits import Source, Split
from supancl.errors import BadInput, did_you_mean, plural
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.sources import held_out_mask, read_source, spec_for
from supancl.files import absolute_path
from supancl.probes import Features
from supancl.reports.pictures import Panel, tsne_map
from supancl.reports.tsne import check_tsne, nearest_images

NEIGHBOURS = 12  # shown for an image
MAX_IMAGES = 100_000
QUICK_IMAGES = 1_000  # more take long enough that the command says what it is doing
HELD_OUT = "held-out"


class MapRequest(NamedTuple):
    """Which images to show: a source, some of its classes (none: all), at most `limit` of them chosen by the seed."""

    data: str
    classes: Sequence[str] = ()
    limit: int = MAX_IMAGES
    seed: int = 0  # of the choice of images and of t-SNE


class EncoderMap(NamedTuple):
    """A map of one encoder: title, two coordinates per image, and the rows of each image's nearest neighbours."""

    title: str
    points: np.ndarray[Any, Any]
    neighbours: np.ndarray[Any, Any]


class MappedImages(NamedTuple):
    """The images of a map: their pixels in `splits`, one after the other, names, labels, and where each is from.

    With several labels per image, `pairs` has them all and `labels` the one that colours a point.
    """

    splits: list[Split]
    names: list[str]
    labels: np.ndarray[Any, Any]
    classes: tuple[str, ...]
    split_names: list[str]  # one per image: train, held-out, val or test
    pairs: Tensor | None = None

    def class_numbers(self) -> Tensor:
        """The class of every label of every image, (images, L); -1 where there is none."""
        return label_numbers(ImageLabels(torch.from_numpy(self.labels), self.pairs))


def build_maps(
    encoders: Sequence[EvaluatedEncoder], titles: Sequence[str], request: MapRequest
) -> tuple[MappedImages, list[EncoderMap]]:
    """The images and a map for each encoder. Each encoder reads the images at its own size; names must agree."""
    images: MappedImages | None = None
    features: list[Tensor] = []
    held_out: Tensor | None = None  # by every run that was trained on these images
    for evaluated in encoders:
        source = read_source(evaluated, spec_for(evaluated, request.data), "margin", several_labels=True)
        if evaluated.encoder.spec.name == "linear":
            raise BadInput(f"{request.data} holds vectors, and a map shows images; choose other data")
        chosen_images, run_held_out = choose_images(evaluated, source, request)
        if images is None:
            images = chosen_images
            check_tsne(len(images.names))
        check_same_names(images, chosen_images, request.data)
        if run_held_out is not None:
            held_out = run_held_out if held_out is None else held_out & run_held_out
        features.append(torch.cat([evaluated.features(split).values for split in chosen_images.splits]))
    assert images is not None
    if held_out is not None:
        pairs = zip(images.split_names, held_out.tolist(), strict=True)
        images = images._replace(split_names=[HELD_OUT if is_held_out else name for name, is_held_out in pairs])
    maps = []
    for evaluated, title, values in zip(encoders, titles, features, strict=True):
        if len(values) > QUICK_IMAGES:
            evaluated.reporter.note(f"{title}: neighbours and t-SNE of {len(values):,} images")
        matches = nearest_images(values, NEIGHBOURS, evaluated.options.device)
        labelled = Features(values, torch.from_numpy(images.labels))
        points = tsne_map(labelled, request.seed, evaluated.reporter.on_progress)
        maps.append(EncoderMap(title, points.astype(np.float32), matches.rows.cpu().numpy()))
    return images, maps


def choose_images(
    evaluated: EvaluatedEncoder, source: Source, request: MapRequest
) -> tuple[MappedImages, Tensor | None]:
    """The images of the requested classes in all splits; beyond the limit, a random choice by the seed.

    Also a mask of those that the run held out of its train split; None if they are not the run's images. Of a hierarchy
    the labels are the leaves.
    """
    by_leaf = with_leaf_labels(source)
    splits = by_leaf.splits
    labels, pairs = labels_to_show(list(splits.values()))
    rows = torch.arange(len(labels))
    if request.classes:
        numbers = torch.tensor(find_classes(request, by_leaf.classes))
        rows = rows[torch.isin(label_numbers(ImageLabels(labels, pairs)), numbers).any(1)]
    if len(rows) > request.limit:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(request.seed))
        evaluated.warn_once(f"{request.data}: the map shows {request.limit:,} of {len(rows):,} images (limit)")
        rows = rows[order[: request.limit].sort().values]
    if len(rows) < 2:
        raise BadInput(f"{request.data}: {plural(len(rows), 'image')} to show; a map needs at least two")
    in_train = held_out_mask(evaluated, request.data, source) if "train" in splits else None
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    nonempty_splits, names, split_names, start = [], [], [], 0
    for name, split in splits.items():
        positions = rows[(rows >= start) & (rows < start + len(split))] - start
        if name == "train" and in_train is not None:
            held_out[start : start + len(split)] = in_train
        start += len(split)
        if len(positions):
            nonempty_splits.append(split.take(positions.to(split.index.device)))
        # the page may be saved anywhere, and so may its tables
        names += [absolute_path(path) if source.has_files else path for path in split.names_at(positions)]
        split_names += [name] * len(positions)
    shown_pairs = None if pairs is None else pairs[rows]
    images = MappedImages(nonempty_splits, names, labels[rows].numpy(), by_leaf.classes, split_names, shown_pairs)
    return images, None if in_train is None else held_out[rows]


def labels_to_show(splits: Sequence[Split]) -> ImageLabels:
    """The label that colours each image of the splits, one after the other, and all labels if there are several.

    Of several the one with the largest weight colours it, of equals the rarest.
    """
    all_pairs = [split.pairs for split in splits if split.pairs is not None]
    if not all_pairs:
        return ImageLabels(torch.cat([split.labels for split in splits]))
    pairs = torch.cat(all_pairs)
    numbers = pairs[..., 0].long()
    return ImageLabels(heaviest_labels(pairs, torch.bincount(numbers[numbers >= 0], minlength=1)), pairs)


def label_numbers(labels: ImageLabels) -> Tensor:
    """The class of every label of every image, (images, L); -1 where there is none."""
    return labels.labels[:, None] if labels.pairs is None else labels.pairs[..., 0].long()


def find_classes(request: MapRequest, classes: Sequence[str]) -> list[int]:
    """The labels of the requested classes."""
    for name in request.classes:
        if name not in classes:
            raise BadInput(f"{request.data}: no class {name!r}{did_you_mean(name, classes)}")
    return [classes.index(name) for name in request.classes]


def check_same_names(first: MappedImages, other: MappedImages, source: str) -> None:
    if first.names != other.names or not torch.equal(first.class_numbers(), other.class_numbers()):
        raise BadInput(f"{source}: its images changed while they were read; run the command again")


def name_encoders(encoders: Sequence[EvaluatedEncoder], titles: Sequence[str]) -> list[str]:
    """The requested titles, else the names of the run folders, or whole paths if two are equal."""
    names = [Path(evaluated.location).name or evaluated.location for evaluated in encoders]
    if len(set(names)) < len(names):
        names = [evaluated.location for evaluated in encoders]
    return [title or name for title, name in zip(titles, names, strict=True)]


def common_folder(names: Sequence[str]) -> str:
    """The folder that all names begin with, with its slash.

    >>> common_folder(["photos/cat/1.png", "photos/car/1.png"])
    'photos/'
    """
    first, last = min(names), max(names)  # what these two begin with, all names between them do
    length = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[: first[:length].rfind("/") + 1]


def to_panels(images: MappedImages, maps: Sequence[EncoderMap]) -> list[Panel]:
    """The maps for `draw_panels`."""
    return [Panel(encoder_map.title, encoder_map.points, images.labels) for encoder_map in maps]
