"""Evaluate several encoders on several data sets, and print the tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.console import Console

from supancl.cli.console import SafeConsole, Terminal
from supancl.cli.encoders import parse_names
from supancl.data.opening import check_source
from supancl.data.sources.benchmarks import find_benchmarks, official_name
from supancl.errors import BadInput, make_visible, plural
from supancl.evaluate import (
    EvaluatedEncoder,
    describe_episode_images,
    differences,
    different_images_warnings,
    overlap_warnings,
    rankings,
)
from supancl.evaluate.comparison import check_seeds
from supancl.reports.score_table import TableFormat, score_table

MAX_DIFFERENCES = 20  # printed; --json has all
Task = tuple[str, str, Callable[[EvaluatedEncoder], dict[str, Any]]]  # protocol, data, function
HEADINGS = {"text": "{}\n", "markdown": "**{}**\n\n", "latex": "% {}\n", "csv": "# {}\n"}


def select_sources(args: argparse.Namespace, use: Literal["transfer", "few-shot"]) -> list[str]:
    """The sources of --data, and the benchmarks that are in --root."""
    if args.sets and not args.root:
        raise BadInput("--sets names data sets in --root; give --root too")
    if not args.data and not args.root:
        raise BadInput(f"name data to evaluate on: --data SOURCE, or --root FOLDER with data sets for {use}")
    selected = list(args.data)
    for source in selected:
        check_source(source)
    if args.root:
        present = find_benchmarks(args.root, use)
        requested = [official_name(name) for name in parse_names(args.sets)] or present
        if not requested:
            raise BadInput(f"no data set for {use} is in {args.root}; supancl data where NAME describes the layout")
        for name in requested:
            if name not in present:
                raise BadInput(f"{name} is not in {args.root}; see: supancl data where {name}")
        selected += [f"{name}@{args.root}" for name in requested]
    return list(dict.fromkeys(selected))


def measure_all(encoders: Sequence[EvaluatedEncoder], tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Run every task with every encoder; images decoded for one encoder are reused by the next."""
    check_seeds(encoders)
    return [
        run_protocol(evaluated) | {"task": protocol, "data": data, "group": evaluated.group}
        for protocol, data, run_protocol in tasks
        for evaluated in encoders
    ]


def print_results(results: list[dict[str, Any]], form: TableFormat, console: Console) -> dict[str, Any]:
    """Print the tables, and as text also the paired differences; returns the result for --json."""
    tables = rankings(results)
    for line in (*different_images_warnings(results), *overlap_warnings(results)):
        Terminal(console).warn(line)
    gaps, legends = differences(results), describe_episode_images(results)
    if form == "json":
        content = {name: ranking.to_json() for name, ranking in tables.items()}
        console.print(json.dumps(content, indent=2) + "\n", end="")
    else:
        for protocol, ranking in tables.items():
            if len(tables) > 1 or form in ("text", "markdown"):
                console.print(HEADINGS[form].format(make_visible(protocol)), end="")
            console.print(score_table(ranking, form), end="")
            if form == "text" and protocol in legends:
                console.print(f"episodes: {legends[protocol]}")
    if form == "text":
        for gap in gaps[:MAX_DIFFERENCES]:
            console.print(
                f"{gap['protocol']} {gap['data']}: {gap['a']} - {gap['b']} = {gap['difference']:+.2f} "
                f"± {gap['interval']:.2f} (same episodes)"
            )
        if len(gaps) > MAX_DIFFERENCES:
            console.print(f"{plural(len(gaps) - MAX_DIFFERENCES, 'more difference')}: --json")
    return {
        "results": results,
        "tables": {name: ranking.to_json() for name, ranking in tables.items()},
        "differences": gaps,
    }


def progress_console(form: str, console: Console) -> Console:
    """The console for progress: stdout next to a text table, else stderr, so that stdout holds the table alone."""
    if form == "text":
        return console
    return SafeConsole(stderr=True, quiet=console.quiet)
