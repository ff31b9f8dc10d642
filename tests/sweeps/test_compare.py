"""`supancl compare` and `supancl sweep`: the same seeds and images, paired intervals, and what failed."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from supancl import recipe
from supancl.data.survey import Survey
from supancl.errors import BadInput
from supancl.reporter import Reporter
from supancl.reports.comparison import comparison_table, draw_comparison
from supancl.stats import mean_interval, tukey_half_width
from supancl.sweeps import runner
from supancl.sweeps.compare import compare_rows
from supancl.sweeps.grid import grid_rows, parse_grid, recipe_rows
from supancl.sweeps.results import summarize
from supancl.sweeps.runner import default_jobs
from supancl.training import fitting
from tests.files import archive, assert_mentions, assert_refused, contents, mentions, noise, supancl
from tests.tiny import poisoned

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
    assert_mentions(compared["findings"][0], "b minus a", "+3.00", "better")


def test_a_failed_run_is_left_out_of_its_pairs_and_listed() -> None:
    found = results(a=[70, 80, 90], b=[60.5, None, 80], c=[None, None, 99])
    compared = compare_rows(found, ["a", "b", "c"], "linear", "first")
    assert [(entry["row"], entry["n"], entry["verdict"]) for entry in compared["differences"]] == [
        ("b", 2, "worse"),
        ("c", 1, "no clear difference"),
    ]
    assert sum("failed, and in no mean" in line for line in compared["findings"]) == 3
    assert_mentions(" ".join(compared["findings"]), "c minus a", "1 seed in common")


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
    assert_mentions(" ".join(compared["findings"]), "c has the best", "1 of 2 others", "no clear difference from b")
    assert_mentions(" ".join(compared["findings"]), "not compared", "failed: d")


def test_one_combination_is_not_the_best_of_any() -> None:
    compared = compare_rows(results(a=[70, 80]), ["a"], "linear", "best")
    assert compared["findings"] == ["there is one combination, so nothing is compared"]


def test_a_row_with_a_failed_run_is_not_marked_as_the_best() -> None:
    found = results(a=[70, 80], b=[60, 70], c=[90, None])
    for entry in found:
        entry["knn"] = entry["linear"]
    measures = {"knn": ("k-NN %", 2), "linear": ("linear %", 2)}
    summary = [summarize(found, {"row": row}, measures, ("collapsed", "failed")) for row in "abc"]
    for entry in summary:
        entry |= {"knn_half_interval": 1.0, "linear_half_interval": 1.0}
    result = {
        "summary": summary, "command": "sweep", "epochs": [1], "seeds": [0, 1],
        "data": {"source": "x", "held_out": 100},
        **compare_rows(found, list("abc"), "linear", "best"),
    }  # fmt: skip
    table = comparison_table(result, {"row": "row"}, measures)
    assert [bool(row[2].mark) for row in table.rows] == [True, True, False]


def test_equal_rows_share_the_first_place() -> None:
    compared = compare_rows(results(a=[50, 60], b=[60, 50], c=[40, 41]), list("abc"), "linear", "best")
    assert compared["findings"][0].startswith("a and b share the best")


def test_few_images_are_said_and_too_few_say_nothing() -> None:
    found = results(a=[70, 80, 90], b=[73, 83.5, 92.5])
    enough, few, too_few = (compare_rows(found, ["a", "b"], "linear", "first", count) for count in (100, 99, 9))
    assert few["findings"][:-1] == enough["findings"]
    assert_mentions(few["findings"][-1], "over seeds", "99")
    assert len(too_few["findings"]) == 1
    assert_mentions(too_few["findings"][0], "too few images to say", "9 held out", "--set data.holdout")


def test_a_sweep_of_auto_looks_at_its_data_once_and_reports_equal_choices_once(tmp_path, monkeypatch) -> None:
    notes, surveyed = [], []
    monkeypatch.setattr(fitting, "survey_source", lambda *_: surveyed.append(1) or Survey(300, 100, 4, 32))
    reporter = Reporter()
    reporter.note = notes.append
    rows = grid_rows(recipe("auto.supsiam"), {"loss.alpha": [0.2, 0.5], "pool.kind": ["queue", "prototypes"]}).recipes
    fitted = fitting.fit_rows({**rows, "other": recipe("digits.supsiam")}, reporter)
    assert len(surveyed) == 1
    assert sum(line.startswith("auto.supsiam for") for line in notes) == 1
    assert [row.train.batch_size for row in fitted.values()][:4] == [16] * 4
    assert fitted["other"] == recipe("digits.supsiam")


def test_one_seed_shows_nothing_and_no_complete_row_no_best() -> None:
    for against in ("first", "best"):
        compared = compare_rows(results(a=[70], b=[99]), ["a", "b"], "linear", against)
        assert_mentions(compared["findings"][0], "one seed", "--seeds 3")
        assert [entry["verdict"] for entry in compared["differences"]] == ["no clear difference"]
    compared = compare_rows(results(a=[70, None], b=[None, 99]), ["a", "b"], "linear", "best")
    assert compared["reference"] is None
    assert_mentions(compared["findings"][0], "nothing is recommended")


@pytest.mark.parametrize(("seeds", "said"), [(2, "95% interval"), (1, "one seed")])
def test_the_plot_explains_what_is_on_it(tmp_path: Path, monkeypatch, seeds: int, said: str) -> None:
    texts: list[str] = []
    monkeypatch.setattr(Figure, "supxlabel", lambda self, text, **more: texts.append(text))
    rows = [{**row, "knn": row["linear"]} for row in results(a=[70.0, 71.0][:seeds], b=[80.0, 82.0][:seeds])]
    half = 1.0 if seeds > 1 else math.nan
    summary = [
        {"row": row, "knn": 75.0, "linear": 75.0, "knn_half_interval": half, "linear_half_interval": half}
        for row in ("a", "b")
    ]
    result = {"rows": rows, "summary": summary, "reference": "a", "seeds": list(range(seeds))}
    draw_comparison(result, {"knn": ("k-NN %", 2), "linear": ("linear %", 2)}, tmp_path / "plot.png")
    assert said in texts[0]
    assert "red" in texts[0]
    assert ("interval" in texts[0].replace("no interval", "")) == (seeds > 1)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_and_equal_values_count_once() -> None:
    grid = parse_grid(["optimizer.lr=.1,0.10,.3", "loss.alpha=.2,.5"])
    rows = grid_rows(recipe("digits.supsiam"), grid)
    names = ["lr-0.1-alpha-0.2", "lr-0.1-alpha-0.5", "lr-0.3-alpha-0.2", "lr-0.3-alpha-0.5"]
    assert list(rows.recipes) == names
    assert rows.labels[names[2]] == {"row": names[2], "optimizer.lr": 0.3, "loss.alpha": 0.2}
    assert rows.recipes[names[2]].optimizer.lr == 0.3
    lists = grid_rows(recipe("digits.supsiam"), parse_grid(["heads.projector.hidden=[16],[16,16]"]))
    assert list(lists.recipes) == ["hidden-16", "hidden-16-16"]
    alike = grid_rows(recipe("digits.supsiam"), parse_grid(["data.source=a/b,a-b"]))
    assert list(alike.recipes) == ["source-a-b", "source-a-b+"]


@pytest.mark.parametrize("word", ["optimizer.lr", "optimizer.lr=", "=3"])
def test_a_grid_that_cannot_be_read_is_refused(word: str) -> None:
    with pytest.raises(BadInput, match=mentions("--grid", "FIELD=VALUE,VALUE")):
        parse_grid([word])


def test_recipes_of_one_name_are_told_apart_by_their_files() -> None:
    made = recipe("digits.supsiam")
    rows = recipe_rows([("runs/a/recipe.json", made), ("b.yaml", made), ("digits.supcon", recipe("digits.supcon"))])
    assert list(rows.recipes) == ["digits.supsiam-a", "digits.supsiam-b", "digits.supcon"]
    with pytest.raises(BadInput, match=mentions("b.yaml", "twice")):
        recipe_rows([("b.yaml", made), ("b.yaml", made)])


def test_as_many_runs_at_once_as_memory_allows(monkeypatch) -> None:
    monkeypatch.setattr(runner, "available_cores", lambda: 8)
    made = recipe("digits.supsiam").with_set({"train.device": "cpu"})
    for free, jobs in ((1e12, 8), (3e9, 3), (1e6, 1), (None, 8)):
        monkeypatch.setattr(runner, "available_memory", lambda device, free=free: free)
        assert default_jobs(made) == jobs


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


def test_compare_writes_a_table_a_plot_and_latex_and_goes_on(photos: Path, capsys, monkeypatch) -> None:
    words = ["compare", "digits.simsiam", "digits.supsiam", "--data", photos, "--seeds", 2, *SMALL, "--out", "out"]
    words += ["--set", "data.holdout=null"]
    said = supancl(capsys, *words)
    assert said.code == 0, said.err
    assert_mentions(said.out, "10% of the training images", "6 held-out images", "k-NN %")  # not the test split
    assert_mentions(said.out, "too few images to say", "6 held out")
    assert max(len(line) for line in said.out.split("\n\n")[1].splitlines()) <= 80
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
    assert "| digits.supsiam |" in Path("out/results.md").read_text()
    assert Path("out/results.png").read_bytes().startswith(b"\x89PNG")
    # a killed run goes on, and what is finished is not trained again
    shutil.rmtree("out/digits.supsiam-seed-1")
    before = contents(Path("out/digits.simsiam-seed-0"))
    said = supancl(capsys, *words)
    assert_mentions(said.out, "3 of 4 runs are already finished", "trained digits.supsiam-seed-1")
    assert contents(Path("out/digits.simsiam-seed-0")) == before
    again = json.loads(Path("out/results.json").read_text())
    evaluated = supancl(capsys, "evaluate", "knn", "out/digits.supsiam-seed-1", "--no-baselines", "--json", "knn.json")
    assert evaluated.code == 0  # k-NN is that of `evaluate knn`, whose k suits the few references
    knn = json.loads(Path("knn.json").read_text())
    assert (again["rows"][3]["knn"], knn["k"] < 20) == (knn["accuracy"], True)
    assert [row["linear"] for row in again["rows"]] == [row["linear"] for row in result["rows"]]
    several_runs_are_evaluated_in_one_table(capsys)
    # nothing is trained, and the table fits into the terminal
    monkeypatch.setattr("supancl.cli.console.SafeConsole.is_terminal", True)
    for width, titles in ((80, ["linear %", "difference"]), (44, ["k-NN %", "linear %", "S_W/S_T", "difference"])):
        monkeypatch.setenv("COLUMNS", str(width))
        table = shown_table(supancl(capsys, *words).out)
        assert_mentions(table, *titles)
        assert max(map(len, table.splitlines())) <= width


def shown_table(printed: str) -> str:
    """From the caption to the notes, without the bars before it."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    return plain[plain.rindex("compare on photos") : plain.index("runs and results.json")]


def several_runs_are_evaluated_in_one_table(capsys) -> None:
    """`evaluate knn` and `evaluate linear` of the four runs: two rows of two seeds each."""
    runs = sorted(map(str, Path("out").glob("*-seed-*")))
    said = supancl(capsys, "evaluate", "knn", *runs, "--k", 3, "--json", "knn.json")
    assert_mentions(said.out, "k-NN (k = 3)", "digits.simsiam (n = 2)", "digits.supsiam (n = 2)", "photos")
    assert len(json.loads(Path("knn.json").read_text())["results"]) == 4
    said = supancl(capsys, "evaluate", "linear", *runs[:3], "--format", "latex", "--json", "linear.json")
    assert said.out.startswith("\\begin{tabular}")
    rows = json.loads(Path("linear.json").read_text())["tables"]["linear"]["rows"]
    assert [row["scores"]["photos"]["runs"] for row in rows] == [2, 1]
    assert_refused(supancl(capsys, "evaluate", "knn", runs[0], runs[0]), runs[0], "twice")


def test_a_sweep_chooses_and_lists_what_failed(photos: Path, capsys, monkeypatch) -> None:
    poisoned(monkeypatch, {1})
    words = ["sweep", "digits.supsiam", "--grid", "optimizer.lr=.05,.2", "train.on_nan=stop,skip", "--data", photos]
    said = supancl(capsys, *words, "--seeds", 1, *SMALL, "--out", "out")
    assert said.code == 4
    assert_mentions(said.err, "2 of 4 runs failed", "lr-0.05-on_nan-stop-seed-0", "--retry")
    assert_mentions(said.out, "lr", "on_nan", "failed", "1 of 1", "share the best linear accuracy", "one seed")
    result = json.loads(Path("out/results.json").read_text())
    assert [bool(row["failed"]) for row in result["rows"]] == [True, False, True, False]
    assert result["reference"].endswith("skip")
    assert not any(math.isnan(entry["linear"] or 0) for entry in result["summary"])
    assert "failed, and in no mean" in Path("out/results.tex").read_text()


def test_rows_with_other_labels_are_not_compared_by_their_encoders_alone(photos: Path, capsys) -> None:
    words = ["sweep", "digits.supsiam", "--grid", "data.labelled=.5,1", "--data", photos, "--seeds", 1]
    said = supancl(capsys, *words, *SMALL, "--out", "out")
    assert said.code == 0, said.err
    assert "labelled images, on which their classifiers were fitted too" in " ".join(said.out.split())


def test_wrong_words_are_refused_before_anything_is_made(photos: Path, capsys) -> None:
    data = ["--data", photos]
    assert_refused(supancl(capsys, "compare", "digits.simsiam", *data), "digits.simsiam", "two recipes")
    assert_refused(supancl(capsys, "compare", "digits.simsiam", "digits.simsiam", *data), "digits.simsiam", "twice")
    lacking = supancl(capsys, "compare", "digits.simclr", "digits.supsiam", "--set", "loss.alpha=.3", *data)
    assert_refused(lacking, "digits.simclr", "loss.alpha")
    assert_refused(supancl(capsys, "compare", "digits.simsiam", "digits.supsiam", "--seed", 3, *data), "--seeds N")
    sweep = ["sweep", "digits.supsiam", *data, "--grid"]
    assert_refused(supancl(capsys, *sweep, "optimizer.lt=.1,.2"), "optimizer.lt", "optimizer.lr")
    assert_refused(supancl(capsys, *sweep, "loss.alpha=.1,2"), "loss.alpha", "[0, 1]")
    assert_refused(supancl(capsys, *sweep, "train.seed=1,2"), "train.seed", "--seeds N")
    assert_refused(supancl(capsys, *sweep, "loss.alpha=.1", "--set", "loss.alpha=.2"), "loss.alpha", "--grid")
    assert_refused(supancl(capsys, *sweep, "loss.alpha=.1", "--seeds", 0), "--seeds 0")
    assert_refused(supancl(capsys, "sweep", "digits.supsiam"), "--grid")
    different = supancl(capsys, *sweep, "data.holdout=.1,.3", *SMALL, "--out", "out")
    assert_refused(different, "holdout-0.1", "holdout-0.3", "different images")
    assert not Path("out").exists()
    assert not Path("runs").exists()


def test_data_without_labels_cannot_compare(photos: Path, capsys) -> None:
    archive(Path("bare.npz"), train_labels=-torch.ones(20, dtype=torch.long).numpy())
    said = supancl(capsys, "compare", "digits.simsiam", "digits.byol", "--data", "bare.npz", *SMALL, "--out", "out")
    assert_refused(said, "bare.npz", "label")
