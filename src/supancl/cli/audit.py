"""`supancl audit`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import line_width
from supancl.cli.encoders import check_at_least, open_encoders
from supancl.distributed import require_single_process
from supancl.errors import BadInput, plural
from supancl.evaluate.audit import Audit, AuditSettings, audit_labels, has_label_noise
from supancl.evaluate.sources import spec_for
from supancl.files import write_text
from supancl.reports.audit_files import (
    PAGE,
    cautions,
    check_corrected,
    describe_duplicates,
    trust_line,
    write_audit_tables,
    write_corrected_copy,
)
from supancl.reports.audit_page import audit_page
from supancl.reports.tables import Table, to_text

SHOWN = 5  # suspects in the terminal


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Write the tables and the page, and print the share of wrong labels and the first suspects."""
    require_single_process("an audit")
    started, out = time.perf_counter(), Path(args.out)
    check_at_least(args.seed, 0, "--seed")
    if args.k is not None:
        check_at_least(args.k, 1, "--k")
    (evaluated,) = open_encoders(args, console, saves_results=False)
    spec = spec_for(evaluated, args.data)
    if args.corrected is not None:
        check_corrected(Path(args.corrected), *spec.all_sources)
        if has_label_noise(evaluated, args.data):
            raise BadInput(
                f"--corrected {args.corrected}: {evaluated.location} was trained with data.label_noise, so the labels "
                f"that are judged are not those of {spec.source}; leave it out, or name another encoder"
            )
    audit = audit_labels(evaluated, AuditSettings(args.data, args.k, args.seed, args.view))
    write_audit_tables(audit, out)
    write_text(out / PAGE, audit_page(audit))
    result = {"out": str(out), **audit.summary, "seconds": round(time.perf_counter() - started, 2)}
    console.print(trust_line(audit.wrong, audit.judged))
    for line in cautions(audit.summary):
        console.print(line)
    if audit.suspects:
        console.print(to_text(suspect_table(audit), line_width(console)), end="")
    for line in describe(audit):
        console.print(line)
    if args.corrected is not None:
        changed = write_corrected_copy(audit, Path(args.corrected), args.lead, spec.columns)
        result |= {"corrected": args.corrected, "changed": changed}
        console.print(f"{args.corrected}: {plural(changed, 'label')} replaced (scores differ by {args.lead:g} or more)")
    console.print(f"look at {out / PAGE}")
    return result


def suspect_table(audit: Audit) -> Table:
    """The most suspicious labels."""
    images = audit.images
    rows = [
        (_end_of(images.names[s.row]), images.class_name(s.row), images.classes[s.suggested], f"{s.score:.3f}")
        for s in audit.suspects[:SHOWN]
    ]
    return Table(("suspect", "label", "suggested", "score"), rows, align="lllr")


def describe(audit: Audit) -> list[str]:
    """How many suspects, duplicates and outliers there are."""
    summary = audit.summary
    return [
        f"{plural(summary['suspects'], 'suspect', number_format=',')}, "
        f"{plural(summary['outliers'], 'image', number_format=',')} unlike all others",
        describe_duplicates(summary) or "no duplicates",
    ]


def _end_of(name: str) -> str:
    return name if len(name) <= 40 else f"...{name[-37:]}"
