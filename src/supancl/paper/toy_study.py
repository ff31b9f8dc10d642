"""The toy study of Sec. 4.3 and App. B: Tables 1 and 2 beside the paper's numbers (`supancl paper toy`, docs/toy.md).

Everything is measured on L2-normalised projector features: S_W and S_T on the training set without masks; k-NN
and the linear probe are fitted on that and evaluated on the test set.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.data.order import derive_seed
from supancl.data.sources.arrays import Toy
from supancl.files import write_json, write_text
from supancl.paper.numbers import TOY, TOY_TRANSFER
from supancl.paper.toy_training import ALPHAS, FULL, Reading, Size, Trained, draw_data, train
from supancl.probes import Features, knn_accuracy, variance
from supancl.reports.tables import Cell, Table, mark_for_rank, mean_text, to_markdown
from supancl.runs.provenance import commit, versions
from supancl.stats import SeedStats, mean_interval, seed_stats_numpy

FIGURE_SAMPLES_PER_CLASS = 300  # training samples per class in the figure; more would overlap
NEIGHBOURS = 20
SIGMAS = (0.2, 0.5, 0.8)
KINDS = ("interpolation", "extrapolation")
TABLE_1_COLUMNS = ("l_ssl", "l_sup", "S_W", "S_W/S_T", "k-NN", "linear")
TABLE_2_COLUMNS = TOY_TRANSFER
ACCURACIES = ("k-NN", "linear", *TABLE_2_COLUMNS)  # columns in which best and second-best are marked
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
        "paired": paired_differences(rows),
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


def write(result: dict[str, Any], folder: Path) -> None:
    """Write the tables, and toy.json last: it marks the study as complete."""
    summary = summarize(result["rows"])
    write_text(folder / "table1.md", to_markdown(table(summary, TABLE_1_COLUMNS)))
    write_text(folder / "table2.md", to_markdown(table(summary, TABLE_2_COLUMNS)))
    write_json(folder / "toy.json", result)


# --- what is measured -------------------------------------------------------------------------------------------------


def measure(
    trained: Trained, toys: Sequence[Toy], reading: Reading, size: Size, seeds: Sequence[int], alphas: Sequence[float]
) -> list[Row]:
    """One row per (alpha, seed): Table 1, and Table 2 as `interpolation 0.2` and so on."""
    rows = []
    for position, (seed, toy) in enumerate(zip(seeds, toys, strict=True)):
        first = table_one(trained, position, toy, size)
        second = table_two(trained, position, toy, reading, size, seed)
        for alpha, one, two in zip(alphas, first, second, strict=True):
            rows.append({"alpha": alpha, "seed": seed, **one, **two})
    return rows


def table_one(trained: Trained, position: int, toy: Toy, size: Size) -> list[Row]:
    paper_sized = first_per_class(toy.test_labels, size.test)
    rows: list[Row] = []
    features = (trained.features(position, part) for part in (toy.train, toy.test))
    for fit_values, test_values in zip(*features, strict=True):
        fit, test = Features(fit_values, toy.train_labels), Features(test_values, toy.test_labels)
        paper_test = Features(test_values[paper_sized], toy.test_labels[paper_sized])
        scatter, (linear, linear_paper_test) = variance(fit), linear_accuracy(fit, [test, paper_test])
        rows.append(
            {
                "l_ssl": float(trained.ssl[position, len(rows)]),
                "l_sup": float(trained.sup[position, len(rows)]),
                "S_W": scatter.within,
                "S_W/S_T": 100 * scatter.ratio,
                "k-NN": knn_accuracy(fit, test, k=NEIGHBOURS),
                "linear": linear,
                "k-NN, 1x test": knn_accuracy(fit, paper_test, k=NEIGHBOURS),
                "linear, 1x test": linear_paper_test,
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
                tested = [Features(test_values, test.labels)]
                row[f"{kind} {sigma:g}"] = linear_accuracy(Features(fit_values, fit.labels), tested)[0]
    return rows


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


def draw_downstream(means: Tensor, variance: float, per_class: int, generator: torch.Generator) -> Features:
    labels = torch.arange(len(means)).repeat_interleave(per_class)
    noise = torch.randn(len(labels), means.shape[1], generator=generator)
    return Features(means[labels] + variance**0.5 * noise, labels)


# --- what it says -----------------------------------------------------------------------------------------------------


def values_by_alpha(rows: Sequence[Row]) -> dict[float, dict[str, list[float]]]:
    """alpha -> measure -> values in the order of the seeds."""
    values: dict[float, dict[str, list[float]]] = {}
    for row in sorted(rows, key=lambda row: (row["alpha"], row["seed"])):
        by_name = values.setdefault(row["alpha"], {})
        for name in row.keys() - {"alpha", "seed"}:
            by_name.setdefault(name, []).append(row[name])
    return values


def summarize(rows: Sequence[Row]) -> Summary:
    """alpha -> measure -> mean and standard deviation over seeds."""
    names = [name for name in rows[0] if name not in ("alpha", "seed")]
    by_alpha = values_by_alpha(rows).items()
    return {alpha: {name: seed_stats_numpy(values[name]) for name in names} for alpha, values in by_alpha}


def paired_differences(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Inner alphas minus alpha = 0, seed by seed: mean and 95% interval (Student's t; none for one seed)."""
    values = values_by_alpha(rows)
    results = []
    for measure, alpha in itertools.product(("k-NN", "linear"), (alpha for alpha in values if 0 < alpha < 1)):
        pairs = zip(values[alpha][measure], values[0.0][measure], strict=True)
        differences = [ours - supervised for ours, supervised in pairs]
        mean, *ends = mean_interval(differences, seed_stats_numpy)
        interval, paper = ends if len(differences) > 1 else None, PAPER[alpha][measure] - PAPER[0.0][measure]
        result = {"measure": measure, "alpha": alpha, "mean": mean, "interval": interval}
        results.append({**result, "n": len(differences), "paper": paper})
    return results


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


def decimals(name: str) -> int:
    return 3 if name in ("l_ssl", "l_sup", "S_W") else 1


def cell(summary: Summary, alpha: float, name: str) -> Cell:
    """`61.2 ± 0.3 (61.18)`: ours, its standard deviation, the paper's; accuracies are marked."""
    mean, sd = summary[alpha][name]
    better = sum(summary[other][name].mean > mean for other in summary)
    text = f"{mean_text(mean, sd, decimals(name))} ({PAPER[alpha][name]:g})"
    return Cell(text, mark=mark_for_rank(better) if name in ACCURACIES else "")


def table(summary: Summary, columns: Sequence[str], caption: str = "") -> Table:
    """A row per alpha, the first cell naming it."""
    titles = [f"{name} %" if name in ("S_W/S_T", *ACCURACIES) else name for name in columns]
    rows: list[list[str | Cell]] = [
        [f"{alpha:g}", *(cell(summary, alpha, name) for name in columns)] for alpha in sorted(summary)
    ]
    return Table(["alpha", *titles], rows, caption=caption)


def findings(result: Mapping[str, Any]) -> list[str]:
    """The paper's conclusions with yes or no, numbers that are off the paper's, and paired differences."""
    lines = [f"{'yes' if holds else 'NO '}  {claim}" for claim, holds in result["trends"].items()]
    missed = [row for row in result["levels"] if not row["met"]]
    for row in missed:
        ours = f"{row['ours']:.{decimals(row['measure'])}f}"
        lines.append(f"off the paper: {row['measure']} at alpha = {row['alpha']:g}: {ours} against {row['paper']:g}")
    lines.append(f"levels met: {len(result['levels']) - len(missed)} of {len(result['levels'])}")
    for row in result["paired"]:
        between = ", 95% interval {:+.2f} to {:+.2f}".format(*row["interval"]) if row["interval"] else ""
        lines.append(
            f"{row['measure']}, alpha = {row['alpha']:g} minus alpha = 0: {row['mean']:+.2f} points{between} "
            f"(n = {row['n']}; paper {row['paper']:+.2f})"
        )
    seconds = result["seconds"]
    return [
        *lines,
        f"{conditions(result)}; {seconds['training']:.0f} s training, {seconds['measuring']:.0f} s measuring, "
        f"{result['threads']} threads",
    ]
