"""The tables of docs/own-data.md: the rules of `auto.METHOD` against other candidates, and runs from a trained start.

python -m experiments.auto.page [--update docs/own-data.md]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supancl.files import replace_section
from supancl.stats import paired_accuracy_interval

RESULTS = Path(__file__).parents[1] / "results" / "auto"
FEW = Path(__file__).parents[1] / "results" / "few"
DATA = {
    "cifar100-2000": "CIFAR-100, 2,000 images", "cifar100-45000": "CIFAR-100, 45,000 images",
    "mini-5000": "mini-ImageNet, 5,000 images", "mini-27000": "mini-ImageNet, 27,000 images",
    "mini-27000-tenth": "the same, a tenth of the labels", "pets": "Pets, 2,760 images", "gtsrb": "GTSRB",
}  # fmt: skip
OTHERS = {
    "paper": "the paper's nearest recipe", "large-stem": "the usual first layers of a ResNet-18",
}  # fmt: skip
STARTS = {
    "rules": "from random weights", "continued": "from the start, the same settings",
    "continued-third": "0.3 of the encoder's learning rate", "continued-tenth": "0.1 of the encoder's learning rate",
    "continued-no-warmup": "no warm-up", "continued-fixed-norm": "batch norm keeps the start's statistics",
}  # fmt: skip
Results = Mapping[tuple[str, str], dict[str, Any]]  # (cell, candidate) -> result of seed 0


def read_all(folder: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def read_results(folder: Path = RESULTS) -> Results:
    return {(found["cell"], found["candidate"]): found for found in read_all(folder) if found["seed"] == 0}


def unpack(result: Mapping[str, Any]) -> np.ndarray:
    """Which held-out images were classified correctly."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(result["right"]), np.uint8))
    return bits[: result["held_out"]].astype(bool)


def table(results: Results) -> str:
    """A Markdown row per data set and candidate: accuracy, time, and the rules' difference."""
    rows = [
        "| data | candidate | seconds | linear % | rules minus this, 95% interval |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cell, name in DATA.items():
        if (ours := results.get((cell, "rules"))) is None:
            continue
        rows.append(f"| {name} | the rules | {ours['seconds']:.0f} | {ours['accuracy']:.1f} | |")
        for candidate, label in OTHERS.items():
            if (other := results.get((cell, candidate))) is not None:
                gap = paired_accuracy_interval(unpack(ours).tolist(), unpack(other).tolist())
                interval = f"{gap[0]:+.1f} [{gap[1]:+.1f}, {gap[2]:+.1f}]"
                rows.append(f"| | {label} | {other['seconds']:.0f} | {other['accuracy']:.1f} | {interval} |")
    return "\n".join(rows)


def starts_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown row per way of continuing on Pets: the accuracy of each seed, and their mean."""
    rows = ["| run on Pets | seconds | linear %, seeds 0, 1, 2 | mean |", "| --- | --- | --- | --- |"]
    for candidate, label in STARTS.items():
        found = [result for result in results if (result["cell"], result["candidate"]) == ("pets", candidate)]
        if found:
            values = [result["accuracy"] for result in sorted(found, key=lambda result: result["seed"])]
            mean = f"{np.mean(values):.1f}" if len(values) > 1 else ""
            seconds = round(float(np.mean([result["seconds"] for result in found])))
            rows.append(f"| {label} | {seconds} | {', '.join(f'{value:.1f}' for value in values)} | {mean} |")
    return "\n".join(rows)


def few_table(folder: Path = FEW) -> str:
    """A Markdown row per candidate of auto/small.py (commit 6d6044a3): means over draws of photographs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        for result in json.loads(path.read_text())["results"]:
            found.setdefault(result["candidate"], []).append(result)
    rows = [
        "| setting | epochs | draws | linear % | minus random weights | k-NN % | minus random weights |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    gains = {name: _gain(results, "linear") for name, results in found.items()}
    for name, results in sorted(found.items(), key=lambda item: -gains[item[0]]):
        cells = [
            text
            for key in ("linear", "knn")
            for text in (f"{np.mean([r['trained'][key] for r in results]):.1f}", f"{_gain(results, key):+.1f}")
        ]
        rows.append(f"| {name} | {results[0]['epochs']} | {len(results)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _gain(results: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([result["trained"][key] - result["random"][key] for result in results]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", type=Path)
    args = parser.parse_args()
    made_tables = {
        "auto rules": table(read_results()),
        "auto starts": starts_table(read_all()),
        "auto few": few_table(),
    }
    for section, made in made_tables.items():
        print(made, end="\n\n")
        if args.update:
            replace_section(args.update, section, f"{made}\n")
