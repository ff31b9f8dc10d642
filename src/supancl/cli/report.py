"""`supancl report`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal
from supancl.errors import BadInput
from supancl.files import did_you_mean_path, write_text
from supancl.reports.live_report import PAGE
from supancl.reports.report import name_runs, report_page
from supancl.reports.run_record import RunRecord, read_record
from supancl.reports.training_images import TrainingImages, open_training_images
from supancl.reports.verdict import judge
from supancl.weights.run_list import find_runs


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    paths = list(dict.fromkeys(path for name in args.runs for path in find_named_runs(Path(name))))
    out = Path(args.out) if args.out else (paths[0] if len(paths) == 1 else Path()) / PAGE
    check_out(out)
    terminal = Terminal(console)
    records = {name: read_record(path) for name, path in name_runs(paths).items()}
    images = {} if args.no_data else open_images(records, terminal)
    write_text(out, report_page(records, images))
    verdicts = {name: judge(record) for name, record in records.items()}
    for name, verdict in verdicts.items():
        console.print(f"{name}: {verdict.sentence}")
    console.print(f"report: {out}")
    rows = [
        {"run": str(records[name].folder), "state": verdict.state, "verdict": verdict.sentence}
        for name, verdict in verdicts.items()
    ]
    return {"report": str(out), "runs": rows}


def open_images(records: Mapping[str, RunRecord], terminal: Terminal) -> dict[str, TrainingImages]:
    """The training images of each run; those of a data set that several share are opened once."""
    images: dict[str, TrainingImages] = {}
    seen: set[str] = set()
    for name, record in records.items():
        fingerprint = record.about("data").get("fingerprint")
        if fingerprint is None or fingerprint not in seen:
            images[name] = open_training_images(record, terminal.on_progress)
            seen.add(str(fingerprint))
    return images


def find_named_runs(path: Path) -> list[Path]:
    """The run in this folder, or those below it; runs of detectors have no report."""
    if not path.is_dir():
        raise BadInput(f"no run folder {path}{did_you_mean_path(path) or '; supancl runs lists yours'}")
    runs = [run for run in find_runs(path) if not (run / "detect.json").exists()]
    if not runs:
        raise BadInput(f"{path} holds no run of supancl pretrain; name a run folder, or one that holds runs")
    return [path] if path in runs else runs


def check_out(out: Path) -> None:
    """Refuse a page that cannot be written, before data are opened."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"--out {out}: a report is an HTML page; name a file that ends in .html")
    if out.is_dir():
        raise BadInput(f"--out {out}: is a folder; name a file in it, such as {out / PAGE}")
    if not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.parent}; make it, or name another file")
