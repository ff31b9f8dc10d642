"""`pretrain --extend`: a finished run goes on in another folder, with a rate that it states."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from supancl import pretrain
from supancl.errors import BadInput
from supancl.runs.checkpoint import checkpoints
from supancl.runs.folder import RunFolder
from tests.helpers import (
    assert_same_bits,
    class_folders,
    contents,
    final_state,
    mentions,
    supancl,
    tiny_data,
    tiny_recipe,
)
from tests.test_resume import Crash, CrashAt


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    pretrain(tiny_recipe("supbyol", data__source="here"), tiny_data(), folder)
    return folder


def test_it_goes_on_from_the_last_state_and_leaves_the_run_untouched(finished: Path, tmp_path: Path) -> None:
    before = contents(finished)
    run = pretrain(extend=finished, epochs=4, out=tmp_path / "longer", data=tiny_data())
    assert contents(finished) == before
    assert [row["step"] for row in run.metrics if row["kind"] == "monitor"] == [5, 10, 15, 20]
    assert run.metrics[: len(RunFolder(finished).metrics())] == RunFolder(finished).metrics()
    # half a cosine from the rate of a run of 4 epochs after 2, which is half the peak
    rates = [row["lr"] for row in run.metrics if row["kind"] == "train" and row["step"] > 10]
    assert rates == pytest.approx([0.025 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(10)])
    momenta = [row["momentum"] for row in run.metrics if row["kind"] == "train" and row["step"] > 10]
    assert momenta == sorted(momenta)
    content = json.loads((tmp_path / "longer" / "recipe.json").read_text())
    assert content["extended_from"]["learning_rate"] == pytest.approx(0.025)
    assert content["extended_from"]["run"] == str(finished)
    assert content["recipe"]["schedule"]["restart_epoch"] == 2
    assert str(finished) in content["recipe"]["sources"]["schedule.restart_rate"]


def test_it_resumes_to_the_same_bits_without_the_old_run(finished: Path, tmp_path: Path) -> None:
    old = shutil.copytree(finished, tmp_path / "old")
    pretrain(extend=old, epochs=4, out=tmp_path / "whole", data=tiny_data())
    with pytest.raises(Crash):
        pretrain(extend=old, epochs=4, out=tmp_path / "broken", data=tiny_data(), reporter=CrashAt(17))
    shutil.rmtree(old)
    pretrain(None, tiny_data(), tmp_path / "broken", resume=True)
    assert_same_bits(final_state(tmp_path / "broken"), final_state(tmp_path / "whole"))
    pretrain(extend=tmp_path / "broken", epochs=5, out=tmp_path / "again", data=tiny_data())
    assert RunFolder(tmp_path / "again").read_recipe()[0].schedule.restart_epoch == 4


def test_an_unfinished_run_and_one_without_checkpoint_say_what_to_do(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        pretrain(tiny_recipe(), tiny_data(), tmp_path / "stopped", reporter=CrashAt(7))
    with pytest.raises(BadInput, match=mentions("not finished")):
        pretrain(extend=tmp_path / "stopped", epochs=4, out=tmp_path / "longer")
    bare = shutil.copytree(finished, tmp_path / "bare")
    for path in checkpoints(bare / "checkpoints"):
        path.unlink()
    with pytest.raises(BadInput, match=mentions("no checkpoint")):
        pretrain(extend=bare, epochs=4, out=tmp_path / "longer")


def test_from_the_command_line(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(class_folders(tmp_path / "photos").parent)
    small = ["--batch-size", "4", "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16"]
    assert supancl(capsys, "pretrain", "digits.supsiam", "--data", "photos", *small, "--epochs", 1).code == 0
    assert supancl(capsys, "pretrain", "--extend", "runs/digits.supsiam-001", "--epochs", 2).code == 0
    again = ["pretrain", "--extend", "runs/digits.supsiam-001", "--epochs", 2, "--out", "runs/digits.supsiam-002"]
    assert supancl(capsys, *again).code == 2  # there is a run
    assert supancl(capsys, *again, "--resume").code == 0
    assert torch.load(next(Path("runs/digits.supsiam-002/checkpoints").glob("*.pt")))["settings"]["train.epochs"] == 2
