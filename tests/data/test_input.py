"""Input people have: labels as texts or none, columns of any name, what macOS adds, photographs of phones."""

from __future__ import annotations

import io
import sys
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from supancl.data import decode
from tests.helpers import assert_mentions, class_folders, picture, supancl, table

# --- csv --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def species(tmp_path):
    class_folders(tmp_path, each=2)
    rows = [f"{n},{c}/{i}.png,{c},{part}" for n, (c, i, part) in enumerate(
        (c, i, part) for c in ("cat", "dog") for i, part in enumerate(("train", "test")))]  # fmt: skip
    return table(tmp_path / "birds.csv", "label,file,species,part", *rows)


def test_columns_are_a_field_of_the_recipe_and_of_commands_that_take_encoders(species, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--epochs", "1", "--batch-size", "2", "--device", "cpu", "--set", "encoder.width=8")
    words = (*words, "--set", "data.holdout=null")
    columns = ("--columns", "image=file,label=species,split=part")
    assert supancl(capsys, "pretrain", "digits.supsiam", "--data", species, *columns, *words, "--out", "run").code == 0
    assert '"columns": "image=file,label=species,split=part"' in (tmp_path / "run/recipe.json").read_text()
    assert supancl(capsys, "pretrain", "--resume", "--out", "run").code == 0
    assert supancl(capsys, "evaluate", "knn", "run", "--device", "cpu").code == 0
    other = table(tmp_path / "other.csv", "file,species", "cat/0.png,", "dog/1.png,")
    said = supancl(capsys, "embed", "run", "--data", other, "--columns", columns[1][:24], "--out", "f.npz")
    assert said.code == 0, said.err


# --- macOS and phones -------------------------------------------------------------------------------------------------


HEIF_START = b"\0\0\0\x18ftypheic"


def test_heic_is_read_with_the_extra_and_only_by_its_content(tmp_path, monkeypatch):
    """A stand-in for pillow-heif reads a PNG behind the first bytes of a HEIC file."""

    def read(file, name):
        file.seek(len(HEIF_START))
        with file:
            return Image.open(io.BytesIO(file.read()), formats=("PNG",))

    library = ModuleType("pillow_heif")
    library.register_heif_opener = lambda: Image.register_open("HEIF", read, lambda start: start[4:8] == b"ftyp")
    monkeypatch.setitem(sys.modules, "pillow_heif", library)
    decode._formats.cache_clear()
    try:
        sound = picture(tmp_path / "0.png", size=(6, 5))
        (tmp_path / "0.heic").write_bytes(HEIF_START + sound.read_bytes())
        read_heic = decode.decode(tmp_path / "0.heic", 1)
        assert np.array_equal(read_heic.numpy(), decode.decode(sound, 1).numpy())
        (tmp_path / "1.heic").write_bytes(b"no image")
        with pytest.raises(OSError, match="cannot identify"):
            decode.decode(tmp_path / "1.heic", 1)
    finally:
        decode._formats.cache_clear()
        for registry in (Image.OPEN, Image.ID):
            registry.pop("HEIF") if isinstance(registry, dict) else registry.remove("HEIF")


# --- several sources --------------------------------------------------------------------------------------------------


def test_a_run_on_joined_sources_is_recorded_continued_and_evaluated(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "one", ("cat", "dog"), each=8)
    class_folders(tmp_path / "two", ("dog", "emu"), each=8)
    words = ("--epochs", "1", "--batch-size", "4", "--device", "cpu", "--set", "encoder.width=8")
    said = supancl(capsys, "pretrain", "digits.supsiam", "--data", "one", "--data", "two", *words, "--out", "run")
    assert said.code == 0, said.err
    assert_mentions(said.out, "one + two", "classes: 3")
    assert f'"{tmp_path}/two"' in (tmp_path / "run/recipe.json").read_text()
    said = supancl(capsys, "evaluate", "knn", "run", "--json", "-")
    assert '"overlaps_training": false' in said.out
    assert '"classes": 3' in said.out
    (tmp_path / "two").rename(tmp_path / "elsewhere")
    moved = ("pretrain", "--resume", "--out", "run", "--data", "one", "--data")
    said = supancl(capsys, *moved, "elsewhere")
    assert said.code == 0, said.err
    assert f'"{tmp_path}/elsewhere"' in (tmp_path / "run/recipe.json").read_text()
    picture(tmp_path / "elsewhere/emu/0.png", seed=999)
    said = supancl(capsys, "pretrain", "--resume", "--out", "run")
    assert said.code == 2
    assert_mentions(said.err, "changed")
    said = supancl(capsys, "embed", "run", "--data", "one", "--out", "f.npz")  # a part of the run's data
    assert said.code == 0, said.err
