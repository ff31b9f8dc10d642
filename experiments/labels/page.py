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

from experiments.evidence.tables import table
from experiments.labels.runs import EPOCHS, ROWS
from supancl.files import replace_section
from supancl.stats import difference_interval

RESULTS = Path(__file__).parents[1] / "results" / "labels"
NAMES = {
    "simsiam": "simsiam", "supsiam": "supsiam", "semi": "semi",
    "crossentropy": "crossentropy, the labelled images alone",
}  # fmt: skip
COARSE = {"supsiam-100%": "100 fine classes", "supsiam-coarse": "fine and 20 coarse classes"}
TAILS = {
    "supsiam-tail": "supsiam", "supsiam-tail-class-queues": "supsiam, `pool.kind=class-queues`, `pool.size=20`",
    "supsiam-tail-balanced": "supsiam, `data.balanced=true`", "crossentropy-tail": "crossentropy",
}  # fmt: skip
PUBLISHED_TAIL = (
    "Published for a ratio of 100: TSC (Li et al. 2022), 43.8%, with the 10,847 images of the whole tail (here 10% are "
    "held out) and a ResNet-32, a far smaller network."
)
ON_OTHER_IMAGES = "cifar10"  # the accuracy of a linear classifier on CIFAR-10, on the same encoder
FEW_MEASURES = {
    "linear, its labels": "linear %, its labels", "knn, its labels": "k-NN %, its labels",
    "linear, all labels": "linear %, all labels", ON_OTHER_IMAGES: "CIFAR-10, linear %",
}  # fmt: skip
DIGIT_LABELS, DIGIT_METHODS = (20, 40, 100), ("simsiam", "supsiam", "semi")
CANDIDATES = (
    "semi", "supsiam", "entropy-0.1", "entropy-1", "temperature-0.1", "confidence-0.9",
    "temperature-0.1-confidence-0.9", "temperature-0.05-confidence-0.9", "warmup-0", "warmup-400",
)  # fmt: skip
MEASURES = ("linear, these labels", "knn, these labels", "linear, all labels")
Found = Mapping[str, Any]


def read_results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The results on CIFAR-100 by the name of their row, in its order."""
    paths = {name: folder / f"{name}.json" for name in ROWS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def read_digits(folder: Path = RESULTS / "digits") -> list[dict[str, Any]]:
    return [{"name": path.stem, **json.loads(path.read_text())} for path in sorted(folder.glob("*.json"))]


def filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as Markdown; empty without rows."""
    return table(columns, rows) if rows else ""


def mean_and_range(values: Sequence[float], decimals: int = 1) -> str:
    """`71.2 (70.1-72.4)`: mean, least and most; the value alone if there is one."""
    if len(values) == 1:
        return f"{values[0]:.{decimals}f}"
    return f"{statistics.fmean(values):.{decimals}f} ({min(values):.{decimals}f}-{max(values):.{decimals}f})"


def digits_table(results: Sequence[Found]) -> str:
    """A Markdown row per number of labels and method: means over seeds on the test digits, and their range."""
    rows = []
    for labels in DIGIT_LABELS:
        for method in DIGIT_METHODS:
            key = (method, labels, "test")
            found = [result for result in results if (result["method"], result["labels"], result["on"]) == key]
            if found:
                cells = [mean_and_range([result["accuracy"][measure] for result in found]) for measure in MEASURES]
                rows.append([str(labels), NAMES[method], *cells])
    return filled(["labels", "method", "linear %", "k-NN %", "linear %, all labels"], rows)


def choice_table(results: Sequence[Found]) -> str:
    """A Markdown row per candidate: means over seeds on the held-out digits, and their range."""
    rows = []
    for candidate in CANDIDATES:
        names = {f"choose-{candidate}-{seed}" for seed in (0, 1)}
        found = [result for result in results if result["name"] in names]
        if found:
            cells = [mean_and_range([result["accuracy"][measure] for result in found]) for measure in MEASURES]
            rows.append([candidate, *cells])
    return filled(["candidate", "linear %", "k-NN %", "linear %, all labels"], rows)


def few(results: Mapping[str, Found], labelled: float, method: str) -> list[Found]:
    """All seeds of a method with this share of labels."""
    return [
        found
        for found in results.values()
        if (found["labelled"], found["method"], found["settings"]) == (labelled, method, {})
    ]


def share(found: Sequence[Found]) -> str:
    """`10%: 4,500`: the part and the number of images that have a label."""
    return f"{100 * found[0]['labelled']:g}%: {found[0]['labels']:,}"


def difference_cells(ours: Sequence[Found], theirs: Sequence[Found]) -> list[str]:
    """`+3.4 [+2.5, +4.3]` for each measure: the difference of the means and its 95% interval over seeds."""
    cells = []
    for key in FEW_MEASURES:
        gap = difference_interval([run["accuracy"][key] for run in ours], [run["accuracy"][key] for run in theirs])
        cells.append(f"{gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}]")
    return cells


def few_table(results: Mapping[str, Found]) -> str:
    """A Markdown row per share of labels and method on CIFAR-100, several seeds as mean and range; then what semi gains
    over supsiam, where both have several."""
    rows = []
    for labelled in (0.01, 0.1, 1.0):
        for method in ("simsiam", "crossentropy", "supsiam", "semi"):
            found = few(results, labelled, method)
            if found:
                cells = [mean_and_range([result["accuracy"][key] for result in found]) for key in FEW_MEASURES]
                name = method if labelled == 1 else NAMES[method]
                rows.append([share(found), name, *cells, str(len(found))])
        ours, theirs = (few(results, labelled, method) for method in ("semi", "supsiam"))
        if min(len(ours), len(theirs)) > 1:
            rows.append([share(ours), "semi - supsiam", *difference_cells(ours, theirs), str(len(ours))])
    return filled(["labels", "method", *FEW_MEASURES.values(), "seeds"], rows)


def few_line(folder: Path = RESULTS, labelled: float = 0.1) -> str:
    """What semi gains over SupSiam with a tenth of the labels, for RESULTS.md; empty without several seeds of both."""
    results = read_results(folder)
    ours, theirs = (few(results, labelled, method) for method in ("semi", "supsiam"))
    if min(len(ours), len(theirs)) < 2:
        return ""
    gaps = dict(zip(FEW_MEASURES, difference_cells(ours, theirs), strict=True))
    return (
        f"**What if only some images have a label?** With {100 * labelled:g}% of CIFAR-100's labels, `semi` - SupSiam "
        f"is {gaps['linear, its labels']} points on CIFAR-100 and {gaps[ON_OTHER_IMAGES]} on CIFAR-10 (linear "
        f"classifiers, {len(ours)} seeds each). [Few, nested and unbalanced labels](docs/labels.md) has the rest."
    )


def tail_table(results: Mapping[str, Found]) -> str:
    """A Markdown row per way of training on a long tail: balanced accuracy, and that of large and small classes."""
    rows = []
    for name, title in TAILS.items():
        for classifier in ("linear", "knn", "class means") if name in results else ():
            result = results[name]
            groups = result["by_class_size"][classifier]
            cells = [f"{result['balanced'][classifier]:.1f}"]
            cells += [
                f"{groups[group]['accuracy']:.1f}" if group in groups else "" for group in ("head", "middle", "tail")
            ]
            cells.append(f"{result['accuracy'][ON_OTHER_IMAGES]:.1f}" if classifier == "linear" else "")
            rows.append([title, classifier, *cells])
    return filled(["run", "classifier", "balanced %", "head", "middle", "tail", "CIFAR-10, linear %"], rows)


def coarse_table(results: Mapping[str, Found]) -> str:
    """A Markdown row each for fine labels alone and for fine and coarse ones."""
    keys = ("linear, all labels", "knn, its labels", ON_OTHER_IMAGES)
    rows = [
        [title, *(f"{results[name]['accuracy'][key]:.1f}" for key in keys)]
        for name, title in COARSE.items()
        if name in results
    ]
    return filled(["labels", "linear %", "k-NN %", "CIFAR-10, linear %"], rows if len(rows) > 1 else [])


def speed_table(folder: Path) -> str:
    """A Markdown row per kind of labels: how fast a step is, compared in turns with one label per image."""
    path, trees = folder / "label_steps.json", folder / "two_trees.json"
    if not path.exists() or not trees.exists():
        return ""
    found, compared = json.loads(path.read_text()), json.loads(trees.read_text())
    pairs = [turn for starts in compared["rates"].values() for rates in starts for turn in rates]
    ratios = [after / before for before, after in pairs]
    speed = f"{statistics.median(after for _, after in pairs):,.0f}"
    span = f"{min(ratios):.4f}-{max(ratios):.4f} ({len(ratios)} turns)"
    before = f"commit {compared['trees'][0]}, which knew no others"
    rows = [["1", speed, before, f"{statistics.median(ratios):.4f}", span]]
    for row in found["rows"]:
        span = "{:.4f}-{:.4f} (middle half of {} rounds)".format(*row["middle_half"], row["rounds"])
        rows.append(
            [row["name"].removesuffix(" labels"), f"{row['rate']:,.0f}", "1 label", f"{row['ratio']:.4f}", span]
        )
    return (
        f"`cifar100.supsiam`, batch {compared['batch']}, step compiled and captured, {found['hardware']}, torch "
        f"{found['versions']['torch']}, commit {found['commit']}:\n\n"
        + filled(["labels per image", "images/s", "compared with", "ratio", "range"], rows)
    )


def conditions(results: Mapping[str, Found]) -> str:
    """How the runs on CIFAR-100 were made."""
    first = next(iter(results.values()))
    hardware = ", ".join(sorted({result["hardware"] for result in results.values()}))
    found = sorted({result["commit"] for result in results.values()})
    commits = f"commit{'s' * (len(found) > 1)} {' and '.join(found)}"
    return (
        f"CIFAR-100, CIFAR ResNet-18, {EPOCHS} epochs, batch {first['batch']}, {hardware}, torch "
        f"{first['versions']['torch']}, {commits}; the test images were used once. One seed, unless there is a "
        "range."
    )


def rows_left(results: Mapping[str, Found]) -> str:
    """Which of the planned rows have no result yet."""
    left = [f"`{name}`" for name in ROWS if name not in results]
    return f"{len(ROWS) - len(left)} of {len(ROWS)} planned rows are measured" + (
        f"; left: {', '.join(left)}." if left else "."
    )


def sections(folder: Path = RESULTS) -> dict[str, str]:
    """The text of each generated section of docs/labels.md."""
    results, small = read_results(folder), read_digits(folder / "digits")
    parts = {
        "few labels": (few_table, [name for name in ROWS if not ROWS[name].settings]),
        "coarse labels": (coarse_table, COARSE),
        "long tail": (tail_table, TAILS),
    }
    made = {}
    for name, (make_table, names) in parts.items():
        shown = {row: results[row] for row in names if row in results}
        text = make_table(shown)
        made[name] = f"{conditions(shown)}\n\n{text}" if text else ""
    made["long tail"] += f"\n{PUBLISHED_TAIL}\n" if made["long tail"] else ""
    made["few labels"] += f"\n{rows_left(results)}\n" if made["few labels"] else ""
    made["label speed"] = speed_table(folder)
    return {**made, "few digits": digits_table(small), "chosen on digits": choice_table(small)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", type=Path)
    args = parser.parse_args()
    for name, text in sections().items():
        print(f"{name}\n{text}")
        if args.update:
            replace_section(args.update, name, text)
