"""What `supancl evaluate` prints beside an accuracy, from the command typed to the JSON it leaves."""

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from supancl.cli import main
from supancl.cli.console import Terminal
from tests.evaluate.made import bright, run_folder, source
from tests.files import TINY, archive, assert_mentions, assert_refused, noise, picture, supancl, table

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


# --- images that were trained on, under another name ------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed(tmp_path_factory) -> Path:
    """A supervised and a self-supervised run on the first 40 of 80 images, a quarter of which is held out."""
    root = tmp_path_factory.mktemp("listed")
    for i in range(80):
        picture(root / f"images/{i:02d}.png", seed=i)
    shutil.copytree(root / "images", root / "copies")
    (root / "link").symlink_to("images")
    rows = [f"{i:02d}.png,{'abcd'[i % 4]}" for i in range(80)]
    table(root / "own.csv", "path,label", *(f"images/{row}" for row in rows[:40]))
    table(root / "same.csv", "path,label", *(f"images/{row}" for row in rows[:40]))
    table(root / "other-labels.csv", "path,label", *(f"images/{i:02d}.png,{'xy'[i % 2]}" for i in range(40)))
    table(root / "link.csv", "path,label", *(f"link/{row}" for row in rows[20:60]))
    table(root / "copies.csv", "path,label", *(f"copies/{row}" for row in rows[:40]))
    table(root / "new.csv", "path,label", *(f"images/{row}" for row in rows[40:]))
    in_splits = (f"images/{row},{'train' if i < 40 else 'test'}" for i, row in enumerate(rows))
    table(root / "new-test.csv", "path,label,split", *in_splits)
    for method in ("supsiam", "simsiam"):
        words = ["pretrain", f"digits.{method}", "--data", root / "own.csv", *TINY, "--quiet", "--out", root / method]
        assert main(list(map(str, words))) == 0
    return root


@pytest.mark.parametrize("name", ["same", "other-labels", "link", "copies"])
@pytest.mark.parametrize("protocol", ["knn", "linear"])
def test_trained_images_are_known_under_another_name(name, protocol, listed, capsys):
    data = ("--data", listed / f"{name}.csv")
    said = supancl(capsys, "evaluate", protocol, listed / "supsiam", *data, "--json", listed / "r.json")
    assert said.code == 0, said.err
    assert_mentions(said.err + said.out, f"{name}.csv", "trained on some of these images")
    result = json.loads((listed / "r.json").read_text())
    assert result["overlaps_training"]
    assert "cross_validated" not in result
    if protocol == "linear":
        assert result["chosen_on"] == "trained images"


def test_labels_that_pretraining_did_not_use_are_cross_validated_over(listed, capsys):
    """The table of the same images has labels that a self-supervised run has not seen."""
    for run, name, overlaps in (("simsiam", "same", True), ("supsiam", "new", False)):
        data = ("--data", listed / f"{name}.csv")
        said = supancl(capsys, "evaluate", "knn", listed / run, *data, "--json", listed / "r.json")
        result = json.loads((listed / "r.json").read_text())
        assert (result["overlaps_training"], result["cross_validated"]["tested_images"]) == (overlaps, 40), said.err


def test_new_images_may_be_tested_though_the_references_were_trained_on(listed, capsys):
    data = ("--data", listed / "new-test.csv", "--split", "test")
    said = supancl(capsys, "evaluate", "knn", listed / "supsiam", *data, "--json", listed / "r.json")
    result = json.loads((listed / "r.json").read_text())
    assert (said.code, result["overlaps_training"], result["queries"]) == (0, False, 40)
    assert "cross_validated" not in result


@pytest.mark.parametrize("protocol", ["transfer", "fewshot"])
def test_transfer_to_trained_images_is_marked(protocol, listed, capsys):
    flags = ("--ways", "2", "--shots", "1", "--episodes", "2") if protocol == "fewshot" else ()
    for name, overlaps in (("same", True), ("new", False)):
        data = ("--data", listed / f"{name}.csv")
        said = supancl(capsys, "evaluate", protocol, listed / "supsiam", *data, *flags)
        assert said.code == 0, said.err
        assert ("trained on some of these images" in " ".join((said.out + said.err).split())) == overlaps
