"""`map`, `audit` and `report`: pages to look at, made from a run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from supancl.data.opening import check_source
from supancl.data.views.evaluation import View
from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.files import check_writable, did_you_mean_path, make_folder
from supancl.reporter import say, show, track
from supancl.reports.audit_files import PAGE as AUDIT_PAGE
from supancl.reports.audit_files import check_corrected, check_folder
from supancl.reports.page import check_page_place, check_picture_place
from supancl.reports.tables import Table
from supancl.runs.listing import find_runs
from supancl.use.evaluate import EncoderArgument, EncoderOptions, check_above, open_encoders, run_source

if TYPE_CHECKING:
    from supancl.evaluation.audit import Audit
    from supancl.reports.run_record import RunRecord
    from supancl.reports.samples import Samples
    from supancl.training.run import Run

PICTURES = (".png", ".svg", ".pdf")
REPORT_PAGE = "report.html"
LEAST_LEAD = 0.65  # of 20% wrong labels of CIFAR-100, 92 to 94% of those it replaced were wrong: docs/audit.md
SHOWN = 5  # suspects in the terminal


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
    if static is None:
        check_suffix(page, (".html",))
        check_page_place(page)
    else:
        check_suffix(page, PICTURES)
        check_picture_place(page, "static")
    check_writable(page.parent)
    check_above(limit, 1, "limit")
    check_above(seed, -1, "seed")
    if "@" not in source:
        check_source(source)
    opened = open_encoders(list(named), options, saves_results=False)
    from supancl.reports.map import MapRequest, build_maps, map_page, name_encoders, to_panels
    from supancl.reports.page import write_page
    from supancl.reports.pictures import draw_panels

    request = MapRequest(source, listed_classes(classes), limit, seed)
    images, maps = build_maps(opened, name_encoders(opened, titles), request)
    make_folder(page.parent)
    if static:
        draw_panels(to_panels(images, maps), images.classes, page)
    else:
        write_page(page, map_page(source, images, maps))
    size = page.stat().st_size
    say(f"{page}: images: {len(images.names):,}, encoders: {len(maps)}, {size / 1e6:.1f} MB")
    return {
        "out": str(page),
        "data": source,
        "encoders": [evaluated.location for evaluated in opened],
        "titles": [encoder_map.title for encoder_map in maps],
        "images": len(images.names),
        "classes": len(set(images.class_numbers().flatten().tolist()) - {-1}),
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


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    if path.suffix.lower() not in suffixes:
        raise BadInput(f"{path}: must end in {', '.join(suffixes)}")
    if path.is_dir():
        raise BadInput(f"{path}: is a folder; give a file")


def listed_classes(classes: str | None) -> list[str]:
    """The class names of a,b or of a file with one per line; empty for None."""
    if classes is None:
        return []
    is_file = os.path.isfile(classes)  # False for names that are too long for a path
    words = Path(classes).read_text(encoding="utf-8").splitlines() if is_file else classes.split(",")
    if not (names := [word.strip() for word in words if word.strip()]):
        raise BadInput(f"classes {classes}: no class name in it; give names or a file with one per line")
    return names


# --- audit ------------------------------------------------------------------------------------------------------------


def audit(
    encoder: EncoderArgument,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    corrected: str | Path | None = None,
    lead: float | None = None,
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
        also copy a .csv source, with labels replaced
    lead
        with corrected: by how much the suggested label's score must be higher (default 0.65)
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
    if folder.is_file():
        raise BadInput(f"{folder}: is a file; give a folder")
    check_folder(folder)
    if lead is not None and corrected is None:
        raise BadInput(f"lead = {lead:g}: says which labels corrected replaces; name a file with corrected")
    least_lead = LEAST_LEAD if lead is None else lead
    if not 0 <= least_lead <= 1:
        raise BadInput(f"lead = {least_lead:g}: must be from 0 (every suspect is replaced) to 1 (none is)")
    check_above(seed, -1, "seed")
    if k is not None:
        check_above(k, 0, "k")
    if "@" not in source:
        check_source(source)
    given = None if data is None else source
    if corrected is not None:
        check_corrected(Path(corrected), source)
    (evaluated,) = open_encoders(encoder, options, saves_results=False)
    from supancl.evaluation.audit import AuditSettings, audit_labels, has_label_noise
    from supancl.evaluation.sources import spec_for
    from supancl.reports.audit_files import (
        cautions,
        describe_duplicates,
        trust_line,
        write_audit_tables,
        write_corrected_copy,
    )
    from supancl.reports.audit_page import audit_page
    from supancl.reports.page import write_page

    spec = spec_for(evaluated, given)
    if corrected is not None and has_label_noise(evaluated, given):
        raise BadInput(
            f"corrected {corrected}: {evaluated.location} was trained with data.label_noise, so the judged labels are "
            f"not those of {spec.source}; leave it out, or name another encoder"
        )
    found = audit_labels(evaluated, AuditSettings(given, k, seed, view))
    write_audit_tables(found, folder)
    write_page(folder / AUDIT_PAGE, audit_page(found))
    summary = found.summary
    result = {"out": str(folder), **summary, "seconds": round(time.perf_counter() - started, 2)}
    say(trust_line(found.wrong, found.judged))
    for line in cautions(summary):
        say(line)
    if found.suspects:
        show(suspect_table(found))
    say(f"suspects: {summary['suspects']:,}; images unlike all others: {summary['outliers']:,}")
    say(describe_duplicates(summary) or "no duplicates")
    if corrected is not None:
        changed = write_corrected_copy(found, Path(corrected), least_lead, spec.columns)
        result |= {"corrected": str(corrected), "changed": changed}
        say(f"{corrected}: labels replaced: {changed} (scores differ by {least_lead:g} or more)")
    say(f"look at {folder / AUDIT_PAGE}")
    return result


def suspect_table(found: Audit) -> Table:
    """The most suspicious labels."""
    images = found.images
    rows = [
        (shortened(images.names[s.row]), images.class_name(s.row), images.classes[s.suggested], f"{s.score:.3f}")
        for s in found.suspects[:SHOWN]
    ]
    return Table(("suspect", "label", "suggested", "score"), rows, align="lllr")


def shortened(name: str) -> str:
    return name if len(name) <= 40 else f"...{name[-37:]}"


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
        leave the data closed: no class histogram and no sample images

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
    check_suffix(page, (".html", ".htm"))
    check_page_place(page)
    if not page.parent.is_dir():
        raise BadInput(f"{page}: there is no folder {page.parent}; make it, or name another file")
    from supancl.reports.page import write_page
    from supancl.reports.report import name_runs, report_page
    from supancl.reports.run_record import read_record
    from supancl.reports.verdict import find_verdict

    records = {name: read_record(path) for name, path in track(name_runs(folders).items(), "reading runs")}
    write_page(page, report_page(records, {} if no_data else open_images(records)))
    rows = []
    for name, record in records.items():
        verdict = find_verdict(record)
        say(f"{name}: {verdict.sentence}")
        rows.append({"run": str(record.folder), **verdict._asdict(), "verdict": verdict.sentence})
    say(f"report: {page}")
    return {"report": str(page), "runs": rows}


def find_named_runs(path: Path) -> list[Path]:
    """The run in this folder, or those below it; detectors have no report."""
    if not path.is_dir():
        raise BadInput(f"no run folder {path}{did_you_mean_path(path) or '; supancl runs lists yours'}")
    runs = [run for run in find_runs(path) if not (run / "detect.json").exists()]
    if not runs:
        raise BadInput(f"{path} holds no run of supancl pretrain; name a run folder, or one that holds runs")
    return [path] if path in runs else runs


def open_images(records: Mapping[str, RunRecord]) -> dict[str, Samples]:
    """The images of each run; the training images that several share are shown once."""
    from dataclasses import replace

    from supancl.reports.samples import open_samples

    images: dict[str, Samples] = {}
    seen: set[str] = set()
    for name, record in track(records.items(), "images of runs"):
        images[name], fingerprint = open_samples(record), str(record.about("data").get("fingerprint", name))
        if fingerprint in seen:
            images[name] = replace(images[name], counts=(), views=())
        seen.add(fingerprint)
    return images
