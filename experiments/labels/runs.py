"""Few labels, coarse labels and a long tail on CIFAR-100.

    python -m experiments.labels.runs --data DIR --out DIR [--only NAME ...] [--epochs 100] [--commit HASH]

DIR holds cifar100.npz, and cifar10.npz for a test on other images (unpack.py of the shared data makes both). A run has
45,000 training images, fewer in a long tail; the other 5,000 choose the ridge. A finished row is skipped; a run that is
trained is only evaluated. One NAME.json per row, in order of value; `experiments.labels.page` makes the tables. What
several labels cost in time: experiments/benchmarks/label_steps.py.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.audit.runs import crossed
from experiments.rows import row_parser, rows_to_run, write_row
from supancl.data.opening import open_data
from supancl.data.splits import Data, DataSpec
from supancl.probes.certainty import Answers, accuracy_by_size, weighted_accuracy
from supancl.probes.classifiers import fit_means
from supancl.probes.features import Features, embed
from supancl.probes.knn import default_k, knn_predict
from supancl.probes.linear import linear_probe
from supancl.recipes import Recipe, recipe
from supancl.runs.encoder_file import load_encoder
from supancl.runs.provenance import versions
from supancl.training.start import pretrain

EPOCHS, HOLDOUT, CHANNELS = 100, 0.1, 3
RATES = {  # learning rate and weight decay: those of the runs with 100 epochs in RESULTS.md
    "simsiam": (0.35, 3e-4), "supsiam": (0.7, 1e-4), "semi": (0.7, 1e-4), "crossentropy": (0.2, 5e-4),
}  # fmt: skip
LARGEST_POOL = 4096
MOST_EPOCHS = 2000  # an epoch of 450 images is one step, and has costs of its own
CLASS_QUEUES: dict[str, Any] = {"pool.kind": "class-queues", "pool.size": 20}  # Table 7's best


@dataclass(frozen=True)
class Row:
    """`labelled` is the fraction of labels that are kept; cross-entropy sees the labelled images alone."""

    name: str
    method: str
    labelled: float = 1.0
    seed: int = 0
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def run_name(self) -> str:
        """SimSiam ignores labels, so its rows share one run."""
        return self.method if self.method == "simsiam" else self.name

    def recipe(self, epochs: int, images: int) -> Recipe:
        """`images` is how many images have a label."""
        lr, decay = RATES[self.method]
        built = recipe(f"cifar100.{self.method}")
        settings: dict[str, Any] = {
            "train.epochs": epochs, "train.monitor_every": 0, "train.checkpoint_epochs": epochs,
            "train.seed": self.seed, "data.holdout": HOLDOUT, "data.labelled": self.labelled,
            "optimizer.lr": lr, "optimizer.weight_decay": decay,
        }  # fmt: skip
        if built.pool.kind != "none":
            settings["pool.size"] = pool_size(images)
        return built.with_set({**settings, **dict(self.settings)})


def pool_size(images: int) -> int:
    """Two epochs of labelled images, so that targets stay fresh; a power of two: the rule of `auto.METHOD`."""
    size = 64
    while size < min(2 * images, LARGEST_POOL):
        size *= 2
    return size


def _rows() -> list[Row]:
    few = [
        Row(f"{method}-{100 * labelled:g}%", method, labelled)
        for labelled in (0.1, 0.01, 1.0)
        for method in ("supsiam", "semi", "crossentropy")
        if (method, labelled) != ("semi", 1.0)  # with all labels it is supsiam
    ]
    tail: tuple[tuple[str, Any], ...] = (("data.imbalance", 100),)
    tails = [
        Row("supsiam-tail", "supsiam", settings=tail),
        Row("supsiam-tail-class-queues", "supsiam", settings=(*tail, *CLASS_QUEUES.items())),
        Row("supsiam-tail-balanced", "supsiam", settings=(*tail, ("data.balanced", True))),
        Row("crossentropy-tail", "crossentropy", settings=tail),
    ]
    coarse = [Row("supsiam-coarse", "supsiam", settings=(("data.hierarchy", "cifar100"),))]
    # seeds of a method one after the other share its compiled step
    seeds = [Row(f"{method}-10%-seed-{seed}", method, 0.1, seed) for method in ("supsiam", "semi") for seed in (1, 2)]
    simsiam = [Row(f"simsiam-{100 * labelled:g}%", "simsiam", labelled) for labelled in (0.1, 0.01, 1.0)]
    return [*few[:6], *simsiam, *few[6:], *coarse, *seeds, *tails]


ROWS = {row.name: row for row in _rows()}


def with_labelled_alone(data: Data) -> Data:
    """The data without the training images that have no label."""
    return replace(data, train=data.train.take((data.train.labels >= 0).nonzero()[:, 0]))


def prepare(row: Row, root: Path, epochs: int) -> tuple[Recipe, Data]:
    """The recipe and the data of a row. Cross-entropy takes as many steps on fewer images, up to MOST_EPOCHS epochs."""
    source = str(root / "cifar100.npz")
    spec = row.recipe(epochs, 1).data
    data = open_data(replace(spec, source=source), CHANNELS)
    chosen = row.recipe(epochs, data.train.num_labelled)
    if row.method == "crossentropy" and data.train.num_labelled < len(data.train):
        steps = epochs * (len(data.train) // chosen.train.batch_size)
        data = with_labelled_alone(data)
        longer = min(math.ceil(steps / max(len(data.train) // chosen.train.batch_size, 1)), MOST_EPOCHS)
        warmup = round(chosen.schedule.warmup_epochs * longer / epochs)
        chosen = chosen.with_set(
            {"train.epochs": longer, "train.checkpoint_epochs": longer, "schedule.warmup_epochs": warmup}
        )
    return replace(chosen, data=replace(chosen.data, source=source)), data


def run(row: Row, root: Path, folder: Path, epochs: int, compiled: bool = True) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen, data = prepare(row, root, epochs)
    if not compiled:
        chosen = chosen.with_set({"train.compile": False})
    began, is_trained = time.perf_counter(), (folder / "finished.json").exists()
    if not is_trained:
        pretrain(chosen, data, folder)
    took = None if is_trained else round(time.perf_counter() - began, 1)
    labelled = data.train.index.cpu()[data.train.labels.cpu() >= 0]
    return {
        "name": row.name, "method": row.method, "labelled": row.labelled, "seed": row.seed,
        "settings": dict(row.settings), "epochs": chosen.train.epochs, "batch": chosen.train.batch_size,
        "images": len(data.train), "labels": len(labelled), "seconds": took,
        **evaluate(load_encoder(folder).to(device), root, labelled, device),
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": versions(),
    }  # fmt: skip


def evaluate(encoder: Any, root: Path, labelled: Tensor, device: torch.device) -> dict[str, Any]:
    """Accuracies on the test images, by classifiers that are fitted with the labels of these images, or with all.

    With all labels the held-out images choose the ridge; with fewer it is fixed, because they would be most labels.
    """
    clean = open_data(DataSpec(str(root / "cifar100.npz"), holdout=HOLDOUT), CHANNELS)
    assert clean.test is not None
    train, held_out, test = (
        Features(*embed(encoder, split, device, stay=True)) for split in (clean.train, clean.held_out, clean.test)
    )
    has_label = torch.isin(clean.train.index.cpu(), labelled).to(train.values.device)
    few = Features(train.values[has_label], train.labels[has_label])
    predictions = {
        "linear": few.labels.unique().cpu()[linear_probe(few, test, "nothing", tolerance=None).answers],
        "knn": knn_predict(few, test.values, k=default_k(few.labels.cpu())),
        "class means": fit_means(few, len(clean.classes)).logits(test.values).argmax(1),
    }
    answers = {
        name: Answers((found.to(test.labels.device) == test.labels).cpu(), test.labels.cpu(), few.labels.cpu())
        for name, found in predictions.items()
    }
    return {
        "accuracy": {
            "linear, all labels": linear_probe(train, test, held_out, device=device).accuracy,
            **{f"{name}, its labels": found.accuracy for name, found in answers.items()},
            **crossed(encoder, root, device),
        },
        "balanced": {name: weighted_accuracy(found, "mean-per-class") for name, found in answers.items()},
        "by_class_size": {name: accuracy_by_size(found) for name, found in answers.items()},
    }


def main() -> None:
    parser = row_parser(__doc__, ROWS, EPOCHS)
    parser.add_argument("--uncompiled", action="store_true", help="for runs that are shorter than compiling")
    args = parser.parse_args()
    for name in rows_to_run(args):
        folder = args.out / "runs" / ROWS[name].run_name
        found = run(ROWS[name], args.data, folder, args.epochs, not args.uncompiled)
        write_row(args, name, found)
        print(name, json.dumps({key: found[key] for key in ("seconds", "accuracy", "balanced")}), flush=True)


if __name__ == "__main__":
    main()
