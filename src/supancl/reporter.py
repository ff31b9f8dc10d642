"""How training reports progress: to the terminal, a logger or a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Reporter:
    """Receives progress reports. This one ignores them; the one of the terminal is in reports/terminal.py."""

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def show(self, table: Any) -> None: ...

    def on_progress(self, task: str, done: int, total: int) -> None: ...

    def on_start(self, recipe: Any, data: Any, folder: Path, device: str, step: int, steps: int) -> None: ...

    def on_step(self, step: int, row: dict[str, Any] | None) -> None: ...

    def on_epoch(self, row: dict[str, Any]) -> None: ...

    def on_end(self) -> None: ...

    def on_finished(self, folder: Path) -> None: ...


class ForwardingReporter(Reporter):
    """Passes every report on to another reporter; a subclass adds what it does with some of them."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter


def _forward(name: str) -> Callable[..., None]:
    return lambda self, *args: getattr(self.reporter, name)(*args)


for _name in [name for name in vars(Reporter) if not name.startswith("_")]:
    setattr(ForwardingReporter, _name, _forward(_name))


# --- progress of loops that are far below the command -----------------------------------------------------------------

_current: ContextVar[Reporter | None] = ContextVar("reporter", default=None)
_default: list[Callable[[bool | None], Reporter]] = [lambda verbose: Reporter()]


def set_default_reporter(make: Callable[[bool | None], Reporter]) -> None:
    """Set what makes the reporter of calls from Python: one that prints, or not, or as suits the output (None)."""
    _default[0] = make


def default_reporter(verbose: bool | None) -> Reporter:
    return _default[0](verbose)


def current_reporter() -> Reporter:
    """The reporter of `report_to`, which the command line sets once, or the default one."""
    return _current.get() or default_reporter(None)


def has_reporter() -> bool:
    """Whether `report_to` was called, as by the command line."""
    return _current.get() is not None


def say(text: str) -> None:
    """Print one line of a result."""
    current_reporter().note(text)


def show(table: Any) -> None:
    """Print a table, or text of several lines."""
    current_reporter().show(table)


def warn(text: str) -> None:
    """Print a warning, also if the command is quiet."""
    current_reporter().warn(text)


@contextmanager
def report_to(reporter: Reporter) -> Iterator[None]:
    """Within the block, the functions below report to this reporter. The command line sets it once."""
    token = _current.set(reporter)
    try:
        yield
    finally:
        _current.reset(token)


class ProgressFunction(Reporter):
    """Calls a function with progress, and ignores all else."""

    def __init__(self, function: Callable[[str, int, int], None]) -> None:
        self.function = function

    def on_progress(self, task: str, done: int, total: int) -> None:
        self.function(task, done, total)


def report_progress(task: str, done: int, total: int) -> None:
    """`on_progress` of the current reporter."""
    current_reporter().on_progress(task, done, total)


def track(items: Iterable[T], task: str, total: int | None = None) -> Iterator[T]:
    """The items; the current reporter learns how many of them are done. Without a length they need a `total`.

    >>> list(track("ab", "reading letters"))
    ['a', 'b']
    """
    reporter, done = current_reporter(), 0
    total = len(items) if total is None and isinstance(items, Collection) else total or 0
    if total == 0:
        yield from items
        return
    reporter.on_progress(task, 0, total)
    try:
        for item in items:
            yield item
            done += 1
            reporter.on_progress(task, done, total)
    finally:
        if done < total:  # the loop was left early
            reporter.on_progress(task, total, total)


@contextmanager
def track_task(task: str) -> Iterator[None]:
    """Report a task that cannot be divided: how long it has taken so far is seen, but not how long it will take."""
    for _ in track((None,), task):
        yield
