"""The cells of the study: what a start is worth on data with some labels, used in one way, with one seed.

    python -m experiments.starts.cells --data DIR --out DIR --runs DIR    # once for each driver side by side

DIR of --data has the folders of `experiments.starts.data` and the weights. A cell becomes OUT/NAME.json; cells that
have one, or whose data are not there, are left out. Learning rate and batch norm are chosen with seed 0 on labelled
images held out of the training images, and used for all seeds; test images choose nothing.
"""

from __future__ import annotations

import argparse
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

from experiments.evidence.drive import RunLocks
from experiments.evidence.judge import called, inside
from experiments.starts.data import LABELS, SEEDS
from supancl.files import write_json
from supancl.runs.provenance import commit
from supancl.training.cuda.reuse import share_step

STARTS = {name: f"timm:{name}@{name}.safetensors" for name in ("tf_efficientnet_lite0", "mobilenetv2_100")}
DATA = ("plantvillage", "cars", "pets", "cub")
RATES = ("0.02", "0.1", "0.5")  # at batch 256
NORMS = ((), ("--freeze-norm",))
FINE_TUNING = [("--lr", lr, *norm) for norm in NORMS for lr in RATES]
# a linear classifier that is fitted to the end has large weights, so the encoder gets large gradients
FROM_PROBE = [("--probe-first", "--lr", lr, *norm) for norm in NORMS for lr in ("0.004", *RATES[:2])]
SUPERVISED = [("--set", f"optimizer.lr={lr}") for lr in RATES]


class Failed(Exception):
    """A command ended with an error."""


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


@dataclass(frozen=True)
class Cell:
    start: str
    data: str
    labels: str
    way: str
    seed: int

    @property
    def name(self) -> str:
        return "-".join(map(str, asdict(self).values()))


def plan() -> list[Cell]:
    """A data set is finished before the next is begun; with all labels `semi` would be `supsiam`."""
    rows = product(STARTS, LABELS, DATA, SEEDS, WAYS)
    cells = [Cell(start, data, labels, way, seed) for start, labels, data, seed, way in rows]
    return [cell for cell in cells if (cell.way, cell.labels) != ("semi", "all")]


@dataclass(frozen=True)
class Study:
    """How the cells are measured; from --data as the working folder, so that commands have relative paths."""

    out: Path
    runs: Path
    steps: int  # of pretraining and of fine-tuning; half of them to choose settings
    batch: int
    settings: Sequence[str] = ()  # further words of `pretrain`
    commit: str | None = None

    def path(self, cell: Cell, **other: Any) -> Path:
        return self.out / f"{Cell(**asdict(cell) | other).name}.json"

    def is_ready(self, cell: Cell) -> bool:
        """Whether the data are there, and what it takes from other cells: a choice, an encoder."""
        way = WAYS[cell.way]
        has_choice = cell.seed == SEEDS[0] or len(way.candidates) == 1 or self.path(cell, seed=SEEDS[0]).exists()
        has_run = not (way.method and way.finetune) or self.path(cell, way=way.method).exists()
        has_files = Path(cell.data).is_dir() and Path(STARTS[cell.start].partition("@")[2]).exists()
        return has_files and has_choice and has_run

    def measure(self, cell: Cell) -> dict[str, Any]:
        way, since, tried = WAYS[cell.way], time.perf_counter(), dict[str, float]()
        chosen = list(way.candidates[0])
        if len(way.candidates) > 1 and cell.seed == SEEDS[0]:
            for candidate in way.candidates:
                with contextlib.suppress(Failed):  # a rate may be too high
                    answer = self.train_and_test(cell, f"{cell.labels}-choose", candidate)
                    tried[" ".join(candidate)] = answer["accuracy"]
            chosen = max(tried, key=lambda candidate: tried[candidate], default=" ".join(chosen)).split()
        elif len(way.candidates) > 1:
            chosen = json.loads(self.path(cell, seed=SEEDS[0]).read_text())["chosen"]
        choosing = {"chosen": chosen, "tried": tried, "choosing_seconds": round(time.perf_counter() - since, 1)}
        answer = self.train_and_test(cell, f"{cell.labels}-{cell.seed}", chosen)
        return {**asdict(cell), **answer, **choosing, "steps": self.steps, "commit": self.commit or commit()}

    # --- the only place that knows the command line -------------------------------------------------------------------

    def train_and_test(self, cell: Cell, table: str, chosen: Sequence[str]) -> dict[str, Any]:
        """The last step's result on the table's test images."""
        way, source, encoder = WAYS[cell.way], f"{cell.data}/{table}.csv", STARTS[cell.start]
        since, commands, seen = time.perf_counter(), list[list[str]](), 0
        steps = self.steps // 2 if table.endswith("choose") else self.steps
        epochs = -(-steps // (count_rows(source, labelled=False) // self.batch))
        if way.method:
            run = self.runs / Cell(cell.start, cell.data, table, way.method, cell.seed).name
            if not (way.finetune and (run / "encoder.safetensors").exists()):
                shutil.rmtree(run, ignore_errors=True)
                words = ["pretrain", f"auto.{way.method}", "--data", source, "--init", encoder, "--out", str(run),
                         "--epochs", str(epochs), "--batch-size", str(self.batch), "--seed", str(cell.seed),
                         *(word for setting in self.settings for word in ("--set", setting)),
                         *(() if way.finetune else chosen), "--set", "train.monitor_every=0",
                         "--set", "train.checkpoint_epochs=100000"]  # fmt: skip
                self.call(words, commands)
                seen = steps * self.batch
            encoder = str(run)
        test = ["--data", source, "--split", "test", "--no-baselines"]
        if way.finetune:
            images = count_rows(source, labelled=True)
            epochs = round(steps / max(1, images // self.batch))
            test += ["--epochs", str(epochs), "--train-batch", str(self.batch), "--views", "pretraining"]
            test += ["--seed", str(cell.seed), *chosen]
            seen += steps * min(self.batch, images)
        answer = self.call(["evaluate", "finetune" if way.finetune else "linear", encoder, *test], commands)
        seconds = time.perf_counter() - since
        if way.method and not way.finetune and way.method != "supsiam":  # fine-tuning goes on from SupSiam's run
            shutil.rmtree(run)
        kept = ("accuracy", "accuracy_interval", "tested_images", "hardware", "versions", "weights")
        return {**{key: answer[key] for key in kept}, "seconds": round(seconds, 1),
                "images_per_second": round(seen / seconds, 1),
                "commands": [shlex.join(words).replace(str(self.runs), "runs") for words in commands]}  # fmt: skip

    def call(self, words: list[str], commands: list[list[str]]) -> dict[str, Any]:
        """Run a command in this process; the json that it wrote."""
        commands.append(["supancl", *words])
        answer = self.runs / f"{time.time_ns()}.json"
        code, lines, _ = called([*words, "--quiet", "--json", str(answer)])
        if code:
            raise Failed(f"exit {code}: {lines[-1] if lines else shlex.join(words)}")
        found: dict[str, Any] = json.loads(answer.read_text())
        answer.unlink()
        return found


def count_rows(table: str, labelled: bool) -> int:
    """The training images of a table, or those with a label."""
    rows = [line.rsplit(",", 2) for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]]
    return sum(split == "train" and (bool(label) or not labelled) for _, label, split in rows)


def work(study: Study, cells: Sequence[Cell]) -> None:
    """Measure the cells that no other driver has; wait for those that another one works on."""
    (study.runs / "locks").mkdir(parents=True, exist_ok=True)
    study.out.mkdir(parents=True, exist_ok=True)
    locks, failed = RunLocks(study.runs / "locks"), set[str]()
    while left := [cell for cell in cells if not study.path(cell).exists() and cell.name not in failed]:
        cell = next((cell for cell in left if study.is_ready(cell) and locks.take(cell.name)), None)
        if cell is None:
            if not locks.others():
                return  # the data of the others are not here
            time.sleep(1)
            continue
        try:
            if not study.path(cell).exists():
                row = study.measure(cell)
                write_json(study.path(cell), row)
                print(f"{cell.name}: {row['accuracy']:.1f}%, {row['seconds']:.0f} s, {len(left) - 1} left", flush=True)
        except Failed as error:
            failed.add(cell.name)
            print(f"{cell.name}: failed, {error}", flush=True)
        finally:
            locks.release(cell.name)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("data", "out", "runs"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=720)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=[], help="cells whose name contains one of these")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of pretraining, such as views.size=32")
    parser.add_argument("--commit", help="of the code, where there is no repository")
    args = parser.parse_args(argv)
    study = Study(args.out.resolve(), args.runs.resolve(), args.steps, args.batch, args.set, args.commit)
    cells = [cell for cell in plan() if not args.only or any(text in cell.name for text in args.only)]
    with inside(args.data), share_step():
        work(study, cells)


if __name__ == "__main__":
    main()
