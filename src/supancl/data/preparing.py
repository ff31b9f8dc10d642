"""Which images of a source a run trains on: held out, left out, thinned out, hidden and limited, by fixed seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from supancl.core.labels import Labels
from supancl.data.labels import describe_labels, keep_classes
from supancl.data.order import derive_seed
from supancl.data.spec import DataSpec, NoiseKind
from supancl.data.splits import Data, Source, Split, fingerprint
from supancl.errors import BadInput

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
    """The images of a run: which are trained on, which are held out, and a summary with their fingerprint."""
    data, held_out_from = select_images(source, spec)
    train = data.train
    summary: dict[str, object] = {
        "source": spec.source,
        "train": len(train),
        "labelled": train.num_labelled,
        "held_out": len(data.held_out),
        "held_out_from": held_out_from,
        "classes": len(data.classes),
        "skipped": len(source.skipped),
        "fingerprint": fingerprint(train, data.held_out),
    }
    if not train.all_labels.has_one_each:
        summary["labels_per_image"] = describe_labels(train.all_labels)
        summary["distinct_labels"] = min(train.all_labels.count_distinct(), len(train.class_ids()))
    if spec.joined:
        summary["joined"] = list(spec.joined)
    return replace(data, summary=summary)


def select_images(source: Source, spec: DataSpec) -> tuple[Data, str]:
    """Hold out images, leave out classes, thin classes out, hide labels, make labels wrong, limit; in this order.

    Each has its own fixed seed. Also returns the split that the held-out images are from.
    """
    for setting in ("leave_out", "imbalance", "label_noise"):
        if getattr(spec, setting) != getattr(DataSpec, setting):
            source.splits["train"].all_labels.check_single(spec.location, f"data.{setting}")
    train, held_out, held_out_from = _hold_out(source, spec)
    remarks = (*source.remarks, *_held_out_remarks(train, held_out, held_out_from, source.classes))
    test, classes, transfer = source.splits.get("test"), source.classes, None
    transfer_classes: tuple[str, ...] = ()
    if spec.leave_out:
        if unknown := set(spec.leave_out) - set(classes):
            raise BadInput(f"data.leave_out: the data have no class {min(unknown)!r}, but {', '.join(classes)[:200]}")
        kept = tuple(name for name in classes if name not in spec.leave_out)
        transfer_classes = tuple(name for name in classes if name in spec.leave_out)
        transfer = (_take_classes(train, classes, transfer_classes), _take_classes(held_out, classes, transfer_classes))
        # an unlabelled image may show a left-out class; nobody knows, so it is trained on
        train, held_out = (_take_classes(split, classes, kept, unlabelled=True) for split in (train, held_out))
        test, classes = None if test is None else _take_classes(test, classes, kept), kept
    if spec.imbalance > 1:
        train = train.take(draw_long_tail(train.labels, spec.imbalance))
    if spec.labelled < 1:
        shown = draw_stratified(train.labels, spec.labelled, SPLIT_SEED + 1, include_singletons=True)
        is_hidden = torch.ones(len(train), dtype=torch.bool).index_fill(0, shown, False)
        train = replace(train, all_labels=train.all_labels.hidden(is_hidden))
    if spec.label_noise:
        noise = spec.label_noise, spec.label_noise_kind, spec.label_noise_seed
        train = replace(train, all_labels=Labels.of(flip_labels(train.all_labels.single, len(classes), *noise)))
    if spec.limit is not None and spec.limit < len(train):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(SPLIT_SEED + 2))
        train = train.take(order[: spec.limit].sort().values)
    if not len(train):
        raise BadInput(f"{spec.location}: no image is left to train on; change data.leave_out or data.holdout")
    data = Data(train, held_out, classes, test, transfer, transfer_classes, remarks, source.skipped)
    return replace(data, levels=source.levels, incomplete=source.incomplete), held_out_from


def _hold_out(source: Source, spec: DataSpec) -> tuple[Split, Split, str]:
    """Hold out val, else test, else a stratified fraction of train; `data.holdout` always takes a fraction of train."""
    train = source.splits["train"]
    for name in ("val", "test"):
        if spec.holdout is None and name in source.splits:
            return train, source.splits[name], name
    is_labelled = train.labels >= 0
    usual = 0.2 if 0 < int(is_labelled.sum()) < FEW_LABELS else 0.1
    fraction = usual if spec.holdout is None else spec.holdout
    is_held_out = torch.zeros(len(train), dtype=torch.bool)
    # unlabelled images cannot be evaluated on, so they are trained on, unless no labelled one can be spared
    for candidates in (is_labelled.nonzero()[:, 0], (~is_labelled).nonzero()[:, 0]):
        if not is_held_out.any():
            is_held_out[candidates[draw_stratified(train.labels[candidates], fraction, SPLIT_SEED)]] = True
    if fraction and not is_held_out.any():
        raise BadInput(f"{spec.location}: too few images to hold some out of each class: {len(train)}; add val/")
    return train.take((~is_held_out).nonzero()[:, 0]), train.take(is_held_out.nonzero()[:, 0]), "train"


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


def _take_classes(split: Split, classes: Sequence[str], names: Sequence[str], unlabelled: bool = False) -> Split:
    """Only images of the classes of these names, relabelled 0, 1, ... in their order."""
    kept = keep_classes(split, classes, names)
    is_kept = (kept.labels >= 0) | ((split.labels < 0) if unlabelled else False)
    return kept.take(is_kept.nonzero()[:, 0])


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


def flip_labels(labels: Tensor, classes: int, fraction: float, kind: NoiseKind = "symmetric", seed: int = 0) -> Tensor:
    """The labels with `fraction` of them made wrong (`data.label_noise`); -1 (unlabelled) stays.

    "symmetric": each of the other classes is equally likely. "pair": class c becomes c + 1, the last one the first.

    >>> labels = torch.arange(4).repeat(25)
    >>> noisy = flip_labels(labels, classes=4, fraction=0.2, kind="pair")
    >>> int((noisy != labels).sum()), bool(((noisy - labels) % 4 <= 1).all())
    (20, True)
    """
    if classes < 2:
        raise BadInput(f"data.label_noise = {fraction:g} needs at least two classes; there is {classes}")
    generator = torch.Generator().manual_seed(derive_seed(NOISE_SEED, seed))
    labelled = (labels >= 0).nonzero()[:, 0]
    wrong = labelled[torch.randperm(len(labelled), generator=generator)[: round(fraction * len(labelled))]]
    shift = torch.ones(len(wrong), dtype=torch.long)
    if kind != "pair":
        shift = torch.randint(1, classes, (len(wrong),), generator=generator)
    noisy = labels.clone()
    noisy[wrong] = (labels[wrong] + shift.to(labels.device)) % classes
    return noisy
