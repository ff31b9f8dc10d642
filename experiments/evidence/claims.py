"""Who makes which run, where several drivers work in one folder.

A claim is a file with a lock on it. The lock goes with its process, so what a killed driver had begun is free at once;
the process that judges a run inherits it, so that the run is not free while that one still works.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from supancl.files import held


class Claims:
    """Those of one driver; all drivers of a work folder have the same `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mine: dict[str, int] = {}  # what is claimed -> the open file

    def take(self, what: str, **told: Any) -> bool:
        """False where somebody has it; `told` is for the others to read."""
        if what in self.mine:
            return True
        with self._alone():
            opened = os.open(self.folder / what, os.O_RDWR | os.O_CREAT, 0o644)
            if not _locked(opened):
                os.close(opened)
                return False
            self.mine[what] = opened
            os.ftruncate(opened, 0)
            os.pwrite(opened, json.dumps({"pid": os.getpid(), **told}).encode(), 0)
        return True

    def release(self, what: str) -> None:
        opened = self.mine.pop(what, None)
        if opened is not None:
            fcntl.flock(opened, fcntl.LOCK_UN)  # whoever else may have inherited it
            os.close(opened)

    def leave(self) -> None:
        """Nothing is claimed here any more; what a judging process has inherited stays claimed until its end."""
        for opened in self.mine.values():
            os.close(opened)
        self.mine.clear()

    def others(self) -> list[dict[str, Any]]:
        """What the others have said of what they hold."""
        found: list[dict[str, Any]] = []
        with self._alone():
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith(".") or path.name in self.mine:
                    continue
                opened = os.open(path, os.O_RDONLY)
                try:
                    if not _locked(opened):
                        found.append(json.loads(path.read_text()))
                finally:
                    os.close(opened)  # and with it the lock, where nobody had it
        return found

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """One at a time looks at the locks, since looking takes them for a moment."""
        return held(self.folder / ".lock", lambda owner: None, every=0.01)


def _locked(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
