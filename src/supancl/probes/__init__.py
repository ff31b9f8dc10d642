"""Measures of an encoder's features, however the encoder was trained."""

from supancl.probes.answers import accuracy
from supancl.probes.features import Features, embed
from supancl.probes.fewshot import FewShot, few_shot, sample_episodes
from supancl.probes.knn import knn_accuracy, knn_answers, knn_leave_one_out, neighbours
from supancl.probes.linear import LinearProbe, linear_probe, transfer
from supancl.probes.sgd import SgdProbe, linear_accuracy, sgd_probe
from supancl.probes.variance import Collapse, Variance, collapse, effective_rank, variance

__all__ = [
    "Collapse",
    "Features",
    "FewShot",
    "LinearProbe",
    "SgdProbe",
    "Variance",
    "accuracy",
    "collapse",
    "effective_rank",
    "embed",
    "few_shot",
    "knn_accuracy",
    "knn_answers",
    "knn_leave_one_out",
    "linear_accuracy",
    "linear_probe",
    "neighbours",
    "sample_episodes",
    "sgd_probe",
    "transfer",
    "variance",
]
