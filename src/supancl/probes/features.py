"""Features of images: the online encoder in eval mode on one deterministic view."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.core.labels import Labels
from supancl.data.splits import Split
from supancl.data.store.memory import Batch
from supancl.data.threads import ReadingThreads
from supancl.data.views.render import View, evaluation_view
from supancl.distributed.ranks import autocast_for
from supancl.errors import BadInput

CPU_PIXELS_PER_BATCH = 8 * 224**2
MOST_PADDED_BYTES = 2**29  # of a batch as it is read; as floating-point numbers it is four times as large
CHUNK = 8192  # rows that are checked at a time


class Features:
    """(N, width) features with labels (-1: unlabelled), on the CPU unless `embed` got `stay`.

    Arrays and lists become tensors. Of images with several labels, `pairs` (N, L, 2) has all of them and `labels` the
    rarest one of each. `paths` are the names of the images where they are known. It converts to an array
    (`np.asarray`), and unpacks into values and labels.

    >>> features = Features(np.eye(2), [0, 1])
    >>> len(features), np.asarray(features).shape, features.labels
    (2, (2, 2), tensor([0, 1]))
    """

    __slots__ = ("about", "labels", "pairs", "paths", "values")

    def __init__(
        self,
        values: Tensor | np.ndarray,
        labels: Tensor | np.ndarray | Sequence[int],
        pairs: Tensor | None = None,
        *,
        paths: Sequence[str] = (),
    ) -> None:
        self.values, self.labels, self.pairs = torch.as_tensor(values), torch.as_tensor(labels), pairs
        self.paths = list(paths)
        self.about: dict[str, Any] = {}  # of the file that they were written to

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Tensor]:
        yield from self.pair

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Values and labels."""
        return self.values, self.labels

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values.cpu().numpy(), dtype)

    def __repr__(self) -> str:
        return f"Features({len(self)} x {self.values.shape[1]}, {int((self.labels >= 0).sum())} labelled)"

    def summary(self) -> dict[str, Any]:
        """What `--json` writes of features."""
        labelled = int((self.labels >= 0).sum())
        return {"images": len(self), "width": self.values.shape[1], "labelled": labelled, **self.about}

    def take(self, rows: Tensor) -> Features:
        """Those of some images: positions or a mask."""
        kept = torch.arange(len(self.paths))[rows.cpu()].tolist() if self.paths else []
        pairs = None if self.pairs is None else self.pairs[rows.to(self.pairs.device)]
        values, labels = (part[rows.to(part.device)] for part in self.pair)
        return Features(values, labels, pairs, paths=[self.paths[row] for row in kept])

    def labelled(self) -> Features:
        """Those of images with a label."""
        has_label = self.labels >= 0
        return self if bool(has_label.all()) else self.take(has_label)

    def and_also(self, others: Features) -> Features:
        """These and others of the same kind."""
        values, labels = (torch.cat([ours, more.to(ours)]) for ours, more in zip(self, others, strict=True))
        several = [part.pairs.to(labels.device) for part in (self, others) if part.pairs is not None]
        return Features(values, labels, torch.cat(several) if len(several) > 1 else None)

    def class_numbers(self) -> Tensor:
        """The class of every label of every image; -1 where there is none."""
        return self.labels if self.pairs is None else self.pairs[..., 0].long().flatten()

    def targets(self, classes: int) -> Tensor:
        """(N, classes): whether the image has the class, however small its weight."""
        assert self.pairs is not None
        return Labels.of(self.pairs).dense(classes, torch.float32) > 0


def _parts(split: Split, positions: Tensor) -> Iterator[Tensor]:
    """The positions, halved until a batch of them fits: one panorama beside one tall image makes a huge canvas."""
    if len(positions) > 1 and split.store.padded_bytes(split.index[positions]) > MOST_PADDED_BYTES:
        for half in positions.tensor_split(2):
            yield from _parts(split, half)
    elif len(positions):
        yield positions


def _batches(split: Split, batch_size: int) -> Iterator[tuple[int, Batch]]:
    """(images so far, batch); a thread prepares the next two batches while the encoder runs."""
    chunks = [part for chunk in torch.arange(len(split)).split(batch_size) for part in _parts(split, chunk)]
    with ReadingThreads(1, "features") as thread:
        pending = deque(thread.submit(split.batch, positions) for positions in chunks[:2])
        for i, positions in enumerate(chunks):
            batch = pending.popleft().result()
            pending.extend(thread.submit(split.batch, next_positions) for next_positions in chunks[i + 2 : i + 3])
            yield int(positions[-1]) + 1, batch


def embed(
    encoder: Encoder,
    split: Split,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
    layer: str = "pooled",
    normalize: bool = False,
    view: View = "margin",
    progress: Callable[[str, int, int], None] | None = None,
    half: bool = False,
    stay: bool = False,
) -> Features:
    """Features of every image of a split, in its order. The encoder's train or eval mode is restored afterwards.

    `view` is `margin`, the centre 7/8 of the short side, bilinear, as in linear evaluation; or `whole`, all of the
    short side, bicubic, as in the transfer protocol (App. E). `layer` is one of the encoder's layers.
    `half` runs the encoder in bfloat16, as the monitor does; `stay` leaves features and labels on the device.
    """
    device = torch.device(device)
    if device.type == "cpu":  # for larger batches more time goes into getting memory than into computing
        batch_size = min(batch_size, max(8, CPU_PIXELS_PER_BATCH // encoder.size**2))
    training = encoder.training
    encoder.eval()
    values: Tensor | None = None  # filled batch by batch: concatenating a list would take twice the memory
    begin = 0
    try:
        for done, batch in _batches(split, batch_size):
            batch = batch.to(device)
            if batch.pixels.ndim == 4 and batch.pixels.shape[1] != encoder.spec.channels:
                raise BadInput(f"channels of the images: {batch.pixels.shape[1]}, not {encoder.spec.channels}")
            with torch.inference_mode():
                images = evaluation_view(batch, encoder.size, encoder.mean, encoder.std, view)
                if half and images.ndim == 4:
                    images = images.contiguous(memory_format=torch.channels_last)  # as tensor cores read images
                with autocast_for(device, "bf16" if half else "fp32"):
                    features = encoder.features(images, layer).float()
                features = F.normalize(features, dim=1) if normalize else features
            if values is None:
                values = torch.empty(len(split), features.shape[1], device=device if stay else "cpu")
            values[begin:done] = features if stay else features.cpu()
            begin = done
            if progress is not None:
                progress("taking features", done, len(split))
    finally:
        encoder.train(training)
    if values is None:
        values = torch.empty(0, encoder.width, device=device if stay else "cpu")
    pairs = split.all_labels.pairs
    return Features(values, split.labels.clone().to(values.device), None if pairs is None else pairs.to(values.device))


# --- checks before anything is fitted ---------------------------------------------------------------------------------


def check_features(name: str, features: Features) -> Features:
    """Refuse features that are no table of finite numbers, or without a label; returns the labelled rows."""
    values, labels = features.pair
    if values.ndim != 2 or len(values) != len(labels):
        raise BadInput(f"{name} features: {tuple(values.shape)} with {len(labels)} labels; give one row per image")
    for start in range(0, len(values), CHUNK):
        rows = values[start : start + CHUNK]
        if not bool(torch.isfinite(rows.float().sum())):  # quick; an overflow of the sum passes below
            for row in (~torch.isfinite(rows)).any(1).nonzero()[:1, 0].tolist():
                raise BadInput(
                    f"{name} features: row {start + row} is not finite; embed the images again, or remove it"
                )
    if not bool((labels >= 0).any()):
        raise BadInput(f"{name} features: no labelled image; give labels of at least one")
    return features.labelled()


def check_width(name: str, values: Tensor, expected: int) -> None:
    if len(values) and values.shape[1] != expected:
        raise BadInput(f"{name} features: width {values.shape[1]}, not {expected}; embed all with the same encoder")


def number_classes(train: Features, others: Sequence[Features]) -> tuple[list[Features], Tensor]:
    """The labelled rows with classes numbered 0, 1, ... by those of train, -1 for others; and the original labels."""
    parts = [
        check_features(name, part) for name, part in zip(("train", "test", "choose"), (train, *others), strict=False)
    ]
    for part in parts:
        check_width("test", part.values, train.values.shape[1])
    classes = torch.unique(parts[0].labels)
    if len(classes) < 2:
        raise BadInput(f"train features: only class {int(classes[0])}; a classifier needs at least two classes")
    numbered = []
    for values, labels in parts:
        number = torch.searchsorted(classes.to(labels), labels).clamp(max=len(classes) - 1)
        numbered.append(Features(values, torch.where(classes.to(labels)[number] == labels, number, -1)))
    return numbered, classes


# --- parts of the images ----------------------------------------------------------------------------------------------


def hold_out(labels: Tensor, fraction: float = 0.1, seed: int = 0) -> Tensor:
    """Mask of a stratified random sample: `fraction` of each class, at least one image and never all.

    A class with one image has none held out.
    """
    if not 0 < fraction < 1:
        raise BadInput(f"share = {fraction:g}: must be between 0 and 1")
    _, row, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    if int(sizes.max()) < 2:
        raise BadInput("every class has 1 image; holding some out needs 2, so add images")
    order = _shuffle_by_class(row, seed)
    rank = torch.empty_like(row)
    rank[order] = torch.arange(len(row)) - (sizes.cumsum(0) - sizes)[row[order]]
    count: Tensor = (fraction * sizes).round().long().clamp(min=1).minimum(sizes - 1)
    return rank < count[row]


def stratified_folds(labels: Tensor, folds: int = 5, seed: int = 0) -> Tensor:
    """The fold of each image, 0 to folds - 1: the images of a class are dealt out evenly, in random order.

    >>> stratified_folds(torch.tensor([0, 0, 1, 1]), 2).reshape(2, 2).sum(1)
    tensor([1, 1])
    """
    fold = torch.empty(len(labels), dtype=torch.long)
    fold[_shuffle_by_class(labels, seed)] = torch.arange(len(labels)) % folds
    return fold


def _shuffle_by_class(labels: Tensor, seed: int) -> Tensor:
    """Positions sorted by class, in random order within each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return order[torch.argsort(labels[order], stable=True)]
