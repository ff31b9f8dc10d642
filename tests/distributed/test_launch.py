"""The command under torchrun: the same run, one voice, and an end that all ranks share."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from supancl import pretrain, recipe
from tests.data.test_stream import shards
from tests.distributed.worker import ROOT, of_ranks
from tests.test_resume import Crash, CrashAt

SHORT = {"data.limit": 256, "train.epochs": 2, "train.log_every": 1, "train.device": "cpu"}
LONG = {**SHORT, "train.epochs": 60, "train.monitor_every": 0}
STEPS = 60 * 4
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SUPANCL = ["-m", "supancl", "pretrain"]


def settings(values: dict[str, object]) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{name}={json.dumps(value)}")]


def begun(words: list[str]) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*TORCHRUN, *words], env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)  # fmt: skip


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    return pretrain(recipe("digits.supsiam").with_set(SHORT), out=tmp_path_factory.mktemp("alone") / "run").folder


def assert_same_run(folder: Path, alone: Path) -> None:
    found, expected = rows(folder), rows(alone)
    assert [(row["kind"], row["step"]) for row in found] == [(row["kind"], row["step"]) for row in expected]
    assert len(found) == 10
    for one, other in zip(found, expected, strict=True):
        for name in {"loss", "ssl", "sup", "std", "s_w/s_t", "effective_rank", "pool_staleness"} & one.keys():
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-4), (name, one["step"])
    assert abs(found[-1]["knn"] - expected[-1]["knn"]) < 1
    kept = [json.loads((path / "recipe.json").read_text())["recipe"] for path in (folder, alone)]
    assert kept[0]["train"]["batch_size"] == kept[1]["train"]["batch_size"]
    assert (folder / "encoder.safetensors").exists()


def test_two_machines_that_meet_at_an_address(alone: Path, tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    meet = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "run", "--rdzv-endpoint"]
    words = [*meet, f"127.0.0.1:{port}", *SUPANCL, "digits.supsiam", "--out", str(tmp_path / "run"), *settings(SHORT)]
    agents = [begun(words) for _ in range(2)]
    said = [agent.communicate(timeout=200)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "".join(said).count("\nnext: ") == 1
    assert_same_run(tmp_path / "run", alone)


STREAMED = {
    "data.stream": True, "data.window": 2, "data.skip_bad_images": True, "encoder.name": "cnn", "encoder.width": 8,
    "views.size": 8, "pool.size": 32, "train.batch_size": 9, "train.epochs": 2, "train.log_every": 1,
    "train.checkpoint_every": 2, "train.monitor_every": 0, "train.device": "cpu", "schedule.warmup_epochs": 0,
}  # fmt: skip


def test_a_stream_goes_on_in_the_middle_of_an_epoch_with_two_ranks(tmp_path: Path) -> None:
    shards(tmp_path / "s", (30, 25, 35), sizes=True, bad=(7, 40))
    shards(tmp_path / "s", (6,), "val", 100)
    made, whole, folder = recipe("cifar100.supsiam"), tmp_path / "whole", tmp_path / "run"
    made = made.with_set({**STREAMED, "data.source": str(tmp_path / "s")})
    pretrain(made, out=whole)
    with pytest.raises(Crash):
        pretrain(made, out=folder, reporter=CrashAt(5))
    words = ["--standalone", "--nproc-per-node", "2", *SUPANCL, "--resume", "--out", str(folder)]
    agent = begun(words)
    said, _ = agent.communicate(timeout=200)
    assert agent.returncode == 0, said
    found, expected = rows(folder), rows(whole)
    assert [row["step"] for row in found] == [row["step"] for row in expected] == list(range(1, 21))
    for one, other in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3, abs=1e-4), one["step"]
    assert len({row["loss"] for row in found}) == 20


def ended_by(number: signal.Signals, words: list[str], folder: Path, after: int) -> tuple[str, float]:
    """What is said where rank 1 gets a signal once the run is past a step, and how long the others take to end."""
    agent = begun(["--standalone", "--nproc-per-node", "2", *SUPANCL, *words])
    log, until = folder / "metrics.jsonl", time.monotonic() + 120
    while not (log.exists() and len(log.read_text().splitlines()) > after):
        assert time.monotonic() < until
        assert agent.poll() is None, agent.communicate()[0]
        time.sleep(0.05)
    for child in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split():
        if b"\0RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes():
            os.kill(int(child), number)
    at = time.monotonic()
    said, _ = agent.communicate(timeout=60)
    assert agent.returncode != 0
    return said, time.monotonic() - at


def test_a_rank_that_is_killed_ends_all_and_the_run_goes_on_with_any_number(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["digits.supsiam", "--out", str(folder), *settings(LONG)]
    said, took = ended_by(signal.SIGKILL, words, folder, after=6)
    assert said.count("supancl: ") <= 1, said  # torchrun may end the other rank before it has reported
    assert took < 30
    said, took = ended_by(signal.SIGTERM, ["--resume", "--out", str(folder)], folder, after=30)
    assert "exitcode  : 143" in said
    stopped = rows(folder)[-1]["step"]
    run = pretrain(None, out=folder, resume=True)
    assert 30 < stopped < STEPS
    assert [row["step"] for row in run.metrics] == list(range(1, STEPS + 1))


def test_data_that_differ_between_ranks_end_all(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    archive(folders[0], 0)
    archive(folders[1], 1)
    command = [sys.executable, *SUPANCL, "digits.supsiam", "--data", "mine.npz", "--out", "run", *settings(SHORT)]
    (code, said), (other_code, other_said) = of_ranks(command, 2, tmp_path, folders)
    assert (code, other_code) == (2, 2)
    assert (len(told(said)), told(other_said)) == (1, [])
    assert not (folders[1] / "run").exists()


def told(said: str) -> list[str]:
    """Without torch's own remarks, made where the process that kept the addresses ends first."""
    return [line for line in said.splitlines() if line.startswith("supancl:")]


def archive(folder: Path, shift: int) -> None:
    images = np.random.default_rng(0).integers(0, 255, (300, 16, 16), dtype=np.uint8)
    np.savez(folder / "mine.npz", train_images=images, train_labels=(np.arange(300) + shift) % 3)


FAILS = """
import sys
from supancl import cli
from supancl.distributed import from_environment
from supancl.errors import BadInput
from supancl.training.trainer import Trainer
advance = Trainer.advance

def fails(self):
    if self.step == 3 and from_environment().rank == 1:
        raise BadInput("a.png: cannot be read any more")
    return advance(self)

Trainer.advance = fails
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_failure_in_the_middle_of_training_is_told_once(tmp_path: Path) -> None:
    words = ["pretrain", "digits.supsiam", "--out", str(tmp_path / "run"), *settings(SHORT), "--quiet"]
    ended = of_ranks([sys.executable, "-c", FAILS, *words], 2, tmp_path)
    assert [ended[0][0], ended[1][0]] == [2, 2], ended
    (said,) = told(ended[0][1] + ended[1][1])
    assert "a.png" in said
