"""The rows of metrics.jsonl. Each has a number and a checksum, so that damaged and missing rows are noticed."""

from __future__ import annotations

import io
import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supancl.config import parse_json
from supancl.files import jsonable, open_regular

SEAL = re.compile(r', "row": (\d{1,12}), "crc": "([0-9a-f]{8})"\}$')
MAX_ROW_LENGTH = 2**20  # of a line, in characters: ours have hundreds
GAP = "gap"  # the kind of a row that stands for rows which were lost


@dataclass
class LogRows:
    """What a log holds: intact rows with their lines and numbers, and sentences about those that are not."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    @property
    def next_number(self) -> int:
        return self.rows[-1].get("until", self.numbers[-1]) + 1 if self.rows else 0


def seal_row(row: Mapping[str, Any], number: int) -> str:
    """The line of a row, with its number and a checksum of both."""
    text = json.dumps(jsonable(dict(row)))
    return f'{text[:-1]}, "row": {number}, "crc": "{_checksum(text, number)}"}}'


def row_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row by name, without its step and epoch: what loggers draw."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("step", "epoch") and math.isfinite(value)
    }


def read_rows(path: Path, required: Mapping[str, type]) -> LogRows:
    """The rows of a log with these fields. A last line without its end is what a killed run leaves, and no damage."""
    log, position, is_open = LogRows(), 0, False
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
        while line := file.readline(MAX_ROW_LENGTH):
            continues, is_open = is_open, not line.endswith("\n")
            if not continues:
                position += 1
                _add_line(log, line.removesuffix("\n"), position, is_open, required)
            elif not is_open:  # the end of a line that is longer than any row
                log.damage.append(f"line {position} is damaged")
    return log


def read_last_rows(path: Path, max_bytes: int = 2**16) -> list[dict[str, Any]]:
    """The intact rows at the end of a log, to look at it quickly: missing rows are not noticed."""
    with open_regular(path) as file:
        start = max(0, os.fstat(file.fileno()).st_size - max_bytes)
        file.seek(start)
        lines = file.read(max_bytes).decode(errors="replace").split("\n")
    rows = (_open_line(line, 0)[0] for line in lines[1 if start else 0 : -1])
    return [row for row in rows if row is not None]


def _add_line(log: LogRows, line: str, position: int, is_torn: bool, required: Mapping[str, type]) -> None:
    row, number = _open_line(line, log.next_number)
    if row is None or any(not isinstance(row.get(key), kind) for key, kind in required.items()):
        if not is_torn:
            log.damage.append(f"line {position} is damaged")
        return
    if number != log.next_number:
        log.damage.append(f"rows before line {position} are missing")
    log.rows.append(row)
    log.lines.append(line)
    log.numbers.append(number)


def keep_rows(log: LogRows, step: int, expected: int | None) -> tuple[LogRows, list[tuple[int, int]]]:
    """The rows up to `step`, and the ranges of numbers below `expected` that are lost; None: all rows are expected."""
    remaining = [position for position, row in enumerate(log.rows) if row["step"] <= step]
    result = LogRows(
        [log.rows[position] for position in remaining],
        [log.lines[position] for position in remaining],
        [log.numbers[position] for position in remaining],
    )
    lost, next_number = [], 0
    for row, number in zip(result.rows, result.numbers, strict=True):
        if number > next_number:
            lost.append((next_number, number - 1))
        next_number = max(next_number, row.get("until", number) + 1)
    if expected is not None and expected > next_number:
        lost.append((next_number, expected - 1))
    return result, lost


def fill_gaps(log: LogRows, lost: Sequence[tuple[int, int]], **position: int) -> list[str]:
    """The lines of a log with a row in place of each range of lost ones."""
    lines = dict(zip(log.numbers, log.lines, strict=True))
    for before, until in lost:
        gap = {"kind": GAP, **position, "lost": until - before + 1, "until": until}
        lines[before] = seal_row(gap, before)
    return [lines[number] for number in sorted(lines)]


def _is_row_number(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 10**12


def _open_line(line: str, next_number: int) -> tuple[dict[str, Any] | None, int]:
    """The row in a line and its number; None if it is damaged. Rows of 0.1.0 have neither number nor checksum."""
    seal = SEAL.search(line)
    text, number = (f"{line[: seal.start()]}}}", int(seal[1])) if seal else (line, next_number)
    try:
        row = parse_json(text)
    except ValueError:
        return None, number
    if (
        not isinstance(row, dict)
        or not _is_row_number(row.get("until", 0))
        or "crc" in row
        or (seal and _checksum(text, number) != seal[2])
    ):
        return None, number
    return row, number


def _checksum(text: str, number: int) -> str:
    return f"{zlib.crc32(f'{number} {text}'.encode()):08x}"
