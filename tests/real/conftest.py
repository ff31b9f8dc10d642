"""Tests on real images and on the paper's text, which lie outside the repository: SUPANCL_SHARED names their folder."""

import os
from pathlib import Path

import pytest

VARIABLE = "SUPANCL_SHARED"
CONTENT = ("data/unpack.py", "paper/supervised-ancl.tex")


def find_shared() -> Path:
    """The folder that SUPANCL_SHARED names; a usage error where there is none or where it is another folder."""
    folder = Path(os.environ.get(VARIABLE, "none")).resolve()
    if not all((folder / name).is_file() for name in CONTENT):
        raise pytest.UsageError(f"run make test-real {VARIABLE}=FOLDER, which holds {' and '.join(CONTENT)}")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    find_shared()  # before the first test: a run without real data fails instead of skipping


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the paper's text (paper/) and of real images (data/)."""
    return find_shared()
