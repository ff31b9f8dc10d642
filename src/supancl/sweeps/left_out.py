"""How well classes that pretraining never saw are told apart: the transfer column of `supancl compare`."""

from __future__ import annotations

import math
import statistics

import torch

from supancl.core.precision import pick_device
from supancl.data.splits import Data, Split
from supancl.probes import Features, embed, linear_accuracy
from supancl.sweeps.runs import TrainedRun

DRAWS = 50  # random sets of images that transfer is fitted on; the same for every row and seed


def left_out_classes(data: Data, fraction: float) -> list[str]:
    """Classes to leave out of pretraining: about `fraction` of them, at least two, always the same.

    At least two classes stay in. Only classes with training and held-out images are counted.
    """
    classes = len(data.classes)
    usable = set(data.train.class_ids()) & set(data.held_out.class_ids())
    count = min(max(2, round(fraction * classes)), len(usable) - 2)
    if fraction == 0 or count < 2:
        return []
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(data.classes[i] for i in [i for i in order if i in usable][:count])


def embed_split(run: TrainedRun, split: Split) -> Features:
    device = pick_device(run.recipe.train.device)
    return embed(run.encoder.to(device), split, device)


def transfer_accuracy(run: TrainedRun, data: Data, shots: int) -> float:
    """Accuracy on the classes left out of pretraining; nan if there are none."""
    if data.transfer is None:
        return math.nan
    fit, test = (embed_split(run, split) for split in data.transfer)
    return few_shot_accuracy(fit, test, shots)


def few_shot_accuracy(fit: Features, test: Features, shots: int) -> float:
    """Linear accuracy from `shots` labelled images of each class, averaged over draws.

    With all images, most encoders separate a few classes perfectly, and alphas would not differ.
    """
    generator = torch.Generator().manual_seed(0)
    accuracies = []
    for _ in range(DRAWS):
        order = torch.randperm(len(fit.labels), generator=generator)
        labels = fit.labels[order]
        selected = torch.cat([order[labels == label][:shots] for label in labels.unique()])
        accuracies.append(linear_accuracy(Features(fit.values[selected], fit.labels[selected]), test))
    return statistics.fmean(accuracies)
