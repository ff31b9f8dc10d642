"""The protocols on real data: each takes a subject and a source and gives a result that can be kept as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from supancl.data.benchmarks import BENCHMARKS, official_name
from supancl.data.sources import same_source
from supancl.data.views import Crops
from supancl.errors import BadInput
from supancl.evaluate import (
    collapse,
    few_shot,
    knn_accuracies,
    knn_leave_one_out,
    linear_probe,
    sgd_probe,
    transfer,
)
from supancl.evaluate.features import View
from supancl.evaluate.transfer import TransferMetric
from supancl.judge.subject import (
    Subject,
    data_for,
    data_name,
    few_shot_split,
    own_source,
    source_for,
    three_splits,
)
from supancl.run import commit, versions


def finished(subject: Subject, name: str, since: float, **result: Any) -> dict[str, Any]:
    """The result with its conditions, kept in the run folder."""
    device = subject.look.device
    cpu = f"cpu, {torch.get_num_threads()} threads"
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    whole = {**result, "encoder": subject.where, "label": subject.label, "layer": subject.look.layer,
             "normalize": subject.look.normalize, "seconds": round(time.perf_counter() - since, 2),
             "hardware": hardware, "versions": versions(), "commit": commit()}
    subject.keep_result(name, whole)
    return whole


def file_name(protocol: str, subject: Subject, source: str | None) -> str:
    """`knn` on the run's own data, `knn-pets` on other data."""
    own = source is None or (subject.run is not None and same_source(source, own_source(subject, None)))
    return protocol if own else f"{protocol}-{data_name(str(source))}"


def knn_of(
    subject: Subject, source: str | None = None, ks: Sequence[int] = (20,), temperature: float = 0.1,
    metric: str = "cosine", leave_one_out: bool = False,
) -> dict[str, Any]:
    since = time.perf_counter()
    data = data_for(subject, source)
    where = source or subject.where
    queries = subject.features(data.held_out).labelled()
    reference = queries if leave_one_out else subject.features(data.train).labelled()
    if not len(reference.labels) or not len(queries.labels):
        raise BadInput(f"{where}: k-NN needs labelled images, both to compare with and to judge; "
                       f"there are {len(reference.labels)} and {len(queries.labels)}")
    options: dict[str, Any] = {"temperature": temperature, "metric": metric, "device": subject.look.device}
    if leave_one_out:
        found = knn_leave_one_out(reference, tuple(ks), **options)
    else:
        found = knn_accuracies(reference, queries, tuple(ks), **options)
    return finished(
        subject, file_name("knn", subject, source), since, protocol="knn", data=own_source(subject, source), k=ks[0],
        accuracy=found[ks[0]], by_k={str(k): value for k, value in found.items()}, temperature=temperature,
        metric=metric, leave_one_out=leave_one_out, references=len(reference.labels), queries=len(queries.labels),
        classes=len(torch.unique(reference.labels)), held_out_from=data.described["held_out_from"],
        skipped=len(data.skipped),
    )


def linear_of(
    subject: Subject, source: str | None = None, probe: str = "lbfgs", epochs: int = 100, lr: float = 30.0,
    batch_size: int = 256, augmented: bool = False, seed: int = 0,
) -> dict[str, Any]:
    """The classifier is fitted on training images; what is tested on is looked at once, at the end."""
    since = time.perf_counter()
    data = data_for(subject, source)
    test = subject.features(data.held_out)
    options: dict[str, Any] = {"seed": seed, "device": subject.look.device}
    if probe == "lbfgs":
        if augmented:
            raise BadInput("--augmented goes with --probe sgd: the fast probe fits one fixed set of features")
        outcome = linear_probe(subject.features(data.train), test, **options).to_json()
    else:
        options |= {"epochs": epochs, "lr": lr, "batch_size": batch_size,
                    "milestones": (round(0.6 * epochs), round(0.8 * epochs))}
        if augmented:
            train = augmented_epochs(subject, data.train, batch_size, seed)
            outcome = sgd_probe(train, test.labelled(), len(data.classes), **options).to_json()
        else:
            outcome = sgd_probe(subject.features(data.train), test, **options).to_json()
    return finished(subject, file_name("linear", subject, source), since, protocol="linear", probe=probe,
                    augmented=augmented, data=own_source(subject, source), **outcome,
                    queries=len(test.labelled().labels), held_out_from=data.described["held_out_from"],
                    skipped=len(data.skipped))


def augmented_epochs(subject: Subject, train: Any, batch_size: int, seed: int) -> Any:
    """Random crops and flips (no colours, as in MoCo's linear evaluation), encoded anew in every epoch."""
    from supancl.data.order import epoch_order, seeded

    encoder, device = subject.encoder.eval(), subject.look.device
    known = train.take((train.labels >= 0).nonzero()[:, 0])
    views = Crops(size=encoder.size, scale=(0.08, 1.0), jitter=0.0, grey=0.0, blur=0.0)

    def epoch_of(epoch: int) -> Any:
        generator = torch.Generator(device).manual_seed(seeded(seed, epoch, 3))
        for positions in epoch_order(len(known), seed, epoch).split(batch_size):
            batch = known.batch(positions).to(device)
            with torch.inference_mode():
                values = encoder.features(views(batch, encoder.mean, encoder.std, generator, views=1)[0],
                                          subject.look.layer).float()
            yield values.clone(), known.labels[positions].to(device)

    return epoch_of


def variance_of(subject: Subject, source: str | None = None, split: str = "held-out") -> dict[str, Any]:
    since = time.perf_counter()
    data = data_for(subject, source)
    features = subject.features(data.held_out if split == "held-out" else data.train)
    outcome = collapse(features).to_json()
    names = [data.classes[label] for label in outcome.pop("classes")]
    outcome["spread"] = dict(zip(names, outcome["spread"], strict=True))
    return finished(subject, file_name("variance", subject, source), since, protocol="variance",
                    data=own_source(subject, source), split=split, images=len(features.labelled().labels), **outcome)


def transfer_metric(source: str, metric: str | None) -> TransferMetric:
    """As the registry has it for its data sets; top-1 for others unless asked for."""
    if metric is not None:
        return metric  # type: ignore[return-value]
    name, at, _ = source.partition("@")
    if at:
        try:
            return "mean-per-class" if BENCHMARKS[official_name(name)].metric == "per_class" else "top-1"
        except BadInput:
            pass  # torchvision:NAME@ROOT
    return "top-1"


def transfer_of(
    subject: Subject, source: str, metric: str | None = None, view: View = "whole"
) -> dict[str, Any]:
    since = time.perf_counter()
    found = source_for(subject, source, view, "transfer")
    train, validation, test = (subject.features(split, view) for split in three_splits(found, source))
    kind = transfer_metric(source, metric)
    outcome = transfer(train, validation, test, metric=kind, device=subject.look.device).to_json()
    return finished(subject, f"transfer-{data_name(source)}", since, protocol="transfer", data=data_name(source),
                    source=source, view=view, **outcome)


def few_shot_of(
    subject: Subject, source: str, ways: int = 5, shots: int = 5, queries: int = 16, episodes: int = 2000,
    seed: int = 0, view: View = "whole",
) -> dict[str, Any]:
    since = time.perf_counter()
    found = source_for(subject, source, view, "few-shot")
    name, split = few_shot_split(found)
    features = subject.features(split, view)
    outcome = few_shot(features, ways, shots, queries, episodes, seed, device=subject.look.device)
    dropped = [found.classes[label] for label in outcome.dropped]
    if dropped:
        subject.reporter.warn(f"{data_name(source)}: {len(dropped)} classes have no more than {shots} images and are "
                              f"left out: {', '.join(dropped[:8])}{' ...' if len(dropped) > 8 else ''}")
    told = outcome.to_json() | {"dropped": dropped}
    return finished(subject, f"fewshot-{data_name(source)}-{ways}w{shots}s", since, protocol="fewshot",
                    data=data_name(source), source=source, split=name, view=view, accuracy=outcome.mean,
                    images=len(features.labelled().labels), **told)


