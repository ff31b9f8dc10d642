"""Source: a `.csv` with the columns path, label and, optionally, split."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from pathlib import Path

from supancl.data.splits import NO_LABEL, SPLIT_NAMES, Listing
from supancl.errors import BadInput, plural
from supancl.files import open_regular


def list_csv(path: Path, skip_bad: bool = False) -> Listing:
    """List the images of a table; relative paths start at the table's folder."""
    entries = []
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            names = Counter(rows.fieldnames or ())
            missing = {"path", "label"} - set(names)
            if missing:
                header = ", ".join(rows.fieldnames or ()) or "nothing"
                raise BadInput(
                    f"{path}: no column {sorted(missing)[0]!r}; the first line has {header}; write path,label[,split]"
                )
            repeated = next((name for name in ("path", "label", "split") if names[name] > 1), None)
            if repeated is not None:
                raise BadInput(f"{path}: {names[repeated]} columns are called {repeated!r}; keep one of them")
            for row in rows:
                if any(row.get(None) or ()):  # values beyond the last column: a label 'cat, grey' would become 'cat'
                    raise BadInput(
                        f"{path} line {rows.line_num}: more values than the {len(rows.fieldnames or ())} "
                        "columns of the first line; put values with a comma in double quotes"
                    )
                entries.append(_parse_row(row, path, rows.line_num, skip_bad))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: not a csv file in UTF-8 ({error}); save it in that encoding") from None
    if not entries:
        raise BadInput(f"{path}: no image is listed; write a line path,label[,split] for each, below the first")
    if not any(split == "train" for split, _, _ in entries):
        raise BadInput(f"{path}: no row has split 'train'; give it to some rows, or remove the column")
    remarks: list[str] = []
    duplicates = [file for file, count in Counter(os.path.abspath(file) for _, file, _ in entries).items() if count > 1]
    if duplicates:
        remarks.append(
            f"{path}: {plural(len(duplicates), 'file is', 'files are')} listed more than once, such as "
            f"{duplicates[0]}; a file that is both trained on and held out makes evaluation meaningless"
        )
    return Listing(entries, path.parent, tuple(remarks))


def _parse_row(row: dict[str, str | None], table: Path, line: int, skip_bad: bool) -> tuple[str, Path, str]:
    if any(
        "\n" in (value or "") for value in (row["path"], row["label"])
    ):  # an open quote has swallowed the next lines
        raise BadInput(
            f"{table}, up to line {line}: a value spans several lines; close its double quote, and "
            "double the quotes inside it"
        )
    if not row["path"]:
        raise BadInput(f"{table} line {line}: no path; write path,label[,split]")
    file = table.parent / row["path"]
    if not skip_bad and not file.is_file():  # else it is listed as unreadable
        raise BadInput(
            f"{table} line {line}: no file {row['path']!r} (looked in {table.parent}); correct the path, "
            "remove the line, or pass --skip-bad-images"
        )
    split = (row.get("split") or "train").strip().lower()
    if split not in SPLIT_NAMES:
        raise BadInput(f"{table} line {line}: split {split!r} is unknown; use train, val or test")
    label = (row["label"] or "").strip()
    return SPLIT_NAMES[split], file, "" if label in NO_LABEL else label
