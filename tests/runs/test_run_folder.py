"""The folder of a run: one writer at a time, the next free number, files that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supancl import BadInput, Reporter, pretrain
from supancl.files import write_atomically
from supancl.runs.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from supancl.runs.folder import RunFolder, next_folder
from tests.files import TINY, assert_mentions, assert_refused, class_folders, contents, mentions, supancl
from tests.tiny import tiny_data, tiny_recipe

# --- one writer at a time ---------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from supancl.runs.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.create()
with folder.lock():
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


def test_the_lock_is_free_again_after_an_error(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    (folder.path / "recipe.json").write_text("{}")
    with pytest.raises(ZeroDivisionError), folder.lock():
        raise ZeroDivisionError
    with folder.lock():
        assert (folder.path / ".lock").read_text() == str(os.getpid())
        with (
            pytest.raises(BadInput, match=mentions("in use", f"process {os.getpid()}")),
            RunFolder(folder.path).lock(),
        ):
            raise AssertionError("two writers")


# --- a run that does not begin ----------------------------------------------------------------------------------------


def test_a_run_that_never_began_leaves_no_folder(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.create()
    with pytest.raises(ZeroDivisionError), folder.lock():
        raise ZeroDivisionError
    assert not folder.path.exists()


# --- numbers ----------------------------------------------------------------------------------------------------------


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
    assert not (tmp_path / expected).exists()


# --- what lies in it --------------------------------------------------------------------------------------------------


# --- metrics ----------------------------------------------------------------------------------------------------------


def rows(folder: RunFolder) -> list[int]:
    return [row["step"] for row in folder.metrics()]


def row_of(step: int) -> bytes:
    return json.dumps({"kind": "train", "step": step, "epoch": 0}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        b'{"step": 4, "lo',
        b"\x00\x00\x00",
        b"\xff\xfe{",
        b"4",
        b'{"loss": 1}',
        b'{"step": null}',
        b"[]",
        b"\n\n",
        b"\x00\x00" + row_of(3),
        b"\xff}",
        b"{}",
        b'{"step": 3, "epoch": 0}',
        b'{"kind": "train", "step": 3, "epoch": null}',
        b"[" * 100_000 + b"{}",
    ],
)
def test_a_line_that_is_no_row_is_dropped_on_resume_and_the_others_stay(tmp_path, damage):
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_bytes(row_of(1) + b"\n" + damage + b"\n" + row_of(2) + b"\n" + damage)
    (remark,) = folder.keep_metrics_until(5)
    assert_mentions(remark, "metrics.jsonl", "left out: 2")
    assert rows(folder) == [1, 2]
    assert folder.metrics_file.read_bytes() == row_of(1) + b"\n" + row_of(2) + b"\n"


def test_a_resumed_run_logs_every_step_once(tmp_path):
    class Stop(Reporter):
        def on_step(self, step, row):
            if step == 4:
                raise ZeroDivisionError

    recipe, data = tiny_recipe(train__checkpoint_every=3), tiny_data()
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        pretrain(recipe, data, folder.path, reporter=Stop())
    assert rows(folder) == [1, 2, 3, 4]
    with open(folder.metrics_file, "a") as file:
        file.write('{"kind": "train", "st')  # killed while writing
    pretrain(None, data, folder.path, resume=True)
    logged = [row["step"] for row in folder.metrics() if row["kind"] == "train"]
    assert logged == list(range(1, 11))


# --- whole or not there -----------------------------------------------------------------------------------------------


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(path: Path) -> None:
    path.write_text("half")
    full_disk()


def half_in_torch(path: Path) -> None:
    path.write_text("half")
    raise RuntimeError("basic_ios::clear: iostream error\nwith more below")


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize(
    ("write", "broken", "reason"),
    [
        (full_disk, None, "No space left on device"),
        (half, None, "No space left on device"),
        (half_in_torch, None, "basic_ios::clear: iostream error"),
        (lambda path: path.write_text("new"), "fsync", "No space left on device"),
        (lambda path: path.write_text("new"), "replace", "No space left on device"),
    ],
    ids=["at once", "half way", "inside torch", "when synced", "when renamed"],
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, before, write, broken, reason):
    path = tmp_path / "file.txt"
    if before is not None:
        path.write_text(before)
    if broken is not None:
        monkeypatch.setattr(os, broken, full_disk)
    with pytest.raises(BadInput, match=mentions(path, reason)):
        write_atomically(path, write)
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
