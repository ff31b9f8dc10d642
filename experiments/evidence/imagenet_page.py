"""The second part of RESULTS.md: ImageNet photographs with a ResNet-50, from the files in results/imagenet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from experiments.evidence.findings import count_words, join_names
from experiments.evidence.plan import Plan
from experiments.evidence.plans import IMAGENET_METHODS, IMAGENET_PILOTS, TUNED, imagenet_plan
from experiments.evidence.results import KINDS, NAMES, Evidence, Gap, Row, gap, read_evidence, waiting
from experiments.evidence.study_page import (
    SPREAD_NOTE,
    accuracy_table,
    brief,
    differences,
    evaluated_with,
    has_ended_collapsed,
    left_over,
    ratio_table,
    row_gaps,
    seeds_text,
    texts,
)
from experiments.evidence.tables import CONTRASTIVE_HEADS, stated_alphas, table, unique
from supancl.errors import plural

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
OTHER_DATA = tuple(measure for measure in ACCURACIES if measure not in KINDS["in-domain"])
PICTURE = "imagenet-labels.png"
ANCHOR = "imagenet-photographs-resnet-50"
COLLAPSED_AT = "batch 256 and rate 0.4 (SimSiam with 10 warm-up epochs, BYOL with none)"
NOT_TESTED = "SimSiam and BYOL at the paper's batch 128, rate 0.2 and (SimSiam) 40 warm-up epochs were not tested."
PAIRS = (
    ("supsiam", "simsiam"),
    ("supbyol", "byol"),
    ("supcon", "simclr"),
    ("supmoco", "moco2"),
    ("supsiam", "supcon"),
    ("supsiam", "crossentropy"),
    ("supsiam", "supbyol"),
)


def imagenet_part(folder: Path, plan: Plan | None = None) -> str:
    """The part as Markdown; empty while the folder holds no result."""
    evidence = read_evidence(folder, plan or imagenet_plan())
    if not evidence.results:
        return ""
    measured = method_rows(evidence)
    sections = [
        head(evidence),
        *([main_table(measured), differences(measured, PAIRS, ACCURACIES), ratio_table(measured)] if measured else []),
    ]
    sections += [
        pilot_table(evidence),
        detector_table(evidence),
        left_over(evidence, measured),
        evaluated_with(evidence),
    ]
    return "\n" + "\n".join(section for section in sections if section)


def method_rows(evidence: Evidence) -> dict[str, Row]:
    """The methods that have a final run, each with its seeds.

    One that was trained again at a lower rate has that row; its collapsed row follows under another key.
    """
    rows: dict[str, Row] = {}
    for method in IMAGENET_METHODS:
        row = evidence.row(NAMES[method], f"final-{method}-0")
        tuned = evidence.row(f"{NAMES[method]} (lower rate)", f"tuned-{method}-0")
        rows[method] = tuned if tuned.results else row
        if tuned.results:
            rows[f"{method}, recipe's rate"] = row
    return {method: row for method, row in rows.items() if row.results}


def trained_again(rows: Mapping[str, Row]) -> list[str]:
    """The names of the methods that have a row at a lower rate."""
    return [NAMES[method] for method in TUNED if f"{method}, recipe's rate" in rows]


def imagenet_finding(folder: Path) -> str:
    """For the first page: what labels change on photographs, as a start for detectors too; empty without a pair."""
    evidence = read_evidence(folder, imagenet_plan())
    rows = method_rows(evidence)
    sentences = [
        labels_sentence(rows[ours], rows[theirs], gaps, detection_clause(evidence) if ours == "supsiam" else "")
        for ours, theirs in PAIRS[:2]
        if (gaps := row_gaps(rows, ours, theirs, ACCURACIES)) and not has_ended_collapsed(rows[theirs], rows)
    ]
    if not sentences:
        return ""
    if again := trained_again(rows):
        sentences.append(
            f"{join_names(again)} collapsed at {COLLAPSED_AT}, where their partners with labels did not, and were "
            f"trained again at rate 0.1, so labels and rate change together. {NOT_TESTED}"
            f"{signs_at_one_rate(rows)}{better_collapsed(rows)}"
        )
    question = f"**Do labels help on photographs, too?** ([more](#{ANCHOR}))"
    return "\n  - ".join([question, *sentences])


def signs_at_one_rate(rows: Mapping[str, Row]) -> str:
    """Where a method with labels is worse than its partner at the lower rate, but better at the same one."""
    sentences = ""
    for ours, theirs in PAIRS[:2]:
        collapsed = f"{theirs}, recipe's rate"
        lower, same = (row_gaps(rows, ours, other, ACCURACIES) for other in (theirs, collapsed))
        turned = [
            m for m in OTHER_DATA if m in same and m in lower and lower[m].verdict == "hurts" and same[m].mean > 0
        ]
        if turned:
            ahead = join_names([f"{same[m].mean:.1f}" for m in turned])
            sentences += (
                f" On {join_names([ACCURACIES[m] for m in turned])} the rate decides: with 0.4 in both, "
                f"{NAMES[ours]} is {ahead} points ahead of the collapsed {NAMES[theirs]} "
                f"({seeds_text(rows[ours], rows[collapsed])})."
            )
    return sentences


def better_collapsed(rows: Mapping[str, Row]) -> str:
    """Which collapsed runs have a higher linear accuracy than those at the lower rate that stand for their method."""
    sentences = ""
    for method in TUNED:
        collapsed, lower = rows.get(f"{method}, recipe's rate"), rows.get(method)
        if collapsed is None or lower is None or not (collapsed.values("linear") and lower.values("linear")):
            continue
        before, after = fmean(collapsed.values("linear")), fmean(lower.values("linear"))
        difference = row_gaps(rows, f"{method}, recipe's rate", method, ["linear"]).get("linear")
        if before > after and difference is not None:
            sentences += (
                f" {NAMES[method]}'s collapsed run has a linear accuracy of {before:.1f}, the lower rate {after:.1f} "
                f"({difference.text(1)}), so the lower rate may make labels look better than they are."
            )
    return sentences


def labels_sentence(ours: Row, theirs: Row, gaps: Mapping[str, Gap], detection: str) -> str:
    """One pair: the linear accuracy on its own classes, verdicts on other data, and where labels hurt."""
    hurt = [ACCURACIES[measure] for measure in OTHER_DATA if measure in gaps and gaps[measure].verdict == "hurts"]
    return (
        f"{ours.name} - {theirs.name} is {brief(gaps['linear'])} points on their own classes (linear probe, "
        f"{seeds_text(ours, theirs)}); on other data {ours.name} is {count_words(gaps, OTHER_DATA)}{detection}."
        + f" It is worse on {join_names(hurt)}."
        * bool(hurt)
    )


def imagenet_summary(folder: Path) -> str:
    """SupSiam against SimSiam in one sentence, for readers who read no further; empty until both are measured."""
    evidence = read_evidence(folder, imagenet_plan())
    rows, ours, theirs = method_rows(evidence), *PAIRS[0]
    gaps = row_gaps(rows, ours, theirs, ACCURACIES)
    if not gaps or has_ended_collapsed(rows[theirs], rows):
        return ""
    lower = (
        f" ({NAMES[theirs]} at rate 0.1: at 0.4, batch 256 and 10 warm-up epochs it collapsed; the paper's 0.2, 128 "
        "and 40 were not tested)"
    )
    return (
        f"After pretraining on [ImageNet photographs](RESULTS.md#{ANCHOR}) (64 px, ResNet-50), SupSiam - SimSiam is "
        f"{brief(gaps['linear'])} points on their own classes{lower * (NAMES[theirs] in trained_again(rows))}; on "
        f"other data SupSiam is {count_words(gaps, OTHER_DATA)}{detection_clause(evidence)}."
    )


def detection_clause(evidence: Evidence) -> str:
    """How much more a detector finds that starts from SupSiam; empty until both methods have one."""
    rows = detector_rows(evidence)
    if len(rows) < 2:
        return ""
    theirs, ours = rows
    difference = gap(ours.values("AP"), theirs.values("AP"))
    if difference is None:
        return ""
    return (
        f"; as the start of a detector, trained briefly on 800 images of VOC2012, it gains {brief(difference)} AP "
        f"({seeds_text(ours, theirs)})"
    )


def imagenet_line(folder: Path) -> str:
    """What this study leaves open, for the first page; empty while the folder holds no result."""
    evidence = read_evidence(folder, plan := imagenet_plan())
    if not evidence.results:
        return ""
    rows = method_rows(evidence)
    single = [row.name for row in rows.values() if len(row.results) == 1 and not has_ended_collapsed(row, rows)]
    left = len(waiting(plan, evidence.results))
    return (
        f"More about photographs: [the study of 64 px](#{ANCHOR}) has one seed of {join_names(single) or 'no method'}, "
        f"{left} of its {plural(len(plan.steps), 'run')} {'is' if left == 1 else 'are'} not done, and its learning "
        f"rates are the paper's scaled to batch 256, which are for 224 px and were not tuned. {NOT_TESTED}"
    )


def head(evidence: Evidence) -> str:
    done = len(evidence.plan.steps) - len(waiting(evidence.plan, evidence.results))
    return f"""## ImageNet photographs, ResNet-50

{done} of the plan's {len(evidence.plan.steps)} runs are done (`python -m experiments.evidence plan --plan imagenet`).

- 100 classes of ImageNet (mini-ImageNet), 300 training and 50 test images each, at 64 px. ResNet-50 with the ImageNet
  stem, batch 256, 200 epochs, bf16, the augmentations of the recipe `imagenet100.METHOD-256` with views of 64 px.
- Every method has its recipe's learning rate (App. C, scaled to batch 256; cross-entropy, which the paper does not
  train, the usual 0.1), which is for images of 224 px and was not tuned for these, and weight decay 1e-4. Tables give
  rates at batch 128, half of those that batch 256 trains with. Alpha is {stated_alphas(evidence.plan)}.
- {CONTRASTIVE_HEADS}
- SupSiam and SimSiam warm up for 10 epochs (the recipe: 40), the others, as in their recipes, not at all. The monitor
  names that as the likely cause of the alarms of BYOL, SupCon, SimCLR and SupMoCo, so differences between SupSiam and
  methods other than SimSiam include the warm-up.
- {join_names([NAMES[method] for method in TUNED])} collapsed at {COLLAPSED_AT};
  the paper's own batch, rate and warm-up were not tested. "Lower rate": trained again at the best rate of the pilots
  below that did not collapse, 0.1 at batch 256. Differences are to these runs where there are any, so they are of
  labels and learning rate together. The pilots at half and a quarter of the rate are tied: with a better one these
  differences would be smaller.
- 10% of the training images are held out of pretraining, for the monitor, the pilots and the ridge of the linear probe.
  Test images are used once, when a final run is evaluated.
- CIFAR-10, CIFAR-100 and Pets: transfer as in App. E, images resized to 64 px; Pets has a short side of 64 px.
  Omniglot and GTSRB: 5-way, 2000 episodes, the same for all.
- {SPREAD_NOTE.replace(chr(10), chr(10) + "  ")}
- Hardware: {unique(evidence, "hardware")}. Commits: {unique(evidence, "commit")}.
"""


def main_table(rows: Mapping[str, Row]) -> str:
    return f"""### Methods

The average rank is over all accuracies but that of the SGD probe, for the rows that have them all; 1 is best. It has
no interval.
{accuracy_table(rows, ACCURACIES, "method", {"linear_sgd": "linear, SGD probe"})}"""


def pilot_table(evidence: Evidence) -> str:
    lines = [
        [
            NAMES[method] + " (collapsed)" * (result["status"] == "collapsed"),
            f"{lr:g}",
            f"{result['values'].get('linear', float('nan')):.2f}",
            f"{result['values'].get('knn', float('nan')):.2f}",
        ]
        for method, grid in IMAGENET_PILOTS.items()
        for number, (lr, *_) in enumerate(grid)
        if (result := evidence.results.get(f"pilot-{method}-{number}")) is not None
    ]
    return (
        f"""### Pilots

20 epochs, evaluated on held-out images. The recipe's rate is 0.2, at batch 128. Only the runs with a lower rate follow
them (the best linear accuracy without a collapse): tuning some of nine methods would favour these.

{table(["method", "learning rate", "linear", "k-NN"], lines)}"""
        if lines
        else ""
    )


def detector_rows(evidence: Evidence) -> list[Row]:
    """The methods that have a detector: SimSiam, then SupSiam."""
    names = {step.method: step.name for step in evidence.plan.steps if step.needs}
    rows = [evidence.row(NAMES[method], name) for method, name in names.items()]
    return [row for row in rows if row.results]


def detector_table(evidence: Evidence) -> str:
    measures, measured = ("AP", "AP50", "AP75"), detector_rows(evidence)
    by_name = {row.name: row for row in measured}
    lines = [[row.name, row.seeds, *texts(row, by_name, measures)] for row in measured]
    if len(measured) == 2:
        theirs, ours = measured
        gaps = [gap(ours.values(m), theirs.values(m)) for m in measures]
        lines.append([f"{ours.name} - {theirs.name}", "", *(each.text() if each else "-" for each in gaps)])
    return (
        f"""### Detection

Faster R-CNN (C4) on 800 images of VOC2012, tested on 400, 720 steps; a detector for each pretraining seed. SimSiam has
the lower rate. Seeds differ because an encoder must still be on the machine that trains its detector; none was left out
for its result. A ResNet-50 from random weights was not tried.

{table(["pretraining", "seeds", "AP", "AP50", "AP75"], lines)}"""
        if lines
        else ""
    )
