"""What the verdicts hang on: each assumption is dropped or changed in turn, and the words that change are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from experiments.evidence.claims import AHEAD, PAIRS, STANDING, pair_title
from experiments.evidence.results import ACCURACIES, MEASURES, Evidence, Gap, gap
from supancl.stats import pooled, seed_stats, t_quantile, welch_interval

NEAR_ZERO = 0.02  # points; printed with two decimals, an interval that ends so near to 0 seems to end there


def list_pairs(changed: dict[tuple[str, str], list[str]], words: bool = True) -> str:
    """Pair -> what of it, as a list; `words` puts the measures' titles."""
    return "; ".join(
        f"{pair_title(*pair)}: {', '.join(MEASURES[m][0] if words else m for m in measures)}"
        for pair, measures in changed.items()
    )


class Difference(NamedTuple):
    """One of the page's, with the seeds' values that it was made from."""

    pair: tuple[str, str]
    measure: str
    gap: Gap
    ours: list[float]
    theirs: list[float]


def all_differences(evidence: Evidence) -> list[Difference]:
    rows = evidence.methods
    return [
        Difference(pair, measure, difference, *(rows[method].values(measure) for method in pair))
        for pair in PAIRS
        for measure, difference in evidence.gaps(*pair).items()
    ]


def by_pair(differences: Iterable[Difference]) -> dict[tuple[str, str], list[str]]:
    measures: dict[tuple[str, str], list[str]] = {}
    for difference in differences:
        measures.setdefault(difference.pair, []).append(difference.measure)
    return measures


def by_welch(evidence: Evidence) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """How many differences have spreads of their own; those whose verdict is another without equal spreads."""
    several_seeds = [
        difference for difference in all_differences(evidence) if min(len(difference.ours), len(difference.theirs)) > 1
    ]
    return len(several_seeds), by_pair(
        difference
        for difference in several_seeds
        if len(set(difference.ours)) > 1
        and len(set(difference.theirs)) > 1
        and Gap(*welch_interval(difference.ours, difference.theirs)).verdict != difference.gap.verdict
    )


def bold_by_welch(evidence: Evidence) -> tuple[int, int]:
    """Of the differences with spreads of their own: how many are bold, and how many would be without equal spreads."""
    differences = all_differences(evidence)
    several_seeds = [
        difference for difference in differences if len(set(difference.ours)) > 1 and len(set(difference.theirs)) > 1
    ]
    bold = [
        difference
        for difference in several_seeds
        if (strict := gap(difference.ours, difference.theirs, picked_of=len(differences))) and strict.excludes_zero
    ]
    return len(bold), sum(
        welch_interval(difference.ours, difference.theirs, len(differences)).excludes_zero for difference in bold
    )


def by_methods_alone(evidence: Evidence) -> tuple[int, int] | None:
    """Where alphas lend too: how many words would be others without them, and how many differences would be bold."""
    methods = {row.name for row in evidence.methods.values()}
    rows = evidence.lender_rows
    lent = [row for row in rows if row.name in methods]
    if len(lent) in (0, len(rows)):
        return None
    differences = all_differences(evidence)
    others = [pooled(row.values(difference.measure) for row in lent) for difference in differences]
    without_alphas = [
        gap(difference.ours, difference.theirs, other) for difference, other in zip(differences, others, strict=True)
    ]
    strict = [
        gap(difference.ours, difference.theirs, other, len(differences))
        for difference, other in zip(differences, others, strict=True)
    ]
    changed = sum(
        word is None or word.verdict != difference.gap.verdict
        for difference, word in zip(differences, without_alphas, strict=True)
    )
    return changed, sum(difference is not None and difference.excludes_zero for difference in strict)


def by_lender(evidence: Evidence) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """How many differences borrow; those whose verdict is another where one of the lenders is left out."""
    lenders = evidence.lender_rows

    def others(difference: Difference) -> list[Gap]:
        differences = [
            gap(
                difference.ours,
                difference.theirs,
                pooled(row.values(difference.measure) for row in lenders if row is not left),
            )
            for left in lenders
        ]
        return [other for other in differences if other is not None and other.low is not None]

    borrowed = [difference for difference in all_differences(evidence) if difference.gap.borrowed]
    return len(borrowed), by_pair(
        difference
        for difference in borrowed
        if any(other.verdict != difference.gap.verdict for other in others(difference))
    )


def on_the_edge(evidence: Evidence) -> dict[tuple[str, str], list[str]]:
    """Differences whose interval ends next to 0, with their word."""
    differences: dict[tuple[str, str], list[str]] = {}
    for difference in all_differences(evidence):
        if any(end is not None and abs(end) < NEAR_ZERO for end in (difference.gap.low, difference.gap.high)):
            word = (
                difference.gap.verdict
                if difference.pair not in STANDING
                else AHEAD.get(difference.gap.verdict, difference.gap.verdict)
            )
            differences.setdefault(difference.pair, []).append(f"{MEASURES[difference.measure][0]} ({word})")
    return differences


def lender_deviation_range(evidence: Evidence) -> tuple[float, float] | None:
    """The largest of the lenders' deviations over the smallest: of the accuracy where they agree best, and worst."""
    ratios = []
    for measure in ACCURACIES:
        deviations = [seed_stats(values).sd for row in evidence.lender_rows if len(values := row.values(measure)) > 1]
        if len(deviations) > 1 and min(deviations) > 0:
            ratios.append(max(deviations) / min(deviations))
    return (min(ratios), max(ratios)) if ratios else None


def sensitivity_lines(evidence: Evidence) -> list[str]:
    if not all_differences(evidence):
        return ["- no two methods can be compared yet"]
    lines = []
    count, changed = by_welch(evidence)
    if count:
        lines.append(
            f"- {count} differences have several seeds on both sides; their interval takes the two to vary "
            "alike. Without that (Welch's interval) another word would stand for "
            f"{sum(map(len, changed.values())) or 'none'}"
            + f": {list_pairs(changed)}" * bool(changed)
            + "; of {} that are bold {} would be.".format(*bold_by_welch(evidence))
        )
    count, changed = by_lender(evidence)
    deviation_range = lender_deviation_range(evidence)
    if count:
        range_note = (
            f" The lenders' own deviations differ by a factor of {deviation_range[0]:.1f} to {deviation_range[1]:.1f}, by accuracy."
            if deviation_range
            else ""
        )
        lines.append(
            f"- {count} differences borrow their spread.{range_note} Where one lender is left out, another word would "
            f"stand for {sum(map(len, changed.values())) or 'none'}" + f": {list_pairs(changed)}" * bool(changed) + "."
        )
        without_alphas = by_methods_alone(evidence)
        if without_alphas is not None:
            lines.append(
                "- Among the lenders are SupSiam's other alphas, which are of one method and have the same "
                f"seeds: without them another word would stand for {without_alphas[0] or 'none'}, and {without_alphas[1]} "
                "differences would be bold."
            )
    near_zero = on_the_edge(evidence)
    if near_zero:
        lines.append(
            f"- Intervals that end within {NEAR_ZERO} points of 0, so that the word hangs on a hair: "
            f"{list_pairs(near_zero, words=False)}."
        )
    return [*lines, bold_line(evidence), WITNESSES]


def bold_line(evidence: Evidence) -> str:
    """How far a widened interval reaches, by how many degrees of freedom its spread has."""
    freedoms, differences = set[int](), all_differences(evidence)
    for difference in differences:
        lent = (row.values(difference.measure) for row in evidence.lender_rows)
        used = pooled(lent if difference.gap.borrowed else (difference.ours, difference.theirs))
        freedoms |= {used.freedom} if used is not None and difference.gap.low is not None else set()
    reach = ", ".join(
        f"{t_quantile(many, len(differences)):.1f} deviations with {many}" for many in sorted(freedoms, reverse=True)
    )
    return (
        f"- Bold hangs on degrees of freedom too (a widened interval reaches {reach}), of which a borrowed spread "
        "may have more than an own one: what is not bold is not for that smaller or less certain."
    )


WITNESSES = """- The accuracies of a kind are of the same encoders and partly the same images: "4 of 4" is not four
  independent witnesses."""
