"""Where images come from: folders, arrays, tables, tar shards, other libraries, benchmark data sets."""

from typing import TYPE_CHECKING, Any

from supancl.moved import moved_attribute

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return moved_attribute(__name__, name)
