"""RESULTS.md from the files in results/: every number of it is computed here, none is typed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from evidence.answers import (
    AHEAD,
    ANCL,
    CONTRASTIVE,
    STANDING,
    best_alpha,
    collapse_lines,
    gaps,
    pair_lines,
    variance_lines,
)
from evidence.plan import HARSH, Plan
from evidence.results import CHOSEN_BY, Results, best_pilot, choose, waiting
from evidence.rows import ACCURACIES, MEASURES, NAMES, Row, alpha_rows, cell_rows, method_rows, seed_spread
from evidence.spread import gap, mean_text
from supancl.evaluate.ranks import rank_encoders
from supancl.studies.collapse import PAPER as TABLE_8
from supancl.studies.paper_numbers import CIFAR, METRIC_IMAGENET, SIX

# linear accuracy on CIFAR-100 after 1000 epochs, CIFAR ResNet-18, as solo-learn's own page of results has it
SOLO_LEARN = {"simclr": 65.78, "supcon": 70.38, "simsiam": 66.04, "byol": 70.46, "moco2": 69.89}
HELD_OUT = 5_000  # training images that pilots are judged on
UNCERTAIN = f"{196 * math.sqrt(0.25 / HELD_OUT):.1f}"  # points, at most: half the 95% interval of an accuracy on them

BEST = """The best alpha inside against the better end. The best was picked by these same numbers, so its interval is
widened to allow for the choice (Bonferroni over the alphas inside). Learning rate and weight decay are those that
pilots chose at alpha .5, which may favour it."""
CURVES = """
Lines join means over seeds; where there are several, each is a dot and the bar is the mean's 95% interval. A ring marks
the best alpha. Each panel has its own scale.
"""


def write_page(plan: Plan, results: Results, figures: Sequence[str]) -> str:
    parts = [head(plan, results), answers(plan, results), main_table(plan, results),
             alpha_table(plan, results, figures), collapse_table(plan, results), pilot_table(plan, results),
             told(plan, results), commands(results)]
    return "\n".join(parts)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows]) + "\n"


def unique(results: Results, key: str) -> str:
    return "; ".join(dict.fromkeys(str(result.get(key)) for result in results.values())) or "none yet"


def head(plan: Plan, results: Results) -> str:
    done = len(plan.steps) - len(waiting(plan, results))
    versions = "; ".join(dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in result["versions"].items()) for result in results.values()))
    return f"""# Results

Made by `python -m evidence page` (`make results`) from the files in results/, one a run; no number here is typed.
{done} of the plan's {len(plan.steps)} runs are there.

- Pretraining on CIFAR-100 (lossless, all 50,000 training images; pilots without the 5,000 that are held out), CIFAR
  ResNet-18, batch 256, bf16.
- Choices (learning rate, weight decay) were made by pilots on the 5,000 held-out images alone. A final run has
  `data.holdout=0`, so its monitor has no images to look at, and the test images are looked at once, when it is judged.
  Seeds are 0, 1, 2, none was chosen; failed and collapsed runs are listed.
- k-NN: k = 20, cosine, temperature 0.1. Linear: the convex probe of `supancl evaluate linear`, its ridge chosen within
  the training images. CIFAR-10 is a JPEG copy; Pets has a short side of 64 px and is judged at 32; GTSRB's episodes
  come from its test set. Few-shot: 5-way, 2000 episodes, 16 queries a class (15 in Omniglot's 5-shot episodes: its
  classes have 20 drawings). S_W/S_T and effective rank: L2-normalised encoder features of the test images.
- "±" is half a 95% t-interval over seeds; a number without it is one seed. Differences: "[low, high]" is a 95%
  interval; "*" says that one side has one seed and the spread of seeds was borrowed from the methods that have several
  (pooled, equal spread assumed). Intervals are about seeds: other test images, other settings or longer training are
  not in them. Each is meant by itself: of twenty one may miss by chance.
- Hardware: {unique(results, "hardware")}. Commits: {unique(results, "commit")}. Versions: {versions or "none yet"}.
"""


def answers(plan: Plan, results: Results) -> str:
    everything = ("in-domain", "crossed", "few-shot")
    sections = [
        ("Does supervision help asymmetric non-contrastive learning?", pair_lines(plan, results, ANCL, everything),
         ANCL),
        ("Does it help contrastive methods when crossed? (The paper says no.)",
         pair_lines(plan, results, CONTRASTIVE, ("crossed", "few-shot", "in-domain")), CONTRASTIVE),
        ("Is the best alpha inside (0, 1)?", [BEST, "", *best_alpha(plan, results)], ()),
        ("Does the supervised term reduce intra-class variance? (The paper's theorems say so.)",
         variance_lines(plan, results), ()),
        ("Does the pool or EMA prevent collapse?", collapse_lines(plan, results), ()),
        ("How do SupSiam and SupBYOL stand against SupCon and cross-entropy?",
         pair_lines(plan, results, STANDING, everything, AHEAD), STANDING),
    ]
    lines = ["## Answers", ""]
    for question, told_lines, pairs in sections:
        lines += [f"### {question}", "", *told_lines, "", *pair_table(plan, results, pairs)]
    return "\n".join(lines)


def pair_table(plan: Plan, results: Results, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The differences themselves, for the pairs that have any."""
    found = {f"{NAMES[ours]} - {NAMES[theirs]}": gaps(plan, results, ours, theirs) for ours, theirs in pairs}
    shown = {name: each for name, each in found.items() if each}
    measures = [measure for measure in ACCURACIES if any(measure in each for each in shown.values())]
    if not measures:
        return []
    rows = [[name, *(each[m].text() if m in each else "-" for m in measures)] for name, each in shown.items()]
    return [table(["difference", *(MEASURES[m][0] for m in measures)], rows)]


def seeds_of(row: Row) -> str:
    return (row.seeds or "none") + f" ({row.failed} failed)" * bool(row.failed)


def cells(row: Row, measures: Sequence[str]) -> list[str]:
    return [mean_text(row.values(measure), MEASURES[measure][1]) for measure in measures]


def main_table(plan: Plan, results: Results) -> str:
    rows = method_rows(plan, results)
    there = {method: row for method, row in rows.items() if row.results}
    measured = {row.name: {m: row.values(m) for m in ACCURACIES if row.values(m)} for row in there.values()}
    ranked = {name: found for name, found in measured.items() if found}  # one without any would leave nothing to rank
    ranks = dict(zip(ranked, rank_encoders(ranked).average_ranks, strict=True)) if ranked else {}
    own, crossed = (dict(zip(SIX, CIFAR[f"cifar100 {name}"], strict=True)) for name in ("cifar100", "cifar10"))
    measures = [m for m in MEASURES if any(row.values(m) for row in there.values())] or list(MEASURES)

    def beside(method: str) -> list[str]:
        return [f"{each[method]:.2f}" if method in each else "-" for each in (own, crossed, SOLO_LEARN)]

    lines = [
        [NAMES[method], seeds_of(row), *cells(row, measures),
         f"{ranks[row.name]:.2f}" if row.name in ranks and ranks[row.name] == ranks[row.name] else "-", *beside(method)]
        for method, row in rows.items()
    ]
    columns = ["method", "seeds", *(MEASURES[m][0] for m in measures), "average rank", "paper: linear",
               "paper: CIFAR-10 linear", "solo-learn: linear"]
    epochs = ", ".join(sorted({str(step.epochs) for step in plan.steps if step.stage == "final"}))
    return f"""## Main table

{epochs} epochs each. The paper's (Table H.1) and solo-learn's numbers are of 1000 epochs; solo-learn's MoCo is v2+. In
the paper's table the SimSiam and BYOL columns look exchanged beside solo-learn's. Average rank over the accuracies that
every method here has.

{table(columns, lines)}"""


def alpha_table(plan: Plan, results: Results, figures: Sequence[str]) -> str:
    rows = alpha_rows(plan, results)
    measures = [m for m in MEASURES if any(row.values(m) for row in rows.values())] or list(MEASURES)
    lines = [
        [row.name, seeds_of(row), mean_text(row.last("ssl"), 4), mean_text(row.last("sup"), 4),
         *cells(row, measures), *(f"{METRIC_IMAGENET[row.name][at]:.2f}" for at in (3, 4, 5))]
        for row in rows.values()
    ]
    columns = ["alpha", "seeds", "l_ssl", "l_sup", *(MEASURES[m][0] for m in measures), "paper: S_W/S_T %",
               "paper: k-NN", "paper: linear"]
    missing = [row.name for row in rows.values() if row.lacking == "missing"]
    note = f"\nNot measured yet: alpha {', '.join(missing)}.\n" if missing else ""
    shown = "".join(f"\n![{'values against alpha' if 'alpha' in name else 'maps of related classes'}]"
                    f"(docs/figures/{name})\n{CURVES if 'alpha' in name else ''}" for name in figures)
    maps = (f"\nThe maps (t-SNE, seed 0) show the test images of {len(plan.picture)} related classes: "
            f"{', '.join(name.replace('_', ' ') for name in plan.picture)}.\n"
            if any("maps" in name for name in figures) else "")
    return f"""## Alpha

SupSiam with the settings that its pilots chose at alpha .5. Losses are means of the last epoch. The paper's columns are
of ImageNet-100 with a ResNet-50 (Table 1; S_W/S_T there is of projector features of the training set), so only their
course can be compared.{two_simsiams(plan, results)}

{table(columns, lines)}{note}{shown}{maps}"""


def two_simsiams(plan: Plan, results: Results) -> str:
    """Where SimSiam's pilots chose otherwise than SupSiam's, alpha 1 is a second SimSiam: what the choice was worth."""
    plain, own = alpha_rows(plan, results)[1.0], method_rows(plan, results)["simsiam"]
    apart = gap(plain.values("linear"), own.values("linear"), seed_spread(plan, results, "linear"))
    if apart is None or plain.results[0]["identity"] == own.results[0]["identity"]:
        return ""
    return f""" Alpha 1 is SimSiam with these settings, the main table's has those that SimSiam's own
pilots chose: linear here - there = {apart.text()}."""


def collapse_table(plan: Plan, results: Results) -> str:
    lines, chosen = [], choose(plan, results, "supsiam")
    for harsh in (False, True):
        decay = f"{HARSH:g}" if harsh else f"{chosen[1]:g}" if chosen else "of the pilots"
        for key, row in cell_rows(plan, results, harsh).items():
            paper = TABLE_8[key]
            verdict = {"missing": "not measured yet", "failed": "the run failed"}.get(
                row.lacking, "yes" if row.collapsed else "no")
            signs = [mean_text(row.last("target_effective_rank"), 1), mean_text(row.last("std"), 3)]
            lines.append([decay, *("yes" if on else "no" for on in key), verdict,
                          *cells(row, ("knn", "linear", "ratio")), *signs, "yes" if paper[0] else "no",
                          f"{paper[1]:.2f}"])
    columns = ["weight decay", "pool", "EMA", "collapse (monitor)", "k-NN", "linear", "S_W/S_T",
               "rank of targets", "std of targets", "paper: collapse", "paper: k-NN"]
    epochs = ", ".join(sorted({str(step.epochs) for step in plan.steps if step.stage == "collapse"}))
    return f"""## Collapse

Table 8's four cells: SupSiam, {epochs} epochs, one seed; pool and momentum branch are changed, nothing else. The
paper states neither alpha (.5 here) nor weight decay nor epochs; the second four cells have a weight decay that SimSiam
does not survive at this learning rate. The intervals of their differences borrow the spread of the longer runs' seeds.

{table(columns, lines)}"""


def pilot_table(plan: Plan, results: Results) -> str:
    lines = []
    for method, grid in plan.pilots.items():
        best = best_pilot(plan, results, method)
        for number, (lr, decay) in enumerate(grid):
            found = results.get(f"pilot-{method}-{number}")
            lines.append([NAMES[method], f"{lr:g}", f"{decay:g}", *pilot_cells(found),
                          chosen_by(plan, results, method) if number == best else ""])
    epochs = ", ".join(sorted({str(step.epochs) for step in plan.steps if step.stage == "pilot"}))
    return f"""## Pilots

{epochs} epochs, seed 0, judged on the {HELD_OUT:,} held-out training images; the highest linear accuracy is chosen, of
equal ones the first. "By" is how far it lies above the next. With one seed, and {HELD_OUT:,} images that leave an
accuracy uncertain by up to {UNCERTAIN} points, settings closer than that are as good as tied; that the best after
{epochs} epochs is the best of longer runs too is assumed.

{table(["method", "lr", "weight decay", "linear, held out", "k-NN, held out", "status", "choice"], lines)}"""


def chosen_by(plan: Plan, results: Results, method: str) -> str:
    """How far the best pilot lies above the next: close ones may have been told apart by chance."""
    found = [results[f"pilot-{method}-{number}"]["values"].get(CHOSEN_BY) for number in range(len(plan.pilots[method]))]
    scores = sorted((float(score) for score in found if score is not None), reverse=True)
    if len(scores) < 2:
        return "chosen, the only one with a score"
    return f"chosen, by {scores[0] - scores[1]:.2f}" if scores[0] > scores[1] else "chosen, the first of equal ones"


def pilot_cells(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["-", "-", "not run yet"]
    values = [f"{found['values'][key]:.2f}" if key in found["values"] else "-" for key in ("linear", "knn")]
    return [*values, "" if found["status"] == "finished" else found["status"]]


def told(plan: Plan, results: Results) -> str:
    """Failed and collapsed runs, what could not be measured, and what is missing."""
    lines = [f"- {name}: {result['status']}{': ' + result['why'] if result['why'] else ''}"
             for name, result in results.items() if result["status"] != "finished"]
    lines += [f"- {name}: `{task}` could not be measured: {why}"
              for name, result in results.items() for task, why in result["not_measured"].items()]
    left = [step.name for step in waiting(plan, results)]
    return f"""## Failed, collapsed and missing

{chr(10).join(lines) or "No run failed or collapsed."}

Missing: {', '.join(left) or 'nothing; the plan is done'}.
"""


def own_speed(result: dict[str, Any]) -> str:
    shared = " (shared)" if result["shared"] else ""
    return f"{result['images_per_second']:,.0f}{shared}" if result["images_per_second"] else "-"


def whole_speed(result: dict[str, Any]) -> str:
    """Starting, compiling, checks and checkpoints included."""
    if result["resumed"] or result["status"] == "failed":
        return "-"
    return f"{result['data']['train'] * result['epochs'] / result['train_seconds']:,.0f}"


def commands(results: Results) -> str:
    """Every run with its command; the judging ones once a stage, they are the same for all of its runs."""
    rows = [[name, str(result["seed"]), str(result["epochs"]), f"{result['train_seconds']:.0f}",
             own_speed(result), whole_speed(result),
             f"{result['judge_seconds']:.0f}", str(result["commit"]), f"`{result['commands'][0]}`"]
            for name, result in results.items()]
    judging: dict[str, list[str]] = {}
    for name, result in results.items():
        if len(result["commands"]) > len(judging.get(result["stage"], ())):
            judging[result["stage"]] = [line.replace(f"runs/{name}", "RUN") for line in result["commands"][1:]]
    listed = "\n".join(f"{stage}:\n\n```\n{chr(10).join(lines)}\n```\n" for stage, lines in judging.items() if lines)
    speeds = [result["images_per_second"] for result in results.values()
              if result["images_per_second"] and not result["shared"]]
    speed = f" Median speed {statistics.median(speeds):,.0f} images a second." if speeds else ""
    return f"""## Every run

From a folder in which data/ holds the unpacked data sets.{speed} Seconds are of the whole command;
images/s is the median of the log's intervals, beside it what the whole command made of it, starting, compiling and
checkpoints included. Of runs in a row that differ in seed, alpha or learning rate alone only the first compiled: the
others took over its captured step. A run may have been judged while the next one trained, which slows both; where the
speed is marked as shared, other runs of the plan or other work were on the GPU for some or all of the time.

{table(["run", "seed", "epochs", "train s", "images/s", "images/s, whole", "judge s", "commit", "command"], rows)}
Judged with:

{listed or 'nothing yet'}"""
