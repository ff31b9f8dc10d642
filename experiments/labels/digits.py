"""Few labels of handwritten digits on a CPU: which settings of `semi`, what gain?

    python -m experiments.labels.digits --out DIR [--stage choose test] [--only METHOD ...]

400 of the 1,797 digits are for the test, 280 held out, 1,117 trained on. Of these 20, 40 or 100 have a label, as many
of each class; another seed draws other labels and other weights. CANDIDATES are compared on the held-out digits
(choose), then METHODS on the test digits (test). A classifier is fitted on the labelled digits alone, or on all.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from supancl.core.encoders import Encoder
from supancl.data.opening import from_arrays
from supancl.data.splits import Data, DataSpec
from supancl.files import write_json
from supancl.probes.features import Features, embed
from supancl.probes.knn import default_k, knn_accuracy
from supancl.probes.linear import fixed_ridge_accuracy
from supancl.recipes import Recipe, recipe
from supancl.training.pretrain import pretrain
from supancl.weights.provenance import versions

TEST, HELD_OUT, CLASSES = 400, 280, 10
LABELS, SEEDS, EPOCHS = (20, 40, 100), (0, 1, 2), 40
CHOSEN_ON = 40  # labels
ENTROPY = "semi-mean-entropy"  # with PAWS's term, which was not kept; its code is in commit 6d6044a3
METHODS = ("simsiam", "supsiam", "semi")
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "semi": ("semi", {}),
    "supsiam": ("supsiam", {}),
    "entropy-0.1": (ENTROPY, {"loss.weight": 0.1}),
    "entropy-1": (ENTROPY, {"loss.weight": 1.0}),
    "temperature-0.1": ("semi", {"loss.temperature": 0.1}),
    "confidence-0.9": ("semi", {"loss.confidence": 0.9}),
    "temperature-0.1-confidence-0.9": ("semi", {"loss.temperature": 0.1, "loss.confidence": 0.9}),
    "temperature-0.05-confidence-0.9": ("semi", {"loss.temperature": 0.05, "loss.confidence": 0.9}),
    "warmup-0": ("semi", {"loss.warmup": 0}),
    "warmup-400": ("semi", {"loss.warmup": 400}),
}


@dataclass(frozen=True)
class Row:
    method: str
    labels: int
    seed: int
    settings: dict[str, Any]

    def recipe(self, epochs: int) -> Recipe:
        built = recipe(f"digits.{self.method}")
        settings: dict[str, Any] = {
            "train.epochs": epochs, "train.seed": self.seed, "train.device": "cpu", "train.monitor_every": 0,
            "train.checkpoint_epochs": epochs,
        }  # fmt: skip
        if built.pool.kind != "none":
            settings["pool.size"] = pool_size(self.labels)
        return built.with_set({**settings, **self.settings})


def pool_size(labels: int) -> int:
    """At least two epochs of labelled images, a power of two: the rule of `auto.METHOD`."""
    size = 64
    while size < 2 * labels:
        size *= 2
    return size


def load_splits(labelled: int, seed: int, test: bool) -> tuple[Data, np.ndarray]:
    """The digits with few labels, tested on the test digits or on those held out, and the true training labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, truth = (digits.images * 15.9375).astype(np.uint8)[order], digits.target[order]
    evaluated = slice(0, TEST) if test else slice(TEST, TEST + HELD_OUT)
    train_images, train_truth = images[TEST + HELD_OUT :], truth[TEST + HELD_OUT :]
    chance, given = np.random.default_rng(seed), np.full(len(train_truth), -1)
    for label in range(CLASSES):
        rows = chance.permutation(np.flatnonzero(train_truth == label))[: labelled // CLASSES]
        given[rows] = label
    spec = DataSpec(source="digits", holdout=0)
    names = [str(label) for label in range(CLASSES)]
    return from_arrays(train_images, given, images[evaluated], truth[evaluated], names, spec), train_truth


def train_encoder(row: Row, data: Data, epochs: int) -> Encoder:
    with tempfile.TemporaryDirectory() as folder:
        return pretrain(row.recipe(epochs), data, Path(folder) / "run").encoder


@lru_cache(maxsize=1)
def train_without_labels(seed: int, epochs: int) -> Encoder:
    """The encoder of SimSiam, once for all numbers of labels."""
    return train_encoder(Row("simsiam", 0, seed, {}), load_splits(0, seed, test=True)[0], epochs)


def run(row: Row, test: bool, epochs: int) -> dict[str, Any]:
    data, truth = load_splits(row.labels, row.seed, test)
    assert data.test is not None
    began = time.process_time()
    encoder = train_without_labels(row.seed, epochs) if row.method == "simsiam" else train_encoder(row, data, epochs)
    took = time.process_time() - began
    cpu = torch.device("cpu")
    train, evaluated = (Features(*embed(encoder, split, cpu)) for split in (data.train, data.test))
    few, known = train.labelled(), Features(train.values, torch.from_numpy(truth))
    return {
        "method": row.method, "labels": row.labels, "seed": row.seed, "settings": row.settings, "epochs": epochs,
        "images": len(truth), "evaluated": len(evaluated.labels), "on": "test" if test else "held out",
        "cpu_seconds": round(took, 1), "hardware": f"CPU, {torch.get_num_threads()} threads", "versions": versions(),
        "accuracy": {
            "linear, these labels": fixed_ridge_accuracy(few, evaluated),
            "knn, these labels": knn_accuracy(few, evaluated, k=default_k(few.labels)),
            "linear, all labels": fixed_ridge_accuracy(known, evaluated),
        },
    }  # fmt: skip


def plan(stage: str) -> dict[str, Row]:
    """The runs of a stage by name."""
    if stage == "choose":
        return {
            f"choose-{name}-{seed}": Row(method, CHOSEN_ON, seed, settings)
            for seed in SEEDS[:2]
            for name, (method, settings) in CANDIDATES.items()
            if method != ENTROPY
        }
    return {
        f"test-{method}-{labels}-{seed}": Row(method, labels, seed, {})
        for seed in SEEDS
        for method in METHODS
        for labels in LABELS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", nargs="*", default=["choose", "test"], choices=["choose", "test"])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--only", nargs="*", default=METHODS, choices=METHODS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for stage in args.stage:
        for name, row in plan(stage).items():
            if row.method in args.only and not (args.out / f"{name}.json").exists():
                found = run(row, stage == "test", args.epochs)
                write_json(args.out / f"{name}.json", found)
                print(name, found["cpu_seconds"], json.dumps(found["accuracy"]), flush=True)


if __name__ == "__main__":
    main()
