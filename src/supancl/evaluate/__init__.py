"""An encoder and a source become features and figures: what `evaluate` and `embed` do."""

from typing import Any

from supancl.evaluate.compared import differences, drawn_from, queries_of, rankings, trained_on, unlike
from supancl.evaluate.embedding import embed_to_file
from supancl.evaluate.few_shot import few_shot_of
from supancl.evaluate.finetune import FineTuning, finetune_of
from supancl.evaluate.protocols import knn_of, linear_of, transfer_of, variance_of
from supancl.evaluate.subject import Look, Shelf, Subject, make_look, open_subject
from supancl.evaluate.suite import Plan, Suite, suite_of
from supancl.moved import moved_attribute

__all__ = [
    "FineTuning",
    "Look",
    "Plan",
    "Shelf",
    "Subject",
    "Suite",
    "differences",
    "drawn_from",
    "embed_to_file",
    "few_shot_of",
    "finetune_of",
    "knn_of",
    "linear_of",
    "make_look",
    "open_subject",
    "queries_of",
    "rankings",
    "suite_of",
    "trained_on",
    "transfer_of",
    "unlike",
    "variance_of",
]


def __getattr__(name: str) -> Any:
    return moved_attribute(__name__, name)
