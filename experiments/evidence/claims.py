"""The paper's claims, answered from the numbers by rule: no word here is chosen after seeing them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from experiments.evidence.plans import HARSH
from experiments.evidence.results import (
    ACCURACIES,
    KINDS,
    MEASURES,
    NAMES,
    TITLES,
    Evidence,
    Gap,
    Row,
    choose,
    gap,
    mean_text,
    over_images,
)
from supancl.stats import PooledDeviation

ANCL_QUESTION = "Does supervision help asymmetric non-contrastive learning?"
CONTRASTIVE_QUESTION = "Does it help contrastive methods when crossed? (The paper: on CIFAR no.)"
ALPHA_QUESTION = "Is the best alpha inside (0, 1)?"
VARIANCE_QUESTION = "Does S_W/S_T fall with the supervised term? (The paper's theorems: S_W does, at a fixed S_T.)"
COLLAPSE_QUESTION = "Does the pool or EMA prevent collapse?"
STANDING_QUESTION = "How do SupSiam and SupBYOL stand against SupCon and cross-entropy?"

ANCL = (("supsiam", "simsiam"), ("supbyol", "byol"))
CONTRASTIVE = (("supcon", "simclr"), ("supmoco", "moco2"))
AHEAD = {"helps": "ahead", "hurts": "behind"}  # of two methods neither is the other with something added
STANDING = (("supsiam", "supcon"), ("supsiam", "crossentropy"), ("supbyol", "supcon"), ("supbyol", "crossentropy"))
# part of S_W/S_T -> what makes the ratio fall
VARIANCE_PARTS = {"ratio": "S_W/S_T falls", "within": "S_W falls", "total": "S_T grows"}
AGAINST_COLLAPSE = {(True, False): "the pool alone", (False, True): "EMA alone", (True, True): "both together"}
TESTED = 10_000  # test images of CIFAR-100, and of CIFAR-10
NOTHING = 5.0  # k-NN in percent below which a run on 100 classes has learned nothing worth the name
Asked = tuple[str, tuple[tuple[str, str], ...], Mapping[str, str]]  # question, pairs, words

ASKED: tuple[Asked, ...] = (
    (ANCL_QUESTION, ANCL, {}),
    (CONTRASTIVE_QUESTION, CONTRASTIVE, {}),
    (STANDING_QUESTION, STANDING, AHEAD),
)
PAIRS = (*ANCL, *CONTRASTIVE, *STANDING)


# --- methods in pairs -------------------------------------------------------------------------------------------------


def pair_title(ours: str, theirs: str) -> str:
    return f"{TITLES[ours]} - {TITLES[theirs]}"


def differences(known: Evidence) -> list[Gap]:
    """Every difference between two methods that the page has."""
    return [one for pair in PAIRS for one in known.gaps(*pair).values()]


def widened(known: Evidence, ours: str, theirs: str) -> set[str]:
    """The measures whose verdict stands with an interval that allows for all differences of the page (Bonferroni)."""
    family = max(1, len(differences(known)))
    found = known.gaps(ours, theirs, picked_of=family)
    return {measure for measure, one in found.items() if one.excludes_zero}


def tallied(verdicts: Mapping[str, str]) -> str:
    """Name -> verdict, as how often each is given."""
    said = dict.fromkeys(verdicts.values())
    return "; ".join(f"{word}: {list(verdicts.values()).count(word)} of {len(verdicts)}" for word in said)


def summed_up(found: dict[str, Gap], measures: Sequence[str], words: Mapping[str, str]) -> str:
    """One verdict where every measure gives it; the measures are named where they disagree."""
    verdicts = {
        measure: words.get(found[measure].verdict, found[measure].verdict) for measure in measures if measure in found
    }
    if not verdicts:
        return "not measured yet"
    said = {verdict: [MEASURES[m][0] for m, v in verdicts.items() if v == verdict] for verdict in verdicts.values()}
    if len(said) == 1:
        return next(iter(said))
    return ", ".join(f"{verdict} ({', '.join(names)})" for verdict, names in said.items())


def pair_lines(
    known: Evidence, pairs: Sequence[tuple[str, str]], kinds: Sequence[str], words: Mapping[str, str] | None = None
) -> list[str]:
    lines, rows = [], known.methods
    for ours, theirs in pairs:
        found = known.gaps(ours, theirs)
        title = pair_title(ours, theirs)
        if not found:
            lines.append(f"- **{title}**: {missing(known, (ours, theirs))}.")
            continue
        single = " and ".join(rows[method].name for method in (ours, theirs) if len(rows[method].results) == 1)
        told = "; ".join(f"{kind}: {summed_up(found, KINDS[kind], words or {})}" for kind in kinds)
        lines.append(f"- **{title}**{f' (one seed of {single})' * bool(single)}: {told}.")
    return lines


def missing(known: Evidence, methods: Sequence[str]) -> str:
    """Which of them have no numbers, and whether any are to come."""
    rows, without = known.methods, dict[str, list[str]]()
    for method in methods:
        row = rows.get(method, Row(NAMES[method], []))
        if not any(row.values(measure) for measure in ACCURACIES):
            without.setdefault(row.lacking or ("collapsed" if row.collapsed else "not measured"), []).append(row.name)
    told = "; ".join(f"{' and '.join(names)} {why}" for why, names in without.items())
    said = "cannot be told" if without and "missing" not in without else "not measured yet"
    return f"{said} ({told})" if told else said


class Best(NamedTuple):
    """For one accuracy: the best alpha, and how far the best one inside (0, 1) lies above the better end."""

    measure: str
    alpha: float
    inner: float
    end: float
    between: Gap
    strict: Gap  # as `between`, allowing for all accuracies too
    without: list[float]  # alphas that are missing

    @property
    def inside(self) -> str:
        return {"helps": "yes", "hurts": "no"}.get(self.between.verdict, self.between.verdict)


def best_alphas(known: Evidence) -> list[Best]:
    rows, best = known.alphas, []
    for measure in ACCURACIES:
        found = {alpha: row.values(measure) for alpha, row in rows.items() if row.values(measure)}
        inner, ends = [a for a in found if 0 < a < 1], [a for a in found if a in (0, 1)]
        if not inner or len(ends) < 2:
            continue
        means = {alpha: statistics.fmean(values) for alpha, values in found.items()}
        top, end = max(inner, key=lambda a: means[a]), max(ends, key=lambda a: means[a])
        between, strict = (
            gap(found[top], found[end], known.seed_spread(measure), picked_of=many)
            for many in (len(inner), len(inner) * len(ACCURACIES))
        )
        assert between is not None
        assert strict is not None
        without = [alpha for alpha in rows if alpha not in found]
        best.append(Best(measure, max(means, key=lambda a: means[a]), top, end, between, strict, without))
    return best


def best_alpha(known: Evidence) -> list[str]:
    found = best_alphas(known)
    said = {one.inside: [MEASURES[other.measure][0] for other in found if other.inside == one.inside] for one in found}
    lines = (
        [
            f"- **In {len(found)} accuracies**: "
            + "; ".join(f"{told}: {len(names)} ({', '.join(names)})" for told, names in said.items())
            + "."
        ]
        if found
        else []
    )
    for best in found:
        without = ", ".join(f"{alpha:g}" for alpha in best.without)
        lines.append(
            f"- {MEASURES[best.measure][0]}: highest mean at {best.alpha:g}; {best.inner:g} - {best.end:g} = "
            f"{best.between.text()}: {best.inside}" + f" (alpha {without} missing)" * bool(without)
        )
    without = ", ".join(row.name for row in known.alphas.values() if not row.results)
    return lines or [f"- not measured yet: alpha {without} missing"]


def variance_gaps(known: Evidence, part: str = "ratio", alpha: float = 0.0) -> dict[str, Gap]:
    """S_W/S_T with the supervised term alone, or with this alpha, less that without it; or one `part` of it, within or
    total."""
    return known.row_gaps(known.alphas[alpha], known.alphas[1.0], (part, f"train_{part}"))


def variance_verdicts(known: Evidence, part: str = "ratio") -> dict[str, str]:
    """Whether this part is smaller with the supervised term alone than without it, or, of S_T, larger."""
    words = {"helps": "yes", "hurts": "no"} if part == "total" else {"helps": "no", "hurts": "yes"}
    return {measure: words.get(one.verdict, one.verdict) for measure, one in variance_gaps(known, part).items()}


def variance_summary(known: Evidence) -> str:
    """Whether the ratio falls, and which of its parts makes it fall, on test and on training images."""
    told = {title: variance_verdicts(known, part) for part, title in VARIANCE_PARTS.items()}
    images = {
        part: "training images" if part.startswith("train") else "test images"
        for found in told.values()
        for part in found
    }
    return "; ".join(
        f"{title}: " + ", ".join(f"{verdict} ({images[measure]})" for measure, verdict in found.items())
        for title, found in told.items()
        if found
    )


def variance_cause(known: Evidence) -> list[str]:
    """A line for each split on which the ratio falls, with the reason: S_W falls, S_T grows, or both."""
    ratio, within, total = (variance_verdicts(known, part) for part in VARIANCE_PARTS)
    lines = []
    for prefix, images in (("", "test"), ("train_", "training")):
        falls, grows = within.get(f"{prefix}within") == "yes", total.get(f"{prefix}total") == "yes"
        if ratio.get(f"{prefix}ratio") != "yes" or not (falls or grows):
            continue
        cause = (
            "S_W falls and S_T grows"
            if falls and grows
            else "S_W falls"
            if falls
            else ("S_T grows; that S_W falls cannot be told")
        )
        lines.append(f"- **On {images} images S_W/S_T falls because {cause}.**")
    return lines


def variance_lines(known: Evidence) -> list[str]:
    """Which part of S_W/S_T makes it fall; then each part with the supervised term alone against without it, and its
    course between them."""
    rows, lines = known.alphas, variance_cause(known)
    for part, title in (("ratio", "S_W/S_T"), ("within", "S_W alone")):
        verdicts = variance_verdicts(known, part)
        for measure, between in variance_gaps(known, part).items():
            found = {alpha: row.values(measure) for alpha, row in rows.items() if row.values(measure)}
            means = [statistics.fmean(values) for values in found.values()]
            course = "rises" if all(low < high for low, high in pairwise(means)) else "does not rise"
            steps, values = ", ".join(f"{alpha:g}" for alpha in found), ", ".join(f"{mean:.3f}" for mean in means)
            named = title + ", train" * measure.startswith("train")
            lines.append(
                f"- {named}: 0 - 1 = {between.text(3)}, smaller: {verdicts[measure]}; its mean {course} at "
                f"each step of alpha {steps} ({values})"
            )
    inside = variance_gaps(known, "within", alpha=0.5)
    if inside:
        lines.append(f"- S_W alone, 0.5 - 1 = {of_both_splits(inside)}.")
    totals = variance_gaps(known, "total")
    if totals:
        lines.append(f"- S_T alone: 0 - 1 = {of_both_splits(totals)}. The theorems hold S_T fixed.")
    return lines or ["- not measured yet"]


def of_both_splits(found: Mapping[str, Gap]) -> str:
    return "; ".join(f"{one.text(3)}{' (train)' * measure.startswith('train')}" for measure, one in found.items())


class Cell(NamedTuple):
    """A cell of the collapse table beside the one with neither."""

    decay: str
    what: str
    verdict: str
    details: str  # in brackets, or empty


def collapse_cells(known: Evidence) -> list[Cell]:
    """With the settings of the pilots; then, where any of those cells was run, with a weight decay that is too high."""
    found, others = [], known.seed_spread("knn")
    for harsh in (False, True):
        rows, decay = known.cells(harsh), cell_decay(known, harsh)
        if harsh and not any(row.results or row.failed for row in rows.values()):
            continue
        found += [
            Cell(decay, what, *prevents(rows[False, False], rows[key], others))
            for key, what in AGAINST_COLLAPSE.items()
        ]
    return found


def cell_decay(known: Evidence, harsh: bool) -> str:
    """The weight decay of four cells."""
    chosen = choose(known.plan, known.results, "supsiam")
    return f"{HARSH:g}" if harsh else f"{chosen[1]:g}" if chosen else "of the pilots"


def collapse_lines(known: Evidence) -> list[str]:
    return [
        f"- Weight decay {cell.decay}, {cell.what}: {cell.verdict}{cell.details}." for cell in collapse_cells(known)
    ]


def prevents(without: Row, row: Row, others: PooledDeviation | None) -> tuple[str, str]:
    """Verdict and numbers. One seed a cell: the interval borrows the spread of the longer runs' seeds."""
    lacking = {each.lacking for each in (without, row)} - {""}
    if lacking:
        return "not measured yet" if "missing" in lacking else "cannot be told, a run failed", ""
    if None in (lost(without), lost(row)):
        return "cannot be told, k-NN was not measured", ""
    ours, theirs = row.values("knn"), without.values("knn")
    told = f"k-NN {mean_text(ours)} against {mean_text(theirs)} with neither"
    if ours and theirs and (lost(row) or lost(without)):  # how far healthy seeds lie apart says nothing of these
        told += f": {over_images(statistics.fmean(ours), statistics.fmean(theirs), TESTED).text()} over test images"
    elif (apart := gap(ours, theirs, others)) is not None:
        told += f": {apart.text()}"
    ranks = [mean_text(each.last("target_effective_rank"), 1) for each in (row, without)]
    told += f"; effective rank of the targets {ranks[0]} against {ranks[1]}"
    if not lost(without):
        return "cannot be told: with neither nothing collapsed here, while in the paper it did", f" ({told})"
    seeds = min(len(row.results), len(without.results))
    return (
        f"{'collapsed as' if lost(row) else 'did not collapse where'} the run with neither did, "
        f"{'one seed' if seeds == 1 else f'{seeds} seeds'} each",
        f" ({told})",
    )


def lost(row: Row) -> bool | None:
    """The monitor says so, or neighbours say nothing about the class; None where neither is known."""
    values = row.values("knn")
    return True if row.collapsed else statistics.fmean(values) < NOTHING if values else None
