"""The first hour of a new user: `make first-hour SUPANCL_SHARED=FOLDER`, about 20 minutes on two CPU cores.

A folder of 600 photographs in six classes (mini-ImageNet, 64 px), 120 of them with a label; the README's lines for
your own images, and nothing else; then the predicted labels are compared with the true ones. Exit code 0 means that
their accuracy beats chance and the mean of predictions of five draws of random weights, each with a 95% interval that
excludes it. (One draw says little: two of them were 5 points apart.)
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from supancl.cli import main as supancl
from supancl.core.encoders import EncoderSpec
from supancl.runs.encoder_file import load_encoder, save_encoder
from supancl.stats import mean_interval, wilson_interval
from tests.docs.blocks import ROOT, Runner, blocks_of, environment_of

CLASSES, PER_CLASS, LABELLED = range(0, 96, 16), 100, 20
DRAWS = 5  # of random weights


def make_photos(shared: Path, folder: Path) -> None:
    subprocess.run([sys.executable, shared / "data" / "unpack.py", folder, "mini_imagenet"], check=True)
    with np.load(folder / "mini_imagenet.npz") as found:
        images, labels, names = found["train_images"], found["train_labels"], found["class_names"]
    for label in CLASSES:
        for number, image in enumerate(images[labels == label][:PER_CLASS]):
            path = folder / "photos" / (str(names[label]) if number < LABELLED else "unlabelled")
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path / f"{names[label]}-{number:03d}.png")


def run_readme(folder: Path) -> None:
    runner = Runner(folder, environment_of(Path(sys.prefix), ROOT, OMP_NUM_THREADS=str(os.cpu_count())), shortened={})
    (block,) = (block for block in blocks_of(ROOT / "README.md") if "supancl pretrain --data photos" in block.text)
    assert "--set" not in block.text
    began = time.monotonic()
    print(runner.run(block), f"{time.monotonic() - began:.0f} s", sep="\n")


def right_predictions(table: Path) -> list[bool]:
    """Whether each predicted label is the true one, which stands in the file's name."""
    with open(table, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "predicted"]
    return [row["label"] == Path(row["path"]).name.partition("-")[0] for row in rows]


def predict_with_random_weights(folder: Path, seed: int) -> Path:
    trained = load_encoder(folder / "runs" / "photos")
    spec: EncoderSpec = trained.spec
    torch.manual_seed(seed)
    weights, out = folder / f"random-{seed}.safetensors", folder / f"random-{seed}.csv"
    save_encoder(weights, spec.build(), (), "random weights")
    words = ["predict", weights, "--data", folder / "photos", "--references", folder / "photos"]
    assert supancl([*map(str, words), "--out", str(out)]) == 0
    return out


def main() -> int:
    shared = Path(os.environ["SUPANCL_SHARED"]).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_photos(shared, folder)
        run_readme(folder)
        trained = right_predictions(folder / "runs" / "labels.csv")
        random = [right_predictions(predict_with_random_weights(folder, seed)) for seed in range(DRAWS)]
    chance = 100 / len(CLASSES)
    accuracy, low, high = wilson_interval(100 * float(np.mean(trained)), len(trained))
    gain, least, most = mean_interval((100 * (np.array(trained, float) - np.mean(random, axis=0))).tolist())
    print(f"{len(trained)} predicted labels, {accuracy:.1f}% [{low:.1f}, {high:.1f}] right; chance {chance:.1f}%")
    draws = ", ".join(f"{100 * np.mean(right):.1f}%" for right in random)
    print(f"random weights {draws}: better than their mean by {gain:.1f} [{least:.1f}, {most:.1f}] points")
    return 0 if len(trained) == len(CLASSES) * (PER_CLASS - LABELLED) and low > chance and least > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
