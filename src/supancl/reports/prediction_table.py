"""The table of `supancl predict`: a .csv that spreadsheets show and that is a source of images itself."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING

from supancl.errors import BadInput
from supancl.files import (
    check_is_new,
    check_writable,
    escape_formula,
    make_folder,
    make_writable,
    path_in_table,
    write_atomically,
)

if TYPE_CHECKING:  # it needs torch, which takes seconds, and `check_table` does not
    from supancl.evaluation.predicting import Predictions

COLUMNS = ("path", "label", "confidence", "unlike", "source", "split")


def check_table(out: Path, flag: str = "out") -> None:
    """Refuse a table that cannot be written, before the work. `flag` is what the user named it with."""
    if out.suffix.lower() != ".csv":
        raise BadInput(f"{flag} {out}: must end in .csv")
    check_is_new(out, flag)
    check_writable(out.parent)


def write_predictions(predictions: Predictions, out: Path) -> int:
    """Write the table; returns how many names could not be written as they are."""
    check_table(out)
    folder, changed = os.path.join(out.parent.resolve(), ""), 0

    def write(temporary: Path) -> None:
        nonlocal changed
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for path, label, confidence, unlike, split in predictions.rows():
                name = path_in_table(path, folder) if predictions.has_files else escape_formula(path)
                readable = make_writable(name)
                changed += readable != name
                numbers = ("", "") if confidence is None else (f"{confidence:.4f}", "yes" if unlike else "no")
                source = "given" if confidence is None else "predicted"
                writer.writerow((readable, escape_formula(make_writable(label)), *numbers, source, split))

    make_folder(out.parent)
    write_atomically(out, write)
    return changed
