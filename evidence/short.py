"""The README's share of the results: the methods that were measured, and the answers that can be given."""

from __future__ import annotations

import re
from pathlib import Path

from evidence.answers import ANCL, CONTRASTIVE, best_alphas, gaps, pair_lines
from evidence.page import table
from evidence.plan import Plan
from evidence.results import Results
from evidence.rows import MEASURES, method_rows
from evidence.spread import mean_text
from supancl.errors import BadInput

SHOWN = ("knn", "linear", "crossed", "pets", "omniglot_5", "traffic-signs_5")
MARK = re.compile(r"(<!-- results -->\n).*?(<!-- end results -->)", re.S)


def short_text(plan: Plan, results: Results) -> str:
    """What is not measured is left out here; RESULTS.md says what is missing."""
    there = {method: row for method, row in method_rows(plan, results).items() if row.results}
    if not there:
        return "Nothing is measured yet.\n"
    rows = [[row.name, str(len(row.results)), *(mean_text(row.values(measure), 1) for measure in SHOWN)]
            for row in there.values()]
    pairs = [pair for pair in (*ANCL, *CONTRASTIVE) if gaps(plan, results, *pair)]
    lines = pair_lines(plan, results, pairs, ("in-domain", "crossed", "few-shot"))
    columns = ["pretraining", "seeds", *(MEASURES[measure][0] for measure in SHOWN)]
    told = [f"Supervision: {line.removeprefix('- ')}" for line in lines] + alpha_line(plan, results)
    return table(columns, rows) + "".join(f"\n{line}\n" for line in told)


def alpha_line(plan: Plan, results: Results) -> list[str]:
    """One sentence where the sweep was made: which alpha is best for what, and how often that is sure to be inside."""
    best = best_alphas(plan, results)
    if not best:
        return []
    by_alpha = {alpha: [MEASURES[one.measure][0] for one in best if one.alpha == alpha]
                for alpha in sorted({one.alpha for one in best})}
    listed = ", ".join(f"{alpha:g} ({', '.join(names)})" for alpha, names in by_alpha.items())
    sure = sum(one.inside == "yes" for one in best)
    return [f"SupSiam's best alpha (0: the supervised term alone, 1: SimSiam): {listed}; in {sure} of {len(best)} the "
            "best inside is above both ends by more than an interval that allows for picking it."]


def put_short(document: Path, plan: Plan, results: Results) -> None:
    text = document.read_text(encoding="utf-8")
    if not MARK.search(text):
        raise BadInput(f"{document} has no marks <!-- results --> and <!-- end results -->; put them where the table "
                       "belongs")
    told = short_text(plan, results)
    document.write_text(MARK.sub(lambda found: f"{found[1]}{told}{found[2]}", text), encoding="utf-8")
