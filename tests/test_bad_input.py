"""Bad input: one line that names the thing, the place and the way out; exit code 2; nothing written or changed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from supancl.files import temporary_path, writing
from supancl.weights import checkpoint
from supancl.weights.digests import content_digest
from supancl.weights.metrics_log import MetricsLog
from supancl.weights.run_folder import RunFolder
from tests.files import (
    TINY,
    Said,
    archive,
    assert_mentions,
    assert_one_line,
    assert_refused,
    class_folders,
    contents,
    noise,
    picture,
    supancl,
    table,
)

PRETRAIN = ("pretrain", "digits.supsiam", *TINY, "--out", "out")
RESUME = ("pretrain", "--resume", "--out", "run")


class Row(NamedTuple):
    """One case. `make` fills the working folder and may give further arguments, or the whole command line; the error
    names the `nouns`: the thing, the place and the way out."""

    what: str
    make: Callable[[Path], object]
    nouns: tuple[str, ...]
    command: tuple[str, ...] = PRETRAIN


def flags(*arguments: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda tmp: arguments


def data(make: Callable[[Path], object]) -> Callable[[Path], tuple[str, ...]]:
    """What `make` gives is the --data; None stands for the folder `data`."""

    def made(tmp: Path) -> tuple[str, ...]:
        where = make(tmp)
        return "--data", str(where.relative_to(tmp)) if isinstance(where, Path) else "data"

    return made


# --- names and values -------------------------------------------------------------------------------------------------

NAMES = [
    Row("a command that is not there", flags(),
        ("pretran", "pretrain", "--help"), ("pretran", "digits.supsiam")),
    Row("no command but a flag", flags(),
        ("alpha", "data", "detect", "embed", "evaluate", "import", "paper", "pretrain", "recipes", "supancl --help"),
        ("--quiet",)),
    Row("a protocol that is not there", flags(),
        ("'kn'", "knn", "supancl evaluate --help"), ("evaluate", "kn", "run")),
    Row("a flag that is not there", flags("--epoch-s", "3"),
        ("--epoch-s 3", "--epochs", "supancl pretrain --help")),
    Row("an argument of two lines", flags("--epoch-s=1\n2"),
        ("--epoch-s=1", "2", "--epochs", "supancl pretrain --help")),
    Row("a recipe that is not there", flags(), ("cifar10.supsam", "cifar10.supsiam"),
        ("pretrain", "cifar10.supsam", "--out", "out")),
    Row("a method for a recipe", flags(),
        ("'supsiam'", "imagenet100.supsiam", "cifar10.supsiam", "cifar100.supsiam", "toy.supsiam", "digits.supsiam"),
         ("pretrain", "supsiam")),
    Row("a recipe like no other", flags(),
        ("qqqq", "vit.METHOD", "digits.METHOD"), ("pretrain", "qqqq")),
    Row("no recipe", flags(), ("supancl recipes", "--resume", "--out DIR"), ("pretrain",)),
    Row("a recipe to show that is not there", flags(),
        ("digit.supsiam", "digits.supsiam"), ("recipes", "digit.supsiam")),
    Row("a field that is not there", flags("--set", "loss.alpa=1"),
        ("loss.alpa", "loss.alpha")),
    Row("a field without its section", flags("--set", "alpha=0.3"),
        ("'alpha'", "loss.alpha")),
    Row("a field of two sections", flags("--set", "momentum=0.3"),
        ("'momentum'", "branches.momentum", "optimizer.momentum")),
    Row("a field of a section that is off", flags("--set", "views.local.sise=8"),
        ("views.local.sise", "views.local.size")),
    Row("a field of another loss", flags("--set", "loss.temperature=1"),
        ("loss.temperature", "loss.alpha", "loss.form", "loss.kind", "loss.samples", "supancl recipes",
         "digits.supsiam")),
    Row("a field like no other", flags("--set", "qqq=1"),
        ("qqq", "data.*", "views.*", "encoder.*", "heads.*", "branches.*", "pool.*", "loss.*", "optimizer.*",
         "schedule.*", "train.*", "supancl recipes", "digits.supsiam")),
    Row("a section that is not there", flags("--set", "los.alpha=1"),
        ("los.alpha", "loss.alpha")),
    Row("a section as a field", flags("--set", "loss=1"),
        ("section", "loss.samples")),
    Row("a field below a field", flags("--set", "loss.alpha.x=1"),
        ("loss.alpha", "loss.alpha.x", "fields")),
    Row("the name of the method", flags("--set", "method=byol"),
        ("method", "supancl recipes")),
    Row("a field without a value", flags("--set", "loss.alpha"),
        ("--set", "FIELD=VALUE", "loss.alpha=0.3", "supancl pretrain --help")),
    Row("alpha above 1", flags("--set", "loss.alpha=1.5"), ("loss.alpha", "1.5", "[0, 1]")),
    Row("alpha below 0", flags("--set", "loss.alpha=-0.1"), ("loss.alpha", "-0.1", "[0, 1]")),
    Row("alpha that is no number", flags("--set", "loss.alpha=half"), ("loss.alpha", "half", "float")),
    Row("alpha that is not finite", flags("--set", "loss.alpha=NaN"), ("loss.alpha", "nan", "finite")),
    Row("M below 1", flags("--set", "loss.samples=0"), ("loss.samples", "0", "1")),
    Row("M of prototypes", flags("--set", "loss.samples=4", "--set", "pool.kind=prototypes"),
        ("loss.samples", "4", "pool.kind", "'prototypes'", "loss.samples=null", "pool.kind=queue", "class-queues")),
    Row("M without a pool", flags("--set", "pool.kind=none", "--set", "loss.samples=1"),
        ("loss.samples", "1", "pool.kind", "'none'", "loss.samples=null", "pool.kind=queue", "class-queues")),
    Row("a pool of none", flags("--set", "pool.size=0"), ("pool.size", "0", "1")),
    Row("a pool of no kind", flags("--set", "pool.kind=bag"),
        ("pool.kind", "bag", "none", "queue", "class-queues", "prototypes")),
    Row("no epochs", flags("--epochs", "0"), ("train.epochs", "0", "1")),
    Row("half an epoch", flags("--epochs", "0.5"), ("train.epochs", "0.5", "whole number")),
    Row("epochs in words", flags("--epochs", "ten"), ("train.epochs", "ten", "whole number")),
    Row("epochs beyond a lifetime", flags("--epochs", "1e9", "--batch-size", "128"),
        ("train.epochs", "1000000000", "10,000,000,000 steps", "1,000,000,000", "--epochs 100000000")),
    Row("a predictor of another width than the projector", flags("--set", "heads.predictor.out=9"),
        ("heads.predictor.out", "9", "heads.projector.out", "256")),
    Row("a batch of none", flags("--batch-size", "0"), ("train.batch_size", "0", "1")),
    Row("a batch of one", flags("--batch-size", "1"),
        ("train.batch_size", "1", "batch norm", "2")),
    Row("a batch that does not divide", flags("--accumulate", "3"),
        ("train.batch_size", "4", "train.accumulate", "3")),
    Row("a seed below 0", flags("--seed", "-1"), ("train.seed", "-1", "[0, 9.22337e+18]")),
    Row("a seed too large", flags("--seed", "9" * 23), ("train.seed", f"{'9' * 23}", "[0, 9.22337e+18]")),
    Row("a device that is not there", flags("--device", "tpu"),
        ("train.device", "tpu", "auto", "cpu", "cuda")),
    Row("too much held out", flags("--set", "data.holdout=0.95"), ("data.holdout", "0.95", "[0, 0.9]")),
    Row("classes to leave out that are no list", flags("--set", "data.leave_out=cat"),
        ("data.leave_out", "cat", "[1, 2]")),
    Row("a compat that is not there", flags("--compat", "papr"),
        ("--compat", "papr", "paper", "released-code", "supancl pretrain --help")),
]  # fmt: skip


# --- data -------------------------------------------------------------------------------------------------------------


def torn(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def bad_bytes(tmp: Path) -> Path:
    """An archive whose zip is whole and whose compressed bytes are not."""
    path = tmp / "data.npz"
    np.savez_compressed(path, train_images=noise(20, 8, 8), train_labels=np.arange(20) % 2)
    content = bytearray(path.read_bytes())
    content[80:120] = b"\xff" * 40
    path.write_bytes(content)
    return path


def one_array(tmp: Path) -> Path:
    np.save(tmp / "data.npy", noise(4, 8, 8))
    return (tmp / "data.npy").rename(tmp / "data.npz")


def with_classes(*steps: Callable[[Path], object], **options: object) -> Callable[[Path], None]:
    """Class folders in `data`, and something done to them."""

    def make(tmp: Path) -> None:
        class_folders(tmp / "data", **options)
        for step in steps:
            step(tmp / "data")

    return make


def with_flags(make: Callable[[Path], object], *more: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda tmp: (*data(make)(tmp), *more)


def of_arrays(**arrays: object) -> Callable[[Path], Path]:
    return lambda tmp: archive(tmp / "data.npz", **arrays)


def of_lines(*lines: str) -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        class_folders(tmp, each=2)
        return table(tmp / "data.csv", *lines)

    return make


def of_bytes(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        (tmp / name).write_bytes(content)
        return tmp / name

    return make


def splits(*names: str) -> Callable[[Path], None]:
    return lambda tmp: [class_folders(tmp / "data" / name, each=1) for name in names] and None


PATHS = ("--set", "data.hierarchy=paths")


def nested(tmp: Path) -> None:
    class_folders(tmp / "data", ("animal/cat", "animal/dog", "plant/oak", "plant/rose"))


def two_tables(first: str, second: str, *more: str) -> Callable[[Path], tuple[str, ...]]:
    """Two tables of an image each, with these labels."""

    def make(tmp: Path) -> tuple[str, ...]:
        class_folders(tmp, each=1)
        table(tmp / "first.csv", "path,label", f"cat/0.png,{first}")
        table(tmp / "second.csv", "path,label", f"dog/0.png,{second}")
        return "--data", "first.csv", "--data", "second.csv", *more

    return make


DATA = [
    Row("no data at all", flags(),
        ("--data FOLDER", "--data FILE.npz", "--data FILE.csv"),
        ("pretrain", "imagenet100.supsiam", "--out", "out")),
    Row("a path that is not there", flags("--data", "no/where"), ("no data", "no/where", "path")),
    Row("a file that is not there", flags("--data", "nowhere.npz"), ("no data", "nowhere.npz", "path")),
    Row("a name that is not there", flags("--data", "digit"), ("'digit'", "'digits'")),
    Row("a name too long to be one", flags("--data", "x" * 300),
        (f"{'x' * 300}", "File name too long", "permissions")),
    Row("a file of another kind", data(of_bytes("data.txt", b"x")),
        ("data.txt", ".npz", ".csv", ".tar", "torchvision:NAME@ROOT", "hf:NAME")),
    Row("an empty folder", data(lambda tmp: (tmp / "data").mkdir()),
        ("data", "no image", "class folders", ".jpg", ".png", ".webp")),
    Row("a class folder with no image", data(with_classes(lambda root: (root / "bird").mkdir())),
        ("data/bird", "no image", "remove")),
    Row("a class folder with no image and bad ones skipped",
        with_flags(with_classes(lambda root: (root / "bird").mkdir()), "--skip-bad-images"),
        ("data/bird", "no image", "remove")),
    Row("a class folder with a text only",
        data(with_classes(lambda root: (root / "bird").mkdir() or (root / "bird" / "a.txt").write_text("x"))),
        ("data/bird", "no image", "remove")),
    Row("one class only", data(with_classes(classes=("cat",))),
        ("data", "one class", "cat", "simsiam", "byol")),
    Row("a folder within a folder", data(lambda tmp: class_folders(tmp / "data" / "photos") and None),
        ("one class", "photos", "simsiam", "byol", "2 folders", "data/photos")),
    Row("one class with labels", data(with_classes(lambda root: (root / "dog").rename(root / "unlabelled"))),
        ("data", "one class", "cat", "simsiam", "byol")),
    Row("no label anywhere", data(lambda tmp: [picture(tmp / "data" / f"{i}.png") for i in range(20)] and None),
        ("data", "label", "supsiam", "class folders", "simsiam", "byol")),
    Row("test/ without train/", data(splits("test")),
        ("test/", "train/", "data/test")),
    Row("two folders for one split", data(splits("train", "trainval")),
        ("data", "train/", "trainval/", "one of them")),
    Row("a truncated image", data(with_classes(lambda root: torn(root / "dog" / "3.png"))),
        ("data/dog/3.png", "truncated", "--skip-bad-images")),
    Row("a file that is no image", data(with_classes(lambda root: (root / "cat" / "x.png").write_text("x"))),
        ("data/cat/x.png", "--skip-bad-images")),
    Row("several files that are no images",
        data(with_classes(*[lambda root, i=i: (root / "cat" / f"{i}.png").write_text("x") for i in range(3)])),
        ("data/cat/0.png", "2 more", "--skip-bad-images")),
    Row("no image that can be read",
        with_flags(lambda tmp: (tmp / "data").mkdir() or ((tmp / "data" / "x.png").write_text("x") and None),
                   "--skip-bad-images"),
        ("data/x.png", "no training image")),
    Row("a batch larger than the data", with_flags(with_classes(), "--batch-size", "64"),
        ("data", "8 training images", "64", "--batch-size 8")),
    Row("one image", data(lambda tmp: picture(tmp / "data" / "cat" / "0.png") and None),
        ("1 image", "25%", "add images")),
    Row("too few images to hold any out", data(with_classes(each=1)),
        ("2 images", "25%", "val/", "--set data.holdout=0")),
    Row("one image and no recipe", data(lambda tmp: picture(tmp / "data" / "0.png") and None),
        ("data", "1 training image", "2", "add images"), ("pretrain", "--out", "out")),
    Row("one image of many and no recipe", with_flags(with_classes(), "--set", "data.limit=1"),
        ("data", "1 training image", "2", "change data.limit"), ("pretrain", "--out", "out")),
    Row("a class to leave out that is not there", with_flags(with_classes(), "--set", 'data.leave_out=["dgo"]'),
        ("data.leave_out", "dgo", "dog")),
    Row("every class left out", with_flags(with_classes(), "--set", 'data.leave_out=["cat", "dog"]'),
        ("data.leave_out", "data.holdout")),
    Row("vectors for a recipe of images", flags("--data", "toy"),
        ("toy", "vectors", "digits.supsiam", "images")),
    Row("images for a recipe of vectors", flags("--data", "digits"),
        ("digits", "images", "toy.supsiam", "vectors"), ("pretrain", "toy.supsiam", "--out", "out")),
    Row("images for an encoder of vectors", flags("--set", "encoder.name=linear"),
        ("digits", "images", "linear", "vectors", "--set encoder.name=cnn")),
    Row("vectors for an encoder of images", flags(), ("toy", "vectors", "cnn", "linear"),
        ("pretrain", "toy.supsiam", "--set", "encoder.name=cnn", "--out", "out")),
    # archives
    Row("an archive without the keys", data(of_arrays(train_images=None, train_labels=None, images=noise(4, 8, 8))),
        ("data.npz", "no train_images", "images", "train_labels")),
    Row("an empty archive", data(of_arrays(train_images=None, train_labels=None)),
        ("data.npz", "no train_images", "nothing", "train_labels")),
    Row("an archive without labels", data(of_arrays(train_labels=None)),
        ("data.npz", "label", "simsiam")),
    Row("labels that are not integers", data(of_arrays(train_labels=np.arange(20) / 2)),
        ("data.npz", "train_labels", "float64", "-1")),
    Row("labels of another number", data(of_arrays(train_labels=np.arange(5))),
        ("data.npz", "train_labels", "(5,)", "20 images", "(20,)")),
    Row("a label below -1", data(of_arrays(train_labels=np.arange(20) - 7)),
        ("data.npz", "train_labels", "-7", "0", "-1")),
    Row("a label that is no class number", data(of_arrays(train_labels=np.arange(20) * 10**11)),
        ("data.npz", "train_labels", "1900000000000", "0", "1000000", "-1")),
    Row("a label without a name", data(of_arrays(class_names=["cat"])),
        ("data.npz", "label 1", "class_names")),
    Row("class names that are numbers", data(of_arrays(class_names=[1, 2])),
        ("data.npz", "class_names", "(2,)", "int64", "strings")),
    Row("one name for two classes", data(of_arrays(class_names=["cat", "cat "])),
        ("data.npz", "class_names", "'cat'", "a different one")),
    Row("a class without a name", data(of_arrays(class_names=["cat", ""])),
        ("data.npz", "class_names", "class 1", "give every class a name")),
    Row("soft labels that are the same everywhere", data(of_arrays(train_labels=np.tile([0.6, 0.4], (20, 1)))),
        ("data.npz", "same classes and weights", "0, 1", "simsiam", "byol")),
    Row("weights in two rows that cannot be summed",
        data(of_arrays(train_labels=np.where(np.arange(20)[:, None] == 7, 1e7, [[1, 1]]))),
        ("data.npz", "train_labels", "row 0", "row 7", "1e+07", "1,000,000", "leave out")),
    Row("one name for all classes", data(of_arrays(class_names="cat")),
        ("data.npz", "class_names", "()", "<U3", "strings")),
    Row("images of different channel counts",
        data(of_arrays(test_images=noise(4, 8, 8, 3), test_labels=np.arange(4) % 2)),
        ("data.npz", "channel", "train 1", "test 3")),
    Row("images of four channels", data(of_arrays(train_images=noise(20, 8, 8, 4))),
        ("data.npz", "train_images", "(20, 8, 8, 4)", "(N, H, W)", "(N, H, W, 1)", "(N, H, W, 3)")),
    Row("images that are fractions", data(of_arrays(train_images=noise(20, 8, 8) / 255)),
        ("data.npz", "train_images", "float64", "uint8", "0", "255")),
    Row("images without pixels", data(of_arrays(train_images=noise(20, 0, 8))),
        ("data.npz", "train_images", "empty", "(20, 0, 8, 1)")),
    Row("an archive of pickled objects", data(of_arrays(train_labels=np.array([None] * 20))),
        ("data.npz", "train_labels", "pickled", "astype(str)", "numpy.savez")),
    Row("a truncated archive", data(lambda tmp: torn(archive(tmp / "data.npz"))),
        ("data.npz", "numpy.savez")),
    Row("an archive with bad bytes", data(bad_bytes),
        ("data.npz", "numpy.savez")),
    Row("an empty file as an archive", data(of_bytes("data.npz", b"")),
        ("data.npz", "numpy.savez")),
    Row("a single array as an archive", data(one_array),
        ("data.npz", "single array", "numpy.savez")),
    # tables
    Row("a table with another column for labels", data(of_lines("path,species", "cat/0.png,cat")),
        ("data.csv", "column 'label'", "path, species", "path,label[,split]")),
    Row("a table with semicolons", data(of_lines("path;label", "cat/0.png;cat")),
        ("data.csv", "';'", "commas")),
    Row("a table without paths", data(of_lines("file,label", "cat/0.png,cat")),
        ("data.csv", "column 'path'", "file, label", "path,label[,split]")),
    Row("an empty table", data(of_bytes("data.csv", b"")),
        ("data.csv", "column 'label'", "nothing", "path,label[,split]")),
    Row("a table of no images", data(of_lines("path,label")),
        ("data.csv", "no image", "path,label[,split]")),
    Row("a table with a file that is not there", data(of_lines("path,label", "cat/0.png,cat", "cat/7.png,cat")),
        ("data.csv", "line 3", "cat/7.png", "--skip-bad-images")),
    Row("a table with a folder for a file", data(of_lines("path,label", "cat,cat")),
        ("data.csv", "line 2", "'cat'", "--skip-bad-images")),
    Row("a table with a row without a path", data(of_lines("path,label", ",cat")),
        ("data.csv", "line 2", "no path", "path,label[,split]")),
    Row("a table with a split that is none", data(of_lines("path,label,split", "cat/0.png,cat,tests")),
        ("data.csv", "line 2", "tests", "train", "val", "test")),
    Row("a table without training rows", data(of_lines("path,label,split", "cat/0.png,cat,test")),
        ("data.csv", "'train'", "column")),
    Row("a label without its weight", data(of_lines("path,label", "cat/0.png,cat;dog", "cat/1.png,cat:;dog")),
        ("data.csv", "line 3", "'cat:'", "cat:0.7", "disk:2nd:1")),
    Row("a weight with a decimal comma", data(of_lines("path,label", 'cat/0.png,"cat:0,7;dog:0,3"')),
        ("data.csv", "line 2", "'cat:0,7'", "cat:0.7")),
    Row("a weight in percent", data(of_lines("path,label", "cat/0.png,cat:70%;dog:30%")),
        ("data.csv", "line 2", "'cat:70%'", "cat:0.7")),
    Row("weights in two lines that cannot be summed",
        data(of_lines("path,label", "cat/0.png,cat;dog", "cat/1.png,cat", "dog/0.png,cat:1e7;dog")),
        ("data.csv line 2", "data.csv line 4", "1e+07", "1,000,000", "leave out")),
    Row("weights in two sources that cannot be summed",
        two_tables("cat;dog", "cat:1e7;dog:1e7"),
        ("first.csv", "second.csv", "1e+07", "1,000,000", "leave out")),
    Row("a class on two levels of two sources", two_tables("animal/cat", "cat", *PATHS),
        ("first.csv + second.csv", "'cat'", "two levels", "rename")),
    Row("a long tail of nested classes", with_flags(nested, "--set", "data.imbalance=10", *PATHS),
        ("data", "data.imbalance", "one label per image", "leave data.hierarchy out")),
    Row("nested classes to leave out of an alpha study", with_flags(nested, *PATHS),
        ("data", "data.hierarchy", "--leave-out", "leave data.hierarchy out"),
        ("alpha", "digits.supsiam", *TINY, "--out", "out")),
    Row("a table in another encoding", data(of_bytes("data.csv", "path,label\nä.png,a\n".encode("latin-1"))),
        ("data.csv", "UTF-8", "0xe4", "encoding")),
]  # fmt: skip


# --- encoders and checkpoints -----------------------------------------------------------------------------------------


def init(make: Callable[[Path], object]) -> Callable[[Path], tuple[str, ...]]:
    """Good data, and as --init whatever `make` leaves at the path it gives."""

    def made(tmp: Path) -> tuple[str, ...]:
        class_folders(tmp / "data")
        where = make(tmp)
        return "--data", "data", "--init", str(where.relative_to(tmp) if isinstance(where, Path) else where)

    return made


def saved(content: object, name: str = "w.pt") -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        torch.save(content, tmp / name)
        return tmp / name

    return make


def described(weights: dict[str, torch.Tensor], **metadata: str) -> Callable[[Path], Path]:
    def make(tmp: Path) -> Path:
        save_file(weights, tmp / "e.safetensors", metadata=metadata)
        return tmp / "e.safetensors"

    return make


def with_run(*steps: Callable[[Path], object]) -> Callable[[Path], tuple[str, ...]]:
    """A finished run in `run`, and something done to it; what the last step gives are further arguments."""

    def make(tmp: Path) -> tuple[str, ...]:
        more: object = ()
        for step in steps:
            more = step(tmp / "run")
        return more if isinstance(more, tuple) else ()

    return make


def newest(run: Path) -> Path:
    return checkpoint.checkpoints(run / "checkpoints")[-1]


def rewrite(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """The only checkpoint, changed, with a digest that fits."""

    def step(run: Path) -> None:
        path = newest(run)
        content = torch.load(path, weights_only=True)
        del content["digest"]
        change(content)
        torch.save(content | {"digest": content_digest(content)}, path)

    return step


def replace_newest(content: bytes) -> Callable[[Path], None]:
    def step(run: Path) -> None:
        newest(run).write_bytes(content)

    return step


def edit_recipe(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def step(run: Path) -> None:
        content = json.loads((run / "recipe.json").read_text())
        change(content)
        content.pop("digest", None)  # who edits it on purpose removes this
        (run / "recipe.json").write_text(json.dumps(content))

    return step


SPEC = {"name": "cnn", "channels": 1, "size": 16, "width": 8, "mean": [0.5], "std": [0.5]}
KNN = ("evaluate", "knn")
SOUND = "run/checkpoints/step-000000002.pt"
FILES = [
    Row("an encoder that is not there", with_flags(with_classes(), "--set", "encoder.name=resnet5"),
        ("resnet5", "resnet50")),
    Row("an init that is not there", init(lambda tmp: "nowhere.pt"),
        ("nowhere.pt", "encoder.safetensors")),
    Row("an init folder without an encoder", init(lambda tmp: "data"),
        ("data", "run folder", "encoder.safetensors")),
    Row("an init that is empty", init(of_bytes("w.pt", b"")),
        ("w.pt", "damaged", "--init")),
    Row("an init that is text", init(of_bytes("w.pt", b"weights")),
        ("w.pt", "damaged", "--init")),
    Row("an init cut short", init(lambda tmp: torn(saved({"a": torch.zeros(99)})(tmp))),
        ("w.pt", "damaged", "--init")),
    Row("an init that is a list", init(saved([1, 2])),
        ("w.pt", "list", "state dict")),
    Row("an init whose state_dict is none", init(saved({"state_dict": 3}, "w.ckpt")),
        ("w.ckpt", "state_dict", "int", "tensors")),
    Row("an init of another architecture", init(saved({"state_dict": {"conv1.weight": torch.zeros(2)}}, "w.pth")),
        ("w.pth", "0.weight", "cnn", "architecture")),
    Row("an init of another width", init(saved({"0.weight": torch.zeros(4, 1, 3, 3)})),
        ("w.pt", "0.weight", "(4, 1, 3, 3)", "cnn", "(2, 1, 3, 3)", "architecture")),
    Row("an init that is no safetensors", init(of_bytes("w.safetensors", b"weights")),
        ("w.safetensors", "safetensors file", "again")),
    Row("an init beside resume", with_run(flags("--init", "run")),
        ("--init", "--resume", "one of them"), RESUME),
    Row("an init beside resume of nothing", flags("--init", "run", "--resume"),
        ("--init", "--resume", "one of them")),
    # a run folder
    Row("a folder that holds a run", with_flags(with_classes(), "--out", "run"),
        ("run", "holds a run", "--resume", "--out")),
    Row("resume of nothing", flags(), ("nothing", "no run", "recipe"),
        ("pretrain", "--resume", "--out", "nothing")),
    Row("resume with another value", with_run(flags("--epochs", "7")),
        ("--epochs 7", "train.epochs", "1", "run/recipe.json", "--extend run --epochs N"), RESUME),
    Row("resume with another encoder", with_run(flags("--set", "encoder.width=4")),
        ("--set encoder.width=4", "8", "run/recipe.json", "--out"), RESUME),
    Row("resume with another field", with_run(flags("--set", "loss.alpha=0.9")),
        ("--set loss.alpha=0.9", "loss.alpha", "0.5", "run/recipe.json", "--init run", "--out"), RESUME),
    Row("resume with a field that is not there", with_run(flags("--set", "loss.alhpa=0.9")),
        ("loss.alhpa", "loss.alpha"), RESUME),
    Row("resume with other data", with_run(flags("--data", "digits")),
        ("--data digits", "data.source", '"data"', "run/recipe.json", "--init run", "--out"),
        RESUME),
    Row("resume with another recipe", flags(),
        ("run", "digits.supsiam", "digits.byol", "--out"),
        ("pretrain", "digits.byol", "--resume", "--out", "run")),
    Row("resume with another compat", with_run(flags("--compat", "released-code")),
        ("--compat released-code", "paper", "run/recipe.json", "settings"),
        RESUME),
    Row("a recipe.json that is no JSON", with_run(lambda run: (run / "recipe.json").write_text("{")),
        ("run/recipe.json", "--out"), RESUME),
    Row("a recipe.json that is a list", with_run(lambda run: (run / "recipe.json").write_text("[1]") and None),
        ("run/recipe.json", "--out"), RESUME),
    Row("a recipe.json nested without end",
        with_run(lambda run: (run / "recipe.json").write_text("[" * 10**5) and None),
        ("run/recipe.json", "nested", "--out"), RESUME),
    Row("a recipe.json of bytes", with_run(lambda run: (run / "recipe.json").write_bytes(b"\xff\xfe") and None),
        ("run", "no run", "recipe.json"), RESUME),
    Row("a recipe.json with a value out of range",
        with_run(edit_recipe(lambda content: content["recipe"]["loss"].update(alpha=2))),
        ("run/recipe.json", "loss.alpha", "2.0", "[0, 1]", "--out"), RESUME),
    Row("a recipe.json with a field of its own",
        with_run(edit_recipe(lambda content: content["recipe"]["loss"].update(alfa=1))),
        ("run/recipe.json", "loss.alfa", "alpha", "--out"), RESUME),
    Row("a checkpoint of another recipe", with_run(rewrite(lambda content: content.update(recipe="digits.byol"))),
        ("checkpoint", "digits.byol", "digits.supsiam"), RESUME),
    Row("a checkpoint with other tensors", with_run(rewrite(lambda content: content.update(branches={}))),
        ("checkpoint", "fit", "settings"), RESUME),
    Row("a checkpoint without its parts", with_run(rewrite(lambda content: content.pop("optimizer"))),
        ("checkpoint", "'optimizer'", "settings"), RESUME),
    Row("a checkpoint of another version", with_run(rewrite(lambda content: content.update(schema_version=1))),
        (SOUND, "schema version 1", "reads 2", "finish", "--out"), RESUME),
    Row("a checkpoint without a version", with_run(rewrite(lambda content: content.pop("schema_version"))),
        (SOUND, "schema_version", "--out"), RESUME),
    Row("half a checkpoint", with_run(lambda run: torn(newest(run)) and None),
        (SOUND, "damaged", "step 0", "run/checkpoints"), RESUME),
    Row("a checkpoint of noise", with_run(replace_newest(b"noise")),
        (SOUND, "damaged", "tensors", "step 0", "run/checkpoints"), RESUME),
    # encoders to judge
    Row("an encoder file that is not there", flags("nowhere"),
        ("nowhere", "run folder", "encoder.safetensors", "torchvision:NAME[@FILE]", "timm:NAME[@FILE]"), KNN),
    Row("a folder without an encoder", with_run(lambda run: (run / "encoder.safetensors").unlink() or ("run",)),
        ("run", "encoder.safetensors", "epoch"), KNN),
    Row("an encoder cut short", with_run(lambda run: torn(run / "encoder.safetensors"), flags("run")),
        ("run/encoder.safetensors", "--resume"), KNN),
    Row("an encoder without a description", lambda tmp: (str(described({"a": torch.zeros(1)})(tmp).name),),
        ("e.safetensors", "moco", "torchvision:NAME@FILE", "timm:NAME@FILE"), KNN),
    Row("an encoder with a broken description",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="1", encoder="{")(tmp).name,),
        ("e.safetensors", "metadata", "supancl"), KNN),
    Row("an encoder of a later version",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="9", encoder="{}")(tmp).name,),
        ("e.safetensors", "newer", "9", "1", "upgrade"), KNN),
    Row("an encoder of no known kind",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="1", encoder='{"name": "cnm"}')(tmp).name,),
        ("e.safetensors", "cnm", "cnn", "--plugin FILE", "docs/extending.md"), KNN),
    Row("an encoder without its tensors",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="1", encoder=json.dumps(SPEC))(tmp).name,),
        ("e.safetensors", "0.weight", "cnn", "architecture"), KNN),
    Row("an encoder file without data", flags("run/encoder.safetensors"),
        ("run/encoder.safetensors", "not a run folder", "--data"), KNN),
    Row("a run whose data are gone", flags("run"), ("'data'", "path"), KNN),
    Row("vectors for an encoder of images", flags("run", "--data", "toy"),
        ("toy", "vectors", "cnn", "images", "--data"), KNN),
    Row("data without labels to judge by",
        lambda tmp: [picture(tmp / "flat" / f"{i}.png") for i in range(12)] and ("run", "--data", "flat"),
        ("flat", "k-NN", "labelled", "--data"), KNN),
    Row("one class to compare with", lambda tmp: class_folders(tmp / "one", ("cat",)) and ("run", "--data", "one"),
        ("one", "'cat'", "k-NN", "two classes"), KNN),
    Row("no neighbours", flags("run", "--k", "0"), ("--k 0", "1"), KNN),
    Row("a temperature of 0", flags("run", "--temperature", "0"), ("--temperature 0", "above 0"), KNN),
    Row("features to a file of another kind", flags(), ("--out f.txt", ".npz"),
        ("embed", "run", "--data", "digits", "--out", "f.txt")),
    Row("features over a file that is there", lambda tmp: (tmp / "f.npz").write_text("mine") and None,
        ("f.npz", "exists", "--out"), ("embed", "run", "--data", "digits", "--out", "f.npz")),
    Row("features of data with bad images", with_classes(lambda root: (root / "cat" / "0.png").write_text("x")),
        ("data/cat/0.png", "--skip-bad-images"), ("embed", "run", "--data", "data", "--out", "f.npz")),
    Row("features of vectors by an encoder of images", flags(),
        ("toy", "vectors", "cnn", "images", "--data"),
        ("embed", "run", "--data", "toy", "--out", "f.npz")),
    # places that cannot be written in
    Row("a run below a file", with_flags(with_classes(), "--out", "run/recipe.json/x"),
        ("run/recipe.json/x", "Not a directory", "--out")),
    Row("a run in place of a file", with_flags(with_classes(), "--out", "run/recipe.json"),
        ("run/recipe.json", "Not a directory", "--out")),
    Row("a run where nobody may write", with_flags(with_classes(), "--out", "/proc/x"),
        ("/proc/x", "No such file or directory", "--out")),
    # places that are read as well
    Row("a run in its own data", with_flags(with_classes(), "--out", "data"),
        ("data", "classes", "--out")),
    Row("a run among the classes", with_flags(with_classes(), "--out", "data/runs/first"),
        ("data/runs/first", "classes", "--out")),
    Row("contact sheets among the classes", lambda tmp: class_folders(tmp / "data") and None,
        ("data/sheets", "--out"), ("data", "show", "data", "--out", "data/sheets")),
    Row("features below a file", flags(), ("run/recipe.json", "Not a directory", "--out"),
        ("embed", "run", "--data", "digits", "--out", "run/recipe.json/f.npz")),
    Row("JSON into no folder", flags(),
        ("--json no/x.json", "standard output"),
        ("recipes", "--json", "no/x.json")),
    Row("JSON over a folder", flags(), ("--json run", "folder", "standard output"), ("recipes", "--json", "run")),
    Row("JSON over a table of labels", lambda tmp: (tmp / "labels.csv").write_text("path,label\n") and None,
        ("--json labels.csv", "exists", "standard output"), ("recipes", "--json", "labels.csv")),
    Row("a folder in place of a recipe", lambda tmp: class_folders(tmp / "photos") and None,
        ("photos", "--data photos"), ("pretrain", "photos")),
    Row("an archive in place of a folder", lambda tmp: (tmp / "photos.zip").write_bytes(b"PK") and None,
        ("photos.zip", "unpack"), ("pretrain", "--data", "photos.zip")),
    Row("a model for other programs", lambda tmp: (tmp / "model.onnx").write_bytes(b"x") and None,
        ("model.onnx", "folder"), ("embed", "model.onnx", "--data", "digits", "--out", "f.npz")),
    Row("JSON onto a full disk", flags(),
        ("--json /dev/full", "No space left on device", "standard output"), ("recipes", "--json", "/dev/full")),
    Row("JSON into no folder after hours of training", flags("--json", "no/x.json"),
        ("--json no/x.json", "standard output")),
]  # fmt: skip


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A run of two steps on two class folders, which are gone."""
    root = tmp_path_factory.mktemp("finished")
    before = Path.cwd()
    os.chdir(root)
    try:
        class_folders(root / "data")
        from supancl.cli import main

        assert main(["pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "run", "--quiet"]) == 0
    finally:
        os.chdir(before)
    # the copies of it look for data beside themselves
    edit_recipe(lambda content: content["recipe"]["data"].update(source="data"))(root / "run")
    return root / "run"


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("row", [*NAMES, *DATA, *FILES], ids=lambda row: row.what)
def test_bad_input_is_one_line_exit_code_2_and_changes_nothing(row, place, finished, capsys):
    if row in FILES:
        shutil.copytree(finished, place / "run")
    if row.command == RESUME:
        class_folders(place / "data")
    more = row.make(place)
    before = contents(place)
    said = supancl(capsys, *row.command, *(more if isinstance(more, tuple) else ()))
    assert_refused(said, *row.nouns)
    assert contents(place) == before


def test_debug_shows_where_it_happened_and_still_ends_with_the_line(place, capsys):
    said = supancl(capsys, *PRETRAIN, "--data", "no/where", "--debug")
    assert said.code == 2
    assert said.err.startswith("Traceback")
    assert_mentions(said.err.splitlines()[-1], "supancl", "no data", "no/where", "path")


# --- unreadable images, skipped only when asked for -------------------------------------------------------------------


def test_skipped_images_are_listed_and_counted_in_recipe_json(place, capsys):
    class_folders(place / "data", each=8)
    bad = [place / "data" / "cat" / "1.png", place / "data" / "dog" / "2.png"]
    bad[0].write_text("x")
    torn(bad[1])
    said = supancl(capsys, *PRETRAIN, "--data", "data", "--skip-bad-images")
    assert said.code == 0
    assert_one_line(said.err, "warning", "2 unreadable images", "data/cat/1.png", "data/dog/2.png")
    kept = json.loads((place / "out" / "recipe.json").read_text())
    assert kept["data"]["skipped"] == 2
    assert kept["data"]["train"] + kept["data"]["held_out"] == 14
    assert kept["recipe"]["data"]["skip_bad_images"] is True


def test_without_bad_images_none_is_counted(finished):
    assert json.loads((finished / "recipe.json").read_text())["data"]["skipped"] == 0


def test_judging_skips_bad_images_only_when_asked_for_and_says_so(place, finished, capsys):
    shutil.copytree(finished, place / "run")
    class_folders(place / "other", each=8, seed=1000)
    (place / "other" / "cat" / "1.png").write_text("x")
    others = ("--data", "other")
    for command in (("evaluate", "knn", "run", *others), ("embed", "run", *others, "--out", "f.npz")):
        assert supancl(capsys, *command).code == 2
        said = supancl(capsys, *command, "--skip-bad-images", "--json", "result.json", "--device", "cpu")
        assert said.code == 0
        assert_one_line(said.err, "warning", "1 unreadable image", "other/cat/1.png")
        assert json.loads((place / "result.json").read_text())["skipped"] == 1
    with np.load(place / "f.npz") as written:
        assert len(written["train_names"]) == 15
        assert "other/cat/1.png" not in written["train_names"]


# --- no permission ----------------------------------------------------------------------------------------------------

AS_NOBODY = """
import contextlib, io, json, os, sys
import supancl.cli, supancl.cli.embed, supancl.cli.evaluate, supancl.cli.pretrain
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


def test_without_permission_the_place_is_named(finished, tmp_path, forks):
    (tmp_path / "nobody.py").write_text(AS_NOBODY)
    root = Path(tempfile.mkdtemp())  # a folder of pytest's own is closed to other users
    try:
        expected = closed_places(root, finished)
        before = contents(root)
        root.chmod(0o755)
        modes = {
            "open": 0o777,
            "closed": 0o555,
            "data/cat/deep": 0,
            "secret": 0,
            "secret.npz": 0,
            "secret.csv": 0,
            "mine.json": 0o444,
            "run/encoder.safetensors": 0,
        }
        for name, mode in modes.items():
            (root / name).chmod(mode)
        asked = subprocess.run(
            ["python", str(tmp_path / "nobody.py")], input=json.dumps([command for command, _ in expected]), cwd=root,
            capture_output=True, text=True, env={**os.environ, **forks, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        for (_, nouns), (code, errors) in zip(expected, json.loads(asked.stdout), strict=True):
            assert_refused(Said(code, "", errors), *nouns)
        for name in modes:
            (root / name).chmod(0o755)
        assert contents(root) == before
    finally:
        shutil.rmtree(root)


def closed_places(root: Path, finished: Path) -> list[tuple[list[str], tuple[str, ...]]]:
    """Commands that lead to a place that is closed, with what each must name."""
    class_folders(root / "good")
    class_folders(root / "data")
    picture(root / "data" / "cat" / "deep" / "0.png")
    for folder in ("closed", "secret"):
        (root / folder).mkdir()
    archive(root / "secret.npz")
    table(root / "secret.csv", "path,label")
    (root / "mine.json").write_text("mine")
    shutil.copytree(finished, root / "run")
    (root / "open").mkdir()
    base = ["pretrain", "digits.supsiam", *TINY, "--out", "open/run"]
    return [
        ([*base, "--data", "good", "--out", "closed"],
         ("closed", "Permission denied", "--out")),
        ([*base, "--data", "good", "--out", "closed/run"],
         ("closed/run", "Permission denied", "--out")),
        ([*base, "--data", "secret"], ("secret", "Permission denied", "permissions")),
        ([*base, "--data", "secret/deeper"], ("secret/deeper", "Permission denied", "permissions")),
        ([*base, "--data", "data"], ("data/cat/deep", "Permission denied", "permissions")),
        ([*base, "--data", "secret.csv"], ("secret.csv", "Permission denied", "permissions")),
        ([*base, "--data", "secret.npz"],
         ("secret.npz", "Permission denied", "numpy.savez")),
        (["evaluate", "knn", "run", "--data", "good"],
         ("run/encoder.safetensors", "Permission denied", "permissions")),
        ([*base, "--data", "good", "--init", "run/encoder.safetensors", "--out", "secret/x"],
         ("secret/x", "Permission denied", "--out")),
        ([*base, "--data", "good", "--init", "secret/w.pt", "--out", "run/x"],
         ("run/x", "Permission denied", "--out")),
        (["recipes", "--json", "mine.json"],
         ("--json mine.json", "Permission denied", "standard output")),
        (["recipes", "--json", "closed/x.json"],
         ("--json closed/x.json", "Permission denied", "standard output")),
    ]  # fmt: skip


# --- a full disk ------------------------------------------------------------------------------------------------------


def full(path: Path, monkeypatch) -> None:
    """The next time that `path` is written, its temporary file meets a disk without room."""
    create = writing.create_new

    def create_on_full_disk(created: Path) -> None:
        create(created)
        if created.absolute() == temporary_path(path):
            monkeypatch.setattr(writing, "create_new", create)
            created.unlink()
            created.symlink_to("/dev/full")

    monkeypatch.setattr(writing, "create_new", create_on_full_disk)


def test_a_disk_full_before_the_first_step_leaves_nothing(place, monkeypatch, capsys):
    class_folders(place / "data")
    monkeypatch.setattr(
        RunFolder, "remove_temporary_files", lambda self: None
    )  # it would remove what stands for the full disk
    (place / "out").mkdir()
    before = contents(place)
    full(place / "out" / "recipe.json", monkeypatch)
    said = supancl(capsys, *PRETRAIN, "--data", "data")
    assert_refused(said, "out/recipe.json", "No space left on device", "--resume", "--out")
    assert contents(place) == before


def test_a_disk_full_at_a_checkpoint_keeps_the_one_before_and_the_run_can_go_on(place, monkeypatch, capsys):
    class_folders(place / "data")
    command = (*PRETRAIN, "--data", "data", "--epochs", "2")
    monkeypatch.setattr(
        RunFolder, "remove_temporary_files", lambda self: None
    )  # it would remove what stands for the full disk
    full(place / "out" / "checkpoints" / "step-000000004.pt", monkeypatch)
    said = supancl(capsys, *command)
    assert_refused(said, "out/checkpoints/step-000000004.pt", "No space left on device", "--resume", "--out")
    left = sorted(path.name for path in (place / "out" / "checkpoints").iterdir())
    assert left == ["step-000000002.pt"]
    assert supancl(capsys, "pretrain", "--resume", "--out", "out").code == 0
    assert newest(place / "out").name == "step-000000004.pt"


def test_a_disk_full_at_the_encoder_keeps_the_one_before(place, finished, monkeypatch, capsys):
    shutil.copytree(finished, place / "run")
    class_folders(place / "data")
    shutil.rmtree(place / "run" / "checkpoints")
    (place / "run" / "finished.json").unlink()
    before = (place / "run" / "encoder.safetensors").read_bytes()

    def no_room(*arguments, **options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("supancl.weights.encoder_file.save_file", no_room)
    said = supancl(capsys, *RESUME)
    assert_refused(said, "run/encoder.safetensors", "No space left on device", "--resume", "--out")
    assert (place / "run" / "encoder.safetensors").read_bytes() == before


def test_a_disk_found_full_when_synced_keeps_the_file_before(place, finished, monkeypatch, capsys):
    shutil.copytree(finished, place / "run")
    class_folders(place / "data")
    assert supancl(capsys, "evaluate", "knn", "run", "--device", "cpu").code == 0
    before = contents(place)

    def no_room(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    said = supancl(capsys, "evaluate", "knn", "run", "--device", "cpu", "--quiet")
    assert_refused(said, "run/evaluate/knn-k1.json", "No space left on device", "--resume", "--out")
    assert contents(place) == before


# numpy 2.0 leaves its archive to the garbage collector, which then complains
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_full_while_features_are_written_leaves_no_file(place, finished, monkeypatch, capsys):
    shutil.copytree(finished, place / "run")
    class_folders(place / "data")
    before = contents(place)
    full(place / "f.npz", monkeypatch)
    said = supancl(capsys, "embed", "run", "--data", "data", "--out", "f.npz", "--device", "cpu")
    assert_refused(said, "f.npz", "No space left on device", "--resume", "--out")
    assert contents(place) == before


def test_a_disk_full_under_the_metrics_names_the_command_that_continues(place):
    folder = RunFolder(place / "run")
    folder.create()
    log = MetricsLog(folder, None)
    log.file.close()
    log.file = open("/dev/full", "a")  # noqa: SIM115 - closed by close()
    with pytest.raises(checkpoint.BadInput) as caught:
        log.write({"kind": "train", "step": 1, "loss": 0.5})
    log.close()
    assert_refused(
        str(caught.value), folder.metrics_file, "No space left on device", "--resume", f"--out {folder.path}"
    )
