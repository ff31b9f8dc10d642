"""The studies side by side: the same comparisons after CIFAR-100, CIFAR-10 and photographs.

The table stands on the first page of RESULTS.md and in docs/choosing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.evidence.findings import OTHER_DATA, WORDS
from experiments.evidence.further_page import cifar10_rows
from experiments.evidence.further_plans import cifar10_plan
from experiments.evidence.imagenet_page import ACCURACIES as IMAGENET_ACCURACIES
from experiments.evidence.imagenet_page import ANCHOR as IMAGENET_ANCHOR
from experiments.evidence.imagenet_page import OTHER_DATA as IMAGENET_OTHER_DATA
from experiments.evidence.imagenet_page import PICTURE, method_rows
from experiments.evidence.plans import imagenet_plan
from experiments.evidence.results import ACCURACIES, NAMES, NO_CLEAR_DIFFERENCE, Evidence, Gap, read_evidence
from experiments.evidence.study_page import row_gaps
from experiments.evidence.tables import slug, table
from supancl.files import replace_section

# question -> the two methods it is about
QUESTIONS = {
    "labels or none?": ("supsiam", "simsiam"),
    "the same, with a momentum branch?": ("supbyol", "byol"),
    "SupSiam or SupCon?": ("supsiam", "supcon"),
    "SupSiam or cross-entropy?": ("supsiam", "crossentropy"),
    "SupSiam or SupBYOL?": ("supsiam", "supbyol"),
    "without labels, SimSiam or SimCLR?": ("simsiam", "simclr"),
}
PHOTOGRAPHS = "photographs"
PHOTOGRAPHS_PICTURE = f"""
![accuracy with and without labels, photographs](docs/figures/{PICTURE})

Pretrained on photographs. Hollow, filled and dashed as in the picture above; bars are 95% intervals over seeds, and a
method without a bar has one seed. Each panel has its own scale.
"""
TITLE = "Is it the same for other images?"
SHORT = {**WORDS, NO_CLEAR_DIFFERENCE: "unclear"}


class Study(NamedTuple):
    """One pretraining set: the differences of two methods, and which accuracies are on other data."""

    title: str
    gaps: Callable[[str, str], Mapping[str, Gap]]
    other_data: Sequence[str] = OTHER_DATA


def all_studies(evidence: Evidence, results: Path) -> list[Study]:
    """`evidence` is that of CIFAR-100; `results` has a folder for each further plan."""
    cifar10 = cifar10_rows(read_evidence(results / "cifar10", cifar10_plan()))
    photographs = method_rows(read_evidence(results / "imagenet", imagenet_plan()))

    def photograph_gaps(ours: str, theirs: str) -> Mapping[str, Gap]:
        return row_gaps(photographs, ours, theirs, IMAGENET_ACCURACIES)

    return [
        Study("CIFAR-100", evidence.gaps),
        Study("CIFAR-10", lambda ours, theirs: row_gaps(cifar10, ours, theirs, ACCURACIES)),
        Study(PHOTOGRAPHS, photograph_gaps, IMAGENET_OTHER_DATA),
    ]


def studies_table(studies: Sequence[Study]) -> str:
    """One row per question: the difference on a study's own classes, then how many are clear on other data."""
    rows = [
        [
            question,
            f"{NAMES[ours]} - {NAMES[theirs]}",
            *(own_classes(study.gaps(ours, theirs)) for study in studies),
            *(count_other_data(study.gaps(ours, theirs), study.other_data) for study in studies),
        ]
        for question, (ours, theirs) in QUESTIONS.items()
    ]
    places = [f"{place}: {study.title}" for place in ("own classes", "other data") for study in studies]
    return table(["question", "difference", *places], rows)


def own_classes(gaps: Mapping[str, Gap]) -> str:
    return gaps["linear"].text(1) if "linear" in gaps else "-"


def count_other_data(gaps: Mapping[str, Gap], measures: Sequence[str]) -> str:
    """How many of these accuracies are better, worse or unclear.

    >>> count_other_data({"pets": Gap(2.0, 1.0, 3.0), "crossed": Gap(1.0, -1.0, 3.0)}, OTHER_DATA)
    '1 better, 1 unclear, 4 not measured'
    """
    verdicts = [gaps[measure].verdict for measure in measures if measure in gaps]
    counts = {SHORT[verdict]: verdicts.count(verdict) for verdict in SHORT if verdict in verdicts}
    counts["not measured"] = len(measures) - len(verdicts)
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) if verdicts else "-"


def studies_section(studies: Sequence[Study]) -> str:
    """The part of the first page; empty while only one study has results."""
    if len(with_results(studies)) < 2:
        return ""
    return f"""### {TITLE}

The same comparisons after pretraining on [CIFAR-10](#pretrained-on-cifar-10) and on
[ImageNet photographs](#{IMAGENET_ANCHOR}) (64 px, ResNet-50), whose studies are smaller. "Own classes": difference in
points of the linear probe, with its 95% interval over seeds. "*": one side or both have one seed, and the deviation is
that of methods with several. "Other data": in how many accuracies the first method is clearly better, clearly worse, or
neither. SupSiam has alpha 0.5, SupBYOL 0.8 on CIFAR-100 and CIFAR-10, and 0.5 on photographs.
The projectors of SupCon and SimCLR lack the authors' batch norm.

{studies_table(studies)}{PHOTOGRAPHS_PICTURE * any(study.title == PHOTOGRAPHS for study in with_results(studies))}"""


def studies_sentence(studies: Sequence[Study]) -> str:
    """For the summary: in which studies SupSiam is better than SimSiam on its own classes; empty with one study."""
    better = [
        study.title
        for study in with_results(studies)[1:]
        if study.gaps("supsiam", "simsiam")["linear"].verdict == "helps"
    ]
    if not better:
        return ""
    return (
        f"SupSiam is also better than SimSiam on its own classes after pretraining on {' or '.join(better)} "
        f"([table](#{slug(TITLE)}))."
    )


def with_results(studies: Sequence[Study]) -> list[Study]:
    return [study for study in studies if "linear" in study.gaps("supsiam", "simsiam")]


def update_choosing(document: Path, studies: Sequence[Study]) -> None:
    replace_section(document, "choosing", studies_table(studies))
