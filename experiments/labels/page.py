"""The tables of docs/labels.md, from the files in results/labels.

python -m experiments.labels.page [--update docs/labels.md]

A table without results is left out, with its sentence.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.labels import digits
from experiments.labels.runs import ROWS
from supancl.files import replace_section

RESULTS = Path(__file__).parents[1] / "results" / "labels"
NAMES = {
    "simsiam": "simsiam", "supsiam": "supsiam", "semi": "semi", digits.ENTROPY: "semi with the mean-entropy term",
    "crossentropy": "crossentropy, the labelled images alone",
}  # fmt: skip
TAILS = {
    "supsiam-tail": "supsiam", "supsiam-tail-class-queues": "supsiam, `pool.kind=class-queues`, `pool.size=20`",
    "supsiam-tail-balanced": "supsiam, `data.balanced=true`", "crossentropy-tail": "crossentropy",
}  # fmt: skip
PUBLISHED_TAIL = "Published for a ratio of 100: TSC (Li et al. 2022), 43.8%."
MEASURES = ("linear, these labels", "knn, these labels", "linear, all labels")
Found = Mapping[str, Any]


def read_results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The results on CIFAR-100 by the name of their row, in its order."""
    paths = {name: folder / f"{name}.json" for name in ROWS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def read_digits(folder: Path = RESULTS / "digits") -> list[dict[str, Any]]:
    return [{"name": path.stem, **json.loads(path.read_text())} for path in sorted(folder.glob("*.json"))]


def mean_and_range(values: Sequence[float], decimals: int = 1) -> str:
    """`71.2 (70.1-72.4)`: mean, least and most; the value alone if there is one."""
    if len(values) == 1:
        return f"{values[0]:.{decimals}f}"
    return f"{statistics.fmean(values):.{decimals}f} ({min(values):.{decimals}f}-{max(values):.{decimals}f})"


def digits_table(results: Sequence[Found]) -> str:
    """A Markdown row per number of labels and method: means over seeds on the test digits, and their range."""
    rows = ["| labels | method | linear % | k-NN % | linear %, all labels |", "| --- | --- | --- | --- | --- |"]
    for labels in digits.LABELS:
        for method in digits.METHODS:
            key = (method, labels, "test")
            found = [result for result in results if (result["method"], result["labels"], result["on"]) == key]
            if found:
                cells = [mean_and_range([result["accuracy"][measure] for result in found]) for measure in MEASURES]
                rows.append(f"| {labels} | {NAMES[method]} | {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def choice_table(results: Sequence[Found]) -> str:
    """A Markdown row per candidate: means over seeds on the held-out digits, and their range."""
    rows = ["| candidate | linear % | k-NN % | linear %, all labels |", "| --- | --- | --- | --- |"]
    for candidate in digits.CANDIDATES:
        names = {f"choose-{candidate}-{seed}" for seed in digits.SEEDS}
        found = [result for result in results if result["name"] in names]
        if found:
            cells = [mean_and_range([result["accuracy"][measure] for result in found]) for measure in MEASURES]
            rows.append(f"| {candidate} | {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def few_table(results: Mapping[str, Found]) -> str:
    """A Markdown row per share of labels and method on CIFAR-100; several seeds as mean and range."""
    rows = [
        "| labels | method | linear %, its labels | k-NN %, its labels | linear %, all labels | seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for labelled in (0.01, 0.1, 1.0):
        for method in ("simsiam", "crossentropy", "supsiam", "semi"):
            found = [
                r for r in results.values() if not r["settings"] and (r["labelled"], r["method"]) == (labelled, method)
            ]
            if found:
                keys = ("linear, its labels", "knn, its labels", "linear, all labels")
                cells = [mean_and_range([result["accuracy"][key] for result in found]) for key in keys]
                share = f"{100 * labelled:g}%: {found[0]['labels']:,}"
                rows.append(f"| {share} | {NAMES[method]} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def tail_table(results: Mapping[str, Found]) -> str:
    """A Markdown row per way of training on a long tail: balanced accuracy, and that of large and small classes."""
    rows = [
        "| run | classifier | balanced % | head | middle | tail |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, title in TAILS.items():
        for classifier in ("linear", "knn", "class means") if name in results else ():
            result = results[name]
            groups = result["by_class_size"][classifier]
            cells = [
                f"{groups[group]['accuracy']:.1f}" if group in groups else "" for group in ("head", "middle", "tail")
            ]
            rows.append(f"| {title} | {classifier} | {result['balanced'][classifier]:.1f} | {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def coarse_table(results: Mapping[str, Found]) -> str:
    """A Markdown row each for fine labels alone and for fine and coarse ones."""
    rows = ["| labels | linear % | k-NN % |", "| --- | --- | --- |"]
    for name, title in {"supsiam-100%": "100 fine classes", "supsiam-coarse": "fine and 20 coarse classes"}.items():
        if name in results:
            accuracy = results[name]["accuracy"]
            rows.append(f"| {title} | {accuracy['linear, all labels']:.1f} | {accuracy['knn, its labels']:.1f} |")
    return "\n".join(rows) if len(rows) > 3 else ""


def conditions(results: Mapping[str, Found]) -> str:
    """How the runs on CIFAR-100 were made."""
    first = next(iter(results.values()))
    hardware = ", ".join(sorted({result["hardware"] for result in results.values()}))
    return (
        f"CIFAR-100, CIFAR ResNet-18, {first['epochs']} epochs, batch {first['batch']}, {hardware}; the test "
        "images were used once. One seed, unless there is a range."
    )


def sections(folder: Path = RESULTS) -> dict[str, str]:
    """The text of each generated section of docs/labels.md."""
    results, small = read_results(folder), read_digits(folder / "digits")
    tables = {
        "few labels": few_table(results),
        "coarse labels": coarse_table(results),
        "long tail": tail_table(results),
    }
    made = {name: f"{conditions(results)}\n\n{table}\n" if table else "" for name, table in tables.items()}
    made["long tail"] += f"\n{PUBLISHED_TAIL}\n" if made["long tail"] else ""
    digit_tables = {"few digits": digits_table(small), "chosen on digits": choice_table(small)}
    return {**made, **{name: f"{table}\n" if table else "" for name, table in digit_tables.items()}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", type=Path)
    args = parser.parse_args()
    for name, text in sections().items():
        print(f"{name}\n{text}")
        if args.update:
            replace_section(args.update, name, text)
