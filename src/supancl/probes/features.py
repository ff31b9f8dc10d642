"""Features of images: the online encoder in eval mode, one view without randomness."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.core.precision import autocast_for
from supancl.data.splits import Split
from supancl.data.store.memory import Batch
from supancl.data.views.evaluation import View, evaluation_view
from supancl.errors import BadInput, plural

Rows = Tensor | np.ndarray  # (N, width), any floating type; an array may be a memory map, read by the chunk


class Features(NamedTuple):
    """(N, width) features with labels (-1: unlabelled), both on the CPU unless they were asked to stay."""

    values: Tensor
    labels: Tensor

    def labelled(self) -> Features:
        known = self.labels >= 0
        if bool(known.all()):
            return self
        return Features(self.values[known], self.labels[known])


class Labelled(Protocol):
    """Rows of features with their labels: `Features`, or anything else that has both."""

    @property
    def values(self) -> Rows: ...

    @property
    def labels(self) -> Tensor: ...


def _batches(split: Split, batch_size: int) -> Iterator[tuple[int, Batch]]:
    """(images so far, batch): the next two are made ready by a thread while the encoder has this one."""
    parts = torch.arange(len(split)).split(batch_size) if len(split) else ()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="features") as thread:
        coming = deque(thread.submit(split.batch, part) for part in parts[:2])
        for i, part in enumerate(parts):
            batch = coming.popleft().result()
            coming.extend(thread.submit(split.batch, later) for later in parts[i + 2 : i + 3])
            yield int(part[-1]) + 1, batch


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
    """Features of every image of a split, in its order. The encoder's mode is put back afterwards.

    `view` is `margin`: the centre 7/8 of the short side, bilinear, as linear evaluation has it; or `whole`: all of
    the short side, bicubic, as the transfer protocol (App. E) has it. `layer` is any of the encoder's own.
    `half` runs the encoder in bfloat16, for a look in passing; `stay` leaves features and labels on the device.
    """
    device = torch.device(device)
    training = encoder.training
    encoder.eval()
    values: Tensor | None = None  # filled as it comes: a list to be joined would take the memory twice
    begin = 0
    try:
        for done, batch in _batches(split, batch_size):
            batch = batch.to(device)
            if batch.pixels.ndim == 4 and batch.pixels.shape[1] != encoder.spec.channels:
                raise BadInput(
                    f"the encoder takes {plural(encoder.spec.channels, 'channel')}, "
                    f"the images have {batch.pixels.shape[1]}"
                )
            with torch.inference_mode():
                seen = evaluation_view(batch, encoder.size, encoder.mean, encoder.std, view)
                with autocast_for(device, "bf16" if half else "fp32"):
                    found = encoder.features(_laid_out(seen) if half else seen, layer).float()
                found = F.normalize(found, dim=1) if normalize else found
            if values is None:
                values = torch.empty(len(split), found.shape[1], device=device if stay else "cpu")
            values[begin:done] = found if stay else found.cpu()
            begin = done
            if progress is not None:
                progress("taking features", done, len(split))
    finally:
        encoder.train(training)
    if values is None:
        values = torch.empty(0, encoder.width, device=device if stay else "cpu")
    return Features(values, split.labels.clone().to(values.device))


def _laid_out(images: Tensor) -> Tensor:
    """Channels last, as tensor cores read images."""
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


# --- checks before anything is fitted: each fault is one line with its place and a way out ---------------------------


def chunk_of(values: Rows, start: int, stop: int, device: torch.device | str | None = None) -> Tensor:
    """Rows start to stop as float32: no more than these leave the disk or the half precision they are kept in."""
    part = values[start:stop]
    taken = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part, dtype=np.float32))
    return taken.to(device=device, dtype=torch.float32)


def check_shape(name: str, features: Labelled) -> None:
    if features.values.ndim != 2:
        raise BadInput(f"{name} features have shape {tuple(features.values.shape)}: one row per image is needed")
    if len(features.values) != len(features.labels):
        raise BadInput(
            f"{name} features: {plural(len(features.values), 'row')} but {plural(len(features.labels), 'label')}"
        )


def check_finite(name: str, values: Tensor, offset: int = 0) -> None:
    """BadInput naming the first row that holds a NaN or an infinity; `offset` is the number of the first row given."""
    if bool(torch.isfinite(values.sum())):  # one pass; an overflow of the sum alone is sorted out below
        return
    faulty = (~torch.isfinite(values)).any(1).nonzero()
    if len(faulty):
        row = int(faulty[0])
        kind = "NaN" if bool(torch.isnan(values[row]).any()) else "an infinite value"
        raise BadInput(f"{name} features: row {offset + row} holds {kind}; embed the images again, or drop that one")


def check_features(name: str, features: Features) -> Features:
    """The labelled rows, after the shape and the numbers were looked at."""
    check_shape(name, features)
    check_finite(name, features.values)
    kept = features if bool((features.labels >= 0).all()) else features.labelled()
    if not len(kept.labels):
        raise BadInput(f"{name} features: no labelled image, so there is nothing to measure")
    return kept


def check_splits(**splits: Features) -> tuple[dict[str, Features], Tensor]:
    """The splits with their classes renumbered 0, 1, ... and the original labels; all must hold the same classes.

    The first split is the measure: a class that it has and another lacks, or the other way round, is bad input.
    """
    looked_at = {name: check_features(name, split) for name, split in splits.items()}
    first = next(iter(looked_at))
    classes = torch.unique(looked_at[first].labels)
    if len(classes) < 2:
        raise BadInput(f"{first} features: only class {int(classes[0])}; a classifier needs at least two classes")
    width = looked_at[first].values.shape[1]
    for name, split in looked_at.items():
        if split.values.shape[1] != width:
            raise BadInput(
                f"{name} features are {split.values.shape[1]} wide, {first} features {width}: "
                "embed both with the same encoder"
            )
        present = torch.unique(split.labels)
        lacking = classes[~torch.isin(classes, present)].tolist()
        strange = present[~torch.isin(present, classes)].tolist()
        if lacking:
            raise BadInput(
                f"{name} split: no image of {name_classes(lacking)}, which the {first} split has; "
                "add images of it, or leave the class out of every split"
            )
        if strange:
            raise BadInput(
                f"{name} split: {name_classes(strange)}, which the {first} split does not have; "
                "the label sets of the splits must be equal"
            )
    renumbered = {
        name: Features(split.values, torch.searchsorted(classes, split.labels)) for name, split in looked_at.items()
    }
    return renumbered, classes


def name_classes(classes: Sequence[object]) -> str:
    """`class 3`, or `classes 1, 2, 3, 4, 5 and 7 more`."""
    more = f" and {len(classes) - 5} more" if len(classes) > 5 else ""
    return f"class{'es' if len(classes) > 1 else ''} {', '.join(map(str, classes[:5]))}{more}"
