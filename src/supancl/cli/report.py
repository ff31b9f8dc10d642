"""`supancl report`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from supancl.files import write_text
from supancl.reporter import track
from supancl.reports.report import name_runs, report_page
from supancl.reports.run_record import RunRecord, read_record
from supancl.reports.training_images import TrainingImages, open_training_images
from supancl.reports.verdict import find_verdict


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    records = {name: read_record(path) for name, path in track(name_runs(args.runs).items(), "reading runs")}
    images = {} if args.no_data else open_images(records)
    write_text(args.out, report_page(records, images))
    verdicts = {name: find_verdict(record) for name, record in records.items()}
    for name, verdict in verdicts.items():
        console.print(f"{name}: {verdict.sentence}")
    console.print(f"report: {args.out}")
    rows = [
        {"run": str(records[name].folder), "state": verdict.state, "verdict": verdict.sentence}
        for name, verdict in verdicts.items()
    ]
    return {"report": str(args.out), "runs": rows}


def open_images(records: Mapping[str, RunRecord]) -> dict[str, TrainingImages]:
    """The training images of each run; those of a data set that several share are opened once."""
    images: dict[str, TrainingImages] = {}
    seen: set[str] = set()
    for name, record in records.items():
        fingerprint = record.about("data").get("fingerprint")
        if fingerprint is None or fingerprint not in seen:
            images[name] = open_training_images(record)
            seen.add(str(fingerprint))
    return images
