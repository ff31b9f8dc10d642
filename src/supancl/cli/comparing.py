"""Several encoders on several data sets: which ones, and the tables that come of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.console import Console

from supancl.cli.console import Terminal
from supancl.cli.encoders import names
from supancl.data.opening import check_source
from supancl.data.sources.benchmarks import official_name, present_benchmarks
from supancl.errors import BadInput, counted
from supancl.evaluate import EvaluatedEncoder, differences, drawn_from, rankings, trained_on, unlike
from supancl.evaluate.compared import check_seeds
from supancl.reports.score_table import TableFormat, score_table

MOST_LINES = 20  # of paired differences on a terminal; all of them are in --json
Task = tuple[str, str, Callable[[EvaluatedEncoder], dict[str, Any]]]  # protocol, data, how
HEADINGS = {"text": "{}", "markdown": "**{}**\n", "latex": "% {}", "csv": "# {}"}


def sources(args: argparse.Namespace, use: Literal["transfer", "few-shot"]) -> list[str]:
    """The sources named, and the data sets of the registry that are in --root."""
    if args.sets and not args.root:
        raise BadInput("--sets names data sets of --root; give it too")
    if not args.data and not args.root:
        raise BadInput(f"name data to judge on: --data SOURCE, or --root FOLDER with data sets for {use}")
    found = list(args.data)
    for source in found:
        check_source(source)
    if args.root:
        there = present_benchmarks(args.root, use)
        named = [official_name(name) for name in names(args.sets)] or there
        if not named:
            raise BadInput(f"no data set for {use} is in {args.root}; supancl data where NAME says how to lay one out")
        for name in named:
            if name not in there:
                raise BadInput(f"{name} is not in {args.root}; see: supancl data where {name}")
        found += [f"{name}@{args.root}" for name in named]
    return list(dict.fromkeys(found))


def measured(subjects: Sequence[EvaluatedEncoder], tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Every task with every subject: what is decoded for one encoder serves the next."""
    check_seeds(subjects)
    return [
        how(subject) | {"task": protocol, "data": data, "group": subject.group}
        for protocol, data, how in tasks
        for subject in subjects
    ]


def printed(results: list[dict[str, Any]], form: TableFormat, console: Console) -> dict[str, Any]:
    """The tables, and in text the paired differences; the result for --json."""
    tables = rankings(results)
    for line in (*unlike(results), *trained_on(results)):
        Terminal(console).warn(line)
    gaps, legends = differences(results), drawn_from(results)
    if form == "json":
        content = {name: ranking.to_json() for name, ranking in tables.items()}
        console.print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        for protocol, ranking in tables.items():
            if len(tables) > 1 or form in ("text", "markdown"):
                console.print(HEADINGS[form].format(protocol))
            console.print(score_table(ranking, form), end="")
            if form == "text" and protocol in legends:
                console.print(f"episodes: {legends[protocol]}")
    if form == "text":
        for gap in gaps[:MOST_LINES]:
            console.print(
                f"{gap['protocol']} {gap['data']}: {gap['a']} - {gap['b']} = {gap['difference']:+.2f} "
                f"± {gap['interval']:.2f} (same episodes)"
            )
        if len(gaps) > MOST_LINES:
            console.print(f"{counted(len(gaps) - MOST_LINES, 'more difference')}: --json")
    return {
        "results": results,
        "tables": {name: ranking.to_json() for name, ranking in tables.items()},
        "differences": gaps,
    }


def progress_console(form: str, console: Console) -> Console:
    """Where progress is told: beside a text table, but not into a file of another format."""
    if form == "text":
        return console
    return Console(stderr=True, quiet=console.quiet, markup=False, highlight=False, soft_wrap=True)
