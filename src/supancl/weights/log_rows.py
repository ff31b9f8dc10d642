"""The rows of metrics.jsonl, an object in JSON per line. A line that is no row is left out and named."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supancl.config import parse_json
from supancl.files import open_regular

MAX_ROW_LENGTH = 2**20  # of a line, in characters: ours have hundreds
OLD_KEYS = {"row", "crc"}  # a number and a checksum, in rows of 0.2.0


@dataclass
class LogRows:
    """What a log holds: rows with their lines, and the numbers of lines that are none."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)

    @property
    def damage(self) -> str:
        """Which lines are left out, in words; empty if none is."""
        more = f" and {len(self.damaged) - 1} more" if len(self.damaged) > 1 else ""
        return f"line {self.damaged[0]}{more} cannot be read" if self.damaged else ""


def row_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row by name, without its step and epoch: what loggers draw."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("step", "epoch") and math.isfinite(value)
    }


def read_rows(path: Path, required: Mapping[str, type]) -> LogRows:
    """The rows of a log with these fields. A last line without its end is what a killed run leaves, and no damage."""
    log, number, is_open = LogRows(), 0, False
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
        while line := file.readline(MAX_ROW_LENGTH):
            continues, is_open = is_open, not line.endswith("\n")
            number += not continues
            row = None if continues or is_open else _parse_row(line, required)
            if row is not None:
                log.rows.append(row)
                log.lines.append(line)
            elif not is_open:
                log.damaged.append(number)
    return log


def read_last_rows(path: Path, required: Mapping[str, type], max_bytes: int = 2**16) -> list[dict[str, Any]]:
    """The rows at the end of a log, to look at it quickly."""
    with open_regular(path) as file:
        start = max(0, os.fstat(file.fileno()).st_size - max_bytes)
        file.seek(start)
        lines = file.read(max_bytes).decode(errors="replace").split("\n")
    rows = (_parse_row(line, required) for line in lines[1 if start else 0 : -1])
    return [row for row in rows if row is not None]


def _parse_row(line: str, required: Mapping[str, type]) -> dict[str, Any] | None:
    """The row in a line; None if it is none."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or any(not isinstance(row.get(key), kind) for key, kind in required.items()):
        return None
    return {key: value for key, value in row.items() if key not in OLD_KEYS}
