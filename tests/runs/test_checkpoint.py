"""Checkpoints are read with bounds, those of another schema version are refused, and a thread writes them whole."""

from __future__ import annotations

import errno
import os
import signal
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import supancl.runs.checkpoint
from supancl import BadInput, Interrupted, Reporter, pretrain
from supancl.runs.checkpoint import (
    SCHEMA_VERSION,
    DamagedFile,
    HostCopy,
    Writer,
    checkpoints,
    load_checkpoint,
    load_newest,
    load_tensors,
    save_checkpoint,
)
from supancl.runs.folder import RunFolder
from supancl.training.trainer import Trainer
from tests.helpers import assert_same_bits, flat, mentions, tiny_data, tiny_recipe

LONG = 20.0  # seconds after which whoever still waits has waited in vain
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("content", [{"schema_version": SCHEMA_VERSION + 1}, {"step": 1}, [1]])
def test_another_schema_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "step-000000001.pt"
    torch.save(content, path)
    with pytest.raises(BadInput, match=mentions(path)):
        load_checkpoint(path)


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
    with pytest.raises(BadInput, match=mentions(path, "types.SimpleNamespace", "run code", "state_dict")):
        load_tensors(path)
    assert load_tensors(path, [SimpleNamespace])["options"].lr == 0.1
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedFile, match=mentions(path, "damaged")):
        load_tensors(path)


# --- written by a thread ----------------------------------------------------------------------------------------------


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Gate:
    """A disk that takes checkpoints only once it is opened."""

    def __init__(self, monkeypatch) -> None:
        self.opened, self.begun = threading.Event(), threading.Event()
        self.in_vain = False
        self.steps: list[int] = []
        monkeypatch.setattr(supancl.runs.checkpoint, "save_checkpoint", self.save)

    def save(self, folder: Path, step: int, state: dict, keep_all: bool) -> Path:
        self.begun.set()
        self.in_vain |= not self.opened.wait(LONG)
        self.steps.append(step)
        return save_checkpoint(folder, step, state)


def test_the_file_holds_the_values_of_the_moment_of_the_save(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    trainer = Trainer(tiny_recipe("supbyol", optimizer__name="adamw"), tiny_data(), torch.device("cpu"))
    trainer.advance()
    trainer.advance()
    (tmp_path / "plain").mkdir()
    save_checkpoint(tmp_path / "plain", 2, trainer.state())
    with closing(Writer()) as writer:
        writer.save(tmp_path, 2, trainer.state())
        trainer.advance()
        gate.opened.set()
    plain, kept = (load_checkpoint(checkpoints(folder)[0]) for folder in (tmp_path / "plain", tmp_path))
    assert_same_bits(flat(plain), flat(kept))
    assert plain["branches"]._metadata == kept["branches"]._metadata
    assert plain["optimizer"]["param_groups"] == kept["optimizer"]["param_groups"]


def test_a_save_returns_at_once_the_next_one_waits_and_so_does_the_end(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    with closing(Writer()) as writer:
        writer.save(tmp_path, 1, {"step": 1})
        assert gate.begun.wait(LONG)
        assert checkpoints(tmp_path) == []
        second = threading.Thread(target=writer.save, args=(tmp_path, 2, {"step": 2}))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        gate.opened.set()
        second.join(LONG)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000001.pt", "step-000000002.pt"]
    assert not gate.in_vain


def test_the_lock_is_held_until_the_last_file_is_written(tmp_path: Path, monkeypatch) -> None:
    refused = []

    def slow(folder: Path, step: int, state: dict, keep_all: bool) -> Path:
        if step == 10:
            with pytest.raises(BadInput, match=mentions("in use", "process")), RunFolder(tmp_path / "run").claim(True):
                raise AssertionError("two writers")
            refused.append(step)
        return save_checkpoint(folder, step, state)

    monkeypatch.setattr(supancl.runs.checkpoint, "save_checkpoint", slow)
    pretrain(tiny_recipe(), tiny_data(), tmp_path / "run")
    assert refused == [10]


class Signalled(Reporter):
    def on_step(self, step, row):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_says_saved_only_when_it_is(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    threading.Timer(0.3, gate.opened.set).start()
    with pytest.raises(Interrupted, match=mentions("step 4", "10")):
        pretrain(tiny_recipe(), tiny_data(), tmp_path / "run", reporter=Signalled())
    assert gate.steps == [4]
    monkeypatch.undo()
    monkeypatch.setattr(supancl.runs.checkpoint, "save_with_torch", full_disk)
    with pytest.raises(BadInput, match=mentions("step-000000004.pt", "No space left on device")):
        pretrain(tiny_recipe(), tiny_data(), tmp_path / "full", reporter=Signalled())
    assert not checkpoints(tmp_path / "full" / "checkpoints")


@gpu
def test_from_a_gpu_the_values_of_the_moment_arrive_in_pinned_memory() -> None:
    weight = torch.randn(64, 64, 3, 3, device="cuda").to(memory_format=torch.channels_last)
    copied, expected = HostCopy(), []
    for _ in range(3):
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy / 4096
        weight += busy[0, 0].nan_to_num() * 0 + 1
        expected.append(weight.clone())
        kept = copied.copy({"w": weight, "host": torch.ones(2)})
        weight.mul_(2)
        copied.wait()
        assert kept["w"].is_pinned()
        assert kept["w"].stride() == weight.stride()
        assert torch.equal(kept["w"], expected[-1].cpu())
        assert kept["host"].tolist() == [1.0, 1.0]
