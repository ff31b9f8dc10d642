"""`supancl doctor`: what it says about installations and machines, good and bad, and that nothing stops it."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from supancl.cli import doctor
from supancl.doctor import findings, installation, machine
from supancl.doctor.findings import Check, Finding, run_check
from tests.files import assert_mentions, supancl

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def only(check) -> Finding:
    (finding,) = check
    return finding


@pytest.fixture
def two_checks(monkeypatch):
    """The command with a check that is fine and one that the test chooses."""

    def choose(*found: Finding) -> None:
        checks = (Check("first", lambda: [Finding("first", "ok", "as it should be")]), Check("second", lambda: found))
        monkeypatch.setattr(doctor, "CHECKS", checks)

    return choose


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_whole_list_without_the_trial(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "PROBE_BYTES", 2**20)
    said = supancl(capsys, "doctor", "--quick")
    assert said.code == 0, said.err
    assert all(len(line) <= 80 for line in said.out.splitlines() if str(tmp_path) not in line)
    assert_mentions(
        said.out, "Python", "packages", "extras", "GPU", "precision", "cores", "memory", "cache", "terminal"
    )
    assert_mentions(said.out, torch.__version__.partition("+")[0], str(tmp_path / "cache"))
    assert re.search(r"(?m)^(ok|note) +this folder +\S", said.out)
    assert not list(tmp_path.iterdir())  # what was written to measure the disk is gone


def test_json_has_every_check_with_its_figures(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", [check for check in doctor.CHECKS if not check.is_slow])
    said = supancl(capsys, "doctor", "--json", "-")
    result = json.loads(said.out)
    assert result["status"] in ("ok", "note")
    by_name = {row["name"]: row for row in result["checks"]}
    assert by_name["packages"]["values"]["torch"].startswith(torch.__version__.partition("+")[0])
    assert by_name["this folder"]["values"]["free_bytes"] > 0
    assert set(by_name["extras"]["values"]["present"] + by_name["extras"]["values"]["missing"]) == set(
        installation.EXTRAS
    )


def test_notes_are_success_and_a_problem_is_a_failed_check(capsys, two_checks):
    two_checks(Finding("second", "note", "is slow", "make it fast"))
    said = supancl(capsys, "doctor")
    assert said.code == 0
    two_checks(Finding("second", "problem", "is broken", "mend it"))
    said = supancl(capsys, "doctor", "--json", "-")
    assert said.code == 1
    assert json.loads(said.out)["checks"][1] == {
        "name": "second", "status": "problem", "text": "is broken", "advice": "mend it"
    }  # fmt: skip


@pytest.mark.parametrize("error", [RuntimeError("broken"), OSError(5, "Input/output error"), ZeroDivisionError()])
def test_a_check_that_fails_is_a_finding(error):
    def fail():
        yield Finding("x", "ok", "half of it worked")
        raise error

    first, second = run_check(Check("x", fail))
    assert first.status == "ok"
    assert second.status == "note"
    assert type(error).__name__ in second.text


def test_without_torch_the_rest_is_still_checked(capsys, monkeypatch):
    monkeypatch.setattr(findings, "why_no_torch", lambda: "libcudart.so.13: cannot open shared object file")
    monkeypatch.setattr(installation, "why_no_torch", findings.why_no_torch)
    said = supancl(capsys, "doctor", "--quick")
    assert said.code == 1
    assert_mentions(said.out, "libcudart.so.13")
    assert re.search(r"(?m)^note +GPU +not checked", said.out)
    assert re.search(r"(?m)^\w+ +this folder +\d", said.out)


# --- installation -----------------------------------------------------------------------------------------------------


def test_extras_are_those_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(installation.EXTRAS) == set(extras) - {"dev", "bench", "extras"}


def test_tested_versions_are_those_of_the_constraints():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    for package, (_, newest) in installation.TESTED.items():
        assert pinned[package] == newest, package


@pytest.mark.parametrize(
    ("installed", "status", "nouns"),
    [("0.1.0", "problem", ("0.1.0", "too old", "timm>=1.0.20")), ("99.0", "note", ("newer", "1.0.30")),
     ("1.0.30", "ok", ()), (None, "problem", ("not installed", "pip install"))],
)  # fmt: skip
def test_versions_of_packages(monkeypatch, installed, status, nouns):
    def version(package):
        if installed is None:
            raise PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(installation, "version", version)
    monkeypatch.setattr(installation, "oldest_versions", lambda: {"timm": "1.0.20"})
    found = installation.check_package("timm", "timm", "1.0.30")
    assert found.status == status
    assert_mentions(f"{found.text} {found.advice}", *nouns)


# --- machine ----------------------------------------------------------------------------------------------------------


class Gpu:
    """A GPU as torch.cuda shows it."""

    def __init__(self, monkeypatch, name="NVIDIA H200", free=140e9, capability=(9, 0), build="13.0", driver="580.1.2"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: name is not None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), int(150e9)))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        supported = lambda including_emulation: capability >= (8, 0)  # noqa: E731
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(machine, "find_driver", lambda: driver)
        ones = torch.ones
        monkeypatch.setattr(torch, "ones", lambda *shape, device=None, **options: ones(*shape, **options))


def test_a_gpu(monkeypatch):
    Gpu(monkeypatch)
    found = only(machine.check_gpu())
    assert found.status == "ok"
    assert_mentions(found.text, "NVIDIA H200", "140 of 150 GB", "CUDA 13.0", "580.1.2")
    assert_mentions(only(machine.check_precision()).text, "bf16", "tf32")


@pytest.mark.parametrize(
    ("build", "driver", "hidden", "status", "nouns"),
    [(None, "580.1.2", False, "note", ("CPU build", "install torch with CUDA")),
     ("13.0", "470.1", False, "note", ("cannot use it", "update the driver")),
     ("13.0", "580.1.2", True, "note", ("CUDA_VISIBLE_DEVICES", "unset")),
     ("13.0", "", False, "ok", ("CUDA 13.0 build", "the CPU build")),
     (None, "", False, "ok", ("CPU build", "none"))],
)  # fmt: skip
def test_no_gpu_that_torch_can_use(monkeypatch, build, driver, hidden, status, nouns):
    Gpu(monkeypatch, name=None, build=build, driver=driver)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = only(machine.check_gpu())
    assert found.status == status
    assert_mentions(f"{found.text} {found.advice}", *nouns)
    assert only(machine.check_precision()).status == "ok"
    assert list(machine.check_compiler()) == []
