"""The paper's claims, answered from the numbers by rule; no verdict is typed."""

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
    over_images,
)
from supancl.recipes import recipe
from supancl.stats import PooledDeviation

ANCL_QUESTION = "Does supervision help asymmetric non-contrastive learning?"
CONTRASTIVE_QUESTION = "Does supervision help contrastive methods in transfer? (The paper: not on CIFAR.)"
ALPHA_QUESTION = "Is the best alpha inside (0, 1)?"
VARIANCE_QUESTION = "Does S_W/S_T fall with the supervised term? (The paper's theorems: S_W does, at a fixed S_T.)"
COLLAPSE_QUESTION = "Does the pool or EMA prevent collapse?"
STANDING_QUESTION = "How do SupSiam and SupBYOL compare with SupCon and cross-entropy?"

ANCL = (("supsiam", "simsiam"), ("supbyol", "byol"))
CONTRASTIVE = (("supcon", "simclr"), ("supmoco", "moco2"))
AHEAD = {"helps": "ahead", "hurts": "behind"}  # for two different methods
STANDING = (("supsiam", "supcon"), ("supsiam", "crossentropy"), ("supbyol", "supcon"), ("supbyol", "crossentropy"))
# quantity -> how it makes S_W/S_T fall
VARIANCE_PARTS = {"ratio": "S_W/S_T falls", "within": "S_W falls", "total": "S_T grows"}
AGAINST_COLLAPSE = {(True, False): "the pool alone", (False, True): "EMA alone", (True, True): "both together"}
TEST_IMAGES = 10_000  # test images of CIFAR-100, and of CIFAR-10
MIN_KNN = 5.0  # k-NN in percent; below it a run on 100 classes counts as collapsed
Question = tuple[str, tuple[tuple[str, str], ...], Mapping[str, str]]  # question, pairs, words

QUESTIONS: tuple[Question, ...] = (
    (ANCL_QUESTION, ANCL, {}),
    (CONTRASTIVE_QUESTION, CONTRASTIVE, {}),
    (STANDING_QUESTION, STANDING, AHEAD),
)
PAIRS = (*ANCL, *CONTRASTIVE, *STANDING)


# --- methods in pairs -------------------------------------------------------------------------------------------------


def pair_title(ours: str, theirs: str) -> str:
    return f"{TITLES[ours]} - {TITLES[theirs]}"


def differences(evidence: Evidence) -> list[Gap]:
    """Every difference between two methods that the page has."""
    return [difference for pair in PAIRS for difference in evidence.gaps(*pair).values()]


def significant_measures(evidence: Evidence, ours: str, theirs: str) -> set[str]:
    """The measures whose interval leaves out zero even if widened for all differences of the page (Bonferroni).

    Only with several seeds on both sides: a borrowed deviation is an assumption.
    """
    family = max(1, len(differences(evidence)))
    gaps = evidence.gaps(ours, theirs, picked_of=family)
    return {measure for measure, difference in gaps.items() if difference.excludes_zero and not difference.borrowed}


def count_verdicts(verdicts: Mapping[str, str]) -> str:
    """How often each verdict occurs, in words."""
    words = dict.fromkeys(verdicts.values())
    return "; ".join(f"{word}: {list(verdicts.values()).count(word)} of {len(verdicts)}" for word in words)


def describe_verdicts(gaps: dict[str, Gap], measures: Sequence[str], words: Mapping[str, str]) -> str:
    """The verdict if all measures agree, else each verdict with its measures."""
    verdicts = {
        measure: words.get(gaps[measure].verdict, gaps[measure].verdict) for measure in measures if measure in gaps
    }
    if not verdicts:
        return "not measured yet"
    by_verdict = {
        verdict: [MEASURES[m][0] for m, v in verdicts.items() if v == verdict] for verdict in verdicts.values()
    }
    if len(by_verdict) == 1:
        return next(iter(by_verdict))
    return ", ".join(f"{verdict} ({', '.join(names)})" for verdict, names in by_verdict.items())


def pair_lines(
    evidence: Evidence, pairs: Sequence[tuple[str, str]], kinds: Sequence[str], words: Mapping[str, str] | None = None
) -> list[str]:
    lines = []
    for ours, theirs in pairs:
        gaps = evidence.gaps(ours, theirs)
        title = pair_title(ours, theirs)
        if not gaps:
            lines.append(f"- **{title}**: {missing(evidence, (ours, theirs))}.")
            continue
        text = "; ".join(f"{kind}: {describe_verdicts(gaps, KINDS[kind], words or {})}" for kind in kinds)
        lines.append(f"- **{title}**{one_seed_note(evidence, ours, theirs)}: {text}.")
    return lines


def one_seed_note(evidence: Evidence, ours: str, theirs: str) -> str:
    """` (one seed of SupBYOL and BYOL)`; empty if both methods have several."""
    rows = [evidence.methods[method] for method in (ours, theirs)]
    single = " and ".join(row.name for row in rows if len(row.results) == 1)
    return f" (one seed of {single})" if single else ""


def equal_alpha_gaps(evidence: Evidence) -> tuple[float, dict[str, Gap]]:
    """SupBYOL's alpha, and SupSiam minus SupBYOL at it: the sweep has SupSiam at several."""
    alpha: float = recipe(evidence.plan.recipe_name("supbyol")).fields()["loss.alpha"][0]
    supbyol, supsiam = evidence.methods.get("supbyol"), evidence.alphas.get(alpha)
    return alpha, {} if supbyol is None or supsiam is None else evidence.row_gaps(supsiam, supbyol)


def missing(evidence: Evidence, methods: Sequence[str]) -> str:
    """Which of these methods have no numbers, and why."""
    rows, without = evidence.methods, dict[str, list[str]]()
    for method in methods:
        row = rows.get(method, Row(NAMES[method], []))
        if not any(row.values(measure) for measure in ACCURACIES):
            without.setdefault(row.missing_reason or ("collapsed" if row.collapsed else "not measured"), []).append(
                row.name
            )
    reasons = "; ".join(f"{' and '.join(names)} {why}" for why, names in without.items())
    answer = "no answer" if without and "missing" not in without else "not measured yet"
    return f"{answer} ({reasons})" if reasons else answer


class Best(NamedTuple):
    """For one accuracy: the best alpha, and the difference of the best one inside (0, 1) to the better end."""

    measure: str
    alpha: float
    inner: float
    end: float
    between: Gap
    strict: Gap  # `between`, widened for all accuracies too
    without: list[float]  # alphas that are missing

    @property
    def inside(self) -> str:
        return {"helps": "yes", "hurts": "no"}.get(self.between.verdict, self.between.verdict)


def best_alphas(evidence: Evidence) -> list[Best]:
    rows, best = evidence.alphas, []
    for measure in ACCURACIES:
        values_by_alpha = {alpha: row.values(measure) for alpha, row in rows.items() if row.values(measure)}
        inner, ends = [a for a in values_by_alpha if 0 < a < 1], [a for a in values_by_alpha if a in (0, 1)]
        if not inner or len(ends) < 2:
            continue
        means = {alpha: statistics.fmean(values) for alpha, values in values_by_alpha.items()}
        top, end = max(inner, key=lambda a: means[a]), max(ends, key=lambda a: means[a])
        between, strict = (
            gap(values_by_alpha[top], values_by_alpha[end], evidence.seed_spread(measure), picked_of=comparisons)
            for comparisons in (len(inner), len(inner) * len(ACCURACIES))
        )
        assert between is not None
        assert strict is not None
        without = [alpha for alpha in rows if alpha not in values_by_alpha]
        best.append(Best(measure, max(means, key=lambda a: means[a]), top, end, between, strict, without))
    return best


def best_alpha_lines(evidence: Evidence) -> list[str]:
    bests = best_alphas(evidence)
    if not bests:
        without = ", ".join(row.name for row in evidence.alphas.values() if not row.results)
        return [f"- not measured yet: alpha {without} missing"]
    names = {best.inside: [MEASURES[b.measure][0] for b in bests if b.inside == best.inside] for best in bests}
    counts = "; ".join(f"{answer}: {len(of)} ({', '.join(of)})" for answer, of in names.items())
    lines = [f"- **In {len(bests)} accuracies**: {counts}."]
    for best in bests:
        without = ", ".join(f"{alpha:g}" for alpha in best.without)
        lines.append(
            f"- {MEASURES[best.measure][0]}: highest mean at {best.alpha:g}; {best.inner:g} - {best.end:g} = "
            f"{best.between.text()}: {best.inside}" + f" (alpha {without} missing)" * bool(without)
        )
    return lines


def variance_gaps(evidence: Evidence, part: str = "ratio", alpha: float = 0.0) -> dict[str, Gap]:
    """S_W/S_T (or one `part`: within, total) at this alpha minus that at alpha 1, without the supervised term."""
    return evidence.row_gaps(evidence.alphas[alpha], evidence.alphas[1.0], (part, f"train_{part}"))


def variance_verdicts(evidence: Evidence, part: str = "ratio") -> dict[str, str]:
    """Whether this part is smaller (S_T: larger) with the supervised term alone than without it."""
    words = {"helps": "yes", "hurts": "no"} if part == "total" else {"helps": "no", "hurts": "yes"}
    return {
        measure: words.get(difference.verdict, difference.verdict)
        for measure, difference in variance_gaps(evidence, part).items()
    }


def variance_summary(evidence: Evidence) -> str:
    """Whether S_W/S_T and S_W fall and S_T grows, on test and on training images."""
    verdicts = {title: variance_verdicts(evidence, part) for part, title in VARIANCE_PARTS.items()}
    return "; ".join(
        f"{title}: "
        + ", ".join(
            f"{word} ({'training' if m.startswith('train') else 'test'} images)" for m, word in by_measure.items()
        )
        for title, by_measure in verdicts.items()
        if by_measure
    )


def variance_cause(evidence: Evidence) -> list[str]:
    """A line for each split on which the ratio falls, with the reason: S_W falls, S_T grows, or both."""
    ratio, within, total = (variance_verdicts(evidence, part) for part in VARIANCE_PARTS)
    causes = {  # whether S_W falls, and whether S_T grows
        (True, True): "S_W falls and S_T grows",
        (True, False): "S_W falls",
        (False, True): "S_T grows; whether S_W falls is not clear",
    }
    lines = []
    for prefix, images in (("", "test"), ("train_", "training")):
        cause = causes.get((within.get(f"{prefix}within") == "yes", total.get(f"{prefix}total") == "yes"))
        if cause and ratio.get(f"{prefix}ratio") == "yes":
            lines.append(f"- **On {images} images S_W/S_T falls because {cause}.**")
    return lines


def variance_lines(evidence: Evidence) -> list[str]:
    """Why S_W/S_T falls; then each part at alpha 0 against alpha 1, and its trend between them."""
    rows, lines = evidence.alphas, variance_cause(evidence)
    for part, title in (("ratio", "S_W/S_T"), ("within", "S_W alone")):
        verdicts = variance_verdicts(evidence, part)
        for measure, between in variance_gaps(evidence, part).items():
            values_by_alpha = {alpha: row.values(measure) for alpha, row in rows.items() if row.values(measure)}
            means = [statistics.fmean(values) for values in values_by_alpha.values()]
            course = "rises" if all(low < high for low, high in pairwise(means)) else "does not rise"
            steps = ", ".join(f"{alpha:g}" for alpha in values_by_alpha)
            lines.append(
                f"- {title}{', train' * measure.startswith('train')}: 0 - 1 = {between.text(3)}, smaller: "
                f"{verdicts[measure]}; its mean {course} at each step of alpha {steps} "
                f"({', '.join(f'{mean:.3f}' for mean in means)})"
            )
    if inside := variance_gaps(evidence, "within", alpha=0.5):
        lines.append(f"- S_W alone, 0.5 - 1 = {gaps_of_both_splits(inside)}.")
    if totals := variance_gaps(evidence, "total"):
        lines.append(f"- S_T alone: 0 - 1 = {gaps_of_both_splits(totals)}. The theorems hold S_T fixed.")
    return lines or ["- not measured yet"]


def gaps_of_both_splits(gaps: Mapping[str, Gap]) -> str:
    return "; ".join(
        f"{difference.text(3)}{' (train)' * measure.startswith('train')}" for measure, difference in gaps.items()
    )


class Cell(NamedTuple):
    """A cell of the collapse table compared with the cell that has neither pool nor EMA."""

    decay: str
    setup: str
    verdict: str
    details: str  # in brackets, or empty


def collapse_cells(evidence: Evidence) -> list[Cell]:
    """The cells with the pilots' settings; then, if any was run, those with a weight decay that is too high."""
    cells, others = [], evidence.seed_spread("knn")
    for harsh in (False, True):
        rows, decay = evidence.cells(harsh), cell_decay(evidence, harsh)
        if harsh and not any(row.results or row.failed for row in rows.values()):
            continue
        cells += [
            Cell(decay, setup, *prevents(rows[False, False], rows[key], others))
            for key, setup in AGAINST_COLLAPSE.items()
        ]
    return cells


def cell_decay(evidence: Evidence, harsh: bool) -> str:
    """The weight decay of four cells."""
    setting = choose(evidence.plan, evidence.results, "supsiam")
    return f"{HARSH:g}" if harsh else f"{setting[1]:g}" if setting else "of the pilots"


def collapse_lines(evidence: Evidence) -> list[str]:
    return [
        f"- Weight decay {cell.decay}, {cell.setup}: {cell.verdict}{cell.details}." for cell in collapse_cells(evidence)
    ]


def prevents(without: Row, row: Row, others: PooledDeviation | None) -> tuple[str, str]:
    """Verdict and numbers. Cells have one seed: the interval borrows the deviation of the longer runs."""
    missing_reasons = {cell.missing_reason for cell in (without, row)} - {""}
    if missing_reasons:
        return "not measured yet" if "missing" in missing_reasons else "no answer, a run failed", ""
    if None in (has_collapsed(without), has_collapsed(row)):
        return "no answer, k-NN was not measured", ""
    numbers = f"k-NN {row.text('knn')} against {without.text('knn')} with neither"
    if (difference := knn_gap(row, without, others)) is not None:
        is_over_images = has_collapsed(row) or has_collapsed(without)
        numbers += f": {difference.text()}" + " over test images" * bool(is_over_images)
    ranks = [cell.text("target_effective_rank", 1) for cell in (row, without)]
    numbers += f"; effective rank of the targets {ranks[0]} against {ranks[1]}"
    if not has_collapsed(without):
        return "no answer, because the run with neither did not collapse here, unlike in the paper", f" ({numbers})"
    seeds = min(len(row.results), len(without.results))
    return (
        f"{'collapsed, as did' if has_collapsed(row) else 'did not collapse, unlike'} the run with neither; "
        f"{'one seed' if seeds == 1 else f'{seeds} seeds'} each",
        f" ({numbers})",
    )


def knn_gap(row: Row, without: Row, others: PooledDeviation | None) -> Gap | None:
    """The difference of two cells in k-NN; next to a collapsed one over test images, as seeds say nothing of it."""
    ours, theirs = row.values("knn"), without.values("knn")
    if ours and theirs and (has_collapsed(row) or has_collapsed(without)):
        return over_images(statistics.fmean(ours), statistics.fmean(theirs), TEST_IMAGES)
    return gap(ours, theirs, others)


def has_collapsed(row: Row) -> bool | None:
    """Whether the monitor reported collapse or k-NN is near chance; None if neither is known."""
    values = row.values("knn")
    return True if row.collapsed else statistics.fmean(values) < MIN_KNN if values else None
