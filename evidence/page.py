"""RESULTS.md from the files in results/: every number of it is computed here, none is typed."""

from __future__ import annotations

from collections.abc import Sequence

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
    TESTED,
    VARIANCE_QUESTION,
    best_alpha,
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
from evidence.results import Results, waiting
from evidence.rows import ACCURACIES, KINDS, MEASURES, NAMES, TITLES, method_rows
from evidence.summary import certainty, summary_lines, summary_table, tallied, widened
from evidence.tables import alpha_table, collapse_table, main_table, paper_columns, pilot_table, second, uncertain
from supancl.paper.numbers import SIX
from supancl.recipes import recipe

PETS_TESTED = 3_669

BEST = """The alpha inside with the highest mean against the better end. It was picked by these same numbers, so its
interval is widened to allow for the choice (Bonferroni over the alphas inside; "where all 8 are allowed for" over those
times the accuracies). Another alpha inside may be as good. Learning rate and weight decay are those that pilots chose
at alpha .5, which may favour it."""
COLLAPSE = """One seed a cell. At the higher weight decay SimSiam collapses too ([monitor](docs/monitor.md)): those
cells show what survives it, not that a supervised target without a pool is what fails."""
AT_ITS_ALPHA = """SupSiam and SupBYOL stand here at the alpha that App. H has for each. On CIFAR-100 SupBYOL was not run
at another one, so "ahead" and "behind" are said of SupBYOL at that alpha alone."""
VIEWS = """
- Pixels: CIFAR's images are as large as the encoder's input, so nothing is cut off. Pets, Omniglot and GTSRB are seen
  through the view of transfer and few-shot learning (short side 32, bicubic, the centre), which is torchvision's to the
  pixel. The evaluation crop that began at half pixels on most images larger than the input ([changelog](CHANGELOG.md))
  is used for none of these columns, so none has to be measured again for it."""
KINDS_TOLD = " ".join(
    f"{kind.capitalize()}: {', '.join(MEASURES[one][0] for one in measures)}." for kind, measures in KINDS.items()
)
COMMITS = """Runs were trained and judged by the code of
  their commit. On a CPU, at an equal thread count, SupSiam's training has the same bits with the first and the last of
  them; no run was made twice on the GPU. Between commits the solver of the probes and the few-shot classifiers' stop
  were mended. One encoder judged before and after had the same Pets accuracy and GTSRB episodes ([log](docs/log.md));
  nothing else was judged twice."""
FOREST = """
Each dot is a difference in points with its 95% interval; a hollow one borrows its spread, and a thick line is bold in
the tables. Right of the line the first method is better. Each panel has its own scale.
"""


def write_page(plan: Plan, results: Results, figures: Sequence[str]) -> str:
    of_alpha = [name for name in figures if "differences" not in name]
    parts = [
        head(plan, results, figures),
        conditions(results),
        answers(plan, results),
        main_table(plan, results),
        alpha_table(plan, results, of_alpha),
        collapse_table(plan, results),
        pilot_table(plan, results),
        told(plan, results),
        commands(results),
    ]
    return "\n".join(parts)


def unique(results: Results, key: str) -> str:
    return "; ".join(dict.fromkeys(str(result.get(key)) for result in results.values())) or "none yet"


def head(plan: Plan, results: Results, figures: Sequence[str]) -> str:
    done = len(plan.steps) - len(waiting(plan, results))
    shown = "".join(
        f"\n![differences with intervals](docs/figures/{name})\n{FOREST}" for name in figures if "differences" in name
    )
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
    versions = "; ".join(
        dict.fromkeys(
            ", ".join(f"{name} {version}" for name, version in result["versions"].items())
            for result in results.values()
        )
    )
    spans = [value for result in results.values() for key, value in result["values"].items() if "_interval" in key]
    episodes = f", 2000 episodes by up to {max(spans):.1f}" if spans else ""
    several = f" {COMMITS}" * (len({result.get("commit") for result in results.values()}) > 1)
    alphas = " and ".join(
        f"{recipe(f'cifar100.{method}').fields()['loss.alpha'][0]:g} in {NAMES[method]}"
        for method in ("supsiam", "supbyol")
    )
    return f"""## How it was measured

- Pretraining on CIFAR-100 (lossless, all 50,000 training images; pilots without the 5,000 that are held out), CIFAR
  ResNet-18, batch 256, bf16, the same augmentations for every method.
- Alpha is {alphas}, as App. H has it; pilots did not look for a better one.
- Choices (learning rate, weight decay) were made by pilots on the 5,000 held-out images alone, between settings that
  an earlier prototype suggested and that are not the same for all methods. They are in the commands below; the recipes
  keep App. H's rates ([deviations](docs/deviations.md)). A final run has
  `data.holdout=0`, so its monitor has no images to look at, and the test images are looked at once, when it is judged.
  Seeds are 0, 1, 2, none was chosen; failed and collapsed runs are listed.
- k-NN: k = 20, cosine, temperature 0.1. Linear: the convex probe of `supancl evaluate linear` as 0.1.0 solved it (it
  stopped early; now it finds the optimum), its ridge chosen within the training images; an encoder that was trained
  with their labels finds these easier than the test's. Cross-entropy's encoder is judged as the others are, without
  the classifier it was trained with. CIFAR-10 is a JPEG copy; Pets has a short side of 64 px and is judged at 32;
  GTSRB's episodes come from its test set. Few-shot: 5-way, 2000 episodes, the same ones for all, 16 queries a class
  (15 in Omniglot's 5-shot episodes: its classes have 20 drawings). S_W/S_T and effective rank: L2-normalised encoder
  features of the test images.{VIEWS}
- "±" is half a 95% t-interval over seeds; a number without it is one seed. Differences: "[low, high]" is a 95%
  interval; "*" says that one side has one seed and the spread of seeds was borrowed from the methods and alphas that
  have several (pooled; not from runs that collapsed). That a method with one seed varies as much as those is an
  assumption, and so is, without "*", that the two methods vary alike: see
  [what the verdicts hang on](#what-the-verdicts-hang-on).
- Intervals are about seeds: other test images, other settings or longer training are not in them. {TESTED:,} test
  images alone leave an accuracy uncertain by up to {uncertain(TESTED)} points, Pets' {PETS_TESTED:,} by up to
  {uncertain(PETS_TESTED)}{episodes}; a difference on the same images by less. Each interval is meant by
  itself: of twenty one may miss by chance. Bold: also with an interval that allows for all differences between methods
  (not for the lines on alpha, variance and collapse), 0 is left out; a cell of the short table is bold where all its
  accuracies are.
- Hardware: {unique(results, "hardware")}. Commits: {unique(results, "commit")}.{several}
- Versions: {versions or "none yet"}.
"""


def answers(plan: Plan, results: Results) -> str:
    everything = ("in-domain", "crossed", "few-shot")
    sections = [
        (ANCL_QUESTION, [*pair_lines(plan, results, ANCL, everything), *second_simsiam(plan, results)], ANCL),
        (
            CONTRASTIVE_QUESTION,
            [crossed_in_the_paper(), "", *pair_lines(plan, results, CONTRASTIVE, ("crossed", "few-shot", "in-domain"))],
            CONTRASTIVE,
        ),
        (ALPHA_QUESTION, [BEST, "", *best_alpha(plan, results)], ()),
        (VARIANCE_QUESTION, variance_lines(plan, results), ()),
        (COLLAPSE_QUESTION, [COLLAPSE, "", *collapse_lines(plan, results)], ()),
        (STANDING_QUESTION, [AT_ITS_ALPHA, "", *pair_lines(plan, results, STANDING, everything, AHEAD)], STANDING),
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
        f"({NAMES[ours]} - {NAMES[theirs]})"
        for ours, theirs in ANCL
    )
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
    return [
        f"- **{TITLES['supsiam']} - SimSiam with SupSiam's settings** (alpha 1 below, one learning rate and weight "
        f"decay for both): {tallied({measure: one.verdict for measure, one in found.items()})} accuracies{linear}."
    ]


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
