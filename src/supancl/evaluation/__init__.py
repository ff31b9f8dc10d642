"""Evaluation protocols on real data: from an encoder and a source of images to results."""

from supancl.evaluation.comparison import (
    describe_episode_images,
    describe_queries_used,
    differences,
    different_images_warnings,
    overlap_warnings,
    rankings,
)
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions, SourceCache, open_evaluated_encoder
from supancl.evaluation.few_shot import EpisodeSettings, evaluate_few_shot
from supancl.evaluation.finetune import FineTuning, evaluate_finetuning
from supancl.evaluation.nearest import evaluate_knn
from supancl.evaluation.protocols import SgdSettings, evaluate_linear, evaluate_transfer, evaluate_variance
from supancl.evaluation.suite import Plan, Suite, run_suite

__all__ = [
    "EpisodeSettings",
    "EvaluatedEncoder",
    "EvaluationOptions",
    "FineTuning",
    "Plan",
    "SgdSettings",
    "SourceCache",
    "Suite",
    "describe_episode_images",
    "describe_queries_used",
    "differences",
    "different_images_warnings",
    "evaluate_few_shot",
    "evaluate_finetuning",
    "evaluate_knn",
    "evaluate_linear",
    "evaluate_transfer",
    "evaluate_variance",
    "open_evaluated_encoder",
    "overlap_warnings",
    "rankings",
    "run_suite",
]
