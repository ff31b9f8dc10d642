"""Checkpoints are read with bounds, and those of another schema version are refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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
