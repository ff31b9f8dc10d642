"""What a person is told: how far a run is where there is no terminal, that it is finished, which version this is."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import supancl as package
from supancl.cli import doctor
from tests.files import TINY, class_folders, supancl


def test_the_way_out_of_a_finished_run_can_be_gone(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "data")
    command = ("pretrain", "digits.supsiam", *TINY, "--data", "data")
    assert supancl(capsys, *command, "--out", "run").code == 0
    assert supancl(capsys, *command, "--resume", "--out", "run").out.count("is finished, at step 2 of 2") == 1
    assert supancl(capsys, *command, "--epochs", "2", "--init", "run", "--out", "other").code == 0


def test_the_version_is_one_line(capsys) -> None:
    said = supancl(capsys, "--version")
    release = torch.__version__.partition("+")[0]
    assert said == (0, f"supancl {package.__version__} (torch {release})\n", "")


def test_the_doctor_lists_what_is_installed_and_fails_where_training_is_not_possible(
    tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path))
    said = supancl(capsys, "doctor", "--json", tmp_path / "doctor.json")
    names = [finding["name"] for finding in json.loads((tmp_path / "doctor.json").read_text())["checks"]]
    assert (said.code, {"torch", "timm", "device", "cache"} - set(names)) == (0, set())
    monkeypatch.setitem(doctor.PACKAGES, "torch", "no_such_module")
    said = supancl(capsys, "doctor")
    assert (said.code, "PROBLEM  torch" in said.out) == (1, True)
