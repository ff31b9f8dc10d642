"""An encoder and a source become features and figures: what `evaluate` and `embed` do."""

from supancl.judge.embedding import embed_to_file
from supancl.judge.protocols import few_shot_of, knn_of, linear_of, transfer_of, variance_of
from supancl.judge.subject import Look, Subject, make_look, open_subject

__all__ = [
    "Look", "Subject", "embed_to_file", "few_shot_of", "knn_of", "linear_of", "make_look", "open_subject",
    "transfer_of", "variance_of",
]
