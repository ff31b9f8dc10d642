"""What `supancl evaluate` prints beside an accuracy, from the command typed to the JSON it leaves."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from supancl.cli.console import Terminal
from tests.evaluate.made import bright, run_folder, source
from tests.files import archive, assert_refused, noise, supancl

ACCURACY = r"\d+\.\d\d% \[\d+\.\d, \d+\.\d\]"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A self-supervised run, a supervised one, and data of 60 images, 6 of which are held out."""
    monkeypatch.chdir(tmp_path)
    own = str(source(tmp_path / "own.npz", train=60))
    run_folder(tmp_path / "ssl", seed=1, source=own, described=True, loss__alpha=1.0)
    run_folder(tmp_path / "sup", seed=2, source=own, described=True)
    return tmp_path


def test_few_images_are_cross_validated_compared_and_judged_in_lines_that_fit(place, capsys):
    said = supancl(capsys, "evaluate", "knn", "ssl", "--json", "r.json")
    lines = said.out.splitlines()
    assert re.fullmatch(rf"k-NN \(k = 4\): {ACCURACY} of 6 images, 54 references, 3 classes", lines[1])
    assert re.fullmatch(rf"cross-validated, labels unused in pretraining: {ACCURACY} of 60 images", lines[2])
    assert re.fullmatch(rf"chance 33.3%, random weights {ACCURACY}", lines[3])
    assert re.match(r"(better than|worse than|no clear difference from) random weights", lines[4])
    assert max(map(len, lines)) <= 80
    result = json.loads((place / "r.json").read_text())
    assert (result["k"], result["cross_validated"]["tested_images"], result["verdict"]) == (4, 60, lines[4])
    saved = json.loads((place / "ssl" / "evaluate" / "knn-k4.json").read_text())
    assert saved.items() >= result.items()


def test_where_no_more_images_may_be_tested_that_is_said(place, capsys):
    lines = supancl(capsys, "evaluate", "linear", "sup").out.splitlines()
    assert lines[-3].startswith("few images: ")
    assert lines[-1] == "too few images to say: 6 of at least 10"


def test_baselines_can_be_left_out_and_a_given_k_stays(place, capsys):
    said = supancl(capsys, "evaluate", "knn", "ssl", "--k", "20", "--no-baselines", "--json", "r.json")
    assert said.out.splitlines()[0].startswith("k-NN (k = 20): ")
    assert "chance" not in said.out
    assert {"baselines", "verdict"} & json.loads((place / "r.json").read_text()).keys() == set()
    assert_refused(supancl(capsys, "evaluate", "knn", "ssl", "--k", "x"), "--k x", "whole numbers")


def test_transfer_says_for_every_encoder_and_data_set_how_much_is_known(place, capsys):
    source(place / "x.npz", train=60, test=30)
    lines = supancl(capsys, "evaluate", "transfer", "ssl", "sup", "--data", "x.npz").out.splitlines()
    for run in ("ssl", "sup"):
        about = [line for line in lines if line.startswith(f"{run} on x: ")]
        assert re.fullmatch(rf"{run} on x: {ACCURACY} of 30 images", about[0])
        assert "random weights" in about[-1]
    said = supancl(capsys, "evaluate", "knn", "ssl", "sup", "--data", "x.npz")
    assert "k-NN (k = 5)\n" in said.out
    assert [said.out.count(f"{run} on x: ") for run in ("ssl", "sup")] == [
        4,
        4,
    ]  # accuracy, few images, beside, verdict
    said = supancl(capsys, "evaluate", "transfer", "ssl", "--data", "x.npz", "--format", "csv")
    assert "chance" not in said.out


def test_the_variance_of_one_image_per_class_is_called_not_measurable(place, capsys):
    images, labels = bright(3)
    archive(place / "one.npz", train_images=noise(9, 8, 8), train_labels=np.arange(9) % 3, test_images=images,
            test_labels=labels)  # fmt: skip
    said = supancl(capsys, "evaluate", "variance", "ssl", "--data", "one.npz", "--json", "r.json")
    assert said.out.count("not measurable") == 4
    result = json.loads((place / "r.json").read_text())
    assert (result["within"], result["ratio"], set(result["spread"].values())) == (None, None, {None})
    assert result["total"] > 0


@pytest.mark.parametrize(("images", "shown"), [(12, "k-NN 41.67 [19, 68] of 12"), (400, "k-NN 41.67  linear")])
def test_the_monitors_line_shows_how_little_few_images_say(images, shown):
    text = io.StringIO()
    row = {"epoch": 0, "knn": 41.6667, "knn_queries": images, "knn_interval": [19.3, 68.1], "linear": float("nan")}
    Terminal(Console(file=text, width=200)).on_epoch(row | {"linear_interval": [0.0, 100.0], "s_w/s_t": float("nan")})
    assert shown in text.getvalue()
    assert "S_W/S_T -" in text.getvalue()
    assert "linear -\n" in text.getvalue()


def test_large_and_small_classes_have_their_own_accuracies(place, capsys):
    run_folder(place / "tail", seed=3, source=str(place / "own.npz"), described=True, data__imbalance=10.0)
    said = supancl(capsys, "evaluate", "knn", "tail", "--json", "r.json")
    result = json.loads((place / "r.json").read_text())
    (line,) = [line for line in said.out.splitlines() if line.startswith("balanced accuracy")]
    assert f"{result['balanced_accuracy']:.2f}%" in line
    assert sum(group["classes"] for group in result["by_class_size"].values()) == 3
    whole = supancl(capsys, "evaluate", "knn", "tail", "--data", "own.npz")  # as the source gives it
    assert "balanced accuracy" not in whole.out
