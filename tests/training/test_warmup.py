"""The warm-up that is shown is the one that is stored and the one that runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from supancl import pretrain, recipe
from supancl.errors import BadInput
from supancl.paper.tables.runs import changed_fields
from supancl.recipes.recipe import resolve_warmup
from supancl.recipes.warmup import resolve_label_warmup
from supancl.weights.run_folder import RunFolder
from tests.files import assert_mentions, mentions, supancl
from tests.test_resume import Crash, CrashAt
from tests.tiny import Notes, tiny_data, tiny_recipe

SMALL = (
    "--data",
    "digits",
    "--device",
    "cpu",
    "--set",
    "data.limit=64",
    "--set",
    "train.batch_size=16",
    "--set",
    "train.log_every=1",
    "--set",
    "train.monitor_every=0",
    "--set",
    "pool.size=32",
    "--set",
    "encoder.width=16",
)
SHORT = ("--epochs", "4", "--set", "schedule.warmup_epochs=40", *SMALL)


def logged_warmup(metrics: list[dict], peak: float, epochs: int) -> float:
    """The epochs of a linear warm-up to the peak, from its first two logged rates."""
    rates = {row["step"]: row["lr"] for row in metrics if row["kind"] == "train"}
    return peak / (rates[2] - rates[1]) / (max(rates) / epochs)


@pytest.mark.parametrize("flags", [SHORT, ("--epochs", "4", *SMALL)], ids=["asked for", "of the recipe"])
def test_the_shown_recipe_recipe_json_and_the_logged_rates_agree(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = supancl(capsys, "recipes", "digits.supsiam", *flags, "--json", "-")
    shown = json.loads(said.out)["fields"]["schedule.warmup_epochs"]
    said = supancl(capsys, "pretrain", "digits.supsiam", *flags, "--out", "run")
    assert said.code == 0
    assert "schedule.warmup_epochs = 2 instead of" in said.out
    stored = json.loads(Path("run/recipe.json").read_text())["recipe"]
    assert shown["value"] == stored["schedule"]["warmup_epochs"] == 2
    assert shown["source"] == stored["sources"]["schedule.warmup_epochs"]
    assert "half of train.epochs" in shown["source"]
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    peak = recipe("digits.supsiam").optimizer.lr * 16 / 64
    assert logged_warmup(metrics, peak, epochs=4) == pytest.approx(2)
    assert max(row["lr"] for row in metrics if row["kind"] == "train") == pytest.approx(peak)


def test_the_command_that_began_a_cut_run_also_resumes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ("pretrain", "digits.supsiam", *SHORT, "--out", "run")
    assert supancl(capsys, *command).code == 0
    assert supancl(capsys, *command, "--resume").code == 0
    said = supancl(capsys, *command, "--resume", "--set", "schedule.warmup_epochs=1")
    assert said.code == 2
    assert "schedule.warmup_epochs" in said.err


def test_python_notes_a_cut_warm_up_and_resumes_with_the_same_recipe(tmp_path):
    made, notes = tiny_recipe(schedule__warmup_epochs=7, train__epochs=4), Notes()
    with pytest.raises(Crash):
        pretrain(made, tiny_data(), tmp_path / "run", reporter=CrashAt(6))
    pretrain(made, tiny_data(), tmp_path / "run", resume=True, reporter=notes)
    assert [note for note in notes.notes if "schedule.warmup_epochs = 2 instead of 7" in note]
    assert RunFolder(tmp_path / "run").read_recipe()[0].schedule.warmup_epochs == 2
    quiet = Notes()
    pretrain(made.with_set({"schedule.warmup_epochs": 2}), tiny_data(), tmp_path / "other", reporter=quiet)
    assert not [note for note in quiet.notes if "warmup" in note]


def test_a_study_says_once_that_it_cuts_and_is_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = (
        "paper",
        "study",
        "alpha",
        "digits.supsiam",
        "--rows",
        "alpha-0,alpha-1",
        "--jobs",
        "1",
        "--out",
        "study",
        *SHORT,
        "--set",
        "train.monitor_every=1",
    )  # the last one wins
    said = supancl(capsys, *command)
    assert said.code == 0, said.err
    assert said.out.count("schedule.warmup_epochs = 2 instead of 40") == 1
    said = supancl(capsys, *command)
    assert said.code == 0, said.err
    assert "2 of 2 runs are already finished" in said.out


def test_a_warm_up_that_follows_from_the_epochs_is_no_change_of_its_own():
    short = resolve_warmup(recipe("imagenet100.supsiam").with_set({"train.epochs": 10}))
    assert changed_fields(short) == {"train.epochs": 10}
    other = short.with_set({"schedule.warmup_epochs": 3})
    assert changed_fields(other) == {"train.epochs": 10, "schedule.warmup_epochs": 3}


def test_a_recipe_made_short_and_long_again_has_its_own_warm_up():
    again = recipe("imagenet100.supsiam").with_set({"train.epochs": 10}).with_set({"train.epochs": 200})
    assert resolve_warmup(again).schedule.warmup_epochs == 40


# --- of semi ----------------------------------------------------------------------------------------------------------

SEMI = ("pretrain", "digits.semi", "--epochs", "4", *SMALL, "--set", "data.labelled=0.5")  # 16 steps


def stored_semi(path: Path) -> tuple[int, str]:
    stored = json.loads((path / "recipe.json").read_text())["recipe"]
    return stored["loss"]["warmup"], stored["sources"]["loss.warmup"]


def test_a_short_run_of_semi_uses_unlabelled_images_in_its_second_half(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--resume",)):
        said = supancl(capsys, *SEMI, "--out", "run", *more)
        assert said.code == 0, said.err
        assert ("loss.warmup = 8 instead of 200" in said.out) == (not more)
    warmup, source = stored_semi(tmp_path / "run")
    assert warmup == 8
    assert_mentions(source, "16 steps", "200")


def test_a_warm_up_of_semi_that_was_asked_for_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for asked, outlasts in ((200, True), (12, False)):
        said = supancl(capsys, *SEMI, "--set", f"loss.warmup={asked}", "--out", f"run-{asked}")
        assert said.code == 0, said.err
        assert stored_semi(tmp_path / f"run-{asked}") == (asked, f"--set loss.warmup={asked}")
        assert ("outlasts the 16 steps" in said.out) == outlasts


def test_python_resumes_semi_with_the_recipe_that_it_began_with(tmp_path):
    asked = tiny_recipe("semi")
    own = {name: text for name, text in asked.sources.items() if name != "loss.warmup"}
    made = replace(asked, loss=replace(asked.loss, warmup=200), sources=own)  # as in a recipe of the package
    with pytest.raises(Crash):
        pretrain(made, tiny_data(), tmp_path / "run", reporter=CrashAt(3))
    pretrain(made, tiny_data(), tmp_path / "run", resume=True)
    folder = RunFolder(tmp_path / "run")
    assert folder.read_recipe()[0].loss.warmup == folder.metrics()[-1]["step"] // 2
    with pytest.raises(BadInput, match=mentions("loss.warmup", "1")):
        pretrain(made.with_set({"loss.warmup": 1}), tiny_data(), tmp_path / "run", resume=True)


def test_a_long_run_of_semi_keeps_its_warm_up():
    semi = recipe("digits.semi")
    assert resolve_label_warmup(semi, 1347) is semi
    assert resolve_label_warmup(semi, 64).loss.warmup == 40  # 80 epochs of one step


def test_a_comparison_with_semi_says_once_that_it_cuts_and_is_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = [*SMALL, "--epochs", "2", "--set", "train.monitor_every=1", "--seeds", "2", "--jobs", "1", "--out", "c"]
    for is_again in (False, True):
        said = supancl(capsys, "compare", "digits.semi", "digits.supsiam", *flags)
        assert said.code == 0, said.err
        assert said.out.count("loss.warmup = 4 instead of 200") == 1
        assert ("4 of 4 runs are already finished" in said.out) == is_again
