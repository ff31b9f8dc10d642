"""Legends of maps: as many columns as fit by measured widths, a wider sheet for many classes or long names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from supancl.reports.fonts import shorten, text_width

MAX_NAMED = 200  # classes; a sheet of more would be mostly legend
MAX_ROWS = 25  # before a sheet with one narrow map becomes wider
SYMBOL = 3.2  # the widths of a symbol and of the gap between columns, in units of the font size
MARGIN = 2.0  # left and right of a legend together, in the same unit

Entry = tuple[str, int | None]  # a text, and the label whose symbol precedes it


class Legend(NamedTuple):
    """The entries of a legend, column by column; its width in inches and the size of its type."""

    entries: list[Entry]
    columns: int
    width: float
    font: float

    @property
    def height(self) -> float:
        """In inches."""
        return self.font * 1.5 / 72 * math.ceil(len(self.entries) / self.columns)


def lay_out_legend(
    groups: Mapping[str, Sequence[int]], names: Mapping[int, str], room: tuple[float, float], font: float
) -> Legend:
    """The legend for a sheet of maps that is `room[0]` inches wide, and may be made `room[1]` wide.

    A named group starts a new column with its name (label None) and is padded with blanks. Names that do not fit even
    then lose their middle.
    """
    listed: list[list[Entry]] = [
        [(group, None)] * bool(group) + [(names[label], label) for label in labels] for group, labels in groups.items()
    ]
    count = sum(map(len, listed))
    if len(names) > MAX_NAMED:
        listed, count = [[(f"{len(names):,} classes, too many to name", None)]], 1
    if not count:
        return Legend([], 1, 0.0, font)
    texts = [text for group in listed for text, _ in group]
    measure = partial(text_width, size=font)
    column = max(map(measure, texts)) + SYMBOL * font
    usual, most = (max(1, int((72 * width - MARGIN * font) / column)) for width in room)
    columns = min(count, max(usual, min(most, math.ceil(count / MAX_ROWS))))
    if len(listed) > 1:
        listed, columns = _pad_groups(listed, max(columns, len(listed)))
    width = min(room[1], (columns * column + MARGIN * font) / 72)
    available = (72 * width - MARGIN * font) / columns - SYMBOL * font
    return Legend(
        [(shorten(text, available, measure), label) for group in listed for text, label in group], columns, width, font
    )


def _pad_groups(listed: list[list[Entry]], max_columns: int) -> tuple[list[list[Entry]], int]:
    """Fill up each group to whole columns; small groups have a column each."""
    min_rows = min(6, max(map(len, listed)))
    rows_per_column = next(
        rows for rows in range(min_rows, 1000) if sum(math.ceil(len(group) / rows) for group in listed) <= max_columns
    )
    padded = [group + [("", None)] * (-len(group) % rows_per_column) for group in listed]
    return padded, sum(map(len, padded)) // rows_per_column


def draw_legend(figure: Figure, legend: Legend, styles: Mapping[int, Mapping[str, Any]]) -> None:
    """Draw the legend below the maps; names of groups (label None) are bold."""
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            markeredgewidth=0,
            markersize=0.7 * legend.font,
            **(styles[label] if label is not None else {"marker": ""}),
        )
        for _, label in legend.entries
    ]
    artist = figure.legend(
        handles,
        [text for text, _ in legend.entries],
        loc="outside lower center",
        ncols=legend.columns,
        frameon=False,
        fontsize=legend.font,
        handletextpad=0.2,
        columnspacing=1.0,
    )
    for text, (_, label) in zip(artist.get_texts(), legend.entries, strict=True):
        text.set_fontweight("normal" if label is not None else "bold")
