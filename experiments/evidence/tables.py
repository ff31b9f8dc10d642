"""The page's tables: methods, alphas, collapse cells, pilots and all runs, each with what is needed to read it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.evidence.claims import NOTHING, cell_decay
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

# linear accuracy on CIFAR-100 after 1000 epochs, CIFAR ResNet-18, as solo-learn's own page of results has it
SOLO_LEARN = {"simclr": 65.78, "supcon": 70.38, "simsiam": 66.04, "byol": 70.46, "moco2": 69.89}
HELD_OUT = 5_000  # training images that pilots are judged on
CURVES = """
Lines join means over seeds; where there are several, each is a small ring beside and the bar is the mean's 95%
interval, long where there are two. A large ring marks the highest mean. Each panel has its own scale.
"""
STAGES = {"pilot": "pilots", "final": "main table", "alpha": "alpha sweep", "collapse": "collapse cells"}
COLUMNS = ("run", "seed", "epochs", "lr", "weight decay", "train s", "images/s", "images/s, whole", "judge s", "commit")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return to_markdown(Table(columns, rows))


def uncertain(images: int) -> str:
    """Points: half the 95% interval of an accuracy on so many images, where it is widest."""
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
    return [mean_text(row.values(measure), MEASURES[measure][1]) for measure in measures]


def average_ranks(rows: Iterable[Row], accuracies: Iterable[str]) -> dict[str, str]:
    """Row name -> average rank over the accuracies that every row has; a row without any has none."""
    measured = {row.name: {m: row.values(m) for m in accuracies if row.values(m)} for row in rows}
    ranked = {name: found for name, found in measured.items() if found}  # one without any would leave nothing to rank
    ranks = dict(zip(ranked, rank_encoders(ranked).average_ranks, strict=True)) if ranked else {}
    return {name: f"{rank:.2f}" for name, rank in ranks.items() if not math.isnan(rank)}


def stated_alphas(plan: Plan) -> str:
    """The alphas of the recipes, as a sentence has them."""
    alphas = {method: recipe(plan.recipe_name(method)).fields()["loss.alpha"][0] for method in ("supsiam", "supbyol")}
    return " and ".join(f"{alpha:g} in {NAMES[method]}" for method, alpha in alphas.items())


def unique(known: Evidence, key: str) -> str:
    return "; ".join(dict.fromkeys(str(result.get(key)) for result in known.results.values())) or "none yet"


def main_table(known: Evidence) -> str:
    rows = known.methods
    there = {method: row for method, row in rows.items() if row.results}
    ranks, paper = average_ranks(there.values(), ACCURACIES), paper_columns()
    measures = [m for m in MEASURES if any(row.values(m) for row in there.values())] or list(MEASURES)

    def beside(method: str) -> list[str]:
        return [f"{each[method]:.2f}" if method in each else "-" for each in (*paper.values(), SOLO_LEARN)]

    lines = [
        [TITLES[method], seeds_of(row), *cells(row, measures), ranks.get(row.name, "-"), *beside(method)]
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
    epochs = ", ".join(sorted({str(step.epochs) for step in known.plan.steps if step.stage == "final"}))
    return f"""## Main table

{epochs} epochs each. The paper's (Table H.1) and solo-learn's numbers are of 1000 epochs; solo-learn's MoCo is v2+. In
the paper's table the SimSiam and BYOL columns look exchanged beside solo-learn's. Average rank over the
accuracies that every method here has, 1 being the best; it has no interval.

{table(columns, lines)}"""


def alpha_table(known: Evidence, figures: Sequence[str]) -> str:
    rows = known.alphas
    measures = [m for m in MEASURES if any(row.values(m) for row in rows.values())] or list(MEASURES)
    lines = [
        [
            row.name,
            seeds_of(row),
            mean_text(row.last("ssl"), 4),
            mean_text(row.last("sup"), 4),
            *cells(row, measures),
            *(f"{METRIC_IMAGENET[row.name][at]:.2f}" for at in (3, 4, 5)),
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
    missing = [row.name for row in rows.values() if row.lacking == "missing"]
    note = f"\nNot measured yet: alpha {', '.join(missing)}.\n" if missing else ""
    shown = "".join(
        f"\n![{'values against alpha' if 'alpha' in name else 'maps of related classes'}]"
        f"(docs/figures/{name})\n{CURVES if 'alpha' in name else ''}"
        for name in figures
    )
    maps = (
        f"\nThe maps (t-SNE, seed 0) show the test images of {len(known.plan.picture)} related classes: "
        f"{', '.join(name.replace('_', ' ') for name in known.plan.picture)}.\n"
        if any("maps" in name for name in figures)
        else ""
    )
    return f"""## Alpha

SupSiam with the settings that its pilots chose at alpha .5. Losses are means of the last epoch. The paper's columns are
of ImageNet-100 with a ResNet-50 (Table 1; S_W/S_T there is of projector features of the training set), so only their
course can be compared.{two_simsiams(known)}{by_commit(rows)}

{table(columns, lines)}{note}{shown}{maps}"""


def by_commit(rows: Mapping[float, Row]) -> str:
    """Which seeds of which alpha a commit made, where there are several."""
    made: dict[str, dict[str, list[str]]] = {}
    for row in rows.values():
        for one in row.results:
            made.setdefault(str(one["commit"]), {}).setdefault(row.name, []).append(str(one["seed"]))
    if len(made) < 2:
        return ""
    listed = "; ".join(
        f"{commit} alpha " + ", ".join(f"{alpha} (seed {', '.join(seeds)})" for alpha, seeds in each.items())
        for commit, each in made.items()
    )
    return f"""
By commit: {listed}. What a commit changes would look like an effect of alpha."""


def second(known: Evidence) -> Row | None:
    """Alpha 1, where SimSiam's pilots chose otherwise than SupSiam's, so that it is a second SimSiam."""
    plain, own = known.alphas[1.0], known.methods["simsiam"]
    if not plain.results or not own.results or plain.results[0]["identity"] == own.results[0]["identity"]:
        return None
    return plain


def two_simsiams(known: Evidence) -> str:
    """What the choice of SimSiam's pilots was worth."""
    plain, own = second(known), known.methods["simsiam"]
    if plain is None:
        return ""
    found = known.row_gaps(plain, own)
    above = sum(one.mean > 0 for one in found.values())
    linear = f"; linear here - there = {found['linear'].text()}" if "linear" in found else ""
    higher = [MEASURES[measure][0] for measure, one in found.items() if one.verdict == "helps"]
    apart = f"{len(higher)} ({', '.join(higher)})" if higher else "none"
    return f""" Alpha 1 is SimSiam with these settings, the main table's has those that SimSiam's own
pilots chose: here its mean is higher on {above} of {len(found)} accuracies, told apart on {apart}{linear}."""


def collapse_table(known: Evidence) -> str:
    lines = []
    for harsh in (False, True):
        decay = cell_decay(known, harsh)
        for key, row in known.cells(harsh).items():
            paper = COLLAPSE[key]
            verdict = {"missing": "not measured yet", "failed": "the run failed"}.get(
                row.lacking, "yes" if row.collapsed else "no"
            )
            signs = [
                mean_text(row.last(term), digits)
                for term, digits in (("target_effective_rank", 1), ("std", 3), ("loss", 3))
            ]
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
    epochs = ", ".join(sorted({str(step.epochs) for step in known.plan.steps if step.stage == "collapse"}))
    return f"""## Collapse

Table 8's four cells: SupSiam, {epochs} epochs, one seed; pool and momentum branch are changed, nothing else. The
paper states neither alpha (.5 here) nor weight decay nor epochs; the second four cells have a weight decay at
which SimSiam collapsed in an earlier prototype, and were added to the plan after the first four had come out. The
intervals of the differences borrow the spread of the longer runs' seeds; where a run collapsed, whose seeds would not
vary as those do, they are over test images alone. A run counts as collapsed by the
[monitor](docs/monitor.md)'s verdict, or where k-NN is below {NOTHING:g}. The loss is the last epoch's mean. The
projector ends in batch norm without a scale, so features that are the same for all images become targets of length 0,
and the loss 0.

{table(columns, lines)}"""


def ratio_cell(row: Row) -> str:
    """S_W/S_T, where there is an S_T."""
    return mean_text(row.values("ratio"), 3) if min(row.values("total"), default=1.0) > 0 else "-"


def pilot_table(known: Evidence) -> str:
    lines = []
    for method, grid in known.plan.pilots.items():
        best = best_pilot(known.plan, known.results, method)
        for number, (lr, decay) in enumerate(grid):
            found = known.results.get(f"pilot-{method}-{number}")
            lines.append(
                [
                    TITLES[method],
                    f"{lr:g}",
                    f"{decay:g}",
                    *pilot_cells(found),
                    chosen_by(known, method) if number == best else "",
                ]
            )
    epochs = ", ".join(sorted({str(step.epochs) for step in known.plan.steps if step.stage == "pilot"}))
    return f"""## Pilots

{epochs} epochs, seed 0, judged on the {HELD_OUT:,} held-out training images; the highest linear accuracy is chosen, of
equal ones the first. "By" is how far it lies above the next. With one seed, and {HELD_OUT:,} images that leave an
accuracy uncertain by up to {uncertain(HELD_OUT)} points, settings closer than that are as good as tied
{tied(known)}; that the best after {epochs} epochs is the best of longer runs too is assumed (for SimSiam see
[Alpha](#alpha)). Three settings span little: a better one may lie beyond them.

{table(["method", "lr", "weight decay", "linear, held out", "k-NN, held out", "status", "choice"], lines)}"""


def tied(known: Evidence) -> str:
    """In how many methods the choice is closer than the images can tell."""
    chosen = [method for method in known.plan.pilots if best_pilot(known.plan, known.results, method) is not None]
    margins = [margin for method in chosen if (margin := margin_of(known, method)) is not None]
    near = sum(margin < float(uncertain(HELD_OUT)) for margin in margins)
    return f"(so in {near} of {len(margins)} methods)" if margins else "(of none it is known yet)"


def margin_of(known: Evidence, method: str) -> float | None:
    """How far the best pilot lies above the next; None of one alone."""
    names = [f"pilot-{method}-{number}" for number in range(len(known.plan.pilots[method]))]
    found = [known.results[name]["values"].get(CHOSEN_BY) for name in names]
    scores = sorted((float(score) for score in found if score is not None), reverse=True)
    return scores[0] - scores[1] if len(scores) > 1 else None


def chosen_by(known: Evidence, method: str) -> str:
    """How far the best pilot lies above the next: close ones may have been told apart by chance."""
    margin = margin_of(known, method)
    if margin is None:
        return "chosen, the only one with a score"
    return f"chosen, by {margin:.2f}" if margin > 0 else "chosen, the first of equal ones"


def pilot_cells(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["-", "-", "not run yet"]
    values = [f"{found['values'][key]:.2f}" if key in found["values"] else "-" for key in ("linear", "knn")]
    return [*values, "" if found["status"] == "finished" else found["status"]]


# --- all runs ---------------------------------------------------------------------------------------------------------


def problem_lines(known: Evidence) -> str:
    """Failed and collapsed runs, and what could not be measured."""
    lines = [
        f"- {name}: {result['status']}{': ' + result['why'] if result['why'] else ''}"
        for name, result in known.results.items()
        if result["status"] != "finished"
    ]
    lines += [
        f"- {name}: `{task}` could not be measured: {why}"
        for name, result in known.results.items()
        for task, why in result["not_measured"].items()
    ]
    return "\n".join(lines) or "No run failed or collapsed."


def not_finished(known: Evidence) -> str:
    """What failed, collapsed, could not be measured, or is missing."""
    left = waiting(known.plan, known.results)
    listed = {what: [step.name for step in left if step.stage == stage] for stage, what in STAGES.items()}
    missing = [f"- {what}: {', '.join(names)}" for what, names in listed.items() if names]
    return f"""## Failed, collapsed and missing

{problem_lines(known)}

Missing: {chr(10).join([f"{plural(len(left), 'run')}.", "", *missing]) if left else "nothing; the plan is done."}
"""


def own_speed(result: dict[str, Any]) -> str:
    shared = " (shared)" if result["shared"] else ""
    return f"{result['images_per_second']:,.0f}{shared}" if result["images_per_second"] else "-"


def whole_speed(result: dict[str, Any]) -> str:
    """Starting, compiling, checks and checkpoints included."""
    if result["resumed"] or result["status"] == "failed":
        return "-"
    return f"{result['data']['train'] * result['epochs'] / result['train_seconds']:,.0f}"


def run_row(name: str, result: dict[str, Any]) -> list[str]:
    settings = (f"{result['settings'][f'optimizer.{key}']:g}" for key in ("lr", "weight_decay"))
    return [
        name,
        str(result["seed"]),
        str(result["epochs"]),
        *settings,
        f"{result['train_seconds']:.0f}",
        own_speed(result),
        whole_speed(result),
        f"{result['judge_seconds']:.0f}",
        str(result["commit"]),
    ]


def every_run(known: Evidence) -> str:
    """The judging commands once a stage: they are the same for all of its runs."""
    judging: dict[str, list[str]] = {}
    for name, result in known.results.items():
        if len(result["commands"]) > len(judging.get(result["stage"], ())):
            judging[result["stage"]] = [line.replace(f"runs/{name}", "RUN") for line in result["commands"][1:]]
    same: dict[tuple[str, ...], list[str]] = {}
    for stage, lines in judging.items():
        same.setdefault(tuple(lines), []).append(STAGES.get(stage, stage))
    listed = "\n".join(
        f"{' and '.join(stages).capitalize()}:\n\n```\n{chr(10).join(lines)}\n```\n"
        for lines, stages in same.items()
        if lines
    )
    speeds = [
        result["images_per_second"]
        for result in known.results.values()
        if result["images_per_second"] and not result["shared"]
    ]
    speed = f"Median speed {statistics.median(speeds):,.0f} images a second. " if speeds else ""
    trained = "\n".join(result["commands"][0] for result in known.results.values())
    return f"""## Every run

{speed}Seconds are of the whole command; images/s is the median of the log's intervals, beside it what the whole command
made of it, starting, compiling and checkpoints included. Of runs in a row that differ in seed, alpha or learning rate
alone only the first compiled: the others took over its captured step. A run may have been judged while the next one
trained, which slows both; where the speed is marked as shared, other runs of the plan or other work were on the GPU for
some or all of the time. They are no benchmark: [performance](docs/performance.md) has one.

{table(COLUMNS, [run_row(name, result) for name, result in known.results.items()])}
Trained with, a line a run, in a folder in which data/ holds the unpacked data sets:

```
{trained or "nothing yet"}
```

Judged with, RUN standing for the folder that `--out` names:

{listed or "nothing yet"}"""
