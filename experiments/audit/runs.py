"""Train on CIFAR-100 with wrong labels, then look for them in the features of the encoder.

    python -m experiments.audit.runs --data DIR --out DIR [--only NAME ...] [--epochs 60] [--commit HASH]

DIR holds cifar100.npz and cifar10.npz (unpack.py of the shared data makes them). Per run, NAME.json holds accuracies
on clean labels and how well each rule ranks the wrong labels, on each half of the training images; NAME.npz holds
out-of-fold probabilities of a linear classifier in float16, for cleanlab (`experiments.audit.page`).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.audit.ranking import roc_area
from experiments.rows import row_parser, rows_to_run, write_row
from supancl.core.encoders import Encoder
from supancl.data.opening import open_data
from supancl.data.splits import DataSpec
from supancl.probes.features import Features, embed
from supancl.probes.knn import count_votes, knn_accuracy
from supancl.probes.label_scores import (
    LabelScores,
    at_labels,
    best_other,
    class_mean_cosines,
    cosine_shares,
    label_scores,
    linear_probabilities,
    other_neighbours,
    share_of_wrong_labels,
)
from supancl.probes.precision import average_precision
from supancl.recipes import Recipe, recipe
from supancl.runs.encoder_file import load_encoder
from supancl.runs.provenance import versions
from supancl.training.monitor import linear_accuracy
from supancl.training.start import pretrain
from supancl.use.look import LEAST_LEAD

EPOCHS, CLASSES = 60, 100
RATES = {  # learning rate and weight decay: those of the runs with 100 epochs in RESULTS.md
    "simsiam": (0.35, 3e-4), "supsiam": (0.7, 1e-4), "supcon": (0.6, 1e-4), "crossentropy": (0.2, 5e-4),
}  # fmt: skip
NEIGHBOURS = (10, 20, 50, 100)
WEIGHTS = (  # of votes, class means and a linear classifier
    (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1),
    (0, 1, 2), (1, 0, 2), (1, 2, 2), (1, 0, 3), (1, 1, 4),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    method: str
    noise: float
    kind: str = "symmetric"
    alpha: float | None = None

    @property
    def name(self) -> str:
        method = self.method if self.alpha is None else f"{self.method}-{self.alpha:g}"
        return f"{method}-{self.kind}-{self.noise:g}"

    def recipe(self, epochs: int) -> Recipe:
        lr, decay = RATES[self.method]
        settings = {
            "train.epochs": epochs, "train.monitor_every": 0, "train.checkpoint_epochs": epochs, "data.holdout": 0,
            "data.label_noise": self.noise, "data.label_noise_kind": self.kind,
            "optimizer.lr": lr, "optimizer.weight_decay": decay,
        }  # fmt: skip
        if self.alpha is not None:
            settings["loss.alpha"] = self.alpha
        return recipe(f"cifar100.{self.method}").with_set(settings)


ROWS = {
    row.name: row
    for row in (
        Row("supsiam", 0.2, alpha=0.5), Row("supsiam", 0.2, alpha=0.8), Row("supsiam", 0.4, alpha=0.5),
        Row("supsiam", 0.05, alpha=0.5), Row("supsiam", 0.2, "pair", alpha=0.5),
        Row("crossentropy", 0.2), Row("crossentropy", 0.4), Row("crossentropy", 0.05), Row("crossentropy", 0.2, "pair"),
        Row("supcon", 0.2), Row("simsiam", 0.2),
    )
}  # fmt: skip


def run(row: Row, root: Path, folder: Path, epochs: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = row.recipe(epochs)
    chosen = replace(chosen, data=replace(chosen.data, source=str(root / "cifar100.npz")))
    data, clean = open_data(chosen.data, 3), open_data(DataSpec(chosen.data.source, holdout=0), 3)
    began = time.perf_counter()
    if not (folder / "finished.json").exists():
        pretrain(chosen, data, folder)
    took = time.perf_counter() - began
    assert clean.test is not None
    encoder = load_encoder(folder).to(device)
    train, test = (Features(*embed(encoder, split, device, stay=True)) for split in (clean.train, clean.test))
    noisy = data.train.labels.to(device)
    is_wrong = noisy != train.labels
    ranks, kept = ranked(Features(train.values, noisy), is_wrong)
    scores = label_scores(Features(train.values, noisy))
    share = share_of_wrong_labels(scores)
    return {
        "name": row.name, "method": row.method, "alpha": row.alpha, "noise": row.noise, "kind": row.kind,
        "epochs": epochs, "seconds": round(took, 1), "wrong": int(is_wrong.sum()), "images": len(noisy),
        "share": None if share is None else list(share.percent),
        "agreement": None if share is None else share.agreement.mean, "replaced": replaced(scores, is_wrong),
        "accuracy": {
            "linear": linear_accuracy(train, test, chooses=False),
            "linear on wrong labels": linear_accuracy(Features(train.values, noisy), test, chooses=False),
            "knn": knn_accuracy(train, test),
            **crossed(encoder, root, device),
        },
        "ranks": ranks, "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": versions(),
    }, {**kept, "labels": noisy.cpu(), "is_wrong": is_wrong.cpu()}  # fmt: skip


def replaced(scores: LabelScores, is_wrong: Tensor) -> list[int]:
    """How many labels `--corrected` would replace, and how many of these are wrong."""
    chosen = scores.suggested_score - scores.score >= LEAST_LEAD
    return [int(chosen.sum()), int(is_wrong.cpu()[scores.rows[chosen]].sum())]


def crossed(encoder: Encoder, root: Path, device: torch.device) -> dict[str, float]:
    if not (root / "cifar10.npz").exists():
        return {}
    other = open_data(DataSpec(str(root / "cifar10.npz"), holdout=0), 3)
    assert other.test is not None
    train, test = (Features(*embed(encoder, split, device, stay=True)) for split in (other.train, other.test))
    return {"cifar10": linear_accuracy(train, test, chooses=False)}


def ranked(features: Features, is_wrong: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """How well each rule ranks wrong labels: area under the ROC curve and average precision, on each half.

    Files of earlier runs also have rules with ridge regression ("ridge, ...") in place of logistic regression.
    """
    values, labels = features
    matches = other_neighbours(features, max(NEIGHBOURS))
    cosines = class_mean_cosines(values, labels, CLASSES)
    logistic = linear_probabilities(values, labels, CLASSES)
    rules: dict[str, Tensor] = {
        "logistic self-confidence": at_labels(logistic, labels),
        "class means": at_labels(cosines, labels) - best_other(cosines, labels),
    }
    for k in NEIGHBOURS:
        ones = torch.ones(len(labels), k).to(logistic)
        plain = torch.zeros_like(logistic).scatter_add_(1, labels[matches.rows[:, :k]], ones)
        rules[f"votes as in SimiFeat, k {k}"] = at_labels(plain, labels) / plain.norm(dim=1)
    means = cosine_shares(cosines)
    for weights in WEIGHTS:
        for k in NEIGHBOURS if weights[0] else NEIGHBOURS[:1]:
            votes = count_votes(matches, labels, k, 0.1, CLASSES)
            votes = votes / votes.sum(1, keepdim=True)
            rule = f"logistic, k {k}, weights {weights}"
            evidence = (weights[0] * votes + weights[1] * means + weights[2] * logistic) / sum(weights)
            own, other = at_labels(evidence, labels), best_other(evidence, labels)
            rules[f"{rule}, ratio"] = own / (own + other).clamp(min=1e-12)
            rules[f"{rule}, own"] = own
            logs = weights[0] * (votes + 0.01).log() + weights[1] * (means + 0.01).log()
            rules[f"{rule}, log"] = at_labels(logs + weights[2] * (logistic + 0.01).log(), labels)
    first = torch.arange(len(labels), device=labels.device) % 2 == 0
    measured = {
        name: [
            [roc_area(-score[half], is_wrong[half]), average_precision(-score[half], is_wrong[half])]
            for half in (first, ~first)
        ]
        for name, score in rules.items()
    }
    return measured, {"logistic": logistic.half().cpu()}


def main() -> None:
    args = row_parser(__doc__, ROWS, EPOCHS).parse_args()
    for name in rows_to_run(args):
        # a run that is finished is only judged again
        found, kept = run(ROWS[name], args.data, args.out / "runs" / name, args.epochs)
        arrays: dict[str, Any] = {key: value.numpy() for key, value in kept.items()}
        np.savez_compressed(args.out / f"{name}.npz", **arrays)
        write_row(args, name, found)
        shown = {key: found[key] for key in ("seconds", "share", "accuracy")}
        print(name, json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
