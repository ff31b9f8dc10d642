"""The toy study of Sec. 4.3 and App. B: Tables 1 and 2 and the t-SNE figure (`supancl toy`, docs/toy.md)."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from supancl.config import to_json
from supancl.errors import BadInput, counted
from supancl.files import write_text
from supancl.paper.toy import tables
from supancl.paper.toy.measures import NEIGHBOURS, first_of_each, measure
from supancl.paper.toy.training import ALPHAS, FULL, QUICK, READINGS, Reading, Size, draw_data, train
from supancl.probes import Features
from supancl.reports.pictures import tsne_panels
from supancl.weights.run_folder import commit, jsonable, next_folder, versions

SHOWN = 300  # training samples per class in the figure; more only hide one another


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 (default 3)")
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the dimensions, samples and batch, half the epochs"
    )
    parser.add_argument(
        "--reading",
        choices=tuple(READINGS),
        default="near",
        help="of App. B: literal, or near to the paper's levels (default; docs/toy-readings.md)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for tables, figure and toy.json (default runs/toy-NNN)")


def command(args: argparse.Namespace, console: Console) -> dict[str, object]:
    """Train, measure, print, write; gives the content of toy.json."""
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    folder = Path(args.out) if args.out else next_folder("toy")
    if (folder / "toy.json").exists():
        raise BadInput(f"{folder} holds a toy study already; give another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder}: {error.strerror}; give another") from None
    if not os.access(folder, os.W_OK):  # said now, not after minutes of training
        raise BadInput(f"--out {folder}: cannot be written to; give another")
    reading, size = READINGS[args.reading], QUICK if args.quick else FULL
    result, panels = run(reading, size, list(range(args.seeds)), console)
    print_tables(result, console)
    write(result, folder)
    tsne_panels(panels, tuple("ABC"), folder / "tsne.png")
    console.print(f"written to {folder}: toy.json, table1.md, table2.md, tsne.png")
    return {**result, "folder": str(folder)}


def run(reading: Reading, size: Size, seeds: list[int], console: Console) -> tuple[dict[str, Any], dict[str, Features]]:
    """The study itself: its result, and the features the figure shows, of the first seed."""
    begin = time.perf_counter()
    toys = draw_data(reading, size, seeds)
    drawn = time.perf_counter()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{len(ALPHAS)} alphas x {counted(len(seeds), 'seed')}", total=size.epochs)
        trained = train(toys, reading, size, ALPHAS, seeds, lambda epoch, _: progress.update(task, completed=epoch))
    fitted = time.perf_counter()
    rows = measure(trained, toys, reading, size, seeds, ALPHAS)
    summary = tables.summarize(rows)
    result: dict[str, Any] = {
        "reading": to_json(reading),
        "size": to_json(size),
        "seeds": seeds,
        "alphas": list(ALPHAS),
        "neighbours": NEIGHBOURS,
        "rows": rows,
        "summary": {
            f"{alpha:g}": {name: found._asdict() for name, found in by_name.items()}
            for alpha, by_name in summary.items()
        },
        "paper": {f"{alpha:g}": numbers for alpha, numbers in tables.PAPER.items()},
        "trends": tables.trends(summary),
        "levels": tables.levels(summary),
        "paired": tables.paired(rows),
        "seconds": {"data": drawn - begin, "training": fitted - drawn, "measuring": time.perf_counter() - fitted},
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
    }
    shown = first_of_each(toys[0].train_labels, SHOWN)
    values = trained.features(0, toys[0].train[shown])
    panels = {
        f"alpha = {alpha:g}": Features(value, toys[0].train_labels[shown])
        for alpha, value in zip(ALPHAS, values, strict=True)
    }
    return result, panels


def summary_of(result: dict[str, Any]) -> tables.Summary:
    return tables.summarize(result["rows"])


def print_tables(result: dict[str, Any], console: Console) -> None:
    summary = summary_of(result)
    titles = {"Table 1 (toy part)": tables.ONE, "Table 2: linear probe on new classes": tables.TWO}
    for title, columns in titles.items():
        seeds = counted(len(result["seeds"]), "seed")
        laid = Table(title=f"{title}: mean +- sd over {seeds} (paper); * best, + second-best", title_justify="left")
        for name in tables.header(columns):
            laid.add_column(name, justify="right")
        for cells in tables.table(summary, columns, tables.marked):
            laid.add_row(*cells)
        console.print(laid)
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


def write(result: dict[str, Any], folder: Path) -> None:
    summary = summary_of(result)
    kept = {
        "table1.md": tables.markdown(summary, tables.ONE),
        "table2.md": tables.markdown(summary, tables.TWO),
        "toy.json": json.dumps(jsonable(result), indent=2) + "\n",
    }  # last: it says that the study is there
    for name, text in kept.items():
        write_text(folder / name, text, "Make room, or choose another --out")
