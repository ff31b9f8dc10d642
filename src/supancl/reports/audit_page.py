"""The page of `supancl audit`: one HTML file with suspects beside their neighbours, duplicates and outliers."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from supancl.data.splits import Split
from supancl.errors import plural
from supancl.evaluation.audit import Audit, describe
from supancl.evaluation.duplicates import DuplicatePair
from supancl.files import absolute_path
from supancl.reports.maps import common_folder
from supancl.reports.page import html_page, short_source
from supancl.reports.sprites import draw_sprites, pack_array, thumbnail_bytes

MOST_SUSPECTS = 2_000  # on the page; the tables have all
MOST_DUPLICATES = 1_000
MOST_OUTLIERS = 500
SCRIPTS = ("elements.js", "sprites.js", "audit.js")

BODY = """<p class="answer">{answer}</p>
{remarks}<p class="small">{about}</p>
<nav id="tabs" class="audit-row" aria-label="What was found"></nav>
<div class="audit-row">
<input id="search" type="search" placeholder="Search names and classes" aria-label="Search names and classes">
<select id="class" aria-label="Class"><option value="">all classes</option></select>
<select id="split" aria-label="Split"><option value="">all splits</option></select>
<select id="show" aria-label="Show"></select>
<select id="order" aria-label="Order"></select>
</div>
<div class="audit-row audit-turn"><span id="shown" role="status"></span>
<button id="previous" type="button">Previous</button><span id="page" class="small"></span>
<button id="next" type="button">Next</button><span class="fill"></span>
<span id="decided" class="small" role="status"></span><button id="save" type="button">Save decisions</button></div>
<p id="keys" class="small"><kbd>&darr;</kbd> <kbd>&uarr;</kbd> move, <kbd>w</kbd> the label is wrong, <kbd>r</kbd> it is
right, <kbd>u</kbd> undecided, <kbd>n</kbd> <kbd>p</kbd> next and previous page. Neighbours are the most similar images
by the encoder's features, the nearest first; a red frame marks another label than the given one.</p>
<div id="list"></div>"""

ABOUT = "A score is the evidence for the given label, from 0 (nothing speaks for it) to 1. "
ABOUT_SHARE = (
    "The share above, in brackets its 95% interval, is counted where the classifiers are most certain. It assumes that "
    "easy images are mislabelled as often as hard ones. "
)
ABOUT_ALL = "Nothing here replaces a look at the image."


def audit_page(audit: Audit) -> str:
    """The page; thumbnails are as small as the number of images shown needs."""
    rows = shown_rows(audit)
    data = page_data(audit, rows)
    splits = take_rows(audit.images.splits.values(), rows)
    sprites = draw_sprites(splits, thumbnail_bytes(max(1, len(rows)), data))
    count = plural(len(audit.images.names), "image", number_format=",")
    title = f"Audit of {short_source(audit.images.source)}: {count}"
    answer, *remarks = (f"{line[0].upper()}{line[1:]}." for line in describe(audit))
    body = BODY.format(
        answer=html.escape(answer),
        remarks="".join(f"<p>{html.escape(line)}</p>\n" for line in remarks),
        about=html.escape(ABOUT + ABOUT_SHARE * (audit.summary["wrong_percent"] is not None) + ABOUT_ALL),
    )
    return html_page(title, [body], data={"audit": data, "sprites": sprites.to_page()}, scripts=SCRIPTS)


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
    """What audit.js reads; images are numbered as they are on the page."""
    images, number = audit.images, {row: i for i, row in enumerate(rows)}
    suspects, outliers = audit.suspects[:MOST_SUSPECTS], audit.outliers[:MOST_OUTLIERS]
    names = [absolute_path(images.names[row]) if images.has_files else images.names[row] for row in rows]
    prefix = common_folder(names) if names else ""
    splits = list(dict.fromkeys(images.split_names))

    def numbers(values: Iterable[int]) -> dict[str, str]:
        return pack_array(np.array([number[row] for row in values], np.uint32))

    def neighbours(values: list[int]) -> dict[str, str]:
        return numbers(audit.neighbours[values].flatten().tolist())

    return {
        "names": [name[len(prefix) :] for name in names],
        "prefix": prefix,
        "classes": list(images.classes),
        "labels": pack_array(images.labels[rows].numpy().astype(np.int32)),
        "splits": splits,
        "split_of": pack_array(np.array([splits.index(images.split_names[row]) for row in rows], np.uint8)),
        "neighbours": int(audit.neighbours.shape[1]),
        "suspects": {
            "total": len(audit.suspects),
            "image": numbers(suspect.row for suspect in suspects),
            "neighbours": neighbours([suspect.row for suspect in suspects]),
            "suggested": pack_array(np.array([suspect.suggested for suspect in suspects], np.int32)),
            "score": pack_array(np.array([suspect.score for suspect in suspects], np.float32)),
            "suggestedScore": pack_array(np.array([suspect.suggested_score for suspect in suspects], np.float32)),
        },
        "duplicates": {
            "total": len(audit.duplicates),
            "pairs": [
                [number[pair.first], number[pair.second], pair.kind, round(pair.difference, 1)]
                for pair in shown_duplicates(audit)
            ],
        },
        "outliers": {
            "total": len(audit.outliers),
            "image": numbers(outlier.row for outlier in outliers),
            "neighbours": neighbours([outlier.row for outlier in outliers]),
            "factor": pack_array(np.array([outlier.factor for outlier in outliers], np.float32)),
        },
    }
