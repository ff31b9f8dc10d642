"""Settings for a few hundred photographs: draws of 600 in six classes of mini-ImageNet, 120 with a label.

    python -m experiments.auto.small --data mini_imagenet.npz --out FILE [--only NAME ...] [--offsets N ...]

For each candidate and draw: how many labels of the 480 unlabelled photographs k-NN and a linear classifier predict
correctly, and how many with random weights. The draw that `make first-hour` tests is not among these.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supancl.core.encoders import Encoder
from supancl.data.opening import open_data
from supancl.data.splits import Data, Split
from supancl.data.survey import survey_data
from supancl.files import write_json
from supancl.probes.features import Features, embed
from supancl.probes.knn import default_k, knn_predict
from supancl.probes.linear import fixed_ridge_predictions
from supancl.recipes import Recipe, recipe
from supancl.recipes.auto import fit_recipe
from supancl.training.pretrain import pretrain

CLASSES, PER_CLASS, LABELLED = 6, 100, 20
OFFSETS = (4, 8, 12)  # make first-hour has 0
QUIET = {"train.monitor_every": 0, "train.checkpoint_epochs": 1000}
SMALL: dict[str, Any] = {"views.size": 32, "train.epochs": 200}
CNN: dict[str, Any] = {"encoder.name": "cnn", "encoder.width": 256, "views.size": 32, "train.epochs": 250}
LARGE: dict[str, Any] = {"encoder.name": "resnet18", "encoder.width": None, "views.size": 64, "train.epochs": 100}
CANDIDATES: dict[str, dict[str, Any]] = {
    "resnet18-64": LARGE,
    "resnet18-64-alpha-0.2": {**LARGE, "loss.alpha": 0.2},
    "resnet18-64-alpha-0.8": {**LARGE, "loss.alpha": 0.8},
    "resnet18-64-lr-0.2": {**LARGE, "optimizer.lr": 0.2},
    "resnet18-64-lr-1.5": {**LARGE, "optimizer.lr": 1.5},
    "resnet18-64-weak-crops": {**LARGE, "views.scale": [0.5, 1.0]},
    "resnet18-64-epochs-300": {**LARGE, "train.epochs": 300},
    "resnet18-64-epochs-300-alpha-0.2": {**LARGE, "train.epochs": 300, "loss.alpha": 0.2},
    "resnet18-32-epochs-200": {**LARGE, **SMALL},
    "resnet18-32-epochs-200-alpha-0.2": {**LARGE, **SMALL, "loss.alpha": 0.2},
    "resnet18-32-epochs-200-lr-0.2": {**LARGE, **SMALL, "optimizer.lr": 0.2},
    "cifar-resnet18-32-epochs-36": {**LARGE, "encoder.name": "cifar-resnet18", "views.size": 32, "train.epochs": 36},
    "cnn-64": {**CNN, "views.size": 64, "train.epochs": 100},
    "cnn-64-epochs-250": {**CNN, "views.size": 64},
    "cnn-32-epochs-250": CNN,
    "cnn-32-epochs-250-alpha-0.2": {**CNN, "loss.alpha": 0.2},
    "cnn-32-epochs-250-lr-1.5": {**CNN, "optimizer.lr": 1.5},
    "cnn-32-epochs-500": {**CNN, "train.epochs": 500},
    "cnn-32-width-128-epochs-400": {**CNN, "encoder.width": 128, "train.epochs": 400},
    "cnn-32-width-512-epochs-100": {**CNN, "encoder.width": 512, "train.epochs": 100},
}


def make_photos(archive: Path, offset: int, out: Path) -> np.ndarray:
    """Write an .npz of the draw in which most labels are -1; returns the true labels."""
    with np.load(archive) as found:
        images, labels = found["train_images"], found["train_labels"]
    rows = np.concatenate([np.flatnonzero(labels == offset + 16 * i)[:PER_CLASS] for i in range(CLASSES)])
    truth = np.repeat(np.arange(CLASSES), PER_CLASS)
    given = np.where(np.tile(np.arange(PER_CLASS) < LABELLED, CLASSES), truth, -1)
    np.savez(out, train_images=images[rows], train_labels=given)
    return truth


def fitted(settings: dict[str, Any], data: Data, source: Path) -> Recipe:
    """The rules of a CPU with these settings."""
    asked = recipe("auto.supsiam").with_set({**settings, **QUIET, "data.source": str(source)})
    return fit_recipe(asked, survey_data(data), on_gpu=False)


def accuracies(encoder: Encoder, train: Split, truth: np.ndarray, device: torch.device) -> dict[str, float]:
    """Percent of the unlabelled images whose label is predicted correctly."""
    values, labels = embed(encoder.to(device), train, device)
    known = labels >= 0
    references, expected = Features(values[known], labels[known]), torch.from_numpy(truth)[~known]
    queries = values[~known]
    found = {
        "knn": knn_predict(references, queries, k=default_k(references.labels)),
        "linear": fixed_ridge_predictions(references, queries),
    }
    return {name: 100 * float((guesses.cpu() == expected).double().mean()) for name, guesses in found.items()}


def run(name: str, offset: int, archive: Path) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "photos.npz"
        truth = make_photos(archive, offset, source)
        data = open_data(recipe("auto.supsiam").with_set({"data.source": str(source)}).data, 3)
        chosen = fitted(CANDIDATES[name], data, source)
        torch.manual_seed(0)
        random = chosen.encoder.build().eval()
        began = time.perf_counter()
        trained = pretrain(chosen, data, Path(folder) / "run")
        took = time.perf_counter() - began
        kept = truth[data.train.index.cpu().numpy()]
        return {"candidate": name, "offset": offset, "seconds": round(took, 1), "epochs": chosen.train.epochs,
                "trained": accuracies(trained.encoder, data.train, kept, device),
                "random": accuracies(random, data.train, kept, device)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(CANDIDATES))
    parser.add_argument("--offsets", nargs="*", type=int, default=OFFSETS, help="which draws")
    args = parser.parse_args()
    results = []
    for offset in args.offsets:
        for name in args.only:
            results.append(run(name, offset, args.data))
            print(results[-1], flush=True)
            write_json(args.out, {"results": results})


if __name__ == "__main__":
    main()
