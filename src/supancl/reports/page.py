"""The one shell of every HTML page: verdicts, sections, charts, links and thumbnails in a file without a network."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from supancl.errors import make_visible
from supancl.files import Output, jsonable, open_regular, write_text
from supancl.reporter import report_progress
from supancl.version import __version__

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from supancl.data.splits import Split
    from supancl.stats import Tone
else:
    from supancl.lazy import torch

GENERATOR = '<meta name="generator" content="supancl">'
# nothing is fetched, whatever a name in the data contains; blob: is for files that the reader saves
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
# the pages of a run folder, which link to one another
PAGES = {"Report": "report.html", "Map": "map.html", "Audit": "audit/audit.html", "Comparison": "../comparison.html"}
NAV = re.compile(r'<nav id="pages">.*?</nav>', re.DOTALL)


class Banner(NamedTuple):
    """A verdict on top of a page; its colour is green for good, grey for unclear and red for bad."""

    tone: Tone
    headline: str
    detail: str
    state: str = ""


class Section(NamedTuple):
    """A part of a page; `body` is HTML, `note` a plain sentence below the title."""

    title: str
    body: str
    note: str = ""
    is_folded: bool = False

    def to_html(self) -> str:
        if not self.body:
            return ""
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        if self.is_folded:
            return f"<details><summary>{html.escape(self.title)}</summary>{note}{self.body}</details>"
        return f"<section><h2>{html.escape(self.title)}</h2>{note}{self.body}</section>"


def html_page(
    title: str,
    sections: Iterable[Section | str],
    *,
    banners: Iterable[Banner] = (),
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
    is_full: bool = False,
) -> str:
    """A page with this title; sections that are strings are HTML already.

    `data` is what `scripts`, names of files in assets/, read from the elements data-NAME. `is_full`: without margins.
    """
    title = make_visible(title)
    parts = [section if isinstance(section, str) else section.to_html() for section in sections]
    top = f'<h1>{html.escape(title)}</h1><nav id="pages"></nav>' + "".join(map(_banner, banners))
    body = make_visible((top if not is_full else "") + "\n".join(filter(None, parts)), keep="\n")
    elements = "\n".join(
        f'<script type="application/json" id="data-{name}">{_json_for_html(value)}</script>'
        for name, value in (data or {}).items()
    )
    code = "\n".join(f"<script>\n{_read_asset(name)}</script>" for name in ("theme.js", *scripts))
    foot = "" if is_full else f'<p class="small">supancl {__version__}</p>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(title)}</title><style>
{_read_asset("page.css")}</style></head><body{' class="full"' if is_full else ""}>
<button id="theme" type="button"></button>
{body}{foot}
{elements}
{code}
</body></html>
"""


def _banner(banner: Banner) -> str:
    headline, detail = html.escape(make_visible(banner.headline)), html.escape(make_visible(banner.detail))
    text = f"<strong>{headline}</strong> {detail[:1].upper()}{detail[1:]}"
    return f'<p class="verdict {banner.tone}" data-state="{banner.state}">{text}</p>'


# --- places and links -------------------------------------------------------------------------------------------------


def write_page(path: Path, page: str) -> None:
    """Write a page, and in each page of the same run the links to the others."""
    write_text(path, page)
    folder = path.parents[1] if path.name == Path(PAGES["Audit"]).name else path.parent
    places = {name: folder / place for name, place in PAGES.items()}
    if path not in places.values() or not (folder / "recipe.json").is_file():
        return
    present = {name: place for name, place in places.items() if _is_our_page(place)}
    for here in present.values():
        if here == places["Comparison"]:
            continue  # it has links to its runs in its table
        links = [
            f"<b>{name}</b>" if place == here else f'<a href="{os.path.relpath(place, here.parent)}">{name}</a>'
            for name, place in present.items()
        ]
        text = here.read_text(encoding="utf-8")
        linked = NAV.sub(f'<nav id="pages">{"".join(links) if len(links) > 1 else ""}</nav>', text, count=1)
        if linked != text:
            write_text(here, linked)


def _is_our_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return GENERATOR.encode() in file.read(1000)


def page_output(path: Path) -> Output:
    """The place of a page: an earlier page of supancl's may be replaced."""
    return Output(path, (".html", ".htm"), replaces=_is_our_page)


def picture_output(path: Path, setting: str = "out") -> Output:
    """The place of a picture: one that matplotlib drew may be replaced, a photograph may not."""

    def is_drawn(path: Path) -> bool:
        if not path.is_file():
            return False
        with open_regular(path) as file:
            return b"matplotlib" in file.read().lower()

    return Output(path, (".png", ".svg", ".pdf"), setting, is_drawn)


# --- pieces of HTML ---------------------------------------------------------------------------------------------------


def charts(names: Iterable[str]) -> str:
    """A figure for each of these charts of `data["charts"]`, which charts.js draws."""
    figures = "".join(f'<figure class="chart" data-chart="{html.escape(name)}"></figure>' for name in names)
    return f'<div class="charts">{figures}</div>' if figures else ""


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A table of names with a bar and a text each; the longest bar fills its column."""
    most = max((value for _, value, _ in rows), default=0) or 1
    lines = "".join(
        f'<tr><td class="word long">{wrappable(name)}</td><td>{html.escape(text)}</td>'
        f'<td class="bars"><div class="bar" style="width: {100 * value / most:.1f}%"></div></td></tr>'
        for name, value, text in rows
    )
    return f'<table class="histogram"><tbody>{lines}</tbody></table>' if lines else ""


def pictures(tiles: Iterable[tuple[Image.Image, str]]) -> str:
    """Pictures with a text below each."""
    cells = "".join(
        f'<figure><img alt="{html.escape(text)}" src="data:image/webp;base64,{_base64(_to_webp(tile))}">'
        f"<figcaption>{wrappable(text)}</figcaption></figure>"
        for tile, text in tiles
    )
    return f'<div class="pictures">{cells}</div>' if cells else ""


def beside(*blocks: str) -> str:
    """Blocks in columns, where the window is wide enough."""
    return f'<div class="beside">{"".join(f"<div>{block}</div>" for block in blocks if block)}</div>'


def wrappable(text: str) -> str:
    """A name as HTML that may wrap after underscores: `english_cocker_spaniel`."""
    return html.escape(text).replace("_", "_<wbr>")


def short_source(source: str) -> str:
    """Sources for a heading, without the folders that they lie in.

    >>> short_source("/home/ann/photos + labels.csv")
    'photos + labels.csv'
    """
    return " + ".join(Path(part).name or part if Path(part).is_absolute() else part for part in source.split(" + "))


def _read_asset(name: str) -> str:
    return resources.files("supancl.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _json_for_html(value: Any) -> str:
    """JSON in which nothing ends the script element; characters beyond ASCII are escapes."""
    return json.dumps(jsonable(value), separators=(",", ":")).replace("<", "\\u003c")


# --- thumbnails -------------------------------------------------------------------------------------------------------

SHEET_SIDE = 2048  # pixels: a browser decodes a sheet in one piece
SIDES = {2_000: 96, 10_000: 64, 20_000: 48}  # up to so many images -> side of a thumbnail; else 32
QUALITIES = (95, 85, 75, 60, 45, 30, 15, 5)  # of WebP, tried in turn until a sheet is small enough
BYTES_PER_IMAGE = 490  # of a whole page: less than 25 MB for 50,000 images
USUAL_BYTES = 6e6  # a page of few images may have these


def pack_array(values: np.ndarray) -> dict[str, str]:
    """An array as base64, for unpackArray of sprites.js; numbers as text would take three times the space."""
    little_endian = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return {"dtype": values.dtype.name, "base64": _base64(little_endian.tobytes())}


def draw_sprites(splits: Collection[Split], page_data: Any, side: int | None = None) -> dict[str, Any]:
    """Thumbnails of every image of the splits on WebP sheets, for sprites.js.

    They are compressed until the page with `page_data` is at most 6 MB, or 490 bytes per image if there are many.
    """
    count, quality = sum(map(len, splits)), 0
    room = max(USUAL_BYTES, BYTES_PER_IMAGE * count) - len(json.dumps(page_data))
    limit = max(60.0, 0.75 * room / max(1, count))  # bytes of an image; base64 makes four of three
    side = side or next((size for most, size in SIDES.items() if count <= most), 32)
    columns, sheets, sizes = SHEET_SIDE // side, list[str](), np.zeros((count, 2), np.uint8)
    tiles = (thumbnail(image, side) for split in splits for image in iter_images(split))
    for start in range(0, count, columns**2):
        part = list(islice(tiles, columns**2))
        rows = -(-len(part) // columns)
        sheet = Image.new("RGB", (min(columns, len(part)) * side, rows * side), "#808080")
        for i, tile in enumerate(part):
            sheet.paste(tile, (i % columns * side, i // columns * side))
            sizes[start + i] = tile.size
        content = _to_webp(sheet, QUALITIES[quality])
        while len(content) > limit * len(part) and quality < len(QUALITIES) - 1:
            quality += 1
            content = _to_webp(sheet, QUALITIES[quality])
        sheets.append(_base64(content))
        report_progress("thumbnails", start + len(part), count)
    return {"side": side, "columns": columns, "sheets": sheets, "sizes": pack_array(sizes)}


def iter_images(split: Split) -> Iterator[Image.Image]:
    """Each image of the split."""
    for positions in torch.arange(len(split)).split(256):
        batch = split.batch(positions)
        yield from (to_image(batch.image(row)) for row in range(len(positions)))


def to_image(pixels: Tensor) -> Image.Image:
    """uint8 pixels (C, H, W) as an RGB image; of more than three channels the first three."""
    array = pixels[:3].cpu().permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2] < 3 else array)).convert("RGB")


def thumbnail(image: Image.Image, side: int, enlarges: bool = False) -> Image.Image:
    """The image, reduced to fit into a square of this side."""
    scale = side / max(image.size)
    if scale >= 1 and not enlarges:
        return image
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _to_webp(image: Image.Image, quality: int = 85) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=quality, method=4)
    return file.getvalue()
