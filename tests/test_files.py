"""What lies beside a path that is not there; who may read what is written."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from supancl.data.opening import open_data
from supancl.data.splits import DataSpec
from supancl.errors import BadInput
from supancl.files import did_you_mean_path, temporary_path, write_atomically, write_text, writing
from supancl.files.writing import LEFT_OVER_AGE
from supancl.runs.folder import RunFolder
from supancl.runs.importing import open_encoder
from tests.files import mentions


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


def test_a_mount_that_refuses_other_modes_gets_the_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "encoder.safetensors"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "chmod", refuse)

    def write(temporary: Path) -> None:
        temporary.write_text("whole")
        os.chmod(temporary, 0o700)  # as no umask has it

    write_atomically(path, write)
    assert path.read_text() == "whole"


def test_processes_of_one_number_in_two_containers_write_one_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "index.zip"

    def other(temporary: Path) -> None:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(writing, "PROCESS_TOKEN", "another")
            write_text(path, "theirs")
        assert temporary.exists()  # theirs had another name, else it would have become the file, or gone
        temporary.write_text("ours")

    write_atomically(path, other)
    assert path.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_and_the_folder_that_names_it_are_synced(tmp_path: Path, monkeypatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()))
    write_text(tmp_path / "file.txt", "new")
    assert [path.name for path in synced] == [writing.temporary_path(tmp_path / "file.txt").name, tmp_path.name]


def test_what_killed_processes_left_is_removed_and_what_others_are_writing_is_not(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "evaluate").mkdir()
    old, new = temporary_path(tmp_path / "evaluate" / "knn.json"), tmp_path / "evaluate" / ".new.json.1-ab.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (time.time() - 2 * LEFT_OVER_AGE,) * 2)
    folder.remove_temporary_files()
    assert (old.exists(), new.exists()) == (False, True)
