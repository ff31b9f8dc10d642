"""k-NN on real data: held-out images among training images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from supancl.data.splits import Data, Split, fingerprint
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, plural
from supancl.evaluate.certainty import certainty_keys
from supancl.evaluate.cross_validation import plan_cross_validation
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.evaluate.protocols import record_evaluation
from supancl.evaluate.sources import open_evaluation_data, warn_unknown
from supancl.probes import Features
from supancl.probes.certainty import Answers
from supancl.probes.knn import DEFAULT_K, Metric, default_k, knn_correct


def evaluate_knn(
    evaluated: EvaluatedEncoder,
    source: str | None = None,
    ks: Sequence[int] | None = (DEFAULT_K,),
    temperature: float = 0.1,
    metric: Metric = "cosine",
    leave_one_out: bool = False,
    split: str = "held-out",
    view: View = "margin",
) -> dict[str, Any]:
    """k-NN accuracy of held-out or test images among training images; the first of `ks` is the result.

    With `ks` None, as in `supancl evaluate knn`, k follows from the references per class (`default_k`). A k larger than
    the number of references is reduced to it, and reported so.
    """
    since = time.perf_counter()
    evaluation = open_evaluation_data(evaluated, source, split, view)
    location, train, images = evaluation.location, evaluation.data.train, evaluation.images
    _check_references(evaluation.data, location, images if leave_one_out else train, images)
    reference_labels = (images if leave_one_out else train).labels
    cross_validation = None if leave_one_out else plan_cross_validation(evaluated, evaluation, view)
    settings: dict[str, Any] = {"k": ks[0] if ks else None, "temperature": temperature, "metric": metric}
    cross_validate = None if cross_validation is None else partial(cross_validation.ask_knn, **settings)
    ks = _usable_ks(evaluated, location, ks, reference_labels[reference_labels >= 0], leave_one_out)
    if not leave_one_out:
        labels = images.labels[images.labels >= 0]
        warn_unknown(evaluated, evaluation.data.classes, location, reference_labels, labels)

    def classify(encoder: EvaluatedEncoder) -> tuple[dict[int, Tensor], Features, Features]:
        queries = encoder.features(images, view).labelled()
        reference = queries if leave_one_out else encoder.features(train, view).labelled()
        device = encoder.options.device
        return knn_correct(reference, queries, ks, temperature, metric, device, leave_one_out), reference, queries

    def ask(encoder: EvaluatedEncoder) -> Answers:
        correct, reference, queries = classify(encoder)
        return Answers(correct[ks[0]], queries.labels, reference.labels)

    correct, reference, queries = classify(evaluated)
    accuracies = {k: 100 * float(is_correct.double().mean()) for k, is_correct in correct.items()}
    answers = Answers(correct[ks[0]], queries.labels, reference.labels)
    return record_evaluation(
        evaluated,
        evaluation,
        "knn",
        since,
        k=ks[0],
        default_k=default_k(reference_labels, leave_one_out),
        accuracy=accuracies[ks[0]],
        by_k={str(k): value for k, value in accuracies.items()},
        temperature=temperature,
        metric=metric,
        leave_one_out=leave_one_out,
        view=view,
        references=len(reference.labels),
        queries=len(queries.labels),
        classes=len(torch.unique(reference.labels)),
        tested_on=fingerprint(images),
        **certainty_keys(evaluated, answers, ask, cross_validate=cross_validate),
    )


def _usable_ks(
    evaluated: EvaluatedEncoder, location: str, ks: Sequence[int] | None, references: Tensor, leave_one_out: bool
) -> tuple[int, ...]:
    """The numbers of neighbours that there are, or if none are given the one that fits the references."""
    most = len(references) - leave_one_out
    if ks is None:
        return (min(default_k(references, leave_one_out), most),)
    if too_large := [k for k in ks if k > most]:
        available = f"there {'is' if most == 1 else 'are'} {plural(most, 'image')} to compare with"
        evaluated.reporter.note(
            f"{location}: {available}, so k = {' and '.join(map(str, too_large))} "
            f"{'are' if len(too_large) > 1 else 'is'} k = {most}"
        )
    return tuple(dict.fromkeys(min(k, most) for k in ks))


def _check_references(data: Data, location: str, references: Split, images: Split) -> None:
    """Check that k-NN is possible, before computing features."""
    present = references.class_ids()
    if not present or not images.num_labelled:
        raise BadInput(
            f"{location}: k-NN needs labelled images, both as references and to test; "
            f"there are {references.num_labelled} and {images.num_labelled}; name labelled ones with --data"
        )
    if len(present) == 1:  # every prediction would be this class
        raise BadInput(
            f"{location}: only class {data.classes[present[0]]!r} among the references; k-NN needs at least two classes"
        )
