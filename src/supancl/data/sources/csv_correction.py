"""A copy of a .csv source with some labels replaced."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from supancl.data.sources.csv_table import _checked_split, _fit_row, find_columns, parse_columns
from supancl.errors import BadInput
from supancl.files import escape_formula, open_regular

CHANGED_FROM = "changed_from"


class Correction(NamedTuple):
    """An image of a table and its label: a new one, or None to keep the given one."""

    path: str
    split: str  # train, val or test
    label: str | None


def write_corrected(
    table: Path,
    out: Path,
    corrections: Iterable[Correction],
    column_names: str = "",
    new_path: Callable[[str], str] | None = None,
) -> int:
    """Copy the table with the new labels; column `changed_from` has the old label where it changed.

    `corrections` are in the order of the table, one per line that was read, so that a file that is listed twice keeps
    its two labels. Relative paths are passed through `new_path`. Returns how many labels changed.
    """
    new_labels: dict[tuple[str, str], list[str | None]] = defaultdict(list)
    for path, split, label in corrections:
        new_labels[_key(path), split].append(label)
    changed = 0
    with (
        io.TextIOWrapper(open_regular(table), encoding="utf-8-sig", newline="") as source,
        open(out, "w", encoding="utf-8", newline="") as file,
    ):
        rows, writer = csv.reader(source), csv.writer(file, lineterminator="\n")
        header: list[str] = next(rows, [])
        layout = find_columns(header, table, parse_columns(column_names))
        if layout.classes:
            raise BadInput(f"{table}: has one column per class; give a table with one column of labels to correct")
        path_at, label_at, split_at = layout.path, layout.labels[0], layout.split
        if CHANGED_FROM in header:
            raise BadInput(f"{table}: has a column {CHANGED_FROM} already; rename it, or correct the original table")
        writer.writerow([*header, CHANGED_FROM])
        for row in rows:
            if not row:
                continue
            row = _fit_row(row, len(header), table, rows.line_num)
            split = row[split_at] if split_at is not None else ""
            split = _checked_split(split, table, rows.line_num) if split else "train"
            waiting = new_labels.get((_key(os.path.join(table.parent, row[path_at])), split))
            label = waiting.pop(0) if waiting else None
            old = ""
            if label is not None:
                old, row[label_at] = row[label_at], escape_formula(label)
                changed += 1
            if new_path is not None and not os.path.isabs(row[path_at]):
                row[path_at] = new_path(os.path.join(table.parent, row[path_at]))
            writer.writerow([*row, old])
    return changed


def _key(path: str) -> str:
    return os.path.abspath(path)
