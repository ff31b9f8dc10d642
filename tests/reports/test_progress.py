"""Whatever takes long says how far it is: every command reports its long loops to the terminal."""

from __future__ import annotations

import io

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


def test_one_bar_at_a_time() -> None:
    """An inner job takes the bar, and the outer one has it back afterwards."""
    console = SafeConsole(stderr=False)
    console.file, console._force_terminal = io.StringIO(), True
    terminal = Terminal(console)
    terminal.on_progress("outer", 0, 3)
    terminal.on_progress("inner", 1, 2)
    assert terminal.task == "inner"
    terminal.on_progress("inner", 2, 2)
    assert terminal.progress is None
    terminal.on_progress("outer", 1, 3)
    assert terminal.progress is not None
    terminal.on_end()
    assert terminal.progress is None
