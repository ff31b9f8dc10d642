"""A command is a public function: the calls and commands that a newcomer would type work as they stand."""

from __future__ import annotations

import inspect
import json
import pkgutil
import pydoc
import subprocess
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

import supancl
from supancl.cli import main
from supancl.cli.commands import COMMANDS
from supancl.cli.layer import arguments_of, parameter_texts
from supancl.core import encoders
from supancl.recipes import plugins

FAST = ("--epochs", "1", "--quiet")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Three classes of small pictures and an empty folder for unlabelled ones."""
    root, random = tmp_path_factory.mktemp("natural") / "photos", np.random.default_rng(0)
    for number, name in enumerate(("cat", "dog", "fish")):
        (root / name).mkdir(parents=True)
        for image in range(14):
            pixels = random.integers(0, 80, (40, 40, 3)).astype(np.uint8)
            pixels[..., number] += 120
            Image.fromarray(pixels).save(root / name / f"{image}.png")
    (root / "unlabelled").mkdir()
    return root


@pytest.fixture(scope="module")
def run(photos) -> supancl.Run:
    return supancl.pretrain(data=str(photos), epochs=1, out=photos.parent / "run")


@pytest.fixture
def here(photos, monkeypatch) -> Path:
    monkeypatch.chdir(photos.parent)
    return photos.parent


def leaves(commands, path=()):
    for name, command in commands.items():
        if isinstance(command, dict):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, *[name] * bool(name)), command


LEAVES = dict(leaves(COMMANDS))


def test_public_functions_are_functions_after_every_import():
    for module in pkgutil.walk_packages(supancl.__path__, "supancl."):
        if "__main__" not in module.name:
            import_module(module.name)
    names = [function.__name__ for path, function in LEAVES.items() if len(path) == 1 or path[-1] == ""]
    assert [name for name in (*names, "load", "open_data", "recipe") if not callable(getattr(supancl, name))] == []
    assert [path for path, function in LEAVES.items() if not inspect.isfunction(function)] == []


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_argument_of_a_command_is_explained(path, capsys):
    texts = parameter_texts(supancl.evaluate) if path[0] == "evaluate" else {}
    assert [a.name for a in arguments_of(LEAVES[path], texts) if not a.text] == []
    assert (inspect.getdoc(LEAVES[path]) or "").count("$ supancl") >= 2
    with pytest.raises(SystemExit):
        main([*path, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_help_of_the_package_fits_a_few_screens():
    assert len(pydoc.render_doc(supancl, renderer=pydoc.plaintext).splitlines()) < 200


@pytest.mark.parametrize("words", [
    ("pretrain", "--data", "photos", *FAST),
    ("pretrain", "supsiam", "--data", "photos", "--alpha", "0.3", "--lr", "0.05", "--size", "32", "--encoder", "cnn",
     "--device", "cpu", *FAST),
    ("evaluate", "run"),
    ("evaluate", "linear", "run", "--split", "held-out"),
    ("predict", "run", "--all"),
    ("map", "run"),
    ("audit", "run"),
    ("report", "run"),
    ("compare", "supsiam", "simsiam", "--data", "photos", "--seeds", "1", *FAST),
    ("compare", "--data", "photos", "--set", "loss.alpha=0,1", "--seeds", "1", *FAST),
    ("recipes",),
    ("runs",),
    ("data", "show", "photos"),
])  # fmt: skip
def test_a_natural_command(here, run, words, tmp_path):
    for left_over in ("labels.csv", "audit"):
        path = here / "run" / left_over
        subprocess.run(["rm", "-rf", str(path)], check=True)
    assert main([*words, "--json", str(tmp_path / "result.json")]) == 0
    assert json.loads((tmp_path / "result.json").read_text())


def test_natural_calls(here, run, monkeypatch):
    monkeypatch.setattr(encoders, "BUILDERS", dict(encoders.BUILDERS))  # the module below is an encoder from then on
    monkeypatch.setattr(plugins, "REGISTERED", dict(plugins.REGISTERED))
    assert run.recipe.name == "auto.supsiam"
    again = supancl.pretrain("supsiam", "photos", alpha=0.3, lr=0.05, size=32, epochs=1)
    assert (again.recipe.loss.alpha, again.recipe.optimizer.lr, again.recipe.views.size) == (0.3, 0.05, 32)
    own = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert supancl.pretrain(data="photos", encoder=own, method="simsiam", epochs=1).encoder.width == 8
    assert {"knn", "linear"} == set(run.evaluate())
    assert run.evaluate("knn", k=3)["k"] == 3
    assert Path(run.predict(all=True, out=here / "all.csv")["out"]).exists()
    assert Path(run.report()["report"]).exists()
    features = supancl.embed(run, "photos")
    assert np.asarray(features).shape == (42, run.encoder.width)
    assert len(features) == len(features.paths) == 42
    assert run.embed([features.paths[0]]).values.shape == (1, run.encoder.width)
    assert "encoder.name" in str(supancl.recipe("supsiam"))
    compared = supancl.compare(data="photos", set={"loss.alpha": [0, 1]}, epochs=1, seeds=1, leave_out=0)
    assert {"ssl", "sup", "knn", "linear"} <= set(compared["summary"][0])
    with pytest.raises(supancl.BadInput, match=r"loss\.alpha"):
        supancl.pretrain("supsiam", "photos", alpha=2)
