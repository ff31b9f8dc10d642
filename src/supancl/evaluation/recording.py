"""What every result says besides its figures: name, encoder, data, conditions; and its file in the run folder."""

from __future__ import annotations

import time
from typing import Any

from supancl.data.opening import absolute_source
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.feature_cache import VERSION
from supancl.evaluation.naming import data_label
from supancl.evaluation.overlap import is_incomplete, is_run_source, warn_if_trained_on
from supancl.evaluation.sources import EvaluationData, resolve_source
from supancl.runs.provenance import commit, hardware, versions


def record_result(evaluated: EvaluatedEncoder, base: str, since: float, source: str, **result: Any) -> dict[str, Any]:
    """Add the conditions to a result and save it in the run folder as `base` and its non-default settings."""
    record = {
        "base": base,
        "source": absolute_source(source),
        "encoder": evaluated.location,
        "label": evaluated.label,
        "weights": evaluated.weights,
        "features_version": VERSION,
        "layer": evaluated.options.layer,
        "normalize": evaluated.options.normalize,
        **evaluated.projector_key,
        **result,
        "seconds": round(time.perf_counter() - since, 2),
        "hardware": hardware(evaluated.options.device),
        "versions": versions(),
        "commit": commit(),
    }
    evaluated.save_result(base, record)
    return record


def result_base_name(protocol: str, evaluated: EvaluatedEncoder, source: str | None) -> str:
    """`knn` for the data as the run used them, `knn-pets` for other data, or for more of the run's data."""
    run_data = evaluated.recipe.data if evaluated.recipe is not None and is_run_source(evaluated, source) else None
    is_whole_source = run_data is not None and run_data.is_whole
    return protocol if source is None or is_whole_source else f"{protocol}-{data_label(source)}"


def record_evaluation(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData, protocol: str, since: float, **result: Any
) -> dict[str, Any]:
    """`record_result` of a protocol on one source: adds which images were tested, and whether results compare."""
    source = resolve_source(evaluated, evaluation.source)
    return record_result(
        evaluated,
        result_base_name(protocol, evaluated, evaluation.source),
        since,
        source,
        protocol=protocol,
        data=source,
        split=evaluation.split,
        judged=evaluation.taken_from,
        held_out_from=evaluation.data.summary["held_out_from"],
        skipped=len(evaluation.data.skipped),
        remarks=list(evaluation.data.remarks),
        partial=is_incomplete(source, evaluation.data.remarks, evaluation.data.skipped),
        overlaps_training=warn_if_trained_on(
            evaluated, evaluation.source, evaluation.taken_from, evaluation.drawn_from
        ),
        **result,
    )
