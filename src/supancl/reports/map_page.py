"""The page of `supancl map`: one HTML file with the maps, the thumbnails and all that scatter.js and map.js need."""

from __future__ import annotations

import colorsys
import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from supancl.core.labels import Labels
from supancl.data.labels import label_cell
from supancl.errors import plural
from supancl.reports.maps import EncoderMap, MappedImages, common_folder
from supancl.reports.page import html_page, short_source
from supancl.reports.pictures import COLOURS
from supancl.reports.sprites import draw_sprites, pack_array, thumbnail_bytes

SCRIPTS = ("elements.js", "sprites.js", "scatter.js", "map.js")

BODY = """<header class="map-bar"><h1>{title}</h1><nav id="pages"></nav>
<input id="search" type="search" placeholder="Search names and classes" aria-label="Search names and classes">
<select id="split" aria-label="Split"><option value="">all splits</option></select>
<button id="lasso" type="button" aria-pressed="false" title="Or drag with Shift; Ctrl adds to it">Lasso</button>
<button id="fit" type="button" title="Or double-click a map">Whole map</button>
<span id="shown" class="small" role="status"></span></header>
<main class="map-page"><div id="maps" class="maps maps-{columns}"></div>
<aside><section id="image"></section>
<section><div class="map-row"><span id="selected" role="status"></span>
<button id="save" type="button">Save CSV</button><button id="clear" type="button">Clear</button></div>
<div id="selection"></div></section>
<section><div class="map-row"><strong>Classes</strong><button id="all-classes" type="button">All</button>
<button id="no-classes" type="button">None</button><button id="select-shown" type="button">Select shown</button></div>
<div id="classes" class="classes"></div></section></aside></main>
<div id="tip" class="tip" hidden><canvas class="pixels"></canvas><div></div></div>"""


def map_page(source: str, images: MappedImages, maps: Sequence[EncoderMap]) -> str:
    """The page; at most 6 MB, or of many images 500 bytes each: thumbnails get the room that the rest leaves."""
    data, count = page_data(images, maps), len(images.names)
    sprites = draw_sprites(images.splits, thumbnail_bytes(count, data))
    title = f"{short_source(source)}: {plural(count, 'image', number_format=',')}"
    body = BODY.format(title=html.escape(title), columns=min(3, len(maps)))
    return html_page(title, [body], data={"map": data, "sprites": sprites.to_page()}, scripts=SCRIPTS, is_full=True)


def page_data(images: MappedImages, maps: Sequence[EncoderMap]) -> dict[str, Any]:
    """What map.js reads."""
    count = len(images.names)
    prefix = common_folder(images.names)
    splits = list(dict.fromkeys(images.split_names))
    row_type = np.uint16 if count <= np.iinfo(np.uint16).max else np.uint32
    return {
        "names": [name[len(prefix) :] for name in images.names],
        "prefix": prefix,
        "classes": list(images.classes),
        "colours": class_colours(len(images.classes)),
        "labels": pack_array(images.labels.astype(np.int32)),
        **label_sets(images),
        "splits": splits,
        "split_of": pack_array(np.array([splits.index(name) for name in images.split_names], np.uint8)),
        # a fixed shuffle: drawn class by class, the last class would hide the others
        "order": pack_array(np.random.default_rng(0).permutation(count).astype(row_type)),
        "encoders": [
            {
                "title": encoder_map.title,
                "points": pack_array(encoder_map.points.astype(np.float32)),
                "neighbours": pack_array(encoder_map.neighbours.astype(row_type)),
            }
            for encoder_map in maps
        ],
    }


def label_sets(images: MappedImages) -> dict[str, Any]:
    """If images have several labels: each combination once, as its classes and the cell of a .csv, and whose it is."""
    if images.pairs is None:
        return {}
    sets = [tuple(labels) for labels in Labels.of(images.pairs).entries()]
    number = {labels: i for i, labels in enumerate(dict.fromkeys(sets))}
    return {
        "label_sets": [
            [[label for label, _ in labels], label_cell([(images.classes[label], weight) for label, weight in labels])]
            for labels in number
        ],
        "set_of": pack_array(np.array([number[labels] for labels in sets], np.int32)),
    }


def class_colours(count: int) -> list[str]:
    """A colour per class: those of figures for ten classes, else hues that turn by the golden angle.

    >>> class_colours(2), len(set(class_colours(100)))
    (['#4477aa', '#ee6677'], 100)
    """
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    colours = []
    for label in range(count):
        red, green, blue = colorsys.hls_to_rgb(label * 0.618034 % 1, (0.42, 0.55, 0.68)[label % 3], 0.65)
        colours.append(f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}")
    return colours
