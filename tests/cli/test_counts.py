"""One of a thing is told as one: what is printed where a number is 1."""

import re
import tarfile

import numpy as np
import pytest

from supancl.data.opening import open_data
from supancl.recipes import recipe
from tests.evaluate.made import run_folder
from tests.files import TINY, archive, assert_one_line, noise, picture, supancl, table

SEVERAL = re.compile(r"(?<![\d.,=-])1 (?:\w+ )?(?:images|files|runs|epochs|classes|shards|folders|shots)\b")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "run")
    archive(tmp_path / "one.npz", train_images=noise(8, 8, 8), train_labels=np.zeros(8, int))
    archive(tmp_path / "single.npz", train_images=noise(1, 8, 8), train_labels=np.zeros(1, int))
    pair = {"train_images": noise(12, 8, 8), "train_labels": np.arange(12) % 2}
    archive(tmp_path / "two.npz", **pair)
    archive(tmp_path / "tested.npz", **pair, test_images=noise(1, 8, 8), test_labels=np.array([0]))
    archive(tmp_path / "untold.npz", **pair, test_images=noise(1, 8, 8), test_labels=np.array([-1]))
    archive(tmp_path / "strange.npz", **pair, test_images=noise(3, 8, 8), test_labels=np.arange(3))
    archive(tmp_path / "small.npz", train_images=noise(11, 8, 8), train_labels=np.array([0, *([1, 2] * 5)]))
    for name in ("cat/0", "dog/0", "dog/1"):
        picture(tmp_path / "folder" / f"{name}.png", seed=len(name))
    (tmp_path / "folder" / "dog" / "x.txt").write_text("x")
    (tmp_path / "folder" / "dog" / "bad.png").write_bytes(b"x")
    (tmp_path / "folder" / "none").mkdir()
    table(tmp_path / "list.csv", "path,label", "folder/cat/0.png,cat", "folder/cat/0.png,cat", "folder/dog/0.png,dog")
    with tarfile.open(tmp_path / "n.tar", "w") as shard:
        shard.add(tmp_path / "list.csv", "a.csv")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pretrain", "digits.simsiam", "--data", "one.npz", *TINY), ", 1 class; cpu -> "),
        (
            ("pretrain", "digits.simsiam", "--data", "single.npz", *TINY),
            "single.npz: 1 image is too few to hold out 25% of",
        ),
        (
            ("pretrain", "digits.simsiam", "--data", "single.npz", *TINY, "--set", "data.holdout=0"),
            "single.npz: 1 training image is fewer than a batch of",
        ),
        (("evaluate", "knn", "run", "--data", "tested.npz"), "] of 1 image, 12 references, 2 classes"),
        (("evaluate", "knn", "run", "--data", "strange.npz"), "has no training image; its 1 test image counts as"),
        (
            ("evaluate", "linear", "run", "--data", "two.npz", "--probe", "sgd", "--epochs", "1"),
            "linear (1 epoch of SGD)",
        ),
        (("evaluate", "finetune", "run", "--data", "tested.npz", "--epochs", "1", "--lr", "0.1"), ", 1 epoch): "),
        (
            ("evaluate", "fewshot", "run", "--data", "small.npz", "--ways", "2", "--shots", "1", "--episodes", "1"),
            "small: 1 class has no more than 1 image and is left out: 0",
        ),
        (
            ("evaluate", "fewshot", "run", "--data", "small.npz", "--ways", "3", "--shots", "1"),
            "2 classes have more than 1 image, 3 ways need 3 such",
        ),
        (
            ("data", "show", "folder", "--out", "sheets"),
            "1 class folder without an image; pretrain refuses it: fill or",
        ),
        (
            ("data", "show", "folder", "--out", "sheets"),
            "1 file is of no known image format",
        ),
        (("data", "show", "list.csv", "--out", "sheets"), "list.csv: 1 file is listed more than once"),
        (("data", "show", "n.tar", "--out", "sheets"), "no image in 1 tar shard; a sample is"),
    ],
)
def test_one_of_a_thing_is_told_as_one(words, told, place, capsys):
    said = supancl(capsys, *words)
    text = " ".join((said.out + said.err).split())
    assert told in text
    assert not SEVERAL.findall(text)
    assert "unreadable image was" not in text  # data show lists them by name, and does not say it twice


def test_remarks_on_one_image(place):
    spec = recipe("digits.supsiam").with_set({"data.source": "untold.npz", "data.holdout": None}).data
    assert_one_line("\n".join(open_data(spec, 1).remarks), "test", "no label", "--set data.holdout=0.1")
