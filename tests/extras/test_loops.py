"""examples/loop_*.py: our losses, pools and heads in the loops of other libraries, run whole."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from supancl import Align, Queue

ROOT = Path(__file__).resolve().parents[2]
CHANCE = 10.0  # percent; random weights reach 78
RECORD = """
import runpy, sys
import torch
example, out = sys.argv.pop(1), sys.argv.pop(1)
names = runpy.run_path(example, run_name="__main__")
state = {"pool": names["pool"].state_dict(), "model": dict(names["model"].named_parameters())}
torch.save(state, f"{out}/rank-{names['rank']}.pt")
"""


def run_example(name: str, monkeypatch: pytest.MonkeyPatch, epochs: int = 3) -> dict[str, Any]:
    """Run the file as a user does, in this process; returns its names."""
    file = ROOT / "examples" / f"loop_{name}.py"
    monkeypatch.setattr(sys, "argv", [str(file), str(epochs)])
    return runpy.run_path(str(file), run_name="__main__")


def recorded(function: Any, events: list[str]) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        events.append(function.__name__)
        return function(*args, **options)

    return call


def assert_learned(printed: str) -> list[float]:
    losses = [float(loss) for loss in re.findall(r"loss (-?[\d.]+)", printed)]
    (accuracy,) = re.findall(r"k-NN accuracy of 397 test images: ([\d.]+)%", printed)
    assert losses[-1] < losses[0] < 0
    assert float(accuracy) > 6 * CHANCE
    assert "coverage 100%" in printed
    return losses


# Lightning itself calls what torch has deprecated, and advises to use more workers
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*does not have many workers"
)
@pytest.mark.parametrize("name", ["lightning", "accelerate"])
def test_a_loop_learns_and_pushes_once_after_every_step(name: str, monkeypatch: Any, capsys: Any) -> None:
    events: list[str] = []
    for owner, method in ((Align, "__call__"), (Queue, "push")):
        monkeypatch.setattr(owner, method, recorded(getattr(owner, method), events))
    hook = register_optimizer_step_post_hook(lambda *_: events.append("step"))
    names = run_example(name, monkeypatch)
    hook.remove()
    assert events == ["__call__", "step", "push"] * 3 * (1400 // 64)
    assert len(assert_learned(capsys.readouterr().out)) == 3
    pool = names["trainer"].lightning_module.pool if name == "lightning" else names["pool"]
    assert pool.stored().valid.all()


def test_two_ranks_have_the_same_pool_and_the_same_weights(tmp_path: Path) -> None:
    record = tmp_path / "record.py"
    record.write_text(RECORD)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    arguments = [str(record), str(ROOT / "examples" / "loop_ddp.py"), str(tmp_path), "2"]
    done = subprocess.run([*launch, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # the ranks share a terminal, so a line of one may stand on the same line as one of the other
    assert_learned(re.sub(r"rank 1: epoch \d+ +loss -?[\d.]+ +coverage \d+%", "", done.stdout))
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    assert int(first["pool"]["clock"]) == 2 * (700 // 32)
    for part in ("pool", "model"):
        assert first[part].keys() == second[part].keys()
        assert all(torch.equal(value, second[part][name]) for name, value in first[part].items())
