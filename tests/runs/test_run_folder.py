"""The folder of a run: one writer at a time, the next free number, files that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supancl import BadInput
from supancl.files import write_atomically
from supancl.runs.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from supancl.runs.folder import RunFolder, next_folder
from tests.helpers import TINY, assert_mentions, assert_refused, class_folders, contents, mentions, supancl

# --- one writer at a time ---------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from supancl.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).claim(resume=False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that writes in tmp_path/run until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_folder_in_use_refuses_a_second_writer_until_the_first_is_gone(tmp_path, holder, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "data")
    command = ("pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "run")
    before = contents(tmp_path)
    for more in ((), ("--resume",)):
        said = supancl(capsys, *command, *more)
        assert_refused(said, "run", "in use", f"process {holder.pid}", "out")
    assert contents(tmp_path) == before
    holder.kill()  # without a chance to tidy up
    holder.wait()
    assert supancl(capsys, *command).code == 0


def test_a_run_that_never_began_leaves_no_folder_and_no_lock(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), folder.claim(resume=False):
            raise ZeroDivisionError
        assert not folder.path.exists()


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ([], "digits.supsiam-001"),
        (["digits.supsiam-001", "digits.supsiam-007"], "digits.supsiam-008"),
        (["digits.supsiam-999"], "digits.supsiam-1000"),
        (["digitsxsupsiam-005", "digits.supsiam-nopool-006"], "digits.supsiam-001"),
    ],
)
def test_the_next_folder_has_the_next_free_number(tmp_path, taken, expected):
    for name in taken:
        (tmp_path / name).mkdir()
    assert next_folder("digits.supsiam", tmp_path) == tmp_path / expected


# --- whole or not there -----------------------------------------------------------------------------------------------


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(path: Path) -> None:
    path.write_text("half")
    full_disk()


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("broken", [None, "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, before, broken):
    path = tmp_path / "file.txt"
    if before is not None:
        path.write_text(before)
    if broken is not None:
        monkeypatch.setattr(os, broken, full_disk)
    with pytest.raises(BadInput, match=mentions(path, "No space left on device")):
        write_atomically(path, half if broken is None else lambda path: path.write_text("new"))
    assert contents(tmp_path) == ({} if before is None else {"file.txt": before.encode()})


def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it(tmp_path, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"step": step})
    before = contents(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(BadInput, match=mentions("step-000000003.pt", "No space left on device")):
            save_checkpoint(tmp_path, 3, {"step": 3})
    assert contents(tmp_path) == before
    save_checkpoint(tmp_path, 3, {"step": 3})
    assert [load_checkpoint(path)["step"] for path in checkpoints(tmp_path)] == [2, 3]
    assert len(contents(tmp_path)) == 2


def test_a_run_that_ends_worse_than_its_start_says_so_and_offers_the_start(tmp_path):
    folder = RunFolder(tmp_path)

    def ends_with(linear: float) -> str:
        row = {"linear_interval": [linear - 5, linear + 5]}
        rows = [{"kind": "start", "linear": 80.0, **row}, {"kind": "monitor", "linear": linear, **row}]
        folder.metrics_file.write_text("".join(json.dumps({"step": 1, "epoch": 0, **each}) + "\n" for each in rows))
        return folder.compare_with_start()

    folder.recipe_file.write_text(json.dumps({"init": {"from": "timm:resnet18", "digest": "0"}}))
    assert_mentions(ends_with(70.0), tmp_path, "70.0%", "80.0%", "predict timm:resnet18")
    assert ends_with(80.0) == ends_with(90.0) == ""
