"""Features of images: the online encoder in eval mode, one view without randomness."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from supancl.data.sources import Split
from supancl.data.views import evaluation_view
from supancl.encoders import Encoder
from supancl.errors import BadInput


class Features(NamedTuple):
    """(N, width) features on the CPU, with labels (-1: unlabelled)."""

    values: Tensor
    labels: Tensor

    def labelled(self) -> Features:
        known = self.labels >= 0
        return Features(self.values[known], self.labels[known])


@torch.inference_mode()
def embed(encoder: Encoder, split: Split, device: torch.device | str = "cpu", batch_size: int = 256) -> Features:
    """Features of every image of a split, in its order. The encoder's mode is put back afterwards."""
    device = torch.device(device)
    training = encoder.training
    encoder.eval()
    try:
        values = []
        for positions in torch.arange(len(split)).split(batch_size):
            batch = split.batch(positions).to(device)
            if batch.pixels.ndim == 4 and batch.pixels.shape[1] != encoder.spec.channels:
                raise BadInput(f"the encoder takes {encoder.spec.channels} channels, "
                               f"the images have {batch.pixels.shape[1]}")
            view = evaluation_view(batch, encoder.size, encoder.mean, encoder.std)
            values.append(encoder(view).float().cpu())
    finally:
        encoder.train(training)
    stacked = torch.cat(values) if values else torch.empty(0, encoder.width)
    return Features(stacked.clone(), split.labels.clone())
