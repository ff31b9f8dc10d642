"""Every number of the results with its interval, its n and its files: queries over one row per run and measure.

A study is a folder of result files. ROWS says which files are the seeds of one row, PAIRS which rows are compared.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from scipy import stats

from supancl.errors import BadInput
from supancl.evaluation.results import average
from supancl.evaluation.suite import rank_encoders
from supancl.stats import Interval, seed_stats, t_quantile

RESULTS = Path(__file__).parents[1] / "results"
DECIMALS = 5  # pages have fewer
METHODS = ("simclr", "supcon", "moco2", "supmoco", "simsiam", "supsiam", "byol", "supbyol", "crossentropy")
ALPHAS = ("0", "0.2", "0.5", "0.8", "1")
KINDS = {
    "in-domain": ("knn", "linear"),
    "transfer": ("crossed", "pets", "cifar10", "cifar100"),
    "few-shot": ("omniglot_1", "omniglot_5", "traffic-signs_1", "traffic-signs_5"),
}
KIND_OF = {measure: kind for kind, measures in KINDS.items() for measure in measures}
ACCURACIES = ("knn", "linear", "crossed", "pets", *KINDS["few-shot"])
FEW_LABELS = ("linear, its labels", "knn, its labels", "linear, all labels")
SHOWN = (*KIND_OF, "linear_sgd", "AP", "AP50", "AP75", *FEW_LABELS, "linear on wrong labels")
VARIANCES = ("ratio", "train_ratio", "projector_ratio", "effective_rank", "projector_effective_rank", "within",
             "train_within", "total", "train_total")  # fmt: skip
LOSSES = ("ssl", "sup", "loss", "std", "target_effective_rank")
TEST_IMAGES, MIN_KNN = 10_000, 5.0  # of CIFAR-100; below this k-NN in percent a run on it counts as collapsed
WAYS = ("frozen", "finetuned", "probe-finetuned", "crossentropy", "supsiam", "semi", "supsiam-finetuned")
FURTHER_WAYS = ("simsiam", "supbyol", "supcon", "scratch", "supsiam-tuned", "histograms")
LABELS = ("4", "all", "1", "16")  # a class

Result = dict[str, Any]
Number = tuple[str, ...]  # study, row, column, value, low, high, n (seeds, or of what it says), source
Spread = Callable[[str], "PooledDeviation | None"]

# study -> row -> pattern of the files of its seeds; rows of one group share their deviation over seeds
ROWS: Mapping[str, Sequence[Mapping[str, str]]] = {
    "cifar100": [{
        **{method: rf"final-{method}-\d" for method in METHODS},
        **{f"alpha {alpha}": "final-supsiam-." if alpha == "0.5" else f"alpha-{alpha}-." for alpha in ALPHAS},
    }],
    "imagenet": [
        {
            "supsiam": r"final-supsiam-\d", "simsiam": r"tuned-simsiam-\d",
            "simsiam, recipe's rate": r"final-simsiam-\d", "supbyol": r"final-supbyol-\d",
            "byol": r"tuned-byol-\d", "byol, recipe's rate": r"final-byol-\d",
            **{m: rf"final-{m}-\d" for m in ("supcon", "simclr", "crossentropy", "supmoco", "moco2")},
        },
        {f"detector of {name}": rf"detect-{name.lower()}-\d" for name in ("SimSiam", "SupSiam")},
    ],
    "cifar10": [{m: rf"final-{m}-\d" for m in ("supsiam", "simsiam", "supbyol", "byol", "supcon")}],
    "supbyol": [{m: rf"final-{m}-\d" for m in ("supbyol", "byol")}],
    "labels": [{method: rf"{method}-10%(-seed-\d)?" for method in ("semi", "supsiam")}],
    "audit": [],
    "starts": [{f"{labels} {way}": f"[^-]+-[^-]+-{labels}-{way}-." for way in (*WAYS, *FURTHER_WAYS)}
               for labels in LABELS],
}  # fmt: skip
SINGLES = {"cifar100": "pilot|collapse", "imagenet": "pilot", "supbyol": "pilot", "audit": ""}  # a row per file
QUESTIONS = (("supsiam", "simsiam"), ("supbyol", "byol"), ("supcon", "simclr"), ("supmoco", "moco2"),
             ("supsiam", "supcon"), ("supsiam", "crossentropy"), ("supbyol", "supcon"),
             ("supbyol", "crossentropy"))  # fmt: skip
OTHERS = (("simsiam", "simclr"), ("supsiam", "supbyol"))
PAIRS: Mapping[str, Sequence[tuple[str, str]]] = {
    "cifar100": [*QUESTIONS, *OTHERS, ("supsiam", "alpha 1"), ("alpha 1", "simsiam"), ("alpha 0.8", "supbyol"),
                 ("alpha 0", "alpha 1"), ("alpha 0.5", "alpha 1")],
    "imagenet": [*QUESTIONS[:6], *OTHERS, ("supsiam", "simsiam, recipe's rate"), ("supbyol", "byol, recipe's rate"),
                 ("byol, recipe's rate", "byol"), ("detector of SupSiam", "detector of SimSiam")],
    "cifar10": [*QUESTIONS[:5], *OTHERS],
    "supbyol": [*QUESTIONS[:2], *((f"pilot-supbyol-{i}", "pilot-supbyol-0") for i in range(1, 6))],
    "labels": [("semi", "supsiam")],
    "audit": [(f"supsiam-0.5-{noise}", f"crossentropy-{noise}")
              for noise in ("symmetric-0.05", "symmetric-0.2", "symmetric-0.4", "pair-0.2")],
    "starts": [(f"{labels} supsiam", f"{labels} {way}") for labels in LABELS for way in WAYS[:4]],
}  # fmt: skip


# --- rows -------------------------------------------------------------------------------------------------------------


def read_results(study: str, folder: Path = RESULTS) -> list[Result]:
    """The results of a study, each with its `values`, sorted by name."""
    found = []
    for path in sorted((folder if study == "cifar100" else folder / study).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            accuracy = content.get("accuracy", {})
            place = accuracy if isinstance(accuracy, dict) else {f"{content['data']} {content['start']}": accuracy}
            content["values"] = {**content.get("last", {}), **content.get("values", place)}
            content["file"] = str(path.relative_to(folder))
            found.append({"status": "finished", "name": path.stem, **content})
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path}: not the result of a run; remove it, and the run is made again") from None
    return found


class Row(NamedTuple):
    """One set of settings with its seeds."""

    name: str
    results: list[Result]

    def having(self, measure: str) -> list[Result]:
        return [each for each in self.results if each["values"].get(measure) is not None]

    def values(self, measure: str) -> list[float]:
        return [float(each["values"][measure]) for each in self.having(measure)]

    @property
    def has_alarm(self) -> bool:
        return any(each["status"] == "collapsed" for each in self.results)

    @property
    def has_collapsed(self) -> bool:
        """The monitor's verdict, or k-NN near chance."""
        return self.has_alarm or fmean(self.values("knn")) < MIN_KNN


def rows_of(results: Sequence[Result], patterns: Mapping[str, str]) -> dict[str, Row]:
    """The rows that have a result, each with its seeds in order."""
    rows = {}
    for name, pattern in patterns.items():
        found = [each for each in results if re.fullmatch(pattern, each["name"]) and each["status"] != "failed"]
        if found:
            rows[name] = Row(name, sorted(found, key=lambda each: int(each.get("seed", 0))))
    return rows


# --- differences ------------------------------------------------------------------------------------------------------


class Gap(NamedTuple):
    """A difference of means with its 95% interval; no interval if the deviation over seeds is not known."""

    mean: float
    low: float = -math.inf
    high: float = math.inf
    borrowed: bool = False  # the deviation is that of other rows' seeds

    @property
    def verdict(self) -> str:
        return "helps" if self.low > 0 else "hurts" if self.high < 0 else "no clear difference"


def welch_interval(ours: Sequence[float], theirs: Sequence[float], picked_of: int = 1) -> Gap:
    """ours - theirs with a standard deviation for each side; each needs two values."""
    found = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(1 - 0.05 / picked_of)
    return Gap(fmean(ours) - fmean(theirs), float(found.low), float(found.high))


class PooledDeviation(NamedTuple):
    """The standard deviation between seeds, pooled over several groups of them, and its degrees of freedom."""

    deviation: float
    freedom: int


def pooled_deviation(groups: Iterable[Sequence[float]]) -> PooledDeviation | None:
    """The deviation within groups; None if no group has two values."""
    usable = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in usable)
    if not freedom:
        return None
    squares = sum((value - fmean(values)) ** 2 for values in usable for value in values)
    return PooledDeviation(math.sqrt(squares / freedom), freedom)


def difference_interval(
    ours: Sequence[float], theirs: Sequence[float], deviation: PooledDeviation | None = None, picked_of: int = 1
) -> Interval:
    """ours - theirs with one standard deviation for both: `deviation`, or else pooled from the two sides.

    Infinite if neither side has two values and no `deviation` is passed. `picked_of`: see `t_quantile`.
    """
    mean = fmean(ours) - fmean(theirs)
    deviation = deviation or pooled_deviation([ours, theirs])
    if deviation is None:
        return Interval(mean, -math.inf, math.inf)
    half = t_quantile(deviation.freedom, picked_of) * deviation.deviation * math.sqrt(1 / len(ours) + 1 / len(theirs))
    return Interval(mean, mean - half, mean + half)


def gap(ours: Sequence[float], theirs: Sequence[float], others: PooledDeviation | None, picked_of: int = 1) -> Gap:
    """ours - theirs: Student's interval where both have several seeds, else with the deviation of other rows' seeds.

    `others` needs two degrees of freedom. `picked_of`: from how many differences this one was picked (Bonferroni).
    """
    if min(len(ours), len(theirs)) > 1:
        return Gap(*difference_interval(ours, theirs, picked_of=picked_of))
    if others is not None and others.freedom >= 2:
        return Gap(*difference_interval(ours, theirs, others, picked_of), borrowed=True)
    return Gap(fmean(ours) - fmean(theirs))


def pooled(rows: Iterable[Row], measure: str) -> PooledDeviation | None:
    return pooled_deviation(row.values(measure) for row in rows if not row.has_alarm)


def number(study: str, row: str, column: str, found: Iterable[float], *sides: Sequence[Result], n: str = "") -> Number:
    """A number, perhaps with its interval, measured on these results, or on those of both sides of a difference."""
    texts = [f"{each:.{DECIMALS}f}" if math.isfinite(each) else "" for each in found]
    files = dict.fromkeys(each["file"] for side in sides for each in side)
    n = n or " and ".join(str(len(side)) for side in sides)
    return study, row, column, *texts, *[""] * (3 - len(texts)), n, " ".join(files)


def mean_of(values: Sequence[float], spread: PooledDeviation | None) -> list[float]:
    """The mean; with its 95% interval over several seeds, from `spread` or else their own deviation."""
    mean, half = fmean(values), 0.0
    if len(values) > 1:
        used = spread or PooledDeviation(seed_stats(values).sd, len(values) - 1)
        half = t_quantile(used.freedom) * used.deviation / math.sqrt(len(values))
    return [mean, mean - half, mean + half] if len(values) > 1 else [mean]


def tabled(study: str, rows: Mapping[str, Row], lent: Spread | None = None) -> Iterator[Number]:
    """Every measure of these rows, and every difference of the study's pairs among them.

    The rows share their deviation over seeds. With `lent`, each mean has its own, and differences borrow from `lent`.
    """
    spread, one = lent or partial(pooled, rows.values()), partial(number, study)
    for name, row in rows.items():
        for measure in (*SHOWN, *VARIANCES, *LOSSES * name.startswith(("alpha", "collapse"))):
            if values := row.values(measure):
                yield one(name, measure, mean_of(values, None if lent else spread(measure)), row.having(measure))
    for name, other in (pair for pair in PAIRS[study] if set(pair) <= rows.keys()):
        title, ours, theirs, verdicts = f"{name} - {other}", rows[name], rows[other], dict[str, list[str]]()
        for measure in (*SHOWN, *VARIANCES * name.startswith("alpha")):
            if ours.values(measure) and theirs.values(measure):
                found = gap(ours.values(measure), theirs.values(measure), spread(measure))
                yield one(title, measure, found[:3], ours.having(measure), theirs.having(measure))
                if measure in KIND_OF and math.isfinite(found.low):
                    verdicts.setdefault(KIND_OF[measure], []).append(found.verdict)
        for kind, verdict in product(verdicts, ("helps", "hurts")):
            count, of = verdicts[kind].count(verdict), f"{len(verdicts[kind])} accuracies"
            yield one(title, f"{kind}: {verdict}", [count], ours.results, theirs.results, n=of)


def ranked(study: str, rows: Mapping[str, Row]) -> Iterator[Number]:
    """Average ranks of the rows that have the most accuracies, over those that all of these have."""
    accuracies = tuple(KIND_OF) if study == "imagenet" else ACCURACIES
    measured = {name: {m: row.values(m) for m in accuracies if row.values(m)} for name, row in rows.items()}
    most = max(map(len, measured.values()), default=0)
    whole = {name: values for name, values in measured.items() if len(values) == most}
    sources = [each for name in whole for each in rows[name].results]
    means = {name: {m: average(found) for m, found in values.items()} for name, values in whole.items()}
    for name, rank in zip(whole, rank_encoders(means).average_ranks, strict=True):
        yield number(study, name, "average rank", [float(f"{rank:.2f}")], sources, n=f"{len(whole)} rows")


def numbers(folder: Path = RESULTS) -> Iterator[Number]:
    """Every number, from the folder of result files; some stand on several pages, rounded."""
    for study, groups in ROWS.items():
        if not (results := read_results(study, folder)):
            continue
        rows = [rows_of(results, patterns) for patterns in groups]
        singles = [each for each in results if re.match(SINGLES.get(study, "$"), each["name"])]
        lone = {each["name"]: Row(each["name"], [each]) for each in singles}
        if study == "cifar100":
            yield from of_cifar100(rows[0], lone)
            continue
        for group in (*rows, lone):
            yield from of_starts(group) if study == "starts" else tabled(study, group)
        if study in ("imagenet", "cifar10", "supbyol"):
            yield from ranked(study, rows[0])


def of_starts(rows: Mapping[str, Row]) -> Iterator[Number]:
    """Trained starts: a column for each data set and start, and one deviation over seeds for all of them.

    A case is a column; `beaten` and `ahead` count those in which a usual way is clearly better than SupSiam, and those
    in which SupSiam is clearly better than all of them.
    """
    places = sorted({place for row in rows.values() for each in row.results for place in each["values"]})
    spread = pooled_deviation(row.values(place) for row in rows.values() for place in places)
    one, found = partial(number, "starts"), dict[str, list[Gap]]()
    for (name, row), place in product(rows.items(), places):
        if values := row.values(place):
            yield one(name, place, mean_of(values, spread), row.having(place))
        for key in ("seconds", "images_per_second"):
            if place == places[0]:
                yield one(name, f"{key}: median", [median(each[key] for each in row.results)], row.results)
    for name, other in (pair for pair in PAIRS["starts"] if set(pair) <= rows.keys()):
        ours, theirs = rows[name], rows[other]
        for place in (place for place in places if ours.values(place) and theirs.values(place)):
            gap = Gap(*difference_interval(ours.values(place), theirs.values(place), spread))
            found.setdefault(place, []).append(gap)
            yield one(f"{name} - {other}", place, gap[:3], ours.having(place), theirs.having(place))
    labels = next(iter(rows), "").partition(" ")[0]
    ahead = [all(gap.verdict == "helps" for gap in gaps) for gaps in found.values()]
    beaten = [any(gap.verdict == "hurts" for gap in gaps) for gaps in found.values()]
    for column, cases in (("cases: ahead", ahead), ("cases: beaten", beaten)) if found else ():
        yield one(f"{labels}, all ways", column, [sum(cases)], n=f"{len(cases)} cases")


# --- the main study ---------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """One of the main study's differences between two methods."""

    measure: str
    ours: list[float]
    theirs: list[float]
    gap: Gap


def of_cifar100(rows: dict[str, Row], lone: Mapping[str, Row]) -> Iterator[Number]:
    """Methods, alphas, collapse, pilots, and how many of all differences hold under other assumptions."""
    one = partial(number, "cifar100")
    # the rows with several seeds, whose deviation others borrow; alpha 0.5 is SupSiam
    lenders = [row for name, row in rows.items() if len(row.results) > 1 and name != "alpha 0.5" and not row.has_alarm]
    spread = partial(pooled, lenders)
    yield from tabled("cifar100", {**rows, **lone}, spread)
    yield from ranked("cifar100", {method: rows[method] for method in METHODS})
    for name, row in lone.items():
        without = lone["collapse-harsh-neither-0" if "harsh" in name else "collapse-neither-0"]
        if not name.startswith("collapse") or row is without:
            continue
        (ours,), (theirs,) = row.values("knn"), without.values("knn")
        found, n = gap([ours], [theirs], spread("knn")), ""
        if row.has_collapsed or without.has_collapsed:  # other runs' seeds say nothing of it
            variance = (ours * (100 - ours) + theirs * (100 - theirs)) / TEST_IMAGES
            half, n = stats.norm.ppf(0.975) * math.sqrt(variance), f"{TEST_IMAGES} images"
            found = Gap(ours - theirs, ours - theirs - half, ours - theirs + half)
        yield one(f"{name} - {without.name}", "knn", found[:3], row.results, without.results, n=n)
    for measure in ACCURACIES:
        means = {alpha: fmean(rows[f"alpha {alpha}"].values(measure)) for alpha in ALPHAS}
        inner, end = max(ALPHAS[1:4], key=means.__getitem__), max(ALPHAS[::4], key=means.__getitem__)
        sides = [rows[f"alpha {alpha}"] for alpha in (inner, end)]
        for picked_of, why in ((3, "picked"), (3 * len(ACCURACIES), "picked, all accuracies allowed for")):
            found = gap(sides[0].values(measure), sides[1].values(measure), spread(measure), picked_of)
            title = f"alpha {inner} - alpha {end}, {why}"
            yield one(title, measure, found[:3], *(side.having(measure) for side in sides))
    for method in METHODS:
        tried = [row.results[0] for name, row in lone.items() if name.startswith(f"pilot-{method}-")]
        *_, second, best = sorted(each["values"]["linear"] for each in tried)
        yield one(f"pilots of {method}", "linear: best - next", [best - second], tried)
    every = []
    for (method, other), measure in product(QUESTIONS, ACCURACIES):
        both = rows[method].values(measure), rows[other].values(measure)
        every.append(Difference(measure, *both, gap(*both, spread(measure))))
    for column, count in assumptions(every, lenders).items():
        yield one("all differences", column, [count], n=f"{len(every)} differences")


def assumptions(every: Sequence[Difference], lenders: Sequence[Row]) -> dict[str, float]:
    """How many differences are clear, and for how many the verdict changes if an assumption is dropped."""
    several = [each for each in every if not each.gap.borrowed]
    bold = [each for each in several if gap(each.ours, each.theirs, None, len(every)).verdict != "no clear difference"]

    def changed(each: Difference, used: Sequence[Row]) -> bool:
        return gap(each.ours, each.theirs, pooled(used, each.measure)).verdict != each.gap.verdict

    def without_one(each: Difference) -> bool:
        return any(changed(each, [row for row in lenders if row is not left]) for left in lenders)

    ratios = []
    for measure in ACCURACIES:
        deviations = [seed_stats(row.values(measure)).sd for row in lenders]
        ratios.append(max(deviations) / min(deviations))
    methods = [row for row in lenders if row.name in METHODS]
    return {
        "clear": sum(each.gap.verdict != "no clear difference" for each in every),
        "borrowed": len(every) - len(several),
        "bold": len(bold),
        "bold by Welch": sum(
            welch_interval(each.ours, each.theirs, len(every)).verdict != "no clear difference" for each in bold
        ),
        "changed by Welch": sum(welch_interval(each.ours, each.theirs).verdict != each.gap.verdict for each in several),
        "changed without a lender": sum(each.gap.borrowed and without_one(each) for each in every),
        "changed without alphas": sum(changed(each, methods) for each in every),
        "deviations of lenders, least ratio": min(ratios),
        "deviations of lenders, largest ratio": max(ratios),
    }
