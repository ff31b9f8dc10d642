"""Our training step in two checkouts, beside each other in one run: is the second as fast as the first?

    git worktree add runs/before e7cac89          # or: git archive e7cac89 src | tar -x -C runs/before
    python experiments/benchmarks/two_trees.py --trees runs/before .                         on a GPU, under 400 s
    python experiments/benchmarks/two_trees.py --trees runs/before . --device cpu --tiny     only to see that it runs

First each network is compiled for each tree, all at once, so that the compiler's cache is filled. Then, network by
network, a process of each tree trains until its step is compiled and captured, and the two take turns of --seconds
each; a process that waits for its turn leaves the GPU idle. As long as --limit allows, networks get further pairs of
processes: cuDNN chooses its algorithms anew in each. A ratio is of two neighbouring turns. Only public names of the
package are used, so a tree of any age can take part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TINY_HEADS = {"heads.projector.hidden": [16], "heads.projector.out": 16, "train.log_every": 2}
TINY_CNN = {"encoder.name": "cnn", "encoder.width": 8, "views.size": 16, "train.batch_size": 4, **TINY_HEADS}
STEADY = 20  # steps after which a run is compiled and captured, on a GPU
# no NaN and no collapse on random pixels, whatever the recipe's rate is; the work is the same
COMMON = {"train.log_every": 10, "train.monitor_every": 0, "train.epochs": 200, "optimizer.lr": 1e-4}
ON_GPU = {"train.precision": "bf16", "train.compile": True, "train.replay": True}


@dataclass(frozen=True)
class Network:
    """A recipe with settings, and random images for it: enough for one epoch to outlast all turns."""

    recipe: str
    settings: dict[str, Any]
    pixels: int
    images: int
    tiny: dict[str, Any]

    def random_images(self, tiny: bool) -> tuple[np.ndarray, np.ndarray]:
        random, images = np.random.default_rng(0), 4000 if tiny else self.images
        pixels = random.integers(0, 256, (images, self.pixels, self.pixels, 3), dtype=np.uint8)
        return pixels, random.integers(0, 100, images)


NETWORKS = {
    "cifar-resnet18": Network("cifar100.supsiam", {"train.batch_size": 512}, pixels=32, images=400_000, tiny=TINY_CNN),
    "resnet50": Network("imagenet100.supsiam-256", {"views.size": 64}, pixels=64, images=200_000, tiny=TINY_CNN),
    "vit-small": Network(
        "vit.supbyol", {}, pixels=64, images=80_000, tiny={"views.size": 32, "train.batch_size": 4, **TINY_HEADS}
    ),
}


# --- in a process of one tree -----------------------------------------------------------------------------------------


class Stop(Exception):
    """The parent has seen enough."""


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def obey(expected: str) -> None:
    """Wait for the parent's word; any other one, and the end of the parent, ends the training."""
    if sys.stdin.readline().strip() != expected:
        raise Stop


def work(name: str, device: str, tiny: bool, seconds: float, batch: int | None) -> None:
    """Train one network with the `supancl` on the path, one turn for each word that the parent sends."""
    import supancl

    class Turns(supancl.Reporter):
        """Blocks between turns, and times each from its second logged row on."""

        begun: float | None = None
        ready = False

        def __init__(self) -> None:
            self.warnings: list[str] = []

        def warn(self, text: str) -> None:
            self.warnings.append(text)

        def stepped(self, step: int, row: dict[str, Any] | None) -> None:
            if row is None or (not self.ready and step < steady):
                return
            if row["epoch"] > 0:
                raise RuntimeError("the first epoch ended before the last turn; fewer --rounds or --seconds")
            now = time.perf_counter()
            if not self.ready:
                self.ready = True
                self.pause(warnings=self.warnings, logged=row["images_per_second"])
            elif self.begun is None:
                self.begun, self.first = now, step
            elif now - self.begun >= seconds:
                self.pause(rate=(step - self.first) * chosen.train.batch_size / (now - self.begun))

        def pause(self, **what: Any) -> None:
            say(**what)
            obey("turn")
            self.begun = None

    network = NETWORKS[name]
    speed = ON_GPU if device == "cuda" else {"train.precision": "fp32"}
    size = {**(network.tiny if tiny else network.settings), **({"train.batch_size": batch} if batch else {})}
    chosen = supancl.recipe(network.recipe).with_set({**COMMON, **speed, "train.device": device, **size})
    steady = 2 if tiny else STEADY
    data = supancl.from_arrays(*network.random_images(tiny))
    say(package=supancl.__file__)
    with tempfile.TemporaryDirectory() as folder:
        try:
            obey("begin")
            supancl.pretrain(chosen, data, Path(folder) / "run", reporter=Turns())
        except Stop:
            return
    raise RuntimeError("the training ended before its last turn")


# --- the parent -------------------------------------------------------------------------------------------------------


class Worker:
    """A process that trains one network with one tree's package."""

    def __init__(self, tree: Path, network: str, args: argparse.Namespace, cache: Path, log: Path) -> None:
        self.title, self.log, self.source = f"{network}, {tree}", log, (tree / "src").resolve()
        words = ["--worker", network, "--device", args.device, "--seconds", str(args.seconds)]
        words += ["--batch", str(args.batch)] if args.batch else []
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.source),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *words, *["--tiny"] * args.tiny],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def begin(self) -> None:
        """Start training, once the package is known to be the tree's own."""
        if (package := Path(self.hear()["package"])).resolve().parents[1] != self.source:
            raise RuntimeError(f"{self.title}: imported {package}, not {self.source}")
        self.send("begin")

    def turn(self) -> float:
        self.send("turn")
        return float(self.hear()["rate"])

    def send(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.title}: ended with {self.process.wait()}: {self.log.read_text()[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        for warning in found.get("warnings", ()):
            print(f"  {self.title}: {warning}", flush=True)
        return found

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass
class Bench:
    args: argparse.Namespace
    folder: Path
    cache: Path
    started: int = 0

    def workers(self, network: str) -> list[Worker]:
        """One of each tree; they import and make their images, and then wait."""
        self.started += 1
        return [
            Worker(tree, network, self.args, self.cache, self.folder / f"{self.started}-{number}.txt")
            for number, tree in enumerate(self.args.trees)
        ]

    def compile_all(self) -> None:
        """Fill the compiler's cache; which kernels are fastest is left open, for here they were timed side by side."""
        workers = [worker for network in self.args.networks for worker in self.workers(network)]
        try:
            for worker in workers:
                worker.begin()
            for worker in workers:
                worker.hear()
        finally:
            for worker in workers:
                worker.end()
        for found in self.cache.rglob("*.best_config"):
            found.unlink()

    def pair(self, workers: list[Worker]) -> list[list[float]]:
        """Images a second of both, a list of pairs: the first tree's, the second's."""
        try:
            for worker in workers:  # one after the other, so that each chooses its algorithms on an idle GPU
                worker.begin()
                worker.hear()
            rates = []
            for number in range(self.args.rounds):
                order = workers if number % 2 == 0 else workers[::-1]
                turns = {id(worker): worker.turn() for worker in order}
                rates.append([turns[id(worker)] for worker in workers])
            return rates
        finally:
            for worker in workers:
                worker.end()

    def measure(self, end: float) -> Iterator[tuple[str, list[list[float]]]]:
        """Network and rates, over and over, as long as there is time for the next pair; each network at least once."""
        networks, took = self.args.networks, dict[str, float]()
        upcoming = self.workers(networks[0])
        try:
            for number in range(self.args.starts * len(networks)):
                network, since = networks[number % len(networks)], time.monotonic()
                if number >= len(networks) and since + took[network] > end:
                    break
                current, upcoming = upcoming, []
                if number + 1 < self.args.starts * len(networks):
                    upcoming = self.workers(networks[(number + 1) % len(networks)])
                yield network, self.pair(current)
                took[network] = time.monotonic() - since
        finally:
            for worker in upcoming:
                worker.end()


def table(trees: Sequence[Path], found: dict[str, list[list[list[float]]]]) -> str:
    """A line a network: median images a second of both, and the ratio's median, lowest and highest over all turns."""
    lines = [
        f"A: {trees[0]}   B: {trees[1]}",
        f"{'network':16s} {'A, img/s':>10s} {'B, img/s':>10s} {'B/A':>7s}   lowest - highest   by pair of processes",
    ]
    for network, starts in found.items():
        first, second = (statistics.median(turn[at] for rates in starts for turn in rates) for at in (0, 1))
        by_start = [[b / a for a, b in rates] for rates in starts]
        ratios = [ratio for each in by_start for ratio in each]
        spread = f"{min(ratios):.4f} - {max(ratios):.4f}"
        each = ", ".join(f"{statistics.median(one):.4f}" for one in by_start)
        middle = statistics.median(ratios)
        lines.append(f"{network:16s} {first:10,.0f} {second:10,.0f} {middle:7.4f}   {spread:16s}   {each}")
    return "\n".join(lines)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", nargs=2, type=Path, metavar=("A", "B"), help="checkouts, each with its src/")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, help="instead of the network's")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each tree in a pair of processes")
    parser.add_argument("--seconds", type=float, default=1.2, help="of a turn, at least")
    parser.add_argument("--starts", type=int, default=3, help="pairs of processes for a network, if --limit allows")
    parser.add_argument("--limit", type=float, default=380.0, help="seconds after which no further pair is begun")
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels, kept for the next call")
    parser.add_argument("--compiled", action="store_true", help="the cache is filled: compile nothing beforehand")
    parser.add_argument("--json", type=Path, help="write all rates here")
    parser.add_argument("--tiny", action="store_true", help="only to see that everything runs")
    parser.add_argument("--worker", choices=list(NETWORKS), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker is None and args.trees is None:
        parser.error("--trees A B: name two checkouts")
    return args


def main(argv: Sequence[str] | None = None) -> dict[str, list[list[list[float]]]]:
    args = parsed(argv)
    if args.worker is not None:
        work(args.worker, args.device, args.tiny, args.seconds, args.batch)
        return {}
    since = time.monotonic()
    found: dict[str, list[list[list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder), (args.cache or Path(folder) / "cache").resolve())
        if args.device == "cuda" and not args.compiled:
            bench.compile_all()
            print(f"compiled after {time.monotonic() - since:.0f} s", flush=True)
        for network, rates in bench.measure(since + args.limit):
            found.setdefault(network, []).append(rates)
            print(f"\nafter {time.monotonic() - since:.0f} s\n{table(args.trees, found)}", flush=True)
            if args.json:
                args.json.write_text(json.dumps({"trees": [str(tree) for tree in args.trees], "rates": found}) + "\n")
    return found


if __name__ == "__main__":
    main()
