"""Pictures of data: contact sheets, what a network sees, and what it answers about held-out images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from supancl.data.labels import label_texts
from supancl.data.opening import peek_data
from supancl.data.order import derive_seed
from supancl.data.splits import Data, Split
from supancl.data.store.memory import Batch
from supancl.data.views.specs import Crops
from supancl.errors import SupanclError, make_visible
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.reports.run_record import RunRecord
from supancl.reports.sprites import to_image
from supancl.reports.verdict import own_evaluations

if TYPE_CHECKING:
    from PIL.Image import Image

TILE, GAP, CAPTION = 112, 6, 16
LETTERS = 18  # of a caption
SHOWN_IMAGES, SHOWN_VIEWS, SHOWN_ANSWERS = 4, 4, 8
UNLABELLED = "(unlabelled)"
FAILURES = (SupanclError, OSError, ValueError, RuntimeError, ImportError)


# --- what a report shows of a run's images ----------------------------------------------------------------------------


class Answers(NamedTuple):
    """What a linear classifier on the run's features answers about labelled held-out images, and some of them."""

    truth: Tensor
    predicted: Tensor
    right: Sequence[tuple[bytes, str]]  # the most confident ones: WebP file and text
    wrong: Sequence[tuple[bytes, str]]


@dataclass(frozen=True)
class Samples:
    """Training images by class, largest first, rows of an image with its views, answers, and what was not shown."""

    counts: Sequence[tuple[str, int]] = ()
    views: Sequence[tuple[str, Sequence[bytes]]] = ()
    answers: Answers | None = None
    problems: Sequence[str] = ()


def open_samples(record: RunRecord) -> Samples:
    """Those of a run whose data can still be opened. Answers need an evaluation, which has computed the features."""
    if record.recipe is None:
        return Samples(problems=["Images are not shown: this version cannot build the recipe."])
    try:
        data = peek_data(record.recipe.data, record.recipe.encoder.channels)
    except FAILURES as error:
        return Samples(problems=[f"Images are not shown, because the data cannot be opened: {_line(error)}."])
    if data.train.is_streamed:
        return Samples(problems=["Images that are streamed from shards are not shown."])
    counts = data.train.all_labels.counts(len(data.classes)).tolist()
    unlabelled = len(data.train) - data.train.num_labelled
    named = [*zip(data.classes, counts, strict=True), *([(UNLABELLED, unlabelled)] if unlabelled else [])]
    samples = Samples(sorted(named, key=lambda item: -item[1]))
    if record.about("data").get("fingerprint") not in (None, data.summary.get("fingerprint")):
        return replace(samples, problems=["The files or labels have changed since the run; they are shown as now."])
    problems = []
    try:
        samples = replace(samples, views=_draw_views(data, record.recipe))
    except FAILURES as error:
        problems.append(f"Views are not shown: {_line(error)}.")
    try:
        if own_evaluations(record) and data.train.all_labels.has_one_each and data.classes == tuple(record.classes):
            samples = replace(samples, answers=find_answers(record.folder))
    except FAILURES as error:
        problems.append(f"Predictions are not shown: {_line(error)}.")
    return replace(samples, problems=problems)


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, SupanclError) else reason(error)


def find_answers(run: Path) -> Answers:
    """Fit a linear classifier on the training images, as `predict` does, and ask it about the held-out ones."""
    from supancl.core.precision import pick_device
    from supancl.evaluation.encoder import EvaluationOptions, open_evaluated_encoder
    from supancl.evaluation.sources import data_for
    from supancl.probes import Features
    from supancl.probes.classifiers import fit_linear_classifier, fit_temperature, rank_classes

    evaluated = open_evaluated_encoder(str(run), EvaluationOptions(pick_device("auto")))
    data = data_for(evaluated, None, "margin")
    train, held_out = (evaluated.features(split.labelled()) for split in (data.train, data.held_out))
    chooses = data.summary.get("held_out_from") != "test"
    choosing = held_out if chooses else Features(held_out.values[:0], held_out.labels[:0])
    classifier, _ = fit_linear_classifier(train, choosing, len(data.classes), evaluated.options.device)
    temperature = fit_temperature(classifier.logits(held_out.values), held_out.labels)
    ranked = rank_classes(classifier, held_out.values, len(data.classes), temperature=temperature)
    predicted, confidence = ranked.labels[:, 0], ranked.confidence
    order, is_right = confidence.argsort(descending=True), predicted == held_out.labels
    images = data.held_out.labelled()

    def show(positions: Tensor) -> list[tuple[bytes, str]]:
        shown = []
        for position in positions[:SHOWN_ANSWERS].tolist():
            answer, truth = data.classes[int(predicted[position])], data.classes[int(held_out.labels[position])]
            text = f"{answer} {100 * float(confidence[position]):.0f}%"
            text = text if answer == truth else f"{text}, is {truth}"
            shown.append((_to_webp(_thumbnail(images.batch(torch.tensor([position])))), text))
        return shown

    return Answers(held_out.labels, predicted, show(order[is_right[order]]), show(order[~is_right[order]]))


def _draw_views(data: Data, recipe: Recipe) -> list[tuple[str, list[bytes]]]:
    if not isinstance(recipe.views, Crops):
        return []  # vectors
    positions = pick_by_class(data.train.labels, SHOWN_IMAGES)
    rows = render_views(data.train, recipe, positions, SHOWN_VIEWS)
    texts = label_texts(data.train.all_labels, positions, data.classes, UNLABELLED)
    return [(text, [_to_webp(tile) for tile in row]) for text, row in zip(texts, rows, strict=True)]


def _to_webp(image: Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=85)
    return file.getvalue()


# --- contact sheets ---------------------------------------------------------------------------------------------------


def draw_image_sheet(split: Split, classes: Sequence[str], path: Path, count: int = 48, columns: int = 8) -> None:
    """Draw images of as many classes as fit, each with its class below it."""
    positions = pick_by_class(split.labels, count)
    captions = label_texts(split.all_labels, positions, classes, UNLABELLED)
    _draw_sheet([_thumbnail(split.batch(position[None])) for position in positions], captions, columns, path)


def draw_view_sheet(split: Split, recipe: Recipe, path: Path, count: int = 8, views: int = 6) -> None:
    """Draw a row per image: the image, then views of it by this recipe, with the normalisation undone."""
    tiles = [tile for row in render_views(split, recipe, pick_by_class(split.labels, count), views) for tile in row]
    captions = ["image", *(f"view {number % 2 + 1}" for number in range(views))] * (len(tiles) // (views + 1))
    _draw_sheet(tiles, captions, views + 1, path)


def render_views(split: Split, recipe: Recipe, positions: Tensor, views: int) -> list[list[Image]]:
    """For each position the image, then views of it by this recipe, with the normalisation undone."""
    generator = torch.Generator().manual_seed(derive_seed(recipe.train.seed, 2))
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (recipe.encoder.mean, recipe.encoder.std))
    rows = []
    for position in positions:
        batch = split.batch(position[None])
        rendered: list[Tensor] = []
        while len(rendered) < views:
            batch_views = recipe.views(batch, recipe.encoder.mean, recipe.encoder.std, generator)
            rendered += list((batch_views if isinstance(batch_views, Tensor) else batch_views[0])[:, 0])
        pixels = [((view.float().cpu() * std + mean).clamp(0, 1) * 255).round() for view in rendered[:views]]
        rows.append([_thumbnail(batch), *(_to_tile(one.to(torch.uint8)) for one in pixels)])
    return rows


def pick_by_class(labels: Tensor, count: int) -> Tensor:
    """Positions of up to `count` images, taken from the classes in turn; the same ones every time."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    count_of_class: dict[int, int] = {}
    rank_in_class = []
    for label in labels[order].tolist():
        rank_in_class.append(count_of_class.get(label, 0))
        count_of_class[label] = rank_in_class[-1] + 1
    selected = torch.tensor(rank_in_class, dtype=torch.long).argsort(stable=True)[:count]
    return order[selected][labels[order[selected]].argsort(stable=True)]


def _thumbnail(batch: Batch) -> Image:
    return _to_tile(batch.image(0))


def _to_tile(pixels: Tensor) -> Image:
    from PIL.Image import Resampling

    image = to_image(pixels)
    scale = TILE / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Resampling.NEAREST if scale > 1 else Resampling.LANCZOS)


def _draw_sheet(tiles: Sequence[Image], captions: Sequence[str], columns: int, path: Path) -> None:
    from matplotlib.font_manager import findfont
    from PIL import Image, ImageDraw, ImageFont

    from supancl.reports.pictures import shorten

    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * (TILE + GAP) + GAP, rows * (TILE + CAPTION + GAP) + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.truetype(findfont("DejaVu Sans"), 11)
    for slot, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        left = GAP + slot % columns * (TILE + GAP)
        top = GAP + slot // columns * (TILE + CAPTION + GAP)
        sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
        place, caption = (left + TILE / 2, top + TILE + CAPTION - 4), shorten(make_visible(caption), LETTERS)
        draw.text(place, caption, fill="#333333", font=font, anchor="ms")
    sheet.save(path)
