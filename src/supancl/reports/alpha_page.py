"""The page of `supancl alpha`: table, curves, maps and the recommendation in one self-contained HTML file."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from supancl.errors import plural
from supancl.files import write_text
from supancl.probes import Features
from supancl.reports.page import html_page, inline_image
from supancl.reports.pictures import COLOURS, tsne_panels
from supancl.reports.tables import Table, to_html


def draw_curves(summary: list[dict[str, Any]], measures: Mapping[str, tuple[str, int]], path: Path) -> None:
    """Plot S_W/S_T, losses and accuracies against alpha; error bars are one standard deviation."""
    groups = (("ratio",), ("ssl", "sup"), ("knn", "linear", "transfer"))
    titles = ("S_W/S_T on held-out images", "losses at the end", "accuracy on held-out images (%)")
    min_heights = (0.02, 0.02, 2.0)  # of an axis: on a smaller one noise looks like a trend
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    alphas = [entry["alpha"] for entry in summary]
    for axis, keys, title, height in zip(figure.subplots(1, 3), groups, titles, min_heights, strict=True):
        for i, key in enumerate(keys):
            values = [entry[key] for entry in summary]
            if all(value != value for value in values):
                continue
            sds = [entry[f"{key}_sd"] for entry in summary]  # nan with one seed, and not drawn
            axis.errorbar(alphas, values, yerr=sds, marker="o", capsize=3, label=measures[key][0], color=COLOURS[i])
        axis.margins(y=0.1)
        low, high = axis.get_ylim()
        if high - low < height:
            axis.set_ylim((low + high - height) / 2, (low + high + height) / 2)
        axis.set_title(title)
        axis.set_xlabel("alpha")
        axis.grid(alpha=0.3)
        if len(keys) > 1 and axis.get_legend_handles_labels()[1]:  # nothing is drawn if every run failed
            axis.legend(ncols=len(keys), loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    figure.savefig(path, dpi=130, bbox_inches="tight")


def write_page(
    result: dict[str, Any],
    cells: tuple[list[str], list[list[str]]],
    measures: Mapping[str, tuple[str, int]],
    panels: Mapping[str, Features],
    classes: tuple[str, ...],
    out: Path,
) -> Path:
    """Write alpha.html with the pictures embedded, and the pictures as files next to it."""
    draw_curves(result["summary"], measures, out / "curves.png")
    if panels:
        tsne_panels(panels, classes, out / "tsne.png")
    columns, rows = cells
    table = Table(columns, rows, "r" * len(columns))
    left_out = ", ".join(result["left_out"])
    transfer = (
        f"Transfer: a linear classifier on the classes left out of pretraining ({html.escape(left_out)}), "
        f"fitted on {plural(result['shots'], 'image')} of each, 50 draws; "
        f"chance is {100 / len(result['left_out']):.0f}%."
        if left_out
        else "No class was left out, so transfer was not measured."
    )
    maps = (
        f'<h2>Held-out images (t-SNE, seed 0 unless another is named)</h2>\n<img class="figure" alt="t-SNE maps" '
        f'src="{inline_image(out / "tsne.png")}">'
        if panels
        else ""
    )
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    data, seed_list = result["data"], ", ".join(map(str, result["seeds"]))
    epochs = plural(result["epochs"], "epoch")
    seeds = f"seed{'s' if len(result['seeds']) != 1 else ''} {seed_list}"
    deviations = (
        "Values are means over seeds &plusmn; one standard deviation. Intervals of differences hold at 95% for all "
        "pairs of alphas together (Tukey's, seeds as blocks)."
        if len(result["seeds"]) > 1
        else "One seed has no interval."
    )
    body = f"""<h1>Which alpha for {html.escape(str(data["source"]))}?</h1>
<p class="answer">{_unbroken_flags(result["recommendation"])}.</p>
<p>{html.escape(result["recipe"])}, {epochs}, {plural(data["train"], "training image")}, {data["held_out"]} held out,
{plural(data["classes"], "class", "classes")} in pretraining, {seeds}.
alpha = 1 is self-supervised, alpha = 0 is only supervised. {transfer} {deviations} l_ssl and l_sup are the
self-supervised and the supervised term of the loss; S_W/S_T is the share of the features' variance that lies within
classes.</p>
{to_html(table)}
{_list_failed(result["rows"])}
<img class="figure" alt="values against alpha" src="{inline_image(out / "curves.png")}">
{maps}
<p class="small">{result["seconds"]:.0f} s; {html.escape(versions)}; commit {html.escape(str(result["commit"]))}.
l_ssl and l_sup are those of training, over the last epoch; every other value is measured on images held out of
training, none on a test set. The maps show at most 2,000 images.</p>"""
    path = out / "alpha.html"
    write_text(path, html_page(f"Which alpha? {result['recipe']}", body))
    return path


def _list_failed(rows: Sequence[dict[str, Any]]) -> str:
    """Failed runs with their reasons; empty if there are none."""
    items = "".join(
        f"<li>alpha = {row['alpha']:g}, seed {row['seed']}: {html.escape(row['failed'])}</li>"
        for row in rows
        if row["failed"]
    )
    return f"<p>Failed runs, which are in no mean:</p><ul>{items}</ul>" if items else ""


def _unbroken_flags(text: str) -> str:
    """Escaped HTML in which flags do not wrap: a browser would break --seeds between the hyphens."""
    return re.sub(r"--[\w-]+", r'<code style="white-space: nowrap">\g<0></code>', html.escape(text))
