"""The sweep runner: runs by name, several at once, failures, and what happens when a process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supancl import recipe
from supancl.cli import main
from supancl.sweeps import runner
from supancl.sweeps.runner import default_jobs, open_held_out
from tests.forked import Started
from tests.helpers import archive, class_folders, poisoned

SMALL = ["--set", "data.limit=128", "--set", "encoder.width=16", "--device", "cpu", "--seeds", "2"]
ALPHAS = ["compare", "digits.supsiam", "--set", "loss.alpha=0,1", *SMALL]


def test_an_auto_recipe_is_fitted_once_so_that_its_runs_can_be_continued(tmp_path: Path) -> None:
    base = recipe("auto.supsiam").with_set({"data.source": str(archive(tmp_path / "x.npz")), "encoder.channels": 1})
    fitted, _ = open_held_out(base, "a test")
    assert fitted.train.batch_size == 16


def test_as_many_runs_at_once_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "available_cores", lambda: 8)
    made = recipe("digits.supsiam").with_set({"train.device": "cpu"})
    for free, jobs in ((1e12, 8), (3e9, 3), (1e6, 1), (None, 8)):
        monkeypatch.setattr(runner, "available_memory", lambda device, free=free: free)
        assert default_jobs(made) == jobs


# --- failures ---------------------------------------------------------------------------------------------------------


def fail_at(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """These runs meet a loss that is not a number in their second epoch; gives the names of all that were trained."""
    plain, begun = runner.train, []

    def train(made, out, **options):
        begun.append(out.name)
        with pytest.MonkeyPatch.context() as patched:
            if out.name in names:
                poisoned(patched, {5})
            return plain(made, out=out, **options)

    monkeypatch.setattr(runner, "train", train)
    return begun


def test_a_run_that_fails_does_not_end_the_others_and_goes_on_when_asked(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    command = [*ALPHAS, "--epochs", "2", "--batch-size", "32", "--jobs", "1", "--out", str(out)]
    with monkeypatch.context() as patched:
        begun = fail_at(patched, "alpha-0.0-seed-0", "alpha-1.0-seed-0", "alpha-1.0-seed-1")
        assert main(command) == 4
        assert len(begun) == 4
    result = json.loads((out / "results.json").read_text())
    assert [bool(row["failed"]) for row in result["rows"]] == [True, False, True, True]
    assert all((row["linear"] is None) == bool(row["failed"]) for row in result["rows"])
    first, second = result["summary"]
    assert (first["failed"], first["n"], first["linear"]) == (1, 2, result["rows"][1]["linear"])
    assert (second["failed"], second["linear"]) == (2, None)
    # the same again lists them and trains nothing; only who asks for it has them go on
    begun = fail_at(monkeypatch)
    assert main(command) == 4
    assert begun == []
    assert main([*command, "--retry"]) == 0
    assert begun == ["alpha-0.0-seed-0", "alpha-1.0-seed-0", "alpha-1.0-seed-1"]
    assert not list(out.glob("*/stopped.json"))


def test_a_study_does_not_go_on_with_other_data_or_settings(tmp_path: Path) -> None:
    """Finished runs are only read: on data that changed, they would be judged on images they were trained on."""
    class_folders(tmp_path / "data", ("a", "b", "c"), each=12)
    tiny = ["--set", "encoder.name=cnn", "--set", "encoder.width=8", "--set", "views.size=8", "--batch-size", "8"]
    tiny += ["--set", "heads.projector.hidden=[16]", "--set", "heads.projector.out=16", "--epochs", "1"]
    command = ["compare", "cifar100.supsiam", "cifar100.simsiam", "--data", str(tmp_path / "data"), "--seeds", "1"]
    command += [*tiny, "--device", "cpu", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    before = (tmp_path / "out" / "results.json").read_text()
    assert main([*command, "--batch-size", "4"]) == 2
    class_folders(tmp_path / "more", ("a",), each=4)
    for file in (tmp_path / "more" / "a").iterdir():
        file.rename(tmp_path / "data" / "a" / f"more-{file.name}")
    assert main(command) == 2
    assert (tmp_path / "out" / "results.json").read_text() == before


# --- several at once --------------------------------------------------------------------------------------------------

LONG = [*ALPHAS, "--epochs", "5000", "--jobs", "2"]


def test_a_signal_ends_a_study_of_several_jobs(tmp_path: Path, forks) -> None:
    out = tmp_path / "study"
    process = Started(forks, tmp_path / "process", *LONG, "--out", str(out), workers=True)
    process.wait_until(lambda: list(out.glob("*/checkpoints/*.pt")))
    process.send_signal(signal.SIGTERM)
    ended, errors = process.end()
    assert ended == 143, errors
    assert len(list(out.iterdir())) <= 2  # two had begun; no other begins


def workers_of(pid: int) -> list[int]:
    """The processes that train, below this one: multiprocessing's own helper is none of them."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's list of processes")
@pytest.mark.parametrize("killed", ["a worker", "the command"])
def test_who_is_killed_takes_the_others_along_and_these_save(killed: str, tmp_path: Path) -> None:
    out = tmp_path / "study"
    command = [sys.executable, "-m", "supancl", *LONG, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(out.glob("*/checkpoints/*.pt"))) >= 2)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    os.kill(process.pid if killed == "the command" else workers[0], signal.SIGKILL)
    errors = process.communicate(timeout=60)[1]
    wait_for(lambda: not any(map(is_alive, workers)))
    assert process.returncode == (-signal.SIGKILL if killed == "the command" else 2), errors
    assert killed == "the command" or "was killed" in errors
