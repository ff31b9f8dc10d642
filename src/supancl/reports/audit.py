"""The page of `supancl audit`: one HTML file with suspects beside their neighbours, duplicates and outliers."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from supancl.data.splits import Split
from supancl.evaluation.audit import Audit, describe
from supancl.evaluation.duplicates import DuplicatePair
from supancl.files import absolute_path
from supancl.reports.map import common_folder
from supancl.reports.page import Banner, html_page, short_source
from supancl.reports.sprites import draw_sprites, pack_array, thumbnail_bytes

MOST_SUSPECTS = 2_000  # on the page; the tables have all
MOST_DUPLICATES = 1_000
MOST_OUTLIERS = 500
SCRIPTS = ("elements.js", "sprites.js", "audit.js")

BODY = """<nav id="tabs" class="audit-row" aria-label="What was found"></nav>
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
    rows = shown_rows(audit)
    data = page_data(audit, rows)
    splits = take_rows(audit.images.splits.values(), rows)
    sprites = draw_sprites(splits, thumbnail_bytes(max(1, len(rows)), data))
    title = f"Audit of {short_source(audit.images.source)}: {len(audit.images.names):,} images"
    share, *lines = (f"{line[0].upper()}{line[1:]}." for line in describe(audit))
    found = f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"
    body = BODY.format(saved=SAVED[not audit.images.has_files])
    banners = [Banner("unclear", "", share)]
    content = {"audit": data, "sprites": sprites.to_page()}
    return html_page(title, [found, body], banners=banners, data=content, scripts=SCRIPTS)


def shown_duplicates(audit: Audit) -> list[DuplicatePair]:
    """The pairs on the page: those that matter most first, should there be too many."""
    labels, splits = audit.images.labels, audit.images.split_names

    def rank(pair: DuplicatePair) -> tuple[bool, bool, float]:
        first, second = pair.first, pair.second
        return bool(labels[first] == labels[second]), splits[first] == splits[second], pair.difference

    return sorted(audit.duplicates, key=rank)[:MOST_DUPLICATES]


def shown_rows(audit: Audit) -> list[int]:
    """The rows of all images on the page, in order."""
    rows = {row for pair in shown_duplicates(audit) for row in pair[:2]}
    listed = [suspect.row for suspect in audit.suspects[:MOST_SUSPECTS]]
    listed += [outlier.row for outlier in audit.outliers[:MOST_OUTLIERS]]
    return sorted(rows.union(listed, audit.neighbours[listed].flatten().tolist()))


def take_rows(splits: Iterable[Split], rows: list[int]) -> list[Split]:
    """The images at these rows, which count through the splits and ascend."""
    positions, shown_splits, start = torch.tensor(rows, dtype=torch.long), [], 0
    for split in splits:
        inside = positions[(positions >= start) & (positions < start + len(split))] - start
        if len(inside):
            shown_splits.append(split.take(inside.to(split.index.device)))
        start += len(split)
    return shown_splits


def page_data(audit: Audit, rows: list[int]) -> dict[str, Any]:
    """What audit.js reads; images are numbered as they are on the page, and those that are files follow without one."""
    images = audit.images
    rest = sorted(set(range(len(images.names))) - set(rows)) if images.has_files else []
    listed, number = [*rows, *rest], {row: i for i, row in enumerate(rows)}
    suspects, outliers = audit.suspects[:MOST_SUSPECTS], audit.outliers[:MOST_OUTLIERS]
    names = [absolute_path(images.names[row]) if images.has_files else images.names[row] for row in listed]
    prefix = common_folder(names) if names else ""
    splits = list(dict.fromkeys(images.split_names))

    def entry(row: int, **more: Any) -> dict[str, Any]:
        return {"images": [number[row]], "neighbours": [number[i] for i in audit.neighbours[row].tolist()], **more}

    return {
        "names": [name[len(prefix) :] for name in names],
        "prefix": prefix,
        "classes": list(images.classes),
        "hasFiles": images.has_files,
        "labels": pack_array(images.labels[listed].numpy().astype(np.int32)),
        "splits": splits,
        "split_of": pack_array(np.array([splits.index(images.split_names[row]) for row in listed], np.uint8)),
        "suspects": {
            "total": len(audit.suspects),
            "entries": [
                entry(s.row, suggested=s.suggested, value=s.score, suggestedScore=s.suggested_score) for s in suspects
            ],
        },
        "duplicates": {
            "total": len(audit.duplicates),
            "entries": [
                {"images": [number[p.first], number[p.second]], "kind": p.kind, "value": round(p.difference, 1)}
                for p in shown_duplicates(audit)
            ],
        },
        "outliers": {
            "total": len(audit.outliers),
            "entries": [entry(outlier.row, value=outlier.factor) for outlier in outliers],
        },
    }
