"""What lies beside a path that is not there; who may read what is written."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from supancl.files import LEFT_OVER_AGE, Output, did_you_mean_path, temporary_path, write_atomically, write_text
from supancl.runs.folder import RunFolder
from supancl.runs.importing import open_encoder
from tests.helpers import mentions


def test_a_slip_in_a_path_is_answered_with_what_lies_beside_it(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert did_you_mean_path("photo") == "; did you mean 'photos'?"
    assert did_you_mean_path(tmp_path / "phtos") == f"; did you mean {str(tmp_path / 'photos')!r}?"
    assert did_you_mean_path("nothing/like/it") == did_you_mean_path("birds") == did_you_mean_path("a\0b") == ""
    with pytest.raises(BadInput, match=mentions("photo", "photos")):
        open_data(DataSpec(source="photo"), 3)
    with pytest.raises(BadInput, match=mentions("digit", "digits")):
        open_data(DataSpec(source="digit"), 3)
    with pytest.raises(BadInput, match=mentions("photos", "photoss")):
        open_encoder("photoss")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_who_may_read_a_file_is_what_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    """safetensors makes its files for their owner alone: colleagues could not have opened a run's encoder."""
    tensors, text = tmp_path / "encoder.safetensors", tmp_path / "recipe.json"
    before = os.umask(mask)
    try:
        for _ in range(2):  # over one that is there, too
            write_atomically(tensors, lambda path: save_file({"a": torch.zeros(2)}, path))
            write_text(text, "{}")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tensors, text)] == [mode, mode]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.safetensors", "recipe.json"]


def test_the_file_and_the_folder_that_names_it_are_synced(tmp_path: Path, monkeypatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()))
    write_text(tmp_path / "file.txt", "new")
    assert [path.name for path in synced] == [temporary_path(tmp_path / "file.txt").name, tmp_path.name]


def test_what_killed_processes_left_is_removed_and_what_others_are_writing_is_not(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "evaluate").mkdir()
    old, new = temporary_path(tmp_path / "evaluate" / "knn.json"), tmp_path / "evaluate" / ".new.json.1-ab.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (time.time() - 2 * LEFT_OVER_AGE,) * 2)
    with folder.claim(resume=False):
        pass
    assert (old.exists(), new.exists()) == (False, True)


# --- where a command may write ----------------------------------------------------------------------------------------


def test_what_exists_stays_unless_the_command_knows_it(tmp_path: Path) -> None:
    file, folder = tmp_path / "labels.csv", tmp_path / "audit"
    Output(file, (".csv",)).check().write(lambda path: path.write_text("ours"))
    folder.mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere")
    for output in (
        Output(file, (".csv",)),
        Output(tmp_path / "link.csv", (".csv",)),
        Output(tmp_path / "labels.txt", (".csv",)),
        Output(file / "below.csv", (".csv",)),
        Output(folder, ("",)),
        Output(folder),
        Output(file),
    ):
        with pytest.raises(BadInput, match=mentions(f"out {output.path}")):
            output.check()
    Output(file, (".csv",), replaces=lambda path: path.read_text() == "ours").check().write(Path.touch)
    assert file.read_text() == ""


def test_a_folder_gets_its_name_when_it_is_complete_and_remains_of_a_kill_go(tmp_path: Path) -> None:
    output = Output(tmp_path / "a/b/out")
    with suppress(KeyboardInterrupt), output.check().folder() as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    output.path.parent.mkdir(parents=True)
    for name in (".out.1-abc.tmp", ".other.1-abc.tmp", ".out.2-abc.tmp"):
        (output.path.parent / name).mkdir()
    os.utime(output.path.parent / ".out.1-abc.tmp", (0, 0))  # long ago: no process writes to it any more
    with output.check().folder() as folder:
        (folder / "whole").touch()
    assert sorted(path.name for path in output.path.parent.iterdir()) == [".other.1-abc.tmp", ".out.2-abc.tmp", "out"]
    assert (output.path / "whole").exists()
