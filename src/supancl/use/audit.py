"""`audit`: tables and a page of labels that look wrong, duplicates and outliers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from supancl.data.sources.table import Correction, write_corrected
from supancl.data.views.evaluation import View
from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.files import (
    Output,
    escape_formula,
    make_folder,
    path_in_table,
    read_json,
    write_atomically,
    write_json,
)
from supancl.reporter import say, show
from supancl.reports.tables import Table
from supancl.use import EncoderArgument, EncoderOptions, check_above, open_encoders, run_source, write_csv

if TYPE_CHECKING:
    from supancl.evaluation.audit import Audit

PAGE, SUMMARY, MADE_BY = "audit.html", "audit.json", "supancl audit"
SUSPECTS = ("path", "label", "split", "suggested", "score", "suggested_score", "vote", "margin", "linear")
OTHER = ("other_path", "other_label", "other_split")
DUPLICATES = ("path", "label", "split", *OTHER, "kind", "difference", "labels_differ")
OUTLIERS = ("path", "label", "split", "factor")
SHOWN = 5  # suspects in the terminal


def audit(
    encoder: EncoderArgument,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    corrected: str | Path | None = None,
    lead: float = 0.65,
    k: int | None = None,
    seed: int = 0,
    view: View = "margin",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Find labels that look wrong, duplicates and outliers.

    Parameters
    ----------
    encoder
        a run folder, an encoder.safetensors, timm:NAME, NAME@FILE, or a checkpoint of another library
    data
        labelled images (default: the run's data)
    out
        the folder to write: tables and audit.html (default: audit in the run folder)
    corrected
        also copy a .csv source, without the labels that look wrong
    lead
        with corrected: by how much the suggested label's score must be higher
    k
        neighbours that vote (default: as for evaluate knn)
    seed
        of the folds
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer

    Returns
    -------
    dict
        the estimated share of wrong labels, counts, and the paths of what was written

    Examples
    --------
    $ supancl audit runs/photos
    $ supancl audit runs/photos --data labels.csv --corrected corrected.csv
    """
    require_single_process("an audit")
    started, (source, folder) = time.perf_counter(), run_source(encoder, data, out, "audit")
    Output(folder, replaces=is_audit).check()
    if not 0 <= lead <= 1:
        raise BadInput(f"lead = {lead:g}: must be from 0 (every suspect) to 1 (none)")
    check_above(seed, -1, "seed")
    if k is not None:
        check_above(k, 0, "k")
    given, copy = None if data is None else source, None
    if corrected is not None:
        copy = Output(Path(corrected), (".csv",), "corrected").check()
        if not source.lower().endswith(".csv"):
            raise BadInput(f"corrected {corrected}: copies a .csv source, and the data are {source}; leave it out")
    (evaluated,) = open_encoders(encoder, options, saves_results=False)
    from supancl.evaluation.audit import audit_labels, describe, has_label_noise
    from supancl.evaluation.data import spec_for
    from supancl.reports.map import audit_page
    from supancl.reports.page import write_page

    spec = spec_for(evaluated, given)
    if copy and (spec.joined or has_label_noise(evaluated, given)):
        raise BadInput(
            f"corrected {corrected}: the run's labels are not those of {source}; name a single .csv with data"
        )
    found = audit_labels(evaluated, given, k, seed, view)
    make_folder(folder)
    write_json(folder / SUMMARY, {"made_by": MADE_BY})  # first: a killed audit can be repeated
    write_tables(found, folder)
    write_page(folder / PAGE, audit_page(found))
    write_json(folder / SUMMARY, {"made_by": MADE_BY, **found.summary})
    result = {"out": str(folder), **found.summary, "seconds": round(time.perf_counter() - started, 2)}
    for line in describe(found):
        say(line)
    if found.suspects:
        show(suspect_table(found))
    if copy:
        changed = write_corrected_copy(found, copy, lead, spec.columns)
        result |= {"corrected": str(corrected), "changed": changed}
        say(f"{corrected}: labels left out: {changed} (scores differ by {lead:g} or more)")
    say(f"look at {folder / PAGE}")
    return result


def is_audit(folder: Path) -> bool:
    """Whether a folder is empty or holds an earlier audit."""
    return not any(folder.iterdir()) or read_json(folder / SUMMARY).get("made_by") == MADE_BY


def suspect_table(found: Audit) -> Table:
    """The most suspicious labels."""
    images = found.images
    rows = [
        (images.names[s.row][-40:], images.class_name(s.row), images.classes[s.suggested], f"{s.score:.3f}")
        for s in found.suspects[:SHOWN]
    ]
    return Table(("suspect", "label", "suggested", "score"), rows, align="lllr")


def write_tables(found: Audit, out: Path) -> None:
    """Write suspects.csv, duplicates.csv and outliers.csv."""
    images, folder = found.images, os.path.join(out.resolve(), "")

    def cells(row: int) -> tuple[str, str, str]:
        """Path, label and split of an image."""
        name = images.names[row]
        path = path_in_table(name, folder) if images.has_files else escape_formula(name)
        return path, escape_formula(images.class_name(row)), images.split_names[row]

    differ = {None: "", True: "yes", False: "no"}
    suggested = ((s, escape_formula(images.classes[s.suggested])) for s in found.suspects)
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[str]]]] = {
        "suspects": (SUSPECTS, ((*cells(s.row), name, *(f"{value:.4f}" for value in s[2:])) for s, name in suggested)),
        "duplicates": (
            DUPLICATES,
            (
                (*cells(p.first), *cells(p.second), p.kind, f"{p.difference:.2f}", differ[images.has_other_label(p)])
                for p in found.duplicates
            ),
        ),
        "outliers": (OUTLIERS, ((*cells(o.row), f"{o.factor:.2f}") for o in found.outliers)),
    }
    for name, (columns, rows) in tables.items():
        write_atomically(out / f"{name}.csv", partial(write_csv, columns=columns, rows=list(rows)))


def write_corrected_copy(found: Audit, out: Output, lead: float, columns: str = "") -> int:
    """Copy the .csv source without the labels of suspects whose suggestion leads by this; returns how many."""
    images, table, folder = found.images, Path(found.images.source).resolve(), out.path.parent.resolve()
    wrong = {suspect.row for suspect in found.suspects if suspect.leads_by(lead)}
    splits = (name for name, split in images.splits.items() for _ in range(len(split)))
    rows = enumerate(zip(images.names, splits, strict=True))
    corrections = [Correction(name, split, "" if row in wrong else None) for row, (name, split) in rows]
    new_path = None if folder == table.parent else partial(path_in_table, folder=os.path.join(folder, ""))
    changed: list[int] = []
    out.write(lambda temporary: changed.append(write_corrected(table, temporary, corrections, columns, new_path)))
    return changed[0]
