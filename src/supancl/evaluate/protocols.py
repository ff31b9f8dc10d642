"""The protocols on real data: each takes a evaluated and a source and gives a result that can be kept as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.data.order import epoch_order, seeded
from supancl.data.splits import Data, Split, absolute_source, fingerprint
from supancl.errors import BadInput, counted
from supancl.evaluate.encoder import EvaluatedEncoder, plain_crops
from supancl.evaluate.feature_cache import VERSION
from supancl.evaluate.naming import data_label, usual_metric
from supancl.evaluate.sources import (
    check_same,
    check_unchanged,
    data_for,
    is_incomplete,
    is_own,
    own_source,
    pick_images,
    read_source,
    shares_images,
    spec_for,
    three_splits,
    warn_unknown,
    was_trained_on,
)
from supancl.probes import (
    collapse,
    knn_accuracies,
    knn_leave_one_out,
    linear_probe,
    sgd_probe,
    transfer,
)
from supancl.probes.features import View
from supancl.probes.sgd import EpochOfBatches
from supancl.probes.transfer import TransferMetric
from supancl.weights.provenance import commit, versions

SPLITS = ("train", "val", "test")
TRAINED_IMAGES = "trained images"


def record_result(evaluated: EvaluatedEncoder, base: str, since: float, source: str, **result: Any) -> dict[str, Any]:
    """The result with its conditions, kept in the run folder under `base` and what is unusual about it."""
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
    data = data_for(evaluated, source, view)
    where = source or evaluated.where
    images, taken_from, split = pick_images(evaluated, data, split, where)
    _check_compared(data, where, images if leave_one_out else data.train, images)
    queries = evaluated.features(images, view).labelled()
    reference = queries if leave_one_out else evaluated.features(data.train, view).labelled()
    options: dict[str, Any] = {"temperature": temperature, "metric": metric, "device": evaluated.options.device}
    most = len(reference.labels) - leave_one_out
    many = [k for k in ks if k > most]
    if many:
        there = f"there {'is' if most == 1 else 'are'} {counted(most, 'image')} to compare with"
        evaluated.reporter.note(
            f"{where}: {there}, so k = {' and '.join(map(str, many))} {'are' if len(many) > 1 else 'is'} k = {most}"
        )
    ks = tuple(dict.fromkeys(min(k, most) for k in ks))
    if leave_one_out:
        found = knn_leave_one_out(reference, ks, **options)
    else:
        warn_unknown(evaluated, data.classes, where, reference.labels, queries.labels)
        found = knn_accuracies(reference, queries, ks, **options)
    return record_result(
        evaluated,
        file_name("knn", evaluated, source),
        since,
        protocol="knn",
        **describe_data(evaluated, source, data, taken_from),
        k=ks[0],
        split=split,
        accuracy=found[ks[0]],
        by_k={str(k): value for k, value in found.items()},
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
    there = references.present()
    if not there or not images.labelled:
        raise BadInput(
            f"{where}: k-NN needs labelled images, both to compare with and to judge; "
            f"there are {references.labelled} and {images.labelled}; name labelled ones with --data"
        )
    if len(there) == 1:  # every answer would be right, or, of another class, wrong
        raise BadInput(
            f"{where}: only class {data.classes[there[0]]!r} among the images to compare with; k-NN needs "
            "at least two classes"
        )


def describe_data(evaluated: EvaluatedEncoder, source: str | None, data: Data, taken_from: str) -> dict[str, Any]:
    """What a result says of its data: where they are from, and whether its figure can be set beside others'."""
    where = own_source(evaluated, source)
    return {
        "data": where,
        "source": where,
        "judged": taken_from,
        "held_out_from": data.described["held_out_from"],
        "skipped": len(data.skipped),
        "remarks": list(data.remarks),
        "partial": is_incomplete(where, data.remarks, data.skipped),
        "overlaps_training": was_trained_on(evaluated, where, taken_from),
    }


def evaluate_linear(
    evaluated: EvaluatedEncoder,
    source: str | None = None,
    probe: str = "lbfgs",
    epochs: int = 100,
    lr: float = 30.0,
    batch_size: int = 256,
    augmented: bool = False,
    seed: int = 0,
    split: str = "held-out",
    view: View = "margin",
) -> dict[str, Any]:
    """A linear classifier on training images; see `ridge_choice` for the images that choose the fast one's ridge."""
    if augmented and probe == "lbfgs":
        raise BadInput("--augmented goes with --probe sgd: the fast probe fits one fixed set of features")
    if augmented and evaluated.encoder.spec.name == "linear":
        raise BadInput(f"{evaluated.where}: --augmented crops images, this encoder takes vectors; leave it out")
    since = time.perf_counter()
    data = data_for(evaluated, source, view)
    where = source or evaluated.where
    images, taken_from, split = pick_images(evaluated, data, split, where)
    check_same(
        data.classes,
        where,
        {"train": data.train.labels, name_of_images(taken_from): images.labels},
        may_lack=probe == "lbfgs",
    )  # of a class of one image none is held out
    choose, told = ridge_choice(evaluated, source, data, taken_from)
    if probe == "lbfgs":
        check_ridge_choice(where, choose, data.train, images)
    test = evaluated.features(images, view)
    options: dict[str, Any] = {"seed": seed, "device": evaluated.options.device}
    if probe == "lbfgs":
        choosing = evaluated.features(choose, view) if isinstance(choose, Split) else choose
        outcome = rename_weights(
            linear_probe(evaluated.features(data.train, view), test, choosing, **options).to_json() | told
        )
        warn_chosen_on(evaluated, where, outcome)
        warn_cut_off(evaluated, where, outcome)
    else:
        options |= {
            "epochs": epochs,
            "lr": lr,
            "batch_size": batch_size,
            "milestones": (round(0.6 * epochs), round(0.8 * epochs)),
        }
        if augmented:
            train = augmented_epochs(evaluated, data.train, batch_size, seed)
            outcome = sgd_probe(train, test.labelled(), len(data.classes), **options).to_json()
        else:
            outcome = sgd_probe(evaluated.features(data.train, view), test, **options).to_json()
        outcome |= {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    return record_result(
        evaluated,
        file_name("linear", evaluated, source),
        since,
        protocol="linear",
        probe=probe,
        augmented=augmented,
        seed=seed,
        view=view,
        split=split,
        **outcome,
        queries=len(test.labelled().labels),
        **describe_data(evaluated, source, data, taken_from),
    )


def ridge_choice(
    evaluated: EvaluatedEncoder, source: str | None, data: Data, taken_from: str
) -> tuple[Split | Literal["halves"] | None, dict[str, str]]:
    """What `linear_probe` chooses its ridge on, and what the result says of it where that is for us to know.

    A run's own images are chosen on where pretraining held them out: while they are judged themselves, one half for
    the other. A test split chooses nothing. Of other data, or where nothing was held out, a part of train chooses.
    """
    if not shares_images(evaluated, source):
        return None, {}
    if is_own(evaluated, source) and data.described["held_out_from"] != "test" and data.held_out.labelled:
        return (data.held_out if taken_from == "test" else "halves"), {}
    return None, {"chosen_on": TRAINED_IMAGES}


def check_ridge_choice(where: str, choose: Split | str | None, train: Split, images: Split) -> None:
    """What choosing cannot do without, known before any feature is taken."""
    if choose is None and int(torch.bincount(train.labels[train.labels >= 0]).max()) < 2:
        raise BadInput(
            f"{where}: every class has 1 training image, so that none is left to choose the ridge on; add images"
        )
    if choose == "halves" and images.labelled < 2:
        raise BadInput(
            f"{where}: {counted(images.labelled, 'labelled image')} to judge; one half of them chooses for "
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
        generator = torch.Generator(options.device).manual_seed(seeded(seed, epoch, 3))
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
    data = data_for(evaluated, source, view)
    where = source or evaluated.where
    if split == "train":
        images, taken_from = data.train, "train"
    else:
        images, taken_from, split = pick_images(evaluated, data, split, where)
    _two_classes(data, where, images)
    features = evaluated.features(images, view)
    outcome = collapse(features).to_json()
    names = [data.classes[label] for label in outcome.pop("classes")]
    outcome["spread"] = dict(zip(names, outcome["spread"], strict=True))
    return record_result(
        evaluated,
        file_name("variance", evaluated, source),
        since,
        protocol="variance",
        normalize=True,
        split=split,
        view=view,
        images=len(features.labelled().labels),
        **outcome,
        **describe_data(evaluated, source, data, taken_from),
    )


def _two_classes(data: Data, where: str, images: Split) -> None:
    there = torch.unique(images.labels[images.labels >= 0])
    if len(there) < 2:
        told = f"only class {data.classes[int(there[0])]!r}" if len(there) else "no labelled image"
        raise BadInput(f"{where}: {told} among the images to measure; measures between classes need two")


def transfer_metric(source: str, metric: str | None) -> TransferMetric:
    """As the registry has it for its data sets; top-1 for others unless asked for."""
    if metric is not None:
        return metric  # type: ignore[return-value]
    return usual_metric(source)  # type: ignore[return-value]


def evaluate_transfer(
    evaluated: EvaluatedEncoder, source: str, metric: str | None = None, view: View = "whole", name: str | None = None
) -> dict[str, Any]:
    """App. E on a source; `name` is what the result is called where another source has the same one."""
    since, name = time.perf_counter(), name or data_label(source)
    spec = spec_for(evaluated, source)
    found = read_source(evaluated, spec, view, "transfer")
    check_unchanged(evaluated, source, found)
    splits = three_splits(found, spec)
    check_same(found.classes, source, {name: split.labels for name, split in zip(SPLITS, splits, strict=True)})
    train, validation, test = (evaluated.features(split, view) for split in splits)
    kind = transfer_metric(source, metric)
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
