"""`map`, `report` and `audit`: pages to look at, made from a run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from supancl.config import Count, Natural, checked
from supancl.data.sources.table import copy_without_labels
from supancl.data.views.render import View
from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.files import (
    Output,
    did_you_mean_path,
    escape_formula,
    make_folder,
    path_in_table,
    read_json,
    write_atomically,
    write_json,
)
from supancl.reporter import say, track
from supancl.reports.page import page_output, picture_output
from supancl.runs.folder import find_runs
from supancl.use import EncoderArgument, EncoderOptions, open_encoders, run_source, write_csv

if TYPE_CHECKING:
    from supancl.evaluation.audit import Audit
    from supancl.training.run import Run

REPORT_PAGE = "report.html"


# --- map --------------------------------------------------------------------------------------------------------------


def map(
    *encoders: EncoderArgument,
    data: str | Path | None = None,
    out: str | Path | None = None,
    static: str | Path | None = None,
    classes: str | None = None,
    limit: int = 100_000,
    seed: int = 0,
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Write a page with a zoomable map of images by their features.

    Parameters
    ----------
    encoders
        [TITLE=]RUN, one map each, side by side: run folders, encoder.safetensors, timm:NAME, NAME@FILE
    data
        the images (default: the run's data)
    out
        the page to write (default: map.html in the run folder)
    static
        draw the maps as a .png, .svg or .pdf instead of writing the page
    classes
        class names a,b, or a file with one per line (default: all)
    limit
        images at most, chosen at random
    seed
        of the choice of images and of t-SNE

    Returns
    -------
    dict
        the path of the page, and how many images and classes it shows

    Examples
    --------
    $ supancl map runs/photos
    $ supancl map timm:resnet18 runs/photos --data photos --out map.html
    """
    require_single_process("a map")
    if not encoders:
        raise BadInput("name a run or an encoder to map")
    started, (titles, named) = time.perf_counter(), zip(*(split_title(encoder) for encoder in encoders), strict=True)
    source, page = run_source(named[0], data, static or out, "map.html")
    (page_output(page) if static is None else picture_output(page, "static")).check()
    checked(limit, Count, "limit")
    checked(seed, Natural, "seed")
    opened = open_encoders(list(named), options, saves_results=False)
    from supancl.reports.map import MapRequest, build_maps, map_page, name_encoders
    from supancl.reports.page import write_page
    from supancl.reports.pictures import Panel, draw_panels

    request = MapRequest(source, listed_classes(classes), limit, seed)
    images, maps = build_maps(opened, name_encoders(opened, titles), request)
    make_folder(page.parent)
    if static:
        panels = [Panel(encoder_map.title, encoder_map.points, images.labels.numpy()) for encoder_map in maps]
        draw_panels(panels, images.classes, page)
    else:
        write_page(page, map_page(images, maps))
    size = page.stat().st_size
    say(f"{page}: images: {len(images.names):,}, encoders: {len(maps)}, {size / 1e6:.1f} MB")
    return {
        "out": str(page),
        "data": source,
        "encoders": [evaluated.location for evaluated in opened],
        "titles": [encoder_map.title for encoder_map in maps],
        "images": len(images.names),
        "classes": len(set(images.labels.tolist()) - {-1}),
        "seed": seed,
        "bytes": size,
        "seconds": round(time.perf_counter() - started, 2),
    }


def split_title(encoder: Any) -> tuple[str, Any]:
    """Split TITLE=RUN; a path that exists has no title, even with an equals sign.

    >>> split_title("alpha = 0=runs/a"), split_title("runs/a")
    (('alpha = 0', 'runs/a'), ('', 'runs/a'))
    """
    title, equals, path = encoder.rpartition("=") if isinstance(encoder, str) else ("", "", encoder)
    return ("", encoder) if not equals or Path(encoder).exists() else (title.strip(), path)


def listed_classes(classes: str | None) -> list[str]:
    """The class names of a,b or of a file with one per line; empty for None."""
    if classes is None:
        return []
    is_file = os.path.isfile(classes)  # False for names that are too long for a path
    words = Path(classes).read_text(encoding="utf-8").splitlines() if is_file else classes.split(",")
    if not (names := [word.strip() for word in words if word.strip()]):
        raise BadInput(f"classes {classes}: no class name in it; give names or a file with one per line")
    return names


# --- report -----------------------------------------------------------------------------------------------------------


def report(*runs: Run | str | Path, out: str | Path | None = None, no_data: bool = False) -> dict[str, Any]:
    """Write one page on one or several runs: verdict, curves, results.

    Parameters
    ----------
    runs
        run folders, or folders that hold runs
    out
        the page (default: report.html in the run folder; of several runs, in this folder)
    no_data
        leave the data closed: no predictions

    Returns
    -------
    dict
        the path of the page, and a verdict for each run

    Examples
    --------
    $ supancl report runs/photos
    $ supancl report runs --out report.html
    """
    if not runs:
        raise BadInput("name a run folder, or a folder that holds runs")
    named = [Path(str(getattr(run, "folder", run))) for run in runs]
    folders = list(dict.fromkeys(path for name in named for path in find_named_runs(name)))
    page = Path(out) if out else (folders[0] if len(folders) == 1 else Path()) / REPORT_PAGE
    page_output(page).check()
    from supancl.reports.page import write_page
    from supancl.reports.report import name_runs, open_answers, report_page
    from supancl.reports.verdict import RunRecord, find_verdict

    records = {name: RunRecord(path) for name, path in track(name_runs(folders).items(), "reading runs")}
    to_open = () if no_data else track(records.items(), "predictions of runs")
    answers = {name: open_answers(record) for name, record in to_open}
    make_folder(page.parent)
    write_page(page, report_page(records, answers))
    rows = []
    for name, record in records.items():
        verdict = find_verdict(record)
        say(f"{name}: {verdict.sentence}")
        rows.append({"run": str(record.path), **verdict._asdict(), "verdict": verdict.sentence})
    say(f"report: {page}")
    return {"report": str(page), "runs": rows}


def find_named_runs(path: Path) -> list[Path]:
    """The run in this folder, or those below it; detectors have no report."""
    runs = [run for run in find_runs(path) if not (run / "detect.json").exists()] if path.is_dir() else []
    if not runs:
        raise BadInput(f"no run of supancl pretrain in {path}{did_you_mean_path(path)}; supancl runs lists yours")
    return [path] if path in runs else runs


# --- audit ------------------------------------------------------------------------------------------------------------

PAGE, SUMMARY, MADE_BY = "audit.html", "audit.json", "supancl audit"
SUSPECTS = ("path", "label", "split", "suggested", "score", "suggested_score", "vote", "margin", "linear")
OTHER = ("other_path", "other_label", "other_split")
DUPLICATES = ("path", "label", "split", *OTHER, "kind", "difference", "labels_differ")
OUTLIERS = ("path", "label", "split", "factor")


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
    checked(seed, Natural, "seed")
    if k is not None:
        checked(k, Count, "k")
    given, copy = None if data is None else source, None
    if corrected is not None:
        copy = Output(Path(corrected), (".csv",), "corrected").check()
        if not source.lower().endswith(".csv"):
            raise BadInput(f"corrected {corrected}: copies a .csv source, and the data are {source}; leave it out")
    (evaluated,) = open_encoders(encoder, options, saves_results=False)
    from supancl.evaluation.audit import audit_labels, describe
    from supancl.evaluation.data import spec_for
    from supancl.reports.map import audit_page
    from supancl.reports.page import write_page

    spec = spec_for(evaluated, given)
    if copy and spec.joined:
        raise BadInput(f"corrected {corrected}: the run has several sources; name one .csv with data")
    found = audit_labels(evaluated, given, k, seed, view)
    make_folder(folder)
    write_json(folder / SUMMARY, {"made_by": MADE_BY, **found.summary})  # first: a killed audit can be repeated
    write_tables(found, folder)
    write_page(folder / PAGE, audit_page(found))
    result = {"out": str(folder), **found.summary, "seconds": round(time.perf_counter() - started, 2)}
    for line in describe(found.summary):
        say(line)
    if copy:
        images, source_table, place = found.images, Path(found.images.source).resolve(), copy.path.parent.resolve()
        wrong = {images.key(suspect.row) for suspect in found.suspects if suspect.leads_by(lead)}
        new_path = None if place == source_table.parent else partial(path_in_table, folder=os.path.join(place, ""))
        changed: list[int] = []
        copy.write(lambda to: changed.append(copy_without_labels(source_table, to, wrong, spec.columns, new_path)))
        result |= {"corrected": str(corrected), "changed": changed[0]}
        say(f"{corrected}: labels left out: {changed[0]} (scores differ by {lead:g} or more)")
    say(f"look at {folder / PAGE}")
    return result


def is_audit(folder: Path) -> bool:
    """Whether a folder is empty or holds an earlier audit."""
    return not any(folder.iterdir()) or read_json(folder / SUMMARY).get("made_by") == MADE_BY


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
