"""The table of `supancl predict`: a .csv that spreadsheets show and that is a source of images itself."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING

from supancl.files import Output, escape_formula, make_writable, path_in_table

if TYPE_CHECKING:  # it needs torch, which takes seconds
    from supancl.evaluation.predicting import Predictions

COLUMNS = ("path", "label", "confidence", "unlike", "source", "split")


def write_predictions(predictions: Predictions, out: Output) -> int:
    """Write the table, images unlike anything seen first; returns how many names could not be written as they are."""
    folder, changed = os.path.join(out.path.parent.resolve(), ""), 0

    def write(temporary: Path) -> None:
        nonlocal changed
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for path, label, confidence, unlike, split in sorted(predictions.rows(), key=lambda row: not row.unlike):
                name = path_in_table(path, folder) if predictions.has_files else escape_formula(path)
                readable = make_writable(name)
                changed += readable != name
                numbers = ("", "") if confidence is None else (f"{confidence:.4f}", "yes" if unlike else "no")
                source = "given" if confidence is None else "predicted"
                writer.writerow((readable, escape_formula(make_writable(label)), *numbers, source, split))

    out.write(write)
    return changed
