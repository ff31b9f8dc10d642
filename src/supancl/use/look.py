"""`map` and `report`: pages to look at, made from a run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.files import did_you_mean_path, make_folder
from supancl.reporter import say, track
from supancl.reports.page import page_output, picture_output
from supancl.runs.folder import find_runs
from supancl.use import EncoderArgument, EncoderOptions, check_above, open_encoders, run_source

if TYPE_CHECKING:
    from supancl.reports.report import Samples
    from supancl.reports.verdict import RunRecord
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
    check_above(limit, 1, "limit")
    check_above(seed, -1, "seed")
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
    page_output(page).check()
    from supancl.reports.page import write_page
    from supancl.reports.report import name_runs, report_page
    from supancl.reports.verdict import find_verdict, read_record

    records = {name: read_record(path) for name, path in track(name_runs(folders).items(), "reading runs")}
    make_folder(page.parent)
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
    runs = [run for run in find_runs(path) if not (run / "detect.json").exists()] if path.is_dir() else []
    if not runs:
        raise BadInput(f"no run of supancl pretrain in {path}{did_you_mean_path(path)}; supancl runs lists yours")
    return [path] if path in runs else runs


def open_images(records: Mapping[str, RunRecord]) -> dict[str, Samples]:
    """The images of each run; the training images that several share are shown once."""
    from supancl.reports.report import open_samples

    images: dict[str, Samples] = {}
    seen: set[str] = set()
    for name, record in track(records.items(), "images of runs"):
        images[name], fingerprint = open_samples(record), str(record.about("data").get("fingerprint", name))
        if fingerprint in seen:
            images[name] = replace(images[name], counts=(), views=())
        seen.add(fingerprint)
    return images
