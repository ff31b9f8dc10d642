"""The second part of RESULTS.md: ImageNet photographs with a ResNet-50, from the files in results/imagenet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.evidence.plan import Plan
from experiments.evidence.plans import DETECTED, IMAGENET_METHODS, IMAGENET_PILOTS, imagenet_plan
from experiments.evidence.results import NAMES, Evidence, Result, Row, gap, mean_text, read_results, waiting
from experiments.evidence.tables import COLUMNS, average_ranks, problem_lines, run_row, stated_alphas, table, unique
from supancl.errors import plural
from supancl.recipes import recipe
from supancl.stats import PooledDeviation, pooled_deviation

# measure -> title
ACCURACIES: dict[str, str] = {
    "knn": "k-NN",
    "linear": "linear",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "pets": "Pets",
    "omniglot_1": "Omniglot 1-shot",
    "omniglot_5": "Omniglot 5-shot",
    "traffic-signs_1": "GTSRB 1-shot",
    "traffic-signs_5": "GTSRB 5-shot",
}
RATIOS: dict[str, str] = {
    "ratio": "S_W/S_T, test",
    "train_ratio": "S_W/S_T, train",
    "projector_ratio": "S_W/S_T, projector, train",
    "effective_rank": "effective rank, test",
}
PAIRS = (
    ("supsiam", "simsiam"),
    ("supbyol", "byol"),
    ("supcon", "simclr"),
    ("supmoco", "moco2"),
    ("supsiam", "supcon"),
    ("supsiam", "crossentropy"),
)


def imagenet_part(folder: Path, plan: Plan | None = None) -> str:
    """The part as Markdown; empty while the folder holds no result."""
    plan = plan or imagenet_plan()
    known = Evidence(plan, read_results(folder, plan))
    if not known.results:
        return ""
    rows = {method: known.row(NAMES[method], f"final-{method}-0") for method in IMAGENET_METHODS}
    there = {method: one for method, one in rows.items() if one.results}
    parts = [head(known), *([main_table(there), differences(there), ratio_table(there)] if there else [])]
    parts += [pilot_table(known), detector_table(known), left_over(known), every_run(known)]
    return "\n" + "\n".join(part for part in parts if part)


def head(known: Evidence) -> str:
    done = len(known.plan.steps) - len(waiting(known.plan, known.results))
    return f"""## ImageNet photographs, ResNet-50

{done} of the plan's {len(known.plan.steps)} runs are there (`python -m experiments.evidence plan --plan imagenet`).

- 100 classes of ImageNet (mini-ImageNet), 300 training and 50 test images each, at 64 px. ResNet-50 with the ImageNet
  stem, batch 256, 200 epochs, bf16, the augmentations of the recipe `imagenet100.METHOD-256` with views of 64 px.
- Every method has its recipe's learning rate (App. C; cross-entropy, which the paper does not train, the usual 0.1) and
  weight decay 1e-4. SupSiam and SimSiam warm up for 10 epochs (the recipe: 40). Alpha is {stated_alphas(known.plan)}.
- 10% of the training images are held out of pretraining: monitor and pilots look at them, and the ridge of the linear
  probe is chosen on them. Test images are used once, when a final run is judged.
- CIFAR-10, CIFAR-100 and Pets: transfer as App. E has it, images brought to 64 px; Pets has a short side of 64 px.
  Omniglot and GTSRB: 5-way, 2000 episodes, the same for all.
- "±" is half a 95% t-interval over seeds; a number without it is one seed.
- Hardware: {unique(known, "hardware")}. Commits: {unique(known, "commit")}.
"""


def main_table(rows: Mapping[str, Row]) -> str:
    ranks, shown = average_ranks(rows.values(), ACCURACIES), (*ACCURACIES, "linear_sgd")
    lines = [
        [mark(one), one.seeds, *(mean_text(one.values(m)) for m in shown), ranks.get(one.name, "-")]
        for one in rows.values()
    ]
    columns = ["method", "seeds", *ACCURACIES.values(), "linear, SGD probe", "average rank"]
    return f"""### Methods

Average rank over the accuracies that every method here has, without the SGD probe; 1 is the best. It has no interval.
{describe_collapse(rows)}
{table(columns, lines)}"""


def mark(row: Row) -> str:
    """The method's name, with a dagger where the monitor called a run of it collapsed."""
    return f"{row.name} †" if row.collapsed else row.name


def describe_collapse(rows: Mapping[str, Row]) -> str:
    names = [one.name for one in rows.values() if one.collapsed]
    return (
        f"""
† {" and ".join(names)}: the monitor called it collapsed while it trained (a batch's targets use fewer than 10
directions). It was trained to its end and judged all the same. Differences from it say that labels kept a network from
collapsing at this learning rate, not how far labels help one that trains well at its best rate.
"""
        if names
        else ""
    )


def spread_of(rows: Mapping[str, Row], measure: str) -> PooledDeviation | None:
    """How far seeds lie apart, over the methods that have several."""
    return pooled_deviation(one.values(measure) for one in rows.values() if not one.collapsed)


def differences(rows: Mapping[str, Row]) -> str:
    pairs = [pair for pair in PAIRS if all(method in rows for method in pair)]
    if not pairs:
        return ""
    lines = []
    for ours, theirs in pairs:
        found = {m: gap(rows[ours].values(m), rows[theirs].values(m), spread_of(rows, m)) for m in ACCURACIES}
        cells = [one.text() if one else "-" for one in found.values()]
        lines.append([f"{mark(rows[ours])} - {mark(rows[theirs])}", *cells])
    return f"""### Differences

In points, "[low, high]" a 95% interval over seeds; "*": one side has one seed, and the spread is pooled over the
methods that have several. "(one seed)": no method has several yet. Intervals are not about other test images or
settings.

{table(["difference", *ACCURACIES.values()], lines)}"""


def ratio_table(rows: Mapping[str, Row]) -> str:
    lines = [
        [one.name, *(mean_text(one.values(m), 1 if m == "effective_rank" else 3) for m in RATIOS)]
        for one in rows.values()
    ]
    return f"""### Within-class variance

Of L2-normalised features: the encoder's for test and training images, the projector's for training images (Table 1).

{table(["method", *RATIOS.values()], lines)}"""


def pilot_table(known: Evidence) -> str:
    lines = [
        [
            NAMES[method],
            f"{lr:g}",
            f"{found['values'].get('linear', float('nan')):.2f}",
            f"{found['values'].get('knn', float('nan')):.2f}",
        ]
        for method, grid in IMAGENET_PILOTS.items()
        for number, (lr, _) in enumerate(grid)
        if (found := known.results.get(f"pilot-{method}-{number}")) is not None
    ]
    return (
        f"""### Pilots

20 epochs, judged on held-out images. The first rate is the recipe's, at batch 128. No final run follows them: tuning
two of nine methods would favour these two.

{table(["method", "learning rate", "linear", "k-NN"], lines)}"""
        if lines
        else ""
    )


def detector_table(known: Evidence) -> str:
    rows = [known.row(NAMES[method], f"detect-{method}-0") for method in DETECTED]
    lines = [
        [one.name, one.seeds, *(mean_text(one.values(m)) for m in ("AP", "AP50", "AP75"))]
        for one in rows
        if one.results
    ]
    return (
        f"""### Detection

Faster R-CNN (C4) on 800 images of VOC2012, tested on 400, 720 steps; a detector for each pretraining seed.

{table(["pretraining", "seeds", "AP", "AP50", "AP75"], lines)}"""
        if lines
        else ""
    )


def left_over(known: Evidence) -> str:
    left = waiting(known.plan, known.results)
    missing = f"{plural(len(left), 'run')}: {', '.join(step.name for step in left)}." if left else "none."
    return f"""### Failed, collapsed and not run

{problem_lines(known)}

Not run: {missing}
"""


def every_run(known: Evidence) -> str:
    """Detectors are among the commands alone: they have no epochs and no rates of a recipe."""
    shown = [
        run_row(name, with_rates(known.plan, result))
        for name, result in known.results.items()
        if result["stage"] != "detect"
    ]
    commands = "\n".join(result["commands"][0] for result in known.results.values())
    judged = max(known.results.values(), key=lambda result: len(result["commands"]))
    judging = "\n".join(line.replace(f"runs/{judged['name']}", "RUN") for line in judged["commands"][1:])
    return f"""### Every run of this part

{table(COLUMNS, shown)}
```
{commands}
```

Judged with, RUN standing for the folder that `--out` names:

```
{judging}
```
"""


def with_rates(plan: Plan, result: Result) -> Result:
    """The result with its recipe's learning rate and weight decay among the settings, where it set no other."""
    own = recipe(plan.recipe_name(str(result["method"]))).optimizer
    rates = {"optimizer.lr": own.lr, "optimizer.weight_decay": own.weight_decay}
    return {**result, "settings": {**rates, **result["settings"]}}
