"""A run that was stopped anywhere ends with the same bits as one that never was."""

import math
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import supancl.training.step
from supancl import METHODS, Reporter, pretrain
from supancl.cli import main
from supancl.errors import BadInput, Collapsed, NonFinite
from supancl.runs.checkpoint import checkpoints
from supancl.runs.folder import RunFolder
from supancl.runs.log import read_end
from supancl.training.run import load
from tests.forked import Started
from tests.helpers import Notes, assert_same_bits, contents, final_state, mentions, poisoned, tiny_data, tiny_recipe


class Crash(Exception):
    pass


class CrashAt(Reporter):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int, row: object) -> None:
        if step == self.step:
            raise Crash


def crash_and_resume(recipe, data, folder: Path, at: int):
    with pytest.raises(Crash):
        pretrain(recipe, data, folder, reporter=CrashAt(at))
    return pretrain(None, data, folder, resume=True)


CASES = [(method, None) for method in METHODS]
CASES += [(m, pool) for m in ("supsiam", "supbyol") for pool in ("class-queues", "prototypes")]
CASES += [("moco2", "class-queues"), ("supmoco", "prototypes")]


@pytest.mark.parametrize(("method", "pool"), CASES)
def test_resume_in_the_middle_of_an_epoch_gives_the_same_bits(method: str, pool: str | None, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, pool, train__checkpoint_every=2)
    data = tiny_data(30, unlabelled=0.3)  # three steps in an epoch
    whole = pretrain(recipe, data, tmp_path / "whole")
    resumed = crash_and_resume(recipe, data, tmp_path / "stopped", at=5)  # the checkpoint before it is step 4 of 6
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))
    timeless = [{k: v for k, v in row.items() if k != "images_per_second"} for row in whole.metrics]
    assert timeless == [{k: v for k, v in row.items() if k != "images_per_second"} for row in resumed.metrics]


# every optimizer, precision and share of labels, and pools of one target and of many
CORNERS = [
    ("supsiam", "queue", 1, 4, 24, 2, 0.0, "adamw", "bf16"),
    ("supmoco", "queue", 30, 9, 36, 4, 0.5, "sgd", "fp32"),
    ("supbyol", "class-queues", 30, 12, 36, 5, 0.5, "adamw", "fp32"),
    ("moco2", "class-queues", 1, 7, 31, 3, 0.0, "sgd", "bf16"),
    ("supbyol", "prototypes", 1, 5, 27, 3, 0.5, "sgd", "bf16"),
    ("moco3", "queue", 1, 11, 35, 3, 0.5, "adamw", "bf16"),
]


@pytest.mark.parametrize("corner", CORNERS)
def test_a_run_saved_after_three_steps_resumes_with_the_same_bits(corner: tuple, tmp_path: Path) -> None:
    method, pool, size, batch, images, classes, unlabelled, optimizer, precision = corner
    data = tiny_data(images, classes, unlabelled)
    recipe = tiny_recipe(
        method, pool, pool__size=size, train__batch_size=batch, train__precision=precision, optimizer__name=optimizer,
        train__checkpoint_every=3, train__epochs=max(2, math.ceil(8 / (len(data.train) // batch))),
        train__monitor_every=0,
    )  # fmt: skip
    pretrain(recipe, data, tmp_path / "whole")
    crash_and_resume(recipe, data, tmp_path / "stopped", at=4)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))


# --- real processes, real signals -------------------------------------------------------------------------------------

COMMAND = [
    "pretrain", "digits.supbyol", "--epochs", "3", "--checkpoint-every", "4", "--batch-size", "64", "--device", "cpu",
    "--set", "encoder.width=16", "--set", "train.monitor_every=0", "--set", "data.limit=512",
]  # fmt: skip


def wait_for_checkpoint(folder: Path, process: Started) -> None:
    process.wait_until(lambda: checkpoints(folder / "checkpoints"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert main([*COMMAND, "--out", str(folder), "--quiet"]) == 0  # a process of its own would give the same bits
    return final_state(folder)


def test_kill_9_at_random_moments_then_resume_gives_the_same_bits(tmp_path: Path, forks, uninterrupted) -> None:
    folder, chance, killed = tmp_path / "run", random.Random(0), 0
    for turn in range(2):
        process = Started(forks, tmp_path / f"process {turn}", *COMMAND, "--out", str(folder), "--resume")
        wait_for_checkpoint(folder, process)
        time.sleep(turn * chance.uniform(0.0, 0.4))  # the first at once: a fast run would end before
        killed += process.send_signal(signal.SIGKILL)
        process.end()
    assert killed > 0
    assert main([*COMMAND, "--out", str(folder), "--resume"]) == 0
    assert_same_bits(uninterrupted, final_state(folder))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_names_the_command_that_continues(number, code, tmp_path: Path, forks, uninterrupted):
    folder = tmp_path / "run"
    process = Started(forks, tmp_path / "process", *COMMAND, "--out", str(folder))
    wait_for_checkpoint(folder, process)
    process.send_signal(number)
    ended, errors = process.end()
    assert ended == code, errors
    lines = [line for line in errors.splitlines() if line.strip()]
    assert len(lines) == 1
    assert f"supancl pretrain --resume --out {folder}" in lines[0]
    assert main(["pretrain", "--resume", "--out", str(folder)]) == 0
    assert_same_bits(uninterrupted, final_state(folder))


# --- after a loss that was no number ----------------------------------------------------------------------------------


def test_a_run_that_ended_at_a_loss_without_numbers_saves_none_of_it(monkeypatch, tmp_path):
    data, folder = tiny_data(), tmp_path / "stopped"
    with monkeypatch.context() as patch:
        poisoned(patch, {3})
        with pytest.raises(NonFinite, match=mentions("step 3")):
            pretrain(tiny_recipe("supbyol", train__checkpoint_every=2, train__log_every=5), data, folder)
    assert all(torch.isfinite(value).all() for value in final_state(folder).values() if value.is_floating_point())
    pretrain(None, data, folder, resume=True)  # whatever it was has gone
    pretrain(tiny_recipe("supbyol"), data, tmp_path / "whole")
    assert_same_bits(final_state(tmp_path / "whole"), final_state(folder))


# --- after a collapse -------------------------------------------------------------------------------------------------


def collapsing(monkeypatch) -> None:
    monkeypatch.setattr(supancl.training.step, "relative_std", lambda targets: torch.zeros(()))


def test_a_run_that_was_stopped_for_a_collapse_goes_on_when_it_is_asked_to_and_says_so(monkeypatch, tmp_path):
    """With the same bits as one that was never stopped; who does not ask for it is stopped again."""
    collapsing(monkeypatch)
    data, folder, recipe = tiny_data(), tmp_path / "stopped", tiny_recipe("supbyol")
    pretrain(recipe, data, tmp_path / "whole")
    stopping = recipe.with_set({"train.on_collapse": "stop"})
    with pytest.raises(Collapsed, match=mentions(folder, "step 3", "collapsed")):
        pretrain(stopping, data, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}
    with pytest.raises(Collapsed, match=mentions("step 3")):
        pretrain(None, data, folder, resume=True)
    assert all(path.read_bytes() == was for path, was in before.items())
    going = recipe.with_set({"train.on_collapse": "warn"})
    with pytest.raises(Crash):
        pretrain(going, data, folder, resume=True, reporter=CrashAt(6))
    assert RunFolder(folder).read_recipe()[0].train.on_collapse == "warn"
    pretrain(None, data, folder, resume=True, reporter=(notes := Notes()))  # who asks for nothing goes on as it did
    assert len(notes.warnings) == 1
    assert_same_bits(final_state(tmp_path / "whole"), final_state(folder))


# --- damaged and missing checkpoints ----------------------------------------------------------------------------------


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    recipe, data, notes = tiny_recipe(train__checkpoint_every=2), tiny_data(), Notes()
    pretrain(recipe, data, tmp_path / "whole")
    with pytest.raises(Crash):
        pretrain(recipe, data, tmp_path / "stopped", reporter=CrashAt(9))
    newest = checkpoints(tmp_path / "stopped" / "checkpoints")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    pretrain(None, data, tmp_path / "stopped", resume=True, reporter=notes)
    assert any(newest.name in line and "damaged" in line for line in notes.warnings)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))


def test_resume_without_a_checkpoint_starts_at_step_0_and_says_so(tmp_path: Path) -> None:
    recipe, data, notes = tiny_recipe(), tiny_data(), Notes()
    pretrain(recipe, data, tmp_path / "whole")
    with pytest.raises(Crash):
        pretrain(recipe, data, tmp_path / "stopped", reporter=CrashAt(2))
    pretrain(recipe, data, tmp_path / "stopped", resume=True, reporter=notes)
    assert any("starting at step 0" in line for line in notes.notes)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))


def steps_kept(run: Path) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in checkpoints(run / "checkpoints")]


def test_two_checkpoints_while_training_and_one_when_finished(tmp_path: Path) -> None:
    recipe, data, run = tiny_recipe(train__checkpoint_every=1), tiny_data(), tmp_path / "run"
    with pytest.raises(Crash):
        pretrain(recipe, data, run, reporter=CrashAt(9))
    assert steps_kept(run) == [7, 8]
    pretrain(None, data, run, resume=True)
    assert steps_kept(run) == [10]
    assert pretrain(None, data, run, resume=True).metrics[-1]["step"] == 10


def test_a_run_that_keeps_no_checkpoint_is_known_to_be_finished(tmp_path: Path) -> None:
    """It must not start again at step 0 over its own encoder."""
    data, run, notes = tiny_data(), tmp_path / "run", Notes()
    first = pretrain(tiny_recipe(train__keep="none"), data, run)
    assert steps_kept(run) == []
    before = contents(run)
    again = pretrain(None, data, run, resume=True, reporter=notes)
    assert contents(run) == before
    assert (again.metrics, again.collapsed) == (first.metrics, False)
    weights = torch.nn.utils.parameters_to_vector
    assert torch.equal(weights(again.encoder.parameters()), weights(first.encoder.parameters()))
    assert "finished" in notes.notes[-1]
    end = run / "finished.json"
    intact = end.read_text()
    end.write_text(intact.replace("10", "12"))
    with pytest.raises(BadInput, match=mentions("finished.json", "damaged", "remove")):
        pretrain(None, data, run, resume=True)
    end.write_text(intact)
    assert read_end(RunFolder(run)) is not None
    assert not load(run).collapsed


def test_a_run_without_a_checkpoint_begins_anew_on_the_data_as_they_are_now(tmp_path: Path) -> None:
    """Else it could be continued no more, for the data it was not trained on."""
    recipe, folder, more = tiny_recipe(), tmp_path / "run", tiny_data(classes=4)
    with pytest.raises(Crash):
        pretrain(recipe, tiny_data(classes=3), folder, reporter=CrashAt(2))
    with pytest.raises(Crash):
        pretrain(None, more, folder, resume=True, reporter=CrashAt(7))
    assert RunFolder(folder).read_recipe()[1] == more.classes
    pretrain(None, more, folder, resume=True)
    assert final_state(folder)


def test_python_resumes_semi_with_the_recipe_that_it_began_with(tmp_path):
    asked = tiny_recipe("semi")
    own = {name: text for name, text in asked.sources.items() if name != "loss.warmup"}
    made = replace(asked, loss=replace(asked.loss, warmup=200), sources=own)  # as in a recipe of the package
    with pytest.raises(Crash):
        pretrain(made, tiny_data(), tmp_path / "run", reporter=CrashAt(3))
    pretrain(made, tiny_data(), tmp_path / "run", resume=True)
    folder = RunFolder(tmp_path / "run")
    assert folder.read_recipe()[0].loss.warmup == folder.metrics()[-1]["step"] // 2
    with pytest.raises(BadInput, match=mentions("loss.warmup")):
        pretrain(made.with_set({"loss.warmup": 1}), tiny_data(), tmp_path / "run", resume=True)
