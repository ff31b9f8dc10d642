"""The page's tables: methods, alphas, collapse cells, pilots and all runs, with their explanations."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from experiments.evidence.claims import MIN_KNN, cell_decay
from experiments.evidence.plan import Plan
from experiments.evidence.results import (
    ACCURACIES,
    CHOSEN_BY,
    MEASURES,
    NAMES,
    TITLES,
    Evidence,
    Row,
    best_pilot,
    mean_text,
    waiting,
)
from supancl.errors import plural
from supancl.paper.numbers import CIFAR, COLLAPSE, METRIC_IMAGENET, SIX
from supancl.probes.ranking import rank_encoders
from supancl.recipes import recipe
from supancl.reports.tables import Table, to_markdown
from supancl.stats import accuracy_half_width

# linear accuracy on CIFAR-100 after 1000 epochs, CIFAR ResNet-18, from solo-learn's page of results
SOLO_LEARN = {"simclr": 65.78, "supcon": 70.38, "simsiam": 66.04, "byol": 70.46, "moco2": 69.89}
HELD_OUT = 5_000  # training images that pilots are evaluated on
CURVES = """
Lines join means over seeds. Small rings are single seeds, the bar is the mean's 95% interval (long with two seeds), a
large ring marks the highest mean. Each panel has its own scale.
"""
CONTRASTIVE_HEADS = "The projectors of SimCLR, SupCon, MoCo-v2 and SupMoCo lack the batch norm of the authors' code."
RUNS = "experiments/results/runs.csv"  # of `run_table`, seen from RESULTS.md
STAGES = {"pilot": "pilots", "final": "final runs", "alpha": "alpha sweep", "collapse": "collapse cells"}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return to_markdown(Table(columns, rows))


def slug(title: str) -> str:
    """The anchor of a heading.

    >>> slug("Is the best alpha inside (0, 1)?")
    'is-the-best-alpha-inside-0-1'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def image_uncertainty(images: int) -> str:
    """Points: half the widest 95% interval of an accuracy on so many images."""
    return f"{accuracy_half_width(images, 50.0):.1f}"


def paper_columns() -> dict[str, dict[str, float]]:
    """Table H.1 after pretraining on CIFAR-100: measure -> method -> accuracy."""
    return {
        measure: dict(zip(SIX, CIFAR[f"cifar100 {name}"], strict=True))
        for measure, name in (("linear", "cifar100"), ("crossed", "cifar10"))
    }


def seeds_of(row: Row) -> str:
    return (row.seeds or "none") + f" ({row.failed} failed)" * bool(row.failed)


def cells(row: Row, measures: Sequence[str]) -> list[str]:
    return [row.text(measure, MEASURES[measure][1]) for measure in measures]


def average_ranks(rows: Iterable[Row], accuracies: Iterable[str]) -> dict[str, str]:
    """Row name -> average rank of the rows that have the most accuracies, over those that all of these have.

    A row that was measured in part is left out: with it, few accuracies would be left to rank.
    """
    measured = {row.name: {m: row.values(m) for m in accuracies if row.values(m)} for row in rows}
    most = max(map(len, measured.values()), default=0)
    ranked = {name: values for name, values in measured.items() if len(values) == most > 0}
    ranks = dict(zip(ranked, rank_encoders(ranked).average_ranks, strict=True)) if ranked else {}
    return {name: f"{rank:.2f}" for name, rank in ranks.items() if not math.isnan(rank)}


def stated_alphas(plan: Plan) -> str:
    """The alphas of the recipes, in words."""
    by_alpha: dict[float, list[str]] = {}
    for method in ("supsiam", "supbyol"):
        by_alpha.setdefault(recipe(plan.recipe_name(method)).fields()["loss.alpha"][0], []).append(NAMES[method])
    return " and ".join(f"{alpha:g} in {' and '.join(names)}" for alpha, names in by_alpha.items())


def unique(evidence: Evidence, key: str) -> str:
    return "; ".join(dict.fromkeys(str(result.get(key)) for result in evidence.results.values())) or "none yet"


def main_table(evidence: Evidence) -> str:
    rows = evidence.methods
    measured = {method: row for method, row in rows.items() if row.results}
    ranks, paper = average_ranks(measured.values(), ACCURACIES), paper_columns()
    measures = [m for m in MEASURES if any(row.values(m) for row in measured.values())] or list(MEASURES)

    def reference_cells(method: str) -> list[str]:
        return [f"{source[method]:.2f}" if method in source else "-" for source in (*paper.values(), SOLO_LEARN)]

    lines = [
        [TITLES[method], seeds_of(row), *cells(row, measures), ranks.get(row.name, "-"), *reference_cells(method)]
        for method, row in rows.items()
    ]
    columns = [
        "method",
        "seeds",
        *(MEASURES[m][0] for m in measures),
        "average rank",
        "paper: linear",
        "paper: CIFAR-10 linear",
        "solo-learn: linear",
    ]
    epochs = ", ".join(sorted({str(step.epochs) for step in evidence.plan.steps if step.stage == "final"}))
    return f"""## Main table

{epochs} epochs each. The paper (Table H.1) and solo-learn train for 1000 epochs; solo-learn's MoCo is v2+.
{CONTRASTIVE_HEADS}
The average rank is over the accuracies that every method here has; 1 is best, and it has no interval.

{table(columns, lines)}"""


def alpha_table(evidence: Evidence, figures: Sequence[str]) -> str:
    rows = evidence.alphas
    measures = [m for m in MEASURES if any(row.values(m) for row in rows.values())] or list(MEASURES)
    lines = [
        [
            row.name,
            seeds_of(row),
            row.text("ssl", 4),
            row.text("sup", 4),
            *cells(row, measures),
            *(f"{METRIC_IMAGENET[row.name][column]:.2f}" for column in (3, 4, 5)),
        ]
        for row in rows.values()
    ]
    columns = [
        "alpha",
        "seeds",
        "l_ssl",
        "l_sup",
        *(MEASURES[m][0] for m in measures),
        "paper: S_W/S_T %",
        "paper: k-NN",
        "paper: linear",
    ]
    missing = [row.name for row in rows.values() if row.missing_reason == "missing"]
    note = f"\nNot measured yet: alpha {', '.join(missing)}.\n" if missing else ""
    pictures = "".join(
        f"\n![{'values against alpha' if 'alpha' in name else 'maps of related classes'}]"
        f"(docs/figures/{name})\n{CURVES if 'alpha' in name else ''}"
        for name in figures
    )
    maps = (
        f"\nThe maps (t-SNE, seed 0) show the test images of {len(evidence.plan.picture)} related classes: "
        f"{', '.join(name.replace('_', ' ') for name in evidence.plan.picture)}.\n"
        if any("maps" in name for name in figures)
        else ""
    )
    return f"""## Alpha

SupSiam with the settings that its pilots chose at alpha .5. Losses are means of the last epoch. The paper's columns are
for ImageNet-100 with a ResNet-50 (Table 1; its S_W/S_T is of projector features of the training set), so only the trend
can be compared.{simsiam_note(evidence)}{by_commit(rows)}

{table(columns, lines)}{note}{pictures}{maps}"""


def by_commit(rows: Mapping[float, Row]) -> str:
    """Which commit made which seeds of an alpha; empty if there is only one commit."""
    seeds_by_commit: dict[str, dict[str, list[str]]] = {}
    for row in rows.values():
        for result in row.results:
            seeds_by_commit.setdefault(str(result["commit"]), {}).setdefault(row.name, []).append(str(result["seed"]))
    if len(seeds_by_commit) < 2:
        return ""
    listed = "; ".join(
        f"{commit} alpha " + ", ".join(f"{alpha} (seed {', '.join(seeds)})" for alpha, seeds in by_alpha.items())
        for commit, by_alpha in seeds_by_commit.items()
    )
    return f"""
By commit: {listed}. A change between commits would look like an effect of alpha;
the [log](docs/log.md) suspects one, smaller than any verdict."""


def separate_simsiam(evidence: Evidence) -> Row | None:
    """The row of alpha 1, if it is a second SimSiam: its pilots chose other settings than SupSiam's."""
    at_one, simsiam = evidence.alphas[1.0], evidence.methods["simsiam"]
    if not at_one.results or not simsiam.results or at_one.results[0]["identity"] == simsiam.results[0]["identity"]:
        return None
    return at_one


def simsiam_note(evidence: Evidence) -> str:
    """How SimSiam with SupSiam's settings compares with SimSiam at the settings of its pilots."""
    at_one, simsiam = separate_simsiam(evidence), evidence.methods["simsiam"]
    if at_one is None:
        return ""
    gaps = evidence.row_gaps(at_one, simsiam)
    above = sum(difference.mean > 0 for difference in gaps.values())
    linear = f"; linear here - there = {gaps['linear'].text()}" if "linear" in gaps else ""
    higher = [MEASURES[measure][0] for measure, difference in gaps.items() if difference.verdict == "helps"]
    clear_text = f"{len(higher)} ({', '.join(higher)})" if higher else "none"
    return f""" Alpha 1 is SimSiam with these settings; the main table has the settings of SimSiam's
pilots. Here its mean is higher in {above} of {len(gaps)} accuracies, clearly in {clear_text}{linear}."""


def collapse_table(evidence: Evidence) -> str:
    lines = []
    for harsh in (False, True):
        decay = cell_decay(evidence, harsh)
        for key, row in evidence.cells(harsh).items():
            paper = COLLAPSE[key]
            verdict = {"missing": "not measured yet", "failed": "the run failed"}.get(
                row.missing_reason, "yes" if row.collapsed else "no"
            )
            signs = [row.text(term, digits) for term, digits in (("target_effective_rank", 1), ("std", 3), ("loss", 3))]
            lines.append(
                [
                    decay,
                    *("yes" if on else "no" for on in key),
                    verdict,
                    *cells(row, ("knn", "linear")),
                    ratio_cell(row),
                    *signs,
                    "yes" if paper[0] else "no",
                    f"{paper[1]:.2f}",
                ]
            )
    columns = [
        "weight decay", "pool", "EMA", "collapse (monitor)", "k-NN", "linear", "S_W/S_T",
        "rank of targets", "std of targets", "loss", "paper: collapse", "paper: k-NN",
    ]  # fmt: skip
    epochs = ", ".join(sorted({str(step.epochs) for step in evidence.plan.steps if step.stage == "collapse"}))
    return f"""## Collapse

Table 8's four cells: SupSiam, {epochs} epochs, one seed; only pool and momentum branch change. The paper states neither
alpha (.5 here) nor weight decay nor epochs. The second four cells have a weight decay at which SimSiam collapsed in an
earlier prototype; they were added to the plan after the first four were known. The intervals of the differences borrow
the deviation of the longer runs' seeds; next to a collapsed run they cover test images only. A run counts as collapsed
by the [monitor](docs/monitor.md)'s verdict, or if k-NN is below {MIN_KNN:g}. The loss is the last epoch's mean. The
projector ends in batch norm without a scale, so equal features for all images become targets of length 0, and the loss
becomes 0.

{table(columns, lines)}"""


def ratio_cell(row: Row) -> str:
    """S_W/S_T, if S_T is not zero."""
    return mean_text(row.values("ratio"), 3) if min(row.values("total"), default=1.0) > 0 else "-"


def pilot_table(evidence: Evidence) -> str:
    lines = []
    for method, grid in evidence.plan.pilots.items():
        best = best_pilot(evidence.plan, evidence.results, method)
        for number, (lr, decay, _) in enumerate(grid):
            result = evidence.results.get(f"pilot-{method}-{number}")
            lines.append(
                [
                    TITLES[method],
                    f"{lr:g}",
                    f"{decay:g}",
                    *pilot_cells(result),
                    chosen_by(evidence, method) if number == best else "",
                ]
            )
    epochs = ", ".join(sorted({str(step.epochs) for step in evidence.plan.steps if step.stage == "pilot"}))
    return f"""## Pilots

{epochs} epochs, seed 0, evaluated on the {HELD_OUT:,} held-out training images. The highest linear accuracy is chosen,
the first one if equal; "by" is its distance to the next. With one seed, and {HELD_OUT:,} images that leave an accuracy
uncertain by up to {image_uncertainty(HELD_OUT)} points, closer settings are as good as tied {tie_note(evidence)}. We
assume that the best after {epochs} epochs is also the best of longer runs (for SimSiam see [Alpha](#alpha)). Three
settings are few: a better one may lie outside.

{table(["method", "lr", "weight decay", "linear, held out", "k-NN, held out", "status", "choice"], lines)}"""


def tie_note(evidence: Evidence) -> str:
    """In how many methods the choice is closer than the uncertainty of the held-out images."""
    methods = [
        method for method in evidence.plan.pilots if best_pilot(evidence.plan, evidence.results, method) is not None
    ]
    margins = [margin for method in methods if (margin := margin_of(evidence, method)) is not None]
    close = sum(margin < float(image_uncertainty(HELD_OUT)) for margin in margins)
    return f"({close} of {len(margins)} methods)" if margins else "(not known yet)"


def margin_of(evidence: Evidence, method: str) -> float | None:
    """Distance from the best pilot to the next; None if only one has a score."""
    names = [f"pilot-{method}-{number}" for number in range(len(evidence.plan.pilots[method]))]
    values = [evidence.results[name]["values"].get(CHOSEN_BY) for name in names]
    scores = sorted((float(score) for score in values if score is not None), reverse=True)
    return scores[0] - scores[1] if len(scores) > 1 else None


def chosen_by(evidence: Evidence, method: str) -> str:
    """Distance from the best pilot to the next, in words."""
    margin = margin_of(evidence, method)
    if margin is None:
        return "chosen, the only one with a score"
    return f"chosen, by {margin:.2f}" if margin > 0 else "chosen, the first of equal ones"


def pilot_cells(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["-", "-", "not run yet"]
    values = [f"{result['values'][key]:.2f}" if key in result["values"] else "-" for key in ("linear", "knn")]
    return [*values, "" if result["status"] == "finished" else result["status"]]


# --- all runs ---------------------------------------------------------------------------------------------------------


def problem_lines(evidence: Evidence, alarmed: Collection[str] = ()) -> str:
    """Failed and collapsed runs, and what could not be measured; those in `alarmed` trained on (‡)."""
    lines = [
        f"- {name}: {'alarm of the monitor ‡' if name in alarmed else result['status']}"
        f"{': ' + result['why'] if result['why'] else ''}"
        for name, result in evidence.results.items()
        if result["status"] != "finished"
    ]
    lines += [
        f"- {name}: `{task}` could not be measured: {why}"
        for name, result in evidence.results.items()
        for task, why in result["not_measured"].items()
    ]
    return "\n".join(lines) or "No run failed or collapsed."


def not_finished(evidence: Evidence) -> str:
    """What failed, collapsed, could not be measured, or is missing."""
    unfinished = waiting(evidence.plan, evidence.results)
    listed = {title: [step.name for step in unfinished if step.stage == stage] for stage, title in STAGES.items()}
    missing = [f"- {title}: {', '.join(names)}" for title, names in listed.items() if names]
    count = f"{plural(len(unfinished), 'run')}."
    text = "\n".join([count, "", *missing]) if unfinished else "nothing; the plan is done."
    return f"""## Failed, collapsed and missing

{problem_lines(evidence)}

Missing: {text}
"""


def every_run(evidence: Evidence) -> str:
    """Where all runs are listed, and how they were evaluated."""
    return f"""## Every run

[experiments/results/runs.csv]({RUNS}) has one row for each run of this page, the later parts included: its settings,
seconds, speed, commit, all its values, and the command that trained it (in a folder with the unpacked data sets in
data/). Seconds are of the whole command, `images_per_second` is the median of the log. Two or three runs shared the GPU
where `shared` is true, so these are no benchmark: see [performance](docs/performance.md).

Evaluated with (RUN is the folder of `--out`):

{evaluation_commands(evidence)}"""


def evaluation_commands(evidence: Evidence) -> str:
    """The commands that evaluated the runs of each stage; RUN stands for the run folder."""
    by_stage: dict[str, list[str]] = {}
    for name, result in evidence.results.items():
        if len(result["commands"]) > len(by_stage.get(result["stage"], ())):
            by_stage[result["stage"]] = [line.replace(f"runs/{name}", "RUN") for line in result["commands"][1:]]
    same: dict[tuple[str, ...], list[str]] = {}
    for stage, lines in by_stage.items():
        same.setdefault(tuple(lines), []).append(STAGES.get(stage, stage))
    blocks = [
        f"{' and '.join(stages).capitalize()}:\n\n```\n{chr(10).join(lines)}\n```\n"
        for lines, stages in same.items()
        if lines
    ]
    return "\n".join(blocks) or "nothing yet\n"
