"""Files written by a thread: as they were when the save was asked for, whole, in order, and never forgotten."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

import supancl.runs.checkpoint
import supancl.training.inputs
from supancl import BadInput, EncoderSpec, Interrupted, Reporter, load_encoder, pretrain
from supancl.runs.checkpoint import HostCopy, Writer, checkpoints, load_checkpoint, save_checkpoint
from supancl.runs.encoder_file import read_safetensors, save_encoder
from supancl.runs.folder import RunFolder
from supancl.training.trainer import Trainer
from tests.files import contents, mentions
from tests.tiny import assert_same_bits, flat, tiny_data, tiny_recipe

LONG = 20.0  # seconds after which whoever still waits has waited in vain
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def small_encoder():
    return EncoderSpec("cnn", 1, 8, 8, (0.5,), (0.5,)).build()


def assert_same_encoder(one: Path, other: Path) -> None:
    (weights, described), (others, as_well) = (read_safetensors(at / "encoder.safetensors") for at in (one, other))
    assert_same_bits(weights, others)
    assert described == as_well


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


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_file_holds_the_values_of_the_moment_of_the_save(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    weight, passed = torch.arange(6.0).view(2, 3), [4]
    state = {"inner": {"weight": weight, "many": [weight.clone(), (weight.clone(), 2)]}, "bad_steps": passed, "step": 3}
    with Writer() as writer:
        writer.save(tmp_path, 3, state)
        weight.fill_(-1)
        state["inner"]["many"][0].fill_(-1)
        passed.append(9)
        state["step"] = 8
        gate.opened.set()
    kept = load_checkpoint(checkpoints(tmp_path)[0])
    expected = torch.arange(6.0).view(2, 3)
    assert torch.equal(kept["inner"]["weight"], expected)
    assert torch.equal(kept["inner"]["many"][0], expected)
    assert torch.equal(kept["inner"]["many"][1][0], expected)
    assert (kept["bad_steps"], kept["step"]) == ([4], 3)


def test_a_thread_writes_what_the_plain_functions_write(tmp_path: Path) -> None:
    trainer = Trainer(tiny_recipe("supbyol", optimizer__name="adamw"), tiny_data(), torch.device("cpu"))
    for _ in range(2):
        trainer.advance()
    for name in ("plain", "thread"):
        (tmp_path / name).mkdir()
    encoder = trainer.model.branches.encoder
    save_checkpoint(tmp_path / "plain", 2, trainer.state())
    save_encoder(tmp_path / "plain" / "encoder.safetensors", encoder, ("a", "b"), "x")
    with Writer() as writer:
        writer.save(tmp_path / "thread", 2, trainer.state())
        writer.save_encoder(tmp_path / "thread" / "encoder.safetensors", encoder, ("a", "b"), "x")
    plain, thread = (load_checkpoint(checkpoints(tmp_path / name)[0]) for name in ("plain", "thread"))
    assert_same_bits(flat(plain), flat(thread))
    assert plain["branches"]._metadata == thread["branches"]._metadata
    assert plain["optimizer"]["param_groups"] == thread["optimizer"]["param_groups"]
    assert_same_encoder(tmp_path / "plain", tmp_path / "thread")
    names = sorted(path.name for path in (tmp_path / "thread").iterdir())
    assert names == ["encoder.safetensors", "step-000000002.pt"]


def test_the_saved_encoder_is_that_of_the_moment_of_the_save(tmp_path: Path, monkeypatch) -> None:
    gate, encoder = Gate(monkeypatch), small_encoder()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with Writer() as writer:
        writer.save(tmp_path, 1, {"step": 1})  # keeps the thread busy
        writer.save_encoder(tmp_path / "encoder.safetensors", encoder, (), "x")
        with torch.no_grad():
            for weight in encoder.parameters():
                weight.zero_()
        gate.opened.set()
    for name, value in load_encoder(tmp_path).state_dict().items():
        assert torch.equal(value, before[name]), name


# --- when it is written -----------------------------------------------------------------------------------------------


def test_a_save_returns_at_once_and_the_next_one_waits_for_it(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    with Writer() as writer:
        writer.save(tmp_path, 1, {"step": 1})
        assert gate.begun.wait(LONG)
        assert checkpoints(tmp_path) == []
        second = threading.Thread(target=writer.save, args=(tmp_path, 2, {"step": 2}))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        gate.opened.set()
        second.join(LONG)
        assert not second.is_alive()
        assert gate.steps[0] == 1
        writer.wait()
        assert [path.name for path in checkpoints(tmp_path)] == ["step-000000001.pt", "step-000000002.pt"]


@pytest.mark.parametrize("fails", [False, True])
def test_leaving_waits_for_the_last_file_whatever_it_is_left_for(tmp_path: Path, monkeypatch, fails: bool) -> None:
    gate = Gate(monkeypatch)
    threading.Timer(0.2, gate.opened.set).start()
    try:
        with Writer() as writer:
            writer.save(tmp_path, 1, {"step": 1})
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert [load_checkpoint(path)["step"] for path in checkpoints(tmp_path)] == [1]
    assert not gate.in_vain


# --- when it cannot be written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("told_by", ["save", "wait", "save_encoder"])
def test_what_could_not_be_written_is_told_next_in_the_same_line(tmp_path: Path, monkeypatch, told_by: str) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1})
    before = contents(tmp_path)
    with Writer() as writer:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full_disk)
            writer.save(tmp_path, 2, {"step": 2})
            writer._thread.submit(int).result(LONG)  # the thread has come past it
        calls = {
            "save": lambda: writer.save(tmp_path, 3, {"step": 3}),
            "wait": writer.wait,
            "save_encoder": lambda: writer.save_encoder(tmp_path / "e", small_encoder(), (), "x"),
        }
        with pytest.raises(BadInput, match=mentions("step-000000002.pt", "No space left on device", "resume")):
            calls[told_by]()
        writer.wait()  # told once
    assert contents(tmp_path) == before


# --- in a run ---------------------------------------------------------------------------------------------------------


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch) -> None:
    gate, seen = Gate(monkeypatch), []

    class Open(Reporter):
        def on_step(self, step, row):
            if step == 8:  # the checkpoint of step 5 has not been written
                assert gate.begun.wait(LONG)
                seen.extend(checkpoints(tmp_path / "slow" / "checkpoints"))
                gate.opened.set()

    recipe, data = tiny_recipe("supbyol", train__keep="all"), tiny_data()
    pretrain(recipe, data, tmp_path / "slow", reporter=Open())
    assert (seen, gate.in_vain, gate.steps) == ([], False, [5, 10])
    monkeypatch.undo()
    pretrain(recipe, data, tmp_path / "plain")
    for name in ("step-000000005.pt", "step-000000010.pt"):
        slow, plain = (load_checkpoint(tmp_path / run / "checkpoints" / name) for run in ("slow", "plain"))
        assert_same_bits(flat(slow), flat(plain))
    assert_same_encoder(tmp_path / "slow", tmp_path / "plain")


def test_the_end_waits_and_the_lock_is_held_until_then(tmp_path: Path, monkeypatch) -> None:
    refused, plain = [], save_checkpoint

    def slow(folder: Path, step: int, state: dict, keep_all: bool) -> Path:
        if step == 10:
            ended.wait(0.3)
            with (
                pytest.raises(BadInput, match=mentions("in use", "process")) as told,
                RunFolder(tmp_path / "run").lock(),
            ):
                raise AssertionError("two writers")
            refused.append(told)
        return plain(folder, step, state)

    ended = threading.Event()
    monkeypatch.setattr(supancl.runs.checkpoint, "save_checkpoint", slow)
    pretrain(tiny_recipe(), tiny_data(), tmp_path / "run")
    assert len(refused) == 1
    assert load_checkpoint(checkpoints(tmp_path / "run" / "checkpoints")[-1])["step"] == 10


class Signalled(Reporter):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, step, row):
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_says_saved_only_when_it_is(tmp_path: Path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    threading.Timer(0.3, gate.opened.set).start()
    with pytest.raises(Interrupted, match=mentions("step 4", "10")):
        pretrain(tiny_recipe(), tiny_data(), tmp_path / "run", reporter=Signalled(3))
    assert gate.steps == [4]
    monkeypatch.undo()
    monkeypatch.setattr(supancl.runs.checkpoint, "save_with_torch", full_disk)
    with pytest.raises(BadInput, match=mentions("step-000000004.pt", "No space left on device")):
        pretrain(tiny_recipe(), tiny_data(), tmp_path / "full", reporter=Signalled(3))
    assert not checkpoints(tmp_path / "full" / "checkpoints")


# --- a row of the log -------------------------------------------------------------------------------------------------


# --- on a GPU ---------------------------------------------------------------------------------------------------------


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
