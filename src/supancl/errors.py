"""What can go wrong for a user, each with the exit code of the command line (docs/own-data.md)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SupanclError(Exception):
    """A failure explained in one line: what, where, and the way out."""

    exit_code = 1


class BadInput(SupanclError):
    """The request or the data cannot be used as given."""

    exit_code = 2


class Stopped(SupanclError):
    """Training stopped by itself; `what` is why, without the ways out."""

    def __init__(self, what: str, ways: str = "") -> None:
        super().__init__(f"{what}; {ways}" if ways else what)
        self.what = what


class Collapsed(Stopped):
    """Training stopped because the representation collapsed."""

    exit_code = 3


class NonFinite(Stopped):
    """Training stopped because the loss is not a finite number."""

    exit_code = 4


class CheckFailed(SupanclError):
    """A numerical check did not hold; `result` is what would have been returned, to be written all the same."""

    exit_code = 1

    def __init__(self, message: str, result: dict[str, object]) -> None:
        super().__init__(message)
        self.result = result


class Interrupted(SupanclError):
    """A signal ended the run after its state was saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.signal_number)  # it crosses processes in a study


_program = "supancl"


def call_it(name: str) -> None:
    """Whoever gives the command line another name, a file of one's own, is told it in every way out."""
    global _program
    _program = name


def program() -> str:
    """How the command line is called, for commands that a user is to type: `supancl`, or `python FILE`."""
    return _program


def counted(number: int, one: str, several: str | None = None, form: str = "") -> str:
    """A number with its noun, which is `one` or, of any other number, `several` (usually that with an s).

    >>> counted(1, "image"), counted(0, "class", "classes"), counted(1200, "file is", "files are", ",")
    ('1 image', '0 classes', '1,200 files are')
    """
    return f"{number:{form}} {one if number == 1 else f'{one}s' if several is None else several}"


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' or the known names, to end an error about an unknown name."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    shown = names if len(names) <= 50 else names[:10]
    return f"; known: {', '.join(shown)}" + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
