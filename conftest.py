"""Doctests run in an empty folder: examples write to runs/ as a user's calls do."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def folder_of_examples(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        folder = request.getfixturevalue("tmp_path")
        request.getfixturevalue("monkeypatch").chdir(folder)
