"""Checkpoints are read with bounds, and those of another schema version are refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from supancl import BadInput
from supancl.runs.checkpoint import (
    SCHEMA_VERSION,
    DamagedFile,
    checkpoints,
    load_checkpoint,
    load_newest,
    load_tensors,
    save_checkpoint,
)
from supancl.runs.encoder_file import load_weights
from tests.files import mentions

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize(
    ("content", "noun"),
    [({"schema_version": SCHEMA_VERSION + 1}, "finish"), ({"schema_version": 0}, 0), ({"step": 1}, None),
     ([1], "list")],
)  # fmt: skip
def test_another_schema_is_refused(content: object, noun: object, tmp_path: Path) -> None:
    path = tmp_path / "step-000000001.pt"
    torch.save(content, path)
    with pytest.raises(BadInput, match=mentions(path, noun)):
        load_checkpoint(path)


# --- checksums, and which checkpoints stay ----------------------------------------------------------------------------


def test_the_newest_sound_checkpoint_is_taken_and_damaged_ones_are_named(tmp_path: Path) -> None:
    assert load_newest(tmp_path) == (None, [])
    old, new = (save_checkpoint(tmp_path, step, {"step": step}) for step in (9, 10))
    state, damaged = load_newest(tmp_path)
    assert state is not None
    assert (state["step"], damaged) == (10, [])
    new.write_bytes(b"torn")
    state, damaged = load_newest(tmp_path)
    assert state is not None
    assert (state["step"], len(damaged), str(new) in damaged[0]) == (9, 1, True)
    old.write_bytes(b"torn")
    with pytest.raises(BadInput, match=mentions(old, new, "remove")):
        load_newest(tmp_path)


def test_a_checkpoint_that_repeats_few_bytes_is_damaged(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {"w": torch.zeros(1).expand(1000)})
    with pytest.raises(DamagedFile, match=mentions(path)):
        load_checkpoint(path)


def test_later_checkpoints_stay_when_a_run_that_went_back_saves(tmp_path: Path) -> None:
    for step in (8, 1, 2, 3):
        save_checkpoint(tmp_path, step, {"step": step})
    assert [path.stem for path in checkpoints(tmp_path)] == ["step-000000002", "step-000000003", "step-000000008"]


def test_a_class_is_loaded_only_where_it_is_allowed_and_otherwise_named(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    torch.save({"options": SimpleNamespace(lr=0.1)}, path)
    with pytest.raises(BadInput, match=mentions(path, "types.SimpleNamespace", "run code", "state_dict")):
        load_tensors(path)
    assert load_tensors(path, [SimpleNamespace])["options"].lr == 0.1
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedFile, match=mentions(path, "damaged")):
        load_tensors(path)


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
