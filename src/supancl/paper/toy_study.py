"""The toy study of Sec. 4.3 and App. B: Tables 1 and 2 beside the paper's numbers (`supancl paper toy`, docs/toy.md).

Everything is measured on L2-normalised projector features: S_W and S_T on the training set without masks; k-NN
and the linear probe are fitted on that and evaluated on the test set.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.data.order import derive_seed
from supancl.data.sources.arrays import Toy
from supancl.paper.numbers import TOY, TOY_TRANSFER
from supancl.paper.toy_training import ALPHAS, FULL, Reading, Size, Trained, draw_data, train
from supancl.probes import Features, knn_accuracy, variance
from supancl.runs.provenance import commit, versions
from supancl.stats import SeedStats, seed_stats_numpy

FIGURE_SAMPLES_PER_CLASS = 300  # training samples per class in the figure; more would overlap
NEIGHBOURS = 20
SIGMAS = (0.2, 0.5, 0.8)
KINDS = ("interpolation", "extrapolation")
TABLE_1_COLUMNS = ("l_ssl", "l_sup", "S_W", "S_W/S_T", "k-NN", "linear")
TABLE_2_COLUMNS = TOY_TRANSFER
PAPER = {alpha: dict(zip((*TABLE_1_COLUMNS, *TABLE_2_COLUMNS), values, strict=True)) for alpha, values in TOY.items()}
# largest distance from the paper that counts as met: .05 for losses and ratio (in percent: 5), 3 points of accuracy
TOLERANCES = {"l_ssl": 0.05, "S_W/S_T": 5.0, "k-NN": 3.0, "linear": 3.0}
Row = dict[str, float]
Summary = dict[float, dict[str, SeedStats]]


def run(
    reading: Reading, size: Size, seeds: list[int], on_epoch: Callable[[int], None] = lambda epoch: None
) -> tuple[dict[str, Any], dict[str, Features]]:
    """Run the study; returns its result, and the first seed's features for the figure."""
    started = time.perf_counter()
    toys = draw_data(reading, size, seeds)
    data_ready = time.perf_counter()
    trained = train(toys, reading, size, ALPHAS, seeds, lambda epoch, _: on_epoch(epoch))
    training_done = time.perf_counter()
    rows = measure(trained, toys, reading, size, seeds, ALPHAS)
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
        "seconds": {
            "data": data_ready - started,
            "training": training_done - data_ready,
            "measuring": time.perf_counter() - training_done,
        },
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
    }
    figure_rows = first_per_class(toys[0].train_labels, FIGURE_SAMPLES_PER_CLASS)
    values, labels = trained.features(0, toys[0].train[figure_rows]), toys[0].train_labels[figure_rows]
    return result, {f"alpha = {alpha:g}": Features(value, labels) for alpha, value in zip(ALPHAS, values, strict=True)}


# --- what is measured -------------------------------------------------------------------------------------------------


def measure(
    trained: Trained, toys: Sequence[Toy], reading: Reading, size: Size, seeds: Sequence[int], alphas: Sequence[float]
) -> list[Row]:
    """One row per (alpha, seed): Table 1, and Table 2 as `interpolation 0.2` and so on."""
    rows = []
    for position, (seed, toy) in enumerate(zip(seeds, toys, strict=True)):
        first = table_one(trained, position, toy)
        second = table_two(trained, position, toy, reading, size, seed)
        for alpha, one, two in zip(alphas, first, second, strict=True):
            rows.append({"alpha": alpha, "seed": seed, **one, **two})
    return rows


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


def first_per_class(labels: Tensor, per_class: int) -> Tensor:
    """Positions of the first samples of every class."""
    return torch.cat([(labels == label).nonzero()[:per_class, 0] for label in labels.unique()])


def draw_downstream(means: Tensor, variance: float, per_class: int, generator: torch.Generator) -> Features:
    labels = torch.arange(len(means)).repeat_interleave(per_class)
    noise = torch.randn(len(labels), means.shape[1], generator=generator)
    return Features(means[labels] + variance**0.5 * noise, labels)


# --- what it says -----------------------------------------------------------------------------------------------------


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
    """How far each mean is from the paper's number, and whether that is within the tolerance."""
    rows = []
    for name, alpha in itertools.product(TOLERANCES, sorted(summary)):
        ours, paper = summary[alpha][name].mean, PAPER[alpha][name]
        row = {"measure": name, "alpha": alpha, "ours": ours, "paper": paper, "off": ours - paper}
        rows.append({**row, "met": abs(ours - paper) <= TOLERANCES[name]})
    return rows


def conditions(result: Mapping[str, Any]) -> str:
    """The reading, and the sizes that differ from App. B, of the content of toy.json.

    >>> conditions({"reading": {"name": "near"}, "size": {"epochs": 100, "batch": 256}})
    "reading 'near', not in App. B's size: epochs 100"
    """
    full, size = to_json(FULL), result.get("size", {})
    changed = ", ".join(f"{name} {value}" for name, value in size.items() if value != full.get(name))
    return f"reading {result['reading']['name']!r}" + (f", not in App. B's size: {changed}" if changed else "")


def findings(result: Mapping[str, Any]) -> list[str]:
    """The paper's conclusions with yes or no, and the numbers that are off the paper's."""
    lines = [f"{'yes' if holds else 'NO '}  {claim}" for claim, holds in result["trends"].items()]
    missed = [row for row in result["levels"] if not row["met"]]
    for row in missed:
        where = f"{row['measure']} at alpha = {row['alpha']:g}"
        lines.append(f"off the paper: {where}: {row['ours']:.4g} against {row['paper']:g}")
    lines.append(f"levels met: {len(result['levels']) - len(missed)} of {len(result['levels'])}")
    seconds = result["seconds"]
    return [
        *lines,
        f"{conditions(result)}; {seconds['training']:.0f} s training, {seconds['measuring']:.0f} s measuring, "
        f"{result['threads']} threads",
    ]
