"""Help, versions and bad input are answered without torch, whose import takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import supancl
from supancl.cli.commands import COMMANDS

SRC = str(Path(supancl.__file__).parents[1])
HEAVY = ("torch", "torchvision", "timm", "matplotlib", "scipy", "sklearn", "tensorboard")
GROUPS = {name: command for name, command in COMMANDS.items() if isinstance(command, dict)}
HELP = [[], *([name] for name in COMMANDS), *([name, each] for name, names in GROUPS.items() for each in names if each)]
LINES = {  # command line -> exit code
    **{" ".join([*words, "--help"]): 0 for words in HELP},
    "--version": 0,
    "": 2,
    "pretrain digits.supsiam --learning-rate 1": 2,
    "pretrain digits.supsiam --data nowhere": 2,
    "pretrain digits.supsiam --set loss.alfa=1": 2,
    "report nowhere": 2,
    "evaluate knn nowhere": 2,
    "evaluate linear nowhere --frobnicate": 2,
    "embed nowhere --data digits --out x.npz": 2,
    "predict runs --data digits --out x.txt": 2,
    "runs .": 0,
    "export nowhere --out x --format onx": 2,
    "data show nowhere": 2,
    "recipes": 0,
    "recipes cifar100.supsiam": 0,
    "--quiet --json - recipes digits.supsiam": 0,
    "--plugin nowhere.py recipes": 2,
}
SCRIPT = """
import contextlib, io, json, sys
from supancl.cli import main

answers = {}
for line in json.load(sys.stdin):
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    answers[line] = code, output.getvalue(), [name for name in HEAVY if name in sys.modules]
import supancl
answers["dir"] = 0, " ".join(dir(supancl)), [name for name in HEAVY if name in sys.modules]
print(json.dumps(answers))
"""


def python(*words: str, text: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (SRC, os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, *words], input=text, capture_output=True, text=True, env=environment, cwd=folder, timeout=300
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Exit code and output of each command line, all in one process, and the slow packages imported so far."""
    done = python(
        "-c", f"HEAVY = {HEAVY}\n{SCRIPT}", text=json.dumps(list(LINES)), folder=tmp_path_factory.mktemp("empty")
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", LINES)
def test_a_light_command_is_answered_without_torch(line, answers):
    code, output, heavy = answers[line]
    assert (code, heavy) == (LINES[line], []), output
    assert output


def test_public_names_are_listed_without_being_imported(answers):
    _, names, heavy = answers["dir"]
    assert {"pretrain", "evaluate", "Recipe", "ImageEncoder"} <= set(names.split())
    assert not heavy


def test_python_m_supancl_is_the_command(tmp_path):
    done = python("-m", "supancl", "evaluate", "--frobnicate", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("supancl: ")
    assert "(see python -m supancl evaluate --help)" in done.stderr


@pytest.fixture(scope="module")
def first_use():
    """A process that uses torch for the first time and then training: what fails, and what was imported by then."""
    code = """
import sys
import supancl.lazy
from supancl.core import losses, specs
assert "torch" not in sys.modules
losses.torch.zeros(1)
torch = sys.modules["torch"]
assert losses.torch is torch and supancl.lazy.torch is torch
assert losses.F is torch.nn.functional and specs.nn is torch.nn and supancl.lazy.dist is torch.distributed
print("replaced")
import supancl
supancl.pretrain
print([name for name in sys.argv[1:] if name in sys.modules])
"""
    return python("-c", code, "torchvision", "timm", "matplotlib", "sklearn", "tensorboard")


def test_the_first_use_of_torch_replaces_its_proxies(first_use):
    assert first_use.stdout.splitlines()[:1] == ["replaced"], first_use.stderr


def test_training_without_pictures_imports_neither_timm_nor_matplotlib(first_use):
    assert first_use.stdout.splitlines()[1:] == ["[]"], first_use.stderr
    assert first_use.returncode == 0, first_use.stderr


def test_ctrl_c_while_modules_are_imported_is_one_line():
    code = """
import sys
from supancl import cli

class Interrupt:
    def find_spec(self, name, *others):
        if name == "supancl.cli.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
cli.entry()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": SRC})  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "supancl: interrupted\n")
