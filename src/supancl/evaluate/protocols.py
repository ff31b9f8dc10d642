"""The protocols: each takes an encoder and a source of images, and returns a result that can be written as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.data.opening import absolute_source
from supancl.data.order import derive_seed, epoch_order
from supancl.data.splits import Data, Split, fingerprint
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, plural
from supancl.evaluate.encoder import EvaluatedEncoder, plain_crops
from supancl.evaluate.feature_cache import VERSION
from supancl.evaluate.naming import data_label, usual_metric
from supancl.evaluate.sources import (
    EvaluationData,
    check_same,
    check_unchanged,
    is_incomplete,
    is_own,
    open_evaluation_data,
    own_source,
    read_source,
    shares_images,
    spec_for,
    three_splits,
    warn_unknown,
    was_trained_on,
)
from supancl.probes import collapse, knn_accuracies, knn_leave_one_out, linear_probe, sgd_probe, transfer
from supancl.probes.sgd import EpochOfBatches
from supancl.probes.transfer import TransferMetric
from supancl.weights.provenance import commit, versions

SPLITS = ("train", "val", "test")
TRAINED_IMAGES = "trained images"


def record_result(evaluated: EvaluatedEncoder, base: str, since: float, source: str, **result: Any) -> dict[str, Any]:
    """Add the conditions to a result and save it in the run folder, as `base` and what is unusual about it."""
    device = evaluated.options.device
    cpu = f"cpu, {torch.get_num_threads()} threads"
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    whole = {
        "base": base,
        "source": absolute_source(source),
        "encoder": evaluated.where,
        "label": evaluated.label,
        "weights": evaluated.weights,
        "features_version": VERSION,
        "layer": evaluated.options.layer,
        "normalize": evaluated.options.normalize,
        **evaluated.projector_key,
        **result,
        "seconds": round(time.perf_counter() - since, 2),
        "hardware": hardware,
        "versions": versions(),
        "commit": commit(),
    }
    evaluated.save_result(base, whole)
    return whole


def file_name(protocol: str, evaluated: EvaluatedEncoder, source: str | None) -> str:
    """`knn` on the run's own data as the run took them, `knn-pets` on other data, or on more of the run's own."""
    own = evaluated.recipe.data if evaluated.recipe is not None and is_own(evaluated, source) else None
    whole = own is not None and own.limit is None and not own.leave_out and own.labelled == 1.0
    return protocol if source is None or whole else f"{protocol}-{data_label(source)}"


def record_on(
    evaluated: EvaluatedEncoder, found: EvaluationData, protocol: str, since: float, **result: Any
) -> dict[str, Any]:
    """`record_result` of a protocol on one source: adds which images it is of, and whether its figure compares."""
    source = own_source(evaluated, found.source)
    return record_result(
        evaluated,
        file_name(protocol, evaluated, found.source),
        since,
        source,
        protocol=protocol,
        data=source,
        split=found.split,
        judged=found.taken_from,
        held_out_from=found.data.summary["held_out_from"],
        skipped=len(found.data.skipped),
        remarks=list(found.data.remarks),
        partial=is_incomplete(source, found.data.remarks, found.data.skipped),
        overlaps_training=was_trained_on(evaluated, source, found.taken_from),
        **result,
    )


def evaluate_knn(
    evaluated: EvaluatedEncoder,
    source: str | None = None,
    ks: Sequence[int] = (20,),
    temperature: float = 0.1,
    metric: str = "cosine",
    leave_one_out: bool = False,
    split: str = "held-out",
    view: View = "margin",
) -> dict[str, Any]:
    """k-NN accuracy of held-out or test images among training images; of several `ks` the first one counts.

    A k beyond the images to compare with is as many as there are, and is reported as that.
    """
    since = time.perf_counter()
    found = open_evaluation_data(evaluated, source, split, view)
    where, train, images = found.where, found.data.train, found.images
    _check_compared(found.data, where, images if leave_one_out else train, images)
    queries = evaluated.features(images, view).labelled()
    reference = queries if leave_one_out else evaluated.features(train, view).labelled()
    options: dict[str, Any] = {"temperature": temperature, "metric": metric, "device": evaluated.options.device}
    most = len(reference.labels) - leave_one_out
    many = [k for k in ks if k > most]
    if many:
        there = f"there {'is' if most == 1 else 'are'} {plural(most, 'image')} to compare with"
        evaluated.reporter.note(
            f"{where}: {there}, so k = {' and '.join(map(str, many))} {'are' if len(many) > 1 else 'is'} k = {most}"
        )
    ks = tuple(dict.fromkeys(min(k, most) for k in ks))
    if leave_one_out:
        accuracies = knn_leave_one_out(reference, ks, **options)
    else:
        warn_unknown(evaluated, found.data.classes, where, reference.labels, queries.labels)
        accuracies = knn_accuracies(reference, queries, ks, **options)
    return record_on(
        evaluated,
        found,
        "knn",
        since,
        k=ks[0],
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
    )


def _check_compared(data: Data, where: str, references: Split, images: Split) -> None:
    """What k-NN cannot do without, known before any feature is taken."""
    there = references.class_ids()
    if not there or not images.num_labelled:
        raise BadInput(
            f"{where}: k-NN needs labelled images, both to compare with and to judge; "
            f"there are {references.num_labelled} and {images.num_labelled}; name labelled ones with --data"
        )
    if len(there) == 1:  # every answer would be right, or, of another class, wrong
        raise BadInput(
            f"{where}: only class {data.classes[there[0]]!r} among the images to compare with; k-NN needs "
            "at least two classes"
        )


@dataclass(frozen=True)
class SgdSettings:
    """The paper's linear probe, which is trained and not solved; the rate falls at 60% and 80% of the epochs."""

    epochs: int = 100
    lr: float = 30.0  # at a batch of 256
    batch_size: int = 256
    augmented: bool = False  # random crops, encoded anew in every epoch


def evaluate_linear(
    evaluated: EvaluatedEncoder,
    source: str | None = None,
    sgd: SgdSettings | None = None,
    seed: int = 0,
    split: str = "held-out",
    view: View = "margin",
) -> dict[str, Any]:
    """Accuracy of a linear classifier fitted on training images: the convex probe, or `sgd`."""
    augmented = sgd is not None and sgd.augmented
    if augmented and evaluated.encoder.spec.name == "linear":
        raise BadInput(f"{evaluated.where}: --augmented crops images, this encoder takes vectors; leave it out")
    since = time.perf_counter()
    found = open_evaluation_data(evaluated, source, split, view)
    splits = {"train": found.data.train.labels, name_of_images(found.taken_from): found.images.labels}
    check_same(found.data.classes, found.where, splits, may_lack=sgd is None)  # of a class of one none is held out
    outcome = fit_ridge(evaluated, found, seed, view) if sgd is None else fit_sgd(evaluated, found, sgd, seed, view)
    return record_on(
        evaluated,
        found,
        "linear",
        since,
        probe="lbfgs" if sgd is None else "sgd",
        augmented=augmented,
        seed=seed,
        view=view,
        queries=found.images.num_labelled,
        **outcome,
    )


def fit_ridge(evaluated: EvaluatedEncoder, found: EvaluationData, seed: int, view: View) -> dict[str, Any]:
    """The convex probe; see `ridge_choice` for the images that choose its ridge."""
    choose, remark = ridge_choice(evaluated, found)
    check_ridge_choice(found.where, choose, found.data.train, found.images)
    test = evaluated.features(found.images, view)
    choosing = evaluated.features(choose, view) if isinstance(choose, Split) else choose
    train = evaluated.features(found.data.train, view)
    fitted = linear_probe(train, test, choosing, seed=seed, device=evaluated.options.device)
    outcome = rename_weights(fitted.to_json() | remark)
    warn_chosen_on(evaluated, found.where, outcome)
    warn_cut_off(evaluated, found.where, outcome)
    return outcome


def fit_sgd(
    evaluated: EvaluatedEncoder, found: EvaluationData, sgd: SgdSettings, seed: int, view: View
) -> dict[str, Any]:
    """The paper's probe, on features that are computed once or on crops that are encoded anew."""
    test = evaluated.features(found.images, view)
    options: dict[str, Any] = {
        "epochs": sgd.epochs,
        "batch_size": sgd.batch_size,
        "lr": sgd.lr,
        "milestones": (round(0.6 * sgd.epochs), round(0.8 * sgd.epochs)),
        "seed": seed,
        "device": evaluated.options.device,
    }
    if sgd.augmented:
        train = augmented_epochs(evaluated, found.data.train, sgd.batch_size, seed)
        return sgd_probe(train, test.labelled(), len(found.data.classes), **options).to_json()
    return sgd_probe(evaluated.features(found.data.train, view), test, **options).to_json()


def ridge_choice(
    evaluated: EvaluatedEncoder, found: EvaluationData
) -> tuple[Split | Literal["halves"] | None, dict[str, str]]:
    """What `linear_probe` chooses its ridge on, and what the result says of it where that is for us to know.

    A run's own images are chosen on where pretraining held them out: while they are judged themselves, one half for
    the other. A test split chooses nothing. Of other data, or where nothing was held out, a part of train chooses.
    """
    data = found.data
    if not shares_images(evaluated, found.source):
        return None, {}
    if is_own(evaluated, found.source) and data.summary["held_out_from"] != "test" and data.held_out.num_labelled:
        return (data.held_out if found.taken_from == "test" else "halves"), {}
    return None, {"chosen_on": TRAINED_IMAGES}


def check_ridge_choice(where: str, choose: Split | str | None, train: Split, images: Split) -> None:
    """What choosing cannot do without, known before any feature is taken."""
    if choose is None and int(torch.bincount(train.labels[train.labels >= 0]).max()) < 2:
        raise BadInput(
            f"{where}: every class has 1 training image, so that none is left to choose the ridge on; add images"
        )
    if choose == "halves" and images.num_labelled < 2:
        raise BadInput(
            f"{where}: {plural(images.num_labelled, 'labelled image')} to judge; one half of them chooses for "
            "the other, so add images, or hold more out with data.holdout"
        )


def warn_chosen_on(evaluated: EvaluatedEncoder, where: str, outcome: Mapping[str, Any]) -> None:
    if outcome["chosen_on"] == TRAINED_IMAGES:
        evaluated.reporter.warn(
            f"{where}: the ridge was chosen on images that the encoder was trained on, so it may be "
            "too weak; to choose it on others, pretrain with --set data.holdout=0.1 and judge the "
            "run on its own data with --split test"
        )


def rename_weights(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The ridge's weights under a name of their own: in every result `weights` is the checksum of the encoder's."""
    return {"tried" if key == "weights" else key: value for key, value in outcome.items()}


def warn_cut_off(evaluated: EvaluatedEncoder, where: str, outcome: Mapping[str, Any]) -> None:
    """A classifier that was left before its optimum may answer otherwise than the protocol's would."""
    if outcome["cut_off"]:
        unit = "" if evaluated.options.normalize else "; features of unit length (--normalize) are often easier to fit"
        evaluated.reporter.warn(
            f"{where}: the final classifier was cut off while its objective still fell (residual "
            f"{outcome['residual']:.2g}), so its accuracy may not be that of the optimum{unit}"
        )


def name_of_images(taken_from: str) -> str:
    """What a message calls the images judged."""
    return "the held-out part" if taken_from == "train" else taken_from


def augmented_epochs(evaluated: EvaluatedEncoder, train: Split, batch_size: int, seed: int) -> EpochOfBatches:
    """Random crops and flips (no colours, as in MoCo's linear evaluation), encoded anew in every epoch."""
    encoder, options = evaluated.encoder.eval(), evaluated.options
    known = train.take((train.labels >= 0).nonzero()[:, 0])
    views = plain_crops(evaluated, (0.08, 1.0))

    def epoch_of(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator(options.device).manual_seed(derive_seed(seed, epoch, 3))
        for positions in epoch_order(len(known), seed, epoch).split(batch_size):
            batch = known.batch(positions).to(options.device)
            with torch.inference_mode():
                seen = views(batch, encoder.mean, encoder.std, generator, views=1)[0]
                values = encoder.features(seen, options.layer).float()
                values = F.normalize(values, dim=1) if options.normalize else values
            yield values.clone(), known.labels[positions].to(options.device)

    return epoch_of


def evaluate_variance(
    evaluated: EvaluatedEncoder, source: str | None = None, split: str = "held-out", view: View = "margin"
) -> dict[str, Any]:
    """S_W, S_T, effective rank and neural collapse of unit features; `split` is held-out, test or train."""
    since = time.perf_counter()
    found = open_evaluation_data(evaluated, source, split, view)
    _check_two_classes(found)
    features = evaluated.features(found.images, view)
    outcome = collapse(features).to_json()
    names = [found.data.classes[label] for label in outcome.pop("classes")]
    outcome["spread"] = dict(zip(names, outcome["spread"], strict=True))
    images = len(features.labelled().labels)
    return record_on(evaluated, found, "variance", since, normalize=True, view=view, images=images, **outcome)


def _check_two_classes(found: EvaluationData) -> None:
    there = found.images.class_ids()
    if len(there) < 2:
        only = f"only class {found.data.classes[there[0]]!r}" if there else "no labelled image"
        raise BadInput(f"{found.where}: {only} among the images to measure; measures between classes need two")


def evaluate_transfer(
    evaluated: EvaluatedEncoder,
    source: str,
    metric: TransferMetric | None = None,
    view: View = "whole",
    name: str | None = None,
) -> dict[str, Any]:
    """App. E on a source; `name` is what the result is called where another source has the same one."""
    since, name = time.perf_counter(), name or data_label(source)
    spec = spec_for(evaluated, source)
    found = read_source(evaluated, spec, view, "transfer")
    check_unchanged(evaluated, source, found)
    splits = three_splits(found, spec)
    check_same(found.classes, source, {name: split.labels for name, split in zip(SPLITS, splits, strict=True)})
    train, validation, test = (evaluated.features(split, view) for split in splits)
    kind = metric or usual_metric(source)
    outcome = rename_weights(transfer(train, validation, test, metric=kind, device=evaluated.options.device).to_json())
    warn_cut_off(evaluated, name, outcome)
    seen = was_trained_on(evaluated, source, "test" if "test" in found.splits else "val")
    return record_result(
        evaluated,
        f"transfer-{name}",
        since,
        protocol="transfer",
        data=name,
        source=source,
        view=view,
        remarks=list(found.remarks),
        partial=is_incomplete(source, found.remarks, found.skipped),
        overlaps_training=seen,
        tested_on=fingerprint(splits[2]),
        **outcome,
    )
