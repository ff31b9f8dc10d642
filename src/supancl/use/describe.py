"""What is printed beside a figure: its interval and images, levels, chance, baselines and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supancl.evaluation.naming import figure_of
from supancl.probes.knn import DEFAULT_K
from supancl.reporter import say, show
from supancl.reports.tables import plain_table
from supancl.stats import wilson_interval

NOT_MEASURABLE = "not measurable"
WIDE_INTERVAL = 10.0  # points


def figure_text(result: Mapping[str, Any]) -> str:
    """`66.67% [39.1, 86.2]`, or `mAP 61.50% [58.0, 64.5]`: the main figure and its 95% interval."""
    figure = figure_of(result)
    assert figure is not None
    name = "" if figure.name == "accuracy" else f"{figure.name} "
    ends = "" if figure.interval is None else " [{:.1f}, {:.1f}]".format(*figure.interval)
    return f"{name}{figure.value:.2f}%{ends}"


def describe_figure(result: Mapping[str, Any]) -> str:
    """`66.67% [39.1, 86.2] of 12 images`."""
    return _of_images(result, result["tested_images"])


def _of_images(result: Mapping[str, Any], images: int) -> str:
    return f"{figure_text(result)} of {images} image{'s' * (images != 1)}"


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
    """`balanced accuracy 41.20%: head 60.00% (classes: 3), tail 22.40% (classes: 4)`: every class counts equally."""
    groups = [
        f"{name} {group['accuracy']:.2f}% (classes: {group['classes']})"
        for name, group in result["by_class_size"].items()
    ]
    return f"balanced accuracy {result['balanced_accuracy']:.2f}%: {', '.join(groups)}"


def describe_levels(result: Mapping[str, Any]) -> list[str]:
    """`level 0, classes: 2, k = 20: 91.33% [88.4, 93.6] of 450 images` for each level of a hierarchy.

    k is there if it is not that of the main figure.
    """
    lines = []
    for level in result.get("levels", ()):
        k = "" if level.get("k") == result.get("k") else f", k = {level['k']}"
        lines.append(f"level {level['level']}, classes: {level['classes']}{k}: {_of_images(level, level['images'])}")
    return lines


def task_of(result: Mapping[str, Any]) -> str:
    """What the table of a result is called: `k-NN (k = 20)`, `linear`, `fewshot 5w1s`."""
    tasks = {"knn": "k-NN (k = {k})", "fewshot": "fewshot {ways}w{shots}s"}
    return tasks.get(result["protocol"], str(result["protocol"])).format_map(result)


def print_headline(result: Mapping[str, Any]) -> None:
    """Print what one encoder's result says."""
    protocol, classes = result["protocol"], result.get("classes")
    if protocol == "knn":
        if result["k"] < min(DEFAULT_K, result["default_k"] + 1):
            say(f"k = {result['k']}: a quarter of the references per class (k sets another)")
        for k in result["by_k"]:
            say(f"k-NN (k = {k}): {describe_at_k(result, k)}, references: {result['references']}, classes: {classes}")
    elif protocol == "linear":
        method = describe_ridge(result) if result["probe"] == "lbfgs" else f"epochs of SGD: {result['epochs']}"
        say(f"linear ({method}): {describe_figure(result)}, classes: {classes}")
    elif protocol == "finetune":
        how, mean = f"lr {result['lr']:g}, epochs: {result['epochs']}", result["mean_per_class"]
        say(f"fine-tuned ({how}): {describe_figure(result)}, mean per class {mean:.2f}%")
    else:
        _print_variance(result)


def _print_variance(result: Mapping[str, Any]) -> None:
    rows = {
        "S_W": "within",
        "S_T": "total",
        "S_W/S_T": "ratio",
        "effective rank": "effective_rank",
        "NC1 tr(S_W S_B^+)/C": "nc1",
        "NC2 norms": "nc2_norms",
        "NC2 angles": "nc2_angles",
        "NC2 distance from simplex": "nc2_simplex",
        "NC4 % not nearest to own mean": "nc4",
    }
    values = [[name, NOT_MEASURABLE if result[key] is None else f"{result[key]:.4g}"] for name, key in rows.items()]
    show(plain_table(f"{result['images']} {result['split']} images", ["measure", "value"], values))
    measured = {name: value for name, value in result["spread"].items() if value is not None}
    widest = sorted(measured.items(), key=lambda item: -item[1])[:5]
    if widest:
        say("widest classes: " + ", ".join(f"{name} {value:.3f}" for name, value in widest))
    else:
        say("every class has one image, so nothing within classes can be measured")


def print_certainty(result: Mapping[str, Any], name: str = "") -> None:
    """Print what the figure is tested with, and the verdict; `name` begins the lines if there are several."""
    prefix = f"{name}: " if name else ""
    tested = result.get("cross_validated") or result
    for line in describe_levels(result):
        say(f"{prefix}{line}")
    if "map_11_point" in result:
        untested = f"; classes without a test image, left out: {result['untested_classes']}"
        say(f"{prefix}11-point mAP {result['map_11_point']:.2f}%{untested * bool(result['untested_classes'])}")
    if tested is not result:
        say(f"{prefix}cross-validated, labels unused in pretraining: {describe_figure(tested)}")
    figure = figure_of(tested)
    if "baselines" in result and figure is not None and figure.interval is not None:
        low, high = figure.interval
        if high - low > WIDE_INTERVAL:
            say(f"{prefix}an interval of {high - low:.0f} points: it cannot rank encoders that differ by less")
    if "by_class_size" in result:
        say(f"{prefix}{describe_class_sizes(result)}")
    if "baselines" not in result:
        return
    beside = [f"chance {tested['chance']:.1f}%", *(f"{row['name']} {figure_text(row)}" for row in result["baselines"])]
    say(f"{prefix}{', '.join(beside)}")
    say(f"{prefix}{result['verdict']}")


def describe_ridge(result: Mapping[str, Any]) -> str:
    """The weight of the ridge, and the images it was chosen on."""
    if "weight_by_half" in result:
        first, second = result["weight_by_half"]
        weights = f"weight {first:g}" if first == second else f"weights {first:g} and {second:g}"
        return f"ridge {weights}, for each half of the images chosen on the other half"
    if result["chosen_on"] == "none":
        return f"ridge weight {result['weight']:g}, the usual one for few images"
    return f"ridge weight {result['weight']:g}, chosen on images: {result['chosen_on_images']}, {result['chosen_on']}"
