"""What several labels and `semi` cost: steps of cifar100.supsiam take turns in one process.

    python experiments/benchmarks/label_steps.py --json FILE                      on a GPU, about four minutes
    python experiments/benchmarks/label_steps.py --device cpu --tiny              only to see that it runs

A ratio is how many times as fast a row is as one label per image, round by round: the median and the middle half. For
one label against an older commit: step.py --before COMMIT.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from step_ours import TINY_CNN, TINY_HEADS, Contender, ours, paired, settled, synthetic
from step_report import commit_here

from supancl.data.splits import Data
from supancl.files import write_json
from supancl.runs.provenance import versions

CLASSES, MOST_LABELS, UNLABELLED = 100, 4, 0.9
LEAST = {"4 labels": 0.97}  # ratios that the project wants


def with_pairs(data: Data, most: int) -> Data:
    """The same images, each with `most` labels of random weights."""
    generator, images = torch.Generator().manual_seed(1), len(data.train)
    others = torch.rand(images, CLASSES, generator=generator).argsort(1)[:, :most]
    weights = 0.1 + torch.rand(images, most, generator=generator)
    pairs = torch.stack([others.float(), weights], dim=-1)
    return replace(data, train=replace(data.train, labels=others[:, 0], pairs=pairs))


def with_few_labels(data: Data) -> Data:
    """The same images, of which most have no label."""
    hidden = torch.rand(len(data.train), generator=torch.Generator().manual_seed(2)) < UNLABELLED
    return replace(data, train=replace(data.train, labels=torch.where(hidden, -1, data.train.labels)))


def contenders(device: torch.device, tiny: bool) -> dict[str, Contender]:
    """Each row with its step, compiled and captured; the first is what the others are compared with."""
    data = synthetic(64 if tiny else 50_000, (32, 32), CLASSES)
    small = {**TINY_CNN, **TINY_HEADS} if tiny else {}
    rows = {
        "1 label": ("supsiam", data),
        f"{MOST_LABELS} labels": ("supsiam", with_pairs(data, MOST_LABELS)),
        "semi, 10% of labels": ("semi", with_few_labels(data)),
    }
    return {
        name: ours(settled(f"cifar100.{method}", device, small), images, device, name)
        for name, (method, images) in rows.items()
    }


def measure(device: torch.device, tiny: bool, rounds: int, seconds: float) -> list[dict[str, Any]]:
    base, *others = contenders(device, tiny).values()
    records = []
    for other in others:
        ratio = paired(other, base, device, rounds, seconds)
        records.append({**other.record(), **ratio, "against": base.record(), "least": LEAST.get(other.name)})
        low, high = ratio["middle_half"]
        print(f"{other.name}: {other.rate:,.0f} images/s, {ratio['ratio']:.4f} ({low:.4f}-{high:.4f}) of {base.name}")
    return records


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5, help="about so long is one turn")
    parser.add_argument("--json", type=Path, help="keep the rows here")
    parser.add_argument("--tiny", action="store_true", help="only to see that everything runs")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    torch.backends.cudnn.benchmark = True  # as the training loop does
    records = measure(device, args.tiny, args.rounds, args.seconds)
    if args.json:
        where = torch.cuda.get_device_name(device) if args.device == "cuda" else "cpu"
        write_json(args.json, {"rows": records, "hardware": where, "versions": versions(), "commit": commit_here()})
    return records


if __name__ == "__main__":
    slow = [row for row in main() if row["least"] is not None and row["ratio"] < row["least"]]
    sys.exit(1 if slow else 0)
