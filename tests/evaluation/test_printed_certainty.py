"""What `supancl evaluate` prints beside an accuracy, from the command typed to the JSON it leaves."""

import json
import shutil
from pathlib import Path

import pytest

from supancl.cli import main
from tests.evaluation.made import run_folder, source
from tests.helpers import TINY, assert_mentions, picture, supancl, table


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
    assert max(map(len, said.out.splitlines())) <= 80
    result = json.loads((place / "r.json").read_text())
    assert (result["k"], result["tested_images"], result["cross_validated"]["tested_images"]) == (4, 12, 60)
    assert result["verdict"] in said.out
    saved = json.loads((place / "ssl" / "evaluate" / "knn-k4.json").read_text())
    assert saved.items() >= result.items()


# --- images that were trained on, under another name ------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed(tmp_path_factory) -> Path:
    """A supervised and a self-supervised run on the first 40 of 80 images, a quarter of which is held out."""
    root = tmp_path_factory.mktemp("listed")
    for i in range(80):
        picture(root / f"images/{i:02d}.png", seed=i)
    shutil.copytree(root / "images", root / "copies")
    rows = [f"{i:02d}.png,{'abcd'[i % 4]}" for i in range(80)]
    table(root / "own.csv", "path,label", *(f"images/{row}" for row in rows[:40]))
    table(root / "same.csv", "path,label", *(f"images/{row}" for row in rows[:40]))
    table(root / "other-labels.csv", "path,label", *(f"images/{i:02d}.png,{'xy'[i % 2]}" for i in range(40)))
    table(root / "copies.csv", "path,label", *(f"copies/{row}" for row in rows[:40]))
    table(root / "new.csv", "path,label", *(f"images/{row}" for row in rows[40:]))
    in_splits = (f"images/{row},{'train' if i < 40 else 'test'}" for i, row in enumerate(rows))
    table(root / "new-test.csv", "path,label,split", *in_splits)
    for method in ("supsiam", "simsiam"):
        words = ["pretrain", f"digits.{method}", "--data", root / "own.csv", *TINY, "--quiet", "--out", root / method]
        assert main(list(map(str, words))) == 0
    return root


@pytest.mark.parametrize("name", ["other-labels", "copies"])
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
        assert result["chosen_on"] == "none"  # 30 images choose no ridge


def test_labels_that_pretraining_did_not_use_are_cross_validated_over(listed, capsys):
    """The table of the same images has labels that a self-supervised run has not seen."""
    for run, name, overlaps in (("simsiam", "same", True), ("supsiam", "new", False)):
        data = ("--data", listed / f"{name}.csv")
        said = supancl(capsys, "evaluate", "knn", listed / run, *data, "--json", listed / "r.json")
        result = json.loads((listed / "r.json").read_text())
        assert (result["overlaps_training"], result["cross_validated"]["tested_images"]) == (overlaps, 40), said.err


@pytest.mark.parametrize("protocol", ["transfer", "fewshot"])
def test_transfer_to_trained_images_is_marked(protocol, listed, capsys):
    flags = ("--ways", "2", "--shots", "1", "--episodes", "2") if protocol == "fewshot" else ()
    for name, overlaps in (("same", True), ("new", False)):
        data = ("--data", listed / f"{name}.csv")
        said = supancl(capsys, "evaluate", protocol, listed / "supsiam", *data, *flags)
        assert said.code == 0, said.err
        assert ("trained on some of these images" in " ".join((said.out + said.err).split())) == overlaps
