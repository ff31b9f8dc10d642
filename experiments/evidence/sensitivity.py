"""What the verdicts depend on: drop each assumption in turn and list the verdicts that change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from experiments.evidence.claims import AHEAD, PAIRS, STANDING, pair_title
from experiments.evidence.results import ACCURACIES, MEASURES, Evidence, Gap, Row, gap
from supancl.stats import pooled_deviation, seed_stats, t_quantile, welch_interval

NEAR_ZERO = 0.02  # points; with two decimals such an interval seems to end at 0
WITNESSES = """- The accuracies of a group come from the same encoders and partly the same images: "4 of 4" is not four
  independent results."""


class Difference(NamedTuple):
    """One difference of the page, with the values of its seeds."""

    pair: tuple[str, str]
    measure: str
    gap: Gap
    ours: list[float]
    theirs: list[float]

    @property
    def both_vary(self) -> bool:
        return len(set(self.ours)) > 1 and len(set(self.theirs)) > 1

    @property
    def near_zero(self) -> bool:
        return any(end is not None and abs(end) < NEAR_ZERO for end in (self.gap.low, self.gap.high))

    @property
    def title(self) -> str:
        return MEASURES[self.measure][0]

    @property
    def title_and_verdict(self) -> str:
        words = AHEAD if self.pair in STANDING else {}
        return f"{self.title} ({words.get(self.gap.verdict, self.gap.verdict)})"

    def borrowing(self, lenders: Iterable[Row]) -> Gap | None:
        """The same difference with the deviation of these rows."""
        return gap(self.ours, self.theirs, pooled_deviation(row.values(self.measure) for row in lenders))


def all_differences(evidence: Evidence) -> list[Difference]:
    rows = evidence.methods
    return [
        Difference(pair, measure, difference, *(rows[method].values(measure) for method in pair))
        for pair in PAIRS
        for measure, difference in evidence.gaps(*pair).items()
    ]


def list_pairs(differences: Sequence[Difference], text: Callable[[Difference], str] = lambda each: each.title) -> str:
    """`SupCon - SimCLR: linear, Pets; ...`: the differences by their pair."""
    by_pair: dict[tuple[str, str], list[str]] = {}
    for difference in differences:
        by_pair.setdefault(difference.pair, []).append(text(difference))
    return "; ".join(f"{pair_title(*pair)}: {', '.join(texts)}" for pair, texts in by_pair.items())


def by_welch(evidence: Evidence) -> list[Difference]:
    """The differences whose verdict changes with Welch's interval."""
    return [
        each
        for each in all_differences(evidence)
        if each.both_vary and Gap(*welch_interval(each.ours, each.theirs)).verdict != each.gap.verdict
    ]


def bold_by_welch(evidence: Evidence) -> tuple[int, int]:
    """How many differences with several seeds on both sides are bold, and how many of these with Welch's interval."""
    differences = all_differences(evidence)
    family = len(differences)
    bold = [
        each
        for each in differences
        if each.both_vary and (strict := gap(each.ours, each.theirs, picked_of=family)) and strict.excludes_zero
    ]
    return len(bold), sum(welch_interval(each.ours, each.theirs, family).excludes_zero for each in bold)


def by_methods_alone(evidence: Evidence) -> int | None:
    """If deviations are borrowed from alphas too: how many verdicts change without them."""
    methods, rows = {row.name for row in evidence.methods.values()}, evidence.lender_rows
    lent = [row for row in rows if row.name in methods]
    if len(lent) in (0, len(rows)):
        return None
    without = [(each, each.borrowing(lent)) for each in all_differences(evidence)]
    return sum(other is None or other.verdict != each.gap.verdict for each, other in without)


def by_lender(evidence: Evidence) -> list[Difference]:
    """The differences with a borrowed deviation whose verdict changes if one of the lenders is left out."""
    lenders = evidence.lender_rows

    def changes(each: Difference) -> bool:
        others = [each.borrowing(row for row in lenders if row is not left) for left in lenders]
        return any(other and other.low is not None and other.verdict != each.gap.verdict for other in others)

    return [each for each in all_differences(evidence) if each.gap.borrowed and changes(each)]


def lender_deviation_range(evidence: Evidence) -> tuple[float, float] | None:
    """The largest of the lenders' deviations over the smallest: of the accuracy where they agree best, and worst."""
    ratios = []
    for measure in ACCURACIES:
        deviations = [seed_stats(values).sd for row in evidence.lender_rows if len(values := row.values(measure)) > 1]
        if len(deviations) > 1 and min(deviations) > 0:
            ratios.append(max(deviations) / min(deviations))
    return (min(ratios), max(ratios)) if ratios else None


def sensitivity_lines(evidence: Evidence) -> list[str]:
    differences, deviation_range = all_differences(evidence), lender_deviation_range(evidence)
    if not differences:
        return ["- no two methods can be compared yet"]

    def changes(changed: Sequence[Difference]) -> str:
        return f"the verdict changes for {len(changed) or 'none'}" + f": {list_pairs(changed)}" * bool(changed)

    lines = []
    if several := sum(min(len(each.ours), len(each.theirs)) > 1 for each in differences):
        lines.append(
            f"{several} differences have several seeds on both sides; their interval assumes that both vary equally. "
            f"Without that (Welch's interval) {changes(by_welch(evidence))}; "
            + "of {} bold ones {} stay bold.".format(*bold_by_welch(evidence))
        )
    if borrowed := sum(each.gap.borrowed for each in differences):
        pooled = (
            "The deviations that are pooled for this differ by a factor of {:.1f} to {:.1f}, depending on the accuracy."
        )
        lines.append(
            f"{borrowed} differences borrow their deviation. "
            + (f"{pooled.format(*deviation_range)} " if deviation_range else "")
            + f"If one of the pooled rows is left out, {changes(by_lender(evidence))}."
        )
    if borrowed and (without_alphas := by_methods_alone(evidence)) is not None:
        lines.append(
            "The pooled rows include SupSiam's other alphas, which are one method with the same seeds: without them "
            f"the verdict changes for {without_alphas or 'none'}."
        )
    if near := [each for each in differences if each.near_zero]:
        text = list_pairs(near, lambda each: each.title_and_verdict)
        lines.append(f"Close calls, whose interval ends within {NEAR_ZERO} points of 0: {text}.")
    return [*(f"- {line}" for line in [*lines, bold_line(differences)]), WITNESSES]


def bold_line(differences: Sequence[Difference]) -> str:
    """How wide a widened interval is, by the degrees of freedom of its deviation."""
    pooled = [pooled_deviation((each.ours, each.theirs)) for each in differences if not each.gap.borrowed]
    reach = ", ".join(
        f"{t_quantile(many, len(differences)):.1f} deviations with {many}"
        for many in sorted({used.freedom for used in pooled if used}, reverse=True)
    )
    return (
        f"Bold also depends on degrees of freedom (a widened interval reaches {reach or 'nowhere yet'}), so a "
        "difference that is not bold is not necessarily smaller."
    )
