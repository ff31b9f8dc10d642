"""The pages of `supancl map` and `supancl audit`: images by their features, and labels that look wrong."""

from __future__ import annotations

import colorsys
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.data.labels import with_leaf_labels
from supancl.data.splits import Source
from supancl.errors import BadInput, did_you_mean
from supancl.evaluation.audit import Audit, DuplicatePair, ListedImages, describe, list_images
from supancl.evaluation.data import is_read_as_trained, read_source, spec_for
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.files import absolute_path
from supancl.probes import Features
from supancl.probes.knn import Neighbours, count_votes, default_k, neighbours
from supancl.reports.page import Banner, draw_sprites, html_page, pack_array, short_source
from supancl.reports.pictures import COLOURS, check_tsne, tsne_map

NEIGHBOURS = 12  # shown for an image
MAX_IMAGES = 100_000
TEMPERATURE = 0.1  # of the votes that predict a label, as in `evaluate knn`
SCRIPTS = ("elements.js", "sprites.js", "scatter.js", "map.js")

BODY = """<header class="map-bar"><h1>{title}</h1><nav id="pages"></nav>
<input id="search" type="search" placeholder="Search names and classes" aria-label="Search names and classes">
<select id="split" aria-label="Split"><option value="">all splits</option></select>
<button id="pictures" type="button" aria-pressed="true">Pictures</button>
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


class MapRequest(NamedTuple):
    """Which images to show: a source, some of its classes (none: all), at most `limit` of them chosen by the seed."""

    data: str
    classes: Sequence[str] = ()
    limit: int = MAX_IMAGES
    seed: int = 0  # of the choice of images and of t-SNE


class EncoderMap(NamedTuple):
    """A map of one encoder: title, two coordinates per image, the rows of each image's nearest neighbours, and the
    label that the nearest other labelled images give it (-1: none) with its share of their votes."""

    title: str
    points: np.ndarray[Any, Any]
    neighbours: np.ndarray[Any, Any]
    predicted: np.ndarray[Any, Any]
    share: np.ndarray[Any, Any]


def build_maps(
    encoders: Sequence[EvaluatedEncoder], titles: Sequence[str], request: MapRequest
) -> tuple[ListedImages, list[EncoderMap]]:
    """The images, with what the first run held out, and a map for each encoder, which reads them at its own size."""
    listed, features = list[ListedImages](), list[Features]()
    for evaluated in encoders:
        if evaluated.encoder.spec.name == "linear":
            raise BadInput(f"{request.data} holds vectors, and a map shows images; choose other data")
        as_trained = is_read_as_trained(evaluated, request.data, "margin")
        source = read_source(evaluated, spec_for(evaluated, request.data), "margin", as_trained=as_trained)
        listed.append(choose_images(evaluated, source, request))
        check_tsne(len(listed[-1].names))
        values = torch.cat([evaluated.features(split).values for split in listed[-1].splits.values()])
        features.append(Features(values, listed[0].labels))
    maps = []
    for evaluated, title, labelled in zip(encoders, titles, features, strict=True):
        matches = nearest_images(labelled.values, NEIGHBOURS, evaluated.options.device).rows.cpu().numpy()
        points = tsne_map(labelled, request.seed).astype(np.float32)
        predicted = predict_by_neighbours(labelled, len(listed[0].classes))
        maps.append(EncoderMap(title, points, matches, *predicted))
    return listed[0], maps


def nearest_images(values: Tensor, k: int, device: torch.device | str | None = None) -> Neighbours:
    """The k images with the most similar features (cosine) of each image, labelled or not, without itself."""
    everyone = Features(values, torch.zeros(len(values), dtype=torch.long))
    return neighbours(everyone, values, k, leave_one_out=True, device=device)


def predict_by_neighbours(features: Features, classes: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For each image the label that its nearest other labelled images vote for, and its share of their votes."""
    values, labels = features
    if int((labels >= 0).sum()) < 2:
        return np.full(len(labels), -1, np.int32), np.zeros(len(labels), np.float32)
    k = default_k(labels, leave_one_out=True)
    matches = neighbours(features, values, k, leave_one_out=True)
    votes = count_votes(matches, labels, k, TEMPERATURE, classes)
    most, predicted = votes.max(1)
    share = most / votes.sum(1)
    return predicted.cpu().numpy().astype(np.int32), share.cpu().numpy().astype(np.float32)


def choose_images(evaluated: EvaluatedEncoder, source: Source, request: MapRequest) -> ListedImages:
    """The images of the requested classes in all splits; beyond the limit, a random choice by the seed."""
    images = list_images(evaluated, source, request.data, request.data)
    rows = torch.arange(len(images.names))
    if request.classes:
        for name in request.classes:
            if name not in images.classes:
                raise BadInput(f"{request.data}: no class {name!r}{did_you_mean(name, images.classes)}")
        numbers = torch.tensor([images.classes.index(name) for name in request.classes])
        splits = with_leaf_labels(source).splits.values()
        every = torch.cat([split.all_labels.classes.cpu() for split in splits if len(split)])
        rows = rows[torch.isin(every, numbers).any(1)]
    if len(rows) > request.limit:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(request.seed))
        evaluated.warn_once(f"{request.data}: the map shows {request.limit:,} of {len(rows):,} images (limit)")
        rows = rows[order[: request.limit].sort().values]
    if len(rows) < 2:
        raise BadInput(f"{request.data}: images to show: {len(rows)}; a map needs at least two")
    return images.take(rows)


def name_encoders(encoders: Sequence[EvaluatedEncoder], titles: Sequence[str]) -> list[str]:
    """The requested titles, else the names of the run folders, or whole paths if two are equal."""
    names = [Path(evaluated.location).name or evaluated.location for evaluated in encoders]
    if len(set(names)) < len(names):
        names = [evaluated.location for evaluated in encoders]
    return [title or name for title, name in zip(titles, names, strict=True)]


def common_folder(names: Sequence[str]) -> str:
    """The folder that all names begin with, with its slash.

    >>> common_folder(["photos/cat/1.png", "photos/car/1.png"])
    'photos/'
    """
    first, last = min(names, default=""), max(names, default="")  # what these two begin with, all names between them do
    length = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[: first[:length].rfind("/") + 1]


# --- the page ---------------------------------------------------------------------------------------------------------


def map_page(images: ListedImages, maps: Sequence[EncoderMap]) -> str:
    """The page; at most 6 MB, or of many images 500 bytes each: thumbnails get the room that the rest leaves."""
    data, title = page_data(images, maps), f"{short_source(images.source)}: {len(images.names):,} images"
    body = BODY.format(title=html.escape(title), columns=min(3, len(maps)))
    content = {"map": data, "sprites": draw_sprites(images.splits.values(), data)}
    return html_page(title, [body], data=content, scripts=SCRIPTS, is_full=True)


def page_data(images: ListedImages, maps: Sequence[EncoderMap]) -> dict[str, Any]:
    """What map.js reads."""
    count, labels = len(images.names), images.labels.numpy()
    row_type = np.uint16 if count <= np.iinfo(np.uint16).max else np.uint32
    # a fixed shuffle: drawn class by class, the last class would hide the others; unlabelled images are below all
    shuffled = np.random.default_rng(0).permutation(count)
    order = shuffled[np.argsort(labels[shuffled] >= 0, kind="stable")]
    return {
        **images_data(images, range(count)),
        "colours": class_colours(len(images.classes)),
        "cells": images.cells,
        "order": pack_array(order.astype(row_type)),
        "encoders": [
            {
                "title": encoder_map.title,
                "points": pack_array(encoder_map.points.astype(np.float32)),
                "neighbours": pack_array(encoder_map.neighbours.astype(row_type)),
                "predicted": pack_array(encoder_map.predicted.astype(np.int16)),
                "share": pack_array(np.round(100 * encoder_map.share).astype(np.uint8)),
            }
            for encoder_map in maps
        ],
    }


def images_data(images: ListedImages, rows: Sequence[int]) -> dict[str, Any]:
    """What both pages read of these images; their paths are absolute, because a page may be saved anywhere."""
    names = [absolute_path(images.names[row]) if images.has_files else images.names[row] for row in rows]
    prefix, splits = common_folder(names), list(dict.fromkeys(images.split_names))
    return {
        "names": [name[len(prefix) :] for name in names],
        "prefix": prefix,
        "classes": list(images.classes),
        "hasFiles": images.has_files,
        "labels": pack_array(images.labels[list(rows)].numpy().astype(np.int32)),
        "splits": splits,
        "split_of": pack_array(np.array([splits.index(images.split_names[row]) for row in rows], np.uint8)),
    }


def class_colours(count: int) -> list[str]:
    """A colour per class: those of figures for ten classes, else hues that turn by the golden angle.

    >>> class_colours(2), len(set(class_colours(100)))
    (['#4477aa', '#ee6677'], 100)
    """
    colours = list(COLOURS[:count])
    for label in range(count) if count > len(COLOURS) else ():
        rgb = colorsys.hls_to_rgb(label * 0.618034 % 1, (0.42, 0.55, 0.68)[label % 3], 0.65)
        colours.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return colours[-count:] if count else []


# --- the audit --------------------------------------------------------------------------------------------------------

MOST_SUSPECTS = 2_000  # on the page; the tables have all
MOST_DUPLICATES = 1_000
MOST_OUTLIERS = 500
AUDIT_SCRIPTS = ("elements.js", "sprites.js", "audit.js")

AUDIT_BODY = """<nav id="tabs" class="audit-row" aria-label="What was found"></nav>
<div class="audit-row">
<input id="search" type="search" placeholder="Search names and classes" aria-label="Search names and classes">
<select id="class" aria-label="Class"><option value="">all classes</option></select>
<select id="show" aria-label="Show"></select>
</div>
<div class="audit-row audit-turn"><span id="shown" role="status"></span>
<button id="previous" type="button">Previous</button><span id="page" class="small"></span>
<button id="next" type="button">Next</button><span class="fill"></span>
<span id="decided" class="small" role="status"></span><button id="save" type="button">Save relabelled CSV</button></div>
<p id="keys" class="small"><kbd>&darr;</kbd> <kbd>&uarr;</kbd> move, <kbd>r</kbd> relabel, <kbd>k</kbd> keep the label,
<kbd>e</kbd> empty it, <kbd>u</kbd> undecided, <kbd>n</kbd> <kbd>p</kbd> next and previous page. A red frame marks a
neighbour with another label. A score is the evidence for the given label, from 0 to 1. {saved}</p>
<div id="list"></div>"""
SAVED = (
    "The CSV lists all images, with the labels as you leave them: <code>supancl pretrain --data relabelled.csv</code>",
    "The CSV lists the images that you decided on.",  # they are no files, so that it is no source
)


def audit_page(audit: Audit) -> str:
    """The page; thumbnails are as small as the number of images shown needs."""
    labels, split_names = audit.images.labels, audit.images.split_names

    def rank(pair: DuplicatePair) -> tuple[bool, bool, float]:
        first, second = pair.first, pair.second
        return bool(labels[first] == labels[second]), split_names[first] == split_names[second], pair.difference

    duplicates = sorted(audit.duplicates, key=rank)[:MOST_DUPLICATES]  # those that matter most first
    suspects, outliers = audit.suspects[:MOST_SUSPECTS], audit.outliers[:MOST_OUTLIERS]
    listed = [suspect.row for suspect in suspects] + [outlier.row for outlier in outliers]
    pairs = {row for pair in duplicates for row in pair[:2]}
    rows = sorted(pairs.union(listed, audit.neighbours[listed].flatten().tolist()))
    number = {row: i for i, row in enumerate(rows)}  # as they are on the page

    def entry(row: int, **more: Any) -> dict[str, Any]:
        return {"images": [number[row]], "neighbours": [number[i] for i in audit.neighbours[row].tolist()], **more}

    entries = {
        "suspects": [
            entry(s.row, suggested=s.suggested, value=s.score, suggestedScore=s.suggested_score) for s in suspects
        ],
        "duplicates": [
            {"images": [number[p.first], number[p.second]], "kind": p.kind, "value": round(p.difference, 1)}
            for p in duplicates
        ],
        "outliers": [entry(outlier.row, value=outlier.factor) for outlier in outliers],
    }
    images, data = audit.images, dict[str, Any]()
    for name, found in entries.items():
        data[name] = {"total": len(getattr(audit, name)), "entries": found}
    # those that are files follow: the saved table has them all
    rest = sorted(set(range(len(images.names))) - set(rows)) if images.has_files else []
    data |= images_data(images, [*rows, *rest])
    sprites = draw_sprites(images.take(torch.tensor(rows, dtype=torch.long)).splits.values(), data)
    title = f"Audit of {short_source(images.source)}: {len(images.names):,} images"
    share, *lines = (f"{line[0].upper()}{line[1:]}." for line in describe(audit.summary))
    found_list = f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"
    body = AUDIT_BODY.format(saved=SAVED[not images.has_files])
    banners, content = [Banner("unclear", "", share)], {"audit": data, "sprites": sprites}
    return html_page(title, [found_list, body], banners=banners, data=content, scripts=AUDIT_SCRIPTS)
