"""Pictures: loss curves and t-SNE maps, drawn without a display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from supancl.errors import BadInput, make_visible
from supancl.probes import Features
from supancl.reports.tsne import tsne_map

# ten colours that most colour-blind readers can distinguish; after ten classes they repeat with another marker
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000", "#ee7733", "#009988")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
# colours that belong together, one family for each group of classes
FAMILIES = (
    ("#b2182b", "#fdb863", "#7f3b08", "#e66101", "#f7a8a0"),  # reds and browns
    ("#08519c", "#74c476", "#41b6c4", "#00441b", "#9ecae1"),  # blues and greens
    ("#54278f", "#df65b0", "#9e9ac8", "#980043", "#d4b9da"),  # violets
    ("#000000", "#969696", "#525252", "#cccccc", "#737373"),  # greys
)
# matplotlib takes a letter from the first of these that has it
FONTS = [
    family
    for family in ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Devanagari", "Noto Sans Thai")
    if family in fontManager.get_font_names()
]
MAX_NAMED = 200  # classes; a sheet of more would be mostly legend
LETTERS = 40  # of a name in a legend
FULL_SIZE_POINTS = 4_000  # more points in a map are drawn smaller
MAX_VECTOR_POINTS = 10_000  # more are pixels in an SVG or PDF, which could hardly be opened otherwise
# no dates (and fixed ids below): equal points give equal files
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


class Panel(NamedTuple):
    """A map: title, two coordinates and a label per image, and a note in small type below the title."""

    title: str
    points: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    note: str = ""


class Sheet(NamedTuple):
    """The sheet for panels: its width and the largest side of a panel in inches, font size, resolution."""

    width: float
    side: float
    font: float
    dpi: int


SCREEN = Sheet(15.0, 4.2, 10.0, 130)
PAGE = Sheet(6.75, 3.5, 7.0, 300)  # a two-column page's text width, with type that can be read in print


def escape_label(text: str) -> str:
    """Make matplotlib show a name literally: it reads dollars as formulas and hides labels that begin with _."""
    text = make_visible(text)
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def loss_curves(metrics: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot the loss, its self-supervised term and the monitor's k-NN accuracy, one line per run."""
    panels = (("loss", "train", "loss"), ("ssl", "train", "l_ssl"), ("knn", "monitor", "k-NN, held out (%)"))
    figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for axis, (key, kind, title) in zip(axes, panels, strict=True):
        for i, (name, rows) in enumerate(metrics.items()):
            points = [(row["step"], row[key]) for row in rows if row["kind"] == kind and row.get(key) is not None]
            if points:
                axis.plot(
                    *zip(*points, strict=True), label=escape_label(name), color=COLOURS[i % len(COLOURS)], linewidth=1.5
                )
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=130)


def tsne_panels(features: Mapping[str, Features], classes: tuple[str, ...], path: Path) -> None:
    """Draw one map per entry; a class has the same colour and marker in all of them."""
    panels = [Panel(name, tsne_map(entry), entry.labels.numpy()) for name, entry in features.items()]
    draw_panels(panels, classes, path)


def class_styles(groups: Mapping[str, Sequence[int]]) -> dict[int, dict[str, Any]]:
    """Colour and marker of each label; each group has a family of colours, a single group has all colours.

    >>> styles = class_styles({"dog": [0, 1], "bird": [2]})
    >>> [styles[label]["color"] in FAMILIES[0] for label in (0, 1, 2)]
    [True, True, False]
    """
    styles: dict[int, dict[str, Any]] = {}
    for number, labels in enumerate(groups.values()):
        colours = FAMILIES[number % len(FAMILIES)] if len(groups) > 1 else COLOURS
        if number >= len(FAMILIES) or len(labels) > len(colours) * len(MARKERS):
            raise BadInput("more classes or groups than colours and markers; name fewer")
        for position, label in enumerate(labels):
            styles[label] = {"color": colours[position % len(colours)], "marker": MARKERS[position // len(colours)]}
    return styles


def default_styles(labels: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Colour and marker of each label; after 80 classes they repeat. Images without a label are small and grey."""
    return {
        label: {"color": "#999999", "marker": "."}
        if label < 0
        else {"color": COLOURS[label % len(COLOURS)], "marker": MARKERS[label // len(COLOURS) % len(MARKERS)]}
        for label in labels
    }


def shorten(text: str, letters: int) -> str:
    """The text, or its start and end with an ellipsis between them.

    >>> shorten("a long name", 7)
    'a l…ame'
    """
    return text if len(text) <= letters else f"{text[: letters // 2]}…{text[-((letters - 1) // 2) :]}"


def draw_panels(
    panels: Sequence[Panel],
    classes: Sequence[str],
    path: Path,
    groups: Mapping[str, Sequence[int]] | None = None,
    sheet: Sheet = SCREEN,
    numbered_above: int = 20,
) -> None:
    """Draw maps side by side, as PNG, SVG or PDF; a class has the same colour and marker in all of them.

    `groups` maps the name of each group to its labels: a group has its own colours and column of the legend. With more
    than `numbered_above` classes, symbols are hard to tell apart: each class also has a number in the legend and at its
    middle in the maps.
    """
    labels = {int(label) for panel in panels for label in np.unique(panel.labels)}
    present = sorted(labels, key=lambda label: (label < 0, label))  # in the legend unlabelled images come last
    sections = {name: [one for one in members if one in labels] for name, members in (groups or {"": present}).items()}
    sections = {name: members for name, members in sections.items() if members}
    styles = class_styles(sections) if groups else default_styles(present)
    is_numbered = numbered_above < len(present) <= MAX_NAMED
    rows = math.ceil(len(panels) / 5)
    columns = math.ceil(len(panels) / rows)
    side = min(sheet.side, sheet.width / columns)
    width, font = side * columns, sheet.font * (0.8 if is_numbered else 1)
    entries = _legend_entries(sections, classes, is_numbered) if len(present) <= MAX_NAMED else []
    letters = max((len(text) for text, _ in entries), default=0) + 6
    legend_columns = len(sections) if groups else max(1, min(int(72 * width / (0.6 * font * letters)), len(entries)))
    settings: dict[Any, Any] = {"svg.hashsalt": "supancl", "pdf.fonttype": 42, "font.size": sheet.font}
    with matplotlib.rc_context({**settings, "font.family": FONTS}):
        height = rows * (side + sheet.font * 3.3 / 72) + font * 1.5 / 72 * math.ceil(len(entries) / legend_columns)
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, panel in zip(axes, panels, strict=False):
            _draw_map(axis, panel, styles, side, sheet.font, is_numbered)
        if entries:
            _draw_legend(figure, entries, legend_columns, styles, font)
        figure.savefig(path, dpi=sheet.dpi, metadata=UNDATED.get(path.suffix.lower()))


def _legend_entries(
    sections: Mapping[str, Sequence[int]], classes: Sequence[str], is_numbered: bool
) -> list[tuple[str, int | None]]:
    """Texts with the label whose symbol precedes them. Named groups have their name first and are equally long."""
    longest, entries = max(map(len, sections.values()), default=0), list[tuple[str, int | None]]()
    for name, labels in sections.items():
        entries += [(escape_label(name), None)] if name else []
        for label in labels:
            text = escape_label(shorten(classes[label], LETTERS)) if 0 <= label < len(classes) else "unlabelled"
            entries.append((f"{label}  {text}" if is_numbered and label >= 0 else text, label))
        entries += [("", None)] * (longest - len(labels))
    return entries


def _draw_legend(
    figure: Figure,
    entries: Sequence[tuple[str, int | None]],
    columns: int,
    styles: Mapping[int, Mapping[str, Any]],
    font: float,
) -> None:
    """Draw the legend below the maps; names of groups (label None) are bold."""
    shared: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0, "markersize": 0.7 * font}
    handles = [Line2D([], [], **shared, **({"marker": ""} if key is None else styles[key])) for _, key in entries]
    texts = [text for text, _ in entries]
    layout: dict[str, Any] = {"loc": "outside lower center", "handletextpad": 0.2, "columnspacing": 1.0}
    artist = figure.legend(handles, texts, ncols=columns, frameon=False, fontsize=font, **layout)
    for text, (_, label) in zip(artist.get_texts(), entries, strict=True):
        text.set_fontweight("normal" if label is not None else "bold")


def _draw_map(
    axis: Axes, panel: Panel, styles: Mapping[int, Mapping[str, Any]], side: float, font: float, is_numbered: bool
) -> None:
    """Draw one map on an axis that is `side` inches wide; a long title gets a smaller font."""
    size = 3 * side * min(1.0, FULL_SIZE_POINTS / max(1, len(panel.points)))
    is_raster = len(panel.points) > MAX_VECTOR_POINTS
    for label in np.unique(panel.labels):
        points = panel.points[panel.labels == label]
        style = {**styles[int(label)], "rasterized": is_raster}
        axis.scatter(points[:, 0], points[:, 1], s=size, alpha=0.8, linewidths=0, **style)
        if is_numbered and label >= 0:
            x, y = np.median(points, axis=0)
            outline = [withStroke(linewidth=0.15 * font, foreground="white")]
            axis.text(x, y, str(int(label)), fontsize=0.6 * font, ha="center", va="center", path_effects=outline)
    largest, pad = 72 * side / (0.6 * max(1, len(panel.title))), 1.6 * font if panel.note else 0.6 * font
    axis.set_title(escape_label(panel.title), fontsize=min(1.1 * font, largest), pad=pad)
    if panel.note:
        place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center"}
        axis.annotate(make_visible(panel.note), (0.5, 1), (0, 0.3 * font), va="bottom", fontsize=0.8 * font, **place)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set(color="0.6", linewidth=0.5)
