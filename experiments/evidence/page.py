"""Write RESULTS.md and the README's table from the files in results/; no number is typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.audit.page import noise_part
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
    describe_verdicts,
    differences,
    equal_alpha_gaps,
    missing,
    pair_lines,
    pair_title,
    significant_measures,
    variance_lines,
    variance_summary,
)
from experiments.evidence.findings import OtherStudies, first_page, join_names, readme_block
from experiments.evidence.further_page import further_parts, plans_line, supbyol_line
from experiments.evidence.imagenet_page import imagenet_finding, imagenet_line, imagenet_part, imagenet_summary
from experiments.evidence.results import (
    ACCURACIES,
    KINDS,
    MEASURES,
    NAMES,
    TITLES,
    Evidence,
    Gap,
    Row,
)
from experiments.evidence.sensitivity import sensitivity_lines
from experiments.evidence.studies import all_studies, studies_section, studies_sentence
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
    slug,
    stated_alphas,
    table,
    unique,
)
from experiments.labels.page import few_line
from supancl.files import replace_section
from supancl.paper.numbers import SIX

PETS_TEST_IMAGES = 3_669
NO_OTHERS = OtherStudies()

BEST = """For each accuracy: the alpha inside (0, 1) with the highest mean, compared with the better end. It was picked
by the same numbers, so its interval is widened for the choice (Bonferroni over the alphas inside; "if all 8 are allowed
for" also over the accuracies). Another alpha inside may be as good. Learning rate and weight decay are those that the
pilots chose at alpha .5, which may favour it."""
COLLAPSE = """One seed per cell. At the higher weight decay SimSiam collapses too ([monitor](docs/monitor.md)). So those
cells show what survives the decay, not that a supervised target without a pool is the cause."""
AT_ITS_ALPHA = """SupSiam and SupBYOL have the alpha of App. H, which differ. "Ahead" and "behind" hold for each at its
alpha only."""
VIEWS = """
- Pixels: CIFAR's images are as large as the encoder's input, so nothing is cropped. Pets, Omniglot and GTSRB use the
  view of transfer and few-shot learning (short side 32, bicubic, centre crop), which equals torchvision's pixels."""
METRIC_GROUPS = " ".join(
    f"{kind.capitalize()}: {', '.join(MEASURES[measure][0] for measure in measures)}."
    for kind, measures in KINDS.items()
)
COMMITS = """Each run was trained and evaluated by the code of its
  commit. On a CPU with equal threads, SupSiam trains to the same bits with the first and the last commit; no run was
  repeated on the GPU. Between commits the solver of the probes and the stopping rule of the few-shot classifiers were
  fixed. One encoder that was evaluated before and after had the same Pets accuracy and GTSRB episodes
  ([log](docs/log.md))."""
FOREST = """
Each dot is a difference in points with its 95% interval. Right of the line the first method is better. A hollow dot
has a borrowed deviation; a thick line and a large dot are bold in the tables. A colour is a question. Each panel has
its own scale.
"""


def whole_page(evidence: Evidence, figures: Sequence[str], results: Path) -> str:
    """RESULTS.md: the study of CIFAR-100, then the parts of the plans that have a folder in `results`."""
    photographs, studies = results / "imagenet", all_studies(evidence, results)
    others = OtherStudies(
        [studies_sentence(studies), imagenet_summary(photographs).replace("RESULTS.md#", "#")],
        [imagenet_finding(photographs), supbyol_line(results), few_line(results / "labels")],
        studies_section(studies),
        [imagenet_line(photographs), plans_line(results)],
    )
    return write_page(evidence, figures, others) + imagenet_part(photographs) + further_parts(results) + noise_part()


def write_page(evidence: Evidence, figures: Sequence[str], others: OtherStudies = NO_OTHERS) -> str:
    """The first page for everyone, then the statistics."""
    alpha_figures = [name for name in figures if name.endswith(("-alpha.png", "-maps.png"))]
    sections = [
        first_page(evidence, [name for name in figures if name.endswith("-labels.png")], others),
        statistics_head(evidence, figures),
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


def statistics_head(evidence: Evidence, figures: Sequence[str]) -> str:
    pictures = "".join(
        f"\n![differences with intervals](docs/figures/{name})\n{FOREST}" for name in figures if "differences" in name
    )
    return f"""## Statistics

{METRIC_GROUPS} Verdicts per group of metrics:

{summary_table(evidence)}
{chr(10).join(summary_lines(evidence))}

{certainty(evidence)}
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

- Pretraining: CIFAR-100 (lossless, all 50,000 training images; pilots hold out 5,000 of them), CIFAR ResNet-18, batch
  256, bf16, the same augmentations for every method.
- Alpha is {stated_alphas(evidence.plan)}, as in App. H; the pilots did not search for a better one.
- Pilots chose learning rate and weight decay on the 5,000 held-out images only. The candidates come from an earlier
  prototype and differ between methods. The commands below have them; the recipes keep App. H's rates
  ([deviations](docs/deviations.md)). A final run has `data.holdout=0`, so its monitor has no held-out images, and it is
  tested once, when it is finished. Seeds are 0, 1, 2; none was chosen. Failed and collapsed runs are listed.
- k-NN: k = 20, cosine, temperature 0.1. Linear: the probe named under Conditions; today's finds the
  optimum. Cross-entropy's encoder is evaluated like the
  others, without its classifier. CIFAR-10 is a JPEG copy; Pets has a short side of 64 px and is evaluated at 32;
  GTSRB's episodes come from its test set. Few-shot: 5-way, the same 2000 episodes for all, 16 queries per class (15 in
  Omniglot's 5-shot episodes: its classes have 20 drawings). S_W/S_T and effective rank: L2-normalised encoder features
  of the test images.{VIEWS}
- "±" is half a 95% t-interval over seeds; a number without it is one seed. Differences: "[low, high]" is a 95%
  interval. "*": one side has one seed, so the deviation over seeds is borrowed from the methods and alphas that have
  several (pooled; without collapsed runs). It is an assumption that a method with one seed varies as much as those;
  without "*" it is an assumption that both methods vary equally: see
  [what the verdicts depend on](#what-the-verdicts-depend-on).
- Intervals cover seeds only, not other test images, settings or longer training. {TEST_IMAGES:,} test images alone
  leave an accuracy uncertain by up to {image_uncertainty(TEST_IMAGES)} points, Pets' {PETS_TEST_IMAGES:,} by up to
  {image_uncertainty(PETS_TEST_IMAGES)}{episodes}; a difference on the same images by less. Bold: both
  methods have several seeds, and zero is left out even if the interval is widened for the
  {len(differences(evidence))} differences of the tables below (not for the lines on alpha, variance, collapse and equal
  alphas). A cell of the verdict table is bold if all its accuracies are.
- Hardware: {unique(evidence, "hardware")}. Commits: {unique(evidence, "commit")}.{several}
- Versions: {versions or "none yet"}.
"""


def answers(evidence: Evidence) -> str:
    everything = tuple(KINDS)
    sections = [
        (ANCL_QUESTION, [*pair_lines(evidence, ANCL, everything), *simsiam_of_sweep(evidence)], ANCL),
        (
            CONTRASTIVE_QUESTION,
            [transfer_in_the_paper(), "", *pair_lines(evidence, CONTRASTIVE, ("transfer", "few-shot", "in-domain"))],
            CONTRASTIVE,
        ),
        (ALPHA_QUESTION, [BEST, "", *best_alpha_lines(evidence)], ()),
        (VARIANCE_QUESTION, variance_lines(evidence), ()),
        (COLLAPSE_QUESTION, [COLLAPSE, "", *collapse_lines(evidence)], ()),
        (
            STANDING_QUESTION,
            [AT_ITS_ALPHA, "", *pair_lines(evidence, STANDING, everything, AHEAD), *at_equal_alpha(evidence)],
            STANDING,
        ),
    ]
    lines = ["## Answers", "", papers_rows(), ""]
    for question, answer, pairs in sections:
        lines += [f"### {question}", "", *answer, "", *pair_table(evidence, pairs)]
    return "\n".join([*lines, "### What the verdicts depend on", "", *sensitivity_lines(evidence), ""])


def papers_rows() -> str:
    """The paper's differences, and what they would be if two of its columns are swapped."""
    swapped = {"simsiam": "byol", "byol": "simsiam"}
    text = " and ".join(
        f"{', '.join(f'{column[method] - column[swapped[other]]:+.2f}' for column in paper_columns().values())} "
        f"({NAMES[method]} - {NAMES[other]})"
        for method, other in ANCL
    )
    return f"""Rows "paper" are differences in its Table H.1: 1000 epochs instead of our 100, other rates and another
probe, no intervals. Compared with solo-learn,
the paper's SimSiam and BYOL columns look swapped; then linear and CIFAR-10 linear would be {text}."""


def transfer_in_the_paper() -> str:
    by_method = paper_columns()["crossed"]
    difference = by_method["supcon"] - by_method["simclr"]
    return f"""The paper's App. H finds "a decline or slight increase" on CIFAR ({difference:+.2f} in its table). For
encoders of ImageNet-100 it finds the opposite: labels help every method in transfer (Table 5) and few-shot learning
(Table 6), also on Pets, Omniglot and GTSRB; its images have 224 px, ours 32."""


def simsiam_of_sweep(evidence: Evidence) -> list[str]:
    """SupSiam against SimSiam at equal settings, if alpha 1 is not the main table's SimSiam."""
    simsiam, ours = separate_simsiam(evidence), evidence.methods["supsiam"]
    if simsiam is None:
        return []
    gaps = evidence.row_gaps(ours, simsiam)
    linear = f"; linear {gaps['linear'].text()}" if "linear" in gaps else ""
    verdicts = count_verdicts({measure: difference.verdict for measure, difference in gaps.items()})
    return [
        f"- **{TITLES['supsiam']} - SimSiam with SupSiam's settings** (alpha 1 below, same learning rate and weight "
        f"decay): {verdicts} accuracies{linear}."
    ]


def at_equal_alpha(evidence: Evidence) -> list[str]:
    """SupSiam against SupBYOL at SupBYOL's alpha."""
    alpha, gaps = equal_alpha_gaps(evidence)
    if not gaps:
        return []
    verdicts = describe_verdicts(gaps, ACCURACIES, AHEAD)
    texts = ", ".join(f"{MEASURES[measure][0]} {difference.text()}" for measure, difference in gaps.items())
    return [f"- **SupSiam - SupBYOL, both at alpha {alpha:g}**: {verdicts}. {texts}."]


def pair_table(evidence: Evidence, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The differences of these pairs; below each, the paper's difference."""
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


# --- verdicts ---------------------------------------------------------------------------------------------------------


def summary_table(evidence: Evidence) -> str:
    """One row per pair, verdicts counted per group of metrics; bold if all of them hold widened."""
    rows = []
    for question, pairs, words in QUESTIONS:
        for number, pair in enumerate(pairs):
            gaps, bold = evidence.gaps(*pair), significant_measures(evidence, *pair)
            cells = (
                [cell(gaps, bold, measures, words) for measures in KINDS.values()]
                if gaps
                else [missing(evidence, pair), *[""] * (len(KINDS) - 1)]
            )
            rows.append([f"[{question}](#{slug(question)})" if not number else "", pair_title(*pair), *cells])
    return table(["question", "difference", *KINDS], rows)


def cell(gaps: Mapping[str, Gap], bold: set[str], measures: Sequence[str], words: Mapping[str, str]) -> str:
    verdicts = {
        measure: words.get(gaps[measure].verdict, gaps[measure].verdict) for measure in measures if measure in gaps
    }
    text = count_verdicts(verdicts) or "not measured yet"
    return f"**{text}**" if verdicts and set(verdicts) <= bold else text


def summary_lines(evidence: Evidence) -> list[str]:
    """One line for each of the other questions."""
    bests = best_alphas(evidence)
    inside = count_verdicts({best.measure: best.inside for best in bests})
    strict_count = sum(best.inside == "yes" and best.strict.verdict == "helps" for best in bests)
    collapse: dict[tuple[str, str], list[str]] = {}
    for cell in collapse_cells(evidence):
        collapse.setdefault((cell.decay, cell.verdict), []).append(cell.setup)
    answers = {
        ALPHA_QUESTION: f"{inside} accuracies (yes: {strict_count} if all {len(bests)} are allowed for)"
        if inside
        else "not measured yet",
        VARIANCE_QUESTION: variance_summary(evidence) or "not measured yet",
        COLLAPSE_QUESTION: "; ".join(
            f"with weight decay {decay} {', '.join(setups)}: {verdict}" for (decay, verdict), setups in collapse.items()
        ),
    }
    return [f"- [{question}](#{slug(question)}) {answer}." for question, answer in answers.items()]


def certainty(evidence: Evidence) -> str:
    """How many differences are clear, also when widened, and how many borrow a deviation from which rows."""
    gaps = differences(evidence)
    if not gaps:
        return "No two methods can be compared yet."
    bold_count = sum(len(significant_measures(evidence, *pair)) for pair in PAIRS)
    clear_count = sum(difference.excludes_zero for difference in gaps)
    borrowed_count = sum(difference.borrowed for difference in gaps)
    return (
        f"Of {len(gaps)} differences {clear_count} have a 95% interval that leaves out 0. "
        f"{len(gaps) - borrowed_count} have several seeds on both sides; of these {bold_count} still leave out 0 if "
        f"every interval is widened for all {len(gaps)} (Bonferroni): these are bold. {borrowed_count} have one seed "
        f"on a side and borrow the deviation of {lender_names(evidence.lender_rows)}; none of them is bold."
    )


def lender_names(rows: Sequence[Row]) -> str:
    """The rows with several seeds, whose deviation the others borrow."""
    if not rows:
        return "none yet"
    freedom = sum(len(row.results) - 1 for row in rows)
    return f"{join_names([row.name for row in rows])} ({freedom} degrees of freedom)"


def update_readme(document: Path, evidence: Evidence, results: Path) -> None:
    replace_section(document, "results", readme_block(evidence, imagenet_summary(results / "imagenet")))
