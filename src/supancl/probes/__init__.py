"""Measures of an encoder's features, however the encoder was trained."""

from supancl.probes.features import Features, embed
from supancl.probes.fewshot import Difference, FewShot, few_shot, paired_difference, sample_episodes
from supancl.probes.knn import knn_accuracy, knn_leave_one_out, knn_predict, neighbours
from supancl.probes.linear import LinearProbe, linear_accuracy, linear_probe
from supancl.probes.ranking import Ranking, Score, rank_encoders
from supancl.probes.sgd import SgdProbe, sgd_probe
from supancl.probes.transfer import Transfer, accuracy, transfer
from supancl.probes.variance import Collapse, Variance, collapse, effective_rank, variance

__all__ = [
    "Collapse",
    "Difference",
    "Features",
    "FewShot",
    "LinearProbe",
    "Ranking",
    "Score",
    "SgdProbe",
    "Transfer",
    "Variance",
    "accuracy",
    "collapse",
    "effective_rank",
    "embed",
    "few_shot",
    "knn_accuracy",
    "knn_leave_one_out",
    "knn_predict",
    "linear_accuracy",
    "linear_probe",
    "neighbours",
    "paired_difference",
    "rank_encoders",
    "sample_episodes",
    "sgd_probe",
    "transfer",
    "variance",
]
