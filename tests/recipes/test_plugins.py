"""A loss or a pool of one's own: examples/own_method.py as the command line, runs that are read back, and refusals."""

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from supancl import (
    RECIPES,
    Align,
    Interrupted,
    PoolSpec,
    Queue,
    Reporter,
    pretrain,
    recipe,
    register,
)
from supancl.recipes import plugins as own
from supancl.runs.folder import RunFolder
from tests.helpers import assert_mentions, supancl

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_method.py"


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(own, "REGISTERED", {})
    recipes = dict(RECIPES)
    yield
    for name in RECIPES.keys() - recipes.keys():
        del RECIPES[name]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def run_shell(script, folder, environment):
    return subprocess.run(
        ["bash", "-ec", script], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_the_page_adds_a_loss_a_pool_an_encoder_and_a_benchmark_in_sixty_lines():
    shown = blocks("extending.md", "python")
    assert len(shown) == 4
    assert EXAMPLE.read_text().startswith("\n\n".join(shown))
    assert sum(block.count("\n") for block in (*shown, *blocks("extending.md", "bash"))) <= 60


def with_few_images(script):
    """The script of a page, made quick; `make test-docs` runs the pages as they are."""
    assert " --epochs 1 " in script
    return script.replace(" --epochs 1 ", " --epochs 1 --set data.limit=128 ")


def draw_shapes(folder):
    """40, 10 and 10 squares and discs."""
    folder.mkdir(parents=True)
    rows, random = [], np.random.default_rng(0)
    for number in range(60):
        image = Image.new("L", (16, 16))
        corner = random.integers(0, 8, 2).tolist()
        draw = (ImageDraw.Draw(image).rectangle, ImageDraw.Draw(image).ellipse)[number % 2]
        draw([*corner, corner[0] + 6, corner[1] + 6], fill=255)
        image.save(folder / f"{number}.png")
        split = "train" if number < 40 else "val" if number < 50 else "test"
        rows.append(f"{split} {number}.png {('square', 'disc')[number % 2]}")
    (folder / "labels.txt").write_text("\n".join(rows))


@pytest.fixture(scope="module")
def made(tmp_path_factory, forks):
    """The page's file and the folders that its commands have made."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "own_method.py").write_text("\n\n".join(blocks("extending.md", "python")))
    draw_shapes(folder / "DATA" / "shapes")
    (script,) = blocks("extending.md", "bash")
    done = run_shell(with_few_images(script), folder, forks)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, done.stdout


def test_every_command_of_the_page_runs(made):
    folder, told = made
    kept = json.loads((folder / "runs" / "spread" / "recipe.json").read_text())
    assert kept["recipe"]["loss"] == {"kind": "spread", "weight": 3.0}
    assert kept["plugins"] == [str(folder / "own_method.py")]
    kept = json.loads((folder / "runs" / "halved" / "recipe.json").read_text())["recipe"]
    assert (kept["pool"]["kind"], kept["encoder"]["name"]) == ("halved", "patches")
    assert f"predict runs/spread --plugin {folder / 'own_method.py'}" in told
    assert re.search(r"mine\.halved .*\d", told)
    assert "shapes" in told


def test_without_the_plugin_the_file_is_named(made, monkeypatch, capsys):
    monkeypatch.chdir(made[0])
    said = supancl(capsys, "evaluate", "knn", "runs/spread")
    assert said.code == 2
    assert_mentions(said.err, f"--plugin {made[0] / 'own_method.py'}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "script",
    [
        "supancl evaluate knn runs/halved --plugin own_method.py",
        "supancl embed runs/halved --data shapes@DATA --out features.npz --plugin own_method.py",
        "python own_method.py evaluate knn runs/spread",
    ],
)
def test_the_plugin_reaches_the_command(made, script, forks):
    folder, _ = made
    if script.startswith("python"):
        (folder / "own_method.py").write_text(EXAMPLE.read_text())  # with its last lines it is the command line itself
    done = run_shell(script, folder, forks)
    assert done.returncode == 0, done.stderr[-2000:]


@dataclass(frozen=True)
class Distant(Align):
    """Told apart from Align by its value at every step."""

    kind: str = "distant"

    def distance(self, anchors, targets):
        return 100 + super().distance(anchors, targets)


class StopAt(Reporter):
    def __init__(self, step):
        self.step = step

    def on_step(self, step, row):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def mine():
    quick = {"train.epochs": 2, "train.monitor_every": 0, "data.limit": 256, "train.log_every": 1}
    return replace(recipe("digits.supsiam").with_set(quick), loss=Distant(alpha=0.5))


class HalvedQueue(Queue):
    def push(self, targets, labels):
        super().push(targets[::2], labels[::2])


@dataclass(frozen=True)
class Halved(PoolSpec):
    kind: str = "halved"

    def build(self, width, classes, unlabelled=False, ranks=None):
        return HalvedQueue(self.size, width, classes, unlabelled=unlabelled)


def test_a_run_goes_on_with_its_own_loss_and_pool(tmp_path):
    register(Distant)
    register(Halved)
    quick = replace(mine(), pool=Halved(size=512))
    through = pretrain(quick, out=tmp_path / "through")
    with pytest.raises(Interrupted):
        pretrain(quick, out=tmp_path / "stopped", reporter=StopAt(3))
    again = pretrain(None, out=tmp_path / "stopped", resume=True)
    assert [row["sup"] for row in again.metrics] == [row["sup"] for row in through.metrics]
    assert again.metrics[-1]["sup"] != again.metrics[-1]["ssl"]  # the pool was looked into
    assert min(row["ssl"] for row in again.metrics) > 90  # a loss of one's own has its terms logged
    kept = RunFolder(again.folder).read_recipe()[0]
    assert (type(kept.loss), type(kept.pool)) == (Distant, Halved)


WORDS = "batch mine.spread --jobs 2 --epochs 1 --seeds 1 --set data.limit=256 --rows batch-128,batch-256 --out study"


def test_a_study_side_by_side_knows_the_loss_in_every_process(tmp_path, forks):
    (tmp_path / "own_method.py").write_text(EXAMPLE.read_text())
    # its two workers are forked too, from a process that knows nothing of ours
    way = f"python '{ROOT / 'tests' / 'forked_workers.py'}' supancl paper study --plugin own_method.py {WORDS}"
    done = run_shell(way, tmp_path, forks)
    assert done.returncode == 0, done.stderr[-2000:]
    for row in ("batch-128", "batch-256"):
        assert '"kind": "spread"' in (tmp_path / "study" / f"{row}-seed-0" / "recipe.json").read_text()
