"""Whatever takes long says how far it is: every command reports its long loops to the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from supancl.cli.commands import COMMANDS
from supancl.reporter import Reporter, report_progress, report_to, track, track_task
from supancl.reports.terminal import SafeConsole, Terminal
from tests.files import TINY, class_folders, supancl

SWEEP = ["--data", "digits", "--set", "data.limit=64", "--seeds", "1", "--jobs", "1", *TINY]
# the words of a command -> the jobs that it must report
LONG = {
    "data show photos --out show": {"listing photos", "reading images"},
    "data cache photos": {"decoding images into the cache"},
    "evaluate knn run --no-cache": {"taking features", "comparing features"},
    "evaluate linear run": {"choosing the ridge of a linear classifier", "fitting the linear classifier"},
    "evaluate linear run --probe sgd --epochs 2": {"epochs of the linear classifier"},
    "evaluate transfer run --data photos": {"choosing the ridge of a classifier", "fitting the classifier"},
    "evaluate fewshot run --data photos --ways 2 --shots 1 --episodes 100": {"episodes, in groups"},
    "evaluate finetune run --epochs 1 --lr 0.1": {"fine-tuning, lr 0.1"},
    "embed run --data photos --out features.csv --no-cache": {"taking features", "writing features.csv"},
    "predict run --data photos --all --with linear --out labels.csv": {"fitting the linear classifier"},
    "map run --data photos --out map.html": {"t-SNE, iterations", "comparing features"},
    "report run --out report.html": {"reading runs"},
    "runs .": {"reading runs"},
    "export run --out exported --format pt2": {"writing formats and comparing them"},
}
TRAINED = {  # these train, so they are slower
    "pretrain digits.supsiam --data photos --out new": {"reading images"},
    "sweep digits.supsiam --grid loss.alpha=0.5 --out sweep": {"training runs"},
}
SEEN_ELSEWHERE = {
    "alpha",  # trains and evaluates as sweep does
    "compare",
    "detect",  # tests/detect
    "paper",  # tests/paper
}
QUICK = {"recipes", "import"}  # a second or less
NEW = {"doctor", "audit"}  # tests of their own


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from supancl.cli import main

    root = tmp_path_factory.mktemp("progress")
    class_folders(root / "photos", ("cat", "dog", "owl"), each=12)
    arguments = ["pretrain", "digits.supsiam", "--data", str(root / "photos"), *TINY, "--out", str(root / "run")]
    assert main([*arguments, "--quiet"]) == 0
    return root


@pytest.fixture
def reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, int]]]:
    """What every terminal was told: task -> (done, total)."""
    calls: dict[str, list[tuple[int, int]]] = {}
    monkeypatch.setattr(
        Terminal, "on_progress", lambda self, task, done, total: calls.setdefault(task, []).append((done, total))
    )
    monkeypatch.setenv("SUPANCL_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    return calls


@pytest.mark.parametrize("words", LONG)
def test_long_loops_are_reported(words: str, reported, capsys) -> None:
    device = [] if words.split()[0] in ("data", "runs", "report", "export") else ["--device", "cpu"]
    said = supancl(capsys, *words.split(), *device)
    assert said.code == 0, said.err
    assert_whole(reported, LONG[words])


@pytest.mark.parametrize("words", TRAINED)
def test_commands_that_train(words: str, reported, capsys) -> None:
    flags = SWEEP if words.startswith("sweep") else TINY
    said = supancl(capsys, *words.split(), *flags)
    assert said.code == 0, said.err
    assert_whole(reported, TRAINED[words])
    if words.startswith("pretrain"):  # the bar of the run is enough for what the monitor does
        assert not {"taking features", "comparing features"} & set(reported)


def assert_whole(reported: dict[str, list[tuple[int, int]]], expected: set[str]) -> None:
    """Each of these jobs was reported, in order, until it was done."""
    assert expected <= set(reported)
    for task in expected:
        done, total = reported[task][-1]
        assert done == total > 0, task


def test_every_command_is_in_a_list_above() -> None:
    tried = {words.split()[0] for words in (*LONG, *TRAINED)}
    assert tried | SEEN_ELSEWHERE | QUICK | NEW >= set(COMMANDS)


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
