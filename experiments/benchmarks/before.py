"""Is our own code slower than in another tree? This is `--before TREE` of step.py, views.py, data.py and evaluate.py.

    python experiments/benchmarks/step.py --before TREE      TREE: a folder with a checkout, or a commit

Each row runs in a process of each tree. The two take turns, A B, B A, ..., so that other work on the machine meets
both; only one works at a time, and the first turn of each does not count. A row is slower if the whole 95% interval of
now / before, a geometric mean over pairs of turns, lies below .98; then the exit code is 1.

Time is that of the processors or, if longer, that of the clock without waiting for a core, which other work hardly
changes; where there is a GPU it is the clock's. Addresses in memory are not randomised and the paths of the trees are
equally long, because both change the speed of a process by some percent.

Rows use public names of the package and what these return. Where a spelling changes, the row tries both, so that it
runs in both trees.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from jpegs import write_jpegs

import supancl

ROOT = Path(__file__).resolve().parents[2]
FLAG: dict[str, Any] = {"metavar": "TREE", "help": "only compare our own speed with this checkout or commit"}
TREES = "old", "new"  # names of equal length: the environment of a process moves its stack
SLOWER = 0.98
STARTS = 2  # pairs of processes of a row: where memory lies, and what cuDNN chooses, differs between processes
PAIRS = 5  # pairs of turns that they take at least
PRECISE, SECONDS = 0.01, 20.0  # they stop at this half width of their intervals, or after these seconds
TURN = 0.2  # seconds, at least


# --- in a process of one tree -----------------------------------------------------------------------------------------


def clocks() -> np.ndarray:
    """Seconds of the clock without those that threads waited for a core (Linux knows them), and of the processors."""
    if torch.cuda.is_available():
        return np.array([time.perf_counter()])
    waited = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended
            waited += int(thread.read_text().split()[1])
    return np.array([time.perf_counter() - waited / 1e9, time.process_time()])


def answer(*speed: float) -> None:
    """Tell the parent, and wait for the next turn."""
    print(*speed, flush=True)
    if not sys.stdin.readline():
        sys.exit()


def repeat(work: Callable[[], object]) -> None:
    """Turns of as many calls as fill one."""
    while True:
        calls, spent, begin = 0, 0.0, clocks()
        while spent < TURN:
            work()
            calls, spent = calls + 1, max(clocks() - begin)
        answer(calls / spent)


class Turns(supancl.Reporter):
    """Blocks the training between turns. The log is where a GPU is waited for, so turns begin and end there."""

    begun: tuple[int, int, np.ndarray] | None = None  # step, epoch, clocks

    def __init__(self, steady: int, seconds: float) -> None:
        self.steady, self.seconds = steady, seconds

    def on_step(self, step: int, row: dict[str, Any] | None) -> None:
        if row is None or step < self.steady:
            return
        if self.begun is None or row["epoch"] != self.begun[1]:
            self.begun = step, row["epoch"], clocks()
        elif (spent := max(clocks() - self.begun[2])) >= self.seconds:
            answer((step - self.begun[0]) / spent)
            self.begun = None


# --- rows: each prepares its work and returns its turns ---------------------------------------------------------------

# no NaN and no collapse on random pixels, whatever the recipe's rate is; the work is the same
COMMON = {"train.monitor_every": 0, "train.epochs": 200, "optimizer.lr": 1e-4}
ON_CPU = {**COMMON, "train.device": "cpu", "train.precision": "fp32"}
ON_GPU = {
    **COMMON, "train.device": "cuda", "train.precision": "bf16", "train.compile": True, "train.replay": True,
    "train.log_every": 10,
}  # fmt: skip


def random_data(images: int, *shape: int) -> supancl.Data:
    pixels = np.random.default_rng(0).integers(0, 256, (images, *shape), dtype=np.uint8)
    return supancl.from_arrays(pixels, np.arange(images) % 100)


def train(folder: Path, name: str, settings: dict[str, Any], images: int, *shape: int) -> Callable[[], object]:
    chosen, data = supancl.recipe(name).with_set(settings), random_data(images, *shape)
    # on a GPU the step is compiled and captured after 20 steps
    turns = Turns(20, 1.2) if chosen.train.device == "cuda" else Turns(2, TURN)
    return partial(supancl.pretrain, chosen, data, folder / "run", reporter=turns)


def augment(folder: Path, images: int, height: int, width: int, size: int, blur: float) -> Callable[[], object]:
    crops, batch = supancl.Crops(size=size, blur=blur), random_data(1000, height, width, 3).train.batch(range(images))

    def work() -> None:
        torch.manual_seed(0)  # a wide blur takes longer than a narrow one
        crops(batch, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    return partial(repeat, work)


def read(folder: Path, what: str) -> Callable[[], object]:
    """A folder of JPEGs: decoded for every batch, packed into a cache, or read from it."""
    os.environ["SUPANCL_CACHE"] = str(folder / "cache")
    write_jpegs(folder / "photos", [(375, 500)], 80)
    uses: dict[str, Any] = {"cache": "never", "memory_gb": 1e-6} if what == "decode" else {"cache": "always"}
    opened = partial(supancl.open_data, supancl.DataSpec(str(folder / "photos"), short_side=256, holdout=0, **uses))
    data, order = opened(), torch.arange(64).split(32)

    def build() -> None:
        shutil.rmtree(folder / "cache")
        opened()

    def read_all(data: supancl.Data) -> None:
        for rows in order:
            data.train.batch(rows)

    works = {"build": build, "open": lambda: read_all(opened()), "cached": lambda: [read_all(data) for _ in range(9)]}
    return partial(repeat, works.get(what, lambda: read_all(data)))


def features(images: int, width: int, classes: int, noise: float = 3.0) -> supancl.Features:
    generator, labels = torch.Generator().manual_seed(0), torch.arange(images) % classes
    centres = torch.randn(classes, width, generator=generator)
    return supancl.Features(centres[labels] + noise * torch.randn(images, width, generator=generator), labels)


def nearest(folder: Path) -> Callable[[], object]:
    return partial(repeat, partial(supancl.knn_accuracy, features(10_000, 256, 100), features(2_000, 256, 100)))


def few(folder: Path) -> Callable[[], object]:
    return partial(repeat, partial(supancl.few_shot, features(2_000, 256, 20), episodes=200))


def convex(folder: Path) -> Callable[[], object]:
    return partial(repeat, partial(supancl.transfer, *(features(images, 64, 10) for images in (1_000, 300, 300))))


ROWS: dict[str, dict[str, Callable[[Path], Callable[[], object]]]] = {
    "step": {
        "digits.supsiam": lambda folder: train(
            folder, "digits.supsiam", {**ON_CPU, "train.log_every": 5}, 50_000, 8, 8
        ),
        "cifar100.supsiam": lambda folder: train(
            folder, "cifar100.supsiam", {**ON_CPU, "train.log_every": 1, "train.batch_size": 8}, 20_000, 32, 32, 3
        ),
    },
    "step, GPU": {
        "cifar100.supsiam": lambda folder: train(
            folder, "cifar100.supsiam", {**ON_GPU, "train.batch_size": 512}, 400_000, 32, 32, 3
        ),
        "imagenet100.supsiam-256": lambda folder: train(
            folder, "imagenet100.supsiam-256", {**ON_GPU, "views.size": 64}, 200_000, 64, 64, 3
        ),
        "vit.supbyol": lambda folder: train(folder, "vit.supbyol", ON_GPU, 80_000, 64, 64, 3),
    },
    "views": {
        "32x32 to 32": lambda folder: augment(folder, 256, 32, 32, 32, 0.0),
        "96x96 to 64": lambda folder: augment(folder, 128, 96, 96, 64, 0.5),
        "256x320 to 224": lambda folder: augment(folder, 16, 256, 320, 224, 0.5),
    },
    "data": {what: partial(read, what=what) for what in ("decode", "build", "open", "cached")},
    "evaluate": {"k-NN": nearest, "few-shot": few, "transfer": convex},
}


def serve(group: str, row: str) -> None:
    if Path(os.environ["PYTHONPATH"]).resolve() not in Path(supancl.__file__).resolve().parents:
        sys.exit(f"imported {supancl.__file__}, not that of {os.environ['PYTHONPATH']}")
    with tempfile.TemporaryDirectory() as folder:
        turns = ROWS[group][row](Path(folder))
        answer()
        turns()


# --- the parent -------------------------------------------------------------------------------------------------------


def fail(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(2)


def fix_addresses() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).personality(0x0040000)


class Side:
    """A process that runs one row with one tree's package, a turn for each line that it is sent."""

    def __init__(self, stack: ExitStack, folder: Path, tree: str, group: str, row: str) -> None:
        self.name = f"{row} in the {tree} tree"
        environment = {
            **os.environ, "PYTHONPATH": f"{folder}/{tree}/src", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton",
        }  # fmt: skip
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        command = [sys.executable, __file__, group, row]
        process = subprocess.Popen(command, env=environment, preexec_fn=fix_addresses, **options)
        self.process = stack.enter_context(process)

    def begin(self) -> None:
        self.process.stdin.write("\n")

    def hear(self) -> str:
        """The speed of a turn; nothing from a process that has just started."""
        line = self.process.stdout.readline()
        return line or fail(f"{self.name}: ended with {self.process.wait()}; the lines above say why")

    def turn(self) -> float:
        self.begin()
        return float(self.hear())


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean with its 95% interval."""
    from supancl.stats import mean_interval  # of this tree: a worker has the other's

    return tuple(map(math.exp, mean_interval(list(map(math.log, ratios)))))


def measure(folder: Path, group: str, row: str) -> list[float]:
    """Ratios now / before of the speeds of pairs of turns, from one process of each tree."""
    ratios: list[float] = []
    with ExitStack() as stack:
        before, now = sides = [Side(stack, folder, tree, group, row) for tree in TREES]
        for side in sides:
            side.hear()
        for side in sides:
            side.turn()  # warms up
        end, precise = time.monotonic() + SECONDS, False
        while len(ratios) < PAIRS or (not precise and time.monotonic() < end):
            speeds = {side: side.turn() for side in (sides if len(ratios) % 2 == 0 else sides[::-1])}
            ratios.append(speeds[now] / speeds[before])
            mean, _, high = interval(ratios)
            precise = high / mean - 1 < PRECISE
    return ratios


def compile_all(folder: Path, group: str) -> None:
    """Fill the compiler's cache; which kernels are fastest is left open, for here they were timed side by side."""
    with ExitStack() as stack:
        sides = [Side(stack, folder, tree, group, row) for row in ROWS[group] for tree in TREES]
        for side in sides:
            side.hear()
            side.begin()
        for side in sides:
            side.hear()
    for found in folder.glob("inductor/**/*.best_config"):
        found.unlink()


def place(tree: str, target: Path) -> None:
    """Link a checkout, or unpack a commit."""
    if (Path(tree) / "src" / "supancl").is_dir():
        target.symlink_to(Path(tree).resolve())
        return
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", tree, "src"], capture_output=True)
    if archive.returncode:
        fail(f"--before {tree}: neither a folder with src/supancl nor a commit of {ROOT}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(target, filter="data")


def compare(group: str, tree: str) -> int:
    """Print how fast each row is in this tree, compared with another; 1 if one is slower."""
    slower = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, target in zip((tree, str(ROOT)), TREES, strict=True):
            place(path, folder / target)
        if group == "step, GPU":
            compile_all(folder, group)
        print(f"{group + ', speed':26s}now / {tree}  95% interval   pairs", flush=True)
        for row in ROWS[group]:
            ratios = [ratio for _ in range(STARTS) for ratio in measure(folder, group, row)]
            mean, low, high = interval(ratios)
            verdict = "slower" if high < SLOWER else ""
            slower = slower or high < SLOWER
            print(f"{row:26s}{mean:{len(tree) + 6}.3f}  {low:.3f} - {high:.3f} {len(ratios):6d}  {verdict}", flush=True)
    return int(slower)


if __name__ == "__main__":
    serve(*sys.argv[1:])
