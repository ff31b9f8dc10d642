"""`supancl data show|check`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.helpers import class_folders, supancl


def json_of(said) -> dict:
    return json.loads(said.out[said.out.index("{") :])


def show(capsys, tmp_path: Path, source: object, *more: object) -> dict:
    said = supancl(capsys, "data", "show", source, "--json", "-", "--out", tmp_path / "sheets", *more)
    assert said.code == 0, said.err
    return json_of(said)


def test_show_counts_and_draws(capsys, tmp_path, cache_root):
    facts = show(capsys, tmp_path, class_folders(tmp_path / "data"))
    assert facts["splits"]["train"]["images"] == sum(sum(each.values()) for each in facts["histogram"].values()) == 12
    assert (facts["classes"], facts["unreadable"]) == (2, {})
    for name, picture_path in zip(("images.png", "views.png"), facts["pictures"], strict=True):
        assert Path(picture_path) == tmp_path / "sheets" / name
        with Image.open(picture_path) as sheet:
            assert np.array(sheet).std() > 10
    assert not list(cache_root.glob("*/.lock")), "looking leaves no cache behind"


# --- benchmarks -------------------------------------------------------------------------------------------------------


def test_check_without_a_root_says_what_to_download(capsys):
    said = supancl(capsys, "data", "check", "pets", "--json", "-")
    assert said.code == 0
    found = json_of(said)
    assert found["name"] == "pets"
    assert "oxford-iiit-pet" in found["where"]
