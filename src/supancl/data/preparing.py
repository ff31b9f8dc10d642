"""Which images of a source a run trains on: held out, left out, thinned out, hidden and limited, by fixed seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from supancl.core.labels import Labels
from supancl.data.hierarchy import apply_hierarchy
from supancl.data.labels import describe_labels
from supancl.data.order import derive_seed
from supancl.data.splits import Data, DataSpec, NoiseKind, Source, Split, fingerprint
from supancl.errors import BadInput, did_you_mean, plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SPLIT_SEED = 20240  # fixed: every run holds out the same images, whatever its seed
NOISE_SEED = 20243  # fixed too: runs with the same `data.label_noise_seed` have the same wrong labels
LONG_TAIL_SEED = 20244  # fixed for the same reason
FEW_LABELS = 1000  # with fewer, a tenth of them could not rank encoders: a fifth is held out


def prepare_data(source: Source, spec: DataSpec) -> Data:
    """Hold out images, leave out classes, thin classes out, hide labels, make labels wrong, limit; in this order.

    Each has its own fixed seed. Before it, classes get their levels, if the source has not given them.
    """
    source = apply_hierarchy(source, spec)
    for setting in ("leave_out", "imbalance", "label_noise"):
        if getattr(spec, setting) != getattr(DataSpec, setting):
            source.splits["train"].all_labels.check_single(spec.location, f"data.{setting}")
    train, held_out, held_out_from = _hold_out(source, spec)
    remarks = (*source.remarks, *_held_out_remarks(train, held_out, held_out_from, source.classes))
    test = source.splits.get("test")
    classes, transfer = source.classes, None
    transfer_classes: tuple[str, ...] = ()
    if spec.leave_out:
        kept_ids, left_out_ids = _separate_classes(source.classes, spec.leave_out)
        transfer = (_take_classes(train, left_out_ids), _take_classes(held_out, left_out_ids))
        transfer_classes = tuple(source.classes[i] for i in left_out_ids)
        # an unlabelled image may show a left-out class; nobody knows, so it is trained on
        train, held_out = (
            _take_classes(train, kept_ids, unlabelled=True),
            _take_classes(held_out, kept_ids, unlabelled=True),
        )
        test = None if test is None else _take_classes(test, kept_ids)
        classes = tuple(source.classes[i] for i in kept_ids)
    if spec.imbalance > 1:
        train = train.take(draw_long_tail(train.labels, spec.imbalance))
    partly_labelled, label_remarks = _hide_labels(train, spec.labelled)
    train = _limit(_with_noise(partly_labelled, len(classes), spec), spec.limit)
    if spec.labelled < 1 and (lost := len(partly_labelled.class_ids()) - len(train.class_ids())):
        label_remarks.append(
            f"data.limit = {spec.limit} leaves {lost} of {len(partly_labelled.class_ids())} classes without a label, "
            "because it applies after data.labelled has hidden labels; raise one of the two"
        )
    remarks = (*remarks, *label_remarks)
    if not len(train):
        raise BadInput(f"{spec.location}: no image is left to train on; change data.leave_out or data.holdout")
    summary: dict[str, object] = {
        "source": spec.source,
        "train": len(train),
        "labelled": train.num_labelled,
        "held_out": len(held_out),
        "held_out_from": held_out_from,
        "classes": len(classes),
        "skipped": len(source.skipped),
        "fingerprint": fingerprint(train, held_out),
    }
    if not train.all_labels.has_one_each:
        summary["labels_per_image"] = describe_labels(train.all_labels)
        summary["distinct_labels"] = min(train.all_labels.count_distinct(), len(train.class_ids()))
    if spec.joined:
        summary["joined"] = list(spec.joined)
    return Data(
        train, held_out, classes, test, transfer, transfer_classes, remarks, source.skipped, summary, source.levels
    )


def _hold_out(source: Source, spec: DataSpec) -> tuple[Split, Split, str]:
    """Hold out val, else test, else a stratified fraction of train; `data.holdout` always takes a fraction of train."""
    train = source.splits["train"]
    for name in ("val", "test"):
        if spec.holdout is None and name in source.splits:
            return train, source.splits[name], name
    fraction = usual_holdout(train.labels) if spec.holdout is None else spec.holdout
    if fraction == 0:
        return train, train.take(torch.empty(0, dtype=torch.long)), "train"
    is_held_out = draw_held_out(train.labels, fraction)
    if not is_held_out.any():
        advice = "add images"
        if len(train) > 1:  # a batch needs two
            advice += " or a val/ folder (pretrain on all: --set data.holdout=0)"
        raise BadInput(
            f"{spec.location}: {plural(len(train), 'image is', 'images are')} too few to hold out "
            f"{fraction:.0%} of each class; {advice}"
        )
    return train.take((~is_held_out).nonzero()[:, 0]), train.take(is_held_out.nonzero()[:, 0]), "train"


def usual_holdout(labels: Tensor) -> float:
    """The fraction of the labelled images that is held out where a source has no held-out split."""
    return 0.2 if 0 < int((labels >= 0).sum()) < FEW_LABELS else 0.1


def draw_held_out(labels: Tensor, fraction: float) -> Tensor:
    """Mask of the training images to hold out.

    Unlabelled images cannot be evaluated on, so they are trained on, unless no labelled one can be spared.
    """
    is_held_out = torch.zeros(len(labels), dtype=torch.bool)
    for candidates in ((labels >= 0).nonzero()[:, 0], (labels < 0).nonzero()[:, 0]) if fraction > 0 else ():
        if not is_held_out.any():
            is_held_out[candidates[draw_stratified(labels[candidates], fraction, SPLIT_SEED)]] = True
    return is_held_out


def _held_out_remarks(train: Split, held_out: Split, split_name: str, classes: Sequence[str]) -> Iterator[str]:
    """Remarks on held-out images that cannot be evaluated: without labels, or of classes that are not trained on."""
    if not train.num_labelled or not len(held_out):
        return
    if not held_out.num_labelled:
        yield f"held-out images of {split_name} with a label: none; to hold out images of train: data.holdout=0.1"
    untrained = [classes[label] for label in sorted(set(held_out.class_ids()) - set(train.class_ids()))]
    if untrained:
        yield f"held-out classes without an image to train on: {len(untrained)}, such as {untrained[0]!r}"


def draw_stratified(labels: Tensor, fraction: float, seed: int, include_singletons: bool = False) -> Tensor:
    """Positions of about `fraction` of each class, never all of it; unlabelled images count as a class.

    A class with a single image gives none, or with `include_singletons` that one.
    """
    selected = []
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero()[:, 0]
        most_drawn = len(members) if include_singletons and len(members) == 1 else len(members) - 1
        count = min(most_drawn, max(round(fraction * len(members)), 1 if fraction > 0 else 0))
        order = torch.randperm(len(members), generator=torch.Generator().manual_seed(derive_seed(seed, label + 1)))
        selected.append(members[order[:count]])
    return torch.cat(selected).sort().values if selected else torch.empty(0, dtype=torch.long)


def _separate_classes(classes: Sequence[str], leave_out: Sequence[str]) -> tuple[list[int], list[int]]:
    """Ids of the classes to train on, and of those left out of pretraining."""
    for name in leave_out:
        if name not in classes:
            raise BadInput(
                f"data.leave_out names class {name!r}, which the data do not have{did_you_mean(name, classes)}"
            )
    left_out = [i for i, name in enumerate(classes) if name in leave_out]
    return [i for i in range(len(classes)) if i not in left_out], left_out


def _take_classes(split: Split, classes: Sequence[int], unlabelled: bool = False) -> Split:
    """Only images of these classes, relabelled 0, 1, ... in their order."""
    ids = torch.full((int(max([*classes, *split.labels.tolist(), 0])) + 1,), -2)
    ids[torch.tensor(list(classes), dtype=torch.long)] = torch.arange(len(classes))
    mapped = split.relabelled(ids)
    keep = (mapped.labels >= 0) | ((split.labels < 0) if unlabelled else False)
    return mapped.take(keep.nonzero()[:, 0])


def long_tail_sizes(sizes: list[int], ratio: float) -> list[int]:
    """How many images each class keeps: from the largest size down to a `ratio`-th of it, in equal factors.

    Sizes are cut off as in the published long tails. A class with fewer images keeps those that it has, and every class
    keeps at least one.

    >>> long_tail_sizes([5000] * 5, 100.0), long_tail_sizes([100, 5, 100], 100.0)
    ([5000, 1581, 500, 158, 50], [100, 5, 1])
    """
    steps = max(len(sizes) - 1, 1)
    targets = [int(max(sizes, default=0) * (1 / ratio) ** (number / steps)) for number in range(len(sizes))]
    return [min(size, max(target, 1)) for size, target in zip(sizes, targets, strict=True)]


def draw_long_tail(labels: Tensor, ratio: float) -> Tensor:
    """Positions of the images that `data.imbalance` keeps, in order; all unlabelled ones are."""
    classes, counts = torch.unique(labels[labels >= 0], return_counts=True)
    generator = torch.Generator().manual_seed(LONG_TAIL_SEED)
    positions = [(labels < 0).nonzero()[:, 0]]
    for number, size in zip(classes.tolist(), long_tail_sizes(counts.tolist(), ratio), strict=True):
        members = (labels == number).nonzero()[:, 0]
        positions.append(members[torch.randperm(len(members), generator=generator)[:size].to(members.device)])
    return torch.cat(positions).sort().values


def _hide_labels(train: Split, fraction: float) -> tuple[Split, list[str]]:
    """Keep the labels of about `fraction` of each class; a remark if rounding in small classes changes the total."""
    if fraction == 1.0:
        return train, []
    labels = keep_labels(train.labels, fraction)
    sizes = torch.bincount(train.labels[train.labels >= 0])
    kept_sizes = torch.bincount(labels[labels >= 0], minlength=len(sizes))
    num_kept, num_requested = int(kept_sizes.sum()), round(fraction * int(sizes.sum()))
    rounded_sizes, explanation = (sizes.double() * fraction).round(), ""
    if num_kept > num_requested and bool((kept_sizes > rounded_sizes).any()):
        explanation = "every class keeps at least one"
    elif num_kept < num_requested and bool((kept_sizes < rounded_sizes).any()):
        explanation = "every class of two or more hides at least one"
    elif abs(num_kept - num_requested) > max(1, 0.05 * num_requested):
        explanation = "the fraction is rounded in each class"
    remark = (
        f"data.labelled = {fraction:g} asks for {num_requested:,} of {int(sizes.sum()):,} labels; "
        f"{num_kept:,} are kept, because {explanation}"
    )
    return replace(train, all_labels=train.all_labels.hidden(labels < 0)), [remark] if explanation else []


def keep_labels(labels: Tensor, fraction: float) -> Tensor:
    """The labels of about `fraction` of each class; others are -1."""
    rows = draw_stratified(labels, fraction, SPLIT_SEED + 1, include_singletons=True)
    shown = torch.full_like(labels, -1)
    shown[rows] = labels[rows]
    return shown


def _with_noise(train: Split, classes: int, spec: DataSpec) -> Split:
    if spec.label_noise == 0:
        return train
    noise = spec.label_noise, spec.label_noise_kind, spec.label_noise_seed
    return replace(train, all_labels=Labels.of(flip_labels(train.all_labels.single, classes, *noise)))


def _limit(train: Split, limit: int | None) -> Split:
    return train if limit is None or limit >= len(train) else train.take(draw_limited(len(train), limit))


def draw_limited(count: int, limit: int) -> Tensor:
    """Positions of `limit` of `count` images."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED + 2))
    return order[:limit].sort().values


def flip_labels(labels: Tensor, classes: int, fraction: float, kind: NoiseKind = "symmetric", seed: int = 0) -> Tensor:
    """The labels with `fraction` of them made wrong (`data.label_noise`); -1 (unlabelled) stays.

    "symmetric": each of the other classes is equally likely. "pair": class c becomes c + 1, the last one the first.

    >>> labels = torch.arange(4).repeat(25)
    >>> noisy = flip_labels(labels, classes=4, fraction=0.2, kind="pair")
    >>> int((noisy != labels).sum()), bool(((noisy - labels) % 4 <= 1).all())
    (20, True)
    """
    if fraction == 0:
        return labels
    if classes < 2:
        raise BadInput(f"data.label_noise = {fraction:g} needs at least two classes; there is {classes}")
    generator = torch.Generator().manual_seed(derive_seed(NOISE_SEED, seed))
    labelled = (labels >= 0).nonzero()[:, 0]
    wrong = labelled[torch.randperm(len(labelled), generator=generator)[: round(fraction * len(labelled))]]
    if kind == "pair":
        shift = torch.ones(len(wrong), dtype=torch.long)
    else:
        shift = torch.randint(1, classes, (len(wrong),), generator=generator)
    noisy = labels.clone()
    noisy[wrong] = (labels[wrong] + shift.to(labels.device)) % classes
    return noisy
