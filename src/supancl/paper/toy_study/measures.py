"""What Tables 1 and 2 measure, for every alpha and seed of a trained toy study.

Everything is measured on L2-normalised projector features: S_W and S_T on the training set without masks; k-NN
and the linear probe are fitted on that and evaluated on the test set.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from supancl.data.order import derive_seed
from supancl.data.sources.toy import Toy
from supancl.paper.toy_study.training import Reading, Size, Trained
from supancl.probes import Features, knn_accuracy, variance

NEIGHBOURS = 20
SIGMAS = (0.2, 0.5, 0.8)
KINDS = ("interpolation", "extrapolation")

Row = dict[str, float]


def linear_accuracy(fit: Features, tests: Sequence[Features]) -> list[float]:
    """Multinomial logistic regression, in percent for each test set.

    Not standardised: the features are unit vectors already, and rescaling would undo how far alpha = 0 shrinks some
    directions, which is what we measure.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # such small products are slower on several threads
    with threadpool_limits(limits=1, user_api="blas"):
        model = LogisticRegression(max_iter=2000).fit(fit.values.double().numpy(), fit.labels.numpy())
        return [100 * float(model.score(test.values.double().numpy(), test.labels.numpy())) for test in tests]


def first_per_class(labels: Tensor, per_class: int) -> Tensor:
    """Positions of the first samples of every class: cuts the larger test set to the paper's size."""
    return torch.cat([(labels == label).nonzero()[:per_class, 0] for label in labels.unique()])


def measure(
    trained: Trained, toys: Sequence[Toy], reading: Reading, size: Size, seeds: Sequence[int], alphas: Sequence[float]
) -> list[Row]:
    """One row per (alpha, seed): Table 1, and Table 2 as `interpolation 0.2` and so on."""
    rows = []
    for position, (seed, toy) in enumerate(zip(seeds, toys, strict=True)):
        first = table_one(trained, position, toy, size)
        second = table_two(trained, position, toy, reading, size, seed)
        for index, alpha in enumerate(alphas):
            rows.append({"alpha": alpha, "seed": seed, **first[index], **second[index]})
    return rows


def table_one(trained: Trained, position: int, toy: Toy, size: Size) -> list[Row]:
    paper_sized = first_per_class(toy.test_labels, size.test)
    rows = []
    train_features, test_features = trained.features(position, toy.train), trained.features(position, toy.test)
    for index, (fit_values, test_values) in enumerate(zip(train_features, test_features, strict=True)):
        fit, test = Features(fit_values, toy.train_labels), Features(test_values, toy.test_labels)
        paper_test = Features(test_values[paper_sized], toy.test_labels[paper_sized])
        scatter = variance(fit)
        linear, linear_paper_test = linear_accuracy(fit, [test, paper_test])
        rows.append(
            {
                "l_ssl": float(trained.ssl[position, index]),
                "l_sup": float(trained.sup[position, index]),
                "S_W": scatter.within,
                "S_W/S_T": 100 * scatter.ratio,
                "k-NN": knn_accuracy(fit, test, k=NEIGHBOURS),
                "linear": linear,
                "k-NN, 1x test": knn_accuracy(fit, paper_test, k=NEIGHBOURS),
                "linear, 1x test": linear_paper_test,
            }
        )
    return rows


def downstream_means(means: Tensor, factor: float) -> Tensor:
    """Class means moved towards the centre of the three (factor < 1) or away from it (factor > 1).

    >>> downstream_means(torch.tensor([[0.0], [2.0]]), 2.0).tolist()
    [[-1.0], [3.0]]
    """
    centre = means.mean(0)
    return centre + factor * (means - centre)


def draw_downstream(means: Tensor, variance: float, per_class: int, generator: torch.Generator) -> Features:
    labels = torch.arange(len(means)).repeat_interleave(per_class)
    noise = torch.randn(len(labels), means.shape[1], generator=generator)
    return Features(means[labels] + variance**0.5 * noise, labels)


def table_two(trained: Trained, position: int, toy: Toy, reading: Reading, size: Size, seed: int) -> list[Row]:
    """Three new classes per scenario, with as many samples as in pretraining; sigma is their variance."""
    rows: list[Row] = [{} for _ in range(trained.networks.alphas)]
    test_per_class = len(toy.test) // size.classes
    for kind, factor in zip(KINDS, (reading.interpolation, reading.extrapolation), strict=True):
        means = downstream_means(toy.means, factor) - toy.centre
        for sigma in SIGMAS:
            generator = torch.Generator().manual_seed(derive_seed(seed, 4, KINDS.index(kind), SIGMAS.index(sigma)))
            fit = draw_downstream(means, sigma, size.train, generator)
            test = draw_downstream(means, sigma, test_per_class, generator)
            train_features, test_features = (
                trained.features(position, fit.values),
                trained.features(position, test.values),
            )
            for row, fit_values, test_values in zip(rows, train_features, test_features, strict=True):
                train_set = Features(fit_values, fit.labels)
                row[f"{kind} {sigma:g}"] = linear_accuracy(train_set, [Features(test_values, test.labels)])[0]
    return rows
