"""What is printed beside an accuracy: its interval and images, chance, baselines and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from supancl.errors import plural
from supancl.stats import FEW_IMAGES, wilson_interval


def accuracy_text(accuracy: float, interval: Sequence[float]) -> str:
    """`66.67% [39.1, 86.2]`: an accuracy and its 95% interval."""
    return f"{accuracy:.2f}% [{interval[0]:.1f}, {interval[1]:.1f}]"


def describe_accuracy(result: dict[str, Any], accuracy: float | None = None) -> str:
    """`66.67% [39.1, 86.2] of 12 images`: the result's accuracy, or another one on the same images."""
    images = result["tested_images"]
    if accuracy is None:
        return f"{accuracy_text(result['accuracy'], result['accuracy_interval'])} of {plural(images, 'image')}"
    return f"{accuracy_text(accuracy, wilson_interval(accuracy, images)[1:])} of {plural(images, 'image')}"


def describe_class_sizes(result: dict[str, Any]) -> str:
    """`balanced accuracy 41.20%: head 60.00% (3 classes), tail 22.40% (4 classes)`: every class counts equally."""
    groups = [
        f"{name} {group['accuracy']:.2f}% ({plural(group['classes'], 'class', 'classes')})"
        for name, group in result["by_class_size"].items()
    ]
    return f"balanced accuracy {result['balanced_accuracy']:.2f}%: {', '.join(groups)}"


def print_certainty(result: dict[str, Any], console: Console, name: str = "") -> None:
    """Print what the accuracy is tested with, and the verdict; `name` begins the lines if there are several."""
    prefix = f"{name}: " if name else ""
    tested = result.get("cross_validated") or result
    if tested is not result:
        console.print(f"{prefix}cross-validated, labels unused in pretraining: {describe_accuracy(tested)}")
    elif "baselines" in result and result["tested_images"] < FEW_IMAGES:
        console.print(f"{prefix}few images: more labelled ones to test on would narrow the interval (docs/evaluate.md)")
    if "by_class_size" in result:
        console.print(f"{prefix}{describe_class_sizes(result)}")
    if "baselines" not in result:
        return
    beside = [f"chance {tested['chance']:.1f}%"]
    beside += [
        f"{row['name']} {accuracy_text(row['accuracy'], row['accuracy_interval'])}" for row in result["baselines"]
    ]
    console.print(f"{prefix}{', '.join(beside)}")
    console.print(f"{prefix}{result['verdict']}")
