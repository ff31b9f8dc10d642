"""How training reports progress: to the terminal, a logger or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Reporter:
    """Receives progress reports. This one ignores them; the one of the terminal is in cli/console.py."""

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def reading(self, what: str, done: int, total: int) -> None: ...

    def begins(self, recipe: Any, data: Any, folder: Path, device: str, step: int, steps: int) -> None: ...

    def stepped(self, step: int, row: dict[str, Any] | None) -> None: ...

    def epoch_ended(self, row: dict[str, Any]) -> None: ...

    def ends(self) -> None: ...
