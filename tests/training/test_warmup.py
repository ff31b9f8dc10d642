"""The warm-up that is shown is the one that is stored and the one that runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from supancl import pretrain, recipe
from supancl.errors import BadInput
from supancl.runs.folder import RunFolder
from tests.files import mentions, supancl
from tests.test_resume import Crash, CrashAt
from tests.tiny import tiny_data, tiny_recipe

SMALL = ("--data", "digits", "--device", "cpu", "--set", "data.limit=64", "--set", "train.batch_size=16")
SMALL += ("--set", "train.log_every=1", "--set", "train.monitor_every=0", "--set", "pool.size=32")
SMALL += ("--set", "encoder.width=16")
SHORT = ("--epochs", "4", "--set", "schedule.warmup_epochs=40", *SMALL)


def logged_warmup(metrics: list[dict], peak: float, epochs: int) -> float:
    """The epochs of a linear warm-up to the peak, from its first two logged rates."""
    rates = {row["step"]: row["lr"] for row in metrics if row["kind"] == "train"}
    return peak / (rates[2] - rates[1]) / (max(rates) / epochs)


@pytest.mark.parametrize("flags", [SHORT, ("--epochs", "4", *SMALL)], ids=["asked for", "of the recipe"])
def test_the_shown_recipe_recipe_json_and_the_logged_rates_agree(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word for word in flags if word not in SMALL[:2]]  # a recipe is listed without its data
    said = supancl(capsys, "recipes", "digits.supsiam", *words, "--json", "-")
    shown = json.loads(said.out)["fields"]["schedule.warmup_epochs"]
    said = supancl(capsys, "pretrain", "digits.supsiam", *flags, "--out", "run")
    assert said.code == 0
    stored = json.loads(Path("run/recipe.json").read_text())["recipe"]
    assert shown["value"] == stored["schedule"]["warmup_epochs"] == 2
    assert shown["source"] == stored["sources"]["schedule.warmup_epochs"]
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    peak = recipe("digits.supsiam").optimizer.lr * 16 / 64
    assert logged_warmup(metrics, peak, epochs=4) == pytest.approx(2)
    assert max(row["lr"] for row in metrics if row["kind"] == "train") == pytest.approx(peak)


# --- of semi ----------------------------------------------------------------------------------------------------------


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
