"""The folder of `supancl audit`: three tables, a summary and a page; and a corrected copy of a .csv source."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supancl.data.sources.csv_correction import Correction, write_corrected
from supancl.errors import BadInput, plural
from supancl.files import (
    Output,
    check_writable,
    escape_formula,
    make_folder,
    make_writable,
    path_in_table,
    read_json,
    write_atomically,
    write_json,
)

if TYPE_CHECKING:  # it needs torch, which takes seconds, and the checks below do not
    from supancl.evaluation.audit import Audit, AuditedImages
    from supancl.probes.label_scores import WrongShare

SUMMARY = "audit.json"
PAGE = "audit.html"
MADE_BY = "supancl audit"
SUSPECT_COLUMNS = ("path", "label", "split", "suggested", "score", "suggested_score", "vote", "margin", "linear")
DUPLICATE_COLUMNS = (
    "path",
    "label",
    "split",
    "other_path",
    "other_label",
    "other_split",
    "kind",
    "difference",
    "labels_differ",
)
OUTLIER_COLUMNS = ("path", "label", "split", "factor")


def check_folder(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier audit, before the work."""
    check_writable(out)
    if out.exists() and any(out.iterdir()) and read_json(out / SUMMARY).get("made_by") != MADE_BY:
        raise BadInput(f"out {out}: is a folder with other files; choose another, or remove it")


def check_corrected(corrected: Path, *sources: str) -> Output:
    """Refuse a corrected copy of anything but one .csv, or one that would replace a file. No source: not known yet."""
    if len(sources) > 1:
        raise BadInput(f"corrected {corrected}: the data are {len(sources)} sources; name one .csv with data")
    if sources and not sources[0].lower().endswith(".csv"):
        raise BadInput(f"corrected {corrected}: copies a .csv source, and the data are {sources[0]}; leave it out")
    return Output(corrected, (".csv",), "corrected").check()


def write_audit_tables(audit: Audit, out: Path) -> None:
    """Write suspects.csv, duplicates.csv, outliers.csv and audit.json."""
    make_folder(out)
    images = audit.images
    describe = _describer(images, out)
    suspects = (
        (*describe(suspect.row), _cell(images.classes[suspect.suggested]), *_numbers(suspect[2:]))
        for suspect in audit.suspects
    )
    duplicates = (
        (*describe(pair.first), *describe(pair.second), pair.kind, f"{pair.difference:.2f}", _differ(images, *pair[:2]))
        for pair in audit.duplicates
    )
    outliers = ((*describe(outlier.row), f"{outlier.factor:.2f}") for outlier in audit.outliers)
    _write_csv(out / "suspects.csv", SUSPECT_COLUMNS, suspects)
    _write_csv(out / "duplicates.csv", DUPLICATE_COLUMNS, duplicates)
    _write_csv(out / "outliers.csv", OUTLIER_COLUMNS, outliers)
    write_json(out / SUMMARY, {"made_by": MADE_BY, **audit.summary})


def _describer(images: AuditedImages, out: Path) -> Callable[[int], tuple[str, str, str]]:
    """A function from a row to path, label and split, as cells."""
    folder = os.path.join(out.resolve(), "")

    def describe(row: int) -> tuple[str, str, str]:
        name = images.names[row]
        path = make_writable(path_in_table(name, folder)) if images.has_files else _cell(name)
        return path, _cell(images.class_name(row)), images.split_names[row]

    return describe


def _differ(images: AuditedImages, first: int, second: int) -> str:
    names = images.class_name(first), images.class_name(second)
    return "" if "" in names else "yes" if names[0] != names[1] else "no"


def _cell(text: str) -> str:
    return escape_formula(make_writable(text))


def _numbers(values: Iterable[float]) -> list[str]:
    return [f"{value:.4f}" for value in values]


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    def write(temporary: Path) -> None:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)

    write_atomically(path, write)


def write_corrected_copy(audit: Audit, out: Path, lead: float, columns: str = "") -> int:
    """Copy the .csv source with the labels of suspects replaced whose suggestion leads by this; returns how many."""
    images, table = audit.images, Path(audit.images.source)
    output = check_corrected(out, images.source)
    new_labels = {s.row: images.classes[s.suggested] for s in audit.suspects if s.suggested_score - s.score >= lead}
    raw_splits = [name for name, split in images.splits.items() for _ in range(len(split))]
    rows = enumerate(zip(images.names, raw_splits, strict=True))
    corrections = [Correction(name, split, new_labels.get(row)) for row, (name, split) in rows]
    folder = os.path.join(out.parent.resolve(), "")
    is_same_folder = out.parent.resolve() == table.parent.resolve()
    changed = 0

    def write(temporary: Path) -> None:
        nonlocal changed
        new_path = None if is_same_folder else lambda path: path_in_table(path, folder)
        changed = write_corrected(table, temporary, corrections, columns, new_path)

    output.write(write)
    return changed


# --- in words ---------------------------------------------------------------------------------------------------------


def trust_line(wrong: WrongShare | None, judged: int) -> str:
    """`about 4.1% [3.2, 5.0] of 5,000 labels look wrong`."""
    labels = plural(judged, "label", number_format=",")
    if wrong is None:
        return f"{labels}: too few to say what share is wrong"
    if not wrong.is_reliable:
        return (
            f"{labels}: the encoder does not separate their classes well enough to say what share is wrong, and the "
            "order of the suspects means little"
        )
    mean, low, high = wrong.percent
    return f"about {mean:.1f}% [{low:.1f}, {high:.1f}] of {labels} look wrong"


def describe_duplicates(summary: dict[str, Any]) -> str:
    """`43 pairs of duplicates (0 with the same pixels, 23 across splits, 0 with different labels)`; empty if none."""
    if not summary["duplicates"]:
        return ""
    same, splits, labels = (summary[key] for key in ("same_pixels", "across_splits", "duplicates_with_other_labels"))
    counts = f"{same:,} with the same pixels, {splits:,} across splits, {labels:,} with different labels"
    return f"{plural(summary['duplicates'], 'pair', number_format=',')} of duplicates ({counts})"


def cautions(summary: dict[str, Any]) -> list[str]:
    """What to know before believing the share and the list."""
    lines = []
    if summary["with_label_noise"]:
        lines.append("these are the labels that the run was trained on, with those that data.label_noise made wrong")
    wrong = summary["wrong_percent"]
    if summary["trained_on_these_labels"]:
        learned = "the encoder was trained with labels of these images and may have learned wrong ones"
        lines.append(learned if wrong is None else f"{learned}: more may be wrong than this says")
    if summary["agreement"] is None and 2 * summary["suspects"] > summary["judged"]:
        lines.append(
            f"{summary['suspects']:,} of {summary['judged']:,} labels are suspects: unless most of them are wrong, the "
            "encoder does not separate the classes, and the order of the suspects means little"
        )
    if wrong is not None and summary["suspects"] > 2 * wrong / 100 * summary["judged"] + 5:
        lines.append("more labels are suspects than look wrong: hard images are among them, the worst come first")
    return lines
