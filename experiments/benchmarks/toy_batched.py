"""How much faster the toy study's runs train together than in turn: `python experiments/benchmarks/toy_batched.py`.

Both sides in one process, at full size, for a few epochs: five alphas by three seeds as one batched computation;
the same trainer with one run at a time; and the package's own modules with one run at a time.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from supancl.core.branches import Branches
from supancl.core.losses import Align
from supancl.core.pools import Queue
from supancl.data.sources.toy import Toy
from supancl.data.store.memory import Batch
from supancl.data.views.specs import Masks
from supancl.paper.toy_study import training as study


def with_modules(toy: Toy, reading: study.Reading, size: study.Size, alpha: float) -> None:
    """One run with Branches, Align, Queue, Masks and SGD, step by step as the training loop does it."""
    widths = ((size.dimensions, reading.encoder), (reading.encoder, size.width), (size.width, size.width))
    branches = Branches(*(nn.Linear(width, out, bias=False) for width, out in widths))
    optimizer = torch.optim.SGD(branches.parameters(), lr=study.PEAK, momentum=study.MOMENTUM, weight_decay=study.DECAY)
    pool, loss, masks = Queue(reading.pool, size.width, size.classes), Align(alpha=alpha), Masks(reading.masked)
    generator = torch.Generator().manual_seed(0)
    for _ in range(size.epochs):
        order = torch.randperm(len(toy.train), generator=generator)
        for rows in order[: len(order) // size.batch * size.batch].split(size.batch):
            labels = toy.train_labels[rows]
            anchors, targets = branches(masks(Batch(toy.train[rows]), (), (), generator))
            terms = loss(anchors, targets, labels, pool)
            optimizer.zero_grad()
            terms.total.backward()
            optimizer.step()
            pool.push(targets[1], labels)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--reading", choices=tuple(study.READINGS), default="near")
    args = parser.parse_args(argv)
    seeds, size = list(range(args.seeds)), replace(study.FULL, epochs=args.epochs)
    reading = study.READINGS[args.reading]
    toys = study.draw_data(reading, size, seeds, enlarged=1)

    def one_by_one() -> None:
        for seed, toy in zip(seeds, toys, strict=True):
            for alpha in study.ALPHAS:
                study.train([toy], reading, size, (alpha,), [seed])

    def modules_one_by_one() -> None:
        for toy in toys:
            for alpha in study.ALPHAS:
                with_modules(toy, reading, size, alpha)

    study.train(toys[:1], reading, replace(size, epochs=1), study.ALPHAS[:1], seeds[:1])  # warm-up
    found = {
        "batched": seconds(lambda: study.train(toys, reading, size, study.ALPHAS, seeds)),
        "same trainer, one after another": seconds(one_by_one),
        "shipped modules, one after another": seconds(modules_one_by_one),
    }
    print(
        f"{len(study.ALPHAS)} alphas x {len(seeds)} seeds, {args.epochs} of {study.FULL.epochs} epochs, "
        f"reading {reading.name}, torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
    )
    for name, taken in found.items():
        print(f"{name:36s} {taken:7.1f} s   {taken / found['batched']:.2f} x batched")
    return found


if __name__ == "__main__":
    main()
