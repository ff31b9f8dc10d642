"""The README's lines from a folder of images to its pages, with one epoch."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from supancl.cli import main
from tests.browser.conftest import Browser
from tests.browser.documented import check_pages, make_photos, photo_blocks
from tests.docs.blocks import ROOT, SHORTENED

QUICK = {"supancl pretrain", "supancl report", "supancl map", "supancl audit"}


def test_from_a_folder_to_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    make_photos(tmp_path / "photos", each=10, unlabelled=2)
    monkeypatch.chdir(tmp_path)
    lines = [line for block in photo_blocks() if block.page == ROOT / "README.md" for line in block.text.splitlines()]
    for line in lines:
        words = shlex.split(SHORTENED.get(line, line))
        if " ".join(words[:2]) in QUICK:
            assert main([*words[1:], "--quiet"]) == 0, line
    pages = {f"runs/photos/{page}.html" for page in ("report", "map", "audit/audit")}
    assert pages <= set(check_pages(browser, tmp_path))
