"""A loss or a pool of one's own: examples/own_method.py as the command line, runs that are read back, and refusals."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from supancl import Align, BadInput, Interrupted, PoolSpec, Reporter, Terms, pretrain, recipe, register
from supancl.recipes import own
from supancl.run import RunFolder
from tests.files import supancl

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLE = ROOT / "examples" / "own_method.py"


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(own, "OWN", {})


def test_the_page_shows_the_example():
    assert EXAMPLE.read_text() in PAGE


@pytest.mark.parametrize("block", re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL), ids=["own", "seeds"])
def test_every_command_of_the_page_runs(block, tmp_path):
    (tmp_path / "own_method.py").write_text(EXAMPLE.read_text())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-ec", block], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    if "own_method" in block:
        kept = (tmp_path / "runs" / "spread" / "recipe.json").read_text()
        assert '"kind": "spread"' in kept
        assert '"weight": 3.0' in kept
    else:
        assert "digits.supsiam (n = 3)" in done.stdout


@dataclass(frozen=True)
class Distant(Align):
    """Told apart from Align by its value at every step."""

    kind: str = "distant"

    def distance(self, anchors, targets):
        return 100 + super().distance(anchors, targets)


class StopAt(Reporter):
    def __init__(self, step):
        self.step = step

    def stepped(self, step, row):
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


def test_a_loss_that_could_not_be_read_back_is_refused_before_training(tmp_path):
    with pytest.raises(BadInput, match=r"loss: Distant is no class of supancl's.*put @supancl.register above"):
        pretrain(mine(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_section_that_cannot_be_registered_is_refused_too():
    @dataclass(frozen=True)
    class Views(type(recipe("digits.supsiam").views)):
        pass

    with pytest.raises(BadInput, match=r"views: Views is no class .* only losses and pools may be of one's own"):
        replace(recipe("digits.supsiam"), views=Views(size=16)).with_set({"train.epochs": 1})


def test_a_run_whose_loss_nobody_made_known_names_it_and_the_way_out(tmp_path, monkeypatch, capsys):
    register(Distant)
    pretrain(mine(), out=tmp_path / "run")
    monkeypatch.setattr(own, "OWN", {})
    for words in (("evaluate", "knn", tmp_path / "run"), ("pretrain", "--resume", "--out", tmp_path / "run")):
        said = supancl(capsys, *words)
        assert said.code == 2
        assert "loss.kind = 'distant' is none of align, contrast, crossentropy; if it is your own" in said.err
        assert said.err.strip().endswith("python FILE pretrain ... (docs/extending.md)")


def test_a_kind_that_is_taken_or_missing_is_refused():
    @dataclass(frozen=True)
    class Taken(Align):
        pass

    @dataclass(frozen=True)
    class TakenPool(PoolSpec):
        kind: str = "queue"

    class Kindless:
        def __call__(self, anchors, targets, labels, pool=None, whole=None):
            return Terms(anchors.sum(), anchors.sum(), anchors.sum())

    with pytest.raises(BadInput, match=r"Taken: loss.kind = 'align' is one of supancl's"):
        register(Taken)
    with pytest.raises(BadInput, match=r"TakenPool: pool.kind = 'queue' is one of supancl's"):
        register(TakenPool)
    with pytest.raises(BadInput, match="Kindless: must be a frozen dataclass"):
        register(Kindless)
    assert not own.OWN
