"""The cells of the study: what a start is worth on data with some labels, used in one way, with one seed.

    python -m experiments.evidence run starts --work DIR    # README.md

DIR/data has the folders of `experiments.starts.data` and the weights; cells whose data are not there are left out.
Learning rate and batch norm are chosen with seed 0 on labelled images held out of the training images, and used for all
seeds; test images choose nothing.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.evidence.driver import Failed, Work
from experiments.evidence.numbers import LABELS
from experiments.starts import classical
from experiments.starts.data import SEEDS

STARTS = {name: f"timm:{name}@data/{name}.safetensors" for name in ("tf_efficientnet_lite0", "mobilenetv2_100")}
DATA = ("plantvillage", "cars", "pets", "cub")
FURTHER_DATA = ("plantvillage", "pets")
STEPS, BATCH = 720, 64  # of pretraining and of fine-tuning; half of the steps to choose settings
QUICK = 6, 8, ("views.size=64",)  # steps, batch, settings of pretraining
RATES = ("0.02", "0.1", "0.5")  # at batch 256
NORMS = ((), ("--freeze-norm",))
FINE_TUNING = [("--lr", lr, *norm) for norm in NORMS for lr in RATES]
# a linear classifier that is fitted to the end has large weights, so the encoder gets large gradients
FROM_PROBE = [("--probe-first", "--lr", lr, *norm) for norm in NORMS for lr in ("0.004", *RATES[:2])]
SETTINGS = [(), *(("--set", setting) for setting in (
    "optimizer.encoder_lr_scale=0.1", "optimizer.encoder_lr_scale=0.3", "schedule.warmup_epochs=0", "loss.alpha=0.2",
    "loss.alpha=0.8", "views.size=160", "views.scale=[0.5,1.0]", "views.jitter=0.4"))]  # fmt: skip
SUPERVISED = [("--set", f"optimizer.lr={lr}") for lr in RATES]


class Way(NamedTuple):
    """Pretrain with a method, or not; then fit a linear classifier or fine-tune."""

    method: str = ""
    finetune: bool = False
    candidates: Sequence[tuple[str, ...]] = ((),)  # settings of the last step that is trained


WAYS = {
    "frozen": Way(),
    "supsiam": Way("supsiam"),
    "semi": Way("semi"),
    "finetuned": Way(finetune=True, candidates=FINE_TUNING),
    "probe-finetuned": Way(finetune=True, candidates=FROM_PROBE),
    "supsiam-finetuned": Way("supsiam", finetune=True, candidates=FINE_TUNING),
    "crossentropy": Way("crossentropy", candidates=SUPERVISED),
}
FURTHER = {
    **{method: Way(method) for method in ("simsiam", "supbyol", "supcon")},
    "scratch": Way("supsiam"),
    "supsiam-tuned": Way("supsiam", candidates=SETTINGS),
    "histograms": Way(),
}
# further cells on one start, two data sets and seed 0; one label a class has none to choose settings with
FEWER = ("frozen", "finetuned", "supsiam", "semi", "crossentropy", "histograms")
FURTHER_LABELS = {"4": tuple(FURTHER), "all": ("simsiam", "supcon", "scratch", "histograms"), "1": FEWER, "16": FEWER}
CHOSEN_WITH = {"1": "4", "16": "4"}
CHOSEN_AS = {"supsiam-finetuned": "finetuned"}


@dataclass(frozen=True)
class StartCell:
    start: str
    data: str
    labels: str
    way: str
    seed: int

    @property
    def name(self) -> str:
        return "-".join(map(str, asdict(self).values()))

    def row(self, work: Work, **other: Any) -> Path:
        """The result of this cell, or of one that differs in something."""
        return work.results / f"{StartCell(**asdict(self) | other).name}.json"

    def is_ready(self, work: Work) -> bool:
        """Whether the data are there, and what it takes from other cells: a choice, an encoder."""
        way = self.means
        has_choice = self.chooses or len(way.candidates) == 1 or self.choice(work).exists()
        has_run = not (way.method and way.finetune) or self.row(work, way=way.method).exists()
        has_files = Path("data", self.data).is_dir() and Path(STARTS[self.start].rpartition("@")[2]).exists()
        return has_files and has_choice and has_run

    @property
    def means(self) -> Way:
        return {**WAYS, **FURTHER}[self.way]

    @property
    def chooses(self) -> bool:
        return self.seed == SEEDS[0] and self.labels not in CHOSEN_WITH and self.way not in CHOSEN_AS

    def choice(self, work: Work) -> Path:
        """The result of the cell that chose the settings."""
        labels, way = CHOSEN_WITH.get(self.labels, self.labels), CHOSEN_AS.get(self.way, self.way)
        return self.row(work, seed=SEEDS[0], labels=labels, way=way)

    def run_name(self, table: str) -> str:
        """A run that is fine-tuned is the one of its method alone."""
        method = self.means.method if self.means.finetune else self.way
        return StartCell(self.start, self.data, table, method, self.seed).name

    def measure(self, work: Work) -> dict[str, Any]:
        way, since, tried = self.means, time.perf_counter(), dict[str, float]()
        if self.way == "histograms":
            found, images = classical.accuracy(Path("data", self.data, f"{self.labels}-{self.seed}.csv"))
            took = time.perf_counter() - since
            return {**asdict(self), "accuracy": found, "tested_images": images, "seconds": took,
                    "images_per_second": images / took}  # fmt: skip
        chosen = list(way.candidates[0])
        if len(way.candidates) > 1 and self.chooses:
            for candidate in way.candidates:
                with contextlib.suppress(Failed):  # a rate may be too high
                    answer = self.train_and_test(work, f"{self.labels}-choose", candidate)
                    tried[" ".join(candidate)] = answer["accuracy"]
            chosen = max(tried, key=lambda candidate: tried[candidate], default=" ".join(chosen)).split()
        elif len(way.candidates) > 1:
            chosen = json.loads(self.choice(work).read_text())["chosen"]
        choosing = {"chosen": chosen, "tried": tried, "choosing_seconds": round(time.perf_counter() - since, 1)}
        answer = self.train_and_test(work, f"{self.labels}-{self.seed}", chosen)
        return {**asdict(self), **answer, **choosing}

    def train_and_test(self, work: Work, table: str, chosen: Sequence[str]) -> dict[str, Any]:
        """The last step's result on the table's test images."""
        way, source, encoder = self.means, f"data/{self.data}/{table}.csv", STARTS[self.start]
        since, commands, seen = time.perf_counter(), list[str](), 0
        all_steps, batch, settings = QUICK if work.quick else (STEPS, BATCH, ())
        steps = all_steps // 2 if table.endswith("choose") else all_steps
        epochs = -(-steps // (count_rows(source, labelled=False) // batch))

        def call(words: list[str]) -> dict[str, Any]:
            commands.append(shlex.join(["supancl", *words]))
            code, lines, found = work.call(words)
            if code:
                raise Failed(f"exit {code}: {lines[-1]}")
            return found

        if way.method:
            run = Path("runs") / self.run_name(table)
            if not (way.finetune and (run / "encoder.safetensors").exists()):
                shutil.rmtree(run, ignore_errors=True)
                begin = () if self.way == "scratch" else ("--init", encoder)
                call([
                    "pretrain", f"auto.{way.method}", "--data", source, *begin, "--out", str(run), "--epochs",
                    str(epochs), "--batch-size", str(batch), "--seed", str(self.seed),
                    *(word for setting in settings for word in ("--set", setting)),
                    *(() if way.finetune else chosen), "--set", "train.monitor_every=0",
                    "--set", "train.checkpoint_epochs=100000",
                ])  # fmt: skip
                seen = steps * batch
            encoder = str(run)
        test = ["--data", source, "--split", "test", "--no-baselines"]
        if way.finetune:
            images = count_rows(source, labelled=True)
            epochs = round(steps / max(1, images // batch))
            test += ["--epochs", str(epochs), "--train-batch", str(batch), "--views", "pretraining"]
            test += ["--seed", str(self.seed), *chosen]
            seen += steps * min(batch, images)
        elif self.labels == "1":
            test += ["--k", "1"]  # a linear classifier has no images left to choose its ridge
        protocol = "finetune" if way.finetune else "knn" if self.labels == "1" else "linear"
        answer = call(["evaluate", protocol, encoder, *test])
        seconds = time.perf_counter() - since
        if way.method and not way.finetune and self.way != "supsiam":  # fine-tuning goes on from SupSiam's run
            shutil.rmtree(run)
        kept = ("accuracy", "accuracy_interval", "tested_images", "hardware", "versions", "weights")
        return {**{key: answer[key] for key in kept}, "seconds": round(seconds, 1), "steps": all_steps,
                "images_per_second": round(seen / seconds, 1), "commands": commands}  # fmt: skip


def plan() -> list[StartCell]:
    """The core, few labels first and one data set after the other, then further ways and numbers of labels.

    With all labels `semi` would be `supsiam`.
    """
    rows = product(LABELS[:2], STARTS, DATA, SEEDS, WAYS)
    core = [StartCell(start, data, labels, way, seed) for labels, start, data, seed, way in rows]
    first, seed = next(iter(STARTS)), SEEDS[0]
    further = [StartCell(first, data, labels, way, seed)
               for labels, ways in FURTHER_LABELS.items() for data in FURTHER_DATA for way in ways]  # fmt: skip
    return [cell for cell in [*core, *further] if (cell.way, cell.labels) != ("semi", "all")]


def count_rows(table: str, labelled: bool) -> int:
    """The training images of a table, or those with a label."""
    rows = [line.rsplit(",", 2) for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]]
    return sum(split == "train" and (bool(label) or not labelled) for _, label, split in rows)
