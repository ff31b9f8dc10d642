"""A training step beside its peers: ours, lightly's, and the released code's as it is described, in one run.

    python experiments/benchmarks/step.py --rows gpu --json FILE
    OMP_NUM_THREADS=2 python experiments/benchmarks/step.py --rows cpu --rounds 5 --json FILE
    python experiments/benchmarks/step.py --before TREE           against another checkout or commit: before.py

Every image is two augmented views, forward and backward. Contenders of a row take turns in one process, round by round;
the median is given, with the slowest and the fastest round. A loader's workers are started, and what they made ready
meanwhile is thrown away, before the clock runs. `bound` marks what no peer can be faster than. --tiny runs everything
at sizes that say nothing about speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from before import FLAG, compare
from common import Record, about, keep, show
from jpegs import write_jpegs
from step_ours import TINY_CNN, TINY_HEADS, TINY_VIT, Contender, in_turns, ours, paired, settled, synthetic
from step_peers import LightlyFeed, lightly_contenders, released

from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.data.splits import Data

PEER_OF = {"supsiam": "simsiam", "supbyol": "byol", "supcon": "simclr"}  # the nearest that lightly has


@dataclass
class Bench:
    """What all rows share: where, how long, how large, and what has been built already in this call."""

    device: torch.device
    tiny: bool
    rounds: int
    seconds: float
    ratio_rounds: int
    workers: int
    built: dict[str, Contender] = field(default_factory=dict)

    def data(self, name: str) -> Data:
        images, size = (50_000, (32, 32)) if name.startswith("cifar") else (2048, (256, 320))
        return synthetic(16 if self.tiny else images, (40, 48) if self.tiny else size, 100)

    def settings(self, name: str = "") -> Record:
        if not self.tiny:
            return {}
        return dict(TINY_VIT) if name.startswith("vit.") else {**TINY_CNN, **TINY_HEADS}

    def ours(self, name: str) -> Contender:
        """Our step with a recipe, built once a call: compiling it takes most of the time there is."""
        if name not in self.built:
            self.built[name] = ours(settled(name, self.device, self.settings(name)), self.data(name), self.device)
            print(f"  {name}: {self.built[name].facts}", flush=True)
        return self.built[name]

    def turns(self, key: str, contenders: Sequence[Contender]) -> list[Record]:
        """A record for each contender; `ratio` is how many times as fast the first one is."""
        in_turns(contenders, self.device, self.rounds, self.seconds)
        own = contenders[0].rate
        return [{"key": key, "batch": each.batch, **each.record(), "ratio": own / each.rate} for each in contenders]


def cifar_rows(method: str, bench: Bench) -> list[Record]:
    name, peer = f"cifar100.{method}", PEER_OF[method]
    chosen = settled(f"cifar100.{peer}", bench.device, bench.settings())
    feed = LightlyFeed(peer, chosen, bench.data(name), bench.workers, bench.device)
    try:
        return bench.turns(name, [bench.ours(name), *lightly_contenders(peer, chosen, feed, bench.device)])
    finally:
        feed.close()


def imagenet_rows(bench: Bench) -> list[Record]:
    """ResNet-50 at 224 px; the images are resident, uint8 of 256 x 320, augmentation included."""
    own = bench.ours("imagenet100.supsiam")
    assert own.trainer is not None
    return bench.turns("imagenet100.supsiam", [own, released(own.trainer.recipe, bench.device, 100)])


def vit_rows(bench: Bench) -> list[Record]:
    return bench.turns("vit.supbyol", [bench.ours("vit.supbyol")])


def ratio_rows(bench: Bench) -> list[Record]:
    """Supervised against self-supervised, the two captured steps by turns in many short rounds."""
    records = []
    for one, other in (("supsiam", "simsiam"), ("supbyol", "byol")):
        pair = bench.ours(f"cifar100.{one}"), bench.ours(f"cifar100.{other}")
        found = paired(*pair, bench.device, bench.ratio_rounds, min(0.15, bench.seconds))
        records.append({"key": f"cifar100.{one} / cifar100.{other}", **pair[0].record(), **found})
    return records


def folder_rows(bench: Bench) -> list[Record]:
    """A cached folder of JPEGs fed through pinned memory, second epoch, against the same images resident on the GPU."""
    records, count = [], 60 if bench.tiny else 4000
    for name, sizes in (("imagenet100.supsiam", [(256, 320), (320, 256)]), ("cifar100.supsiam", [(32, 32)])):
        with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, SUPANCL_CACHE=f"{folder}/cache"):
            root = Path(folder) / "photos"
            write_jpegs(root, [(40, 48)] if bench.tiny else sizes, count)
            chosen = settled(name, bench.device, bench.settings())
            data = open_data(DataSpec(str(root), short_side=256, cache="always"), 3)
            on_gpu = ours(chosen, data, bench.device, "ours, resident")
            with patch("supancl.data.store.memory.fits_on", return_value=False):  # as if there was no room
                fed = ours(chosen, data, bench.device, "ours, fed from the cache")
            assert fed.trainer is not None
            for _ in range(fed.trainer.steps_per_epoch):  # the first epoch reads the files
                fed.step()
            fed.before = lambda fed=fed: [fed.step() for _ in range(5)]  # type: ignore[misc] # uses up what lay ready
            found = paired(fed, on_gpu, bench.device, bench.ratio_rounds // 2, min(0.4, bench.seconds))
            records.append({"key": f"{name}: fed / resident", **fed.record(), **found})
            fed.trainer.feed.close()
    return records


def cpu_rows(name: str, bench: Bench) -> list[Record]:
    """A digits or a CIFAR step beside lightly's, which may augment in its own process or in one per core."""
    cpu, settings = torch.device("cpu"), bench.settings() or {"train.batch_size": 64}
    if name == "digits":
        settings, data = {}, open_data(settled("digits.supsiam", cpu, {}).data, 1)
    else:
        data = synthetic(64 if bench.tiny else 2000, (32, 32), 100)
    own = ours(settled(f"{name}.supsiam", cpu, settings), data, cpu)
    chosen, peers = settled(f"{name}.simsiam", cpu, settings), list[Contender]()
    feeds = [LightlyFeed("simsiam", chosen, data, workers, cpu) for workers in {0, bench.workers}]
    try:
        for feed in feeds:
            found = lightly_contenders("simsiam", chosen, feed, cpu, (("fp32", False),))
            peers += found[:1] if feed.workers else found  # the bound once
        return bench.turns(f"{name}.supsiam, CPU", [own, *peers])
    finally:
        for feed in feeds:
            feed.close()


ROWS: dict[str, Callable[[Bench], list[Record]]] = {
    **{method: partial(cifar_rows, method) for method in PEER_OF},
    "ratios": ratio_rows, "imagenet": imagenet_rows, "vit": vit_rows, "folder": folder_rows,
    "cpu-digits": partial(cpu_rows, "digits"), "cpu-cifar100": partial(cpu_rows, "cifar100"),
}  # fmt: skip
GROUPS = {
    "cifar": tuple(PEER_OF),
    "cpu": ("cpu-digits", "cpu-cifar100"),
    "gpu": tuple(name for name in ROWS if not name.startswith("cpu-")),
}


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=["gpu"], choices=[*GROUPS, *ROWS])
    parser.add_argument("--json", type=Path, help="keep the records here")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="about so long is one turn")
    parser.add_argument("--ratio-rounds", type=int, default=40)
    parser.add_argument(
        "--workers", type=int, default=min(16, len(os.sched_getaffinity(0))), help="of lightly's loader"
    )
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--tiny", action="store_true", help="only to see that everything runs")
    parser.add_argument("--before", **FLAG)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    if args.before:
        return compare("step, GPU" if args.device == "cuda" and args.rows != ["cpu"] else "step", args.before)
    torch.backends.cudnn.benchmark = True  # as the training loop does, and to the peers' good too
    device = torch.device(args.device)
    bench = Bench(device, args.tiny, args.rounds, args.seconds, args.ratio_rounds, args.workers)
    records, failed = list[Record](), False
    for name in dict.fromkeys(each for row in args.rows for each in GROUPS.get(row, (row,))):
        try:
            records += ROWS[name](bench)
        except Exception as error:  # one row that fails, or whose peer is not installed, must not hide the others
            failed |= not isinstance(error, ImportError)
            traceback.print_exc()
        where = about(torch.device("cpu") if name.startswith("cpu-") else device, "lightly", given=args.commit)
        keep(args.json, {**where, "rows": records})  # at once: a later row may run out of time
    show(records)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
