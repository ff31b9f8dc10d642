"""k-NN on real data: held-out images among training images."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from supancl.data.splits import Data, Split, fingerprint
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, plural
from supancl.evaluation.certainty import Fitted, certainty_keys, level_keys
from supancl.evaluation.class_checks import warn_unknown
from supancl.evaluation.cross_validation import plan_cross_validation
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.recording import record_evaluation
from supancl.evaluation.sources import EvaluationData, open_evaluation_data
from supancl.probes.certainty import Answers, ClassScores, Judgement
from supancl.probes.knn import DEFAULT_K, Metric, default_k, knn_answers


@dataclass(frozen=True)
class KnnSettings:
    """How neighbours vote; with `leave_one_out` the tested images are the references for one another."""

    temperature: float = 0.1
    metric: Metric = "cosine"
    leave_one_out: bool = False
    view: View = "margin"

    def references(self, evaluation: EvaluationData) -> Split:
        return evaluation.images if self.leave_one_out else evaluation.data.train


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
    the number of references is reduced to it, and reported so. Of images with several labels it is the mean average
    precision, and of a hierarchy the accuracy on each level.
    """
    since = time.perf_counter()
    settings = KnnSettings(temperature, metric, leave_one_out, view)
    evaluation = open_evaluation_data(evaluated, source, split, view, several_labels=True)
    references, images = settings.references(evaluation), evaluation.images
    _check_references(evaluation.data, evaluation.location, references, images)
    requested: dict[str, Any] = {"k": ks[0] if ks else None, "temperature": temperature, "metric": metric}
    cross_validation = None if leave_one_out else plan_cross_validation(evaluated, evaluation, view)
    cross_validate = None if cross_validation is None else partial(cross_validation.ask_knn, **requested)
    _note_large_ks(evaluated, evaluation.location, ks or (), references.num_labelled - leave_one_out)
    usable = _usable_ks(ks, references, leave_one_out)
    if not leave_one_out:
        warn_unknown(evaluated, evaluation.data.classes, evaluation.location, (references,), images)

    def ask(encoder: EvaluatedEncoder) -> Judgement:
        return judge_neighbours(encoder, evaluation, usable, settings)[usable[0]]

    judged = judge_neighbours(evaluated, evaluation, usable, settings)
    main = judged[usable[0]]
    ask_level = partial(_judge_level, evaluated, ks=ks, settings=settings)
    return record_evaluation(
        evaluated,
        evaluation,
        "knn",
        since,
        k=usable[0],
        default_k=default_k(references.all_labels.classes.flatten(), leave_one_out),
        by_k={str(k): judgement.value for k, judgement in judged.items()},
        temperature=temperature,
        metric=metric,
        leave_one_out=leave_one_out,
        view=view,
        references=references.num_labelled,
        queries=main.images,
        classes=len(references.class_ids()),
        tested_on=fingerprint(images),
        **{main.key: main.value},
        **level_keys(evaluated, (main, {"k": usable[0]}), evaluation.levels, ask_level),
        **certainty_keys(evaluated, main, ask, cross_validate=cross_validate),
    )


def judge_neighbours(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData, ks: Sequence[int], settings: KnnSettings
) -> Mapping[int, Judgement]:
    """By k, what the nearest references say about the tested images."""
    device, temperature, metric = evaluated.options.device, settings.temperature, settings.metric
    classes = len(evaluation.data.classes)
    queries = evaluated.features(evaluation.images, settings.view).labelled()
    leave_one_out = settings.leave_one_out
    reference = queries if leave_one_out else evaluated.features(evaluation.data.train, settings.view).labelled()
    said = knn_answers(reference, queries, ks, temperature, metric, device, leave_one_out, classes)
    if queries.pairs is not None:
        return {k: ClassScores(scores, queries.targets(classes)) for k, scores in said.items()}
    return {k: Answers(classes == queries.labels, queries.labels, reference.labels) for k, classes in said.items()}


def _judge_level(
    evaluated: EvaluatedEncoder, level: EvaluationData, ks: Sequence[int] | None, settings: KnnSettings
) -> Fitted:
    """What the nearest references say on a level of a hierarchy, with the k that fits it."""
    references = settings.references(level)
    _check_references(level.data, level.location, references, level.images)
    k = _usable_ks(ks, references, settings.leave_one_out)[0]
    return judge_neighbours(evaluated, level, (k,), settings)[k], {"k": k}


def _note_large_ks(evaluated: EvaluatedEncoder, location: str, ks: Sequence[int], most: int) -> None:
    if too_large := [k for k in ks if k > most]:
        available = f"there {'is' if most == 1 else 'are'} {plural(most, 'image')} to compare with"
        evaluated.reporter.note(
            f"{location}: {available}, so k = {' and '.join(map(str, too_large))} "
            f"{'are' if len(too_large) > 1 else 'is'} k = {most}"
        )


def _usable_ks(ks: Sequence[int] | None, references: Split, leave_one_out: bool) -> tuple[int, ...]:
    """The numbers of neighbours that there are, or if none are given the one that fits the references."""
    most = references.num_labelled - leave_one_out
    if ks is None:
        ks = (default_k(references.all_labels.classes.flatten(), leave_one_out),)
    return tuple(dict.fromkeys(min(k, most) for k in ks))


def _check_references(data: Data, location: str, references: Split, images: Split) -> None:
    """Check that k-NN is possible, before computing features."""
    present = references.class_ids()
    if not present or not images.num_labelled:
        raise BadInput(
            f"{location}: k-NN needs labelled images, both as references and to test; "
            f"there are {references.num_labelled} and {images.num_labelled}; name labelled ones with data"
        )
    if len(present) == 1:  # every prediction would be this class
        raise BadInput(
            f"{location}: only class {data.classes[present[0]]!r} among the references; k-NN needs at least two classes"
        )
