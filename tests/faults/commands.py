"""Commands called in this process, and folders that are removed at its end."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

from supancl.cli import main
from tests.helpers import Said

TRAIN = ("--epochs", "1", "--batch-size", "8", "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16",
         "--set", "data.limit=24", "--set", "heads.projector.hidden=[16]", "--set", "heads.projector.out=16",
         "--set", "heads.predictor.hidden=[8]")  # fmt: skip
_holders: list[tempfile.TemporaryDirectory[str]] = []


@cache
def base_folder() -> Path:
    """A folder that is removed when the process ends."""
    memory = "/dev/shm"
    _holders.append(tempfile.TemporaryDirectory(prefix="faults-", dir=memory if os.access(memory, os.W_OK) else None))
    return Path(_holders[-1].name)


def new_folder(name: str) -> Path:
    folder = base_folder() / name
    folder.mkdir(exist_ok=True)
    return folder


def say(*words: object) -> Said:
    """A command's exit code and what it printed."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = main([str(word) for word in words])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Said(code, out.getvalue(), errors.getvalue())


def ok(*words: object) -> str:
    said = say(*words)
    assert said.code == 0, said
    return said.out
