"""What an engineer met who tried to break things: closed output, copied and replaced photographs, files of a run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supancl.cli import main
from tests.helpers import TINY, assert_refused, picture, supancl

PRETRAIN = ["pretrain", "auto.supsiam", "--set", "encoder.name=cnn", *TINY]


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A run on photographs that are larger than an evaluation decodes them."""
    monkeypatch.chdir(tmp_path)
    for number in range(24):
        picture(Path("photos") / ("cat", "dog")[number % 2] / f"{number}.png", number, size=(90, 90), mode="RGB")
    assert main([*PRETRAIN, "--data", "photos", "--out", "run", "--quiet"]) == 0
    return tmp_path


def test_a_training_goes_on_when_its_output_is_closed(tmp_path):
    code = "import sys; from supancl.cli import entry; entry()"
    out = tmp_path / "run"
    words = [sys.executable, "-c", code, "pretrain", "digits.supsiam", *TINY, "--out", str(out)]
    words += ["--set", "data.limit=64"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)
    assert (out / "finished.json").exists()


@pytest.mark.parametrize("words", [("evaluate", "knn", "run"), ("predict", "run", "--data", "new", "--out", "new.csv")])
def test_photographs_that_were_replaced_are_refused(capsys, place, words):
    picture(place / "new" / "1.png", 50, size=(90, 90), mode="RGB")
    original = (place / "photos" / "cat" / "0.png").read_bytes()
    shutil.copy(place / "photos" / "dog" / "1.png", place / "photos" / "cat" / "0.png")
    assert_refused(supancl(capsys, *words), "images", "changed", "restore")
    (place / "photos" / "cat" / "0.png").write_bytes(original)
    assert supancl(capsys, *words).code == 0
