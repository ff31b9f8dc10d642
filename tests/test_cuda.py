"""On a GPU: the same losses as on the CPU, bf16 and compilation near them, and the same bits after a resume."""

import os
from pathlib import Path

import pytest
import torch

from supancl import METHODS, pretrain, recipe
from supancl.data.images import Batch
from supancl.data.views import Crops
from supancl.trainer import Trainer
from tests.test_resume import crash_and_resume
from tests.tiny import assert_same_bits, final_state, tiny_data, tiny_recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

CASES = [(m, p) for m, row in METHODS.items() for p in ([None] if row.pool.kind == "none" else
                                                         ["queue", "class-queues", "prototypes"])]


@pytest.fixture
def same_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views drawn on the CPU from the pixels themselves, so that both devices see the same ones; no tf32."""
    original = Crops.__call__

    def drawn(self, batch, mean, std, generator, views=2):
        seed = torch.Generator().manual_seed(int(batch.pixels.sum()))
        return original(self, Batch(batch.pixels.cpu()), mean, std, seed, views).to(batch.pixels.device)

    monkeypatch.setattr(Crops, "__call__", drawn)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize(("method", "pool"), CASES)
def test_five_steps_give_the_losses_of_the_cpu(method: str, pool: str | None, same_views) -> None:
    losses, weights = {}, {}
    for device in ("cpu", "cuda"):
        made = Trainer(tiny_recipe(method, pool, train__device=device), tiny_data(unlabelled=0.2), torch.device(device))
        weights = weights or {name: value.clone() for name, value in made.branches.state_dict().items()}
        made.branches.load_state_dict(weights)
        losses[device] = []
        for _ in range(5):
            made.train_step(made.positions())
            made.step += 1
            losses[device].append(made.mean_since()[0])
    # not more steps: batch norm over eight images enlarges what rounding begins (moco3: 1e-3 after eight)
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("settings", [{"train.precision": "bf16"}, {"train.precision": "bf16", "train.compile": True}])
def test_bf16_and_compilation_train_as_well(settings: dict, tmp_path: Path) -> None:
    base = recipe("digits.supbyol").with_set({"train.epochs": 2, "train.device": "cuda"})
    plain = pretrain(base, out=tmp_path / "plain").metrics
    fast = pretrain(base.with_set(settings), out=tmp_path / "fast").metrics
    assert fast[-2]["loss"] == pytest.approx(plain[-2]["loss"], abs=0.02)
    assert abs(fast[-1]["knn"] - plain[-1]["knn"]) < 6


@pytest.mark.parametrize("method", ["supsiam", "supbyol", "supmoco"])
def test_a_deterministic_run_resumes_with_the_same_bits(method: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings = {"train__device": "cuda", "train__checkpoint_every": 2, "train__deterministic": True}
    made, data = tiny_recipe(method, **settings), tiny_data()
    pretrain(made, data, tmp_path / "whole")
    crash_and_resume(made, data, tmp_path / "stopped", at=8)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))
