"""`supancl doctor`: what it says about installations and machines, good and bad, and that nothing stops it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from supancl.cli import doctor
from supancl.cli.doctor import Finding
from tests.files import assert_mentions, supancl


def only(check) -> Finding:
    (finding,) = check
    return finding


def failing(error: Exception) -> Callable[..., None]:
    def fail(*given, **options):
        raise error

    return fail


def test_the_whole_list_without_the_trial(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    said = supancl(capsys, "doctor", "--json", "found.json")
    assert said.code == 0, said.err
    assert all(len(line) <= 80 for line in said.out.splitlines() if str(tmp_path) not in line)
    result = json.loads(Path("found.json").read_text())
    assert {row["name"] for row in result["checks"]} >= {*doctor.CHECKS}
    assert_mentions(said.out, torch.__version__.partition("+")[0], str(tmp_path / "cache"), *doctor.CHECKS)


def test_notes_are_success_and_a_problem_is_a_failed_check(capsys, monkeypatch):
    for status, code in (("ok", 0), ("note", 0), ("problem", 1)):
        found = Finding("second", status, "a\x1b[2Kb " + "word " * 40, "mend it")
        monkeypatch.setattr(doctor, "CHECKS", {"second": lambda found=found: iter([found])})
        said = supancl(capsys, "doctor", "--json", "-")
        assert said.code == code
        assert json.loads(said.out)["status"] == status
        assert_mentions(said.err, "mend it")
        assert max(map(len, said.err.splitlines())) <= 80
        assert "\x1b" not in said.err


def test_without_torch_the_rest_is_still_checked(capsys, monkeypatch):
    error = OSError("libcudart.so.13: cannot open shared object file")
    monkeypatch.setattr(doctor, "import_module", failing(error))
    monkeypatch.setitem(doctor.CHECKS, "GPU", failing(error))
    said = supancl(capsys, "doctor")
    assert said.code == 1
    assert_mentions(said.out, "libcudart.so.13", "force-reinstall -U torch")
    assert re.search(r"(?m)^note +GPU +could not be checked", said.out)
    assert re.search(r"(?m)^\w+ +this folder +\d", said.out)


@pytest.mark.parametrize(
    ("installed", "nouns"),
    [("0.9.0", ("0.9.0", ">=1.0.20", "is needed")), ("1.0.30", ()), (None, ("not installed",))],
)
def test_versions_of_packages(monkeypatch, installed, nouns):
    monkeypatch.setattr(
        doctor, "version", failing(PackageNotFoundError("timm")) if installed is None else lambda package: installed
    )
    found = doctor.why_unusable(Requirement("timm>=1.0.20"))
    assert bool(found) == bool(nouns)
    assert_mentions(found, *nouns)


def test_sources_without_an_installation_are_a_note(monkeypatch):
    for name in ("requires", "version"):
        monkeypatch.setattr(doctor, name, failing(PackageNotFoundError("supancl")))
    assert_mentions(only(doctor.check_supancl()).advice, "pip install -e .")
    assert only(doctor.run_check("packages", doctor.check_packages)).status == "note"


def test_packages_and_extras_come_from_the_installed_package(monkeypatch):
    required = ["pillow>=2", 'openTSNE>=1 ; extra == "map"', 'onnx>=1; extra == "onnx"']
    monkeypatch.setattr(doctor, "requires", lambda name: required)
    monkeypatch.setattr(doctor, "version", lambda name: "0.9" if name == "onnx" else "2.1")
    packages, extras = doctor.check_packages()
    assert packages.text == "pillow 2.1"
    assert extras.text == "installed: map; not installed: onnx"
    monkeypatch.setattr(doctor, "requires", lambda name: ["pillow>=3"])
    assert [found.status for found in doctor.check_packages()] == ["ok", "problem", "ok"]


def pretend_gpu(monkeypatch, free=140e9, is_usable=True, driver=""):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_usable)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), int(150e9)))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "find_driver", lambda: driver)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, device=None: ones(*shape))


def test_gpus(monkeypatch):
    pretend_gpu(monkeypatch)
    assert_mentions(only(doctor.check_gpu()).text, "NVIDIA H200", "140 of 150 GB", "CUDA 13.0 build", "bf16")
    pretend_gpu(monkeypatch, free=20e9)
    assert_mentions(only(doctor.check_gpu()).advice, "another process", "nvidia-smi")
    monkeypatch.setattr(torch, "ones", failing(RuntimeError("no kernel image is available for execution")))
    found = only(doctor.check_gpu())
    assert found.status == "problem"
    assert_mentions(f"{found.text} {found.advice}", "no kernel image", "--device cpu")
    pretend_gpu(monkeypatch, is_usable=False, driver="470.1")
    found = only(doctor.check_gpu())
    assert found.status == "note"
    assert_mentions(f"{found.text} {found.advice}", "470.1", "cannot use it", "driver", "CUDA_VISIBLE_DEVICES")
    pretend_gpu(monkeypatch, is_usable=False)
    assert only(doctor.check_gpu()).status == "ok"


def test_threads_and_memory(monkeypatch):
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda process: {0, 1, 2})
    for threads, status in ((1, "note"), (3, "ok"), (4, "note")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found = only(doctor.check_cores())
        assert (found.status, "OMP_NUM_THREADS=3" in found.advice) == (status, status == "note")
    for free, status in ((2e9, "note"), (20e9, "ok"), (None, "ok")):
        monkeypatch.setattr("supancl.training.memory.available_memory", lambda device, free=free: free)
        assert only(doctor.check_memory()).status == status


def test_disks(monkeypatch, tmp_path):
    deep = tmp_path / "not" / "yet" / "there"
    for free, status in ((80e9, "ok"), (1e9, "note"), (1e6, "problem")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder, free=free: type("Usage", (), {"free": free}))
        assert only(doctor.check_disk("this folder", deep, "problem", "elsewhere")).status == status
    assert not deep.exists()
    monkeypatch.setattr(doctor, "why_unwritable", lambda folder: "Permission denied")
    found = only(doctor.check_disk("cache", deep, "note", "go elsewhere"))
    assert found.status == "note"
    assert_mentions(f"{found.text} {found.advice}", "Permission denied", "go elsewhere")
