"""Checkpoints of every schema version ever written can still be continued; newer ones are refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from supancl import BadInput
from supancl.training.trainer import Trainer
from supancl.weights.checkpoint import SCHEMA_VERSION, load_checkpoint
from supancl.weights.encoder_file import load_weights
from tests.files import mentions
from tests.tiny import tiny_data, tiny_recipe

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_there_is_a_fixture_for_every_version() -> None:
    names = {f"checkpoint-v{version}.pt" for version in range(1, SCHEMA_VERSION + 1)}
    assert {path.name for path in FIXTURES.glob("*.pt")} == names


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_checkpoint_of_every_version_loads_and_trains_on(version: int) -> None:
    state = load_checkpoint(FIXTURES / f"checkpoint-v{version}.pt")
    trainer = Trainer(tiny_recipe("supbyol"), tiny_data(), torch.device("cpu"))
    trainer.load(state)
    assert trainer.step == 5
    assert trainer.advance() is not None


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    content = torch.load(FIXTURES / "checkpoint-v1.pt", weights_only=True)
    torch.save({**content, "schema_version": SCHEMA_VERSION + 1}, tmp_path / "step-000000005.pt")
    with pytest.raises(BadInput, match="newer supancl"):
        load_checkpoint(tmp_path / "step-000000005.pt")


def test_a_classifier_on_top_is_left_out_but_not_a_part_of_the_encoder_that_is_called_like_one(tmp_path: Path) -> None:
    def made() -> SimpleNamespace:
        body = nn.ModuleDict({"stem": nn.Linear(3, 4), "head": nn.Linear(4, 5)})
        return SimpleNamespace(body=body, spec=SimpleNamespace(name="own"))

    one, other = made(), made()
    weights = one.body.state_dict() | {"fc.weight": torch.ones(7, 5)}
    load_weights(other, weights, tmp_path / "weights.pt")  # type: ignore[arg-type]
    for name, value in one.body.state_dict().items():
        assert torch.equal(other.body.state_dict()[name], value), name
    with pytest.raises(BadInput, match=mentions("neck.weight", "own")):
        load_weights(other, weights | {"neck.weight": torch.ones(1)}, tmp_path / "weights.pt")  # type: ignore[arg-type]
