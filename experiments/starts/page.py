"""docs/starts.md and its figure: `python -m experiments.starts.page [RESULTS [OUT]]`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.evidence.tables import table
from experiments.starts.cells import DATA, STARTS, WAYS, plan
from experiments.starts.data import LABELS
from supancl.reports.pictures import COLOURS, MARKERS
from supancl.stats import Interval, difference_interval, pooled_deviation, t_quantile

ROOT = Path(__file__).parents[2]
NAMES = {
    "frozen": "frozen, linear classifier",
    "finetuned": "fine-tuned",
    "probe-finetuned": "linear classifier, then fine-tuned",
    "crossentropy": "crossentropy --init",
    "supsiam": "supsiam --init",
    "semi": "semi --init",
    "supsiam-finetuned": "supsiam --init, then fine-tuned",
}
USUAL = ("frozen", "finetuned", "probe-finetuned", "crossentropy")  # what SupSiam is compared with
TITLES = {"4": "4 labels a class", "all": "all labels"}
Values = Mapping[tuple[str, str, str, str], Sequence[float]]  # labels, data, start, way -> one of each seed


def group(rows: Sequence[Mapping[str, Any]], key: str) -> Values:
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row["labels"], row["data"], row["start"], row["way"]), []).append(row[key])
    return values


def differences(values: Values, labels: str, way: str) -> dict[str, Interval]:
    """SupSiam minus a usual way, by data set and start; one deviation for all that have these labels."""
    deviation = pooled_deviation(found for key, found in values.items() if key[0] == labels)
    both = {
        f"{data} from {start}, {TITLES[labels]}": [values.get((labels, data, start, name)) for name in ("supsiam", way)]
        for data, start in product(DATA, STARTS)
    }
    return {case: difference_interval(a, b, deviation) for case, (a, b) in both.items() if a and b}


def answer(values: Values) -> str:
    """The answer in a sentence, losses first, then a line for each usual way."""
    gaps = {(labels, way): differences(values, labels, way) for labels, way in product(LABELS, USUAL)}
    cases: dict[str, list[Interval]] = {}
    for case, gap in (item for found in gaps.values() for item in found.items()):
        cases.setdefault(case, []).append(gap)
    beaten = sum(any(gap.high < 0 for gap in found) for found in cases.values())
    ahead = sum(all(gap.low > 0 for gap in found) for found in cases.values())
    lines = [
        f"**In {beaten} of {len(cases)} cases freezing or fine-tuning the start, or training it with cross-entropy, is "
        f"clearly better than SupSiam; in {ahead} SupSiam is clearly better than all of these.**\n"
    ]
    for (labels, way), found in ((key, found) for key, found in gaps.items() if found):
        lost = {case: gap for case, gap in found.items() if gap.high < 0}
        where = "; ".join(f"{case} {gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}]" for case, gap in lost.items())
        better, mean = sum(gap.low > 0 for gap in found.values()), statistics.fmean(gap.mean for gap in found.values())
        lines.append(
            f"- SupSiam - {NAMES[way]}, {TITLES[labels]}: clearly worse {where or 'nowhere'}; clearly better in "
            f"{better} of {len(found)}; {mean:+.1f} points on average"
        )
    return "\n".join(lines)


def result_table(rows: Sequence[Mapping[str, Any]], labels: str) -> str:
    values, seconds, speeds = (group(rows, key) for key in ("accuracy", "seconds", "images_per_second"))
    deviation, lines = pooled_deviation(values.values()), []
    columns = [place for place in product(DATA, STARTS) if any((labels, *place, way) in values for way in WAYS)]

    def mean(found: Sequence[float]) -> str:
        if deviation is None or not found:
            return f"{found[0]:.1f}" if found else "-"
        half = t_quantile(deviation.freedom) * deviation.deviation / len(found) ** 0.5
        return f"{statistics.fmean(found):.1f} ± {half:.1f}"

    for way, title in NAMES.items():
        keys = [(labels, *place, way) for place in columns]
        costs = [[value for key in keys for value in of.get(key, ())] for of in (seconds, speeds)]
        if costs[0]:
            cost = [f"{statistics.median(found):,.0f}" for found in costs]
            lines.append([title, *(mean(values.get(key, ())) for key in keys), *cost])
    return table(["way", *map(", ".join, columns), "seconds", "images/s"], lines)


def draw(values: Values, path: Path) -> None:
    """A panel for each data set and number of labels; a mark is the mean over seeds, a line their range."""
    panels = sorted({key[:2] for key in values}, key=lambda key: (LABELS.index(key[0]), DATA.index(key[1])))
    columns = len({data for _, data in panels})
    figure = Figure(figsize=(2 + 3.2 * columns, 1 + 2.8 * -(-len(panels) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(panels) // columns), columns, sharey=True, squeeze=False).flat
    for axis, (labels, data) in zip(axes, panels, strict=False):
        for number, start in enumerate(STARTS):
            rows = [(at, values.get((labels, data, start, way))) for at, way in enumerate(reversed(NAMES))]
            marks = [(at + 0.2 * number, statistics.fmean(row), min(row), max(row)) for at, row in rows if row]
            heights, means, least, most = zip(*marks, strict=True) if marks else ((),) * 4
            axis.hlines(heights, least, most, COLOURS[number])
            axis.plot(means, heights, MARKERS[number], c=COLOURS[number], label=start)
        axis.set_title(f"{data}, {TITLES[labels]}", fontsize=10)
        axis.set_yticks(range(len(NAMES)), reversed(NAMES.values()))
        axis.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=8)
    figure.supxlabel("accuracy on test images (%)", fontsize=10)
    figure.savefig(path, dpi=110)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    facts = {key: ", ".join(sorted({str(row[key]) for row in rows})) for key in ("hardware", "commit", "steps")}
    tables = [
        f"## With {TITLES[labels]}\n\n{result_table(rows, labels)}\n"
        for labels in LABELS
        if any(row["labels"] == labels for row in rows)
    ]
    return f"""# Starting from trained weights

Is it worth training with SupSiam from weights that have seen ImageNet, or is it enough to freeze or fine-tune them?

{answer(group(rows, "accuracy"))}

![accuracy of each way](figures/starts.png)

{chr(10).join(tables)}
Percent of test images: mean over seeds ± half a 95% interval over seeds, with one deviation for all rows. A seed also
draws the labels. A case is a data set, a start and a number of labels; "clearly": the 95% interval of the difference
excludes 0. Seconds and images/s: median of the last step, without choosing settings, beside other runs on the machine.
{len(rows)} of {len(plan())} planned rows are measured ({facts["hardware"]}; commit {facts["commit"]}).

## What is compared

All ways have the same photographs (short side 224 px), pretraining's augmentation and {facts["steps"]} optimizer steps
of 64 images. Without all labels, the other images are unlabelled. Fine-tuning and
cross-entropy choose a learning rate, and fine-tuning whether batch norm keeps its statistics, on a quarter of the
labelled images of seed 0, with half of the steps. SupSiam and semi choose nothing: they have the settings of `auto`.

## Limits

- CUB-200 shares photographs with ImageNet, and the breeds of Pets are classes of ImageNet: the starts have seen these
  images, or their like.
- Both starts are small convolutional networks trained with ImageNet's labels. A ViT, or a start trained without labels
  such as DINO, is not known.
- Intervals are over seeds, on the same test images; other images of the same kind would differ more.
"""


def main(results: Path = ROOT / "experiments/results/starts", out: Path = ROOT / "docs/starts.md") -> None:
    rows = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    if not rows:
        raise SystemExit(f"{results}: no row of the study, so there is nothing to write")
    (out.parent / "figures").mkdir(exist_ok=True)
    draw(group(rows, "accuracy"), out.parent / "figures/starts.png")
    out.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
