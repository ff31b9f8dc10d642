"""RESULTS.md and README's table from the files in results/: every number is computed here, none is typed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.evidence.claims import (
    AHEAD,
    ALPHA_QUESTION,
    ANCL,
    ANCL_QUESTION,
    ASKED,
    COLLAPSE_QUESTION,
    CONTRASTIVE,
    CONTRASTIVE_QUESTION,
    PAIRS,
    STANDING,
    STANDING_QUESTION,
    TESTED,
    VARIANCE_QUESTION,
    best_alpha,
    best_alphas,
    collapse_cells,
    collapse_lines,
    differences,
    missing,
    pair_lines,
    pair_title,
    tallied,
    variance_lines,
    variance_summary,
    widened,
)
from experiments.evidence.results import (
    ACCURACIES,
    KINDS,
    MEASURES,
    NAMES,
    TITLES,
    Evidence,
    Gap,
    Row,
    mean_text,
    waiting,
)
from experiments.evidence.sensitivity import sensitivity_lines
from experiments.evidence.tables import (
    alpha_table,
    collapse_table,
    every_run,
    main_table,
    not_finished,
    paper_columns,
    pilot_table,
    second,
    stated_alphas,
    table,
    uncertain,
    unique,
)
from supancl.files import replace_section
from supancl.paper.numbers import SIX

SHOWN = ("knn", "linear", "crossed", "pets", "omniglot_5", "traffic-signs_5")
PAGE = "RESULTS.md"
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


def write_page(known: Evidence, figures: Sequence[str]) -> str:
    of_alpha = [name for name in figures if "differences" not in name]
    parts = [
        head(known, figures),
        conditions(known),
        answers(known),
        main_table(known),
        alpha_table(known, of_alpha),
        collapse_table(known),
        pilot_table(known),
        not_finished(known),
        every_run(known),
    ]
    return "\n".join(parts)


def head(known: Evidence, figures: Sequence[str]) -> str:
    steps = len(known.plan.steps)
    done = steps - len(waiting(known.plan, known.results))
    shown = "".join(
        f"\n![differences with intervals](docs/figures/{name})\n{FOREST}" for name in figures if "differences" in name
    )
    return f"""# Results

Made by `python -m experiments.evidence page` (`make results`) from the files in experiments/results/, one a run; no
number here is typed, and every verdict follows from the numbers by a rule. {done} of the plan's {steps} runs are there.

## In short

{summary_table(known)}
{chr(10).join(summary_lines(known))}

{certainty(known)}
{KINDS_TOLD} "Cannot be told apart" is not "equal".
{shown}"""


def conditions(known: Evidence) -> str:
    results = list(known.results.values())
    versions = "; ".join(
        dict.fromkeys(
            ", ".join(f"{name} {version}" for name, version in result["versions"].items()) for result in results
        )
    )
    spans = [value for result in results for key, value in result["values"].items() if "_interval" in key]
    episodes = f", 2000 episodes by up to {max(spans):.1f}" if spans else ""
    several = f" {COMMITS}" * (len({result.get("commit") for result in results}) > 1)
    return f"""## How it was measured

- Pretraining on CIFAR-100 (lossless, all 50,000 training images; pilots without the 5,000 that are held out), CIFAR
  ResNet-18, batch 256, bf16, the same augmentations for every method.
- Alpha is {stated_alphas(known.plan)}, as App. H has it; pilots did not look for a better one.
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
- Hardware: {unique(known, "hardware")}. Commits: {unique(known, "commit")}.{several}
- Versions: {versions or "none yet"}.
"""


def answers(known: Evidence) -> str:
    everything = ("in-domain", "crossed", "few-shot")
    sections = [
        (ANCL_QUESTION, [*pair_lines(known, ANCL, everything), *second_simsiam(known)], ANCL),
        (
            CONTRASTIVE_QUESTION,
            [crossed_in_the_paper(), "", *pair_lines(known, CONTRASTIVE, ("crossed", "few-shot", "in-domain"))],
            CONTRASTIVE,
        ),
        (ALPHA_QUESTION, [BEST, "", *best_alpha(known)], ()),
        (VARIANCE_QUESTION, variance_lines(known), ()),
        (COLLAPSE_QUESTION, [COLLAPSE, "", *collapse_lines(known)], ()),
        (STANDING_QUESTION, [AT_ITS_ALPHA, "", *pair_lines(known, STANDING, everything, AHEAD)], STANDING),
    ]
    lines = ["## Answers", "", papers_rows(), ""]
    for question, told_lines, pairs in sections:
        lines += [f"### {question}", "", *told_lines, "", *pair_table(known, pairs)]
    return "\n".join([*lines, "", "### What the verdicts hang on", "", *sensitivity_lines(known), ""])


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


def second_simsiam(known: Evidence) -> list[str]:
    """Where alpha 1 is another SimSiam than the main table's: SupSiam against that one, at equal settings."""
    plain, ours = second(known), known.methods["supsiam"]
    if plain is None:
        return []
    found = known.row_gaps(ours, plain)
    linear = f"; linear {found['linear'].text()}" if "linear" in found else ""
    return [
        f"- **{TITLES['supsiam']} - SimSiam with SupSiam's settings** (alpha 1 below, one learning rate and weight "
        f"decay for both): {tallied({measure: one.verdict for measure, one in found.items()})} accuracies{linear}."
    ]


def pair_table(known: Evidence, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The differences themselves, for the pairs that have any; below each, what the paper's table makes of it."""
    found = {pair: each for pair in pairs if (each := known.gaps(*pair))}
    measures = [measure for measure in ACCURACIES if any(measure in each for each in found.values())]
    if not measures:
        return []
    rows = []
    for pair, each in found.items():
        sure = widened(known, *pair)
        texts = {m: f"**{one.text()}**" if m in sure else one.text() for m, one in each.items()}
        rows.append([pair_title(*pair), *(texts.get(m, "-") for m in measures)])
        if all(method in SIX for method in pair):
            apart = {m: of[pair[0]] - of[pair[1]] for m, of in paper_columns().items()}
            rows.append(["paper", *(f"{apart[m]:+.2f}" if m in apart else "-" for m in measures)])
    return [table(["difference", *(MEASURES[m][0] for m in measures)], rows)]


# --- in short ---------------------------------------------------------------------------------------------------------


def summary_table(known: Evidence, page: str = "") -> str:
    """One row a pair; `page` is where the questions are answered at length. Bold: the whole cell stands widened."""
    rows = []
    for question, pairs, words in ASKED:
        for number, pair in enumerate(pairs):
            found, sure = known.gaps(*pair), widened(known, *pair)
            cells = (
                [cell(found, sure, measures, words) for measures in KINDS.values()]
                if found
                else [missing(known, pair), *[""] * (len(KINDS) - 1)]
            )
            rows.append([f"[{question}]({page}#{slug(question)})" if not number else "", pair_title(*pair), *cells])
    return table(["question", "difference", *KINDS], rows)


def cell(found: Mapping[str, Gap], sure: set[str], measures: Sequence[str], words: Mapping[str, str]) -> str:
    verdicts = {
        measure: words.get(found[measure].verdict, found[measure].verdict) for measure in measures if measure in found
    }
    told = tallied(verdicts) or "not measured yet"
    return f"**{told}**" if verdicts and set(verdicts) <= sure else told


def summary_lines(known: Evidence, page: str = "") -> list[str]:
    """The other questions, a line each."""
    found = best_alphas(known)
    inside = tallied({one.measure: one.inside for one in found})
    sure = sum(one.inside == "yes" and one.strict.verdict == "helps" for one in found)
    collapse: dict[tuple[str, str], list[str]] = {}
    for one in collapse_cells(known):
        collapse.setdefault((one.decay, one.verdict), []).append(one.what)
    told = {
        ALPHA_QUESTION: f"{inside} accuracies (yes: {sure} where all {len(found)} are allowed for)"
        if inside
        else "not measured yet",
        VARIANCE_QUESTION: variance_summary(known) or "not measured yet",
        COLLAPSE_QUESTION: "; ".join(
            f"with weight decay {decay} {', '.join(what)}: {verdict}" for (decay, verdict), what in collapse.items()
        ),
    }
    return [f"- [{question}]({page}#{slug(question)}) {answer}." for question, answer in told.items()]


def certainty(known: Evidence) -> str:
    """What the verdicts rest on: how many differences, how many of them on borrowed spreads, and whose."""
    found = differences(known)
    if not found:
        return "No two methods can be compared yet."
    sure = sum(len(widened(known, *pair)) for pair in PAIRS)
    given = sum(one.excludes_zero for one in found)
    return (
        f"Of {len(found)} differences {given} have a 95% interval that leaves 0 out; {sure} still do where each "
        f"interval is widened to allow for all {len(found)} (Bonferroni): these are bold. "
        f"{sum(one.borrowed for one in found)} have one seed on a side and borrow the spread of "
        f"{lender_names(known.lenders)}."
    )


def lender_names(rows: Sequence[Row]) -> str:
    """The rows with several seeds, whose spread is lent to the others."""
    if not rows:
        return "nobody yet"
    freedom = sum(len(row.results) - 1 for row in rows)
    *others, last = (row.name for row in rows)
    named = f"{', '.join(others)} and {last}" if others else last
    return f"{named} ({freedom} degrees of freedom)"


def slug(title: str) -> str:
    """What a heading is called in a link.

    >>> slug("Is the best alpha inside (0, 1)?")
    'is-the-best-alpha-inside-0-1'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def short_text(known: Evidence) -> str:
    """Methods that are not measured are left out here; RESULTS.md says what is missing."""
    there = {method: row for method, row in known.methods.items() if row.results}
    if not there:
        return "Nothing is measured yet.\n"
    rows = [
        [TITLES[method], str(len(row.results)), *(mean_text(row.values(measure), 1) for measure in SHOWN)]
        for method, row in there.items()
    ]
    columns = ["pretraining", "seeds", *(MEASURES[measure][0] for measure in SHOWN)]
    lines = "\n".join(summary_lines(known, PAGE))
    return f"""{table(columns, rows)}
How many accuracies of a kind say what:

{summary_table(known, PAGE)}
{lines}

{certainty(known)}
"""


def put_short(document: Path, known: Evidence) -> None:
    replace_section(document, "results", short_text(known))
