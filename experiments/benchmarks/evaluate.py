"""The evaluation protocols beside what they replace, in one run: `python experiments/benchmarks/evaluate.py [--quick]`.

- transfer: all 45 regularisers and the refit, beside a loop of torch's L-BFGS (max_iter 5000, tolerance_grad 1e-10,
  strong Wolfe, warm-started upwards), on three real data sets. The loop is timed on every fourth regulariser (--every)
  and scaled to 45; accuracies are compared on the regularisers it took, and ours with all of them stands beside;
- few-shot: 2000 five-way five-shot episodes beside scikit-learn's liblinear one-vs-rest on the first of them;
- k-NN: the vote over 50,000 x 10,000 x 512 beside one matrix product and `topk`;
- time and memory against the number of images, over two decades.

Features of the real images: rectified responses to 512 whitened random patches of the training images, averaged over
four quadrants (Coates, Ng and Lee, 2011), which need no pretrained network. Everyone has the same threads, and
contenders take turns, because other work on a machine slows whoever runs at the time; for the same reason threads sleep
instead of spinning at a barrier, and the ratio of processor seconds stands beside that of the clock.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch loads its threads

import argparse
import contextlib
import importlib.util
import io
import json
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from before import FLAG, compare
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from threadpoolctl import threadpool_limits
from torch import Tensor

from supancl.probes import Features, accuracy, few_shot, knn_accuracy, sample_episodes, transfer
from supancl.probes.fewshot import predict_episodes
from supancl.probes.transfer import WEIGHTS

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
PATCH = 6
Pair = tuple[Features, Features]  # to fit, to test


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


# --- features of real images


def unpacked(names: Sequence[str], shared: Path, out: Path) -> None:
    spec = importlib.util.spec_from_file_location("unpack", shared / "unpack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.redirect_stdout(io.StringIO()):
        for name in names:
            module.SETS[name](out)


def images_of(name: str, folder: Path, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; images are (N, 3, 32, 32) in [0, 1]."""
    if name == "pets":
        sides = [side(folder / "pets" / part) for part in ("trainval", "test")]
        return *(part[:most] for part in sides[0]), *(part[:most] for part in sides[1])
    arrays = np.load(folder / f"{name}.npz")
    train, labels, test, truth = (
        torch.from_numpy(arrays[f"{part}_{kind}"][:most]) for part in ("train", "test") for kind in ("images", "labels")
    )
    return scaled(train), labels, scaled(test), truth


def scaled(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


def side(folder: Path) -> tuple[Tensor, Tensor]:
    files = [
        (path, row)
        for row, name in enumerate(sorted(p.name for p in folder.iterdir()))
        for path in sorted((folder / name).iterdir())
    ]
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    opened = (Image.open(files[i][0]).convert("RGB") for i in order)
    pixels = [np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC)) for image in opened]
    return scaled(torch.from_numpy(np.stack(pixels))), torch.tensor([files[i][1] for i in order])


def patches(images: Tensor) -> Tensor:
    """(N, positions, 3 * 36), each patch with its contrast normalised."""
    found = F.unfold(images, PATCH).mT
    found = found - found.mean(2, keepdim=True)
    return found / (found.square().mean(2, keepdim=True) + 10 / 255**2).sqrt()


def patch_features(train: Tensor, test: Tensor, filters: int) -> tuple[Tensor, Tensor]:
    """4 * filters features of both; whitening and filters come from patches of the training images."""
    generator = torch.Generator().manual_seed(0)
    sample = patches(train[torch.randperm(len(train), generator=generator)[:300]]).flatten(0, 1)
    mean = sample.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(sample.T).double())
    whitening = (vectors * (values + 0.1).rsqrt() @ vectors.T).float()
    chosen = sample[torch.randperm(len(sample), generator=generator)[:filters]]
    weights = whitening @ F.normalize((chosen - mean) @ whitening, dim=1).T
    places = 32 - PATCH + 1

    def features(images: Tensor) -> Tensor:
        found = []
        for part in images.split(100):
            response = ((patches(part) - mean) @ weights - 0.25).clamp_(min=0)
            found.append(F.adaptive_avg_pool2d(response.mT.reshape(len(part), filters, places, places), 2).flatten(1))
        return torch.cat(found)

    return features(train), features(test)


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


def reference_transfer(
    train: Features,
    validation: Features,
    test: Features,
    metric: Any,
    weights: Sequence[float],
    between: Callable[[], Any],
) -> tuple[Times, float, float]:
    """Times as if it took all 45, accuracy and chosen weight of the plain loop; `between` runs twice, untimed."""
    layer = torch.nn.Linear(train.values.shape[1], int(train.labels.max()) + 1)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    times, best, chosen = Times(), -1.0, 0.0
    scale = len(WEIGHTS) / len(weights)
    for row, weight in enumerate(weights):
        times.run(lambda weight=weight: reference_fit(layer, train, weight))
        with torch.no_grad():
            score = accuracy(layer(validation.values).argmax(1), validation.labels, metric)
        if score > best:
            best, chosen = score, weight
        if row in (len(weights) // 4, len(weights) // 2):
            between()
    times.clock, times.processor = ([scale * part for part in parts] for parts in (times.clock, times.processor))
    both = Features(torch.cat([train.values, validation.values]), torch.cat([train.labels, validation.labels]))
    times.run(lambda: reference_fit(layer, both, chosen))
    with torch.no_grad():
        return times, accuracy(layer(test.values).argmax(1), test.labels, metric), chosen


def bench_transfer(name: str, pair: Pair, weights: tuple[float, ...]) -> dict[str, Any]:
    fit, test = pair
    held = len(fit.labels) // 5
    validation, train = Features(fit.values[:held], fit.labels[:held]), Features(fit.values[held:], fit.labels[held:])
    metric: Any = "mean-per-class" if name == "pets" else "top-1"
    times = Times()

    def ours() -> Any:
        return times.run(lambda: transfer(train, validation, test, metric))

    result = ours()
    alike = transfer(train, validation, test, metric, weights)
    theirs, reference, chosen = reference_transfer(train, validation, test, metric, weights, ours)
    ours()
    size = f"{len(fit.labels)} x {fit.values.shape[1]}, {result.classes} classes"
    return compared(
        f"transfer, {name}: {size}, 45 weights (loop: {len(weights)}, scaled)",
        times,
        theirs,
        1.0,
        ours=alike.accuracy,
        reference=reference,
        ours_weight=alike.weight,
        reference_weight=chosen,
        ours_all_weights=result.accuracy,
        timed_weights=len(weights),
    )


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


@contextlib.contextmanager
def peak_memory(into: dict[str, float]) -> Iterator[None]:
    """The growth of the process's own memory in MiB (pages of mapped files, which the system may drop, not counted)."""

    def now() -> float:
        text = Path("/proc/self/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0]) / 1024

    base, top, done = now(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            top[0] = max(top[0], now() - base)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        into["peak_mib"] = top[0]


def measured(what: str, work: Callable[[], Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"what": what}
    with peak_memory(row):
        times = Times()
        times.run(work)
    row["ours_s"] = times.clock[0]
    return row


def bench_growth(quick: bool, folder: Path) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for n in (1_000, 10_000, 100_000) if quick else (10_000, 100_000, 1_000_000):
        width = 256 if quick else 2048
        stored = np.lib.format.open_memmap(folder / f"{n}.npy", mode="w+", dtype=np.float16, shape=(n, width))
        stored[::1000] = 1.0  # the rest is a hole in the file, read as zeros: the work is the same
        reference = Stored(stored, torch.arange(n) % 100)
        asked = Features(torch.randn(256, width, generator=generator), torch.arange(256) % 100)
        rows.append(
            measured(
                f"k-NN, 256 queries, {n} x {width} float16 references in a memory map",
                lambda reference=reference, asked=asked: knn_accuracy(reference, asked),
            )
        )
        (folder / f"{n}.npy").unlink()
    for n in (500, 5_000, 50_000):
        labels = torch.arange(n) % 10
        values = torch.randn(n, 256, generator=generator) + 0.2 * torch.randn(10, 256, generator=generator)[labels]
        whole = Features(values, labels)
        parts = [Features(values[part], labels[part]) for part in torch.arange(n).split([n * 3 // 5, n // 5, n // 5])]
        rows.append(
            measured(f"few-shot, 200 episodes, {n} x 256 features", lambda whole=whole: few_shot(whole, episodes=200))
        )
        rows.append(measured(f"transfer, {n} x 256 features, 10 classes", lambda parts=parts: transfer(*parts)))
    return rows


class Stored:
    """References that stay on disk."""

    def __init__(self, values: np.ndarray, labels: Tensor) -> None:
        self.values, self.labels = values, labels


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"{'':80s} {'ours':>9s} {'peer':>9s} {'ratio':>7s} {'CPU':>7s}  accuracy ours / peer"]
    for row in rows:
        line = f"{row['what'][:80]:80s} {row['ours_s']:7.2f} s"
        if "ratio" in row:
            line += f" {row['reference_s']:7.1f} s {row['ratio']:6.2f}x {row['cpu_ratio']:6.2f}x  {row['ours']:.2f}"
            line += f" / {row['reference']:.2f}" if "reference" in row else ""
            line += f", {row['equal_predictions_percent']:.2f}% equal" if "equal_predictions_percent" in row else ""
        else:
            line += f"   {row['peak_mib']:7.0f} MiB at most"
        lines.append(line)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: the form is tested, the figures mean little")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with the real data and its unpack.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=4, help="the reference loop takes every Nth regulariser")
    parser.add_argument("--only", choices=("transfer", "fewshot", "knn", "growth"))
    parser.add_argument("--before", **FLAG)
    args = parser.parse_args(argv)
    if args.before:
        sys.exit(compare("evaluate", args.before))
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    rows: list[dict[str, Any]] = []

    def add(*new: dict[str, Any]) -> None:
        rows.extend(new)
        print(table(new).splitlines()[-1], file=sys.stderr, flush=True)

    def wanted(part: str) -> bool:
        return args.only in (None, part)

    most, filters, weights = (400, 16, WEIGHTS[::6]) if args.quick else (5000, 512, WEIGHTS[:: args.every])
    with threadpool_limits(args.threads), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if wanted("knn"):
            add(bench_knn(*((2000, 500, 64) if args.quick else (50_000, 10_000, 512))))
        if wanted("growth"):
            for row in bench_growth(args.quick, folder):
                add(row)
        if wanted("transfer") or wanted("fewshot"):
            sets = ("cifar100", "cifar10", "pets")[slice(1, 2) if args.quick else slice(None)]
            unpacked(sets, args.shared, folder)
            for row_, data in enumerate(sets):
                train, labels, test, truth = images_of(data, folder, most)
                if wanted("fewshot") and row_ == 0:
                    narrow = patch_features(train, test[:1], filters // 4)[0]
                    add(bench_few_shot(Features(narrow, labels), *((40, 6) if args.quick else (2000, 300))))
                if wanted("transfer"):
                    values = patch_features(train, test, filters)
                    add(bench_transfer(data, (Features(values[0], labels), Features(values[1], truth)), weights))
    torch.set_num_threads(before)
    print(f"torch {torch.__version__}, {args.threads} threads for everyone, {platform.machine()}, ratio = peer / ours")
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return rows


if __name__ == "__main__":
    main()
