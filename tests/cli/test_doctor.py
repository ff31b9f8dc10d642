"""`supancl doctor`: what it says about installations and machines, good and bad, and that nothing stops it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from supancl.cli import doctor
from supancl.doctor import findings, installation, machine
from supancl.doctor.findings import Check, Finding, run_check, worst_status
from tests.files import assert_mentions, supancl

ROOT = Path(__file__).parents[2]


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


def test_the_whole_list(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    said = supancl(capsys, "doctor")
    assert said.code == 0, said.err
    assert all(len(line) <= 80 for line in said.out.splitlines() if str(tmp_path) not in line)
    assert_mentions(
        said.out, "Python", "packages", "extras", "GPU", "precision", "cores", "memory", "cache", "terminal"
    )
    assert_mentions(said.out, torch.__version__.partition("+")[0], str(tmp_path / "cache"))
    assert re.search(r"(?m)^(ok|note) +this folder +\S", said.out)
    assert not list(tmp_path.iterdir())


def test_json_has_every_check_with_its_figures(capsys):
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
    assert_mentions(said.out, "note", "second", "make it fast", "1 note")
    two_checks(Finding("second", "problem", "is broken", "mend it"))
    said = supancl(capsys, "doctor", "--json", "-")
    assert said.code == 1
    assert json.loads(said.out)["checks"][1] == {
        "name": "second", "status": "problem", "text": "is broken", "advice": "mend it"
    }  # fmt: skip
    assert_mentions(said.err, "second", "mend it")


def test_long_texts_are_wrapped_and_names_cannot_move_the_cursor(capsys, two_checks):
    two_checks(Finding("second", "ok", "a\x1b[2Kb " + "word " * 40, "do " * 40))
    said = supancl(capsys, "doctor")
    assert max(map(len, said.out.splitlines())) <= 80
    assert "\x1b" not in said.out


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
    said = supancl(capsys, "doctor")
    assert said.code == 1
    assert_mentions(said.out, "libcudart.so.13", "force-reinstall torch")
    assert re.search(r"(?m)^note +GPU +not checked", said.out)
    assert re.search(r"(?m)^\w+ +this folder +\d", said.out)


def test_the_worst_counts():
    assert worst_status([]) == "ok"
    assert worst_status([Finding("a", "note", ""), Finding("b", "problem", ""), Finding("c", "ok", "")]) == "problem"


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


def test_a_package_that_cannot_be_imported_is_named(monkeypatch, tmp_path):
    (tmp_path / "torchvision_stand_in.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    monkeypatch.syspath_prepend(tmp_path)
    assert_mentions(installation.why_not_imported("torchvision_stand_in"), "torchvision::nms")
    monkeypatch.setattr(installation, "why_not_imported", lambda module: "operator torchvision::nms does not exist")
    found = installation.check_package("torchvision", "torchvision", "99")
    assert found.status == "problem"
    assert_mentions(found.advice, "torch", "torchvision", "one release")


def test_oldest_versions_come_from_the_installed_package():
    assert {"torch", "timm", "pillow"} <= set(installation.oldest_versions())


def test_sources_without_an_installation_are_a_note(monkeypatch):
    def not_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "requires", not_installed)
    monkeypatch.setattr(installation, "version", not_installed)
    for (found,) in (installation.check_supancl(), installation.check_extras()):
        assert found.status == "note"
        assert_mentions(found.advice, "pip install -e .")


def test_an_extra_whose_package_is_missing(monkeypatch):
    required = ["torch>=2", 'openTSNE>=1 ; extra == "map"', 'onnx>=1; extra == "onnx"']
    monkeypatch.setattr(installation, "requires", lambda name: required)
    versions = {"onnx": "1.20"}
    monkeypatch.setattr(installation, "version", lambda name: versions[name] if name in versions else missing(name))

    def missing(name):
        raise PackageNotFoundError(name)

    assert installation.packages_missing("map") == ["openTSNE"]
    assert installation.packages_missing("onnx") == []
    versions["onnx"] = "0.9"
    assert installation.packages_missing("onnx") == ["onnx"]


def test_another_python_is_a_note(monkeypatch):
    assert only(installation.check_python()).status == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    assert_mentions(only(installation.check_python()).advice, "3.12")


def test_a_copy_that_pip_does_not_know(monkeypatch):
    monkeypatch.setattr(installation, "version", lambda name: "0.0.1")
    found = only(installation.check_supancl())
    assert found.status == "note"
    assert_mentions(found.advice, "0.0.1", "pip install -e .")


def test_a_variable_that_makes_a_gpu_slow(monkeypatch):
    for name in installation.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert list(installation.check_environment()) == []
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert only(installation.check_environment()).status == "note"


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


def test_a_gpu_in_use_an_old_one_and_one_that_fails(monkeypatch):
    Gpu(monkeypatch, free=20e9)
    assert_mentions(only(machine.check_gpu()).advice, "another process", "nvidia-smi")
    Gpu(monkeypatch, "Tesla T4", capability=(7, 5))
    found = only(machine.check_precision())
    assert found.status == "note"
    assert found.values["chosen"] == "fp32"

    def fail(*shape, **options):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr(torch, "ones", fail)
    found = only(machine.check_gpu())
    assert found.status == "problem"
    assert_mentions(f"{found.text} {found.advice}", "no kernel image", "--device cpu")


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


def test_the_compiler_on_a_gpu(monkeypatch):
    Gpu(monkeypatch)
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    found = only(machine.check_compiler())
    assert found.status == "note"
    assert_mentions(found.text, "triton")


def test_the_drivers_version(tmp_path):
    file = tmp_path / "version"
    assert machine.find_driver(file) == ""
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n")
    assert machine.find_driver(file) == "535.104.05"


def test_threads_and_cores(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    monkeypatch.setattr(machine, "core_limit", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = only(machine.check_cores())
    assert found.status == "note"
    assert_mentions(found.advice, "OMP_NUM_THREADS=1", "unset")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert only(machine.check_cores()).status == "ok"
    monkeypatch.setattr(machine, "core_limit", lambda: 2.0)
    assert_mentions(only(machine.check_cores()).advice, "OMP_NUM_THREADS=2")


@pytest.mark.parametrize(("text", "limit"), [("max 100000", None), ("150000 100000", 1.5), ("nonsense", None)])
def test_the_limit_of_a_container(tmp_path, text, limit):
    (tmp_path / "cpu.max").write_text(text)
    assert machine.core_limit(tmp_path) == limit
    assert machine.core_limit(tmp_path / "none") is None


def test_disks(monkeypatch, tmp_path):
    usage = {"free": 80e9}
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: type("Usage", (), usage))
    deep = tmp_path / "not" / "yet" / "there"
    found = machine.check_disk("cache", deep, "note", "elsewhere")
    assert found.status == "ok"
    assert_mentions(found.text, "80 GB")
    assert not deep.exists()
    usage["free"] = 1e9
    assert machine.check_disk("cache", deep, "note", "elsewhere").status == "note"
    usage["free"] = 1e6
    assert machine.check_disk("this folder", deep, "problem", "elsewhere").status == "problem"
    monkeypatch.setattr(machine, "why_unwritable", lambda folder: "Permission denied")
    found = machine.check_disk("this folder", deep, "problem", "go elsewhere")
    assert found.status == "problem"
    assert_mentions(f"{found.text} {found.advice}", "Permission denied", "go elsewhere")


def test_shared_memory(tmp_path):
    assert list(machine.check_shared_memory(tmp_path / "none")) == []
    found = only(machine.check_shared_memory(tmp_path))
    assert_mentions(found.text, str(tmp_path), "GB")


@pytest.mark.parametrize(("free", "status"), [(2e9, "note"), (20e9, "ok"), (None, "ok")])
def test_memory(monkeypatch, free, status):
    monkeypatch.setattr("supancl.training.cost.available_memory", lambda device: free)
    assert only(machine.check_memory()).status == status
