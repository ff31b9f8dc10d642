"""The answers in a few lines: how many accuracies say what, and which of them would say it under a stricter rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.evidence.answers import (
    AHEAD,
    ALPHA_QUESTION,
    ANCL,
    ANCL_QUESTION,
    COLLAPSE_QUESTION,
    CONTRASTIVE,
    CONTRASTIVE_QUESTION,
    STANDING,
    STANDING_QUESTION,
    VARIANCE_QUESTION,
    best_alphas,
    collapse_cells,
    gaps,
    missing,
    pair_title,
    variance_summary,
)
from experiments.evidence.markdown import slug, table
from experiments.evidence.plan import Plan
from experiments.evidence.results import Results
from experiments.evidence.rows import KINDS, Row, spread_rows
from experiments.evidence.spread import Gap

Asked = tuple[str, tuple[tuple[str, str], ...], Mapping[str, str]]  # question, pairs, words

ASKED: tuple[Asked, ...] = (
    (ANCL_QUESTION, ANCL, {}),
    (CONTRASTIVE_QUESTION, CONTRASTIVE, {}),
    (STANDING_QUESTION, STANDING, AHEAD),
)
PAIRS = (*ANCL, *CONTRASTIVE, *STANDING)


def differences(plan: Plan, results: Results) -> list[Gap]:
    """Every difference between two methods that the page has."""
    return [one for pair in PAIRS for one in gaps(plan, results, *pair).values()]


def widened(plan: Plan, results: Results, ours: str, theirs: str) -> set[str]:
    """The measures whose verdict stands with an interval that allows for all differences of the page (Bonferroni)."""
    family = max(1, len(differences(plan, results)))
    found = gaps(plan, results, ours, theirs, picked_of=family)
    return {measure for measure, one in found.items() if one.excludes_zero}


def tallied(verdicts: Mapping[str, str]) -> str:
    """Name -> verdict, as how often each is given."""
    said = dict.fromkeys(verdicts.values())
    return "; ".join(f"{word}: {list(verdicts.values()).count(word)} of {len(verdicts)}" for word in said)


def summary_table(plan: Plan, results: Results, page: str = "") -> str:
    """One row a pair; `page` is where the questions are answered at length. Bold: the whole cell stands widened."""
    rows = []
    for question, pairs, words in ASKED:
        for number, pair in enumerate(pairs):
            found, sure = gaps(plan, results, *pair), widened(plan, results, *pair)
            cells = (
                [cell(found, sure, measures, words) for measures in KINDS.values()]
                if found
                else [missing(plan, results, pair), *[""] * (len(KINDS) - 1)]
            )
            rows.append([f"[{question}]({page}#{slug(question)})" if not number else "", pair_title(*pair), *cells])
    return table(["question", "difference", *KINDS], rows)


def cell(found: Mapping[str, Gap], sure: set[str], measures: Sequence[str], words: Mapping[str, str]) -> str:
    verdicts = {
        measure: words.get(found[measure].verdict, found[measure].verdict) for measure in measures if measure in found
    }
    told = tallied(verdicts) or "not measured yet"
    return f"**{told}**" if verdicts and set(verdicts) <= sure else told


def summary_lines(plan: Plan, results: Results, page: str = "") -> list[str]:
    """The other questions, a line each."""
    found = best_alphas(plan, results)
    inside = tallied({one.measure: one.inside for one in found})
    sure = sum(one.inside == "yes" and one.strict.verdict == "helps" for one in found)
    collapse: dict[tuple[str, str], list[str]] = {}
    for one in collapse_cells(plan, results):
        collapse.setdefault((one.decay, one.verdict), []).append(one.what)
    told = {
        ALPHA_QUESTION: f"{inside} accuracies (yes: {sure} where all {len(found)} are allowed for)"
        if inside
        else "not measured yet",
        VARIANCE_QUESTION: variance_summary(plan, results) or "not measured yet",
        COLLAPSE_QUESTION: "; ".join(
            f"with weight decay {decay} {', '.join(what)}: {verdict}" for (decay, verdict), what in collapse.items()
        ),
    }
    return [f"- [{question}]({page}#{slug(question)}) {answer}." for question, answer in told.items()]


def certainty(plan: Plan, results: Results) -> str:
    """What the verdicts rest on: how many differences, how many of them on borrowed spreads, and whose."""
    found = differences(plan, results)
    if not found:
        return "No two methods can be compared yet."
    sure = sum(len(widened(plan, results, *pair)) for pair in PAIRS)
    given = sum(one.excludes_zero for one in found)
    return (
        f"Of {len(found)} differences {given} have a 95% interval that leaves 0 out; {sure} still do where each "
        f"interval is widened to allow for all {len(found)} (Bonferroni): these are bold. "
        f"{sum(one.borrowed for one in found)} have one seed on a side and borrow the spread of "
        f"{lenders(spread_rows(plan, results))}."
    )


def lenders(rows: Sequence[Row]) -> str:
    """The rows with several seeds, whose spread is lent to the others."""
    if not rows:
        return "nobody yet"
    freedom = sum(len(row.results) - 1 for row in rows)
    *others, last = (row.name for row in rows)
    named = f"{', '.join(others)} and {last}" if others else last
    return f"{named} ({freedom} degrees of freedom)"
