"""Where images come from: folders, arrays, tables, tar shards, other libraries, benchmark data sets."""

from typing import Any

from supancl.moved import moved_attribute


def __getattr__(name: str) -> Any:
    return moved_attribute(__name__, name)
