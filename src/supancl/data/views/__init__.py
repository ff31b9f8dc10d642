"""Views of a batch: random draws and their rendering."""

from typing import TYPE_CHECKING, Any

from supancl.moved import moved_attribute

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return moved_attribute(__name__, name)
