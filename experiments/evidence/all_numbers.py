"""The rows of tests/golden/results.csv: every number of RESULTS.md with its interval, its n and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.audit import page as audit
from experiments.evidence import claims, further_page, imagenet_page, results, sensitivity
from experiments.evidence.further_plans import PLANS
from experiments.evidence.results import ACCURACIES, KINDS, Evidence, Row
from experiments.evidence.study_page import RATIOS, spread_of
from experiments.evidence.tables import average_ranks, margin_of
from experiments.labels import page as labels
from supancl.stats import PooledDeviation

DECIMALS = 5  # the page has at most 4
SHOWN = dict.fromkeys((*ACCURACIES, *imagenet_page.ACCURACIES, "linear_sgd", "AP", "AP50", "AP75",
                       *labels.FEW_MEASURES, "linear on wrong labels"))  # fmt: skip
VARIANCES = (*RATIOS, "projector_effective_rank", "within", "train_within", "total", "train_total")
LOSSES = ("ssl", "sup", "loss", "std", "target_effective_rank")
KIND = {m: kind for kind, ms in KINDS.items() for m in ms} | dict.fromkeys(("cifar10", "cifar100"), "transfer")
PAIRS: Mapping[str, Sequence[tuple[str, str]]] = {
    "cifar100": [*claims.PAIRS, ("simsiam", "simclr"), ("supsiam", "supbyol"), ("supsiam", "alpha 1"),
                 ("alpha 1", "simsiam"), ("alpha 0.8", "supbyol"), ("alpha 0", "alpha 1"), ("alpha 0.5", "alpha 1")],
    "imagenet": [*imagenet_page.PAIRS, ("simsiam", "simclr"), ("supsiam", "simsiam, recipe's rate"),
                 ("supbyol", "byol, recipe's rate"), ("byol, recipe's rate", "byol"),
                 ("detector of SupSiam", "detector of SimSiam")],
    "cifar10": further_page.CIFAR10_PAIRS,
    "supbyol": [*further_page.SUPBYOL_PAIRS, *((f"pilot-supbyol-{i}", "pilot-supbyol-0") for i in range(1, 6))],
    "labels": [("semi", "supsiam")],
    "audit": [(f"supsiam-0.5-{noise}", f"crossentropy-{noise}")
              for noise in ("symmetric-0.05", "symmetric-0.2", "symmetric-0.4", "pair-0.2")],
}  # fmt: skip
Number = tuple[str, ...]  # study, row, column, value, low, high, n (seeds, or of what it says), source
Rows = Mapping[str, Row]


def number(
    study: str, row: str, column: str, found: Iterable[float | None], *sides: Sequence[Any], n: str = ""
) -> Number:
    """A number, perhaps with its interval, measured on these results, or on those of both sides of a difference."""
    texts = ["" if each is None else f"{each:.{DECIMALS}f}" for each in found]
    folder = "" if study == "cifar100" else f"{study}/"
    files = dict.fromkeys(f"{folder}{result['name']}.json" for side in sides for result in side)
    n = n or " and ".join(str(len(side)) for side in sides)
    return study, row, column, *texts, *[""] * (3 - len(texts)), n, " ".join(files)


def tabled(study: str, rows: Rows, lent: Callable[[str], PooledDeviation | None] | None = None) -> Iterator[Number]:
    """Every measure of these rows, and every difference of the study's pairs among them.

    Rows share their deviation over seeds. With `lent`, each mean has its own, and differences borrow from `lent`.
    """
    spread = lent or partial(spread_of, rows)
    for name, row in rows.items():
        for measure in (*SHOWN, *VARIANCES, *LOSSES * name.startswith(("alpha", "collapse"))):
            if values := row.values(measure):
                mean, half = fmean(values), results.half_width(values, None if lent else spread(measure))
                interval = [mean, mean - half, mean + half] if len(values) > 1 else [mean]
                yield number(study, name, measure, interval, row.having(measure))
    for name, other in PAIRS.get(study, ()):
        if name not in rows or other not in rows:
            continue
        title, ours, theirs, verdicts = f"{name} - {other}", rows[name], rows[other], dict[str, list[str]]()
        for measure in (*SHOWN, *VARIANCES * name.startswith("alpha")):
            if found := results.gap(ours.values(measure), theirs.values(measure), spread(measure)):
                yield number(study, title, measure, found[:3], ours.having(measure), theirs.having(measure))
                if measure in KIND and found.low is not None:
                    verdicts.setdefault(KIND[measure], []).append(found.verdict)
        for kind, verdict in product(verdicts, ("helps", "hurts")):
            count, of = verdicts[kind].count(verdict), f"{len(verdicts[kind])} accuracies"
            yield number(study, title, f"{kind}: {verdict}", [count], ours.results, theirs.results, n=of)


def ranked(study: str, rows: Rows, accuracies: Iterable[str]) -> Iterator[Number]:
    ranks = average_ranks(rows.values(), accuracies)
    ranked_results = [each for row in rows.values() if row.name in ranks for each in row.results]
    for name, row in rows.items():
        if row.name in ranks:
            yield number(study, name, "average rank", [float(ranks[row.name])], ranked_results, n=f"{len(ranks)} rows")


def single(evidence: Evidence, *stages: str) -> dict[str, Row]:
    """Each run of these stages as a row."""
    return {name: Row(name, [result]) for name, result in evidence.results.items() if result["stage"] in stages}


def cifar100(evidence: Evidence) -> Iterator[Number]:
    """The main study: methods, alphas, collapse, pilots, and what is said about all its differences."""
    alphas = {f"alpha {alpha:g}": row for alpha, row in evidence.alphas.items()}
    singles, one = single(evidence, "pilot", "collapse"), partial(number, "cifar100")
    yield from tabled("cifar100", {**evidence.methods, **alphas, **singles}, evidence.seed_spread)
    yield from ranked("cifar100", evidence.methods, ACCURACIES)
    for name, row in singles.items():
        neither = singles["collapse-harsh-neither-0" if "harsh" in name else "collapse-neither-0"]
        if name.startswith("collapse") and row is not neither:
            found = claims.knn_gap(row, neither, evidence.seed_spread("knn")) or ()
            n = f"{claims.TEST_IMAGES} images" if any(map(claims.has_collapsed, (row, neither))) else ""
            yield one(f"{name} - {neither.name}", "knn", found[:3], row.results, neither.results, n=n)
    for best in claims.best_alphas(evidence):
        sides = [evidence.alphas[alpha].having(best.measure) for alpha in (best.inner, best.end)]
        for interval, why in ((best.between, "picked"), (best.strict, "picked, all accuracies allowed for")):
            yield one(f"alpha {best.inner:g} - alpha {best.end:g}, {why}", best.measure, interval[:3], *sides)
    for method in evidence.plan.pilots:
        tried = [row.results[0] for name, row in singles.items() if name.startswith(f"pilot-{method}-")]
        yield one(f"pilots of {method}", "linear: best - next", [margin_of(evidence, method)], tried)
    differences, (bold, by_welch) = claims.differences(evidence), sensitivity.bold_by_welch(evidence)
    least, largest = sensitivity.lender_deviation_range(evidence) or (None, None)
    counts = {
        "clear": sum(each.excludes_zero for each in differences),
        "borrowed": sum(each.borrowed for each in differences),
        "bold": bold,
        "bold by Welch": by_welch,
        "changed by Welch": len(sensitivity.by_welch(evidence)),
        "changed without a lender": len(sensitivity.by_lender(evidence)),
        "changed without alphas": sensitivity.by_methods_alone(evidence),
        "deviations of lenders, least ratio": least,
        "deviations of lenders, largest ratio": largest,
    }
    for column, count in counts.items():
        yield one("all differences", column, [count], n=f"{len(differences)} differences")


def unplanned(name: str, found: Iterable[Mapping[str, Any]]) -> Row:
    """A row of a study without a plan."""
    return Row(name, [{**each, "values": each["accuracy"], "status": "finished"} for each in found])


def numbers(folder: Path) -> Iterator[Number]:
    """Every number of the page, from the folder of result files; some stand on it more than once, rounded."""
    yield from cifar100(results.read_evidence(folder, PLANS["cifar100"]()))
    for study, rows_of in {
        "imagenet": imagenet_page.method_rows,
        "cifar10": further_page.cifar10_rows,
        "supbyol": further_page.supbyol_rows,
    }.items():
        evidence = results.read_evidence(folder / study, PLANS[study]())
        rows, detectors = rows_of(evidence), imagenet_page.detector_rows(evidence)
        yield from tabled(study, rows)
        yield from ranked(study, rows, imagenet_page.ACCURACIES if study == "imagenet" else ACCURACIES)
        yield from tabled(study, single(evidence, "pilot"))
        yield from tabled(study, {f"detector of {row.name}": row for row in detectors})
    few, noisy = labels.read_results(folder / "labels"), audit.read_results(folder / "audit")
    yield from tabled("labels", {name: unplanned(name, labels.few(few, 0.1, name)) for name in ("semi", "supsiam")})
    yield from tabled("audit", {each["name"]: unplanned(each["name"], [each]) for each in noisy})
