"""Natural mistakes in a plugin, and plugins that change before --resume: one line that names the place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.files import TINY, assert_mentions

PLUGIN = """
from dataclasses import dataclass, replace
import torch
import supancl
from torch import nn

@supancl.register
@dataclass(frozen=True)
class Half(supancl.Align):
    kind: str = "half"
    weight: float = 0.5
    supervised = False

@supancl.register
@dataclass(frozen=True)
class OwnSpec(supancl.PoolSpec):
    kind: str = "own"
    def build(self, width, classes, unlabelled=False, ranks=None):
        return {pool}

supancl.register_encoder("own", lambda spec: {encoder})
base = supancl.recipe("digits.supsiam")
supancl.RECIPES["my.one"] = {recipe}
"""
RIGHT = {
    "pool": "supancl.Queue(8, width, classes)",
    "encoder": "nn.Sequential(nn.Flatten(), nn.Linear(256, 8))",
    "recipe": "lambda: replace(base, loss=Half())",
}


def write_plugin(path: Path, **changes: str) -> Path:
    text = PLUGIN
    for name, value in {**RIGHT, **changes}.items():
        text = text.replace(f"{{{name}}}", value)
    path.write_text(text)
    return path


@pytest.fixture
def call(forks: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`supancl WORDS` in a process of its own, which no plugin of another test has reached."""
    program, environment = str(Path(forks["SUPANCL_FORKS"]).with_name("supancl")), {**os.environ, **forks}

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [program, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


@pytest.mark.parametrize(
    ("changes", "more", "nouns"),
    [
        ({"recipe": "replace(base, loss=Half())"}, (), ("my.one", "lambda")),
        ({"encoder": "nn.Conv2d(3, 8, 3)"}, ("--set", "encoder.name=own"), ("own", "(1, 16, 16)", "spec.channels")),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(call, tmp_path, changes, more, nouns):
    plugin = write_plugin(tmp_path / "mine.py", **changes)
    said = call("pretrain", "my.one", "--plugin", plugin, *TINY[:6], *more, "--out", tmp_path / "run", "--quiet")
    assert said.returncode == 2, said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert_mentions(said.stderr, *nouns)


def test_a_resumed_run_says_that_its_plugin_changed(call, tmp_path):
    plugin, run = write_plugin(tmp_path / "mine.py"), tmp_path / "run"
    words = ("pretrain", "my.one", *TINY[:6], "--set", "data.limit=64", "--out", run)
    assert call(*words, "--plugin", plugin).returncode == 0
    resume = ("pretrain", "--resume", "--out", run, "--plugin", plugin)
    assert "differs" not in call(*resume).stderr
    plugin.write_text(plugin.read_text().replace("weight: float = 0.5", "weight: float = 0.25"))
    assert_mentions(call(*resume).stderr, "mine.py", "differs", "begun with")
