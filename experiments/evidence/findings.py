"""The first page of RESULTS.md, and the README's block: findings in plain sentences, made from the numbers by rule."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from experiments.evidence.claims import (
    AGAINST_COLLAPSE,
    ANCL,
    CONTRASTIVE,
    STANDING,
    best_alphas,
    cell_decay,
    collapse_cells,
    equal_alpha_gaps,
    has_collapsed,
    missing,
    one_seed_note,
    variance_gaps,
    variance_verdicts,
)
from experiments.evidence.results import (
    ACCURACIES,
    KINDS,
    NAMES,
    NO_CLEAR_DIFFERENCE,
    ONE_SEED,
    TITLES,
    Evidence,
    Gap,
    mean_text,
    waiting,
)
from experiments.evidence.tables import CONTRASTIVE_HEADS, stated_alphas, table, tie_note, unique
from supancl.errors import plural

PAGE = "RESULTS.md"
# measure -> title in the small table
SMALL_TABLE = {
    "linear": "CIFAR-100",
    "crossed": "CIFAR-10",
    "pets": "Pets",
    "omniglot_5": "Omniglot",
    "traffic-signs_5": "GTSRB",
}
LABELLED = dict((*ANCL, *CONTRASTIVE))  # method with labels -> the same without
SUPSIAM_STANDING = [pair for pair in STANDING if pair[0] == "supsiam"]
OTHER_DATA = (*KINDS["transfer"], *KINDS["few-shot"])
GLOSSARY = """### Words

- **Linear probe**: a linear classifier on the frozen encoder's features. **k-NN**: the vote of the 20 training images
  with the most similar features.
- **Alpha**: the weight of the loss that needs no labels; 1 is SimSiam or BYOL, 0 uses labels alone. **Pool**: stored
  targets, whose mean over a class is the supervised target. **EMA**: the target branch is a moving average of the
  online branch.
- **Collapse**: all images get nearly the same features, or features that use few directions, which can still be
  classified in part. **Effective rank**: how many directions the features use. **S_W, S_T**: variance of unit features
  within classes, and of all.
- **Pets**: 37 breeds of cats and dogs. **Omniglot**: handwritten letters. **GTSRB**: traffic signs. All at 32 px, as
  large as CIFAR's images.
"""
WORDS = {"helps": "better", "hurts": "worse", NO_CLEAR_DIFFERENCE: "no clear difference", ONE_SEED: "too few seeds"}


class OtherStudies(NamedTuple):
    """What the first page says about the studies that follow."""

    summary: Sequence[str] = ()
    findings: Sequence[str] = ()
    section: str = ""
    unknown: Sequence[str] = ()


def first_page(evidence: Evidence, pictures: Sequence[str], others: OtherStudies) -> str:
    """What anyone can read: a summary, the table, the picture, what is known, what is not, conditions and words."""
    steps = len(evidence.plan.steps)
    done = steps - len(waiting(evidence.plan, evidence.results))
    unlabelled = sum(method in LABELLED.values() for method in evidence.methods)
    picture = "".join(
        f"\n![accuracy with and without labels](docs/figures/{name})\n\n"
        "Hollow: without labels. Filled: the same method with labels. Dashed: cross-entropy. Bars are 95% intervals\n"
        "over seeds; a method without a bar has one seed. Each panel has its own scale.\n"
        for name in pictures
    )
    return f"""# Results

{in_short(evidence, others.summary)}
## Findings

{len(evidence.methods)} methods were pretrained on CIFAR-100, {unlabelled} of them without its labels. Each encoder was
then frozen and tested: on CIFAR-100 itself, and on other data that it had not seen. Accuracy in percent (linear probe;
Omniglot and GTSRB: five classes, five examples of each). "±" is half a 95% interval over seeds.
[What the words mean](#words) is below.

{small_table(evidence)}{alpha_note(evidence)}{picture}
### What is known

{len(ACCURACIES)} accuracies were measured: k-NN and a linear probe on CIFAR-100; on other data CIFAR-10 and Pets
(linear probes), Omniglot and GTSRB (five classes, one or five examples of each).

{known_lines(evidence, others.findings)}

{others.section}
### What is not known

{open_lines(evidence, others.unknown)}

### Conditions

- CIFAR-100, {epochs(evidence)} epochs, CIFAR ResNet-18, images of 32 px, batch 256, bf16; hardware:
  {unique(evidence, "hardware")}. Alpha is {stated_alphas(evidence.plan)}, as in the paper's App. H.
- Learning rate and weight decay of each method: the best of three short runs, chosen on held-out training images. Every
  run was tested once (one encoder twice, with equal results), and no seed was selected. Failed and collapsed runs are
  listed.
- The linear probe is that of version 0.1.0, which stopped a little early, with a ridge chosen on images that the
  encoder was trained on. That may cost methods with labels more than others; k-NN chooses nothing.
- "Better" and "worse": the 95% interval of this one difference leaves out zero. With so many differences, some do so by
  chance; under [Statistics](#statistics) those of CIFAR-100 are bold that remain if all are allowed for. For CIFAR-10
  and photographs this was not done. "No clear difference" does not mean equal.
- {done} of the {steps} runs planned for this study are done. `make results` makes this page from the files in
  experiments/results/; no result is typed, and every verdict follows from the numbers by a rule.
- More: [statistics](#statistics), [protocols](#how-it-was-measured), [all runs](#every-run).

{GLOSSARY}"""


def in_short(evidence: Evidence, other_studies: Sequence[str]) -> str:
    """A few sentences for readers who read no further; empty while nothing is measured."""
    if not any(row.results for row in evidence.methods.values()):
        return ""
    single = sum(len(row.results) == 1 for row in evidence.methods.values())
    lines = [
        *supsiam_sentences(evidence),
        *filter(None, other_studies),
        f"Methods with one seed: {single} of {len(evidence.methods)}. Longer training was not tested.",
    ]
    listed = "\n".join(f"- {line}" for line in lines)
    return f"""SimSiam and BYOL learn from images without labels. SupSiam and SupBYOL are the same with labels, as
proposed by [Oh and Lee, ICML 2024](docs/paper.md) ("the paper"); SupCon and cross-entropy use labels in other ways.
Points are percent of accuracy, and [low, high] is a 95% interval over seeds. In short, for encoders of CIFAR-100
(32 px, {epochs(evidence)} epochs) unless other images are named:

{listed}
"""


def alpha_note(evidence: Evidence) -> str:
    """The heads of the contrastive rows, and what is left of SupSiam - SupBYOL at the same alpha."""
    alpha, gaps = equal_alpha_gaps(evidence)
    if "linear" not in gaps:
        return ""
    difference = gaps["linear"]
    borrowed = f"; one seed of {NAMES['supbyol']}" if difference.borrowed else ""
    return (
        f"\n{CONTRASTIVE_HEADS} With alpha {alpha:g} in both, SupSiam - SupBYOL is "
        f"{difference.text(1).rstrip('*')} on CIFAR-100 (linear probe{borrowed}).\n"
    )


def small_table(evidence: Evidence) -> str:
    """One row per method, pairs next to each other; methods without a result are left out."""
    order = [method for pair in LABELLED.items() for method in reversed(pair)]
    order += [method for method in evidence.methods if method not in order]
    rows = [
        [
            TITLES[method],
            "no" if method in LABELLED.values() else "yes",
            str(len(row.results)),
            *(mean_text(row.values(measure), 1) for measure in SMALL_TABLE),
        ]
        for method in order
        if (row := evidence.methods.get(method)) is not None and row.results
    ]
    columns = ["pretraining", "labels", "seeds", *SMALL_TABLE.values()]
    return table(columns, rows) if rows else "Nothing is measured yet.\n"


def epochs(evidence: Evidence) -> str:
    return ", ".join(sorted({str(step.epochs) for step in evidence.plan.steps if step.stage == "final"}))


# --- what is known ----------------------------------------------------------------------------------------------------


def known_lines(evidence: Evidence, other_findings: Sequence[str] = ()) -> str:
    answers = {
        f"Do CIFAR-100's labels help SimSiam and BYOL? {answer(evidence, ANCL, ACCURACIES)}": pair_sentences(
            evidence, ANCL
        ),
        f"Do labels help SimCLR and MoCo-v2 on other data? {answer(evidence, CONTRASTIVE, OTHER_DATA)}": pair_sentences(
            evidence, CONTRASTIVE
        ),
        "How does SupSiam compare with SupCon and cross-entropy?": pair_sentences(evidence, SUPSIAM_STANDING),
        "Which alpha is best?": alpha_sentence(evidence),
        "Do labels make classes tighter?": variance_sentence(evidence),
        "Does the pool or the momentum branch (EMA) prevent collapse?": collapse_sentence(evidence),
    }
    lines = [f"**{question}** {text}" for question, text in answers.items()]
    return "\n".join(f"- {line}" for line in [*lines, *filter(None, other_findings)])


def answer(evidence: Evidence, pairs: Sequence[tuple[str, str]], measures: Sequence[str]) -> str:
    """Yes: better in most of these accuracies and worse in none; no: the reverse."""
    verdicts = [
        gaps[measure].verdict
        for pair in pairs
        for gaps in [evidence.gaps(*pair)]
        for measure in measures
        if measure in gaps
    ]
    if not verdicts or set(verdicts) == {ONE_SEED}:
        return "Not measured yet."
    helps, hurts = (2 * verdicts.count(verdict) > len(verdicts) for verdict in ("helps", "hurts"))
    if helps and "hurts" not in verdicts:
        return "Yes."
    return "No." if hurts and "helps" not in verdicts else "It depends."


def pair_sentences(evidence: Evidence, pairs: Sequence[tuple[str, str]]) -> str:
    return " ".join(pair_sentence(evidence, *pair) for pair in pairs)


def pair_sentence(evidence: Evidence, ours: str, theirs: str) -> str:
    """One sentence if all accuracies agree; else CIFAR-100 and other data one after the other."""
    gaps, title = evidence.gaps(ours, theirs), f"{NAMES[ours]} against {NAMES[theirs]}"
    if not gaps:
        return f"{title}: {missing(evidence, (ours, theirs))}."
    title += one_seed_note(evidence, ours, theirs)
    if {difference.verdict for difference in gaps.values()} == {"helps"}:
        own, others = (span(gaps, measures) for measures in (KINDS["in-domain"], OTHER_DATA))
        return f"{title}: {count_words(gaps, ACCURACIES)}, on CIFAR-100 by {own} points, on other data by {others}."
    return (
        f"{title}: on CIFAR-100 {count_words(gaps, KINDS['in-domain'])}; on other data {count_words(gaps, OTHER_DATA)}."
    )


def span(gaps: Mapping[str, Gap], measures: Sequence[str]) -> str:
    """The smallest and the largest of these differences.

    >>> span({"knn": Gap(24.0, 23.0, 25.0), "linear": Gap(16.7, 15.9, 17.5)}, ("knn", "linear"))
    '16.7 to 24.0'
    """
    means = [gaps[measure].mean for measure in measures if measure in gaps]
    return f"{min(means):.1f} to {max(means):.1f}" if means else "-"


def count_words(gaps: Mapping[str, Gap], measures: Sequence[str]) -> str:
    """How many of these accuracies are better, worse or neither.

    >>> count_words({"knn": Gap(24.0, 23.0, 25.0), "linear": Gap(16.7, 15.9, 17.5)}, ("knn", "linear"))
    'better in both accuracies'
    >>> count_words({"knn": Gap(1.0, -1.0, 3.0), "linear": Gap(-2.0, -3.0, -1.0)}, ("knn", "linear"))
    'worse in 1 of 2, no clear difference in 1'
    """
    verdicts = [gaps[measure].verdict for measure in measures if measure in gaps]
    counts = {word: verdicts.count(verdict) for verdict, word in WORDS.items() if verdict in verdicts}
    if len(counts) == 1:
        (word,) = counts
        how_many = {1: "1 accuracy", 2: "both accuracies"}.get(len(verdicts), f"all {len(verdicts)} accuracies")
        return f"{word} in {how_many}"
    first, *others = (f"{word} in {count}" for word, count in counts.items()) if counts else ("not measured yet",)
    return ", ".join([f"{first} of {len(verdicts)}" if others else first, *others])


def alpha_sentence(evidence: Evidence) -> str:
    bests = best_alphas(evidence)
    if not bests:
        return "Not measured yet."
    inside = sum(best.inside == "yes" for best in bests)
    strict = sum(best.inside == "yes" and best.strict.verdict == "helps" for best in bests)
    (alpha, times), *_ = Counter(best.alpha for best in bests).most_common()
    return (
        f"For SupSiam, an alpha between 0 (labels alone) and 1 (no labels) is clearly better than both ends in "
        f"{inside} of {len(bests)} accuracies ({strict} if intervals are widened for {len(bests)}). The highest mean "
        f"is at alpha {alpha:g} in {times} of {len(bests)}; learning rate and weight decay were chosen at alpha 0.5, "
        "which may favour it."
    )


def variance_sentence(evidence: Evidence) -> str:
    """S_W/S_T on test images, with labels alone against without."""
    verdict = variance_verdicts(evidence).get("ratio")
    if verdict is None:
        return "Not measured yet."
    means = [statistics.fmean(row.values("ratio")) for row in evidence.alphas.values() if row.values("ratio")]
    course = "; it rises with every step of alpha" if all(low < high for low, high in pairwise(means)) else ""
    within = variance_verdicts(evidence, "within").get("within", "not measured")
    word = {"yes": "Yes, compared with the total variance.", "no": "No."}.get(verdict, f"{verdict.capitalize()}.")
    middle = variance_gaps(evidence, "within", alpha=0.5).get("within")
    at_half = f" At alpha 0.5 minus alpha 1 it is {middle.text(3)}." if middle is not None else ""
    return (
        f"{word} The variance within classes divided by the total variance (S_W/S_T, test images) is {means[0]:.2f} "
        f"with labels alone and {means[-1]:.2f} without labels{course}. Is the variance within classes (S_W) itself "
        f"smaller with labels alone? {within.capitalize()}.{at_half} These are features of the encoder; the paper's "
        "Table 1 has those of the projector, which were measured in the later studies only."
    )


def collapse_sentence(evidence: Evidence) -> str:
    """Which of four runs collapsed, at each weight decay."""
    sentences, cells = [], collapse_cells(evidence)
    for harsh in (False, True):
        decay = cell_decay(evidence, harsh)
        if not any(cell.decay == decay for cell in cells):
            continue
        collapsed = {key: has_collapsed(row) for key, row in evidence.cells(harsh).items()}
        names = [{**AGAINST_COLLAPSE, (False, False): "neither"}[key] for key, value in collapsed.items() if value]
        if None in collapsed.values():
            text = "not all measured yet"
        elif not names:
            text = "no run collapsed, not even that with neither (in the paper it does), so nothing was prevented"
        elif names == ["neither"]:
            text = "only the run with neither collapsed"
        else:
            text = f"collapsed with {join_names(names)}"
        chosen = ", at which SimSiam collapses too" if harsh else ""
        sentences.append(f"Weight decay {decay}{chosen}: {text}.")
    return " ".join([*sentences, "One seed each."]) if sentences else "Not measured yet."


# --- what is not known ------------------------------------------------------------------------------------------------


def open_lines(evidence: Evidence, other_plans: Sequence[str]) -> str:
    single = [row.name for row in evidence.methods.values() if len(row.results) == 1]
    absent = [row.name for row in evidence.methods.values() if not row.results]
    unfinished = waiting(evidence.plan, evidence.results)
    lines = [
        f"Longer training: the paper trains for 1000 epochs, these runs had {epochs(evidence)}. Differences may "
        "shrink; that was not tested.",
        f"Better settings: {max(map(len, evidence.plan.pilots.values()))} were tried for each method, and the best two "
        f"often differ by less than the held-out images can show {tie_note(evidence)}.",
        "Larger networks at this image size; SupBYOL at alphas other than 0.5 and 0.8.",
        "Eleven of the 16 data sets of the paper's Tables 5 and 6, for which there is code but no result: DTD, Food, "
        "MIT67, SUN397, Caltech101, CUB200, Dogs, Flowers, Aircraft, FC100 and Fungi. With results: CIFAR-10, "
        "CIFAR-100 and Pets (transfer), Omniglot and GTSRB (few-shot learning).",
    ]
    if single:
        lines.append(
            f"How much seeds differ for {join_names(single)}: they have one seed in this study. Their intervals "
            "assume the deviation of the methods that have several."
        )
    if absent:
        lines.append(f"Anything about {join_names(absent)}: no run is done.")
    if unfinished:
        names = ", ".join(step.name for step in unfinished[:4]) + ", ..." * (len(unfinished) > 4)
        lines.append(f"{plural(len(unfinished), 'run')} of this study not done: {names}.")
    return "\n".join(f"- {line}" for line in [*lines, *filter(None, other_plans)])


def join_names(names: Sequence[str]) -> str:
    """Names as English has them.

    >>> join_names(["SimSiam"]), join_names(["SimSiam", "SupCon", "BYOL"])
    ('SimSiam', 'SimSiam, SupCon and BYOL')
    """
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


# --- README -----------------------------------------------------------------------------------------------------------


def readme_block(evidence: Evidence, other_images: str = "") -> str:
    """The small table and two lines, then one about other images."""
    if not any(row.results for row in evidence.methods.values()):
        return "Nothing is measured yet.\n"
    listed = "\n".join(f"- {sentence}" for sentence in (*supsiam_sentences(evidence), other_images) if sentence)
    return f"""{small_table(evidence)}{alpha_note(evidence)}
{listed}

[RESULTS.md]({PAGE}) has all findings, what is not known, and the statistics.
"""


def supsiam_sentences(evidence: Evidence) -> list[str]:
    """How SupSiam compares on other data, and on the data it was trained on."""
    compared = [("On other data", OTHER_DATA), ("On CIFAR-100 itself", KINDS["in-domain"])]
    return [sentence for title, measures in compared if (sentence := supsiam_sentence(evidence, title, measures))]


def supsiam_sentence(evidence: Evidence, title: str, measures: Sequence[str]) -> str:
    """SupSiam against SimSiam, SupCon and cross-entropy; methods with the same words share them."""
    by_words: dict[str, list[str]] = {}
    for other in ("simsiam", "supcon", "crossentropy"):
        if gaps := evidence.gaps("supsiam", other):
            by_words.setdefault(count_words(gaps, measures), []).append(NAMES[other])
    texts = [compare_words(words, join_names(names)) for words, names in by_words.items()]
    return f"{title}, SupSiam is {'; '.join(texts)}." if texts else ""


def compare_words(words: str, other: str) -> str:
    """What `count_words` says about another method, as a part of a sentence.

    >>> compare_words("better in all 6 accuracies", "SimSiam"), compare_words("worse in 1 of 2, better in 1", "SupCon")
    ('better than SimSiam in all 6 accuracies', 'against SupCon worse in 1 of 2, better in 1')
    """
    verdict, _, rest = words.partition(" ")
    is_clear = verdict in ("better", "worse") and "," not in words
    return f"{verdict} than {other} {rest}" if is_clear else f"against {other} {words}"
