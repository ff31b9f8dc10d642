"""Views of a batch: random draws and their rendering."""

from typing import Any

from supancl.moved import moved_attribute


def __getattr__(name: str) -> Any:
    return moved_attribute(__name__, name)
