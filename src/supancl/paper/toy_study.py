"""The toy study of Sec. 4.3 and App. B: Tables 1 and 2 beside the paper's numbers (`supancl paper toy`, docs/toy.md).

Every alpha and seed is trained together, as one batched computation. The alphas of a seed share its data, its initial
weights, its order and its views, so a difference between them is due to alpha alone. Everything is measured on
L2-normalised projector features: S_W and S_T on the training set without masks; k-NN and the linear probe are fitted
on that and evaluated on the test set.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.config import to_json
from supancl.core.specs import ScheduleSpec, learning_rate
from supancl.data.order import derive_seed
from supancl.data.sources.arrays import Toy, ToySpec, draw_toy
from supancl.paper.numbers import TOY, TOY_TRANSFER
from supancl.probes import Features, knn_accuracy, variance
from supancl.runs.provenance import commit, versions
from supancl.stats import SeedStats, seed_stats_numpy

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
    groups = [{"params": [networks.encoder, networks.projector]}, {"params": [networks.predictor]}]
    return torch.optim.SGD(groups, lr=PEAK, momentum=MOMENTUM, weight_decay=DECAY, fused=True)


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


FIGURE_SAMPLES_PER_CLASS = 300  # training samples per class in the figure; more would overlap
NEIGHBOURS = 20
KINDS, SIGMAS = ("interpolation", "extrapolation"), (0.2, 0.5, 0.8)
TABLE_1_COLUMNS = ("l_ssl", "l_sup", "S_W", "S_W/S_T", "k-NN", "linear")
TABLE_2_COLUMNS = TOY_TRANSFER
PAPER = {alpha: dict(zip((*TABLE_1_COLUMNS, *TABLE_2_COLUMNS), values, strict=True)) for alpha, values in TOY.items()}
# largest distance from the paper that counts as met: .05 for losses and ratio (in percent: 5), 3 points of accuracy
TOLERANCES = {"l_ssl": 0.05, "S_W/S_T": 5.0, "k-NN": 3.0, "linear": 3.0}
Row = dict[str, float]
Summary = dict[float, dict[str, SeedStats]]


def run(
    reading: Reading, size: Size, seeds: list[int], on_epoch: Callable[[int, int], None] = lambda epoch, epochs: None
) -> tuple[dict[str, Any], dict[str, Features]]:
    """Run the study; returns its result, and the first seed's features for the figure."""
    started, toys, rows = time.perf_counter(), draw_data(reading, size, seeds), list[Row]()
    trained = train(toys, reading, size, ALPHAS, seeds, on_epoch)
    for position, (seed, toy) in enumerate(zip(seeds, toys, strict=True)):
        first, second = table_one(trained, position, toy), table_two(trained, position, toy, reading, size, seed)
        measured = zip(ALPHAS, first, second, strict=True)
        rows += [{"alpha": alpha, "seed": seed, **one, **two} for alpha, one, two in measured]
    summary = summarize(rows)
    result: dict[str, Any] = {
        "reading": to_json(reading),
        "size": to_json(size),
        "seeds": seeds,
        "alphas": list(ALPHAS),
        "neighbours": NEIGHBOURS,
        "rows": rows,
        "summary": {
            f"{alpha:g}": {name: stats._asdict() for name, stats in by_name.items()}
            for alpha, by_name in summary.items()
        },
        "paper": {f"{alpha:g}": numbers for alpha, numbers in PAPER.items()},
        "trends": trends(summary),
        "levels": levels(summary),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    labels = toys[0].train_labels
    shown = torch.cat([(labels == label).nonzero()[:FIGURE_SAMPLES_PER_CLASS, 0] for label in labels.unique()])
    features = zip(ALPHAS, trained.features(0, toys[0].train[shown]), strict=True)
    return result, {f"alpha = {alpha:g}": Features(value, labels[shown]) for alpha, value in features}


def table_one(trained: Trained, position: int, toy: Toy) -> list[Row]:
    rows: list[Row] = []
    features = (trained.features(position, part) for part in (toy.train, toy.test))
    for fit_values, test_values in zip(*features, strict=True):
        fit, test = Features(fit_values, toy.train_labels), Features(test_values, toy.test_labels)
        scatter = variance(fit)
        rows.append(
            {
                "l_ssl": float(trained.ssl[position, len(rows)]),
                "l_sup": float(trained.sup[position, len(rows)]),
                "S_W": scatter.within,
                "S_W/S_T": 100 * scatter.ratio,
                "k-NN": knn_accuracy(fit, test, k=NEIGHBOURS),
                "linear": linear_accuracy(fit, test),
            }
        )
    return rows


def table_two(trained: Trained, position: int, toy: Toy, reading: Reading, size: Size, seed: int) -> list[Row]:
    """Three new classes per scenario, with as many samples as in pretraining; sigma is their variance.

    The class means are moved towards the centre of the three (a factor below 1) or away from it.
    """
    rows: list[Row] = [{} for _ in range(trained.networks.alphas)]
    test_per_class, centre = len(toy.test) // size.classes, toy.means.mean(0)
    for kind, factor in zip(KINDS, (reading.interpolation, reading.extrapolation), strict=True):
        means = centre + factor * (toy.means - centre) - toy.centre
        for sigma in SIGMAS:
            generator = torch.Generator().manual_seed(derive_seed(seed, 4, KINDS.index(kind), SIGMAS.index(sigma)))
            fit = draw_downstream(means, sigma, size.train, generator)
            test = draw_downstream(means, sigma, test_per_class, generator)
            features = (trained.features(position, part.values) for part in (fit, test))
            for row, fit_values, test_values in zip(rows, *features, strict=True):
                fitted, tested = Features(fit_values, fit.labels), Features(test_values, test.labels)
                row[f"{kind} {sigma:g}"] = linear_accuracy(fitted, tested)
    return rows


def linear_accuracy(fit: Features, test: Features) -> float:
    """Multinomial logistic regression, in percent.

    Not standardised: the features are unit vectors already, and rescaling would undo how far alpha = 0 shrinks some
    directions, which is what we measure.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # such small products are slower on several threads
    with threadpool_limits(limits=1, user_api="blas"):
        model = LogisticRegression(max_iter=2000).fit(fit.values.double().numpy(), fit.labels.numpy())
        return 100 * float(model.score(test.values.double().numpy(), test.labels.numpy()))


def draw_downstream(means: Tensor, variance: float, per_class: int, generator: torch.Generator) -> Features:
    labels = torch.arange(len(means)).repeat_interleave(per_class)
    noise = torch.randn(len(labels), means.shape[1], generator=generator)
    return Features(means[labels] + variance**0.5 * noise, labels)


def summarize(rows: Sequence[Row]) -> Summary:
    """alpha -> measure -> mean and standard deviation over seeds."""
    alphas, names = dict.fromkeys(row["alpha"] for row in rows), [*rows[0].keys() - {"alpha", "seed"}]
    of = {alpha: [row for row in rows if row["alpha"] == alpha] for alpha in sorted(alphas)}
    return {alpha: {name: seed_stats_numpy([row[name] for row in of[alpha]]) for name in names} for alpha in of}


def trends(summary: Summary) -> dict[str, bool]:
    """Whether each conclusion of the paper holds for our means over seeds."""

    def means(name: str) -> list[float]:
        return [summary[alpha][name].mean for alpha in sorted(summary)]

    def rises(values: Sequence[float]) -> bool:
        return all(a < b for a, b in itertools.pairwise(values))

    gains = {name: summary[0.5][name].mean - summary[1.0][name].mean for name in ("k-NN", "linear")}
    extrapolations = [means(name) for name in TABLE_2_COLUMNS if name.startswith("extra")]
    return {
        "S_W/S_T rises with alpha": rises(means("S_W/S_T")),
        "l_sup rises with alpha": rises(means("l_sup")),
        "l_ssl falls with alpha": rises([-value for value in means("l_ssl")]),
        **{f"alpha = 0.5 beats alpha = 1 by more than 5 points in {name}": gain > 5 for name, gain in gains.items()},
        "alpha = 1 is worst in extrapolation": all(values[-1] < min(values[:-1]) for values in extrapolations),
    }


def levels(summary: Summary) -> list[dict[str, Any]]:
    """Each mean beside the paper's number, and whether the difference is within the tolerance."""
    rows = []
    for name, alpha in itertools.product(TOLERANCES, sorted(summary)):
        ours, paper = summary[alpha][name].mean, PAPER[alpha][name]
        row = {"measure": name, "alpha": alpha, "ours": ours, "paper": paper, "off": ours - paper}
        rows.append({**row, "met": abs(ours - paper) <= TOLERANCES[name]})
    return rows


def findings(result: Mapping[str, Any]) -> list[str]:
    """The paper's conclusions with yes or no, and the numbers that are off the paper's."""
    lines = [f"{'yes' if holds else 'NO '}  {claim}" for claim, holds in result["trends"].items()]
    missed = [row for row in result["levels"] if not row["met"]]
    for row in missed:
        numbers = f"{row['ours']:.4g} against {row['paper']:g}"
        lines.append(f"off the paper: {row['measure']} at alpha = {row['alpha']:g}: {numbers}")
    lines.append(f"levels met: {len(result['levels']) - len(missed)} of {len(result['levels'])}")
    return lines
