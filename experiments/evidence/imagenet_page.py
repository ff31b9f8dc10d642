"""The second part of RESULTS.md: ImageNet photographs with a ResNet-50, from the files in results/imagenet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.evidence.imagenet import DETECTED, METHODS, PILOTS, imagenet_plan
from experiments.evidence.listing import COLUMNS, row
from experiments.evidence.markdown import table
from experiments.evidence.plan import Plan, Step
from experiments.evidence.results import Result, Results, read_results, waiting
from experiments.evidence.rows import NAMES, Row, row_of
from experiments.evidence.spread import gap, mean_text
from supancl.errors import counted
from supancl.probes.ranking import rank_encoders
from supancl.recipes import recipe
from supancl.stats import Pooled, pooled

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
    results = read_results(folder, plan)
    if not results:
        return ""
    rows = {method: row_of(plan, results, NAMES[method], f"final-{method}-0") for method in METHODS}
    there = {method: one for method, one in rows.items() if one.results}
    parts = [
        head(plan, results),
        main_table(there),
        differences(there),
        ratio_table(there),
        pilot_table(results),
        detector_table(plan, results),
        left_over(plan, results),
        every_run(plan, results),
    ]
    return "\n" + "\n".join(part for part in parts if part)


def head(plan: Plan, results: Results) -> str:
    done = len(plan.steps) - len(waiting(plan, results))
    alphas = " and ".join(
        f"{recipe(plan.recipe_name(method)).fields()['loss.alpha'][0]:g} in {NAMES[method]}"
        for method in ("supsiam", "supbyol")
    )
    facts = {
        key: "; ".join(dict.fromkeys(str(result.get(key)) for result in results.values()))
        for key in ("hardware", "commit")
    }
    return f"""## ImageNet photographs, ResNet-50

{done} of the plan's {len(plan.steps)} runs are there (`python -m experiments.evidence plan --plan imagenet`).

- 100 classes of ImageNet (mini-ImageNet), 300 training and 50 test images each, at 64 px. ResNet-50 with the ImageNet
  stem, batch 256, 200 epochs, bf16, the augmentations of the recipe `imagenet100.METHOD-256` with views of 64 px.
- Every method has its recipe's learning rate (App. C; cross-entropy, which the paper does not train, the usual 0.1) and
  weight decay 1e-4. SupSiam and SimSiam warm up for 10 epochs (the recipe: 40). Alpha is {alphas}.
- 10% of the training images are held out of pretraining: monitor and pilots look at them, and the ridge of the linear
  probe is chosen on them. Test images are used once, when a final run is judged.
- CIFAR-10, CIFAR-100 and Pets: transfer as App. E has it, images brought to 64 px; Pets has a short side of 64 px.
  Omniglot and GTSRB: 5-way, 2000 episodes, the same for all.
- "±" is half a 95% t-interval over seeds; a number without it is one seed.
- Hardware: {facts["hardware"]}. Commits: {facts["commit"]}.
"""


def main_table(rows: Mapping[str, Row]) -> str:
    if not rows:
        return ""
    measured = {one.name: {m: one.values(m) for m in ACCURACIES if one.values(m)} for one in rows.values()}
    ranked = {name: found for name, found in measured.items() if found}
    ranks = dict(zip(ranked, rank_encoders(ranked).average_ranks, strict=True)) if len(ranked) > 1 else {}
    shown = (*ACCURACIES, "linear_sgd")
    lines = [
        [
            mark(one),
            one.seeds,
            *(mean_text(one.values(m)) for m in shown),
            f"{ranks[one.name]:.2f}" if ranks.get(one.name, float("nan")) == ranks.get(one.name) else "-",
        ]
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


def spread_of(rows: Mapping[str, Row], measure: str) -> Pooled | None:
    """How far seeds lie apart, over the methods that have several."""
    return pooled(one.values(measure) for one in rows.values() if not one.collapsed)


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
    if not rows:
        return ""
    lines = [
        [one.name, *(mean_text(one.values(m), 1 if m == "effective_rank" else 3) for m in RATIOS)]
        for one in rows.values()
    ]
    return f"""### Within-class variance

Of L2-normalised features: the encoder's for test and training images, the projector's for training images (Table 1).

{table(["method", *RATIOS.values()], lines)}"""


def pilot_table(results: Results) -> str:
    lines = [
        [
            NAMES[method],
            f"{lr:g}",
            f"{found['values'].get('linear', float('nan')):.2f}",
            f"{found['values'].get('knn', float('nan')):.2f}",
        ]
        for method, grid in PILOTS.items()
        for number, (lr, _) in enumerate(grid)
        if (found := results.get(f"pilot-{method}-{number}")) is not None
    ]
    return (
        f"""### Pilots

20 epochs, judged on held-out images. The first rate is the recipe's, at batch 128. No final run follows them: tuning
two of nine methods would favour these two.

{table(["method", "learning rate", "linear", "k-NN"], lines)}"""
        if lines
        else ""
    )


def detector_table(plan: Plan, results: Results) -> str:
    rows = [row_of(plan, results, NAMES[method], f"detect-{method}-0") for method in DETECTED]
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


def left_over(plan: Plan, results: Results) -> str:
    lines = [
        f"- {name}: {result['status']}{': ' + result['why'] if result['why'] else ''}"
        for name, result in results.items()
        if result["status"] != "finished"
    ]
    lines += [
        f"- {name}: `{task}` could not be measured: {why}"
        for name, result in results.items()
        for task, why in result["not_measured"].items()
    ]
    left: list[Step] = waiting(plan, results)
    missing = f"{counted(len(left), 'run')}: {', '.join(step.name for step in left)}." if left else "none."
    return f"""### Failed, collapsed and not run

{chr(10).join(lines) or "No run failed or collapsed."}

Not run: {missing}
"""


def every_run(plan: Plan, results: Results) -> str:
    """Detectors are among the commands alone: they have no epochs and no rates of a recipe."""
    shown = [row(name, with_rates(plan, result)) for name, result in results.items() if result["stage"] != "detect"]
    commands = "\n".join(result["commands"][0] for result in results.values())
    judged = max(results.values(), key=lambda result: len(result["commands"]))
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
