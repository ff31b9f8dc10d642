"""Whatever takes long says how far it is: every command reports its long loops to the terminal."""

from __future__ import annotations

import io

import pytest

from supancl.reporter import Reporter, report_progress, report_to, track, track_task
from supancl.reports.terminal import SafeConsole, Terminal
from tests.reports.made import logged_run

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


def test_epochs_are_a_table_with_one_header_in_80_columns(tmp_path) -> None:
    console = SafeConsole(stderr=False)
    console.file = io.StringIO()
    terminal = Terminal(console)
    terminal.steps, terminal.epochs, terminal.last_printed = 8000, 2000, float("inf")
    for epoch in (0, 999):
        terminal.on_step(4 * epoch + 4, {"loss": -0.12345, "images_per_second": 123456.0})
        terminal.on_epoch({"epoch": epoch, "effective_rank": 100.24, "knn": 100.0, "linear": 99.94})
    header, *rows = console.file.getvalue().splitlines()
    assert header.split("  ")[-1].strip() == "left"
    assert len(rows) == 2
    assert max(map(len, (header, *rows))) <= 80
    ends = [header.index(name) + len(name) for name in ("epoch", "loss", "rank", "k-NN %", "linear %", "images/s")]
    for row, values in zip(rows, (("1/2000", "-0.1235"), ("1000/2000", "-0.1235")), strict=True):
        for value, end in zip((*values, "100.2", "100.0", "99.9", "123456"), ends, strict=True):
            assert row[:end].endswith(value)


def test_a_run_ends_with_a_verdict_and_the_next_command(tmp_path, capsys) -> None:
    folder = logged_run(tmp_path / "run", knns=(20.0, 30.0, 40.0, 64.0))
    Terminal(SafeConsole(stderr=False)).on_finished(folder.path)
    top, *lines, bottom = capsys.readouterr().out.splitlines()
    assert "Not evaluated" in top
    assert any("k-NN 64.0%" in line for line in lines)
    assert lines[-1].startswith("next: ")
    assert lines[-1].endswith(f" {folder.path}")
    assert set(bottom) <= set("─-")
