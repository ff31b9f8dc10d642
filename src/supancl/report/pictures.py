"""Pictures: loss curves and t-SNE maps, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from supancl.evaluate import Features

# ten colours that stay apart for most colour-blind readers, then again with another marker
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000", "#ee7733", "#009988")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")


def plain(text: str) -> str:
    """A name as it is spelled: matplotlib reads dollars as formulas, and leaves what begins with _ out of legends."""
    text = " ".join(text.split())
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def loss_curves(metrics: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """One panel each for the loss, its self-supervised term and the live k-NN accuracy, one line per run."""
    panels = (("loss", "train", "loss"), ("ssl", "train", "l_ssl"), ("knn", "monitor", "k-NN, held out (%)"))
    figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for axis, (key, kind, title) in zip(axes, panels, strict=True):
        for i, (name, rows) in enumerate(metrics.items()):
            points = [(row["step"], row[key]) for row in rows if row["kind"] == kind and row.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), label=plain(name), color=COLOURS[i % len(COLOURS)], linewidth=1.5)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=130)


def tsne_map(features: Features, seed: int = 0) -> np.ndarray[Any, Any]:
    """Two coordinates per image; t-SNE needs a perplexity below the number of images.

    Of two images, or of features that are all the same (a collapsed encoder), it makes nothing: one point then.
    """
    from sklearn.manifold import TSNE

    count = len(features.values)
    perplexity = min(30.0, max(2.0, (count - 1) / 3))
    values = features.values.double().numpy()
    values = values / np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)
    if count < 3 or not (values != values[0]).any():
        return np.zeros((count, 2))
    mapped: np.ndarray[Any, Any] = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(values)
    return mapped


def tsne_panels(features: Mapping[str, Features], classes: tuple[str, ...], path: Path, seed: int = 0) -> None:
    """One map per entry, the same colour and marker for a class in all of them."""
    side = min(4.2, 15 / len(features))
    figure = Figure(figsize=(side * len(features), side + 0.6), layout="constrained")
    axes = figure.subplots(1, len(features), squeeze=False)[0]
    for axis, (name, entry) in zip(axes, features.items(), strict=True):
        points, labels = tsne_map(entry, seed), entry.labels.numpy()
        for label in np.unique(labels):
            chosen = points[labels == label]
            style = {"color": COLOURS[label % len(COLOURS)], "marker": MARKERS[(label // len(COLOURS)) % len(MARKERS)]}
            name_of = classes[label] if 0 <= label < len(classes) else "unlabelled"
            axis.scatter(chosen[:, 0], chosen[:, 1], s=3 * side, alpha=0.8, linewidths=0, label=plain(name_of), **style)
        axis.set_title(plain(name))
        axis.set_xticks([])
        axis.set_yticks([])
    found = [axis.get_legend_handles_labels() for axis in axes]  # a class may be in one map alone
    named = {name: handle for handles, names in found for handle, name in zip(handles, names, strict=True)}
    if 0 < len(named) <= 20:
        columns = min(len(named), 10)
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns, frameon=False,
                      markerscale=2.5)
    figure.savefig(path, dpi=130)
