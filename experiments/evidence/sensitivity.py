"""What the verdicts hang on: each assumption is dropped or changed in turn, and the words that change are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from experiments.evidence.claims import AHEAD, PAIRS, STANDING, pair_title
from experiments.evidence.results import ACCURACIES, MEASURES, Evidence, Gap, gap
from supancl.stats import pooled_deviation, seed_stats, t_quantile, welch_interval

EDGE = 0.02  # points; printed with two decimals, an interval that ends so near to 0 seems to end there


def named(changed: dict[tuple[str, str], list[str]], words: bool = True) -> str:
    """Pair -> what of it, as a list; `words` puts the measures' titles."""
    return "; ".join(
        f"{pair_title(*pair)}: {', '.join(MEASURES[m][0] if words else m for m in found)}"
        for pair, found in changed.items()
    )


class Difference(NamedTuple):
    """One of the page's, with the seeds' values that it was made from."""

    pair: tuple[str, str]
    measure: str
    gap: Gap
    ours: list[float]
    theirs: list[float]


def each(known: Evidence) -> list[Difference]:
    rows = known.methods
    return [
        Difference(pair, measure, one, *(rows[method].values(measure) for method in pair))
        for pair in PAIRS
        for measure, one in known.gaps(*pair).items()
    ]


def by_pair(found: Iterable[Difference]) -> dict[tuple[str, str], list[str]]:
    measures: dict[tuple[str, str], list[str]] = {}
    for one in found:
        measures.setdefault(one.pair, []).append(one.measure)
    return measures


def by_welch(known: Evidence) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """How many differences have spreads of their own; those whose verdict is another without equal spreads."""
    own = [one for one in each(known) if min(len(one.ours), len(one.theirs)) > 1]
    return len(own), by_pair(
        one
        for one in own
        if len(set(one.ours)) > 1
        and len(set(one.theirs)) > 1
        and Gap(*welch_interval(one.ours, one.theirs)).verdict != one.gap.verdict
    )


def bold_by_welch(known: Evidence) -> tuple[int, int]:
    """Of the differences with spreads of their own: how many are bold, and how many would be without equal spreads."""
    found = each(known)
    own = [one for one in found if len(set(one.ours)) > 1 and len(set(one.theirs)) > 1]
    bold = [one for one in own if (strict := gap(one.ours, one.theirs, picked_of=len(found))) and strict.excludes_zero]
    return len(bold), sum(welch_interval(one.ours, one.theirs, len(found)).excludes_zero for one in bold)


def by_methods_alone(known: Evidence) -> tuple[int, int] | None:
    """Where alphas lend too: how many words would be others without them, and how many differences would be bold."""
    methods = {row.name for row in known.methods.values()}
    rows = known.lenders
    lent = [row for row in rows if row.name in methods]
    if len(lent) in (0, len(rows)):
        return None
    found = each(known)
    others = [pooled_deviation(row.values(one.measure) for row in lent) for one in found]
    words = [gap(one.ours, one.theirs, other) for one, other in zip(found, others, strict=True)]
    strict = [gap(one.ours, one.theirs, other, len(found)) for one, other in zip(found, others, strict=True)]
    changed = sum(word is None or word.verdict != one.gap.verdict for one, word in zip(found, words, strict=True))
    return changed, sum(one is not None and one.excludes_zero for one in strict)


def by_lender(known: Evidence) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """How many differences borrow; those whose verdict is another where one of the lenders is left out."""
    lenders = known.lenders

    def others(one: Difference) -> list[Gap]:
        found = [
            gap(one.ours, one.theirs, pooled_deviation(row.values(one.measure) for row in lenders if row is not left))
            for left in lenders
        ]
        return [other for other in found if other is not None and other.low is not None]

    borrowed = [one for one in each(known) if one.gap.borrowed]
    return len(borrowed), by_pair(
        one for one in borrowed if any(other.verdict != one.gap.verdict for other in others(one))
    )


def on_the_edge(known: Evidence) -> dict[tuple[str, str], list[str]]:
    """Differences whose interval ends next to 0, with their word."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in each(known):
        if any(end is not None and abs(end) < EDGE for end in (one.gap.low, one.gap.high)):
            word = one.gap.verdict if one.pair not in STANDING else AHEAD.get(one.gap.verdict, one.gap.verdict)
            found.setdefault(one.pair, []).append(f"{MEASURES[one.measure][0]} ({word})")
    return found


def lenders_apart(known: Evidence) -> tuple[float, float] | None:
    """The largest of the lenders' deviations over the smallest: of the accuracy where they agree best, and worst."""
    ratios = []
    for measure in ACCURACIES:
        found = [seed_stats(values).sd for row in known.lenders if len(values := row.values(measure)) > 1]
        if len(found) > 1 and min(found) > 0:
            ratios.append(max(found) / min(found))
    return (min(ratios), max(ratios)) if ratios else None


def sensitivity_lines(known: Evidence) -> list[str]:
    if not each(known):
        return ["- no two methods can be compared yet"]
    lines = []
    many, changed = by_welch(known)
    if many:
        lines.append(
            f"- {many} differences have several seeds on both sides; their interval takes the two to vary "
            "alike. Without that (Welch's interval) another word would stand for "
            f"{sum(map(len, changed.values())) or 'none'}"
            + f": {named(changed)}" * bool(changed)
            + "; of {} that are bold {} would be.".format(*bold_by_welch(known))
        )
    many, changed = by_lender(known)
    apart = lenders_apart(known)
    if many:
        far = (
            f" The lenders' own deviations differ by a factor of {apart[0]:.1f} to {apart[1]:.1f}, by accuracy."
            if apart
            else ""
        )
        lines.append(
            f"- {many} differences borrow their spread.{far} Where one lender is left out, another word would "
            f"stand for {sum(map(len, changed.values())) or 'none'}" + f": {named(changed)}" * bool(changed) + "."
        )
        alone = by_methods_alone(known)
        if alone is not None:
            lines.append(
                "- Among the lenders are SupSiam's other alphas, which are of one method and have the same "
                f"seeds: without them another word would stand for {alone[0] or 'none'}, and {alone[1]} "
                "differences would be bold."
            )
    edge = on_the_edge(known)
    if edge:
        lines.append(
            f"- Intervals that end within {EDGE} points of 0, so that the word hangs on a hair: "
            f"{named(edge, words=False)}."
        )
    return [*lines, bold_line(known), WITNESSES]


def bold_line(known: Evidence) -> str:
    """How far a widened interval reaches, by how many degrees of freedom its spread has."""
    freedoms, found = set[int](), each(known)
    for one in found:
        lent = (row.values(one.measure) for row in known.lenders)
        used = pooled_deviation(lent if one.gap.borrowed else (one.ours, one.theirs))
        freedoms |= {used.freedom} if used is not None and one.gap.low is not None else set()
    reach = ", ".join(
        f"{t_quantile(many, len(found)):.1f} deviations with {many}" for many in sorted(freedoms, reverse=True)
    )
    return (
        f"- Bold hangs on degrees of freedom too (a widened interval reaches {reach}), of which a borrowed spread "
        "may have more than an own one: what is not bold is not for that smaller or less certain."
    )


WITNESSES = """- The accuracies of a kind are of the same encoders and partly the same images: "4 of 4" is not four
  independent witnesses."""
