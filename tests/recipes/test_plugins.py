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
import torch
from PIL import Image, ImageDraw

from supancl import (
    RECIPES,
    Align,
    BadInput,
    Interrupted,
    Pool,
    PoolSpec,
    Queue,
    Reporter,
    Terms,
    pretrain,
    recipe,
    register,
)
from supancl.core.pools import Stored
from supancl.paper.tables.layouts import LAYOUTS, NO_PAPER_ROW
from supancl.recipes import plugins as own
from supancl.recipes import plugins as plugin_files
from supancl.runs.folder import RunFolder
from tests.files import assert_mentions, mentions, supancl
from tests.tiny import tiny_data, tiny_recipe

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


def test_a_run_on_a_benchmark_of_ones_own_keeps_its_plugin(monkeypatch):
    monkeypatch.setattr(own, "REGISTERED_BENCHMARKS", {"shapes"})
    monkeypatch.setattr(plugin_files, "LOADED_FILES", [Path("mine.py")])
    usual = recipe("digits.supsiam")
    assert own.required_plugins(usual) == []
    assert own.required_plugins(usual.with_set({"data.source": "shapes@DATA"})) == ["mine.py"]


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "knn", "runs/spread"),
        ("pretrain", "--resume", "--out", "runs/spread"),
    ],
)
def test_without_the_plugin_the_file_is_named(made, words, monkeypatch, capsys):
    monkeypatch.chdir(made[0])
    said = supancl(capsys, *words)
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


@pytest.mark.parametrize("named", [True, False])
def test_a_run_goes_on_with_its_own_loss(tmp_path, named):
    register(Distant)
    with pytest.raises(Interrupted):
        pretrain(mine(), out=tmp_path / "run", reporter=StopAt(2))
    run = pretrain(mine() if named else None, out=tmp_path / "run", resume=True)
    losses = [row["loss"] for row in run.metrics]
    assert len(losses) > 3
    assert min(losses) > 90
    assert all(row["ssl"] > 90 for row in run.metrics)  # a loss of one's own has its terms logged
    assert type(RunFolder(run.folder).read_recipe()[0].loss) is Distant


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda a, t: a, ("Returns", "Tensor", "Terms(total, ssl, sup)")),
        (lambda a, t: Terms(a[None], a.detach(), a.detach()), ("total", "(1,)")),
        (lambda a, t: Terms(a.detach(), a.detach(), a.detach()), ("total", "gradient")),
    ],
)
def test_what_a_loss_must_not_give_is_told(given, told, tmp_path):
    @register
    @dataclass(frozen=True)
    class Returns:
        kind: str = "returns"
        supervised = False

        def sees_batch(self, pool):
            return False

        def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
            return given(-(anchors * targets.flip(0)).sum(-1).mean(), targets)

    with pytest.raises(BadInput, match=mentions(*told)):
        pretrain(replace(tiny_recipe("simsiam"), loss=Returns()), tiny_data(), out=tmp_path / "run")


def test_a_loss_that_gives_what_it_should_may_be_called_without_a_gradient():
    @register
    @dataclass(frozen=True)
    class Plain(Align):
        kind: str = "plain"

        def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
            """Kept."""
            return super().__call__(anchors, targets, labels, pool, global_batch=global_batch)

    views = torch.nn.functional.normalize(torch.randn(2, 4, 3), dim=-1)
    labels = torch.tensor([0, 1, 0, -1])
    assert Plain(alpha=0.5)(views, views, labels) == Align(alpha=0.5)(views, views, labels)
    assert Plain.__call__.__doc__ == "Kept."
    with torch.no_grad():
        assert torch.isfinite(Plain(alpha=1.0)(views.requires_grad_(), views, labels).total)


def test_a_run_whose_loss_nobody_made_known_names_it_and_the_way_out(tmp_path, monkeypatch, capsys):
    register(Distant)
    pretrain(mine(), out=tmp_path / "run")
    monkeypatch.setattr(own, "REGISTERED", {})
    for words in (("evaluate", "knn", tmp_path / "run"), ("pretrain", "--resume", "--out", tmp_path / "run")):
        said = supancl(capsys, *words)
        assert said.code == 2
        assert_mentions(said.err, "loss.kind", "'distant'", "align, contrast, crossentropy")
        assert_mentions(said.err.strip(), f"--plugin {__file__}")


@dataclass(frozen=True)
class Halved(PoolSpec):
    kind: str = "halved"

    def build(self, width, classes, unlabelled=False, ranks=None):
        return HalvedQueue(self.size, width, classes, unlabelled=unlabelled)


class HalvedQueue(Queue):
    def push(self, targets, labels):
        super().push(targets[::2], labels[::2])


def halved():
    return replace(recipe("digits.supsiam"), name="mine.halved", pool=Halved(size=512))


def test_a_run_goes_on_with_its_own_pool(tmp_path):
    register(Halved)
    quick = halved().with_set({"train.epochs": 2, "train.monitor_every": 0, "data.limit": 256, "train.log_every": 1})
    through = pretrain(quick, out=tmp_path / "through")
    with pytest.raises(Interrupted):
        pretrain(quick, out=tmp_path / "stopped", reporter=StopAt(3))
    again = pretrain(None, out=tmp_path / "stopped", resume=True)
    assert [row["sup"] for row in again.metrics] == [row["sup"] for row in through.metrics]
    assert again.metrics[-1]["sup"] != again.metrics[-1]["ssl"]  # the pool was looked into


def test_a_pool_with_what_the_page_asks_for_and_no_more_is_trained_with(tmp_path):
    class Latest(Pool):
        def __init__(self, width, classes):
            super().__init__()
            self.register_buffer("latest", torch.zeros(classes, width))
            self.register_buffer("known", torch.zeros(classes, dtype=torch.long))

        @property
        def counts(self):
            return self.known

        def push(self, targets, labels):
            self.latest[labels], self.known[labels] = targets, 1

        def class_mean(self, labels, fallback, samples=None, part=None):
            return torch.where((self.known[labels] > 0)[:, None], self.latest[labels], fallback)

        def stored(self):
            return Stored(self.latest, torch.arange(len(self.known)), self.known > 0)

    @register
    @dataclass(frozen=True)
    class LatestSpec(PoolSpec):
        kind: str = "latest"

        def build(self, width, classes, unlabelled=False, ranks=None):
            return Latest(width, classes)

    quick = {"train.epochs": 1, "data.limit": 256}
    run = pretrain(replace(recipe("digits.supsiam"), pool=LatestSpec()).with_set(quick), out=tmp_path / "run")
    last = run.metrics[-1]
    assert (last["kind"], last["pool_coverage"], last["pool_staleness"]) == ("monitor", 1.0, None)


@pytest.mark.parametrize("name", ["7", "8"])
def test_no_run_of_ones_own_stands_in_a_row_of_the_papers(name):
    register(Distant)
    register(Halved)
    layout, ours = LAYOUTS[name], recipe("cifar100.supsiam")
    printed = layout.paper.rows[next(iter(layout.paper.rows))]
    assert layout.rows.of(ours) in printed
    for chosen in (
        replace(ours, loss=Distant(alpha=0.5)),
        replace(ours, pool=Halved(size=4096)),
        replace(ours, name="mine.foo", method="foo", loss=Distant(alpha=0.5)),
    ):
        assert layout.rows.of(chosen) not in printed
        assert len(layout.rows.head_of(chosen)) == len(layout.rows.titles)
    assert LAYOUTS["8"].rows.of(replace(ours, loss=Distant(alpha=0.5))) == NO_PAPER_ROW
    assert LAYOUTS["8"].rows.head_of(replace(ours, pool=Halved())) == LAYOUTS["8"].rows.head_of(ours)


WORDS = "batch mine.spread --jobs 2 --epochs 1 --seeds 1 --set data.limit=256 --rows batch-128,batch-256 --out study"


def study(way, text, folder, forks):
    (folder / "own_method.py").write_text(text)
    """What the command said; its two workers are forked too, from a process that knows nothing of ours."""
    return run_shell(f"python '{ROOT / 'tests' / 'forked_workers.py'}' {way} {WORDS}", folder, forks)


@pytest.mark.parametrize(
    "way", ["python own_method.py paper study", "supancl paper study --plugin own_method.py"], ids=["file", "plugin"]
)
def test_a_study_side_by_side_knows_the_loss_in_every_process(way, tmp_path, forks):
    done = study(way, EXAMPLE.read_text(), tmp_path, forks)
    assert done.returncode == 0, done.stderr[-2000:]
    for row in ("batch-128", "batch-256"):
        assert '"kind": "spread"' in (tmp_path / "study" / f"{row}-seed-0" / "recipe.json").read_text()
