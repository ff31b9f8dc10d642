"""The evaluation protocols beside what they replace, in one run: `python experiments/benchmarks/evaluate.py [--quick]`.

- transfer: all 45 regularisers and the refit, beside a loop of torch's L-BFGS (max_iter 5000, tolerance_grad 1e-10,
  strong Wolfe, warm-started upwards). The loop is timed on every fourth regulariser (--every) and scaled to 45;
  accuracies are compared on the regularisers it took;
- few-shot: 2000 five-way five-shot episodes beside scikit-learn's liblinear one-vs-rest on the first of them;
- k-NN: the vote over 50,000 x 10,000 x 512 beside one matrix product and `topk`;
- time and memory against the number of images, over two decades.

Features are clusters with overlap. Everyone has the same threads, and contenders take turns, because other work on a
machine slows whoever runs at the time; for the same reason threads sleep instead of spinning at a barrier, and the
ratio of processor seconds stands beside that of the clock.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch loads its threads

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from before import FLAG, compare, features
from common import Record, about, keep, show
from data import anonymous_mb, peak_of
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from threadpoolctl import threadpool_limits
from torch import Tensor

from supancl.probes import Features, accuracy, few_shot, knn_accuracy, sample_episodes, transfer
from supancl.probes.fewshot import predict_episodes
from supancl.probes.linear import TRANSFER_WEIGHTS as WEIGHTS

# --- clocks


class Times:
    """Seconds by the clock and by the processor, one pair for every run; their medians are reported."""

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.processor: list[float] = []

    def run(self, work: Callable[[], Any]) -> Any:
        begin, used = time.perf_counter(), time.process_time()
        result = work()
        self.clock.append(time.perf_counter() - begin)
        self.processor.append(time.process_time() - used)
        return result


def compared(what: str, times: Times, peer: Times, scale: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of the table; with `scale`, the peer's runs are parts of one, added up and scaled."""
    both = peer.clock, peer.processor
    their = [statistics.median(part) if scale is None else sum(part) * scale for part in both]
    own = [statistics.median(part) for part in (times.clock, times.processor)]
    return {
        "what": what,
        "ours_s": own[0],
        "reference_s": their[0],
        "ratio": their[0] / own[0],
        "ours_cpu_s": own[1],
        "reference_cpu_s": their[1],
        "cpu_ratio": their[1] / own[1],
        "ours_all_s": times.clock,
        **more,
    }


# --- transfer


def reference_fit(layer: torch.nn.Linear, features: Features, weight: float) -> None:
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=5000, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        ridge = layer.weight.square().sum() + layer.bias.square().sum()
        loss = F.cross_entropy(layer(features.values), features.labels, reduction="sum") + weight * ridge
        loss.backward()
        return loss

    optimizer.step(closure)


def bench_transfer(images: int, width: int, weights: tuple[float, ...]) -> Record:
    """The loop is timed on these weights and scaled to all of them; ours runs before, between and after."""
    whole = features(images * 3 // 2, width, 10, 0.5 * width**0.5)
    cuts = (slice(images), slice(images, images * 5 // 4), slice(images * 5 // 4, None))
    train, validation, test = (Features(whole.values[cut], whole.labels[cut]) for cut in cuts)
    ours, theirs = Times(), Times()
    layer = torch.nn.Linear(width, 10)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)

    def score(part: Features) -> float:
        with torch.no_grad():
            return accuracy(layer(part.values).argmax(1), part.labels)

    scores = {}
    for number, weight in enumerate(weights):
        if number in (0, len(weights) // 2):
            ours.run(partial(transfer, train, validation, test))
        theirs.run(partial(reference_fit, layer, train, weight))
        scores[weight] = score(validation)
    scale = len(WEIGHTS) / len(weights)
    theirs.clock, theirs.processor = ([scale * part for part in parts] for parts in (theirs.clock, theirs.processor))
    both = Features(torch.cat([train.values, validation.values]), torch.cat([train.labels, validation.labels]))
    theirs.run(partial(reference_fit, layer, both, max(scores, key=lambda weight: scores[weight])))
    result = transfer(train, validation, test, weights=weights)
    what = f"transfer, {images} x {width}: 45 weights (loop: {len(weights)}, scaled)"
    return compared(what, ours, theirs, 1.0, ours=result.accuracy, reference=score(test))


# --- few-shot


def bench_few_shot(features: Features, episodes: int, first: int) -> dict[str, Any]:
    """The peer is timed on the first episodes and scaled."""
    drawn = sample_episodes(features.labels, episodes=episodes)
    ours, theirs, equal, asked, scores = Times(), Times(), 0, 0, []
    values = features.values.numpy()
    fit, truth = np.repeat(np.arange(5), 5), np.repeat(np.arange(5), 16)
    answers = predict_episodes(features.values, drawn.support[:first], drawn.query[:first])

    def peer(row: int) -> np.ndarray:
        model = OneVsRestClassifier(LogisticRegression(solver="liblinear"))
        return model.fit(values[drawn.support[row].flatten()], fit).predict(values[drawn.query[row].flatten()])

    result = few_shot(features, episodes=first)
    for start in range(0, first, max(first // 3, 1)):
        ours.run(lambda: few_shot(features, episodes=episodes))
        for row in range(start, min(start + max(first // 3, 1), first)):
            found = theirs.run(lambda row=row: peer(row))
            equal, asked = equal + int((found == answers[row].flatten().numpy()).sum()), asked + len(found)
            scores.append(100 * float((found == truth).mean()))
    what = f"few-shot: {episodes} 5-way 5-shot episodes, {features.values.shape[1]} wide (peer: first {first}, scaled)"
    return compared(
        what,
        ours,
        theirs,
        episodes / first,
        ours=result.mean,
        reference=statistics.fmean(scores),
        equal_predictions_percent=100 * equal / asked,
    )


# --- k-NN


def bench_knn(references: int, queries: int, width: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(100, (references + queries,), generator=generator)
    values = torch.randn(100, width, generator=generator)[labels]
    values += torch.randn(references + queries, width, generator=generator)
    reference = Features(values[:references], labels[:references])
    asked = Features(values[references:], labels[references:])
    stored, normal = F.normalize(reference.values, dim=1), F.normalize(asked.values, dim=1)
    ours, bare, found = Times(), Times(), 0.0
    for _ in range(3):
        found = ours.run(lambda: knn_accuracy(reference, asked))
        bare.run(lambda: (normal @ stored.T).topk(20, dim=1))
    return compared(f"k-NN, k = 20, made-up classes: {references} x {queries} x {width}", ours, bare, ours=found)


# --- time and memory against n


def bench_growth(quick: bool, folder: Path) -> list[Record]:
    rows = []

    def measure(what: str, work: Callable[[], Any]) -> None:
        times = Times()
        before, (peak, _) = anonymous_mb(), peak_of(lambda: times.run(work))
        rows.append({"what": what, "ours_s": times.clock[0], "growth_mb": peak - before})

    for n in (1_000, 10_000, 100_000) if quick else (10_000, 100_000, 1_000_000):
        width = 256 if quick else 2048
        stored = np.lib.format.open_memmap(folder / f"{n}.npy", mode="w+", dtype=np.float16, shape=(n, width))
        stored[::1000] = 1.0  # the rest is a hole in the file, read as zeros: the work is the same
        what = f"k-NN, 256 queries, {n} x {width} float16 references in a memory map"
        measure(what, partial(knn_accuracy, Stored(stored, torch.arange(n) % 100), features(256, width, 100)))
        (folder / f"{n}.npy").unlink()
    for n in (500, 5_000, 50_000):
        parts = [features(part, 256, 10) for part in (n * 3 // 5, n // 5, n // 5)]
        measure(f"few-shot, 200 episodes, {n} x 256 features", partial(few_shot, features(n, 256, 10), episodes=200))
        measure(f"transfer, {n} x 256 features, 10 classes", partial(transfer, *parts))
    return rows


class Stored:
    """References that stay on disk."""

    def __init__(self, values: np.ndarray, labels: Tensor) -> None:
        self.values, self.labels = values, labels


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: the form is tested, the figures mean little")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=4, help="the reference loop takes every Nth regulariser")
    parser.add_argument("--only", choices=("transfer", "fewshot", "knn", "growth"))
    parser.add_argument("--before", **FLAG)
    args = parser.parse_args(argv)
    if args.before:
        sys.exit(compare("evaluate", args.before))
    before, rows = torch.get_num_threads(), list[Record]()
    torch.set_num_threads(args.threads)
    with threadpool_limits(args.threads), tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Callable[[], list[Record]]] = {
            "knn": lambda: [bench_knn(*((2000, 500, 64) if args.quick else (50_000, 10_000, 512)))],
            "growth": lambda: bench_growth(args.quick, Path(folder)),
            "fewshot": lambda: [bench_few_shot(features(5000, 512, 100, 8.0), *((40, 6) if args.quick
                                                                                else (2000, 300)))],
            "transfer": lambda: [bench_transfer(*((400, 64, WEIGHTS[::6]) if args.quick
                                                  else (4000, 2048, WEIGHTS[:: args.every])))],
        }  # fmt: skip
        for name, part in parts.items():
            if args.only in (None, name):
                rows += part()
    torch.set_num_threads(before)
    print(f"{args.threads} threads for everyone, ratio = peer / ours")
    show(rows)
    keep(args.json, {**about(torch.device("cpu"), "scikit-learn"), "rows": rows})


if __name__ == "__main__":
    main()
