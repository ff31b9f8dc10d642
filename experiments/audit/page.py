"""The tables of docs/audit.md and the part of RESULTS.md about wrong labels, from the files in results/audit.

python -m experiments.audit.page [--update docs/audit.md]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.audit.runs import ROWS
from supancl.files import replace_section
from supancl.probes.label_scores import MIN_AGREEMENT

RESULTS = Path(__file__).parents[1] / "results" / "audit"
NAMES = {"simsiam": "SimSiam", "supsiam": "SupSiam", "supcon": "SupCon", "crossentropy": "cross-entropy"}
OURS = "logistic, k 20, weights (1, 2, 2), log"  # that of `supancl.probes.label_scores`
EARLIER = "ridge, k 20, weights (1, 1, 2), own"  # ours when three of the encoders were trained; marked in the table
VOTES = "votes as in SimiFeat, k 10"
SECOND = 1  # the half of the images that no rule was chosen on


def read_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    paths = [folder / f"{name}.json" for name in ROWS]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def encoder_name(result: dict[str, Any]) -> str:
    return NAMES[result["method"]] + ("" if result["alpha"] is None else f", alpha {result['alpha']:g}")


def noise_name(result: dict[str, Any]) -> str:
    return f"{100 * result['noise']:g}% {result['kind']}"


def found_table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown row per encoder: how well each rule ranks wrong labels, and the estimated share of them."""
    rows = [
        "| wrong labels | encoder | ours | cleanlab | votes of 10 neighbours | estimated share |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in sorted(results, key=lambda found: (found["kind"] != "symmetric", found["noise"])):
        is_earlier = OURS not in result["ranks"]
        ours, votes = (result["ranks"][rule][SECOND] for rule in (EARLIER if is_earlier else OURS, VOTES))
        theirs = [result["cleanlab"]["roc_area"], result["cleanlab"]["average_precision"]]
        cells = [" / ".join(f"{value:.3f}" for value in pair) for pair in (ours, theirs, votes)]
        mark = " †" if is_earlier else ""
        cells[0] += mark
        rows.append(
            f"| {noise_name(result)} | {encoder_name(result)} | {' | '.join(cells)} | {share_text(result)}{mark} |"
        )
    return "\n".join(rows)


def share_text(result: dict[str, Any]) -> str:
    percent, low, high = result["share"]
    text = f"{percent:.1f}% [{low:.1f}, {high:.1f}]"
    return text if result.get("agreement", 1.0) >= MIN_AGREEMENT else f"none is given ({text})"


def accuracy_table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown row per encoder: accuracies on test images with right labels."""
    rows = [
        "| wrong labels | encoder | linear | linear fitted on the wrong labels too | k-NN | CIFAR-10, linear |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in sorted(results, key=lambda found: (found["kind"] != "symmetric", found["noise"])):
        values = [result["accuracy"][key] for key in ("linear", "linear on wrong labels", "knn", "cifar10")]
        cells = " | ".join(f"{value:.1f}" for value in values)
        rows.append(f"| {noise_name(result)} | {encoder_name(result)} | {cells} |")
    return "\n".join(rows)


def noise_findings(results: Sequence[dict[str, Any]]) -> str:
    """SupSiam minus cross-entropy for every kind of wrong labels that both have."""
    found = {(result["method"], result["alpha"], noise_name(result)): result["accuracy"] for result in results}
    lines = []
    for name in dict.fromkeys(noise_name(result) for result in results):
        ours, theirs = found.get(("supsiam", 0.5, name)), found.get(("crossentropy", None, name))
        if ours and theirs:
            lines.append(
                f"{name} {ours['linear'] - theirs['linear']:+.1f} / {ours['cifar10'] - theirs['cifar10']:+.1f}"
            )
    if not lines:
        return ""
    return (
        "SupSiam (alpha 0.5) - cross-entropy in points, on CIFAR-100 / on CIFAR-10 (linear, right labels): "
        f"{'; '.join(lines)}. One seed each: differences of a point say little.\n\n"
    )


def noise_part(folder: Path = RESULTS) -> str:
    """The part of RESULTS.md; empty while there is no result."""
    results = read_results(folder)
    if not results:
        return ""
    hardware = ", ".join(sorted({result["hardware"] for result in results}))
    return f"""
## Wrong labels

What do wrong labels do to an encoder? Some labels of CIFAR-100's training images were made wrong (`data.label_noise`:
symmetric, any other class; pair, the next class), and encoders were trained with them for {results[0]["epochs"]} epochs
(CIFAR ResNet-18, batch 256, the learning rates and heads of the runs above; {hardware}; one seed). Then they were
frozen, and a linear classifier with a fixed ridge and k-NN were fitted with right labels and tested on the test
images; the second column was fitted with the wrong labels. {len(results)} of {len(ROWS)} planned runs are done.
[docs/audit.md](docs/audit.md) shows how well the wrong labels are found.

{noise_findings(results)}{accuracy_table(results)}
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", type=Path)
    args = parser.parse_args()
    made = found_table(read_results())
    print(made, accuracy_table(read_results()), sep="\n\n")
    if args.update:
        replace_section(args.update, "audit found", f"{made}\n")
