"""`pretrain FILE`: the settings of another run, or a short list of one's own."""

import json
from pathlib import Path

import pytest

from supancl import pretrain, recipe
from supancl.recipes import recipe_from_file
from supancl.runs.folder import RunFolder
from tests.helpers import TINY, archive, assert_mentions, supancl, tiny_data, tiny_recipe

SHORT = "recipe: digits.supsiam\nloss:\n  alpha: 0.3\ntrain.epochs: 3\noptimizer: {lr: 1e-2}\n"


def test_a_run_starts_with_the_settings_of_another_and_chooses_again_what_was_automatic(tmp_path: Path) -> None:
    made = tiny_recipe(data__source="here", loss__alpha=0.25)
    pretrain(made, tiny_data(), tmp_path / "run")
    saved = RunFolder(tmp_path / "run").read_recipe()[0]
    assert (saved.train.precision, saved.data.short_side) == ("fp32", 12)
    for name in (tmp_path / "run" / "recipe.json", tmp_path / "run"):
        read = recipe_from_file(str(name))
        assert (read.loss.alpha, read.encoder.width, read.name) == (0.25, 16, "tiny.supsiam")
        assert (read.train.precision, read.train.compile, read.data.short_side) == ("auto", None, None)
    pretrain(None, tiny_data(), tmp_path / "longer", extend=tmp_path / "run", epochs=4)
    read = recipe_from_file(str(tmp_path / "longer"))
    assert (read.schedule.restart_epoch, read.schedule.restart_rate, read.train.epochs) == (0, 1.0, 4)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_short_file_names_a_recipe_and_what_to_change(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"mine.{suffix}"
    nested = {"recipe": "digits.supsiam", "loss": {"alpha": 0.3}, "train.epochs": 3, "optimizer": {"lr": 0.01}}
    file.write_text(SHORT if suffix == "yaml" else json.dumps(nested))
    read = recipe_from_file(str(file))
    expected = recipe("digits.supsiam").with_set({"loss.alpha": 0.3, "train.epochs": 3, "optimizer.lr": 0.01})
    assert (read.loss, read.train, read.optimizer) == (expected.loss, expected.train, expected.optimizer)
    assert read.fields()["loss.alpha"] == (0.3, file.name)


def test_from_the_command_line_with_flags_on_top(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "photos.npz")
    Path("mine.yaml").write_text(SHORT)
    said = supancl(capsys, "pretrain", "mine.yaml", "--data", "photos.npz", *TINY, "--out", "one")
    assert said.code == 0, said.err
    said = supancl(capsys, "pretrain", "one/recipe.json", "--seed", 5, "--set", "loss.alpha=0.1", "--out", "two")
    assert said.code == 0, said.err
    one, two = (RunFolder(Path(name)).read_recipe()[0] for name in ("one", "two"))
    assert (one.loss.alpha, one.train.seed, one.train.batch_size) == (0.3, 0, 4)
    assert (two.loss.alpha, two.train.seed, two.train.batch_size) == (0.1, 5, 4)
    assert two.data == one.data
    again = ["pretrain", "mine.yaml", "--data", "photos.npz", *TINY, "--out", "one", "--resume"]
    assert_mentions(supancl(capsys, *again).out, "finished")
