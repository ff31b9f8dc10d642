"""Files from strangers: nothing in them is ever executed, whichever way they come in.

The payload makes a folder when it is unpickled. A first test shows that it does; all others, that it was not.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from supancl import BadInput, load_encoder
from supancl.core.encoders import EncoderSpec
from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.runs.checkpoint import checkpoints, load_checkpoint, load_newest, load_tensors
from supancl.runs.folder import RunFolder
from supancl.runs.importing import fill_encoder
from tests.helpers import TINY, archive, assert_mentions, assert_refused, class_folders, supancl


class Payload:
    """Unpickling it calls os.mkdir(mark)."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mark(tmp_path) -> Path:
    return tmp_path / "executed"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run with two checkpoints, and the data it was trained on beside it."""
    from supancl.cli import main

    root = tmp_path_factory.mktemp("safety")
    class_folders(root / "data")
    command = ["pretrain", "digits.supsiam", *TINY, "--data", str(root / "data"), "--out", str(root / "run"), "--quiet"]
    assert main([*command, "--epochs", "2", "--set", "train.keep=all"]) == 0
    return root / "run"


def zipped(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def legacy(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def script(content: object) -> bytes:
    """What torch takes for a TorchScript archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name in ("data.pkl", "constants.pkl"):
            made.writestr(f"archive/{name}", pickle.dumps(content, 2))
        made.writestr("archive/version", "3\n")
        made.writestr("archive/code/x.py", "")
    return file.getvalue()


# how a payload can be wrapped so that torch.load without weights_only, or pickle.load, would run it
WRAPPINGS = {
    "zip": lambda payload: zipped(payload),
    "zip, inside a state dict": lambda payload: zipped({"state_dict": {"0.weight": torch.zeros(1), "x": payload}}),
    "legacy": lambda payload: legacy({"0.weight": payload}),
    "script": script,
    "pickle 5": lambda payload: pickle.dumps({"a": [payload]}, 5),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_the_payload_is_live(wrapping, place, mark):
    content = WRAPPINGS[wrapping](Payload(mark))
    if wrapping == "script":
        content = zipfile.ZipFile(io.BytesIO(content)).read("archive/data.pkl")
    if wrapping.startswith("pickle") or wrapping == "script":
        pickle.loads(content)
    else:
        torch.load(io.BytesIO(content), weights_only=False)
    assert mark.is_dir()


def refused(said, mark: Path) -> str:
    """One line, exit code 2, nothing executed."""
    assert not mark.exists()
    assert said.code == 2
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    return lines[0]


# --- --init -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_init_is_not_executed(wrapping, place, mark, capsys):
    class_folders(place / "data")
    path = Path("weights.pt")
    path.write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "out", "--init", path)
    assert_mentions(refused(said, mark), path, "run code")
    assert not Path("out").exists()


# --- --data -----------------------------------------------------------------------------------------------------------


def objects(mark: Path, count: int) -> np.ndarray:
    return np.array([Payload(mark)] * count, dtype=object)


ARCHIVES = {
    "images": lambda mark: {"train_images": objects(mark, 20)},
    "labels": lambda mark: {"train_labels": objects(mark, 20)},
    "class names": lambda mark: {"class_names": objects(mark, 2)},
    "test images": lambda mark: {"test_images": objects(mark, 4), "test_labels": np.arange(4) % 2},
}


@pytest.mark.parametrize("key", ARCHIVES)
def test_objects_in_an_archive_are_not_executed(key, place, mark, capsys):
    archive(place / "x.npz", **ARCHIVES[key](mark))
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", "x.npz", "--out", "out")
    assert_refused(refused(said, mark), "x.npz", "pickled")


# --- a run folder from a stranger -------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["the newest", "all"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_checkpoint_is_not_executed_on_resume(wrapping, which, place, mark, finished, capsys):
    shutil.copytree(finished, "run")
    stored = checkpoints(Path("run/checkpoints"))
    assert len(stored) == 2
    for path in stored if which == "all" else stored[-1:]:
        path.write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    said = supancl(capsys, "pretrain", "--resume", "--out", "run")
    assert_mentions(refused(said, mark), stored[-1], "run code")


@pytest.mark.parametrize("name", ["timm:hf-hub:stranger/model", "hf-hub:stranger/model", "os.system", "timm:../x"])
def test_an_encoder_can_name_known_architectures_only(name, place, capsys):
    spec = {"name": name, "channels": 1, "size": 16, "width": 8, "mean": [0.5], "std": [0.5]}
    metadata = {"schema_version": "1", "encoder": json.dumps(spec)}
    save_file({"a": torch.zeros(1)}, "e.safetensors", metadata=metadata)
    said = supancl(capsys, "evaluate", "knn", "e.safetensors", "--data", "digits")
    assert said.code == 2
    assert said.err.startswith("supancl: e.safetensors: ")
    assert len(said.err.splitlines()) == 1


# --- from Python ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_no_function_that_reads_a_file_executes_it(wrapping, place, mark):
    content = WRAPPINGS[wrapping](Payload(mark))
    folder = RunFolder(place / "run")
    folder.checkpoints.mkdir(parents=True)
    named = {name: place / name for name in ("x.pt", "x.npz", "x.csv", "run/recipe.json", "run/encoder.safetensors")}
    for path in (*named.values(), folder.checkpoints / "step-000000001.pt"):
        path.write_bytes(content)
    readers = [
        lambda: load_tensors(named["x.pt"]),
        lambda: load_checkpoint(named["x.pt"]),
        lambda: load_newest(folder.checkpoints),
        lambda: load_encoder(named["x.pt"]),
        lambda: load_encoder(folder.path),
        lambda: fill_encoder(EncoderSpec("cnn", 1, 8, 8, (0.5,), (0.5,)).build(), named["x.pt"]),
        lambda: open_data(DataSpec(source=str(named["x.npz"])), 1),
        lambda: open_data(DataSpec(source=str(named["x.csv"])), 1),
        lambda: folder.read_recipe(),
    ]
    for read in readers:
        with pytest.raises(BadInput):
            read()
        assert not mark.exists()


def refusal(read) -> list[str]:
    """What was wrong with the file, if it was noticed; any other error than BadInput is one of ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy and zipfile remark on odd names
            read()
    except BadInput as error:
        return [str(error)]
    return []


def test_a_damaged_file_of_tensors_is_bad_input_whatever_is_wrong_with_it(place):
    """Bytes changed at random places: torch fails in a dozen ways, the user sees one."""
    content = {"state_dict": {"a": torch.zeros(3, 3)}, "b": [1, "x", None]}
    chance, refusals = np.random.default_rng(0), []
    for whole in (zipped(content), legacy(content)):
        for _ in range(150):
            damaged = np.frombuffer(whole, dtype=np.uint8).copy()
            damaged[chance.integers(0, len(damaged), 3)] = chance.integers(0, 256, 3)
            Path("x.pt").write_bytes(damaged[: chance.integers(len(damaged) // 2, len(damaged) + 1)].tobytes())
            refusals += refusal(lambda: load_tensors(Path("x.pt")))
    assert len(refusals) > 100
    assert all("x.pt" in line for line in refusals)
