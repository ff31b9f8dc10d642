"""A mistake in a plugin, and a plugin that changes before --resume: one line that names the place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import TINY, assert_mentions

PLUGIN = """
from dataclasses import dataclass, replace
import supancl
from torch import nn

@supancl.register
@dataclass(frozen=True)
class Half(supancl.Align):
    kind: str = "half"
    weight: float = 0.5
    supervised = False

supancl.register_encoder("own", lambda spec: nn.Conv2d(3, 8, 3))
base = supancl.recipe("digits.supsiam")
supancl.RECIPES["my.one"] = lambda: replace(base, loss=Half())
supancl.RECIPES["my.slip"] = replace(base, loss=Half())
"""


@pytest.fixture
def call(forks: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`supancl pretrain WORDS --plugin` in a process of its own, which no plugin of another test has reached."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    program, environment = str(Path(forks["SUPANCL_FORKS"]).with_name("supancl")), {**os.environ, **forks}

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [program, "pretrain", *map(str, words), "--plugin", str(tmp_path / "mine.py")]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


@pytest.mark.parametrize(
    ("words", "nouns"),
    [
        (("my.slip",), ("my.slip", "lambda")),
        (("my.one", "--set", "encoder.name=own"), ("own", "(1, 16, 16)", "spec.channels")),
    ],
)
def test_a_mistake_is_one_line_with_its_place(call, tmp_path, words, nouns):
    said = call(*words, *TINY[:6], "--out", tmp_path / "run", "--quiet")
    assert said.returncode == 2, said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert_mentions(said.stderr, *nouns)


def test_a_resumed_run_says_that_its_plugin_changed(call, tmp_path):
    assert call("my.one", *TINY[:6], "--set", "data.limit=64", "--out", tmp_path / "run").returncode == 0
    resume = ("--resume", "--out", tmp_path / "run")
    assert "differs" not in call(*resume).stderr
    (tmp_path / "mine.py").write_text(PLUGIN.replace("weight: float = 0.5", "weight: float = 0.25"))
    assert_mentions(call(*resume).stderr, "mine.py", "differs", "begun with")
