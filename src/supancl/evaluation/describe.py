"""What is printed beside a figure: its interval and images, levels, chance, baselines and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supancl.errors import plural
from supancl.evaluation.naming import figure_of
from supancl.reporter import say
from supancl.stats import FEW_IMAGES, wilson_interval


def figure_text(result: Mapping[str, Any]) -> str:
    """`66.67% [39.1, 86.2]`, or `mAP 61.50% [58.0, 64.5]`: the main figure and its 95% interval."""
    figure = figure_of(result)
    assert figure is not None
    name = "" if figure.name == "accuracy" else f"{figure.name} "
    ends = "" if figure.interval is None else " [{:.1f}, {:.1f}]".format(*figure.interval)
    return f"{name}{figure.value:.2f}%{ends}"


def describe_figure(result: Mapping[str, Any]) -> str:
    """`66.67% [39.1, 86.2] of 12 images`."""
    return f"{figure_text(result)} of {plural(result['tested_images'], 'image')}"


def describe_at_k(result: Mapping[str, Any], k: str) -> str:
    """`describe_figure` of one of several numbers of neighbours."""
    value, images = result["by_k"][k], result["tested_images"]
    if str(result["k"]) == k:
        return describe_figure(result)
    if "map" in result:
        return describe_figure({"map": value, "tested_images": images})
    ends = list(wilson_interval(value, images)[1:])
    return describe_figure({"accuracy": value, "accuracy_interval": ends, "tested_images": images})


def describe_class_sizes(result: Mapping[str, Any]) -> str:
    """`balanced accuracy 41.20%: head 60.00% (3 classes), tail 22.40% (4 classes)`: every class counts equally."""
    groups = [
        f"{name} {group['accuracy']:.2f}% ({plural(group['classes'], 'class', 'classes')})"
        for name, group in result["by_class_size"].items()
    ]
    return f"balanced accuracy {result['balanced_accuracy']:.2f}%: {', '.join(groups)}"


def describe_levels(result: Mapping[str, Any]) -> list[str]:
    """`level 0, 2 classes, k = 20: 91.33% [88.4, 93.6] of 450 images` for each level of a hierarchy.

    k is there if it is not that of the main figure.
    """
    lines = []
    for level in result.get("levels", ()):
        k = "" if level.get("k") == result.get("k") else f", k = {level['k']}"
        name = f"level {level['level']}, {plural(level['classes'], 'class', 'classes')}{k}"
        lines.append(f"{name}: {figure_text(level)} of {plural(level['images'], 'image')}")
    return lines


def describe_several_labels(result: Mapping[str, Any]) -> str:
    """`11-point mAP 60.12%; 1 class without a test image is left out`."""
    untested = result["untested_classes"]
    left_out = (
        f"; {plural(untested, 'class', 'classes')} without a test image {'is' if untested == 1 else 'are'} left out"
    )
    return f"11-point mAP {result['map_11_point']:.2f}%{left_out if untested else ''}"


def print_certainty(result: Mapping[str, Any], name: str = "") -> None:
    """Print what the figure is tested with, and the verdict; `name` begins the lines if there are several."""
    prefix = f"{name}: " if name else ""
    tested = result.get("cross_validated") or result
    for line in describe_levels(result):
        say(f"{prefix}{line}")
    if "map_11_point" in result:
        say(f"{prefix}{describe_several_labels(result)}")
    if tested is not result:
        say(f"{prefix}cross-validated, labels unused in pretraining: {describe_figure(tested)}")
    elif "baselines" in result and result["tested_images"] < FEW_IMAGES:
        say(f"{prefix}few images: more labelled ones to test on would narrow the interval (docs/evaluate.md)")
    if "by_class_size" in result:
        say(f"{prefix}{describe_class_sizes(result)}")
    if "baselines" not in result:
        return
    beside = [f"chance {tested['chance']:.1f}%", *(f"{row['name']} {figure_text(row)}" for row in result["baselines"])]
    say(f"{prefix}{', '.join(beside)}")
    say(f"{prefix}{result['verdict']}")


def describe_ridge(result: dict[str, Any]) -> str:
    """The weight of the ridge, and the images it was chosen on."""
    if "weight_by_half" in result:
        first, second = result["weight_by_half"]
        weights = f"weight {first:g}" if first == second else f"weights {first:g} and {second:g}"
        return f"ridge {weights}, for each half of the images chosen on the other half"
    images = plural(result["chosen_on_images"], "image")
    return f"ridge weight {result['weight']:g}, chosen on {images}: {result['chosen_on']}"
