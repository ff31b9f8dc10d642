"""Failures that a user can meet, each with the exit code of the command line (docs/files.md)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches


class SupanclError(Exception):
    """A failure explained in one line: the thing, the place and the way out."""

    exit_code = 1


class BadInput(SupanclError):
    """The request or the data cannot be used as given."""

    exit_code = 2


class NoLevels(BadInput):
    """`data.hierarchy` finds no levels in the class names of a source."""


class Stopped(SupanclError):
    """Training stopped automatically; `cause` is the message without the advice."""

    def __init__(self, cause: str, advice: str = "") -> None:
        super().__init__(f"{cause}; {advice}" if advice else cause)
        self.cause = cause


class Collapsed(Stopped):
    """Training stopped because the representation collapsed."""

    exit_code = 3


class NonFinite(Stopped):
    """Training stopped because the loss is not a finite number."""

    exit_code = 4


class CheckFailed(SupanclError):
    """A numerical check failed; `result` is what the command computed, so that it can still be written."""

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
        return type(self), (str(self), self.signal_number)  # a sweep pickles it between processes


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, or a size is beyond any memory. torch raises a RuntimeError for both."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return "allocate memory" in text or "Storage size calculation overflowed" in text


_program_name = "supancl"


def set_program_name(name: str) -> None:
    """Set the name that messages use for the command line: a script that calls `supancl.cli` has its own."""
    global _program_name
    _program_name = name


def program_name() -> str:
    """How the user calls the command line: `supancl`, or `python FILE`."""
    return _program_name


HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format, lone surrogate, line and paragraph separator
JOINERS = "\u200c\u200d"  # parts of words in Persian and Hindi, and of emoji


def make_visible(text: str, keep: str = "") -> str:
    """The text with characters that a terminal or an editor acts on written as escapes; those in `keep` stay.

    A file name may move the cursor, begin a line or turn the direction of reading, and so forge what we say.

    >>> make_visible("cat" + chr(10) + chr(27) + "[2K")
    'cat\\\\n\\\\x1b[2K'
    """
    hidden = {each for each in text if unicodedata.category(each) in HIDDEN_CATEGORIES} - {*keep, *JOINERS}
    return text.translate({ord(each): each.encode("unicode_escape").decode() for each in hidden})


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """The end of a message about an unknown name: '; did you mean X?', or the names that are valid."""
    names = sorted(valid_names)
    if close := get_close_matches(name, names, n=1, cutoff=0.5):
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names[:50])}" + ", ..." * (len(names) > 50)
