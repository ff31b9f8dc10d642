"""The toy data of App. B: three Gaussian classes in 2048 dimensions, with orthogonal means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from supancl.config import Count, NotNegative
from supancl.data.listing import Listing, list_stored
from supancl.data.order import derive_seed
from supancl.data.splits import full_split
from supancl.data.store.memory import ArrayImages

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

TOY_SEED = 0


@dataclass(frozen=True)
class ToySpec:
    """The numbers of App. B: `scale`, the standard deviation per dimension, is the root of a covariance of 0.35.

    The toy study reads App. B differently by default (docs/measurements/toy-readings.md).
    """

    classes: Count = 3
    dimensions: Count = 2048
    train: Count = 1000  # per class
    test: Count = 500  # per class
    scale: NotNegative = 0.35**0.5


class Toy(NamedTuple):
    """Centred samples, their labels, and the class means before centring."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    means: Tensor
    centre: Tensor


def draw_toy(spec: ToySpec, seed: int) -> Toy:
    """Samples of every class around orthogonal means (left singular vectors of a Gaussian matrix)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, 1))
    gaussian = torch.randn(spec.dimensions, spec.classes, generator=generator, dtype=torch.float64)
    means = torch.linalg.svd(gaussian, full_matrices=False)[0].T.float()

    def sample(per_class: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(spec.classes).repeat_interleave(per_class)
        noise = torch.randn(len(labels), spec.dimensions, generator=generator)
        return means[labels] + spec.scale * noise, labels

    train, train_labels = sample(spec.train)
    test, test_labels = sample(spec.test)
    # masked dimensions get the data's mean; after centring that is zero
    centre = train.mean(0)
    return Toy(train - centre, train_labels, test - centre, test_labels, means, centre)


def list_toy(channels: int) -> Listing:
    toy = draw_toy(ToySpec(), TOY_SEED)
    names = [f"toy[{i}]" for i in range(max(len(toy.train), len(toy.test)))]
    parts = {
        "train": full_split(ArrayImages(toy.train), toy.train_labels, names),
        "test": full_split(ArrayImages(toy.test), toy.test_labels, names),
    }
    return list_stored(parts, tuple("ABC"), "toy")
