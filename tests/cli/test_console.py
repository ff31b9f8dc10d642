"""What a person is told: how far a run is where there is no terminal, that it is finished, which version this is."""

from __future__ import annotations

import json

from supancl.cli import doctor
from tests.helpers import supancl


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
