"""Contact sheets: what the images look like, and what the encoder will be shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from supancl.data.order import derive_seed
from supancl.data.splits import Split
from supancl.data.store.memory import Batch
from supancl.recipes import Recipe

TILE, GAP, CAPTION = 112, 6, 16


def image_sheet(split: Split, classes: Sequence[str], path: Path, count: int = 48, columns: int = 8) -> None:
    """Images of as many classes as there is room for, each with its class below it."""
    chosen = pick_by_class(split.labels, count)
    captions = [classes[label] if label >= 0 else "(unlabelled)" for label in split.labels[chosen].tolist()]
    tiles = [_thumbnail(split.batch(position[None])) for position in chosen]
    _sheet(tiles, captions, columns, path)


def view_sheet(split: Split, recipe: Recipe, path: Path, count: int = 8, views: int = 6) -> None:
    """A row per image: the image, then views of it as the recipe makes them, taken back to colours."""
    chosen = pick_by_class(split.labels, count)
    generator = torch.Generator().manual_seed(derive_seed(recipe.train.seed, 2))
    tiles, captions = [], []
    for position in chosen:
        batch = split.batch(position[None])
        tiles.append(_thumbnail(batch))
        captions.append("image")
        made: list[Tensor] = []
        while len(made) < views:
            both = recipe.views(batch, recipe.encoder.mean, recipe.encoder.std, generator)
            made += list((both if isinstance(both, Tensor) else both[0])[:, 0])
        for number, view in enumerate(made[:views]):
            tiles.append(_unnormalized(view, recipe.encoder.mean, recipe.encoder.std))
            captions.append(f"view {number % 2 + 1}")
    _sheet(tiles, captions, views + 1, path)


def pick_by_class(labels: Tensor, count: int) -> Tensor:
    """Positions of up to `count` images, going through the classes in turn; the same ones every time."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    seen: dict[int, int] = {}
    turn = []
    for label in labels[order].tolist():
        turn.append(seen.get(label, 0))
        seen[label] = turn[-1] + 1
    first = torch.tensor(turn, dtype=torch.long).argsort(stable=True)[:count]
    return order[first][labels[order[first]].argsort(stable=True)]


def _thumbnail(batch: Batch) -> Image.Image:
    pixels = batch.pixels[0]
    if batch.sizes is not None:
        height, width = batch.sizes[0].tolist()
        pixels = pixels[:, :height, :width]
    return _picture(pixels)


def _unnormalized(view: Tensor, mean: Sequence[float], std: Sequence[float]) -> Image.Image:
    shape = (-1, 1, 1)
    colours = view.float().cpu() * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)
    return _picture((colours.clamp(0, 1) * 255).round().to(torch.uint8))


def _picture(pixels: Tensor) -> Image.Image:
    array = pixels.cpu().permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2] == 1 else array)).convert("RGB")
    scale = TILE / max(image.size)
    small = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), small)


def _sheet(tiles: Sequence[Image.Image], captions: Sequence[str], columns: int, path: Path) -> None:
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * (TILE + GAP) + GAP, rows * (TILE + CAPTION + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for place, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        left = GAP + place % columns * (TILE + GAP)
        top = GAP + place // columns * (TILE + CAPTION + GAP)
        sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
        caption = " ".join(caption.split())  # a folder's name may have several lines
        while pen.textlength(caption, font=font) > TILE and len(caption) > 2:
            caption = caption[:-2] + "…"
        pen.text((left + TILE / 2, top + TILE + 1), caption, fill="#333333", font=font, anchor="ma")
    sheet.save(path)
