"""Commands in one process, again and again: open files, threads and memory do not grow."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path

import pytest

from supancl.cli.console import Terminal, make_console
from tests.faults.fuzz import quiet_main
from tests.files import TINY, class_folders

CALLS = 200
# a training, its evaluation or a look at images every so many calls; the others are listings and refused input
TRAIN_EVERY = 5 if os.environ.get("SUPANCL_FAULTS") == "full" else 25

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.filterwarnings("ignore")
def test_main_called_repeatedly_leaks_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "data")
    commands = [
        ("pretrain", "digits.supsiam", *TINY, "--set", "data.limit=16", "--out"),
        ("evaluate", "knn", "out-0"),
        ("data", "show", "data", "--out"),
    ]
    cheap = [("recipes",), ("recipes", "digits.byol"), ("evaluate", "knn", "missing"), ("pretrain", "--epochs"),
             ("data", "cache", "--list"), ("recipes", "x", "--set", "loss.alpha=[")]  # fmt: skip

    def call(number: int) -> None:
        if number % TRAIN_EVERY:
            assert quiet_main(*cheap[number % len(cheap)]) in (0, 2)
            return
        command = commands[number // TRAIN_EVERY % len(commands)]
        assert quiet_main(*command, *([f"out-{number}"] if command[-1] == "--out" else [])) == 0

    for number in range(0, 6 * TRAIN_EVERY, TRAIN_EVERY):  # each command twice: what is loaded once is no leak
        call(number)
    for number in range(1, 2 * len(cheap)):
        call(number + 6 * TRAIN_EVERY * CALLS)
    gc.collect()
    files, threads, memory = open_files(), threading.active_count(), resident_bytes()
    objects = len(gc.get_objects())
    for number in range(6 * TRAIN_EVERY, 6 * TRAIN_EVERY + CALLS):
        call(number)
    gc.collect()
    assert open_files() <= files
    assert threading.active_count() <= threads
    assert len(gc.get_objects()) - objects < 20 * CALLS  # 20 small objects per call: caches of the libraries
    assert resident_bytes() - memory < 100e6


def test_a_terminal_is_forgotten():
    """It once stayed registered for the end of the process, with all that it holds."""
    reference = weakref.ref(Terminal(make_console(quiet=True, json_to_stdout=False)))
    gc.collect()
    assert reference() is None
