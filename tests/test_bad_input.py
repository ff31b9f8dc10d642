"""Bad input: one line that names the thing and the place, the exit code that scripts rely on, nothing changed."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file

from supancl import files
from supancl.cli import main
from supancl.files import temporary_path
from supancl.runs.checkpoint import checkpoints
from supancl.runs.encoder_file import save_encoder
from supancl.runs.provenance import content_digest
from tests.evaluation.made import encoder
from tests.helpers import (
    TINY,
    Said,
    archive,
    assert_one_line,
    assert_refused,
    class_folders,
    contents,
    noise,
    picture,
    supancl,
    table,
    write_tar,
)

Make = Callable[[Path], object]


class Row(NamedTuple):
    """One class of bad input. Every command starts in a folder with `data`, images in class folders, and `run`, trained
    on them; `make` adds to it. The line must name the nouns."""

    what: str
    command: str
    nouns: tuple[str, ...]
    make: Make
    code: int


def row(what: str, command: str, *nouns: str, make: Make = lambda tmp: None, code: int = 2) -> Row:
    return Row(what, command, nouns, make, code)


TRAIN = shlex.join(["pretrain", "digits.supsiam", *TINY, "--out", "out"])
ON_DATA = f"{TRAIN} --data data"
RESUME = "pretrain --resume --out run"
SHOW = "recipes digits.supsiam"
DEEP = "[" * 5000

NAMES = [
    row("a command that is not there", "pretran digits.supsiam", "pretran", "pretrain"),
    row("a protocol that is not there", "evaluate kn run", "kn"),
    row("a flag that is not there", f"{TRAIN} --epoch-s 3", "--epoch-s", "--epochs"),
    row("a folder without its flag", "pretrain digits.supsiam data", "--data data"),
    row("a recipe that is not there", "pretrain cifar10.supsam --out out", "cifar10.supsam", "cifar10.supsiam"),
    row("no recipe", "pretrain", "data", "recipes", "resume"),
    row("a field that is not there", f"{SHOW} --set loss.alpa=1", "loss.alpa", "loss.alpha"),
    row("a value out of its range", f"{SHOW} --set loss.alpha=1.5", "loss.alpha", "1.5", "[0, 1]"),
    row("a value that is not finite", f"{SHOW} --set loss.alpha=NaN", "loss.alpha", "finite"),
    row("a word that is none of several", f"{SHOW} --set pool.kind=bag", "pool.kind", "bag", "queue"),
    row("a batch that does not divide", f"{TRAIN} --accumulate 3", "train.batch_size", "train.accumulate", "3"),
    row("a device that is not there", f"{TRAIN} --device tpu", "device", "tpu", "cpu"),
    row("a plugin with a mistake", "recipes --plugin mine.py", "mine.py", "line 3",
        make=lambda tmp: (tmp / "mine.py").write_text("import torch\n\nx = (\n")),
    row("settings from a file with a slip", "pretrain mine.yaml", "mine.yaml", "loss.alhpa", "loss.alpha",
        make=lambda tmp: (tmp / "mine.yaml").write_text("recipe: digits.supsiam\nloss: {alhpa: 1}\n")),
    row("settings from a file that would run code", "pretrain mine.yaml", "mine.yaml",
        make=lambda tmp: (tmp / "mine.yaml").write_text("recipe: !!python/object/apply:os.system [true]\n")),
]  # fmt: skip


# --- data -------------------------------------------------------------------------------------------------------------


def torn(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def npz(**arrays: object) -> Make:
    return lambda tmp: archive(tmp / "x.npz", **arrays)


def csv(*lines: str) -> Make:
    return lambda tmp: table(tmp / "x.csv", *lines)


def put(name: str, content: bytes = b"x") -> Make:
    def make(tmp: Path) -> None:
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp / name).write_bytes(content)

    return make


def tar(*members: tuple[str, bytes | None]) -> Make:
    """A shard; None stands for the bytes of an image."""

    def make(tmp: Path) -> None:
        image = (tmp / "data" / "cat" / "0.png").read_bytes()
        write_tar(tmp / "x.tar", [(name, content or image) for name, content in members])

    return make


def folders(*names: str) -> Make:
    return lambda tmp: class_folders(tmp / "x", names)


NPZ, CSV, TAR, FOLDER = (f"{TRAIN} --data {name}" for name in ("x.npz", "x.csv", "x.tar", "x"))
SEVERAL = np.eye(3)[np.arange(20) % 3] + np.eye(3)[0]
PATHS = "--set data.hierarchy=paths"
DATA = [
    row("no data at all", "pretrain imagenet100.supsiam --out out", "images", "data"),
    row("a path that is not there", f"{TRAIN} --data no/where", "no/where"),
    row("a name that is not there", f"{TRAIN} --data digit", "'digit'", "'digits'"),
    row("a name too long to be one", f"{TRAIN} --data {'x' * 300}", "x" * 300, "File name too long"),
    row("data that have moved", "evaluate knn run", "data", make=lambda tmp: (tmp / "data").rename(tmp / "moved")),
    row("a file of another kind", f"{TRAIN} --data x.txt", "x.txt", ".npz", ".csv", ".tar", make=put("x.txt")),
    row("a zip", "pretrain --data x.zip", "x.zip", "unpack", make=put("x.zip", b"PK")),
    row("an empty folder", FOLDER, "x", "no image", make=lambda tmp: (tmp / "x").mkdir()),
    row("a class without an image", ON_DATA, "data/bird", "no image", make=put("data/bird/a.txt")),
    row("one class", FOLDER, "one class", "cat", "simsiam", make=folders("cat")),
    row("a folder within a folder", FOLDER, "one class", "photos", make=folders("photos/cat", "photos/dog")),
    row("no label anywhere", FOLDER, "x", "label", "simsiam",
        make=lambda tmp: [picture(tmp / "x" / f"{i}.png") for i in range(20)]),
    row("a test split alone", FOLDER, "test/", "train/", make=folders("test/cat", "test/dog")),
    row("a truncated image", ON_DATA, "data/dog/3.png", "skip_bad_images",
        make=lambda tmp: torn(tmp / "data/dog/3.png")),
    row("no image that can be read", f"{FOLDER} --skip-bad-images", "x/cat/0.png", "unreadable images: 1 of 1",
        make=put("x/cat/0.png")),
    row("a batch larger than the data", f"{ON_DATA} --batch-size 64", "data", "training images: 8", "64"),
    row("too few images to hold any out", FOLDER, "class: 2", "val/",
        make=lambda tmp: class_folders(tmp / "x", each=1)),
    row("a class to leave out that is not there", f"""{ON_DATA} --set 'data.leave_out=["dgo"]'""", "dgo", "dog"),
    row("vectors for a recipe of images", f"{TRAIN} --data toy", "toy", "vectors", "images"),
    row("a benchmark that is not there", "data check cifar11", "cifar11", "cifar10"),
    row("a benchmark that is not whole", "data check pets --root .", "pets", "supancl data check pets", code=1,
        make=lambda tmp: [put(f"pets/annotations/{split}.txt", f"Bengal_{split} 1 1 1".encode())(tmp)
                          for split in ("trainval", "test")]),
    row("a data set of torchvision that is not there", f"{TRAIN} --data torchvision:Flowers12@.", "Flowers12",
        "Flowers102"),
    row("a data set that torchvision unpickles", f"{TRAIN} --data torchvision:LSUN@.", "LSUN"),
    row("a data set of the hub without a network", f"{TRAIN} --data hf:nobody/nothing", "hf:nobody/nothing"),
    # archives
    row("an archive without the keys", NPZ, "x.npz", "train_images", make=npz(train_images=None)),
    row("an archive without labels", NPZ, "x.npz", "label", "simsiam", make=npz(train_labels=None)),
    row("labels that are not integers", NPZ, "train_labels", "float64", make=npz(train_labels=np.arange(20) / 2)),
    row("labels of another number", NPZ, "train_labels", "(5,)", "20 images", make=npz(train_labels=np.arange(5))),
    row("a label without a name", NPZ, "labels from 0 to 1", "class_names", make=npz(class_names=["cat"])),
    row("one name for two classes", NPZ, "class_names", "twice", make=npz(class_names=["cat", "cat "])),
    row("images of four channels", NPZ, "train_images", "(20, 8, 8, 4)", make=npz(train_images=noise(20, 8, 8, 4))),
    row("images that are fractions", NPZ, "train_images", "float64", "uint8",
        make=npz(train_images=noise(20, 8, 8) / 255)),
    row("an archive of objects", NPZ, "x.npz", "pickled", make=npz(train_labels=np.array([None] * 20))),
    row("an archive cut short", NPZ, "x.npz", make=lambda tmp: torn(archive(tmp / "x.npz"))),
    row("weights with NaN", NPZ, "x.npz: labels", "row 0", "nan",
        make=npz(train_labels=np.where(np.arange(20)[:, None] == 0, np.nan, SEVERAL))),
    row("the same soft labels everywhere", NPZ, "x.npz", "simsiam",
        make=npz(train_labels=np.tile([0.6, 0.4], (20, 1)))),
    row("several labels where one is needed", f"{NPZ} --set data.label_noise=0.2", "several", "data.label_noise",
        make=npz(train_labels=SEVERAL)),
    # tables
    row("a table with another column for labels", CSV, "x.csv", "species", "path,label",
        make=csv("path,species", "data/cat/0.png,cat")),
    row("a table with semicolons", CSV, "x.csv", "path;label", "commas", make=csv("path;label", "data/cat/0.png;cat")),
    row("an empty table", CSV, "x.csv", "path,label", make=put("x.csv", b"")),
    row("a table of no images", CSV, "x.csv", "no image", make=csv("path,label")),
    row("a table with a file that is not there", CSV, "cat/7.png", "No such file",
        make=csv("path,label", "data/cat/7.png,cat")),
    row("a table with a value too many", CSV, "x.csv", "Expected 2 columns",
        make=csv("path,label", "data/cat/0.png,cat, grey")),
    row("a table with an open quote", CSV, "x.csv", "quote", make=csv("path,label", 'data/cat/0.png,"cat', "a,b")),
    row("a table with a split that is none", CSV, "x.csv", "tests",
        make=csv("path,label,split", "data/cat/0.png,cat,tests")),
    row("a table without training rows", CSV, "x.csv", "'train'",
        make=csv("path,label,split", "data/cat/0.png,cat,test")),
    row("a table in another encoding", CSV, "x.csv", "UTF-8",
        make=put("x.csv", "path,label\nä.png,a\n".encode("latin-1"))),
    row("a label without its weight", CSV, "x.csv", "'cat:'",
        make=csv("path,label", "data/cat/0.png,cat;dog", "data/cat/1.png,cat:;dog")),
    row("more labels than allowed", f"{CSV} --set data.max_labels=2", "x.csv", "3 labels", "data.max_labels",
        make=csv("path,label", "data/cat/0.png,a;b;c", "data/cat/1.png,a")),
    row("a column of classes that is no number", CSV, "x.csv", "dog", "'red'",
        make=csv("path,cat,dog", "data/cat/0.png,1,red")),
    row("columns that are no weights", CSV, "width", "columns",
        make=csv("path,width,height", "data/cat/0.png,640,480")),
    row("columns that are not there", f"{CSV} --columns image=fil", "'fil'", "columns",
        make=csv("file,label", "data/cat/0.png,cat")),
    row("vectors joined to images", f"{ON_DATA} --data toy", "toy", "vectors"),
    row("one source twice", f"{ON_DATA} --data data/../data", "data", "once"),
    # levels
    row("paths without a level", f"{ON_DATA} {PATHS}", "'/'", "data.hierarchy"),
    row("weights of other levels", f"{FOLDER} {PATHS} --set data.level_weights=[1]", "levels of its classes: 2",
        "data.level_weights", make=folders("a/cat", "b/dog")),
    # shards
    row("a shard that is not there", f"{TRAIN} --data 'x-{{0..2}}.tar'", "x-0.tar"),
    row("a compressed shard", f"{TRAIN} --data x.tar.gz", "x.tar.gz", "unpack",
        make=put("x.tar.gz", gzip.compress(b"x"))),
    row("a shard of no images", TAR, "x.tar", "KEY.jpg", make=tar(("a.cls", b"0"))),
    row("a sample of two images", TAR, "x.tar", "a.png", make=tar(("a.png", None), ("a.jpg", None))),
    row("a label in a shard nested without end", TAR, "x.tar", "a.json",
        make=tar(("a.png", None), ("a.json", DEEP.encode()))),
    row("shards that are all held out", f"{TRAIN} --data val-0.tar", "val-0.tar", "train",
        make=lambda tmp: [tar(("a.png", None), ("a.cls", b"0"))(tmp), (tmp / "x.tar").rename(tmp / "val-0.tar")]),
    row("a stream of a folder", f"{ON_DATA} --set data.stream=true", "data.stream", "tar shards"),
    row("a balanced stream", f"{TAR} --set data.stream=true --set data.balanced=true", "data.balanced",
        make=tar(("a.png", None), ("a.cls", b"0"))),
]  # fmt: skip


# --- encoders ---------------------------------------------------------------------------------------------------------


def saved(content: object) -> Make:
    return lambda tmp: torch.save(content, tmp / "w.pt")


def described(**metadata: str) -> Make:
    return lambda tmp: save_file({"a": torch.zeros(1)}, tmp / "e.safetensors", metadata=metadata)


def spec(**more: object) -> Make:
    content = {"name": "cnn", "channels": 1, "size": 16, "width": 8, "mean": [0.5], "std": [0.5], **more}
    return described(schema_version="1", encoder=json.dumps(content))


def resnet(**changes: torch.Tensor | None) -> Make:
    """The weights of a ResNet-18 with some of them changed; None takes them away."""

    def make(tmp: Path) -> None:
        with torch.device("meta"):
            shapes = {name: value.shape for name, value in torchvision.models.resnet18().state_dict().items()}
        state = {name: torch.zeros(shape) for name, shape in shapes.items()} | changes
        torch.save({name: value for name, value in state.items() if value is not None}, tmp / "w.pt")

    return make


INIT, E, W = f"{ON_DATA} --init w.pt", "evaluate knn e.safetensors --data data", "evaluate knn w.pt --data data"
ENCODERS = [
    row("an encoder that is not there", f"{ON_DATA} --set encoder.name=resnet5", "resnet5", "resnet50"),
    row("a start that is not there", f"{ON_DATA} --init nowhere.pt", "nowhere.pt"),
    row("a start cut short", INIT, "w.pt", "damaged",
        make=lambda tmp: [saved({"a": torch.zeros(99)})(tmp), torn(tmp / "w.pt")]),
    row("a start that is a list", INIT, "w.pt", "list", make=saved([1, 2])),
    row("a start of another architecture", INIT, "w.pt", "conv1.weight", "NAME@FILE",
        make=saved({"state_dict": {"conv1.weight": torch.zeros(2)}})),
    row("a start beside a run that goes on", f"{RESUME} --init run", "init", "resume"),
    row("an encoder to judge that is not there", "evaluate knn nowhere", "nowhere", "encoder.safetensors"),
    row("an encoder cut short", "evaluate knn run", "run/encoder.safetensors", "resume",
        make=lambda tmp: torn(tmp / "run/encoder.safetensors")),
    row("an encoder without data", "evaluate knn run/encoder.safetensors", "run/encoder.safetensors", "data"),
    row("an encoder without a description", E, "e.safetensors", make=described()),
    row("an encoder of a later version", E, "e.safetensors", "newer", make=described(schema_version="9", encoder="{}")),
    row("an encoder of no known kind", E, "e.safetensors", "cnm", "cnn", make=spec(name="cnm")),
    row("an encoder of an absurd size", E, "e.safetensors", make=spec(size=10**9)),
    row("an encoder without its tensors", E, "e.safetensors", "0.weight", make=spec()),
    row("a projector of an absurd size", "evaluate knn run --layer projector", "run/projector.safetensors",
        make=lambda tmp: save_file({"0.weight": torch.zeros(1, 1)}, tmp / "run/projector.safetensors",
                                   metadata={"schema_version": "1", "head": '{"out": 1000000000}',
                                             "input_width": str(10**12)})),
    row("a layer that is not there", "evaluate knn run --layer tow", "layer 'tow'"),
    row("another library's file of no known format", W, "w.pt", "block0.w",
        make=saved({f"block{i}.w": torch.zeros(1) for i in range(9)})),
    row("another library's file with an object", W, "w.pt", "run code", make=lambda tmp: torch.save(
        {"state_dict": {}, "schedule": Path("x")}, tmp / "w.pt")),
    row("a ResNet without one of its tensors", W, "w.pt", "layer3.1.conv2.weight",
        make=resnet(**{"layer3.1.conv2.weight": None})),
    row("a ResNet with a tensor that is no number", W, "w.pt", "bn1.weight", "finite",
        make=resnet(**{"bn1.weight": torch.full((64,), torch.nan)})),
    row("a ResNet with a sparse tensor", W, "w.pt",
        make=resnet(**{"conv1.weight": torch.zeros(64, 3, 7, 7).to_sparse()})),
    row("a ResNet of grey images", W, "w.pt", "1 channels", "mean",
        make=resnet(**{"conv1.weight": torch.zeros(64, 1, 7, 7)})),
    row("a mean of bytes", f"{W} --mean 123.7,116.3,103.5", "mean", "123.7", make=resnet()),
    row("a named model that is not there", "evaluate knn torchvision:resnet19@w.pt --data data", "resnet19",
        make=saved({"a": torch.zeros(1)})),
    row("a checkpoint of ours for an encoder", "evaluate knn step-000000002.pt --data data", "step-000000002.pt",
        make=lambda tmp: shutil.copy(newest(tmp), tmp)),
    row("a model for other programs", "embed model.onnx --data digits --out f.npz", "model.onnx",
        make=put("model.onnx")),
    row("vectors for an encoder of images", "evaluate knn run --data toy", "toy", "vectors", "images"),
]  # fmt: skip


# --- runs -------------------------------------------------------------------------------------------------------------


def newest(tmp: Path) -> Path:
    return checkpoints(tmp / "run" / "checkpoints")[-1]


def rewrite(change: Callable[[dict], object]) -> Make:
    """The run's checkpoint, changed, with a digest that fits."""

    def make(tmp: Path) -> None:
        content = torch.load(newest(tmp), weights_only=True)
        del content["digest"]
        change(content)
        torch.save(content | {"digest": content_digest(content)}, newest(tmp))

    return make


def edit_recipe(change: Callable[[dict], object]) -> Make:
    def make(tmp: Path) -> None:
        content = json.loads((tmp / "run" / "recipe.json").read_text())
        content.pop("digest", None)  # who edits it on purpose removes this
        change(content)
        (tmp / "run" / "recipe.json").write_text(json.dumps(content))

    return make


RECIPE = "run/recipe.json"
KEPT = "run/checkpoints/step-000000002.pt"
RUNS = [
    row("a folder that holds a run", f"{ON_DATA} --out run", "run", "resume", "out"),
    row("a folder with parts of a run", f"{ON_DATA} --out out", "out", "metrics.jsonl", make=put("out/metrics.jsonl")),
    row("the folder of a detector", f"{ON_DATA} --out out", "out", "detect", make=put("out/detect.json", b"{}")),
    row("a study in a run", "paper collapse digits.supsiam --data digits --epochs 1 --out run", "run", "out"),
    row("a run to judge below the folder", "evaluate knn . --data digits", "encoder.safetensors", "run"),
    row("resume of nothing", "pretrain --resume --out nothing", "nothing", "no run"),
    row("resume with another value", f"{RESUME} --epochs 7", "train.epochs = 7", RECIPE),
    row("resume with other data", f"{RESUME} --data digits", "data", "changed"),
    row("resume with another recipe", "pretrain digits.byol --resume --out run", "digits.supsiam", "digits.byol"),
    row("recipe.json that is no JSON", RESUME, RECIPE, make=put(RECIPE, b"{")),
    row("recipe.json nested without end", RESUME, RECIPE, make=put(RECIPE, DEEP.encode())),
    row("recipe.json with a value out of range", RESUME, RECIPE, "loss.alpha", "2.0",
        make=edit_recipe(lambda content: content["recipe"]["loss"].update(alpha=2))),
    row("recipe.json with a wrong type", RESUME, RECIPE, make=edit_recipe(lambda content: content.update(classes=3))),
    row("recipe.json that was changed", "embed run --data data --out f.npz", RECIPE, "digest",
        make=edit_recipe(lambda content: content.update(digest="0" * 64))),
    row("a checkpoint with other tensors", RESUME, "checkpoint",
        make=rewrite(lambda content: content.update(branches={}))),
    row("a checkpoint of an impossible step", RESUME, "checkpoint", "step",
        make=rewrite(lambda content: content.update(step=-5))),
    row("a checkpoint of a later version", RESUME, KEPT, "99",
        make=rewrite(lambda content: content.update(schema_version=99))),
    row("half a checkpoint", RESUME, KEPT, "damaged", make=lambda tmp: torn(newest(tmp))),
    row("a result nested without end", "paper table 3 run", "knn.json",
        make=put("run/evaluate/knn.json", DEEP.encode())),
    row("data among which a run would be written", f"{ON_DATA} --out data/runs/first", "data/runs/first", "out"),
    row("a run below a file", f"{ON_DATA} --out {RECIPE}/x", f"{RECIPE}/x", "Not a directory"),
    row("runs of no folder", "runs nowhere", "nowhere"),
]  # fmt: skip


# --- what is done with a run ------------------------------------------------------------------------------------------

KNN = "evaluate knn run --data data"
USE = [
    row("no neighbours", f"{KNN} --k 0", "k", "at least 1"),
    row("a split that is not there", f"{KNN} --split test", "data", "test split", "leave split out"),
    row("data without labels to judge by", "evaluate knn run --data x", "x", "labelled",
        make=lambda tmp: [picture(tmp / "x" / f"{i}.png") for i in range(12)]),
    row("one class to compare with", "evaluate knn run --data x", "x", "classes", make=folders("cat")),
    row("several labels for a probe of one", "evaluate linear run --probe sgd --data x.npz", "x.npz", "one label",
        make=npz(train_labels=SEVERAL)),
    row("data that have changed", "evaluate knn run", "run", "images has changed",
        make=lambda tmp: shutil.copy(tmp / "data/dog/1.png", tmp / "data/cat/0.png")),
    row("an encoder whose features are no numbers", "evaluate knn w.safetensors --data data",
        "w.safetensors", "features", make=lambda tmp: diverged(tmp / "w.safetensors")),
    row("no data to transfer to", "evaluate transfer run", "data", "root"),
    row("a copy of a run for another seed", "evaluate transfer run copy --data data", "copy", "weights",
        make=lambda tmp: shutil.copytree(tmp / "run", tmp / "copy")),
    row("a fine-tuned encoder over a run", "evaluate finetune run --out run", "run", "exists", "out"),
    row("features to a file of another kind", "embed run --data digits --out f.txt", "f.txt", ".npz"),
    row("labels by a classifier that is not there", "predict run --data data --all --classifier lineer --out x.csv",
        "lineer", "linear"),
    row("an audit of one class", "audit run --data x --out out", "x", "two", make=folders("cat")),
    row("a report of nothing", "report data", "data", "no run"),
    row("JSON over a table of labels", "recipes --json x.csv", "--json x.csv", "exists", make=csv("path,label")),
    row("JSON onto a full disk", "recipes --json /dev/full", "--json /dev/full", "No space left on device"),
]  # fmt: skip


def diverged(path: Path) -> None:
    """An encoder whose weights are so large that its features are infinite."""
    made = encoder()
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(1e38)
    save_encoder(path, made, (), "x")


ROWS = [*NAMES, *DATA, *ENCODERS, *RUNS, *USE]


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """The folder in which every command starts."""
    root, before = tmp_path_factory.mktemp("world"), Path.cwd()
    class_folders(root / "data")
    os.chdir(root)
    try:
        assert main(["pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "run", "--quiet"]) == 0
    finally:
        os.chdir(before)
    return root


@pytest.fixture
def place(world, tmp_path, monkeypatch) -> Path:
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    edit_recipe(lambda content: content["recipe"]["data"].update(source=str(tmp_path / "data")))(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.what)
def test_bad_input_is_one_line_with_its_exit_code_and_changes_nothing(case, place, capsys):
    case.make(place)
    before = contents(place)
    said = supancl(capsys, *shlex.split(case.command))
    assert_refused(said, *case.nouns, code=case.code)
    assert contents(place) == before


def test_out_of_memory_is_not_an_internal_error(monkeypatch, capsys):
    monkeypatch.setattr("supancl.cli.doctor.examine", mock.Mock(side_effect=MemoryError))
    assert_refused(supancl(capsys, "doctor"), "out of memory", "--batch-size")


# --- unreadable images, skipped only when asked for -------------------------------------------------------------------


def test_skipped_images_are_listed_and_counted(place, capsys):
    (place / "data" / "cat" / "1.png").write_text("x")
    torn(place / "data" / "dog" / "2.png")
    said = supancl(capsys, *shlex.split(ON_DATA), "--skip-bad-images")
    assert said.code == 0
    assert_one_line(said.err, "warning", "data/cat/1.png", "skipped: 2")
    kept = json.loads((place / "out" / "recipe.json").read_text())
    assert kept["data"]["skipped"] == 2
    assert kept["data"]["train"] + kept["data"]["held_out"] == 10
    assert kept["recipe"]["data"]["skip_bad_images"] is True


def test_judging_skips_bad_images_only_when_asked_for(place, capsys):
    class_folders(place / "other", each=8, seed=1000)
    (place / "other" / "cat" / "1.png").write_text("x")
    others = ("--data", "other")
    for command in (("evaluate", "knn", "run", *others), ("embed", "run", *others, "--out", "f.npz")):
        assert supancl(capsys, *command).code == 2
        said = supancl(capsys, *command, "--skip-bad-images", "--json", "result.json", "--device", "cpu")
        assert said.code == 0
        assert_one_line(said.err, "warning", "other/cat/1.png")
        assert json.loads((place / "result.json").read_text())["skipped"] == 1
    with np.load(place / "f.npz") as written:
        assert len(written["train_names"]) == 15
        assert "other/cat/1.png" not in written["train_names"]


# --- no permission, no room -------------------------------------------------------------------------------------------

AS_NOBODY = """
import contextlib, io, json, os, sys
import supancl.cli, supancl.training.pretraining, supancl.evaluation
import torch.utils.tensorboard
if os.getuid() == 0:  # root may write everywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
told = []
for command in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
        code = supancl.cli.main(command)
    told.append([code, errors.getvalue()])
print(json.dumps(told))
"""
CLOSED = {"open": 0o777, "closed": 0o555, "secret": 0, "secret.csv": 0, "run/encoder.safetensors": 0}
DENIED = {  # command -> the place that is closed to it
    f"{ON_DATA} --out closed/run": "closed/run",
    f"{TRAIN} --data secret --out open/run": "secret",
    f"{TRAIN} --data secret.csv --out open/run": "secret.csv",
    "evaluate knn run --data data": "run/encoder.safetensors",
    "recipes --json closed/x.json": "closed/x.json",
}


def test_without_permission_the_place_is_named(world, tmp_path, forks):
    (tmp_path / "nobody.py").write_text(AS_NOBODY)
    root = Path(tempfile.mkdtemp())  # a folder of pytest's own is closed to other users
    try:
        shutil.copytree(world, root, dirs_exist_ok=True)
        for name in ("open", "closed", "secret"):
            (root / name).mkdir()
        table(root / "secret.csv", "path,label")
        before = contents(root)
        root.chmod(0o755)
        for name, mode in CLOSED.items():
            (root / name).chmod(mode)
        asked = subprocess.run(
            ["python", str(tmp_path / "nobody.py")], input=json.dumps([shlex.split(command) for command in DENIED]),
            cwd=root, capture_output=True, text=True, env={**os.environ, **forks, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        for noun, (code, errors) in zip(DENIED.values(), json.loads(asked.stdout), strict=True):
            assert_refused(Said(code, "", errors), noun, "Permission denied")
        for name in CLOSED:
            (root / name).chmod(0o755)
        assert contents(root) == before
    finally:
        shutil.rmtree(root)


# numpy 2.0 leaves its archive to the garbage collector, which then complains
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_full_while_features_are_written_leaves_no_file(place, monkeypatch, capsys):
    """What a full disk does to a run is tried in tests/faults."""
    create, before = files.create_new, contents(place)

    def create_on_full_disk(created: Path) -> None:
        create(created)
        if created.absolute() == temporary_path(place / "f.npz"):
            created.unlink()
            created.symlink_to("/dev/full")

    monkeypatch.setattr(files, "create_new", create_on_full_disk)
    said = supancl(capsys, "embed", "run", "--data", "data", "--out", "f.npz", "--device", "cpu")
    assert_refused(said, "f.npz", "No space left on device")
    assert contents(place) == before
