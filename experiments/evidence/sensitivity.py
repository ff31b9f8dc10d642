"""What the verdicts depend on: drop each assumption in turn and list the verdicts that change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from experiments.evidence.claims import AHEAD, PAIRS, STANDING, pair_title
from experiments.evidence.results import ACCURACIES, MEASURES, Evidence, Gap, gap
from supancl.stats import pooled_deviation, seed_stats, t_quantile, welch_interval

NEAR_ZERO = 0.02  # points; with two decimals such an interval seems to end at 0


def list_pairs(changed: dict[tuple[str, str], list[str]], words: bool = True) -> str:
    """Pairs with their measures as text; `words` replaces measures by their titles."""
    return "; ".join(
        f"{pair_title(*pair)}: {', '.join(MEASURES[m][0] if words else m for m in measures)}"
        for pair, measures in changed.items()
    )


class Difference(NamedTuple):
    """One difference of the page, with the values of its seeds."""

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
    """How many differences have several seeds on both sides; those whose verdict changes with Welch's interval."""
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
    """Of the differences with several seeds on both sides: how many are bold, and how many of these with Welch's."""
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


def by_methods_alone(evidence: Evidence) -> int | None:
    """If deviations are borrowed from alphas too: how many verdicts change without them."""
    methods = {row.name for row in evidence.methods.values()}
    rows = evidence.lender_rows
    lent = [row for row in rows if row.name in methods]
    if len(lent) in (0, len(rows)):
        return None
    differences = all_differences(evidence)
    others = [pooled_deviation(row.values(difference.measure) for row in lent) for difference in differences]
    without_alphas = [
        gap(difference.ours, difference.theirs, other) for difference, other in zip(differences, others, strict=True)
    ]
    return sum(
        other is None or other.verdict != difference.gap.verdict
        for difference, other in zip(differences, without_alphas, strict=True)
    )


def by_lender(evidence: Evidence) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """How many differences borrow a deviation; those whose verdict changes if one of the lenders is left out."""
    lenders = evidence.lender_rows

    def others(difference: Difference) -> list[Gap]:
        differences = [
            gap(
                difference.ours,
                difference.theirs,
                pooled_deviation(row.values(difference.measure) for row in lenders if row is not left),
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
    """Differences whose interval ends next to 0, with their verdict."""
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
            f"- {count} differences have several seeds on both sides; their interval assumes that both vary "
            "equally. Without that (Welch's interval) the verdict changes for "
            f"{sum(map(len, changed.values())) or 'none'}"
            + f": {list_pairs(changed)}" * bool(changed)
            + "; of {} bold ones {} stay bold.".format(*bold_by_welch(evidence))
        )
    count, changed = by_lender(evidence)
    deviation_range = lender_deviation_range(evidence)
    if count:
        range_note = (
            " The deviations that are pooled for this differ by a factor of {:.1f} to {:.1f}, depending on the "
            "accuracy.".format(*deviation_range)
            if deviation_range
            else ""
        )
        lines.append(
            f"- {count} differences borrow their deviation.{range_note} If one of the pooled rows is left out, the "
            f"verdict changes for {sum(map(len, changed.values())) or 'none'}"
            + f": {list_pairs(changed)}" * bool(changed)
            + "."
        )
        without_alphas = by_methods_alone(evidence)
        if without_alphas is not None:
            lines.append(
                "- The pooled rows include SupSiam's other alphas, which are one method with the same seeds: without "
                f"them the verdict changes for {without_alphas or 'none'}."
            )
    near_zero = on_the_edge(evidence)
    if near_zero:
        lines.append(
            f"- Close calls, whose interval ends within {NEAR_ZERO} points of 0: {list_pairs(near_zero, words=False)}."
        )
    return [*lines, bold_line(evidence), WITNESSES]


def bold_line(evidence: Evidence) -> str:
    """How wide a widened interval is, by the degrees of freedom of its deviation."""
    freedoms, differences = set[int](), all_differences(evidence)
    for difference in differences:
        used = None if difference.gap.borrowed else pooled_deviation((difference.ours, difference.theirs))
        freedoms |= {used.freedom} if used is not None and difference.gap.low is not None else set()
    reach = ", ".join(
        f"{t_quantile(many, len(differences)):.1f} deviations with {many}" for many in sorted(freedoms, reverse=True)
    )
    return (
        f"- Bold also depends on degrees of freedom (a widened interval reaches {reach or 'nowhere yet'}), so a "
        "difference that is not bold is not necessarily smaller."
    )


WITNESSES = """- The accuracies of a group come from the same encoders and partly the same images: "4 of 4" is not four
  independent results."""
