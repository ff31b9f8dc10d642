"""Labels that look wrong, images that are there twice, and images unlike all others, among all images of a source.

Pairs of duplicates are proposed by small copies of the pixels and by the encoder's features, and confirmed by the
pixels. So the search does not depend on how good the encoder is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.labels import Labels
from supancl.data.labels import label_texts, with_leaf_labels
from supancl.data.sources.libraries import local_caches
from supancl.data.splits import Source, Split
from supancl.data.store.memory import Batch
from supancl.data.views.render import View
from supancl.errors import BadInput
from supancl.evaluation.data import held_out_mask, is_read_as_trained, read_source, spec_for
from supancl.evaluation.encoder import EvaluatedEncoder, shares_images
from supancl.probes.classifiers import UNLIKE_QUANTILE
from supancl.probes.features import Features
from supancl.probes.knn import DEFAULT_K, Neighbours, default_k, neighbours
from supancl.probes.label_scores import LabelScores, judged_rows, label_scores, share_of_wrong_labels
from supancl.reporter import report_to, track

HELD_OUT = "held-out"
NEIGHBOURS_SHOWN = 8
OUTLIER_NEIGHBOUR = 5  # an outlier is far even from its fifth neighbour: a copy of it makes it no less strange
OUTLIER_FACTOR = 1.5  # times the median distance
LEAST_LEAD = 0.65  # of 20% wrong labels of CIFAR-100, 92 to 94% of the suspects with this lead were wrong
LEAST_LOOK = 20  # suspects to look at, however small their lead
SIDE = 16  # of the small copies that confirm a pair of duplicates
SEARCH_SIDE = 8  # of those that propose pairs
PROPOSED = 4  # per image by the pixels, and as many by the features
MAX_RELATIVE = 0.25  # difference of the small copies, relative to their contrast
MAX_LEVELS = 20.0  # and at most so many of 255 levels: both root mean squares
MIN_CONTRAST = 4.0  # levels: a flatter image has nothing to compare
IMAGES_AT_A_TIME = 256
PAIRS_AT_A_TIME = 8192


class DuplicatePair(NamedTuple):
    """Rows of two images, the first one earlier; and the root mean square of their difference in levels of 255."""

    first: int
    second: int
    kind: Literal["same pixels", "near", "mirrored"]
    difference: float


class ListedImages(NamedTuple):
    """Every image of a source: pixels in `splits`, one after the other; names, labels (-1: none), split of each.

    With several labels per image, `cells` has them all as in a .csv, and `labels` the one with the largest weight, of
    equals the rarest.
    """

    source: str
    splits: dict[str, Split]
    names: list[str]
    labels: Tensor
    classes: tuple[str, ...]
    split_names: list[str]  # one per image: train, held-out, val or test
    has_files: bool  # whether names are paths
    cells: Sequence[str] | None = None

    def take(self, rows: Tensor) -> ListedImages:
        """The images at these rows, which ascend."""
        splits, start = dict[str, Split](), 0
        for name, split in self.splits.items():
            inside = rows[(rows >= start) & (rows < start + len(split))] - start
            if len(inside):
                splits[name] = split.take(inside.to(split.index.device))
            start += len(split)
        taken = rows.tolist()
        names, split_names = ([each[row] for row in taken] for each in (self.names, self.split_names))
        cells = None if self.cells is None else [self.cells[row] for row in taken]
        return self._replace(splits=splits, names=names, labels=self.labels[rows], split_names=split_names, cells=cells)

    def class_name(self, row: int) -> str:
        """The given label of an image; empty if it has none."""
        label = int(self.labels[row])
        return self.classes[label] if label >= 0 else ""

    def key(self, row: int) -> tuple[str, str]:
        """An image's absolute path and the split that its source has it in."""
        split = self.split_names[row]
        return os.path.abspath(self.names[row]), "train" if split == HELD_OUT else split

    def is_across_splits(self, pair: DuplicatePair) -> bool:
        """Whether one of the two may have been trained on while the other is tested."""
        return self.split_names[pair.first] != self.split_names[pair.second]

    def has_other_label(self, pair: DuplicatePair) -> bool | None:
        """Whether the two are labelled differently; None if one has no label."""
        first, second = int(self.labels[pair.first]), int(self.labels[pair.second])
        return None if min(first, second) < 0 else first != second


class Suspect(NamedTuple):
    """An image whose label looks wrong, with the parts of its score."""

    row: int
    suggested: int
    score: float
    suggested_score: float
    vote: float
    margin: float
    linear: float

    def leads_by(self, lead: float) -> bool:
        """Whether the suggested label's score is higher by this much."""
        return self.suggested_score - self.score >= lead


class Outlier(NamedTuple):
    """An image whose neighbours are `factor` times as far as those of the median image."""

    row: int
    factor: float


@dataclass(frozen=True)
class Audit:
    """What an audit found; rows count through all images."""

    images: ListedImages
    suspects: list[Suspect]  # the most suspicious first
    duplicates: list[DuplicatePair]
    outliers: list[Outlier]  # the strangest first
    neighbours: Tensor  # (N, 8 or fewer) rows of the nearest images
    summary: dict[str, Any]


def audit_labels(
    evaluated: EvaluatedEncoder, data: str | None = None, k: int | None = None, seed: int = 0, view: View = "margin"
) -> Audit:
    """Judge the labels of all splits of a source together, and look for duplicates and outliers among them.

    `data` is a source (None: the run's own), `k` neighbours vote (None: `default_k`), `seed` is of the folds.
    """
    if evaluated.encoder.spec.name == "linear":
        raise BadInput(f"{evaluated.location} is an encoder of vectors, and an audit shows images; name another one")
    spec, device, recipe = spec_for(evaluated, data), evaluated.options.device, evaluated.recipe
    with local_caches(spec.all_sources if data is None else ()):
        source = read_source(evaluated, spec, view, as_trained=is_read_as_trained(evaluated, data, view))
    images = list_images(evaluated, source, spec.location, data)
    next(iter(images.splits.values())).all_labels.check_single(images.source, "an audit")
    is_judged, splits = judged_rows(images.labels), list(images.splits.values())
    if len(torch.unique(images.labels[is_judged])) < 2:
        raise BadInput(f"{images.source}: needs two classes with two labelled images each; name other data")
    values = torch.cat([evaluated.features(split, view).values for split in splits])
    with report_to(evaluated.reporter):
        count = min(max(NEIGHBOURS_SHOWN, k or DEFAULT_K), len(values) - 1)
        matches = nearest_others(values.to(device), count)
        known = matches if len(is_judged) == len(images.labels) else None
        k = default_k(images.labels, leave_one_out=True) if k is None else k
        scores = label_scores(Features(values, images.labels), k, seed, device, known)
        duplicates = find_duplicates(*read_pixels(splits), matches.rows)
    suspects, outliers, wrong = list_suspects(scores), find_outliers(matches), share_of_wrong_labels(scores)
    share = wrong if wrong is not None and wrong.is_reliable else None
    summary = {
        "encoder": evaluated.location,
        "data": images.source,
        "images": len(images.names),
        "labelled": int((images.labels >= 0).sum()),
        "judged": len(scores.labels),
        "classes": len(scores.classes),
        "k": scores.k,
        "seed": seed,
        "suspects": len(suspects),
        "look_first": min(len(suspects), max(sum(each.leads_by(LEAST_LEAD) for each in suspects), LEAST_LOOK)),
        "wrong_percent": None if share is None else share.percent.mean,
        "wrong_interval": None if share is None else list(share.percent[1:]),
        "wrong_counted_on": None if share is None else share.images,
        "agreement": None if wrong is None else wrong.agreement.mean,
        "agreement_interval": None if wrong is None else list(wrong.agreement[1:]),
        # the encoder has seen these labels in training, so that its features may agree with wrong ones
        "trained_on_these_labels": recipe is not None
        and recipe.loss.supervised
        and shares_images(evaluated, data, splits),
        "duplicates": len(duplicates),
        "same_pixels": sum(pair.kind == "same pixels" for pair in duplicates),
        "across_splits": sum(map(images.is_across_splits, duplicates)),
        "duplicates_with_other_labels": sum(images.has_other_label(pair) is True for pair in duplicates),
        "outliers": len(outliers),
    }
    return Audit(images, suspects, duplicates, outliers, matches.rows[:, :NEIGHBOURS_SHOWN].cpu(), summary)


def nearest_others(values: Tensor, k: int) -> Neighbours:
    """The k nearest of the other images, labelled or not."""
    return neighbours(Features(values, torch.zeros(len(values))), values, k, leave_one_out=True)


def list_images(evaluated: EvaluatedEncoder, source: Source, name: str, requested: str | None) -> ListedImages:
    """The images of all splits; `held-out` are those of the run's train split that it was not trained on.

    Of a hierarchy the labels are the leaves.
    """
    by_leaf = with_leaf_labels(source)
    splits = {split_name: split for split_name, split in by_leaf.splits.items() if len(split)}
    split_names = [split_name for split_name, split in splits.items() for _ in range(len(split))]
    names = [path for split in splits.values() for path in split.names_at(torch.arange(len(split)))]
    every = Labels.of(torch.cat([split.all_labels.tensor.cpu() for split in splits.values()]))
    labels = every.heaviest(every.counts())
    cells = None if every.has_one_each else label_texts(every, torch.arange(len(names)), by_leaf.classes)
    mask = held_out_mask(evaluated, requested, source) if "train" in splits else None
    if mask is not None:
        is_held_out = iter(mask.tolist())
        split_names = [HELD_OUT if each == "train" and next(is_held_out) else each for each in split_names]
    return ListedImages(name, splits, names, labels, by_leaf.classes, split_names, source.has_files, cells)


def list_suspects(scores: LabelScores) -> list[Suspect]:
    """Labels that fit worse than another one, the worst first."""
    order = scores.order()
    order = order[scores.is_suspect[order]]
    evidence = (scores.score, scores.suggested_score, scores.vote, scores.margin, scores.linear)
    columns = (scores.rows, scores.suggested, *evidence)
    return [Suspect(*row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


def find_outliers(matches: Neighbours) -> list[Outlier]:
    """Images far from their fifth neighbour: in the last percent, as in `supancl predict`, and 1.5 times the median."""
    if not matches.similarity.numel():
        return []
    k = min(OUTLIER_NEIGHBOUR, matches.similarity.shape[1])
    distance = (1 - matches.similarity[:, k - 1].double()).clamp(min=0).cpu()
    factor = distance / distance.median().clamp(min=1e-9)
    is_outlier = (distance >= distance.quantile(1 - UNLIKE_QUANTILE)) & (factor >= OUTLIER_FACTOR)
    rows = is_outlier.nonzero()[:, 0]
    rows = rows[factor[rows].argsort(descending=True, stable=True)]
    return [Outlier(row, float(factor[row])) for row in rows.tolist()]


def describe(summary: dict[str, Any]) -> list[str]:
    """What was found, in sentences: the share of wrong labels, what to look at first, duplicates, and cautions."""
    labels = f"{summary['judged']:,} labels"
    if summary["agreement"] is None:
        lines = [f"{labels}: too few to say what share is wrong"]
    elif summary["wrong_percent"] is None:
        lines = [f"{labels}: the encoder does not separate their classes well enough to say what share is wrong"]
    else:
        low, high = summary["wrong_interval"]
        lines = [f"about {summary['wrong_percent']:.1f}% [{low:.1f}, {high:.1f}] of {labels} look wrong"]
    if summary["suspects"]:
        lines.append(f"suspects: {summary['suspects']:,}; look at the first {summary['look_first']:,} first")
    if summary["duplicates"]:
        lines.append(
            f"pairs of duplicates: {summary['duplicates']:,} (same pixels: {summary['same_pixels']:,}, across splits: "
            f"{summary['across_splits']:,}, with different labels: {summary['duplicates_with_other_labels']:,})"
        )
    if summary["outliers"]:
        lines.append(f"images unlike all others: {summary['outliers']:,}")
    if summary["trained_on_these_labels"]:
        lines.append("the encoder was trained with these labels and may have learned wrong ones, which it then misses")
    return lines


# --- duplicates -------------------------------------------------------------------------------------------------------


def read_pixels(splits: Sequence[Split]) -> tuple[Tensor, list[bytes]]:
    """A small copy (N, C, 16, 16) of every image, uint8, and a digest of its full pixels; one split after the other."""
    small, digests = [], list[bytes]()
    parts = [(split, part) for split in splits for part in torch.arange(len(split)).split(IMAGES_AT_A_TIME)]
    for split, positions in track(parts, "reading pixels"):
        batch = split.batch(positions)
        small.append(shrink_batch(batch))
        for row in range(len(batch.pixels)):
            array = np.ascontiguousarray(batch.image(row).cpu().numpy())
            digests.append(hashlib.blake2b(f"{array.shape}".encode() + array.tobytes(), digest_size=16).digest())
    return torch.cat(small), digests


def shrink_batch(batch: Batch) -> Tensor:
    """(B, C, 16, 16) means of the pixels, rounded to uint8; images are squeezed to a square."""
    if batch.sizes is None:
        pooled = F.adaptive_avg_pool2d(batch.pixels.float(), SIDE)
    else:
        images = (batch.image(row).float() for row in range(len(batch.pixels)))
        pooled = torch.stack([F.adaptive_avg_pool2d(image, SIDE) for image in images])
    return pooled.round().to(torch.uint8).cpu()


def find_duplicates(
    small: Tensor, digests: Sequence[bytes], feature_neighbours: Tensor | None = None
) -> list[DuplicatePair]:
    """Pairs of equal and nearly equal images, sorted by their rows.

    Of several images with the same pixels, each is paired with the first one, and only the first one with others.
    `feature_neighbours` (N, k) are the rows of each image's nearest neighbours in the encoder's features.
    """
    first_rows: dict[bytes, int] = {}
    original = torch.tensor([first_rows.setdefault(digest, row) for row, digest in enumerate(digests)])
    pairs = [DuplicatePair(int(original[row]), row, "same pixels", 0.0) for row in range(len(digests))]
    pairs = [pair for pair in pairs if pair.first != pair.second]
    distinct = torch.tensor(sorted(first_rows.values()))
    proposed = [torch.empty(0, 2, dtype=torch.long)]
    if len(distinct) > 1:
        matches = nearest_others(_mirror_free(small[distinct]), min(PROPOSED, len(distinct) - 1))
        proposed.append(_pair(distinct, matches.rows))
    if feature_neighbours is not None:
        proposed.append(_pair(original, feature_neighbours[:, :PROPOSED].cpu()))
    candidates = torch.cat(proposed).sort(1).values.unique(dim=0)
    pairs += _confirm(small, candidates[candidates[:, 0] != candidates[:, 1]])
    return sorted(pairs)


def _pair(rows: Tensor, neighbours: Tensor) -> Tensor:
    """(P, 2): each row with its neighbours."""
    return torch.stack([rows[:, None].expand_as(neighbours), rows[neighbours]], 2).flatten(0, 1)


def _mirror_free(small: Tensor) -> Tensor:
    """Features of the pixels, equal for a mirror image: the mirror-even part and the size of the odd part."""
    coarse = F.avg_pool2d(small.float(), SIDE // SEARCH_SIDE)
    coarse -= coarse.mean((2, 3), keepdim=True)
    even, odd = coarse + coarse.flip(3), coarse - coarse.flip(3)
    half = SEARCH_SIDE // 2  # the other half repeats it
    return torch.cat([even[..., :half].flatten(1), odd[..., :half].abs().flatten(1)], 1)


def _confirm(small: Tensor, candidates: Tensor) -> list[DuplicatePair]:
    """The candidates whose small copies agree, as they are or mirrored."""
    pairs: list[DuplicatePair] = []
    for block in candidates.split(PAIRS_AT_A_TIME):
        first, second = small[block[:, 0]].float(), small[block[:, 1]].float()
        contrast = torch.minimum(_contrast(first), _contrast(second))
        unmirrored = (first - second).square().mean((1, 2, 3)).sqrt()
        mirrored = (first - second.flip(3)).square().mean((1, 2, 3)).sqrt()
        difference = torch.minimum(unmirrored, mirrored)
        is_near = (difference <= MAX_RELATIVE * contrast) & (difference <= MAX_LEVELS) & (contrast >= MIN_CONTRAST)
        for row in is_near.nonzero()[:, 0].tolist():
            is_mirrored = bool(unmirrored[row] > mirrored[row])
            first_row, second_row = block[row].tolist()
            kind: Any = "mirrored" if is_mirrored else "near"
            pairs.append(DuplicatePair(first_row, second_row, kind, float(difference[row])))
    return pairs


def _contrast(images: Tensor) -> Tensor:
    """Root mean square around the mean colour: two pictures of blue water have little to compare."""
    return (images - images.mean((2, 3), keepdim=True)).square().mean((1, 2, 3)).sqrt()
