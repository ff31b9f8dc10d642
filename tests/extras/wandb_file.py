"""Reads a .wandb file: a header of 7 bytes, then blocks of 32 KiB with records in the framing of LevelDB's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def read_records(file: Path) -> list[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts, records = file.read_bytes(), HEADER, b"", []
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:  # padding at the end of a block
            position += BLOCK - position % BLOCK
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(parts))
            parts = b""
    return records


def read_history(file: Path) -> list[dict[str, Any]]:
    """The logged rows, each with its `_step`."""
    rows = []
    for record in read_records(file):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({"_step": record.history.step.num, **items})
    return rows


def read_run(file: Path) -> Any:
    """The record of the run: id, name, project, tags, config."""
    return next(record.run for record in read_records(file) if record.WhichOneof("record_type") == "run")
