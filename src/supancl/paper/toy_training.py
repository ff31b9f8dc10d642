"""SupSiam on the toy data of App. B: every alpha and seed trained together, as one batched computation.

The alphas of a seed share its data, its initial weights, its order and its views, so a difference between
them is due to alpha alone. Their first layers are one product: views (seeds, 2B, dimensions) times the
encoders of all alphas side by side. tests/paper/test_toy.py compares a run with the shipped modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.schedules import ScheduleSpec, learning_rate
from supancl.data.order import derive_seed
from supancl.data.sources.arrays import Toy, ToySpec, draw_toy

ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)


@dataclass(frozen=True)
class Reading:
    """What App. B leaves open, and how we read it; docs/measurements/toy-readings.md lists all that were tried."""

    name: str
    noise: float  # standard deviation per dimension of the pretraining classes
    masked: float  # fraction of the dimensions replaced, drawn for each sample and view
    encoder: int = 128  # App. B gives the width of the projector and the predictor only
    pool: int = 3072  # not stated in the paper; about one epoch
    interpolation: float = 0.25  # distance of downstream means from their centre; pretraining's is 1
    extrapolation: float = 2.0


READINGS = {
    # variance .35, and 60% of the dimensions of either view replaced
    "literal": Reading("literal", noise=math.sqrt(0.35), masked=0.6),
    # the noise and the masking at which k-NN, linear and l_ssl come out as printed
    "near": Reading("near", noise=0.7, masked=0.3),
}


@dataclass(frozen=True)
class Size:
    """App. B's sizes; the quick form has a quarter of the dimensions, samples and batch (so as many samples per
    dimension) and half of the epochs."""

    dimensions: int = 2048
    train: int = 1000  # per class
    test: int = 500  # per class
    width: int = 128  # of projector and predictor
    epochs: int = 200
    batch: int = 256
    classes: int = 3

    def toy(self, reading: Reading, enlarged: int) -> ToySpec:
        return ToySpec(self.classes, self.dimensions, self.train, self.test * enlarged, scale=reading.noise)


FULL = Size()
QUICK = Size(dimensions=512, train=250, test=125, epochs=100, batch=64)

PEAK, MOMENTUM, DECAY = 0.05, 0.9, 5e-4  # App. B


class Networks:
    """Linear encoder, projector and predictor of every run, without bias (with one, all features drift together)."""

    def __init__(
        self, size: Size, reading: Reading, alphas: int, seeds: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> None:
        self.alphas, self.seeds = alphas, len(seeds)
        shapes = {
            "encoder": (reading.encoder, size.dimensions),
            "projector": (size.width, reading.encoder),
            "predictor": (size.width, size.width),
        }
        initial: dict[str, list[Tensor]] = {name: [] for name in shapes}
        for seed in seeds:
            generator = torch.Generator().manual_seed(derive_seed(seed, 2))
            for name, (out, width) in shapes.items():
                uniform = torch.rand(out, width, generator=generator, dtype=torch.float64)
                weight = ((2 * uniform - 1) / math.sqrt(width)).to(dtype)  # as nn.Linear starts
                initial[name].append(weight.expand(alphas, out, width))
        # the encoders of a seed are stacked, so one product computes all alphas
        self.encoder = torch.stack(initial["encoder"]).flatten(1, 2).contiguous().requires_grad_()
        self.projector = torch.cat(initial["projector"]).contiguous().requires_grad_()
        self.predictor = torch.cat(initial["predictor"]).contiguous().requires_grad_()

    def project(self, vectors: Tensor) -> Tensor:
        """(seeds, n, dimensions) -> (seeds * alphas, n, width), not normalised."""
        encoded = torch.bmm(vectors, self.encoder.mT)
        by_run = encoded.unflatten(2, (self.alphas, -1)).transpose(1, 2).flatten(0, 1)
        return torch.bmm(by_run, self.projector.mT)

    def branches(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """(seeds, 2, B, dimensions) -> anchors and targets (runs, 2, B, width), of unit norm; gradient stopped."""
        projected = self.project(views.flatten(1, 2))
        anchors = F.normalize(torch.bmm(projected, self.predictor.mT), dim=-1)
        targets = F.normalize(projected.detach(), dim=-1)
        return anchors.unflatten(1, views.shape[1:3]), targets.unflatten(1, views.shape[1:3])


class BatchedQueue:
    """The class-agnostic queue of every run: of each batch held, the sum and number of targets per class.

    Batches enter and leave as a whole, so this is all that the class mean needs.
    """

    def __init__(self, networks: Networks, size: int, batch: int, classes: int) -> None:
        if size % batch:
            raise ValueError(f"a pool of {size} does not hold whole batches of {batch}")
        runs, width = networks.projector.shape[:2]
        self.alphas = networks.alphas
        self.sums = torch.zeros(size // batch, runs, classes, width, dtype=networks.projector.dtype)
        self.counts = torch.zeros(size // batch, networks.seeds, classes, dtype=networks.projector.dtype)
        self.pushes = 0

    def class_mean(self, one_hot: Tensor, fallback: Tensor) -> Tensor:
        """z_sup, (runs, 2, B, width), not re-normalised (Eq. 2); `member` (seeds, B, classes) is one-hot."""
        counts = self.counts.sum(0)
        means = self.sums.sum(0) / self._per_run(counts.clamp(min=1))[..., None]
        mean = torch.bmm(self._per_run(one_hot), means)[:, None].expand_as(fallback)
        if bool((counts > 0).all()):
            return mean
        is_in_pool = torch.bmm(one_hot, counts[..., None]) > 0  # a class not in the pool yet gets the cross-view target
        return torch.where(self._per_run(is_in_pool)[:, None], mean, fallback)

    def push(self, targets: Tensor, one_hot: Tensor) -> None:
        slot = self.pushes % len(self.sums)
        self.sums[slot] = torch.bmm(self._per_run(one_hot).mT, targets)
        self.counts[slot] = one_hot.sum(1)
        self.pushes += 1

    def _per_run(self, by_seed: Tensor) -> Tensor:
        return by_seed.repeat_interleave(self.alphas, 0)


class Trained:
    """Networks after training, with the loss terms of the last epoch (seeds, alphas)."""

    def __init__(self, networks: Networks, ssl: Tensor, sup: Tensor) -> None:
        self.networks, self.ssl, self.sup = networks, ssl, sup

    @torch.no_grad()
    def features(self, seed: int, vectors: Tensor) -> Tensor:
        """(alphas, n, width): unit-norm projector features of one seed's networks, `seed` counted from 0."""
        networks = self.networks
        encoders = networks.encoder[seed].unflatten(0, (networks.alphas, -1))
        first = seed * networks.alphas
        projectors = networks.projector[first : first + networks.alphas]
        return F.normalize(vectors @ (projectors @ encoders).mT, dim=-1)


def draw_views(vectors: Tensor, masked: float, generator: torch.Generator) -> Tensor:
    """(2, B, dimensions): exactly that fraction of each row set to the data's mean, which is zero (App. B)."""
    replaced = round(masked * vectors.shape[1])
    keys = torch.rand(2, *vectors.shape, generator=generator)
    if replaced == 0:
        return vectors.expand_as(keys)
    # the rows' thresholds instead of their order: five times faster than an argsort, which would dominate the step
    return vectors * (keys > keys.kthvalue(replaced, dim=-1, keepdim=True).values)


def step(
    networks: Networks,
    queue: BatchedQueue,
    optimizer: torch.optim.Optimizer,
    views: Tensor,
    labels: Tensor,
    alpha: Tensor,
) -> tuple[Tensor, Tensor]:
    """Loss, backward, optimizer, push: one step of every run; returns l_ssl and l_sup (runs,) before it.

    `alpha` is (runs,). The runs share no weight, so the gradient of the summed loss is each run's gradient.
    """
    one_hot = F.one_hot(labels, queue.counts.shape[-1]).to(views.dtype)
    anchors, targets = networks.branches(views)
    other_view = targets.flip(1)
    ssl = -(anchors * other_view).sum(-1).mean((1, 2))
    sup = -(anchors * queue.class_mean(one_hot, fallback=other_view)).sum(-1).mean((1, 2))
    optimizer.zero_grad()
    (alpha * ssl + (1 - alpha) * sup).sum().backward()
    optimizer.step()
    queue.push(targets[:, 1], one_hot)  # z2, after the loss: a batch is never its own positive
    return ssl.detach(), sup.detach()


def make_optimizer(networks: Networks) -> torch.optim.SGD:
    body = {"params": [networks.encoder, networks.projector]}
    head = {"params": [networks.predictor]}
    return torch.optim.SGD([body, head], lr=PEAK, momentum=MOMENTUM, weight_decay=DECAY, fused=True)


def train(
    toys: Sequence[Toy],
    reading: Reading,
    size: Size,
    alphas: Sequence[float],
    seeds: Sequence[int],
    progress: Callable[[int, int], None] = lambda epoch, epochs: None,
) -> Trained:
    """All alphas of all seeds; `toys` holds each seed's data. `progress` is called after every epoch."""
    networks = Networks(size, reading, len(alphas), seeds)
    queue = BatchedQueue(networks, reading.pool * size.batch // FULL.batch, size.batch, size.classes)
    optimizer = make_optimizer(networks)
    generators = [torch.Generator().manual_seed(derive_seed(seed, 3)) for seed in seeds]
    steps = len(toys[0].train) // size.batch  # the last, smaller batch is left out, as SimSiam's code does
    rate = learning_rate(ScheduleSpec(), PEAK, size.epochs, steps)  # the predictor's stays constant: App. B
    alpha = torch.tensor(alphas, dtype=torch.float32).repeat(len(seeds))
    terms = torch.zeros(steps, 2, len(alpha))
    for epoch in range(size.epochs):
        epoch_orders = [
            torch.randperm(len(toy.train), generator=generator) for toy, generator in zip(toys, generators, strict=True)
        ]
        for index in range(steps):
            rows = [epoch_order[index * size.batch : (index + 1) * size.batch] for epoch_order in epoch_orders]
            views = torch.stack(
                [
                    draw_views(toy.train[batch_rows], reading.masked, generator)
                    for toy, batch_rows, generator in zip(toys, rows, generators, strict=True)
                ]
            )
            labels = torch.stack([toy.train_labels[batch_rows] for toy, batch_rows in zip(toys, rows, strict=True)])
            optimizer.param_groups[0]["lr"] = rate(epoch * steps + index)
            terms[index] = torch.stack(step(networks, queue, optimizer, views, labels, alpha))
        progress(epoch + 1, size.epochs)
    ssl, sup = terms.mean(0).unflatten(1, (len(seeds), len(alphas)))
    return Trained(networks, ssl, sup)


def draw_data(reading: Reading, size: Size, seeds: Sequence[int], enlarged: int = 10) -> list[Toy]:
    """Each seed's data, with a test set `enlarged` times the paper's."""
    return [draw_toy(size.toy(reading, enlarged), seed) for seed in seeds]
