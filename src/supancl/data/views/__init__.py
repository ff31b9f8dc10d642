"""Two views of every image: what is drawn, and how a batch becomes its views."""

from typing import Any

from supancl.moved import moved_attribute


def __getattr__(name: str) -> Any:
    return moved_attribute(__name__, name)
