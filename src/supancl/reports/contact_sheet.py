"""Contact sheets: what the images look like, and which views the encoder will see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from supancl.data.label_pairs import label_texts
from supancl.data.order import derive_seed
from supancl.data.splits import Split
from supancl.data.store.memory import Batch
from supancl.errors import make_visible
from supancl.recipes import Recipe
from supancl.reports.pictures import shorten
from supancl.reports.sprites import to_image

TILE, GAP, CAPTION = 112, 6, 16
LETTERS = 18  # of a caption


def draw_image_sheet(split: Split, classes: Sequence[str], path: Path, count: int = 48, columns: int = 8) -> None:
    """Draw images of as many classes as fit, each with its class below it."""
    positions = pick_by_class(split.labels, count)
    captions = label_texts(split.image_labels, positions, classes, "(unlabelled)")
    tiles = [_thumbnail(split.batch(position[None])) for position in positions]
    _draw_sheet(tiles, captions, columns, path)


def draw_view_sheet(split: Split, recipe: Recipe, path: Path, count: int = 8, views: int = 6) -> None:
    """Draw a row per image: the image, then views of it by this recipe, with the normalisation undone."""
    tiles = [tile for row in render_views(split, recipe, pick_by_class(split.labels, count), views) for tile in row]
    captions = ["image", *(f"view {number % 2 + 1}" for number in range(views))] * (len(tiles) // (views + 1))
    _draw_sheet(tiles, captions, views + 1, path)


def render_views(split: Split, recipe: Recipe, positions: Tensor, views: int) -> list[list[Image.Image]]:
    """For each position the image, then views of it by this recipe, with the normalisation undone."""
    generator = torch.Generator().manual_seed(derive_seed(recipe.train.seed, 2))
    rows = []
    for position in positions:
        batch = split.batch(position[None])
        rendered: list[Tensor] = []
        while len(rendered) < views:
            batch_views = recipe.views(batch, recipe.encoder.mean, recipe.encoder.std, generator)
            rendered += list((batch_views if isinstance(batch_views, Tensor) else batch_views[0])[:, 0])
        shown = [_unnormalized(view, recipe.encoder.mean, recipe.encoder.std) for view in rendered[:views]]
        rows.append([_thumbnail(batch), *shown])
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


def _thumbnail(batch: Batch) -> Image.Image:
    return _to_tile(batch.image(0))


def _unnormalized(view: Tensor, mean: Sequence[float], std: Sequence[float]) -> Image.Image:
    shape = (-1, 1, 1)
    colours = view.float().cpu() * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)
    return _to_tile((colours.clamp(0, 1) * 255).round().to(torch.uint8))


def _to_tile(pixels: Tensor) -> Image.Image:
    image = to_image(pixels)
    scale = TILE / max(image.size)
    resampling = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), resampling)


def _draw_sheet(tiles: Sequence[Image.Image], captions: Sequence[str], columns: int, path: Path) -> None:
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
