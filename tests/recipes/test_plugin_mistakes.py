"""Natural mistakes in a plugin, and plugins that change before --resume: one line that names the place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from supancl import Queue
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

class Counted(supancl.Queue):
    def counts(self):
        return torch.zeros(3)

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
        ({"recipe": "lambda: None"}, (), ("my.one", "returns a Recipe")),
        ({"recipe": "lambda: replace(base, loss=Half)"}, (), ("loss", "Half()")),
        ({"recipe": "lambda: replace(base, pool=OwnSpec())", "pool": "None"}, (), ("OwnSpec", "NoneType", "Pool")),
        ({"recipe": "lambda: replace(base, pool=OwnSpec())", "pool": "Counted(8, width, classes)"}, (),
         ("Counted", "counts", "property")),
        ({"encoder": "nn.Conv2d(3, 8, 3)"}, ("--set", "encoder.name=own"), ("own", "(1, 16, 16)", "spec.channels")),
        ({"encoder": "None"}, ("--set", "encoder.name=own"), ("own", "NoneType", "module")),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(call, tmp_path, changes, more, nouns):
    plugin = write_plugin(tmp_path / "mine.py", **changes)
    said = call("pretrain", "my.one", "--plugin", plugin, *TINY[:6], *more, "--out", tmp_path / "run", "--quiet")
    assert said.returncode == 2, said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert_mentions(said.stderr, *nouns)
    assert "internal error" not in said.stderr


def test_a_changed_plugin_is_remarked_on_and_a_moved_one_asked_for(call, tmp_path):
    plugin, run = write_plugin(tmp_path / "mine.py"), tmp_path / "run"
    words = ("pretrain", "my.one", *TINY[:6], "--set", "data.limit=64", "--out", run)
    assert call(*words, "--plugin", plugin).returncode == 0
    resume = ("pretrain", "--resume", "--out", run, "--plugin")
    assert "differs" not in call(*resume, plugin).stderr
    plugin.write_text(plugin.read_text().replace("weight: float = 0.5", "weight: float = 0.25"))
    assert_mentions(call(*resume, plugin).stderr, "mine.py", "differs", "begun with")
    moved = plugin.rename(tmp_path / "elsewhere.py")
    assert_mentions(call("evaluate", "knn", run).stderr, "mine.py", "not there", "--plugin FILE")
    moved.write_text(moved.read_text().replace("weight: float", "strength: float"))
    assert_mentions(call(*resume, moved).stderr, "loss.weight", "recipe.json", "plugin", "mine.py")


def test_a_file_that_trains_while_it_is_loaded_is_refused(call, tmp_path):
    file = tmp_path / "study.py"
    file.write_text('import supancl\nsupancl.pretrain("digits.supsiam", out="again")\n')
    said = call("recipes", "--plugin", file)
    assert said.returncode == 2
    assert_mentions(said.stderr, "study.py", "line 2", "__main__")
    assert not Path("again").exists()


def test_a_queue_takes_one_view_and_any_whole_numbers():
    pool = Queue(4, 2, 3)
    with pytest.raises(ValueError, match=r"\(2, 3, 2\).*targets\[1\]"):
        pool.push(torch.zeros(2, 3, 2), torch.zeros(3, dtype=torch.long))
    pool.push(torch.ones(3, 2), torch.tensor([0, 1, 2], dtype=torch.int32))
    assert pool.counts.tolist() == [1, 1, 1]
    assert int(pool.stored().valid.sum()) == 3
    with pytest.raises(ValueError, match="at least 1"):
        Queue(0, 2, 3)
