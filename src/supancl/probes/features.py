"""Features of images: the online encoder in eval mode, one view without randomness."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.data.splits import Split
from supancl.data.store.memory import Batch
from supancl.data.views.evaluation import View, evaluation_view
from supancl.errors import BadInput, counted


class Features(NamedTuple):
    """(N, width) features with labels (-1: unlabelled), both on the CPU unless they were asked to stay."""

    values: Tensor
    labels: Tensor

    def labelled(self) -> Features:
        known = self.labels >= 0
        if bool(known.all()):
            return self
        return Features(self.values[known], self.labels[known])


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
                    f"the encoder takes {counted(encoder.spec.channels, 'channel')}, "
                    f"the images have {batch.pixels.shape[1]}"
                )
            with torch.inference_mode():
                seen = evaluation_view(batch, encoder.size, encoder.mean, encoder.std, view)
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
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
