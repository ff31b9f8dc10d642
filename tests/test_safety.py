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
from supancl.data.splits import DataSpec
from supancl.weights.checkpoint import checkpoints, load_checkpoint, load_newest, load_tensors
from supancl.weights.encoder_file import initialize_encoder
from supancl.weights.run_folder import RunFolder
from tests.files import TINY, archive, assert_mentions, assert_one_line, assert_refused, class_folders, noise, supancl


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
    **{f"pickle {n}": lambda payload, n=n: pickle.dumps({"a": [payload]}, n) for n in range(6)},
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


def test_the_payload_in_an_archive_is_live(place, mark):
    path = archive(place / "x.npz", train_labels=np.array([Payload(mark)], dtype=object))
    with np.load(path, allow_pickle=True) as loaded:
        assert len(loaded["train_labels"]) == 1
    assert mark.is_dir()


def refused(said, mark: Path) -> str:
    """One line, exit code 2, nothing executed."""
    assert not mark.exists()
    assert said.code == 2
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    return lines[0]


NOT_OPENED = ("tensors", "not opened", "run code", "state dict")


# --- --init -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_init_is_not_executed(wrapping, suffix, place, mark, capsys):
    class_folders(place / "data")
    path = Path(f"weights{suffix}")
    path.write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "out", "--init", path)
    if wrapping == "pickle 0":  # text, which torch does not take for a pickle at all
        assert_mentions(refused(said, mark), path, "damaged")
    else:
        assert_mentions(refused(said, mark), path, *NOT_OPENED)
    assert not Path("out").exists()


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_init_is_not_executed_under_the_name_of_an_encoder(wrapping, place, mark, capsys):
    class_folders(place / "data")
    Path("stolen").mkdir()
    for path in (Path("weights.safetensors"), Path("stolen/encoder.safetensors")):
        path.write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    for given, named in (("weights.safetensors", "weights.safetensors"), ("stolen", "stolen/encoder.safetensors")):
        said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "out", "--init", given)
        assert_mentions(refused(said, mark), named, "not a safetensors file")


# --- --data -----------------------------------------------------------------------------------------------------------


def objects(mark: Path, count: int) -> np.ndarray:
    return np.array([Payload(mark)] * count, dtype=object)


ARCHIVES = {
    "images": lambda mark: {"train_images": objects(mark, 20)},
    "labels": lambda mark: {"train_labels": objects(mark, 20)},
    "class names": lambda mark: {"class_names": objects(mark, 2)},
    "test images": lambda mark: {"test_images": objects(mark, 4), "test_labels": np.arange(4) % 2},
    "something else": lambda mark: {"notes": objects(mark, 1)},
}


@pytest.mark.parametrize("key", ARCHIVES)
@pytest.mark.parametrize("command", ["pretrain", "evaluate", "embed"])
def test_objects_in_an_archive_are_not_executed(key, command, place, mark, finished, capsys):
    archive(place / "x.npz", **ARCHIVES[key](mark))
    commands = {
        "pretrain": ("pretrain", "digits.supsiam", *TINY, "--data", "x.npz", "--out", "out"),
        "evaluate": ("evaluate", "knn", finished, "--data", "x.npz"),
        "embed": ("embed", finished, "--data", "x.npz", "--out", "f.npz"),
    }
    assert_refused(refused(supancl(capsys, *commands[command]), mark), "x.npz", "pickled", "numpy.savez")


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.pt", "data/cat/x.png"])
def test_a_pickle_by_another_name_is_not_executed_as_data(wrapping, name, place, mark, capsys):
    class_folders(place / "data")
    path = Path(name)
    path.write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    source = "data" if name.startswith("data") else name
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", source, "--out", "out")
    assert refused(said, mark).startswith(f"supancl: {name}: ")
    assert not Path("out").exists()


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_skipped_image_is_not_executed_either(wrapping, place, mark, capsys):
    class_folders(place / "data")
    Path("data/cat/x.png").write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "out", "--skip-bad-images")
    assert said.code == 0
    assert_one_line(said.err, "warning", "1 unreadable image", "data/cat/x.png")
    assert not mark.exists()


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
    assert not mark.exists()
    if wrapping != "pickle 0":
        assert_mentions(refused(said, mark), stored[-1], *NOT_OPENED)
    elif which == "all":
        assert_mentions(refused(said, mark), "no intact checkpoint", stored[-1], "damaged")
    else:  # other bytes than were written, or no checkpoint at all: the one before is taken
        assert said.code == 0
        assert_mentions(said.err, "warning", stored[-1], "damaged")


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("command", ["evaluate", "embed"])
@pytest.mark.parametrize("name", ["run/encoder.safetensors", "encoder.pt", "encoder.ckpt"])
def test_an_encoder_is_not_executed_when_judged(wrapping, command, name, place, mark, finished, capsys):
    shutil.copytree(finished, "run")
    Path(name).write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    given = "run" if name.startswith("run") else name
    commands = {
        "evaluate": ("evaluate", "knn", given, "--data", "digits"),
        "embed": ("embed", given, "--data", "digits", "--out", "f.npz"),
    }
    line = refused(supancl(capsys, *commands[command]), mark)
    if name.endswith(".safetensors"):
        assert_mentions(line, name, "not a safetensors file")
    elif wrapping == "pickle 0":  # text, which torch does not take for a pickle at all
        assert_mentions(line, name, "damaged")
    else:  # a checkpoint of another library may be a pickle: it is looked at, and not executed
        assert_mentions(line, name)
        assert_mentions(line, "not opened", "run code")
    assert not Path("f.npz").exists()


@pytest.mark.parametrize("name", ["timm:hf-hub:stranger/model", "hf-hub:stranger/model", "os.system", "timm:../x"])
def test_an_encoder_can_name_known_architectures_only(name, place, capsys):
    spec = {"name": name, "channels": 1, "size": 16, "width": 8, "mean": [0.5], "std": [0.5]}
    metadata = {"schema_version": "1", "encoder": json.dumps(spec)}
    save_file({"a": torch.zeros(1)}, "e.safetensors", metadata=metadata)
    said = supancl(capsys, "evaluate", "knn", "e.safetensors", "--data", "digits")
    assert said.code == 2
    assert said.err.startswith("supancl: e.safetensors: ")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_pickle_as_recipe_json_is_not_executed(wrapping, place, mark, finished, capsys):
    shutil.copytree(finished, "run")
    Path("run/recipe.json").write_bytes(WRAPPINGS[wrapping](Payload(mark)))
    for command in (("pretrain", "--resume", "--out", "run"), ("evaluate", "knn", "run")):
        line = refused(supancl(capsys, *command), mark)
        assert_mentions(line, "run", "recipe.json")


@pytest.mark.parametrize(
    "edit",
    [
        {"py/reduce": [{"py/function": "os.mkdir"}, ["executed"]]},
        {"recipe": {"py/object": "os.mkdir"}},
        {"recipe": "__import__('os').mkdir('executed')"},
    ],
)
def test_code_in_recipe_json_is_text(edit, place, mark, finished, capsys):
    shutil.copytree(finished, "run")
    Path("run/recipe.json").write_text(json.dumps(edit))
    assert "run/recipe.json" in refused(supancl(capsys, "pretrain", "--resume", "--out", "run"), mark)


# --- from Python ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_no_function_that_reads_a_file_executes_it(wrapping, place, mark):
    content = WRAPPINGS[wrapping](Payload(mark))
    folder = RunFolder(place / "run")
    folder.create()
    named = {name: place / name for name in ("x.pt", "x.npz", "x.csv", "run/recipe.json", "run/encoder.safetensors")}
    for path in (*named.values(), folder.checkpoints / "step-000000001.pt"):
        path.write_bytes(content)
    readers = [
        lambda: load_tensors(named["x.pt"]),
        lambda: load_checkpoint(named["x.pt"]),
        lambda: load_newest(folder.checkpoints),
        lambda: load_encoder(named["x.pt"]),
        lambda: load_encoder(folder.path),
        lambda: initialize_encoder(EncoderSpec("cnn", 1, 8, 8, (0.5,), (0.5,)).build(), named["x.pt"]),
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


def test_a_damaged_archive_is_bad_input_whatever_is_wrong_with_it(place):
    chance, refusals = np.random.default_rng(0), []
    for save in (np.savez, np.savez_compressed):
        save("whole.npz", train_images=noise(8, 4, 4), train_labels=np.arange(8) % 2)
        whole = np.frombuffer(Path("whole.npz").read_bytes(), dtype=np.uint8)
        for _ in range(100):
            damaged = whole.copy()
            damaged[chance.integers(0, len(damaged), 4)] = chance.integers(0, 256, 4)
            Path("x.npz").write_bytes(damaged.tobytes())
            refusals += refusal(lambda: open_data(DataSpec(source="x.npz"), 1))
    assert len(refusals) > 50
    assert all("x.npz" in line for line in refusals)
