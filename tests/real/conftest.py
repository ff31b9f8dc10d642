"""Tests on real images and on the paper's text, which lie outside the repository: SUPANCL_SHARED names their folder."""

import os
from pathlib import Path

import pytest

VARIABLE = "SUPANCL_SHARED"
CONTENT = ("data/unpack.py", "paper/supervised-ancl.tex")


def find_shared() -> Path:
    """The folder that SUPANCL_SHARED names; a usage error where there is none or where it is another folder."""
    advice = f"set {VARIABLE} to the folder that holds {' and '.join(CONTENT)}, or run make test-real {VARIABLE}=FOLDER"
    named = os.environ.get(VARIABLE)
    if not named:
        raise pytest.UsageError(f"tests/real needs {VARIABLE}, which is not set; {advice}")
    folder = Path(named).resolve()
    missing = [name for name in CONTENT if not (folder / name).is_file()]
    if missing:
        raise pytest.UsageError(f"{VARIABLE} is {named}, which has no {missing[0]}; {advice}")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    find_shared()  # before the first test: a run without real data fails instead of skipping


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the paper's text (paper/) and of real images (data/)."""
    return find_shared()
