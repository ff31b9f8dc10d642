"""Pictures without a display: curves, t-SNE maps, contact sheets of images, of views and of detections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager
from matplotlib.lines import Line2D
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from supancl.data.labels import label_texts
from supancl.data.order import derive_seed
from supancl.data.splits import Split
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, make_visible
from supancl.files import write_atomically
from supancl.probes import Features
from supancl.recipes import Recipe
from supancl.reporter import report_progress, track_task
from supancl.reports.page import thumbnail, to_image

if TYPE_CHECKING:
    from supancl.detection.scenes import Scenes
    from supancl.detection.test import Detections

# ten colours that most colour-blind readers can distinguish; after ten classes they repeat with another marker
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000", "#ee7733", "#009988")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
# matplotlib takes a letter from the first of these that has it
FONTS = [
    family
    for family in ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Devanagari", "Noto Sans Thai")
    if family in fontManager.get_font_names()
]
MOST_IN_LEGEND = 20  # classes
MAX_VECTOR_POINTS = 10_000  # more are pixels in an SVG or PDF, which could hardly be opened otherwise
MAX_IMAGES_SKLEARN = 5_000  # above, scikit-learn's t-SNE takes several times as long as openTSNE
ITERATIONS, CALL_EVERY = 750, 25  # openTSNE's: 250 of early exaggeration and 500 more
TILE, GAP, CAPTION = 112, 6, 16  # of a contact sheet
UNLABELLED = "(unlabelled)"


# --- t-SNE ------------------------------------------------------------------------------------------------------------


def tsne_map(features: Features, seed: int = 0) -> np.ndarray[Any, Any]:
    """Two coordinates per image, by t-SNE of the features at unit length.

    Zeros for fewer than three images, or if all features are equal (a collapsed encoder).
    """
    count, values = len(features.values), features.values.double().numpy()
    values = values / np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)
    if count < 3 or not (values != values[0]).any():
        return np.zeros((count, 2))
    check_tsne(count)
    if count <= MAX_IMAGES_SKLEARN:
        from sklearn.manifold import TSNE

        with track_task(f"t-SNE of {count:,} images"):
            return np.asarray(TSNE(perplexity=perplexity(count), init="pca", random_state=seed).fit_transform(values))
    import openTSNE

    calls = 0

    def report(*_: Any) -> None:
        nonlocal calls
        calls += 1
        report_progress("t-SNE, iterations", min(ITERATIONS, calls * CALL_EVERY), ITERATIONS)

    made = openTSNE.TSNE(
        perplexity=perplexity(count), neighbors="exact", random_state=seed, n_jobs=torch.get_num_threads(),
        callbacks=report, callbacks_every_iters=CALL_EVERY,
    )  # fmt: skip
    return np.asarray(made.fit(values))


def perplexity(count: int) -> float:
    """The perplexity for `count` images: 30, or less for few images, because it must be below their number."""
    return min(30.0, max(2.0, (count - 1) / 3))


def check_tsne(count: int) -> None:
    """Refuse more images than scikit-learn can map in good time if openTSNE is not installed."""
    if count > MAX_IMAGES_SKLEARN and find_spec("openTSNE") is None:
        raise BadInput(
            f"t-SNE of {count:,} images needs openTSNE; pip install 'supancl[map]', or show at most "
            f"{MAX_IMAGES_SKLEARN:,} with limit"
        )


# --- curves -----------------------------------------------------------------------------------------------------------


def escape_label(text: str) -> str:
    """Make matplotlib show a name literally: it reads dollars as formulas and hides labels that begin with _."""
    text = make_visible(text)
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def loss_curves(metrics: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot the loss, its self-supervised term and the monitor's k-NN accuracy, one line per run."""
    draw_curves((("loss", "train", "loss"), ("ssl", "train", "l_ssl"), ("knn", "monitor", "k-NN (%)")), metrics, path)


def draw_detection_curves(metrics: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot the loss, its four terms, and AP, AP50 and AP75 against the step, one line per run."""
    losses = ("loss", "loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg")
    panels = [(key, "train", key.removeprefix("loss_")) for key in losses]
    draw_curves([*panels, *((key, "test", f"{key} (%)") for key in ("AP", "AP50", "AP75"))], metrics, path)


def draw_curves(
    panels: Sequence[tuple[str, str, str]], metrics: Mapping[str, list[dict[str, Any]]], path: Path
) -> None:
    """Plot each value (key, kind of row, title) against the step; `metrics` are the rows of runs by name."""
    rows = -(-len(panels) // 4)
    figure = Figure(figsize=(4.2 * -(-len(panels) // rows), 3.3 * rows), layout="constrained")
    axes = figure.subplots(rows, -(-len(panels) // rows), squeeze=False).flat
    for axis, (key, kind, title) in zip(axes, panels, strict=True):
        for i, (name, logged) in enumerate(metrics.items()):
            # the last row of a step counts: a finished run that is resumed is tested again
            points = {row["step"]: row[key] for row in logged if row["kind"] == kind and row.get(key) is not None}
            style = {"label": escape_label(name), "color": COLOURS[i % len(COLOURS)]}
            if points:
                axis.plot(list(points), list(points.values()), marker="." if len(points) < 50 else "", **style)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].legend()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:], dpi=120))


# --- maps -------------------------------------------------------------------------------------------------------------


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


def tsne_panels(features: Mapping[str, Features], classes: tuple[str, ...], path: Path) -> None:
    """Draw one map per entry; a class has the same colour and marker in all of them."""
    panels = [Panel(name, tsne_map(entry), entry.labels.numpy()) for name, entry in features.items()]
    draw_panels(panels, classes, path)


def class_styles(groups: Mapping[str, Sequence[int]]) -> dict[int, dict[str, Any]]:
    """Colour and marker of each label: each group has its own markers; images without a label are grey.

    >>> styles = class_styles({"dog": [0, 1], "bird": [2]})
    >>> [styles[label]["marker"] for label in (0, 1, 2)]
    ['o', 'o', '^']
    """
    styles: dict[int, dict[str, Any]] = {-1: {"color": "#999999", "marker": "."}}
    for number, labels in enumerate(groups.values()):
        for position, label in enumerate(label for label in labels if label >= 0):
            marker = MARKERS[(number + position // len(COLOURS)) % len(MARKERS)]
            styles[label] = {"color": COLOURS[position % len(COLOURS)], "marker": marker}
    return styles


def draw_panels(
    panels: Sequence[Panel],
    classes: Sequence[str],
    path: Path,
    groups: Mapping[str, Sequence[int]] | None = None,
    sheet: Sheet = SCREEN,
) -> None:
    """Draw maps side by side, as PNG, SVG or PDF; a class has the same colour and marker in all of them.

    `groups` maps the name of each group to its labels: a group has its own marker and column of the legend. More
    than 20 classes without groups have no legend.
    """
    labels = {int(label) for panel in panels for label in np.unique(panel.labels)}
    present = sorted(labels, key=lambda label: (label < 0, label))  # in the legend unlabelled images come last
    sections = {name: [one for one in members if one in labels] for name, members in (groups or {"": present}).items()}
    sections = {name: members for name, members in sections.items() if members}
    named = [escape_label(name if len(name) <= 40 else f"{name[:39]}…") for name in classes]
    entries = list[tuple[str, dict[str, Any]]]()
    styles, longest, blank = class_styles(sections), max(map(len, sections.values()), default=0), {"marker": ""}
    if groups or len(present) <= MOST_IN_LEGEND:
        for name, members in sections.items():
            entries += [(escape_label(name), blank)] * bool(name)
            entries += [(named[one] if 0 <= one < len(named) else "unlabelled", styles[one]) for one in members]
            entries += [("", blank)] * (longest - len(members) if groups else 0)
    rows = math.ceil(len(panels) / 5)
    columns = math.ceil(len(panels) / rows)
    side = min(sheet.side, sheet.width / columns)
    width, letters = side * columns, max((len(text) for text, _ in entries), default=0) + 6
    per_row = len(sections) if groups else max(1, min(int(72 * width / (0.6 * sheet.font * letters)), len(entries)))
    height = rows * (side + sheet.font * 3.3 / 72) + sheet.font * 1.5 / 72 * math.ceil(len(entries) / per_row)
    # no dates and fixed ids: equal points give equal files
    settings: dict[Any, Any] = {"svg.hashsalt": "supancl", "pdf.fonttype": 42, "font.size": sheet.font}
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    with matplotlib.rc_context({**settings, "font.family": FONTS}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axis in axes:
            axis.set_axis_off()
        for axis, panel in zip(axes, panels, strict=False):
            _draw_map(axis, panel, styles, side, sheet.font)
        if entries:
            shared: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0, "markersize": 0.7 * sheet.font}
            handles = [Line2D([], [], **shared, **style) for _, style in entries]
            layout: dict[str, Any] = {"loc": "outside lower center", "handletextpad": 0.2, "columnspacing": 1.0}
            figure.legend(handles, [text for text, _ in entries], ncols=per_row, frameon=False, **layout)
        figure.savefig(path, dpi=sheet.dpi, metadata=undated)


def _draw_map(axis: Axes, panel: Panel, styles: Mapping[int, Mapping[str, Any]], side: float, font: float) -> None:
    """Draw one map on an axis that is `side` inches wide; a long title gets a smaller font."""
    size, is_raster = 3 * side * min(1.0, 4_000 / max(1, len(panel.points))), len(panel.points) > MAX_VECTOR_POINTS
    for label in np.unique(panel.labels).tolist():
        points = panel.points[panel.labels == label]
        axis.scatter(points[:, 0], points[:, 1], s=size, alpha=0.8, linewidths=0, rasterized=is_raster, **styles[label])
    largest, pad = 72 * side / (0.6 * max(1, len(panel.title))), 1.6 * font if panel.note else 0.6 * font
    axis.set_title(escape_label(panel.title), fontsize=min(1.1 * font, largest), pad=pad)
    if panel.note:
        place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center"}
        axis.annotate(make_visible(panel.note), (0.5, 1), (0, 0.3 * font), va="bottom", fontsize=0.8 * font, **place)
    axis.set_axis_on()
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(color="0.6", linewidth=0.5)


# --- contact sheets ---------------------------------------------------------------------------------------------------


def pick_by_class(labels: Tensor, count: int) -> Tensor:
    """Positions of up to `count` images, taken from the classes in turn; the same ones every time."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    seen: dict[int, int] = {}
    ranks = []
    for label in labels[order].tolist():
        ranks.append(seen.get(label, 0))
        seen[label] = ranks[-1] + 1
    selected = order[torch.tensor(ranks, dtype=torch.long).argsort(stable=True)[:count]]
    return selected[labels[selected].argsort(stable=True)]


def draw_image_sheet(split: Split, classes: Sequence[str], path: Path, count: int = 48, columns: int = 8) -> None:
    """Draw images of as many classes as fit, each with its class below it."""
    positions = pick_by_class(split.labels, count)
    tiles = [to_image(split.batch(position[None]).image(0)) for position in positions]
    draw_sheet(tiles, label_texts(split.all_labels, positions, classes, UNLABELLED), columns, path)


def draw_view_sheet(split: Split, recipe: Recipe, path: Path, count: int = 8, views: int = 6) -> None:
    """Draw a row per image: the image, then views of it by this recipe, with the normalisation undone."""
    assert isinstance(recipe.views, Crops)
    generator, tiles = torch.Generator().manual_seed(derive_seed(recipe.train.seed, 2)), list[Image.Image]()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (recipe.encoder.mean, recipe.encoder.std))
    for position in pick_by_class(split.labels, count):
        batch, rendered = split.batch(position[None]), list[Tensor]()
        while len(rendered) < views:
            made = recipe.views(batch, recipe.encoder.mean, recipe.encoder.std, generator)
            rendered += list((made if isinstance(made, Tensor) else made[0])[:, 0])
        pixels = [((view.float().cpu() * std + mean).clamp(0, 1) * 255).round() for view in rendered[:views]]
        tiles += [to_image(image) for image in (batch.image(0), *(one.to(torch.uint8) for one in pixels))]
    captions = ["image", *(f"view {number % 2 + 1}" for number in range(views))] * (len(tiles) // (views + 1))
    draw_sheet(tiles, captions, views + 1, path)


def draw_detection_sheet(scenes: Scenes, detections: Sequence[Detections], path: Path) -> None:
    """Draw images spread evenly over the set, each twice: true boxes on the left, detections above .5 on the right."""
    from torchvision.utils import draw_bounding_boxes

    tiles, captions, side = [], list[str](), 2 * TILE
    for number in torch.linspace(0, len(scenes) - 1, min(12, len(scenes))).round().long().unique().tolist():
        scene, detected, image = scenes.scenes[number], detections[number], to_image(scenes.image(number))
        scale, small = side / max(image.size), thumbnail(image, side, True)
        is_shown = detected.scores >= 0.5
        scores = [f" {score:.2f}" for score in detected.scores[is_shown].tolist()]
        for title, boxes, labels, words in (
            ("truth", scene.boxes, scene.labels, [""] * len(scene.boxes)),
            ("found", detected.boxes[is_shown], detected.labels[is_shown], scores),
        ):
            pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
            if len(boxes):
                names = [make_visible(scenes.classes[n]) + word for n, word in zip(labels.tolist(), words, strict=True)]
                colours = [COLOURS[n % len(COLOURS)] for n in labels.tolist()]
                pixels = draw_bounding_boxes(pixels, (boxes * scale).cpu(), names, colours, width=2)
            tiles.append(to_image(pixels))
            captions.append(f"{title}: {scene.path.stem}")
    draw_sheet(tiles, captions, 6 if len(tiles) > 2 else 2, path, side)


def draw_sheet(
    tiles: Sequence[Image.Image], captions: Sequence[str], columns: int, path: Path, side: int = TILE
) -> None:
    """Draw images in rows, each with a text below it."""
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * (side + GAP) + GAP, rows * (side + CAPTION + GAP) + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.truetype(findfont("DejaVu Sans"), 11)
    for slot, (image, caption) in enumerate(zip(tiles, captions, strict=True)):
        left, top = GAP + slot % columns * (side + GAP), GAP + slot // columns * (side + CAPTION + GAP)
        tile, text = thumbnail(image, side, True), make_visible(caption)[: side // 6]
        sheet.paste(tile, (left + (side - tile.width) // 2, top + (side - tile.height) // 2))
        draw.text((left + side / 2, top + side + CAPTION - 4), text, fill="#333333", font=font, anchor="ms")
    write_atomically(path, lambda temporary: sheet.save(temporary, format="PNG"))
