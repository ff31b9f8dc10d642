"""docs/starts.md and its figure, from the rows of the study.

python -m experiments.starts.page [--results DIR] [--out docs/starts.md]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.evidence.tables import table
from experiments.starts.cells import DATA, FINE_TUNING, STARTS, WAYS, plan
from experiments.starts.data import LABELS
from supancl.errors import BadInput
from supancl.reports.pictures import COLOURS, MARKERS
from supancl.stats import Interval, difference_interval, pooled_deviation, t_quantile

ROOT = Path(__file__).parents[2]
NAMES = {
    "frozen": "frozen, linear classifier", "finetuned": "fine-tuned", "probe-finetuned": "linear classifier, then fine-tuned",
    "crossentropy": "`crossentropy --init`", "supsiam": "`supsiam --init`", "semi": "`semi --init`",
    "supsiam-finetuned": "`supsiam --init`, then fine-tuned",
}  # fmt: skip
USUAL = ("frozen", "finetuned", "probe-finetuned", "crossentropy")  # what SupSiam is compared with
TITLES = {"4": "4 labels a class, other images unlabelled", "all": "all labels"}
Values = Mapping[tuple[str, str, str, str], Sequence[float]]  # labels, data, start, way -> accuracy of each seed


def read_rows(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not rows:
        raise BadInput(f"{folder}: no row of the study, so there is nothing to write")
    return rows


def group(rows: Sequence[Mapping[str, Any]], key: str = "accuracy") -> Values:
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row["labels"], row["data"], row["start"], row["way"]), []).append(row[key])
    return values


def mean_text(values: Sequence[float], everything: Values) -> str:
    deviation = pooled_deviation(everything.values())
    if not values or deviation is None:
        return f"{values[0]:.1f}" if values else "-"
    half = t_quantile(deviation.freedom) * deviation.deviation / len(values) ** 0.5
    return f"{statistics.fmean(values):.1f} ± {half:.1f}"


def differences(values: Values, labels: str, other: str) -> Iterator[tuple[str, Interval]]:
    """SupSiam minus another way on each data set from each start, with one deviation for all of them."""
    deviation = pooled_deviation(found for key, found in values.items() if key[0] == labels)
    for data, start in product(DATA, STARTS):
        ours, theirs = (values.get((labels, data, start, way), ()) for way in ("supsiam", other))
        if ours and theirs:
            yield f"{data} from {start}", difference_interval(ours, theirs, deviation)


def answer(values: Values) -> str:
    """What is clearly better than SupSiam, if anything is, and then where SupSiam is better."""
    losses, counts = list[str](), list[str]()
    for labels, other in product(LABELS, USUAL):
        gaps = list(differences(values, labels, other))
        wins = sum(gap.low > 0 for _, gap in gaps)
        lost = [f"{place} by {-gap.mean:.1f} [{-gap.high:.1f}, {-gap.low:.1f}]" for place, gap in gaps if gap.high < 0]
        if lost:
            losses.append(f"- With {TITLES[labels]}, **{NAMES[other]} is better** than SupSiam: {'; '.join(lost)}.")
        if gaps:
            mean = statistics.fmean(gap.mean for _, gap in gaps)
            counts.append(
                f"- With {TITLES[labels]}, SupSiam - {NAMES[other]} is {mean:+.1f} points on average: "
                f"clearly better in {wins} of {len(gaps)} cases, clearly worse in {len(lost)}."
            )
    return "\n".join([*(losses or ["Nothing was clearly better than SupSiam."]), "", *counts])


def result_table(rows: Sequence[Mapping[str, Any]], labels: str) -> str:
    values, seconds = group(rows), group(rows, "seconds")
    speeds = group(rows, "images_per_second")
    shown = [(data, start) for data, start in product(DATA, STARTS) if (labels, data, start, "frozen") in values]
    lines = []
    for way in NAMES:
        keys = [(labels, data, start, way) for data, start in shown]
        spent, speed = ([value for key in keys for value in of.get(key, ())] for of in (seconds, speeds))
        if spent:
            times = f"{statistics.median(spent):.0f}", f"{statistics.median(speed):,.0f}" if any(speed) else "-"
            lines.append([NAMES[way], *(mean_text(values.get(key, ()), values) for key in keys), *times])
    return table(["way", *(f"{data}, {start}" for data, start in shown), "seconds", "images/s"], lines)


def draw(values: Values, path: Path) -> None:
    """A panel for each data set and number of labels; a mark is the mean over seeds, a line their range."""
    present = [data for data in DATA if any(key[1] == data for key in values)]
    figure = Figure(figsize=(2 + 3.2 * len(present), 6.5), layout="constrained")
    panels = figure.subplots(len(LABELS), len(present), sharey=True, squeeze=False)
    for (row, labels), (column, data) in product(enumerate(LABELS), enumerate(present)):
        axis = panels[row, column]
        for number, start in enumerate(STARTS):
            found = [(at, values.get((labels, data, start, way))) for at, way in enumerate(reversed(NAMES))]
            points = [(at + 0.2 * number, statistics.fmean(seeds), seeds) for at, seeds in found if seeds]
            axis.hlines([at for at, *_ in points], *([f(s) for *_, s in points] for f in (min, max)), COLOURS[number])
            axis.plot(
                [m for _, m, _ in points], [at for at, *_ in points], MARKERS[number], c=COLOURS[number], label=start
            )
        axis.set_title(f"{data}, {TITLES[labels].partition(',')[0]}", fontsize=10)
        axis.set_yticks(range(len(NAMES)), [NAMES[way].replace("`", "") for way in reversed(NAMES)])
        axis.grid(alpha=0.3)
    panels[0, 0].legend(fontsize=8)
    figure.supxlabel("accuracy on test images (%)", fontsize=10)
    figure.savefig(path, dpi=110)


def page(rows: Sequence[Mapping[str, Any]], figure: str) -> str:
    values = group(rows)
    hardware = ", ".join(sorted({row["hardware"] for row in rows}))
    torch, commits = (
        ", ".join(sorted(found)) for found in ({r["versions"]["torch"] for r in rows}, {r["commit"] for r in rows})
    )
    edges = [row for row in rows if row["tried"] and row["chosen"][1] in (FINE_TUNING[0][1], FINE_TUNING[-1][1])]
    parts = [
        f"## With {TITLES[labels]}\n\n{result_table(rows, labels)}"
        for labels in LABELS
        if any(k[0] == labels for k in values)
    ]
    return f"""# Starting from trained weights

Is it worth training with SupSiam from weights that have seen ImageNet, or is it enough to freeze or fine-tune them?

{answer(values)}

![accuracy of each way]({figure})

{chr(10).join(parts)}
Percent of test images, mean over seeds ± half a 95% interval over seeds with one deviation for all rows; a seed also draws the labels. "Clearly":
the 95% interval of a difference over seeds excludes 0. Seconds and images/s: median of the last step alone, without choosing settings, with other
runs on the same machine. {len(rows)} of {len(plan())} planned rows are measured ({hardware}; torch {torch}; commit {commits}).

## What is compared

All ways have the same photographs (short side 224 px), as many optimizer steps ({rows[0]["epochs"]} epochs of all training images) and pretraining's
augmentation. Fine-tuning and cross-entropy choose their learning rate, and fine-tuning whether batch norm keeps its statistics, on a quarter of the
labelled images of seed 0; of {sum(bool(row["tried"]) for row in rows)} choices {len(edges)} are the lowest or highest rate tried. SupSiam and `semi` choose
nothing: they have the settings of `auto`.

## Limits

- CUB-200 shares photographs with ImageNet, and the breeds of Pets are classes of ImageNet: the starts have seen them, or their kind.
- Both starts are EfficientNets with ImageNet's labels. A ViT, or a start without labels such as DINO, is not known.
- Differences are between seeds on the same test images; other images of the same kind add an uncertainty of their own.
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "experiments" / "results" / "starts")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "starts.md")
    args = parser.parse_args(argv)
    rows = read_rows(args.results)
    figure = args.out.parent / "figures" / "starts.png"
    figure.parent.mkdir(exist_ok=True)
    draw(group(rows), figure)
    args.out.write_text(page(rows, "figures/starts.png"), encoding="utf-8")


if __name__ == "__main__":
    main()
