"""What every later part of RESULTS.md has: differences of rows, what failed or is missing, and all runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.evidence.findings import LABELLED, join_names
from experiments.evidence.results import Evidence, Gap, Row, gap, mean_text, waiting
from experiments.evidence.tables import average_ranks, evaluation_commands, problem_lines, table
from supancl.errors import plural
from supancl.stats import PooledDeviation, pooled_deviation

FEWEST_DIRECTIONS = 10.0  # below it the monitor reports collapse; the limit was set on other runs

# measure -> title
RATIOS: dict[str, str] = {
    "ratio": "S_W/S_T, test",
    "train_ratio": "S_W/S_T, train",
    "projector_ratio": "S_W/S_T, projector, train",
    "effective_rank": "effective rank, test",
}


def has_ended_collapsed(row: Row, rows: Mapping[str, Row]) -> bool:
    """Whether a run with an alarm also ends badly: few directions, and less than half of the best method's k-NN."""
    ranks = row.values("projector_effective_rank")
    best = max(max(other.values("knn"), default=0.0) for other in rows.values())
    few = bool(ranks) and min(ranks) < FEWEST_DIRECTIONS
    return bool(row.collapsed) and few and min(row.values("knn"), default=0.0) < best / 2


def mark(row: Row, rows: Mapping[str, Row]) -> str:
    """The method's name; † if a run of it ended collapsed, ‡ if the monitor only raised an alarm."""
    if not row.collapsed:
        return row.name
    return f"{row.name} {'†' if has_ended_collapsed(row, rows) else '‡'}"


def describe_collapse(rows: Mapping[str, Row]) -> str:
    """What the daggers mean, with how many directions the projector's features use at the end."""
    alarmed = [row for row in rows.values() if row.collapsed]
    if not alarmed:
        return ""
    ends = [f"{row.name} {mean_text(row.values('projector_effective_rank'), 1)}" for row in alarmed]
    return f"""
The monitor raised an alarm in some runs: a batch's targets used fewer than {FEWEST_DIRECTIONS:g} directions, or were
nearly equal. Training continued to the end. †: the run ended collapsed (still so few directions in the projector's
features of training images, and less than half of the best method's k-NN). ‡: it trained on and did not. The effective
rank at the end: {", ".join(ends)}.
Differences to a run with † do not say how much labels help; with another rate, batch or warm-up it may train.
"""


SPREAD_NOTE = """"±" is half a 95% interval over seeds, with one deviation for all rows: that pooled over the rows with
several seeds. A number without it is one seed."""


def labelled_pairs(rows: Mapping[str, Row]) -> list[tuple[str, str]]:
    """Methods with labels, each with its partner without, if both are measured."""
    return [pair for pair in LABELLED.items() if all(method in rows and rows[method].results for method in pair)]


def texts(row: Row, rows: Mapping[str, Row], measures: Iterable[str], decimals: int = 2) -> list[str]:
    """The cells of a row, with the deviation over seeds that all rows share."""
    return [row.text(measure, decimals, spread_of(rows, measure)) for measure in measures]


def accuracy_table(
    rows: Mapping[str, Row], titles: Mapping[str, str], first: str, unranked: Mapping[str, str] | None = None
) -> str:
    """One row per method or setting, with its average rank in the accuracies of `titles`."""
    ranks, titles = average_ranks(rows.values(), titles), {**titles, **(unranked or {})}
    lines = [[mark(row, rows), row.seeds, *texts(row, rows, titles), ranks.get(row.name, "-")] for row in rows.values()]
    return describe_collapse(rows) + "\n" + table([first, "seeds", *titles.values(), "average rank"], lines)


def spread_of(rows: Mapping[str, Row], measure: str) -> PooledDeviation | None:
    """The deviation over seeds, pooled over the methods that have several."""
    return pooled_deviation(row.values(measure) for row in rows.values() if not row.collapsed)


def row_gaps(rows: Mapping[str, Row], ours: str, theirs: str, measures: Iterable[str]) -> dict[str, Gap]:
    """The difference of two rows in each measure that both have; empty if a row is missing."""
    if ours not in rows or theirs not in rows:
        return {}
    gaps = {m: gap(rows[ours].values(m), rows[theirs].values(m), spread_of(rows, m)) for m in measures}
    return {measure: difference for measure, difference in gaps.items() if difference is not None}


def brief(difference: Gap) -> str:
    """The difference in a sentence that says how many seeds there are.

    >>> brief(Gap(1.25)), brief(Gap(1.25, 0.5, 2.0, borrowed=True))
    ('+1.2', '+1.2 [+0.5, +2.0]')
    """
    return difference.text(1).removesuffix(" (no interval)").rstrip("*")


def seeds_text(*rows: Row) -> str:
    """How many seeds these rows have.

    >>> seeds_text(Row("a", [{}]), Row("b", [{}])), seeds_text(Row("a", [{}] * 3), Row("b", [{}]))
    ('1 seed each', '3 and 1 seeds')
    """
    counts = [len(row.results) for row in rows]
    return (
        f"{plural(counts[0], 'seed')} each" if len(set(counts)) == 1 else f"{join_names(list(map(str, counts)))} seeds"
    )


def differences(rows: Mapping[str, Row], pairs: Sequence[tuple[str, str]], accuracies: Mapping[str, str]) -> str:
    """The differences of these pairs of rows; `accuracies` has the titles of the measures."""
    pairs = [pair for pair in pairs if all(name in rows for name in pair)]
    if not pairs:
        return ""
    lines = []
    for ours, theirs in pairs:
        gaps = row_gaps(rows, ours, theirs, accuracies)
        cells = [gaps[measure].text() if measure in gaps else "-" for measure in accuracies]
        lines.append([f"{mark(rows[ours], rows)} - {mark(rows[theirs], rows)}", *cells])
    lenders = [row.name for row in rows.values() if len(row.results) > 1 and not row.collapsed]
    return f"""### Differences

In points; "[low, high]" is a 95% interval over seeds. "*": one side or both have one seed, and the deviation is that
of the rows with several ({join_names(lenders) or "none"}).

{table(["difference", *accuracies.values()], lines)}"""


def ratio_table(rows: Mapping[str, Row]) -> str:
    *ratios, rank = RATIOS
    lines = [[row.name, *texts(row, rows, ratios, 3), *texts(row, rows, [rank], 1)] for row in rows.values()]
    return f"""### Within-class variance

Of L2-normalised features: the encoder's for test and training images, the projector's for training images (Table 1).

{table(["method", *RATIOS.values()], lines)}"""


def left_over(evidence: Evidence, rows: Mapping[str, Row] | None = None) -> str:
    """Failed, collapsed and missing runs; with `rows`, runs that did not end collapsed are said to be so."""
    alarms = [row for row in (rows or {}).values() if row.collapsed and not has_ended_collapsed(row, rows or {})]
    alarmed = {str(result["name"]) for row in alarms for result in row.results}
    unfinished = waiting(evidence.plan, evidence.results)
    missing = (
        f"{plural(len(unfinished), 'run')}: {', '.join(step.name for step in unfinished)}." if unfinished else "none."
    )
    return f"""### Failed, collapsed and not run

{problem_lines(evidence, alarmed)}

Not run: {missing}
"""


def evaluated_with(evidence: Evidence) -> str:
    return f"""### Evaluated with

{evaluation_commands(evidence)}"""
