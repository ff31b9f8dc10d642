"""What benchmarks share: where they ran, tables, and the results kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from supancl.reports.tables import Table, to_markdown
from supancl.runs.provenance import commit, hardware, versions

Record = dict[str, Any]


def about(device: torch.device, *peers: str, given: str = "") -> Record:
    """Where and when something was measured, with the versions of ours and of the peers that are installed."""
    found = versions()
    for name in peers:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    return {"hardware": hardware(device), "versions": found, "commit": given or commit(), "date": day}


def rounded(value: Any) -> Any:
    """Five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def keep(file: Path | None, content: Any) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rounded(content), indent=1, default=str) + "\n")


def show(rows: Sequence[Record]) -> None:
    """Records as a Markdown table: a column for each key that any of them has."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[text_of(row.get(key), key) for key in columns] for row in rows]
    print(to_markdown(Table([key.replace("_", " ") for key in columns], cells)), flush=True)


def text_of(value: Any, column: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return " - ".join(text_of(item) for item in value)
    if "bytes" in column:
        return f"{value / 1e6:,.4g} MB"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
