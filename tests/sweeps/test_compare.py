"""`supancl compare`: the same seeds and images, paired intervals, and what failed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from supancl import recipe
from supancl.runs.folder import RunFolder
from supancl.stats import mean_interval, tukey_half_width
from supancl.sweeps import grid_rows, split_grid
from supancl.sweeps.compare import compare_rows
from tests.helpers import archive, contents, noise, supancl

SMALL = ["--batch-size", "8", "--device", "cpu", "--epochs", "1", "--set", "encoder.width=8", "--set", "pool.size=16"]
SMALL += ["--jobs", "1"]


def results(**by_row: list[float | None]) -> list[dict]:
    return [
        {"row": row, "seed": seed, "linear": value, "collapsed": False, "failed": None if value is not None else "nan"}
        for row, values in by_row.items()
        for seed, value in enumerate(values)
    ]


# --- differences ------------------------------------------------------------------------------------------------------


def test_differences_to_the_first_are_paired_over_seeds() -> None:
    found = results(a=[70, 80, 90], b=[73, 83.5, 92.5], c=[60, 95, 70])
    compared = compare_rows(found, ["a", "b", "c"], "linear", "first")
    assert compared["reference"] == "a"
    b, c = compared["differences"]
    assert (b["mean"], b["low"], b["high"]) == pytest.approx(tuple(mean_interval([3, 3.5, 2.5])))
    assert (b["verdict"], c["verdict"]) == ("better", "no clear difference")


def test_a_failed_run_is_left_out_of_its_pairs_and_listed() -> None:
    found = results(a=[70, 80, 90], b=[60.5, None, 80], c=[None, None, 99])
    compared = compare_rows(found, ["a", "b", "c"], "linear", "first")
    assert [(entry["row"], entry["n"], entry["verdict"]) for entry in compared["differences"]] == [
        ("b", 2, "worse"),
        ("c", 1, "no clear difference"),
    ]


@pytest.mark.parametrize("against", ["first", "best"])
def test_seeds_that_differ_by_as_many_images_are_no_clear_difference(against) -> None:
    """Two seeds that both lose 2 of 68 images have no spread, which is no certainty."""
    compared = compare_rows(results(a=[50, 60], b=[47.06, 57.06]), ["a", "b"], "linear", against)
    assert [entry["verdict"] for entry in compared["differences"]] == ["no clear difference"]


def test_the_best_is_compared_with_intervals_for_all_pairs() -> None:
    rows = {"a": [70.0, 80, 90], "b": [73.1, 83, 92.8], "c": [72.9, 83.2, 93], "d": [99, None, 99]}
    compared = compare_rows(results(**rows), list("abcd"), "linear", "best")
    assert compared["reference"] == "c"  # d has a failed run, and is not compared
    half = tukey_half_width([rows[name] for name in "abc"])
    assert {entry["row"]: entry["verdict"] for entry in compared["differences"]} == {
        "a": "worse",
        "b": "no clear difference",
    }
    assert all(entry["high"] - entry["mean"] == pytest.approx(half) for entry in compared["differences"])


def test_of_equal_rows_few_studies_call_any_worse() -> None:
    """An interval for each pair by itself would call some row worse than the best in a quarter of them."""
    random, wrong = np.random.default_rng(0), 0
    for _ in range(200):
        drawn = 80 + random.normal(size=(5, 3)) + random.normal(size=(1, 3))
        compared = compare_rows(
            results(**dict(zip("abcde", drawn.tolist(), strict=True))), list("abcde"), "linear", "best"
        )
        wrong += any(entry["verdict"] == "worse" for entry in compared["differences"])
    assert 1 <= wrong <= 22  # 10 expected; 50 by the pair


@pytest.mark.parametrize("against", ["first", "best"])
def test_runs_that_learned_nothing_have_no_winner(against) -> None:
    found = [entry | {"learned": False} for entry in results(a=[70, 80, 90], b=[73, 83.5, 92.5])]
    assert compare_rows(found, ["a", "b"], "linear", against, 500)["tone"] == "bad"
    found[0]["learned"] = True
    assert compare_rows(found, ["a", "b"], "linear", against, 500)["tone"] == "good"
    assert compare_rows(found, ["a", "b"], "linear", against, 9)["tone"] == "unclear"


# --- a start ----------------------------------------------------------------------------------------------------------


def with_start(frozen: float, fine_tuned: float, images: int, learned: bool = True) -> dict:
    """Where the fine-tuned network is right for all images that the frozen one is right for, and more."""
    ranks = np.arange(images) / images
    answers = {name: (ranks < share).tolist() for name, share in (("frozen", frozen), ("tuned", fine_tuned))}
    found = [entry | {"learned": learned} for entry in results(frozen=[100 * frozen], tuned=[100 * fine_tuned])]
    return compare_rows(found, ["frozen", "tuned"], "linear", "first", images, answers)


def test_the_frozen_network_stays_where_nothing_is_clearly_better() -> None:
    better = with_start(0.8, 0.9, 400)
    assert (better["tone"], better["differences"][0]["verdict"]) == ("good", "better")
    assert better["findings"][0].startswith("use tuned")
    same = with_start(0.8, 0.81, 100)
    assert (same["tone"], same["differences"][0]["verdict"]) == ("unclear", "no clear difference")
    assert same["findings"][0].startswith("stay with frozen")
    assert with_start(0.8, 0.5, 400)["findings"][0].startswith("stay with frozen")
    assert with_start(0.4, 0.9, 8)["tone"] == "unclear"
    assert with_start(0.11, 0.12, 200, learned=False)["tone"] == "bad"


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_and_equal_values_count_once() -> None:
    base = recipe("digits.supsiam")
    single, grid = split_grid(base, {"lr": ".1,0.10,.3", "loss.alpha": [0.2, 0.5], "train.epochs": 3})
    assert single == {"train.epochs": 3}
    rows, labels = grid_rows(base, grid)
    names = ["lr-0.1-alpha-0.2", "lr-0.1-alpha-0.5", "lr-0.3-alpha-0.2", "lr-0.3-alpha-0.5"]
    assert list(rows) == names
    assert labels[names[2]] == {"row": names[2], "optimizer.lr": 0.3, "loss.alpha": 0.2}
    assert rows[names[2]].optimizer.lr == 0.3
    lists, _ = grid_rows(base, split_grid(base, {"heads.projector.hidden": "[16],[16,16]"})[1])
    assert list(lists) == ["hidden-16", "hidden-16-16"]
    alike, _ = grid_rows(base, {"data.source": ["a/b", "a-b"]})
    assert list(alike) == ["source-a-b", "source-a-b+"]


# --- from the command line --------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path, monkeypatch) -> Path:
    """60 images in two classes, which are told apart by their brightness, and a test split."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    labels = np.arange(60) % 2
    images = noise(60, 8, 8) // 2 + (20 * labels[:, None, None]).astype(np.uint8)
    return archive(tmp_path / "photos.npz", train_images=images, train_labels=labels, test_images=images[:8],
                   test_labels=labels[:8])  # fmt: skip


def test_compare_writes_a_table_a_plot_and_latex_and_goes_on(photos: Path, capsys) -> None:
    words = ["compare", "digits.simsiam", "digits.supsiam", "--data", photos, "--seeds", 2, *SMALL, "--out", "out"]
    words += ["--set", "data.holdout=null"]
    said = supancl(capsys, *words)
    assert said.code == 0, said.err
    result = json.loads(Path("out/results.json").read_text())
    assert [(row["row"], row["seed"]) for row in result["rows"]] == [
        (name, seed) for name in ("digits.simsiam", "digits.supsiam") for seed in (0, 1)
    ]
    entry = result["summary"][1]
    values = [row["linear"] for row in result["rows"][2:]]
    mean, _, high = mean_interval(values)
    assert (entry["linear"], entry["linear_half_interval"]) == pytest.approx((mean, high - mean))
    assert result["data"]["held_out_from"] == "train"  # the test split chooses nothing
    assert "\\toprule" in Path("out/results.tex").read_text()
    assert "digits.supsiam" in Path("out/results.md").read_text()
    assert 'class="verdict ' in Path("out/comparison.html").read_text()
    # a killed run goes on, and what is finished is not trained again
    shutil.rmtree("out/digits.supsiam-seed-1")
    before = contents(Path("out/digits.simsiam-seed-0"))
    assert supancl(capsys, *words).code == 0
    assert contents(Path("out/digits.simsiam-seed-0")) == before
    again = json.loads(Path("out/results.json").read_text())
    evaluated = supancl(capsys, "evaluate", "knn", "out/digits.supsiam-seed-1", "--no-baselines", "--json", "knn.json")
    assert evaluated.code == 0  # k-NN is that of `evaluate knn`, whose k suits the few references
    knn = json.loads(Path("knn.json").read_text())
    assert (again["rows"][3]["knn"], knn["k"] < 20) == (knn["accuracy"], True)
    assert [row["linear"] for row in again["rows"]] == [row["linear"] for row in result["rows"]]


def test_a_start_is_compared_with_what_training_makes_of_it(photos: Path, capsys) -> None:
    assert supancl(capsys, "pretrain", "digits.supsiam", "--data", photos, *SMALL[:-2], "--out", "first").code == 0
    words = ["compare", "digits.supsiam", "--data", photos, "--start", "first", *SMALL, "--seeds", 2, "--out", "out"]
    said = supancl(capsys, *words)
    assert said.code == 0, said.err
    result = json.loads(Path("out/results.json").read_text())
    rows = ["frozen", "fine-tuned", "supsiam-from-start", "supsiam-from-scratch"]
    assert [entry["row"] for entry in result["summary"]] == rows
    assert [entry["n"] for entry in result["summary"]] == [1, 2, 2, 2]
    assert all(entry["seconds"] > 0 for entry in result["summary"])
    assert result["findings"][0] in said.out
    assert result["data"]["held_out_from"] == "train"  # the test split chooses nothing
    started = [RunFolder(Path("out") / f"{row}-seed-0").read_init() is not None for row in rows[2:]]
    assert started == [True, False]
    frozen = supancl(capsys, "evaluate", "linear", "out/supsiam-from-start-seed-0", "--json", "linear.json")
    assert frozen.code == 0
    kept = {each["name"]: each for each in json.loads(Path("linear.json").read_text())["baselines"]}
    assert kept["its start"]["accuracy"] == pytest.approx(result["summary"][0]["accuracy"])
    before = contents(Path("out/supsiam-from-start-seed-0/checkpoints"))
    assert supancl(capsys, *words).code == 0
    assert contents(Path("out/supsiam-from-start-seed-0/checkpoints")) == before
