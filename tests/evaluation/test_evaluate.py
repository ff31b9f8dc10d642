"""`supancl evaluate` and `embed` as they are typed: what they print, write and refuse."""

import csv
import io
import json
import shutil

import numpy as np
import pytest

from supancl.cli import main
from tests.data.benchmark_trees import BUILDERS
from tests.evaluation.made import run_folder, source
from tests.helpers import supancl


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """An epoch on the digits."""
    out = tmp_path_factory.mktemp("evaluate") / "run"
    words = "pretrain digits.supsiam --epochs 1 --device cpu --quiet --set encoder.width=16 --batch-size 128 --out"
    assert main([*words.split(), str(out)]) == 0
    return out


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in: two seeds of a recipe, another one, a source with all splits, and data sets that are not
    whole."""
    monkeypatch.chdir(tmp_path)
    for name, seed, alpha in (("run0", 0, 0.5), ("run1", 1, 0.5), ("other", 0, 0.25)):
        run_folder(tmp_path / name, seed, loss__alpha=alpha)
    source(tmp_path / "x.npz", train=60, val=30, test=30)
    (tmp_path / "root").mkdir()
    return tmp_path


def in_json(said) -> dict:
    assert said.code == 0, said.err
    return json.loads(said.out)


# --- on a real run ----------------------------------------------------------------------------------------------------


def test_every_protocol_on_a_run_and_its_own_data(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    for words in (
        ("knn", run, "--k", "5,20"),
        ("linear", run),
        ("linear", run, "--probe", "sgd", "--epochs", "2", "--augmented", "--no-baselines"),
        ("variance", run),
        ("transfer", run, "--data", "digits"),
        ("fewshot", run, "--data", "digits", "--episodes", "20"),
        ("finetune", run, "--epochs", "1", "--lr", "0.1"),
    ):
        said = supancl(capsys, "evaluate", *words)
        assert said.code == 0, said.err
    kept = {path.stem: json.loads(path.read_text()) for path in (run / "evaluate").iterdir()}
    # transfer and few-shot are named by their data, the others are on the run's own
    assert set(kept) == {
        "knn-k5",
        "linear",
        "linear-sgd-augmented-epochs2",
        "variance",
        "transfer-digits",
        "fewshot-digits-5w1s-episodes20",
        "fewshot-digits-5w5s-episodes20",
        "finetune-epochs1-lrs0.1",
    }
    assert kept["transfer-digits"]["images"] == [1078, 269, 450]  # tested on what pretraining held out
    assert kept["fewshot-digits-5w5s-episodes20"]["images"] == 450
    assert (kept["transfer-digits"]["cut_off"], kept["linear"]["cut_off"]) == (False, False)
    conditions = {"protocol", "encoder", "layer", "normalize", "seconds", "hardware", "versions", "commit"}
    assert all(result.keys() >= conditions for result in kept.values())


# --- several encoders -------------------------------------------------------------------------------------------------


def test_transfer_of_several_encoders_is_one_table(place, capsys):
    said = supancl(capsys, "evaluate", "transfer", "run0", "run1", "other", "--data", "x.npz", "--json", "-")
    found = in_json(said)
    rows = found["tables"]["transfer"]["rows"]
    assert [row["encoder"] for row in rows] == ["digits.supsiam (run0)", "digits.supsiam (other)"]
    accuracies = [result["accuracy"] for result in found["results"]]
    found = rows[0]["scores"]["x"]
    assert (found["mean"], found["n"]) == (pytest.approx(np.mean(accuracies[:2])), 2)
    assert found["sd"] == pytest.approx(np.std(accuracies[:2], ddof=1))
    assert rows[1]["scores"]["x"]["mean"] == accuracies[2]


@pytest.mark.parametrize("form", ["csv", "json", "markdown"])
def test_a_table_of_another_format_is_nothing_else(form, place, capsys):
    words = "evaluate fewshot run0 other --data x.npz --shots 1 --ways 3 --episodes 9 --format"
    said = supancl(capsys, *words.split(), form)
    assert said.code == 0
    if form == "csv":
        rows = list(csv.reader(io.StringIO(said.out)))
        assert rows[0][:2] == ["encoder", "data"]
        assert len(rows) == 3
    elif form == "json":
        assert set(json.loads(said.out)) == {"fewshot 3w1s"}
    else:
        assert said.out.startswith("**fewshot 3w1s**\n\n| Encoder | x | Avg. rank |\n| --- | ---: | ---: |\n")


def test_data_sets_of_a_folder_by_name_and_by_what_is_there(place, capsys):
    BUILDERS["pets"](place / "root")
    assert supancl(capsys, "evaluate", "transfer", "run0", "--root", "root").code == 2
    said = supancl(capsys, "evaluate", "transfer", "run0", "--root", "root", "--sets", "pets", "--partial")
    assert said.code == 0
    (remark,) = json.loads((place / "run0/evaluate/transfer-pets.json").read_text())["remarks"]
    assert said.err == f"warning: {remark}\n"


def test_data_that_changed_since_the_run_are_refused(place, capsys):
    data = source(place / "own.npz", train=90)
    run_folder(place / "own", source=str(data), described=True)
    assert supancl(capsys, "evaluate", "knn", "own").code == 0
    source(data, train=96)
    for command in (
        ("knn", "own"),
        ("knn", "own", "--data", "own.npz"),
        ("finetune", "own", "--lr", "0.1"),
        ("transfer", "own", "--data", "own.npz"),
    ):
        assert supancl(capsys, "evaluate", *command).code == 2
    assert supancl(capsys, "evaluate", "knn", "own", "--data", "x.npz").code == 0


# --- the suite --------------------------------------------------------------------------------------------------------

SUITE = ("evaluate", "suite", "run0", "other", "--root", "root", "--out", "out", "--partial", "--episodes", "9")
SUITE += ("--ways", "3", "--k", "3")


def test_the_suite_writes_tables_and_goes_on_where_it_was(place, capsys):
    BUILDERS["pets"](place / "root")
    BUILDERS["omniglot"](place / "root")
    said = supancl(capsys, *SUITE, "--shots", "1", "--json", "result.json")
    assert said.code == 0
    assert (place / "out/knn.md").exists()
    found = json.loads((place / "result.json").read_text())
    assert set(found["tables"]) == {"knn", "transfer", "fewshot 3w1s"}
    assert (len(found["results"]), len(found["differences"]), found["failures"]) == (6, 1, [])
    again = supancl(capsys, *SUITE, "--shots", "1")
    assert again.code == 0
    more = supancl(capsys, *SUITE, "--shots", "1,2")
    assert (more.out.count("(saved earlier)"), more.out.count("fewshot 3w2s on omniglot: ")) == (6, 2)
