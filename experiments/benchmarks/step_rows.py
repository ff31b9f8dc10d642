"""For step.py: the rows that time steps: CIFAR, ImageNet-100, ViT, supervised against not, fed data, sweeps, CPU."""

from __future__ import annotations

import gc
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from jpegs import write_jpegs
from step_ours import TINY_CNN, TINY_HEADS, TINY_VIT, Contender, in_turns, ours, paired, settled, synthetic
from step_peers import LightlyFeed, lightly_contenders, released

from supancl.data.opening import open_data
from supancl.data.splits import Data, DataSpec

Record = dict[str, Any]
PEER_OF = {"supsiam": "simsiam", "supbyol": "byol", "supcon": "simclr"}  # the nearest that lightly has
PUBLISHED_VIT = {"name": "stable-pretraining, two-view ViT-S, GPU augmentation (published)", "rate": 871.0}


@dataclass
class Bench:
    """What all rows share: where, how long, how large, and what has been built already in this call."""

    device: torch.device
    tiny: bool = False
    rounds: int = 3
    seconds: float = 1.5
    ratio_rounds: int = 40
    workers: int = 16
    source: str = ""  # --data
    epochs: int = 30
    seeds: int = 3
    text_to: Path | None = None  # folder for texts that are too long for the JSON
    cold: dict[str, Record] = field(default_factory=dict)  # facts of first steps with nothing compiled before
    built: dict[str, Contender] = field(default_factory=dict)
    data: dict[str, Data] = field(default_factory=dict)

    def cifar(self) -> Data:
        return self._data("cifar", lambda: synthetic(64 if self.tiny else 50_000, (32, 32), 100))

    def large(self) -> Data:
        size = (40, 48) if self.tiny else (256, 320)
        return self._data("large", lambda: synthetic(16 if self.tiny else 2048, size, 100))

    def _data(self, name: str, make: Callable[[], Data]) -> Data:
        if name not in self.data:
            self.data[name] = make()
        return self.data[name]

    def settings(self, vit: bool = False) -> Record:
        if not self.tiny:
            return {}
        return dict(TINY_VIT) if vit else {**TINY_CNN, **TINY_HEADS}

    def ours(self, name: str) -> Contender:
        """Our step with a recipe, built once a call: compiling it takes most of the time there is."""
        if name not in self.built:
            vit = name.startswith("vit.")
            chosen = settled(name, self.device, self.settings(vit))
            data = self.cifar() if name.startswith("cifar") else self.large()
            self.built[name] = ours(chosen, data, self.device)
            said = self.built[name].facts
            if name in self.cold:
                said |= {"first_again_s": said["first_s"], **self.cold[name]}
            print(
                f"  {name}: first step after {said['first_s']:.1f} s, ready after {said['ready_s']:.1f} s "
                f"({said['how']})",
                flush=True,
            )
        return self.built[name]

    def turns(self, contenders: list[Contender]) -> None:
        in_turns(contenders, self.device, self.rounds, self.seconds)
        for contender in contenders:
            print(f"  {contender.name}: {contender.rate:,.0f} images/s", flush=True)


def compared(key: str, work: str, own: Contender, peers: list[Contender], more: list[Record] | None = None) -> Record:
    """One record: ours, every peer, and how many times as fast ours is as the fastest that does the same work."""
    same_work = [peer for peer in peers if not peer.facts.get("bound")]
    best = max((peer.rate for peer in same_work), default=math.nan)
    best = max([other["rate"] for other in more], default=best) if more and not same_work else best
    record = {
        "key": key,
        "work": work,
        "batch": own.batch,
        "ours": own.record(),
        "peers": [*(peer.record() for peer in peers), *(more or [])],
    }
    return record if math.isnan(best) else {**record, "ratio": own.rate / best}


# --- beside peers -----------------------------------------------------------------------------------------------------


def cifar_row(method: str, bench: Bench) -> list[Record]:
    name, peer = f"cifar100.{method}", PEER_OF[method]
    work = f"{name}: CIFAR ResNet-18, 32 px"
    chosen = settled(f"cifar100.{peer}", bench.device, bench.settings())
    try:
        feed = LightlyFeed(peer, chosen, bench.cifar(), bench.workers, bench.device)
    except ImportError as error:
        own = bench.ours(name)
        bench.turns([own])
        return [{**compared(method, work, own, []), "note": f"peer not installed ({error.name})"}]
    try:
        peers = lightly_contenders(peer, chosen, feed, bench.device)
        own = bench.ours(name)
        bench.turns([own, *peers])
    finally:
        feed.close()
    return [compared(method, work, own, peers)]


def imagenet_row(bench: Bench) -> list[Record]:
    own = bench.ours("imagenet100.supsiam")
    assert own.trainer is not None
    naive = released(own.trainer.recipe, bench.device, 100)
    bench.turns([own, naive])
    work = "imagenet100.supsiam: ResNet-50, 224 px, resident uint8 256x320, augmentation included"
    return [compared("imagenet", work, own, [naive])]


def vit_row(bench: Bench) -> list[Record]:
    own = bench.ours("vit.supbyol")
    bench.turns([own])
    work = "vit.supbyol: ViT-S/16, 224 px, resident uint8 256x320, augmentation included"
    return [compared("vit", work, own, [], [dict(PUBLISHED_VIT)])]


def ratio_rows(bench: Bench) -> list[Record]:
    """Supervised against self-supervised, the two captured steps by turns in many short rounds."""
    records = []
    for one, other in (("supsiam", "simsiam"), ("supbyol", "byol")):
        pair = bench.ours(f"cifar100.{one}"), bench.ours(f"cifar100.{other}")
        found = paired(*pair, bench.device, bench.ratio_rounds, min(0.15, bench.seconds))
        print(f"  {one} / {other}: {found['ratio']:.4f}", flush=True)
        work = f"cifar100.{one} against cifar100.{other}, same settings"
        record = compared(f"ratio-{one}", work, *_named(pair, other))
        records.append({**record, **found})
    return records


def _named(pair: tuple[Contender, Contender], other: str) -> tuple[Contender, list[Contender]]:
    own, peer = pair
    return own, [Contender(f"ours, {other}", peer.batch, peer.step, facts=dict(peer.facts), times=list(peer.times))]


# --- data that are not resident ---------------------------------------------------------------------------------------


def folder_rows(bench: Bench) -> list[Record]:
    """A cached folder of JPEGs fed through pinned memory, second epoch, against the same images resident on the GPU."""
    few = bench.tiny
    photos = [(256, 320), (256, 341), (320, 256), (256, 256)] if not few else [(40, 48), (40, 40)]
    cases = [
        ("folder-large", "imagenet100.supsiam", photos, 60 if few else 4000, "ResNet-50, 224 px, 256-px JPEGs"),
        ("folder-small", "cifar100.supsiam", [(32, 32)], 60 if few else 8000, "CIFAR ResNet-18, 32-px JPEGs"),
    ]
    records = []
    for key, name, sizes, count, what in cases:
        with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, SUPANCL_CACHE=f"{folder}/cache"):
            root = Path(folder) / "photos"
            write_jpegs(root, sizes, count)
            chosen = settled(name, bench.device, bench.settings())
            data = open_data(DataSpec(str(root), short_side=256, cache="always"), 3)
            on_gpu = ours(chosen, data, bench.device, "ours, resident")
            with patch(
                "supancl.data.store.memory.fits_on_gpu", return_value=False
            ):  # as if the GPU had no room for them
                fed = ours(chosen, data, bench.device, "ours, fed from the cache")
            assert fed.trainer is not None
            for _ in range(fed.trainer.steps_per_epoch):  # the first epoch reads the files
                fed.step()
            fed.before = lambda fed=fed: [fed.step() for _ in range(5)]  # type: ignore[misc] # uses up what lay ready
            found = paired(fed, on_gpu, bench.device, bench.ratio_rounds // 2, min(0.4, bench.seconds))
            print(f"  {what}: {found['ratio']:.4f}", flush=True)
            work = f"{name}: {what}, {len(data.train):,} in a cached folder, second epoch, against resident"
            records.append({**compared(key, work, fed, [on_gpu]), **found})
            fed.trainer.feed.close()
    return records


# --- sweeps -----------------------------------------------------------------------------------------------------------


def sweep_rows(bench: Bench) -> list[Record]:
    """Replayed but not compiled: compiling anew for every size would take many minutes."""
    few = bench.tiny
    classes = {"prototypes": (10, 100) if few else (10, 1_000, 100_000)}
    classes["class-queues"] = classes["prototypes"]
    sweeps: list[tuple[str, list[tuple[int, Record, int]]]] = [
        ("batch", [(n, {"train.batch_size": n}, 100) for n in ((4, 8) if few else (64, 128, 256, 512, 1024))]),
        ("pool", [(n, {"pool.size": n}, 100) for n in ((16, 64) if few else (1_024, 16_384, 131_072, 1_048_576))]),
        *(
            (f"classes, {kind}", [(n, {"pool.kind": kind, "pool.size": 16}, n) for n in numbers])
            for kind, numbers in classes.items()
        ),
    ]
    return [_sweep(bench, name, points) for name, points in sweeps]


def _sweep(bench: Bench, name: str, points: list[tuple[int, Record, int]]) -> Record:
    found = []
    for number, settings, classes in points:
        chosen = settled("cifar100.supsiam", bench.device, {**bench.settings(), **settings}, compiled=False)
        data = bench._data(
            f"classes {classes}",
            lambda classes=classes: synthetic(  # type: ignore[misc]
                64 if bench.tiny else 20_000, (32, 32), classes
            ),
        )
        own = ours(chosen, data, bench.device, f"{name} {number}")
        in_turns([own], bench.device, bench.rounds, min(0.3, bench.seconds))
        print(f"  {own.name}: {own.rate:,.0f} images/s, {own.facts['peak_gb'] or 0:.2f} GB", flush=True)
        found.append({"at": number, **own.record()})
        del own
        gc.collect()
    return {"key": f"sweep-{name.replace(', ', '-')}", "work": f"cifar100.supsiam, {name}", "points": found}


# --- on a CPU ---------------------------------------------------------------------------------------------------------


def cpu_row(name: str, bench: Bench) -> list[Record]:
    """A digits or a CIFAR step beside lightly's, which may augment in its own process or in one per core."""
    cpu, cores = torch.device("cpu"), 0 if bench.tiny else len(os.sched_getaffinity(0))
    if name == "digits":
        settings: Record = {}
        data, what = open_data(settled("digits.supsiam", cpu, {}).data, 1), "small CNN, 16 px, grey"
    else:
        settings = bench.settings() or {"train.batch_size": 64}
        data, what = synthetic(64 if bench.tiny else 2000, (32, 32), 100), "CIFAR ResNet-18, 32 px"
    own = ours(settled(f"{name}.supsiam", cpu, settings), data, cpu)
    chosen = settled(f"{name}.simsiam", cpu, settings)
    feeds: list[LightlyFeed] = []
    peers: list[Contender] = []
    note: Record = {}
    try:
        for workers in sorted({0, cores}):
            feeds.append(LightlyFeed("simsiam", chosen, data, workers, cpu))
            found = lightly_contenders("simsiam", chosen, feeds[-1], cpu, (("fp32", False),))
            peers += found[:1] if workers else found  # the bound once
    except ImportError as error:
        note = {"note": f"peer not installed ({error.name})"}
    try:
        in_turns([own, *peers], cpu, bench.rounds, bench.seconds)
    finally:
        for feed in feeds:
            feed.close()
    for contender in (own, *peers):
        print(f"  {contender.name}: {contender.rate:,.1f} images/s", flush=True)
    return [{**compared(f"cpu-{name}", f"{name}.supsiam on a CPU: {what}", own, peers), **note}]
