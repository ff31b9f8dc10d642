"""Two ranks that share one GPU, through gloo since NCCL wants one each: torch's SyncBatchNorm, views joined."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from supancl.distributed import SINGLE_PROCESS, Ranks, from_environment
from supancl.training.trainer import Trainer
from tests.distributed.worker import of_ranks
from tests.helpers import flat, tiny_data, tiny_recipe
from tests.steps import without_tf32

NAMES = ("supsiam", "supbyol", "simclr", "supmoco", "supsiam-nopool", "crossentropy")
STEPS = 5


def weights(name: str, ranks: Ranks = SINGLE_PROCESS, **others: object) -> dict[str, torch.Tensor]:
    """Weights, statistics and pool after some steps in single precision, with TF32 off."""
    settings = {"train__device": "cuda", "train__precision": "fp32", "train__batch_size": 11, **others}
    data = tiny_data(64, unlabelled=0.3)
    trainer = Trainer(tiny_recipe(name, **settings), data, torch.device("cuda", 0), ranks=ranks)
    with without_tf32():
        for _ in range(STEPS):
            assert trainer.advance() is not None
    pool = {} if trainer.model.pool is None else dict(trainer.model.pool.state_dict())
    if "targets" in pool:
        pool["targets"] = pool["targets"][:-1]  # the last slot takes rows that are not stored, and any of them may win
    kept = {"branches": trainer.model.branches.state_dict(), "pool": pool}
    return {key: value.cpu() for key, value in flat(kept).items()}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_two_ranks_on_a_gpu_train_as_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.distributed.test_gpu", str(tmp_path / "made.pt")]
    ended = of_ranks(command, 2, tmp_path)
    assert [code for code, _ in ended] == [0, 0], ended
    made = torch.load(tmp_path / "made.pt", weights_only=True)
    for name in NAMES:
        assert_close(made[name], weights(name), name)
    assert_close(made["compiled"], made["as written"], "compiled")


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], name: str) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=2e-3, atol=2e-4, msg=f"{name}{key}")


if __name__ == "__main__":
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("gloo")
    here = from_environment()
    found = {name: weights(name, here) for name in NAMES}
    for way, compiled in (("as written", False), ("compiled", True)):  # what several ranks compile: all but exchanges
        found[way] = weights("supbyol", here, train__sync_norm=False, train__compile=compiled)
    if here.is_rank0:
        torch.save(found, sys.argv[1])
    torch.distributed.destroy_process_group()
