"""The measured table of docs/choosing.md: which method is better at what, from the results of both studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.evidence.findings import OTHER_DATA, other_data_words
from experiments.evidence.imagenet_page import ACCURACIES as IMAGENET_ACCURACIES
from experiments.evidence.imagenet_page import OTHER_DATA as IMAGENET_OTHER
from experiments.evidence.imagenet_page import method_rows
from experiments.evidence.results import NAMES, Evidence, Gap, Row
from experiments.evidence.study_page import row_gaps
from experiments.evidence.tables import table
from supancl.files import replace_section

# question -> the two methods it is about
QUESTIONS = {
    "labels or none?": ("supsiam", "simsiam"),
    "SupSiam or SupCon?": ("supsiam", "supcon"),
    "SupSiam or cross-entropy?": ("supsiam", "crossentropy"),
    "SupSiam or SupBYOL? (alpha 0.5 and 0.8; on photographs both 0.5)": ("supsiam", "supbyol"),
    "without labels, SimSiam or SimCLR?": ("simsiam", "simclr"),
}


def update_choosing(document: Path, evidence: Evidence, imagenet: Evidence) -> None:
    replace_section(document, "choosing", choosing_table(evidence, method_rows(imagenet)))


def choosing_table(evidence: Evidence, photographs: Mapping[str, Row]) -> str:
    """One row per question: the difference of the first method to the second, in each study."""
    rows = []
    for question, (ours, theirs) in QUESTIONS.items():
        rows.append(
            [
                question,
                f"{NAMES[ours]} - {NAMES[theirs]}",
                describe(evidence.gaps(ours, theirs), OTHER_DATA),
                describe(row_gaps(photographs, ours, theirs, IMAGENET_ACCURACIES), IMAGENET_OTHER),
            ]
        )
    columns = ["question", "difference", "CIFAR-100, ResNet-18", "ImageNet photographs of 64 px, ResNet-50"]
    return table(columns, rows)


def describe(gaps: Mapping[str, Gap], others: tuple[str, ...]) -> str:
    """The accuracies of the classes trained on, then those on other data."""
    if not gaps:
        return "not measured"
    titles = {"linear": "linear", "knn": "k-NN"}
    texts = [f"{title} {gaps[measure].text(1)}" for measure, title in titles.items() if measure in gaps]
    own = f"own classes: {', '.join(texts) or 'not measured'}"
    return f"{own}; other data: {other_data_words(gaps, others)}"
