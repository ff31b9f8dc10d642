"""Which images choose the ridge of a linear classifier, and warnings on how it was chosen and solved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from supancl.data.splits import Split
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.overlap import is_run_source, shares_images
from supancl.evaluation.sources import EvaluationData

TRAINED_IMAGES = "trained images"


def ridge_choice(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData
) -> tuple[Split | Literal["halves"] | None, dict[str, str]]:
    """Which images choose the ridge of `linear_probe`, and a `chosen_on` for the result if the probe cannot know it.

    For the run's own data it is the images that pretraining held out; if these are also tested, each half chooses for
    the other. A test split never chooses. For other data, or if nothing was held out, a fraction of train chooses.
    """
    data = evaluation.data
    if not shares_images(evaluated, evaluation.source, (data.train,)):
        return None, {}
    if (
        is_run_source(evaluated, evaluation.source)
        and data.summary["held_out_from"] != "test"
        and data.held_out.num_labelled
    ):
        return (data.held_out if evaluation.taken_from == "test" else "halves"), {}
    return None, {"chosen_on": TRAINED_IMAGES}


def warn_chosen_on(evaluated: EvaluatedEncoder, location: str, outcome: Mapping[str, Any]) -> None:
    if outcome["chosen_on"] == TRAINED_IMAGES:
        evaluated.reporter.warn(
            f"{location}: the ridge was chosen on images that the encoder was trained on, so it may be "
            "too weak; to choose it on others, pretrain with --set data.holdout=0.1 and evaluate "
            "the run on its own data with split test"
        )


def rename_weights(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Rename `weights` of the ridge to `tried`: in every result `weights` is the encoder's checksum."""
    return {"tried" if key == "weights" else key: value for key, value in outcome.items()}


def warn_cut_off(evaluated: EvaluatedEncoder, location: str, outcome: Mapping[str, Any]) -> None:
    """Warn of a classifier that did not reach its optimum: its predictions may differ."""
    if outcome["cut_off"]:
        unit = "" if evaluated.options.normalize else "; normalised features (normalize) are often easier to fit"
        evaluated.reporter.warn(
            f"{location}: the final classifier did not reach its optimum (residual "
            f"{outcome['residual']:.2g}), so its accuracy may differ{unit}"
        )
