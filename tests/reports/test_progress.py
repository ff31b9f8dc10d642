"""Whatever takes long says how far it is: every command reports its long loops to the terminal."""

from __future__ import annotations

import io

import pytest

from supancl.reporter import Reporter, report_progress, report_to, track, track_task
from supancl.reports.terminal import SafeConsole, Terminal

# --- the mechanism ----------------------------------------------------------------------------------------------------


class Calls(Reporter):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def on_progress(self, task: str, done: int, total: int) -> None:
        self.calls.append((task, done, total))


def test_a_loop_reports_before_each_item_and_at_its_end() -> None:
    calls = Calls()
    with report_to(calls):
        assert list(track(iter("ab"), "letters", 2)) == ["a", "b"]
        for _ in track(range(9), "left early"):
            break
        assert list(track([], "nothing")) == []
        with track_task("at once"):
            report_progress("within", 1, 2)
    assert calls.calls == [
        ("letters", 0, 2), ("letters", 1, 2), ("letters", 2, 2), ("left early", 0, 9), ("left early", 9, 9),
        ("at once", 0, 1), ("within", 1, 2), ("at once", 1, 1),
    ]  # fmt: skip
    list(track("ab", "letters"))  # nobody listens
    assert len(calls.calls) == 8


def test_an_error_in_the_loop_is_not_hidden() -> None:
    with report_to(Calls()), pytest.raises(ZeroDivisionError), track_task("dividing"):
        _ = 1 / 0


@pytest.fixture
def terminal():
    """A terminal with a bar, and a second one on the same screen."""
    console = SafeConsole(stderr=False)
    console.file, console._force_terminal = io.StringIO(), True
    first, second = Terminal(console), Terminal(console)
    yield first, second
    for made in (first, second):
        made.on_end()


def test_one_bar_at_a_time(terminal) -> None:
    first, second = terminal
    first.on_progress("outer", 0, 3)
    second.on_progress("of another terminal", 0, 3)
    assert second.progress is None
    first.on_progress("inner", 1, 2)
    assert first.task == "inner"
    first.on_progress("inner", 2, 2)
    assert first.progress is None
    second.on_progress("of another terminal", 1, 3)
    assert second.progress is not None


def test_the_bar_of_a_run_stays(terminal) -> None:
    first, _ = terminal
    first._start("digits.supsiam", 100, 0)
    first.is_training = True
    first.on_progress("within the run", 1, 1)
    assert first.task == "digits.supsiam"
    first.on_end()
    assert not first.is_training
