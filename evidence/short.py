"""The README's share of the results: the methods that were measured, and the answers that can be given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence.answers import AHEAD, ANCL, CONTRASTIVE, STANDING, best_alphas, collapse_lines, gaps, pair_lines
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
    columns = ["pretraining", "seeds", *(MEASURES[measure][0] for measure in SHOWN)]
    told = {
        "What supervision does": known_pairs(plan, results, (*ANCL, *CONTRASTIVE), {}),
        "Beside the other supervised methods": known_pairs(plan, results, STANDING, AHEAD),
        "Which alpha": alpha_line(plan, results),
        "Collapse": [line for line in collapse_lines(plan, results) if "not measured yet" not in line],
    }
    lists = [f"\n{what}:\n\n{chr(10).join(lines)}\n" for what, lines in told.items() if lines]
    return table(columns, rows) + "".join(lists)


def known_pairs(plan: Plan, results: Results, pairs: Sequence[tuple[str, str]], words: Mapping[str, str]) -> list[str]:
    known = [pair for pair in pairs if gaps(plan, results, *pair)]
    return pair_lines(plan, results, known, ("in-domain", "crossed", "few-shot"), words)


def alpha_line(plan: Plan, results: Results) -> list[str]:
    """One sentence where the sweep was made: which alpha is best for what, and how often that is sure to be inside."""
    best = best_alphas(plan, results)
    if not best:
        return []
    by_alpha = {alpha: [MEASURES[one.measure][0] for one in best if one.alpha == alpha]
                for alpha in sorted({one.alpha for one in best})}
    listed = ", ".join(f"{alpha:g} ({', '.join(names)})" for alpha, names in by_alpha.items())
    sure = sum(one.inside == "yes" for one in best)
    return [f"- SupSiam's best (0: the supervised term alone, 1: SimSiam): {listed}; in {sure} of {len(best)} the "
            "best inside is above both ends by more than an interval that allows for picking it."]


def put_short(document: Path, plan: Plan, results: Results) -> None:
    text = document.read_text(encoding="utf-8")
    if not MARK.search(text):
        raise BadInput(f"{document} has no marks <!-- results --> and <!-- end results -->; put them where the table "
                       "belongs")
    told = short_text(plan, results)
    document.write_text(MARK.sub(lambda found: f"{found[1]}{told}{found[2]}", text), encoding="utf-8")
