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
    COLLAPSE_QUESTION,
    CONTRASTIVE,
    CONTRASTIVE_QUESTION,
    PAIRS,
    QUESTIONS,
    STANDING,
    STANDING_QUESTION,
    TEST_IMAGES,
    VARIANCE_QUESTION,
    best_alpha_lines,
    best_alphas,
    collapse_cells,
    collapse_lines,
    count_verdicts,
    differences,
    missing,
    pair_lines,
    pair_title,
    significant_measures,
    variance_lines,
    variance_summary,
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
    image_uncertainty,
    main_table,
    not_finished,
    paper_columns,
    pilot_table,
    separate_simsiam,
    stated_alphas,
    table,
    unique,
)
from supancl.files import put_between
from supancl.paper.numbers import SIX

README_MEASURES = ("knn", "linear", "crossed", "pets", "omniglot_5", "traffic-signs_5")
PAGE = "RESULTS.md"
PETS_TEST_IMAGES = 3_669

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
METRIC_GROUPS = " ".join(
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


def write_page(evidence: Evidence, figures: Sequence[str]) -> str:
    alpha_figures = [name for name in figures if "differences" not in name]
    sections = [
        head(evidence, figures),
        conditions(evidence),
        answers(evidence),
        main_table(evidence),
        alpha_table(evidence, alpha_figures),
        collapse_table(evidence),
        pilot_table(evidence),
        not_finished(evidence),
        every_run(evidence),
    ]
    return "\n".join(sections)


def head(evidence: Evidence, figures: Sequence[str]) -> str:
    steps = len(evidence.plan.steps)
    done = steps - len(waiting(evidence.plan, evidence.results))
    pictures = "".join(
        f"\n![differences with intervals](docs/figures/{name})\n{FOREST}" for name in figures if "differences" in name
    )
    return f"""# Results

Made by `python -m experiments.evidence page` (`make results`) from the files in experiments/results/, one a run; no
number here is typed, and every verdict follows from the numbers by a rule. {done} of the plan's {steps} runs are there.

## In short

{summary_table(evidence)}
{chr(10).join(summary_lines(evidence))}

{certainty(evidence)}
{METRIC_GROUPS} "Cannot be told apart" is not "equal".
{pictures}"""


def conditions(evidence: Evidence) -> str:
    results = list(evidence.results.values())
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
- Alpha is {stated_alphas(evidence.plan)}, as App. H has it; pilots did not look for a better one.
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
- Intervals are about seeds: other test images, other settings or longer training are not in them. {TEST_IMAGES:,} test
  images alone leave an accuracy uncertain by up to {image_uncertainty(TEST_IMAGES)} points, Pets' {PETS_TEST_IMAGES:,} by up to
  {image_uncertainty(PETS_TEST_IMAGES)}{episodes}; a difference on the same images by less. Each interval is meant by
  itself: of twenty one may miss by chance. Bold: also with an interval that allows for all differences between methods
  (not for the lines on alpha, variance and collapse), 0 is left out; a cell of the short table is bold where all its
  accuracies are.
- Hardware: {unique(evidence, "hardware")}. Commits: {unique(evidence, "commit")}.{several}
- Versions: {versions or "none yet"}.
"""


def answers(evidence: Evidence) -> str:
    everything = ("in-domain", "crossed", "few-shot")
    sections = [
        (ANCL_QUESTION, [*pair_lines(evidence, ANCL, everything), *simsiam_of_sweep(evidence)], ANCL),
        (
            CONTRASTIVE_QUESTION,
            [crossed_in_the_paper(), "", *pair_lines(evidence, CONTRASTIVE, ("crossed", "few-shot", "in-domain"))],
            CONTRASTIVE,
        ),
        (ALPHA_QUESTION, [BEST, "", *best_alpha_lines(evidence)], ()),
        (VARIANCE_QUESTION, variance_lines(evidence), ()),
        (COLLAPSE_QUESTION, [COLLAPSE, "", *collapse_lines(evidence)], ()),
        (STANDING_QUESTION, [AT_ITS_ALPHA, "", *pair_lines(evidence, STANDING, everything, AHEAD)], STANDING),
    ]
    lines = ["## Answers", "", papers_rows(), ""]
    for question, answer, pairs in sections:
        lines += [f"### {question}", "", *answer, "", *pair_table(evidence, pairs)]
    return "\n".join([*lines, "", "### What the verdicts hang on", "", *sensitivity_lines(evidence), ""])


def papers_rows() -> str:
    """What the rows of the paper are, and what they would be if two of its columns are in each other's place."""
    swapped = {"simsiam": "byol", "byol": "simsiam"}
    text = " and ".join(
        f"{', '.join(f'{by_method[method] - by_method[swapped[other]]:+.2f}' for by_method in paper_columns().values())} "
        f"({NAMES[method]} - {NAMES[other]})"
        for method, other in ANCL
    )
    return f"""Rows "paper" are differences in its Table H.1: 1000 epochs instead of our 100, rates and a probe of its
own, no intervals. What longer training leaves of a difference was not measured here. If its SimSiam and BYOL columns
are exchanged, as they look beside solo-learn's, linear and CIFAR-10 linear would be {text}."""


def crossed_in_the_paper() -> str:
    by_method = paper_columns()["crossed"]
    difference = by_method["supcon"] - by_method["simclr"]
    return f"""The paper's App. H finds "a decline or slight increase" on CIFAR ({difference:+.2f} in its table). Of encoders
of ImageNet-100 it says the contrary: labels help every method in transfer (Table 5) and few-shot learning (Table 6),
Pets, Omniglot and GTSRB among them; those are of 224 px, ours of 32."""


def simsiam_of_sweep(evidence: Evidence) -> list[str]:
    """Where alpha 1 is another SimSiam than the main table's: SupSiam against that one, at equal settings."""
    simsiam, ours = separate_simsiam(evidence), evidence.methods["supsiam"]
    if simsiam is None:
        return []
    gaps = evidence.row_gaps(ours, simsiam)
    linear = f"; linear {gaps['linear'].text()}" if "linear" in gaps else ""
    return [
        f"- **{TITLES['supsiam']} - SimSiam with SupSiam's settings** (alpha 1 below, one learning rate and weight "
        f"decay for both): {count_verdicts({measure: difference.verdict for measure, difference in gaps.items()})} accuracies{linear}."
    ]


def pair_table(evidence: Evidence, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The differences themselves, for the pairs that have any; below each, what the paper's table makes of it."""
    by_pair = {pair: gaps for pair in pairs if (gaps := evidence.gaps(*pair))}
    measures = [measure for measure in ACCURACIES if any(measure in gaps for gaps in by_pair.values())]
    if not measures:
        return []
    rows = []
    for pair, gaps in by_pair.items():
        bold = significant_measures(evidence, *pair)
        texts = {m: f"**{difference.text()}**" if m in bold else difference.text() for m, difference in gaps.items()}
        rows.append([pair_title(*pair), *(texts.get(m, "-") for m in measures)])
        if all(method in SIX for method in pair):
            paper = {m: by_method[pair[0]] - by_method[pair[1]] for m, by_method in paper_columns().items()}
            rows.append(["paper", *(f"{paper[m]:+.2f}" if m in paper else "-" for m in measures)])
    return [table(["difference", *(MEASURES[m][0] for m in measures)], rows)]


# --- in short ---------------------------------------------------------------------------------------------------------


def summary_table(evidence: Evidence, page: str = "") -> str:
    """One row a pair; `page` is where the questions are answered at length. Bold: the whole cell stands widened."""
    rows = []
    for question, pairs, words in QUESTIONS:
        for number, pair in enumerate(pairs):
            gaps, bold = evidence.gaps(*pair), significant_measures(evidence, *pair)
            cells = (
                [cell(gaps, bold, measures, words) for measures in KINDS.values()]
                if gaps
                else [missing(evidence, pair), *[""] * (len(KINDS) - 1)]
            )
            rows.append([f"[{question}]({page}#{slug(question)})" if not number else "", pair_title(*pair), *cells])
    return table(["question", "difference", *KINDS], rows)


def cell(gaps: Mapping[str, Gap], bold: set[str], measures: Sequence[str], words: Mapping[str, str]) -> str:
    verdicts = {
        measure: words.get(gaps[measure].verdict, gaps[measure].verdict) for measure in measures if measure in gaps
    }
    text = count_verdicts(verdicts) or "not measured yet"
    return f"**{text}**" if verdicts and set(verdicts) <= bold else text


def summary_lines(evidence: Evidence, page: str = "") -> list[str]:
    """The other questions, a line each."""
    bests = best_alphas(evidence)
    inside = count_verdicts({best.measure: best.inside for best in bests})
    strict_count = sum(best.inside == "yes" and best.strict.verdict == "helps" for best in bests)
    collapse: dict[tuple[str, str], list[str]] = {}
    for best in collapse_cells(evidence):
        collapse.setdefault((best.decay, best.verdict), []).append(best.setup)
    answers = {
        ALPHA_QUESTION: f"{inside} accuracies (yes: {strict_count} where all {len(bests)} are allowed for)"
        if inside
        else "not measured yet",
        VARIANCE_QUESTION: variance_summary(evidence) or "not measured yet",
        COLLAPSE_QUESTION: "; ".join(
            f"with weight decay {decay} {', '.join(what)}: {verdict}" for (decay, verdict), what in collapse.items()
        ),
    }
    return [f"- [{question}]({page}#{slug(question)}) {answer}." for question, answer in answers.items()]


def certainty(evidence: Evidence) -> str:
    """What the verdicts rest on: how many differences, how many of them on borrowed spreads, and whose."""
    gaps = differences(evidence)
    if not gaps:
        return "No two methods can be compared yet."
    bold_count = sum(len(significant_measures(evidence, *pair)) for pair in PAIRS)
    clear_count = sum(difference.excludes_zero for difference in gaps)
    return (
        f"Of {len(gaps)} differences {clear_count} have a 95% interval that leaves 0 out; {bold_count} still do where each "
        f"interval is widened to allow for all {len(gaps)} (Bonferroni): these are bold. "
        f"{sum(difference.borrowed for difference in gaps)} have one seed on a side and borrow the spread of "
        f"{lender_names(evidence.lender_rows)}."
    )


def lender_names(rows: Sequence[Row]) -> str:
    """The rows with several seeds, whose spread is lent to the others."""
    if not rows:
        return "nobody yet"
    freedom = sum(len(row.results) - 1 for row in rows)
    *others, last = (row.name for row in rows)
    names = f"{', '.join(others)} and {last}" if others else last
    return f"{names} ({freedom} degrees of freedom)"


def slug(title: str) -> str:
    """What a heading is called in a link.

    >>> slug("Is the best alpha inside (0, 1)?")
    'is-the-best-alpha-inside-0-1'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def readme_block(evidence: Evidence) -> str:
    """Methods that are not measured are left out here; RESULTS.md says what is missing."""
    measured = {method: row for method, row in evidence.methods.items() if row.results}
    if not measured:
        return "Nothing is measured yet.\n"
    rows = [
        [TITLES[method], str(len(row.results)), *(mean_text(row.values(measure), 1) for measure in README_MEASURES)]
        for method, row in measured.items()
    ]
    columns = ["pretraining", "seeds", *(MEASURES[measure][0] for measure in README_MEASURES)]
    lines = "\n".join(summary_lines(evidence, PAGE))
    return f"""{table(columns, rows)}
How many accuracies of a kind say what:

{summary_table(evidence, PAGE)}
{lines}

{certainty(evidence)}
"""


def update_readme(document: Path, evidence: Evidence) -> None:
    put_between(document, "results", readme_block(evidence))
