"""The generated part of docs/benchmarks.md."""

from __future__ import annotations

from supancl.data.sources.benchmarks import BENCHMARKS, download_instructions
from supancl.reports.tables import Table, to_markdown


def page() -> str:
    """A table of the data sets, then each one's layout."""
    columns = ("Name", "Data set", "Use", "Classes", "Train", "Val", "Test", "Few-shot", "Metric")
    rows = []
    for name, row in BENCHMARKS.items():
        sizes = [f"{size:,}" if size else "" for size in (row.classes, *(row.split or (0, 0, 0)), row.images)]
        metric = "" if "transfer" not in row.uses else "top-1" if row.metric == "top1" else "mean per class"
        rows.append([name, row.title, ", ".join(row.uses), *sizes, metric])
    layouts = "".join(f"\n### {name}\n\n```text\n{download_instructions(name)}\n```\n" for name in BENCHMARKS)
    return to_markdown(Table(columns, rows, "lllrrrrrl")) + layouts
