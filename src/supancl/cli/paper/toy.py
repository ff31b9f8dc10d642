"""`supancl paper toy`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import table
from supancl.errors import BadInput, plural
from supancl.paper.toy import run, summary_of, tables, write
from supancl.paper.toy.training import ALPHAS, FULL, QUICK, READINGS
from supancl.reporter import report_progress
from supancl.reports.pictures import tsne_panels
from supancl.reports.tables import LEGEND, cell_text
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, object]:
    """Train, measure, print and write the study; returns the content of toy.json."""
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    folder = Path(args.out) if args.out else next_folder("toy")
    if (folder / "toy.json").exists():
        raise BadInput(f"{folder} already holds a toy study; give another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder}: {error.strerror}; give another") from None
    if not os.access(folder, os.W_OK):  # checked before minutes of training
        raise BadInput(f"--out {folder}: cannot be written to; give another")
    reading, size = READINGS[args.reading], QUICK if args.quick else FULL
    task = f"epochs of {len(ALPHAS)} alphas x {plural(args.seeds, 'seed')}"
    result, panels = run(
        reading, size, list(range(args.seeds)), lambda epoch: report_progress(task, epoch, size.epochs)
    )
    print_tables(result, console)
    write(result, folder)
    tsne_panels(panels, tuple("ABC"), folder / "tsne.png")
    console.print(f"written to {folder}: toy.json, table1.md, table2.md, tsne.png")
    return {**result, "folder": str(folder)}


def print_tables(result: dict[str, Any], console: Console) -> None:
    summary = summary_of(result)
    titles = {
        "Table 1 (toy part)": tables.TABLE_1_COLUMNS,
        "Table 2: linear probe on new classes": tables.TABLE_2_COLUMNS,
    }
    for title, columns in titles.items():
        seeds = plural(len(result["seeds"]), "seed")
        filled = tables.table(summary, columns)
        rows = [[cell if isinstance(cell, str) else cell_text(cell) for cell in row] for row in filled.rows]
        names = [str(name) for name in filled.columns]
        console.print(table(f"{title}: mean ± sd over {seeds} (paper); {LEGEND}", names, rows))
    for claim, holds in result["trends"].items():
        console.print(f"{'yes' if holds else 'NO '}  {claim}")
    for line in (*missed_lines(result), *tables.paired_lines(result["paired"])):
        console.print(line)
    seconds = result["seconds"]
    console.print(
        f"{tables.conditions(result)}; {seconds['training']:.0f} s training, "
        f"{seconds['measuring']:.0f} s measuring, {result['threads']} threads"
    )


def missed_lines(result: dict[str, Any]) -> list[str]:
    missed = [row for row in result["levels"] if not row["met"]]
    lines = [
        f"off the paper: {row['measure']} at alpha = {row['alpha']:g}: "
        f"{tables.number(row['ours'], row['measure'])} against {row['paper']:g}"
        for row in missed
    ]
    return [*lines, f"levels met: {len(result['levels']) - len(missed)} of {len(result['levels'])}"]
