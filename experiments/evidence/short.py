"""The README's share of the results: the methods that were measured, and the answers in short."""

from __future__ import annotations

from pathlib import Path

from experiments.evidence.markdown import table
from experiments.evidence.plan import Plan
from experiments.evidence.results import Results
from experiments.evidence.rows import MEASURES, TITLES, method_rows
from experiments.evidence.spread import mean_text
from experiments.evidence.summary import certainty, summary_lines, summary_table
from supancl.files import put_between

SHOWN = ("knn", "linear", "crossed", "pets", "omniglot_5", "traffic-signs_5")
PAGE = "RESULTS.md"


def short_text(plan: Plan, results: Results) -> str:
    """Methods that are not measured are left out here; RESULTS.md says what is missing."""
    there = {method: row for method, row in method_rows(plan, results).items() if row.results}
    if not there:
        return "Nothing is measured yet.\n"
    rows = [
        [TITLES[method], str(len(row.results)), *(mean_text(row.values(measure), 1) for measure in SHOWN)]
        for method, row in there.items()
    ]
    columns = ["pretraining", "seeds", *(MEASURES[measure][0] for measure in SHOWN)]
    lines = "\n".join(summary_lines(plan, results, PAGE))
    return f"""{table(columns, rows)}
How many accuracies of a kind say what:

{summary_table(plan, results, PAGE)}
{lines}

{certainty(plan, results)}
"""


def put_short(document: Path, plan: Plan, results: Results) -> None:
    put_between(document, "results", short_text(plan, results))
