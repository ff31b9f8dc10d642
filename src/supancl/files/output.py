"""Where a command writes: whether it may, asked before the work, and how, after it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from supancl.errors import BadInput
from supancl.files.writing import (
    describe_write_failure,
    left_over_files,
    make_folder,
    reason,
    sync_folder,
    temporary_path,
    why_unwritable,
    write_atomically,
)

MAKE_ROOM = "Make room, or choose another {}"


def never(path: Path) -> bool:
    """Of what exists nothing is replaced."""
    return False


@dataclass(frozen=True)
class Output:
    """A file that ends in one of `suffixes`, or without suffixes a folder, that a command writes.

    What exists stays, unless `replaces` recognises an earlier output of the command. Files and new folders get their
    name when they are complete, so that a killed command can be repeated.

    Parameters
    ----------
    path
        the file or the folder
    suffixes
        those that a file may have, in lower case; empty: a folder
    setting
        what the user named it with, for messages
    replaces
        whether an existing file or folder may be replaced or written into
    """

    path: Path
    suffixes: tuple[str, ...] = ()
    setting: str = "out"
    replaces: Callable[[Path], bool] = never

    def check(self) -> Output:
        """Refuse what may not be written. Nothing is made."""
        name = f"{self.setting} {self.path}"
        if self.suffixes and self.path.suffix.lower() not in self.suffixes:
            raise BadInput(f"{name}: must end in {', '.join(self.suffixes)}")
        if self.path.is_dir() if self.suffixes else self.path.is_file():
            kinds = ("folder", "file") if self.suffixes else ("file", "folder")
            raise BadInput(f"{name}: is a {kinds[0]}; give a {kinds[1]}")
        folder = self.path.parent if self.suffixes else self.path
        if why := why_unwritable(folder):
            raise BadInput(f"{name}: cannot write in {folder} ({why}); choose another {self.setting}")
        if os.path.lexists(self.path) and not self.replaces(self.path):
            raise BadInput(f"{name}: exists; remove it, or choose another {self.setting}")
        return self

    def write(self, write: Callable[[Path], object]) -> None:
        """Let `write` fill the file."""
        make_folder(self.path.parent)
        self.check()  # another command may have made it in the meantime
        write_atomically(self.path, write, MAKE_ROOM.format(self.setting))

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder that takes its name at the end; after an error nothing is left of it."""
        new_parents = [path for path in self.path.absolute().parents if not path.exists()]
        make_folder(self.path.parent)
        for path in left_over_files(self.path.parent):  # of a command that was killed
            if path.is_dir() and not path.is_symlink() and path.name.startswith(f".{self.path.name}."):
                shutil.rmtree(path, ignore_errors=True)
        temporary = temporary_path(self.path)
        make_folder(temporary, exist_ok=False)
        try:
            yield temporary
            self.check()
            try:
                os.rename(temporary, self.path)
            except OSError as error:
                way_out = MAKE_ROOM.format(self.setting)
                raise BadInput(describe_write_failure(self.path, reason(error), way_out)) from None
            sync_folder(self.path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):  # folders that hold something are kept
                for path in new_parents:
                    path.rmdir()
