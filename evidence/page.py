"""RESULTS.md from the files in results/: every number of it is computed here, none is typed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evidence.answers import (
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
    best_alpha,
    cell_decay,
    collapse_lines,
    gaps,
    pair_lines,
    pair_title,
    row_gaps,
    variance_lines,
)
from evidence.doubts import doubt_lines
from evidence.listing import commands, told
from evidence.markdown import table
from evidence.plan import Plan
from evidence.results import CHOSEN_BY, Results, best_pilot, waiting
from evidence.rows import ACCURACIES, KINDS, MEASURES, NAMES, Row, alpha_rows, cell_rows, method_rows
from evidence.spread import mean_text
from evidence.summary import certainty, counted, summary_lines, summary_table, widened
from supancl.evaluate.ranks import rank_encoders
from supancl.recipes import recipe
from supancl.studies.collapse import PAPER as TABLE_8
from supancl.studies.paper_numbers import CIFAR, METRIC_IMAGENET, SIX

# linear accuracy on CIFAR-100 after 1000 epochs, CIFAR ResNet-18, as solo-learn's own page of results has it
SOLO_LEARN = {"simclr": 65.78, "supcon": 70.38, "simsiam": 66.04, "byol": 70.46, "moco2": 69.89}
HELD_OUT = 5_000  # training images that pilots are judged on
TESTED = 10_000  # test images of CIFAR-100, and of CIFAR-10
PETS_TESTED = 3_669

BEST = """The best alpha inside against the better end. The best was picked by these same numbers, so its interval is
widened to allow for the choice (Bonferroni over the alphas inside). Learning rate and weight decay are those that
pilots chose at alpha .5, which may favour it."""
KINDS_TOLD = " ".join(f"{kind.capitalize()}: {', '.join(MEASURES[one][0] for one in measures)}."
                      for kind, measures in KINDS.items())
COMMITS = """Runs were judged by the code of
  their commit; between commits the solver of the probes and the few-shot classifiers' stop were mended. One encoder
  judged before and after had the same Pets accuracy and GTSRB episodes ([log](docs/log.md)); nothing else was judged
  twice."""
FOREST = """
Each dot is a difference in points with its 95% interval; a hollow one borrows its spread. Right of the line the first
method is better. Each panel has its own scale.
"""
CURVES = """
Lines join means over seeds; where there are several, each is a small ring beside and the bar is the mean's 95%
interval. A large ring marks the best alpha. Each panel has its own scale.
"""


def uncertain(images: int) -> str:
    """Points: half the 95% interval of an accuracy on so many images, where it is widest."""
    return f"{196 * math.sqrt(0.25 / images):.1f}"


def write_page(plan: Plan, results: Results, figures: Sequence[str]) -> str:
    of_alpha = [name for name in figures if "differences" not in name]
    parts = [head(plan, results, figures), conditions(results), answers(plan, results), main_table(plan, results),
             alpha_table(plan, results, of_alpha), collapse_table(plan, results), pilot_table(plan, results),
             told(plan, results), commands(results)]
    return "\n".join(parts)


def unique(results: Results, key: str) -> str:
    return "; ".join(dict.fromkeys(str(result.get(key)) for result in results.values())) or "none yet"


def head(plan: Plan, results: Results, figures: Sequence[str]) -> str:
    done = len(plan.steps) - len(waiting(plan, results))
    shown = "".join(f"\n![differences with intervals](docs/figures/{name})\n{FOREST}" for name in figures
                    if "differences" in name)
    return f"""# Results

Made by `python -m evidence page` (`make results`) from the files in results/, one a run; no number here is typed, and
every verdict follows from the numbers by a rule. {done} of the plan's {len(plan.steps)} runs are there.

## In short

{summary_table(plan, results)}
{chr(10).join(summary_lines(plan, results))}

{certainty(plan, results)}
{KINDS_TOLD} "Cannot be told apart" is not "equal".
{shown}"""


def conditions(results: Results) -> str:
    versions = "; ".join(dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in result["versions"].items()) for result in results.values()))
    spans = [value for result in results.values() for key, value in result["values"].items() if "_interval" in key]
    episodes = f", 2000 episodes by up to {max(spans):.1f}" if spans else ""
    several = f" {COMMITS}" * (len({result.get("commit") for result in results.values()}) > 1)
    alphas = " and ".join(f"{recipe(f'cifar100.{method}').fields()['loss.alpha'][0]:g} in {NAMES[method]}"
                          for method in ("supsiam", "supbyol"))
    return f"""## How it was measured

- Pretraining on CIFAR-100 (lossless, all 50,000 training images; pilots without the 5,000 that are held out), CIFAR
  ResNet-18, batch 256, bf16, the same augmentations for every method.
- Alpha is {alphas}, as App. H has it; pilots did not look for a better one.
- Choices (learning rate, weight decay) were made by pilots on the 5,000 held-out images alone, between settings that
  an earlier prototype suggested and that are not the same for all methods. They are in the commands below; the recipes
  keep App. H's rates ([deviations](docs/deviations.md)). A final run has
  `data.holdout=0`, so its monitor has no images to look at, and the test images are looked at once, when it is judged.
  Seeds are 0, 1, 2, none was chosen; failed and collapsed runs are listed.
- k-NN: k = 20, cosine, temperature 0.1. Linear: the convex probe of `supancl evaluate linear`, its ridge chosen within
  the training images; an encoder that was trained with their labels finds these easier than the test's. Cross-entropy's
  encoder is judged as the others are, without the classifier it was trained with. CIFAR-10 is a JPEG copy; Pets has a
  short side of 64 px and is judged at 32; GTSRB's episodes come from its test set. Few-shot: 5-way, 2000 episodes, the
  same ones for all, 16 queries a class (15 in Omniglot's 5-shot episodes: its classes have 20 drawings). S_W/S_T and
  effective rank: L2-normalised encoder features of the test images.
- "±" is half a 95% t-interval over seeds; a number without it is one seed. Differences: "[low, high]" is a 95%
  interval; "*" says that one side has one seed and the spread of seeds was borrowed from the methods that have several
  (pooled). That a method with one seed varies as much as those is an assumption, and so is, without "*", that the two
  methods vary alike: see [what the verdicts hang on](#what-the-verdicts-hang-on).
- Intervals are about seeds: other test images, other settings or longer training are not in them. {TESTED:,} test
  images alone leave an accuracy uncertain by up to {uncertain(TESTED)} points, Pets' {PETS_TESTED:,} by up to
  {uncertain(PETS_TESTED)}{episodes}; a difference on the same images by less. Each interval is meant by
  itself: of twenty one may miss by chance. Bold: also with an interval that allows for all differences between methods
  (not for the lines on alpha, variance and collapse), 0 is left out.
- Hardware: {unique(results, "hardware")}. Commits: {unique(results, "commit")}.{several}
- Versions: {versions or "none yet"}.
"""


def answers(plan: Plan, results: Results) -> str:
    everything = ("in-domain", "crossed", "few-shot")
    sections = [
        (ANCL_QUESTION, [*pair_lines(plan, results, ANCL, everything), *second_simsiam(plan, results)], ANCL),
        (CONTRASTIVE_QUESTION,
         [crossed_in_the_paper(), "",
          *pair_lines(plan, results, CONTRASTIVE, ("crossed", "few-shot", "in-domain"))], CONTRASTIVE),
        (ALPHA_QUESTION, [BEST, "", *best_alpha(plan, results)], ()),
        (VARIANCE_QUESTION, variance_lines(plan, results), ()),
        (COLLAPSE_QUESTION, collapse_lines(plan, results), ()),
        (STANDING_QUESTION, pair_lines(plan, results, STANDING, everything, AHEAD), STANDING),
    ]
    lines = ["## Answers", "", papers_rows(), ""]
    for question, told_lines, pairs in sections:
        lines += [f"### {question}", "", *told_lines, "", *pair_table(plan, results, pairs)]
    return "\n".join([*lines, "", "### What the verdicts hang on", "", *doubt_lines(plan, results), ""])


def papers_rows() -> str:
    """What the rows of the paper are, and what they would be if two of its columns are in each other's place."""
    swapped = {"simsiam": "byol", "byol": "simsiam"}
    told = " and ".join(
        f"{', '.join(f'{of[ours] - of[swapped[theirs]]:+.2f}' for of in paper_columns().values())} "
        f"({pair_title(ours, theirs)})" for ours, theirs in ANCL)
    return f"""Rows "paper" are differences in its Table H.1: 1000 epochs instead of our 100, rates and a probe of its
own, no intervals. What longer training leaves of a difference was not measured here. If its SimSiam and BYOL columns
are exchanged, as they look beside solo-learn's, linear and CIFAR-10 linear would be {told}."""


def crossed_in_the_paper() -> str:
    of = paper_columns()["crossed"]
    apart = of["supcon"] - of["simclr"]
    return f"""The paper's App. H finds "a decline or slight increase" on CIFAR ({apart:+.2f} in its table). Of encoders
of ImageNet-100 it says the contrary: labels help every method in transfer (Table 5) and few-shot learning (Table 6),
Pets, Omniglot and GTSRB among them; those are of 224 px, ours of 32."""


def second_simsiam(plan: Plan, results: Results) -> list[str]:
    """Where alpha 1 is another SimSiam than the main table's: SupSiam against that one, at equal settings."""
    plain, ours = second(plan, results), method_rows(plan, results)["supsiam"]
    if plain is None:
        return []
    found = row_gaps(plan, results, ours, plain)
    linear = f"; linear {found['linear'].text()}" if "linear" in found else ""
    return [f"- **SupSiam - SimSiam with SupSiam's settings** (alpha 1 below, one learning rate and weight decay for "
            f"both): {counted({measure: one.verdict for measure, one in found.items()})} accuracies{linear}."]


def pair_table(plan: Plan, results: Results, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The differences themselves, for the pairs that have any; below each, what the paper's table makes of it."""
    found = {pair: each for pair in pairs if (each := gaps(plan, results, *pair))}
    measures = [measure for measure in ACCURACIES if any(measure in each for each in found.values())]
    if not measures:
        return []
    rows = []
    for pair, each in found.items():
        sure = widened(plan, results, *pair)
        texts = {m: f"**{one.text()}**" if m in sure else one.text() for m, one in each.items()}
        rows.append([pair_title(*pair), *(texts.get(m, "-") for m in measures)])
        if all(method in SIX for method in pair):
            apart = {m: of[pair[0]] - of[pair[1]] for m, of in paper_columns().items()}
            rows.append(["paper", *(f"{apart[m]:+.2f}" if m in apart else "-" for m in measures)])
    return [table(["difference", *(MEASURES[m][0] for m in measures)], rows)]


def paper_columns() -> dict[str, dict[str, float]]:
    """Table H.1 after pretraining on CIFAR-100: measure -> method -> accuracy."""
    return {measure: dict(zip(SIX, CIFAR[f"cifar100 {name}"], strict=True))
            for measure, name in (("linear", "cifar100"), ("crossed", "cifar10"))}


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
    paper = paper_columns()
    measures = [m for m in MEASURES if any(row.values(m) for row in there.values())] or list(MEASURES)

    def beside(method: str) -> list[str]:
        return [f"{each[method]:.2f}" if method in each else "-" for each in (*paper.values(), SOLO_LEARN)]

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
the paper's table the SimSiam and BYOL columns look exchanged beside solo-learn's. Average rank over the
accuracies that every method here has, 1 being the best; it has no interval.

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


def second(plan: Plan, results: Results) -> Row | None:
    """Alpha 1, where SimSiam's pilots chose otherwise than SupSiam's, so that it is a second SimSiam."""
    plain, own = alpha_rows(plan, results)[1.0], method_rows(plan, results)["simsiam"]
    if not plain.results or not own.results or plain.results[0]["identity"] == own.results[0]["identity"]:
        return None
    return plain


def two_simsiams(plan: Plan, results: Results) -> str:
    """What the choice of SimSiam's pilots was worth."""
    plain, own = second(plan, results), method_rows(plan, results)["simsiam"]
    if plain is None:
        return ""
    found = row_gaps(plan, results, plain, own)
    above = sum(one.mean > 0 for one in found.values())
    linear = f"; linear here - there = {found['linear'].text()}" if "linear" in found else ""
    return f""" Alpha 1 is SimSiam with these settings, the main table's has those that SimSiam's own
pilots chose: here it is higher on {above} of {len(found)} accuracies{linear}."""


def collapse_table(plan: Plan, results: Results) -> str:
    lines = []
    for harsh in (False, True):
        decay = cell_decay(plan, results, harsh)
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
paper states neither alpha (.5 here) nor weight decay nor epochs; the second four cells have a weight decay at
which SimSiam collapsed in an earlier prototype, and were added to the plan after the first four had come out. The
intervals of the differences borrow the spread of the longer runs' seeds.

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
accuracy uncertain by up to {uncertain(HELD_OUT)} points, settings closer than that are as good as tied
{tied(plan, results)}; that the best after {epochs} epochs is the best of longer runs too is assumed (for SimSiam see
[Alpha](#alpha)). Three settings span little: a better one may lie beyond them.

{table(["method", "lr", "weight decay", "linear, held out", "k-NN, held out", "status", "choice"], lines)}"""


def tied(plan: Plan, results: Results) -> str:
    """In how many methods the choice is closer than the images can tell."""
    margins = [margin for method in plan.pilots if best_pilot(plan, results, method) is not None
               and (margin := margin_of(plan, results, method)) is not None]
    near = sum(margin < float(uncertain(HELD_OUT)) for margin in margins)
    return f"(so in {near} of {len(margins)} methods)" if margins else "(of none it is known yet)"


def margin_of(plan: Plan, results: Results, method: str) -> float | None:
    """How far the best pilot lies above the next; None of one alone."""
    found = [results[f"pilot-{method}-{number}"]["values"].get(CHOSEN_BY) for number in range(len(plan.pilots[method]))]
    scores = sorted((float(score) for score in found if score is not None), reverse=True)
    return scores[0] - scores[1] if len(scores) > 1 else None


def chosen_by(plan: Plan, results: Results, method: str) -> str:
    """How far the best pilot lies above the next: close ones may have been told apart by chance."""
    margin = margin_of(plan, results, method)
    if margin is None:
        return "chosen, the only one with a score"
    return f"chosen, by {margin:.2f}" if margin > 0 else "chosen, the first of equal ones"


def pilot_cells(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["-", "-", "not run yet"]
    values = [f"{found['values'][key]:.2f}" if key in found["values"] else "-" for key in ("linear", "knn")]
    return [*values, "" if found["status"] == "finished" else found["status"]]
