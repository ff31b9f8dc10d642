"""Checkpoints of every schema version ever written can still be continued; newer ones are refused."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from supancl import BadInput
from supancl.files import digest
from supancl.training.trainer import Trainer
from supancl.weights import checkpoint
from supancl.weights.checkpoint import (
    SCHEMA_VERSION,
    DamagedFile,
    UnsafeFile,
    checkpoints,
    load_checkpoint,
    load_newest,
    load_tensors,
    save_checkpoint,
)
from supancl.weights.encoder_file import load_weights
from tests.files import assert_mentions, mentions
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


@pytest.mark.parametrize(
    ("content", "noun"),
    [({"schema_version": SCHEMA_VERSION + 1}, "newer"), ({"schema_version": 0}, 0), ({"step": 1}, "schema_version"),
     ([1], "list")],
)  # fmt: skip
def test_another_schema_is_refused(content: object, noun: object, tmp_path: Path) -> None:
    path = tmp_path / "step-000000001.pt"
    torch.save(content, path)
    with pytest.raises(BadInput, match=mentions(path, noun)):
        load_checkpoint(path)


def test_older_versions_migrate_one_version_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path, 5, {"steps": [SCHEMA_VERSION]})

    def migrate(content: dict) -> dict:
        return {**content, "steps": [*content["steps"], content["steps"][-1] + 1]}

    monkeypatch.setattr(checkpoint, "SCHEMA_VERSION", SCHEMA_VERSION + 2)
    monkeypatch.setattr(checkpoint, "MIGRATIONS", {SCHEMA_VERSION: migrate, SCHEMA_VERSION + 1: migrate})
    assert load_checkpoint(path)["steps"] == [SCHEMA_VERSION, SCHEMA_VERSION + 1, SCHEMA_VERSION + 2]


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


def test_later_checkpoints_stay_when_a_run_that_went_back_saves(tmp_path: Path) -> None:
    for step in (8, 1, 2, 3):
        save_checkpoint(tmp_path, step, {"step": step})
    assert [path.stem for path in checkpoints(tmp_path)] == ["step-000000002", "step-000000003", "step-000000008"]


def test_a_class_is_loaded_only_where_it_is_allowed_and_otherwise_named(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    torch.save({"options": SimpleNamespace(lr=0.1)}, path)
    with pytest.raises(UnsafeFile, match=mentions(path, "run code", "state dict")) as refused:
        load_tensors(path)
    assert refused.value.refused_name == "types.SimpleNamespace"
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


def test_a_checkpoint_of_0_1_0_lies_beside_its_sha256_and_another_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "step-000000001.pt"
    checksum = path.with_suffix(".sha256")
    torch.save({"schema_version": 1, "step": 1}, path)
    assert digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    checksum.write_text(f"{digest(path)}\n")  # as `sha256sum` and editors end a line
    assert load_newest(tmp_path) == ({"schema_version": 1, "step": 1}, [])
    torch.save({"schema_version": 1, "step": 2}, path)  # can be read, but was not written here
    with pytest.raises(DamagedFile, match=mentions(path, "checksum")):
        load_checkpoint(path)
    checksum.write_text("")  # a crash while it was written
    assert load_checkpoint(path)["step"] == 2
    checksum.unlink()  # a crash between the two writes
    state, remarks = load_newest(tmp_path)
    assert state is not None
    assert state["step"] == 2
    (remark,) = remarks
    assert_mentions(remark, path, "digest", "0.1.0")


def test_the_checksum_files_of_0_1_0_are_removed_with_their_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        torch.save({"schema_version": 1, "step": step}, tmp_path / f"step-{step:09d}.pt")
        (tmp_path / f"step-{step:09d}.sha256").write_text("")
    save_checkpoint(tmp_path, 3, {"step": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000002.pt", "step-000000002.sha256", "step-000000003.pt"
    ]  # fmt: skip
