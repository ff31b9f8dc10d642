"""The training images of a run: how many of each class, and some of them as the network sees them."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supancl.data.label_pairs import count_images, label_texts
from supancl.data.opening import peek_data
from supancl.data.splits import Data
from supancl.errors import SupanclError
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.reports.page import data_url, wrappable
from supancl.reports.run_record import RunRecord

if TYPE_CHECKING:
    from PIL.Image import Image

SHOWN_IMAGES, SHOWN_VIEWS = 4, 4
MAX_CLASSES = 24  # above, only the largest and the smallest are listed
UNLABELLED = "(unlabelled)"


@dataclass(frozen=True)
class TrainingImages:
    """Counts by class, largest first, and rows of an image with its views; `problem` says what could not be shown."""

    counts: Sequence[tuple[str, int]] = ()
    pictures: Sequence[tuple[str, Sequence[bytes]]] = ()  # class name, WebP files
    problem: str = ""


def open_training_images(record: RunRecord) -> TrainingImages:
    """Those of a run whose data can still be opened; else why not."""
    if record.recipe is None:
        return TrainingImages(problem="Images are not shown: this version cannot build the recipe.")
    try:
        data = peek_data(record.recipe.data, record.recipe.encoder.channels)
    except (SupanclError, OSError, ValueError, RuntimeError, ImportError) as error:
        line = str(error) if isinstance(error, SupanclError) else reason(error)
        return TrainingImages(problem=f"Images are not shown, because the data cannot be opened: {line}.")
    images = describe_training_images(data, record.recipe)
    before = record.about("data").get("fingerprint")
    if before is not None and before != data.summary.get("fingerprint"):
        changed = "The files or labels at this place have changed since the run; they are shown as they are now."
        return TrainingImages(images.counts, images.pictures, changed)
    return images


def describe_training_images(data: Data, recipe: Recipe) -> TrainingImages:
    """Those of data that are open."""
    if data.train.is_streamed:
        return TrainingImages(problem="Images that are streamed from shards are not shown.")
    counts, unlabelled = count_images(data.train.image_labels, len(data.classes))
    counts_by_name = [*zip(data.classes, counts, strict=True), *([(UNLABELLED, unlabelled)] if unlabelled else [])]
    by_class = sorted(counts_by_name, key=lambda item: -item[1])
    try:
        return TrainingImages(by_class, _draw(data, recipe))
    except (SupanclError, OSError, ValueError, RuntimeError) as error:
        return TrainingImages(by_class, problem=f"Views are not shown: {reason(error)}.")


def _draw(data: Data, recipe: Recipe) -> list[tuple[str, list[bytes]]]:
    from supancl.data.views.specs import Crops
    from supancl.reports.contact_sheet import pick_by_class, render_views

    if not isinstance(recipe.views, Crops):
        return []  # vectors
    positions = pick_by_class(data.train.labels, SHOWN_IMAGES)
    rows = render_views(data.train, recipe, positions, SHOWN_VIEWS)
    texts = label_texts(data.train.image_labels, positions, data.classes, UNLABELLED)
    return [(text, [_to_webp(tile) for tile in row]) for text, row in zip(texts, rows, strict=True)]


def _to_webp(image: Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=85)
    return file.getvalue()


# --- HTML -------------------------------------------------------------------------------------------------------------


def images_html(images: TrainingImages) -> str:
    """A histogram, the views, and what could not be shown."""
    problem = f'<p class="small">{html.escape(images.problem)}</p>' if images.problem else ""
    blocks = "".join(
        f"<div>{block}</div>" for block in (_histogram(images.counts), _pictures(images.pictures)) if block
    )
    return problem + (f'<div class="beside">{blocks}</div>' if blocks else "")


def _histogram(counts: Sequence[tuple[str, int]]) -> str:
    if not counts:
        return ""
    most = max(count for _, count in counts) or 1
    listed: list[tuple[str, int] | None] = list(counts)
    if len(counts) > MAX_CLASSES:
        listed = [*counts[: MAX_CLASSES // 2], None, *counts[-MAX_CLASSES // 2 :]]
    rows = []
    for item in listed:
        if item is None:
            left_out = counts[MAX_CLASSES // 2 : -MAX_CLASSES // 2]
            span = f"{left_out[-1][1]:,} to {left_out[0][1]:,}"
            rows.append(f'<tr><td class="word" colspan="3">... {len(left_out)} more, {span} each</td></tr>')
            continue
        name, count = item
        bar = f'<div class="bar" style="width: {100 * count / most:.1f}%"></div>'
        rows.append(
            f'<tr><td class="word long">{wrappable(name)}</td><td>{count:,}</td><td class="bars">{bar}</td></tr>'
        )
    return f'<h3>Training images by class</h3><table class="histogram"><tbody>{"".join(rows)}</tbody></table>'


def _pictures(pictures: Sequence[tuple[str, Sequence[bytes]]]) -> str:
    if not pictures:
        return ""
    cells = []
    for name, tiles in pictures:
        for number, tile in enumerate(tiles):
            text = name if number == 0 else f"view {(number - 1) % 2 + 1}"
            picture = f'<img alt="{html.escape(text)}" src="{data_url(tile, "image/webp")}">'
            cells.append(f"<figure>{picture}<figcaption>{wrappable(text)}</figcaption></figure>")
    title = "<h3>As the network sees them</h3>"
    return f'{title}<div class="pictures views" style="columns: {len(pictures[0][1])}">{"".join(cells)}</div>'
