"""Bad input: one line that names the thing, the place and the way out; exit code 2; nothing written or changed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from supancl.files import digest, temporary_of
from supancl.weights import checkpoint
from supancl.weights.metrics_log import MetricsLog
from supancl.weights.run_folder import RunFolder
from tests.files import TINY, archive, class_folders, contents, noise, picture, supancl, table

PRETRAIN = ("pretrain", "digits.supsiam", *TINY, "--out", "out")
RESUME = ("pretrain", "--resume", "--out", "run")


class Row(NamedTuple):
    """One case. `make` fills the working folder and may give further arguments, or the whole command line."""

    what: str
    make: Callable[[Path], object]
    line: str | re.Pattern[str]
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
        "unknown command 'pretran'; did you mean 'pretrain'? (see supancl --help)", ("pretran", "digits.supsiam")),
    Row("no command but a flag", flags(), "name one of alpha, data, detect, embed, "
        "evaluate, import, paper, pretrain, recipes (see supancl --help)",
        ("--quiet",)),
    Row("a protocol that is not there", flags(),
        "unknown command 'kn'; did you mean 'knn'? (see supancl evaluate --help)", ("evaluate", "kn", "run")),
    Row("a flag that is not there", flags("--epoch-s", "3"),
        "unrecognized arguments: --epoch-s 3; did you mean --epochs? (see supancl pretrain --help)"),
    Row("an argument of two lines", flags("--epoch-s=1\n2"),
        "unrecognized arguments: --epoch-s=1 2; did you mean --epochs? (see supancl pretrain --help)"),
    Row("a recipe that is not there", flags(), "unknown recipe 'cifar10.supsam'; did you mean 'cifar10.supsiam'?",
        ("pretrain", "cifar10.supsam", "--out", "out")),
    Row("a method for a recipe", flags(),
        "unknown recipe 'supsiam'; did you mean imagenet100.supsiam, cifar10.supsiam, cifar100.supsiam, toy.supsiam "
        "or digits.supsiam?", ("pretrain", "supsiam")),
    Row("a recipe like no other", flags(),
        re.compile(r"unknown recipe 'qqqq'; known: .*vit\.METHOD, .*digits\.METHOD.*"), ("pretrain", "qqqq")),
    Row("no recipe", flags(), "name a recipe (supancl recipes lists them), or --resume with --out DIR", ("pretrain",)),
    Row("a recipe to show that is not there", flags(),
        "unknown recipe 'digit.supsiam'; did you mean 'digits.supsiam'?", ("recipes", "digit.supsiam")),
    Row("a field that is not there", flags("--set", "loss.alpa=1"),
        "unknown field 'loss.alpa'; did you mean 'loss.alpha'?"),
    Row("a field without its section", flags("--set", "alpha=0.3"),
        "unknown field 'alpha'; did you mean 'loss.alpha'?"),
    Row("a field of two sections", flags("--set", "momentum=0.3"),
        "unknown field 'momentum'; did you mean 'branches.momentum' or 'optimizer.momentum'?"),
    Row("a field of a section that is off", flags("--set", "views.local.sise=8"),
        "unknown field 'views.local.sise'; did you mean 'views.local.size'?"),
    Row("a field of another loss", flags("--set", "loss.temperature=1"), "unknown field 'loss.temperature'; known: "
        "loss.alpha, loss.form, loss.kind, loss.samples (supancl recipes digits.supsiam lists all)"),
    Row("a field like no other", flags("--set", "qqq=1"),
        "unknown field 'qqq'; known: data.*, views.*, encoder.*, heads.*, branches.*, pool.*, loss.*, optimizer.*, "
        "schedule.*, train.* (supancl recipes digits.supsiam lists all)"),
    Row("a section that is not there", flags("--set", "los.alpha=1"),
        "unknown field 'los.alpha'; did you mean 'loss.alpha'?"),
    Row("a section as a field", flags("--set", "loss=1"),
        "loss is a section; set one of its fields, such as loss.samples"),
    Row("a field below a field", flags("--set", "loss.alpha.x=1"),
        "loss.alpha has no fields, so loss.alpha.x cannot be set"),
    Row("the name of the method", flags("--set", "method=byol"),
        "method cannot be set; choose another recipe instead (supancl recipes)"),
    Row("a field without a value", flags("--set", "loss.alpha"),
        "--set loss.alpha: wanted FIELD=VALUE, such as loss.alpha=0.3 (see supancl pretrain --help)"),
    Row("alpha above 1", flags("--set", "loss.alpha=1.5"), "loss.alpha = 1.5: must lie in [0, 1]"),
    Row("alpha below 0", flags("--set", "loss.alpha=-0.1"), "loss.alpha = -0.1: must lie in [0, 1]"),
    Row("alpha that is no number", flags("--set", "loss.alpha=half"), "loss.alpha = 'half': must be float"),
    Row("alpha that is not finite", flags("--set", "loss.alpha=NaN"), "loss.alpha = nan: must be a finite number"),
    Row("M below 1", flags("--set", "loss.samples=0"), "loss.samples = 0: must be at least 1"),
    Row("M of prototypes", flags("--set", "loss.samples=4", "--set", "pool.kind=prototypes"),
        "loss.samples = 4 has no effect with pool.kind = 'prototypes', of which no M targets can be drawn; set "
        "loss.samples=null, or pool.kind=queue or class-queues; one call, or one command, may set both"),
    Row("M without a pool", flags("--set", "pool.kind=none", "--set", "loss.samples=1"),
        "loss.samples = 1 has no effect with pool.kind = 'none', of which no M targets can be drawn; set "
        "loss.samples=null, or pool.kind=queue or class-queues; one call, or one command, may set both"),
    Row("a pool of none", flags("--set", "pool.size=0"), "pool.size = 0: must be at least 1"),
    Row("a pool of no kind", flags("--set", "pool.kind=bag"),
        "pool.kind = 'bag': must be one of none, queue, class-queues, prototypes"),
    Row("no epochs", flags("--epochs", "0"), "train.epochs = 0: must be at least 1"),
    Row("half an epoch", flags("--epochs", "0.5"), "train.epochs = 0.5: must be a whole number"),
    Row("epochs in words", flags("--epochs", "ten"), "train.epochs = 'ten': must be a whole number"),
    Row("epochs beyond a lifetime", flags("--epochs", "1e9", "--batch-size", "128"),
        "train.epochs = 1000000000 of 10 steps each are 10,000,000,000 steps, more than 1,000,000,000; "
        "use --epochs 100000000 or less"),
    Row("a predictor of another width than the projector", flags("--set", "heads.predictor.out=9"),
        "heads.predictor.out = 9 differs from heads.projector.out = 256, and a prediction is compared with a "
        "projection; set heads.projector.out alone, the predictor follows"),
    Row("a batch of none", flags("--batch-size", "0"), "train.batch_size = 0: must be at least 1"),
    Row("a batch of one", flags("--batch-size", "1"),
        "train.batch_size = 1 leaves fewer than 2 images a micro-batch; batch norm needs 2"),
    Row("a batch that does not divide", flags("--accumulate", "3"),
        "train.batch_size = 4 does not divide into train.accumulate = 3 micro-batches"),
    Row("a seed below 0", flags("--seed", "-1"), "train.seed = -1: must lie in [0, 9.22337e+18]"),
    Row("a seed too large", flags("--seed", "9" * 23), f"train.seed = {'9' * 23}: must lie in [0, 9.22337e+18]"),
    Row("a device that is not there", flags("--device", "tpu"),
        "train.device = 'tpu': must be one of auto, cpu, cuda"),
    Row("too much held out", flags("--set", "data.holdout=0.95"), "data.holdout = 0.95: must lie in [0, 0.9]"),
    Row("classes to leave out that are no list", flags("--set", "data.leave_out=cat"),
        "data.leave_out = 'cat': must be a list, such as [1, 2]"),
    Row("a compat that is not there", flags("--compat", "papr"),
        re.compile(r"argument --compat: invalid choice: 'papr' \(choose from .*paper.*released-code.*\) "
                   r"\(see supancl pretrain --help\)")),
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


SUFFIX_LIST = ".avif, .bmp, .gif, .jfif, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp"
DATA = [
    Row("no data at all", flags(),
        "this recipe brings no data; name some: --data FOLDER, --data FILE.npz, --data FILE.csv",
        ("pretrain", "imagenet100.supsiam", "--out", "out")),
    Row("a path that is not there", flags("--data", "no/where"), "no data at 'no/where'; check the path"),
    Row("a file that is not there", flags("--data", "nowhere.npz"), "no data at 'nowhere.npz'; check the path"),
    Row("a name that is not there", flags("--data", "digit"), "no data at 'digit'; did you mean 'digits'?"),
    Row("a name too long to be one", flags("--data", "x" * 300),
        f"{'x' * 300}: File name too long; check the path and its permissions"),
    Row("a file of another kind", data(of_bytes("data.txt", b"x")),
        "data.txt: not a source; give a folder of images, a .npz, a .csv (path,label[,split]), .tar shards, "
        "torchvision:NAME@ROOT or hf:NAME"),
    Row("an empty folder", data(lambda tmp: (tmp / "data").mkdir()),
        f"data: no image in it; wanted class folders with {SUFFIX_LIST} files"),
    Row("a class folder with no image", data(with_classes(lambda root: (root / "bird").mkdir())),
        "class folder data/bird has no image; fill it or remove it"),
    Row("a class folder with no image and bad ones skipped",
        with_flags(with_classes(lambda root: (root / "bird").mkdir()), "--skip-bad-images"),
        "class folder data/bird has no image; fill it or remove it"),
    Row("a class folder with a text only",
        data(with_classes(lambda root: (root / "bird").mkdir() or (root / "bird" / "a.txt").write_text("x"))),
        "class folder data/bird has no image; fill it or remove it"),
    Row("one class only", data(with_classes(classes=("cat",))),
        "data: only one class, 'cat', has training images; supsiam needs two, or take simsiam or byol"),
    Row("a folder within a folder", data(lambda tmp: class_folders(tmp / "data" / "photos") and None),
        "data: only one class, 'photos', has training images; supsiam needs two, or take simsiam or byol "
        "(data: the only class is photos, which has 2 folders in it, such as cat; for those as classes, give "
        "data/photos)"),
    Row("one class with labels", data(with_classes(lambda root: (root / "dog").rename(root / "unlabelled"))),
        "data: only one class, 'cat', has training images; supsiam needs two, or take simsiam or byol"),
    Row("no label anywhere", data(lambda tmp: [picture(tmp / "data" / f"{i}.png") for i in range(20)] and None),
        "data: no training image has a label, which supsiam needs; put images into class folders, "
        "or take simsiam or byol"),
    Row("test/ without train/", data(splits("test")),
        "data has test/ but no train/; to use test/ as the data, give data/test"),
    Row("two folders for one split", data(splits("train", "trainval")),
        "data has both train/ and trainval/ for train; keep one of them"),
    Row("a truncated image", data(with_classes(lambda root: torn(root / "dog" / "3.png"))),
        re.compile(r"data/dog/3\.png: cannot be read as an image \(.*truncated.*\); mend or remove it, "
                   r"or pass --skip-bad-images to go on without")),
    Row("a file that is no image", data(with_classes(lambda root: (root / "cat" / "x.png").write_text("x"))),
        "data/cat/x.png: cannot be read as an image (no known image format); mend or remove it, "
        "or pass --skip-bad-images to go on without"),
    Row("several files that are no images",
        data(with_classes(*[lambda root, i=i: (root / "cat" / f"{i}.png").write_text("x") for i in range(3)])),
        "data/cat/0.png: cannot be read as an image (no known image format) and 2 more; mend or remove it, "
        "or pass --skip-bad-images to go on without"),
    Row("no image that can be read",
        with_flags(lambda tmp: (tmp / "data").mkdir() or ((tmp / "data" / "x.png").write_text("x") and None),
                   "--skip-bad-images"),
        "data: no training image could be read, such as data/x.png; mend the files, or what lists them"),
    Row("a batch larger than the data", with_flags(with_classes(), "--batch-size", "64"),
        "data: 8 training images are fewer than a batch of 64; use --batch-size 8 or less"),
    Row("too few images to hold any out", data(lambda tmp: picture(tmp / "data" / "cat" / "0.png") and None),
        "data: 1 image is too few to hold 25% of each class out; add images or a val/ folder "
        "(for training alone: --set data.holdout=0)"),
    Row("a class to leave out that is not there", with_flags(with_classes(), "--set", 'data.leave_out=["dgo"]'),
        "data.leave_out names class 'dgo', which the data do not have; did you mean 'dog'?"),
    Row("every class left out", with_flags(with_classes(), "--set", 'data.leave_out=["cat", "dog"]'),
        "data: no image is left to train on; look at data.leave_out and data.holdout"),
    Row("vectors for a recipe of images", flags("--data", "toy"),
        "toy holds vectors, recipe digits.supsiam takes images"),
    Row("images for a recipe of vectors", flags("--data", "digits"),
        "digits holds images, recipe toy.supsiam takes vectors (toy)", ("pretrain", "toy.supsiam", "--out", "out")),
    Row("images for an encoder of vectors", flags("--set", "encoder.name=linear"),
        "digits holds images, encoder 'linear' takes vectors (toy); --set encoder.name=cnn"),
    Row("vectors for an encoder of images", flags(), "toy holds vectors, encoder 'cnn' takes images; choose linear",
        ("pretrain", "toy.supsiam", "--set", "encoder.name=cnn", "--out", "out")),
    # archives
    Row("an archive without the keys", data(of_arrays(train_images=None, train_labels=None, images=noise(4, 8, 8))),
        "data.npz: no train_images; it has images, wanted train_images and train_labels"),
    Row("an empty archive", data(of_arrays(train_images=None, train_labels=None)),
        "data.npz: no train_images; it has nothing, wanted train_images and train_labels"),
    Row("an archive without labels", data(of_arrays(train_labels=None)),
        "data.npz: train_images has no train_labels; store -1 for images without a label"),
    Row("an archive with test images but no labels of theirs", data(of_arrays(test_images=noise(4, 8, 8))),
        "data.npz: test_images has no test_labels; store -1 for images without a label"),
    Row("labels that are not integers", data(of_arrays(train_labels=np.arange(20) / 2)),
        "data.npz: train_labels holds float64; labels must be integers, -1 for unlabelled"),
    Row("labels that are words", data(of_arrays(train_labels=["cat", "dog"] * 10)),
        "data.npz: train_labels holds <U3; labels must be integers, -1 for unlabelled"),
    Row("labels of another number", data(of_arrays(train_labels=np.arange(5))),
        "data.npz: train_labels has shape (5,) for 20 images; wanted (20,)"),
    Row("a label below -1", data(of_arrays(train_labels=np.arange(20) - 7)),
        "data.npz: train_labels holds -7; labels are 0, 1, ... and -1 for unlabelled"),
    Row("a label that is no class number", data(of_arrays(train_labels=np.arange(20) * 10**11)),
        "data.npz: train_labels holds 1900000000000; labels are class numbers 0, 1, ... below 1000000, "
        "and -1 for unlabelled"),
    Row("a label without a name", data(of_arrays(class_names=["cat"])),
        "data.npz: label 1 has no name; class_names lists 1"),
    Row("class names that are numbers", data(of_arrays(class_names=[1, 2])),
        "data.npz: class_names has shape (2,) of int64; wanted a list of strings"),
    Row("one name for all classes", data(of_arrays(class_names="cat")),
        "data.npz: class_names has shape () of <U3; wanted a list of strings"),
    Row("images of different channel counts",
        data(of_arrays(test_images=noise(4, 8, 8, 3), test_labels=np.arange(4) % 2)),
        "data.npz: images have different channel counts (train 1, test 3); convert them to one"),
    Row("images of four channels", data(of_arrays(train_images=noise(20, 8, 8, 4))),
        "data.npz: train_images has shape (20, 8, 8, 4); wanted (N, H, W), (N, H, W, 1) or (N, H, W, 3)"),
    Row("images that are fractions", data(of_arrays(train_images=noise(20, 8, 8) / 255)),
        "data.npz: train_images holds float64; images must be uint8, 0 to 255"),
    Row("images without pixels", data(of_arrays(train_images=noise(20, 0, 8))),
        "data.npz: train_images is empty (shape (20, 0, 8, 1)); give at least one image of one pixel"),
    Row("an archive of pickled objects", data(of_arrays(train_labels=np.array([None] * 20))),
        "data.npz: cannot be read (it holds pickled objects, which are never executed here); "
        "save it with numpy.savez and plain arrays"),
    Row("a truncated archive", data(lambda tmp: torn(archive(tmp / "data.npz"))),
        re.compile(r"data\.npz: cannot be read \(.+\); save it with numpy\.savez and plain arrays")),
    Row("an archive with bad bytes", data(bad_bytes),
        re.compile(r"data\.npz: cannot be read \(.+\); save it with numpy\.savez and plain arrays")),
    Row("an empty file as an archive", data(of_bytes("data.npz", b"")),
        re.compile(r"data\.npz: cannot be read \(.+\); save it with numpy\.savez and plain arrays")),
    Row("a single array as an archive", data(one_array),
        "data.npz: cannot be read (it is a single array, not an archive); save it with numpy.savez and plain arrays"),
    # tables
    Row("a table without labels", data(of_lines("path,split", "cat/0.png,train")),
        "data.csv: no column 'label'; the first line has path, split, wanted path,label[,split]"),
    Row("a table without paths", data(of_lines("file,label", "cat/0.png,cat")),
        "data.csv: no column 'path'; the first line has file, label, wanted path,label[,split]"),
    Row("an empty table", data(of_bytes("data.csv", b"")),
        "data.csv: no column 'label'; the first line has nothing, wanted path,label[,split]"),
    Row("a table of no images", data(of_lines("path,label")),
        "data.csv: no image is listed; each line below the first is path,label[,split]"),
    Row("a table with a file that is not there", data(of_lines("path,label", "cat/0.png,cat", "cat/7.png,cat")),
        "data.csv line 3: no file 'cat/7.png' (looked in .); mend the path, remove the line, or pass "
        "--skip-bad-images"),
    Row("a table with a folder for a file", data(of_lines("path,label", "cat,cat")),
        "data.csv line 2: no file 'cat' (looked in .); mend the path, remove the line, or pass --skip-bad-images"),
    Row("a table with a row without a path", data(of_lines("path,label", ",cat")),
        "data.csv line 2: no path; wanted path,label[,split]"),
    Row("a table with a split that is none", data(of_lines("path,label,split", "cat/0.png,cat,tests")),
        "data.csv line 2: split 'tests'; wanted train, val or test"),
    Row("a table without training rows", data(of_lines("path,label,split", "cat/0.png,cat,test")),
        "data.csv: no row has split 'train'; give it to some, or drop the column"),
    Row("a table in another encoding", data(of_bytes("data.csv", "path,label\nä.png,a\n".encode("latin-1"))),
        re.compile(r"data\.csv: not a csv file in UTF-8 \('utf-8' codec can't decode byte 0xe4 .*\); save it in that "
                   r"encoding")),
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
    """The only checkpoint, changed, with a checksum that fits."""

    def step(run: Path) -> None:
        path = newest(run)
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)
        path.with_suffix(".sha256").write_text(digest(path))

    return step


def without_checksum(content: bytes) -> Callable[[Path], None]:
    def step(run: Path) -> None:
        newest(run).write_bytes(content)
        newest(run).with_suffix(".sha256").unlink()

    return step


def edit_recipe(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def step(run: Path) -> None:
        content = json.loads((run / "recipe.json").read_text())
        change(content)
        (run / "recipe.json").write_text(json.dumps(content))

    return step


SPEC = {"name": "cnn", "channels": 1, "size": 16, "width": 8, "mean": [0.5], "std": [0.5]}
KNN = ("evaluate", "knn")
ITS_OWN = "a run continues with its own settings; to change them, start another run with"
SOUND = "run/checkpoints/step-000000002.pt"
AGAIN = "bring back the file as the run wrote it, or choose another --out"
FILES = [
    Row("an encoder that is not there", with_flags(with_classes(), "--set", "encoder.name=resnet5"),
        "unknown encoder 'resnet5'; did you mean 'resnet50'?"),
    Row("an init that is not there", init(lambda tmp: "nowhere.pt"),
        "no file nowhere.pt; give a run folder or an encoder.safetensors"),
    Row("an init folder without an encoder", init(lambda tmp: "data"),
        "data is no run folder: no encoder.safetensors in it; give a run folder or an encoder.safetensors"),
    Row("an init that is empty", init(of_bytes("w.pt", b"")),
        "checkpoint w.pt is damaged (it is no file of tensors); copy it again, or give another --init"),
    Row("an init that is text", init(of_bytes("w.pt", b"weights")),
        "checkpoint w.pt is damaged (it is no file of tensors); copy it again, or give another --init"),
    Row("an init cut short", init(lambda tmp: torn(saved({"a": torch.zeros(99)})(tmp))),
        re.compile(r"checkpoint w\.pt is damaged \(.+\); copy it again, or give another --init")),
    Row("an init that is a list", init(saved([1, 2])),
        "w.pt: not a checkpoint (it holds a list); give a state dict"),
    Row("an init whose state_dict is none", init(saved({"state_dict": 3}, "w.ckpt")),
        "w.ckpt: its state_dict is of type int; give a dict of tensors by name"),
    Row("an init of another architecture", init(saved({"state_dict": {"conv1.weight": torch.zeros(2)}}, "w.pth")),
        "w.pth has no tensor '0.weight', which encoder 'cnn' needs; is it another architecture?"),
    Row("an init of another width", init(saved({"0.weight": torch.zeros(4, 1, 3, 3)})),
        "w.pt: tensor '0.weight' is (4, 1, 3, 3), encoder 'cnn' has (2, 1, 3, 3); is it another architecture?"),
    Row("an init that is no safetensors", init(of_bytes("w.safetensors", b"weights")),
        re.compile(r"w\.safetensors: not a safetensors file \(.+\); copy it again, or where a run wrote it, .+")),
    Row("an init beside resume", with_run(flags("--init", "run")),
        "--init starts a run and --resume continues one; give one of them", RESUME),
    Row("an init beside resume of nothing", flags("--init", "run", "--resume"),
        "--init starts a run and --resume continues one; give one of them"),
    # a run folder
    Row("a folder that holds a run", with_flags(with_classes(), "--out", "run"),
        "run already holds a run; continue it with --resume, or choose another --out"),
    Row("resume of nothing", flags(), "nothing holds no run to continue; name a recipe to start one",
        ("pretrain", "--resume", "--out", "nothing")),
    Row("resume with another value", with_run(flags("--epochs", "7")),
        f"--epochs 7 differs from train.epochs = 1 in run/recipe.json; {ITS_OWN} --init run and another --out", RESUME),
    Row("resume with another encoder", with_run(flags("--set", "encoder.width=4")),
        f"--set encoder.width=4 differs from encoder.width = 8 in run/recipe.json; {ITS_OWN} another --out", RESUME),
    Row("resume with another field", with_run(flags("--set", "loss.alpha=0.9")),
        f"--set loss.alpha=0.9 differs from loss.alpha = 0.5 in run/recipe.json; {ITS_OWN} "
        "--init run and another --out", RESUME),
    Row("resume with a field that is not there", with_run(flags("--set", "loss.alhpa=0.9")),
        "unknown field 'loss.alhpa'; did you mean 'loss.alpha'?", RESUME),
    Row("resume with other data", with_run(flags("--data", "digits")),
        f'--data digits differs from data.source = "data" in run/recipe.json; {ITS_OWN} --init run and another --out',
        RESUME),
    Row("resume with another recipe", flags(),
        "run holds a run of digits.supsiam, not of digits.byol; choose another --out",
        ("pretrain", "digits.byol", "--resume", "--out", "run")),
    Row("resume with another compat", with_run(flags("--compat", "released-code")),
        "--compat released-code differs from 'paper' in run/recipe.json; a run continues with its own settings",
        RESUME),
    Row("a recipe.json that is no JSON", with_run(lambda run: (run / "recipe.json").write_text("{")),
        f"run/recipe.json: not a recipe.json of supancl; {AGAIN}", RESUME),
    Row("a recipe.json that is a list", with_run(lambda run: (run / "recipe.json").write_text("[1]") and None),
        f"run/recipe.json: not a recipe.json of supancl; {AGAIN}", RESUME),
    Row("a recipe.json nested without end",
        with_run(lambda run: (run / "recipe.json").write_text("[" * 10**5) and None),
        re.compile(rf"run/recipe\.json: .*recursion.*; {AGAIN}"), RESUME),
    Row("a recipe.json of bytes", with_run(lambda run: (run / "recipe.json").write_bytes(b"\xff\xfe") and None),
        "run holds no run (no readable recipe.json)", RESUME),
    Row("a recipe.json with a value out of range",
        with_run(edit_recipe(lambda content: content["recipe"]["loss"].update(alpha=2))),
        f"run/recipe.json: loss.alpha = 2.0: must lie in [0, 1]; {AGAIN}", RESUME),
    Row("a recipe.json with a field of its own",
        with_run(edit_recipe(lambda content: content["recipe"]["loss"].update(alfa=1))),
        f"run/recipe.json: unknown field loss.alfa; did you mean 'alpha'?; {AGAIN}", RESUME),
    Row("a checkpoint of another recipe", with_run(rewrite(lambda content: content.update(recipe="digits.byol"))),
        re.compile(r".*checkpoint.* is of recipe 'digits\.byol', this run is 'digits\.supsiam'.*"), RESUME),
    Row("a checkpoint with other tensors", with_run(rewrite(lambda content: content.update(branches={}))),
        re.compile(r".*checkpoint.* does not fit this run \(.*\); was it made with other settings\?"), RESUME),
    Row("a checkpoint without its parts", with_run(rewrite(lambda content: content.pop("optimizer"))),
        re.compile(r".*checkpoint.* does not fit this run \('optimizer'\); was it made with other settings\?"), RESUME),
    Row("a checkpoint of a later version", with_run(rewrite(lambda content: content.update(schema_version=99))),
        f"{SOUND} was written by a newer supancl (schema 99, known 1); upgrade", RESUME),
    Row("a checkpoint of a version that never was",
        with_run(rewrite(lambda content: content.update(schema_version=-3))),
        f"{SOUND} has schema -3, which no supancl has written; remove it, or name another --out", RESUME),
    Row("a checkpoint without a version", with_run(rewrite(lambda content: content.pop("schema_version"))),
        f"{SOUND}: not a checkpoint of supancl (no schema_version); remove it, or name another --out", RESUME),
    Row("a checkpoint with other bytes", with_run(lambda run: torn(newest(run)) and None),
        f"no sound checkpoint is left: checkpoint {SOUND} is damaged (its checksum differs); "
        "to start again at step 0, remove run/checkpoints", RESUME),
    Row("a checkpoint whose checksum is noise",
        with_run(lambda run: newest(run).with_suffix(".sha256").write_bytes(b"\xff\x00") and None),
        f"no sound checkpoint is left: checkpoint {SOUND} is damaged (its checksum differs); "
        "to start again at step 0, remove run/checkpoints", RESUME),
    Row("a checkpoint of noise without a checksum", with_run(without_checksum(b"noise")),
        f"no sound checkpoint is left: checkpoint {SOUND} is damaged (it is no file of tensors); "
        "to start again at step 0, remove run/checkpoints", RESUME),
    # encoders to judge
    Row("an encoder file that is not there", flags("nowhere"), "no file nowhere; give a run folder, an "
        "encoder.safetensors, a checkpoint, torchvision:NAME@FILE or timm:NAME@FILE", KNN),
    Row("a folder without an encoder", with_run(lambda run: (run / "encoder.safetensors").unlink() or ("run",)),
        "run holds no encoder.safetensors; has the run finished its first epoch?", KNN),
    Row("an encoder cut short", with_run(lambda run: torn(run / "encoder.safetensors"), flags("run")),
        re.compile(r"run/encoder\.safetensors: not a safetensors file \(.+\); copy it again, or where a run "
                   r"wrote it, have it written anew by going on with that run: --resume"), KNN),
    Row("an encoder without a description", lambda tmp: (str(described({"a": torch.zeros(1)})(tmp).name),),
        re.compile(r"e\.safetensors: no known format \(moco, .+\); its first tensors are a\. "
                   r"Name the architecture: torchvision:NAME@FILE or timm:NAME@FILE"), KNN),
    Row("an encoder with a broken description",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="1", encoder="{")(tmp).name,),
        "e.safetensors: no description of an encoder in it; was it written by supancl?", KNN),
    Row("an encoder of a later version",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="9", encoder="{}")(tmp).name,),
        "e.safetensors was written by a newer supancl (schema 9, known 1); upgrade", KNN),
    Row("an encoder of no known kind",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="1", encoder='{"name": "cnm"}')(tmp).name,),
        "e.safetensors: unknown encoder 'cnm'; did you mean 'cnn'? (if it is your own, pass the file that registers "
        "it: --plugin FILE, see docs/extending.md)", KNN),
    Row("an encoder without its tensors",
        lambda tmp: (described({"a": torch.zeros(1)}, schema_version="1", encoder=json.dumps(SPEC))(tmp).name,),
        "e.safetensors has no tensor '0.weight', which encoder 'cnn' needs; is it another architecture?", KNN),
    Row("an encoder file without data", flags("run/encoder.safetensors"),
        "run/encoder.safetensors is no run folder, so it brings no data; name some with --data", KNN),
    Row("a run whose data are gone", flags("run"), "no data at 'data'; check the path", KNN),
    Row("vectors for an encoder of images", flags("run", "--data", "toy"),
        "toy holds vectors, encoder 'cnn' takes images; name other --data", KNN),
    Row("data without labels to judge by",
        lambda tmp: [picture(tmp / "flat" / f"{i}.png") for i in range(12)] and ("run", "--data", "flat"),
        "flat: k-NN needs labelled images, both to compare with and to judge; there are 0 and 0; name labelled ones "
        "with --data", KNN),
    Row("one class to compare with", lambda tmp: class_folders(tmp / "one", ("cat",)) and ("run", "--data", "one"),
        "one: only class 'cat' among the images to compare with; k-NN needs at least two classes", KNN),
    Row("no neighbours", flags("run", "--k", "0"), "--k 0: must be at least 1", KNN),
    Row("a temperature of 0", flags("run", "--temperature", "0"), "--temperature 0: must be above 0", KNN),
    Row("features to a file of another kind", flags(), "--out f.txt: must end in .npz",
        ("embed", "run", "--data", "digits", "--out", "f.txt")),
    Row("features over a file that is there", lambda tmp: (tmp / "f.npz").write_text("mine") and None,
        "f.npz exists; remove it or choose another --out", ("embed", "run", "--data", "digits", "--out", "f.npz")),
    Row("features of data with bad images", with_classes(lambda root: (root / "cat" / "0.png").write_text("x")),
        "data/cat/0.png: cannot be read as an image (no known image format); mend or remove it, "
        "or pass --skip-bad-images to go on without", ("embed", "run", "--data", "data", "--out", "f.npz")),
    Row("features of vectors by an encoder of images", flags(),
        "toy holds vectors, encoder 'cnn' takes images; name other --data",
        ("embed", "run", "--data", "toy", "--out", "f.npz")),
    # places that cannot be written in
    Row("a run below a file", with_flags(with_classes(), "--out", "run/recipe.json/x"),
        "cannot write in run/recipe.json/x (Not a directory); choose another --out"),
    Row("a run in place of a file", with_flags(with_classes(), "--out", "run/recipe.json"),
        "cannot write in run/recipe.json (Not a directory); choose another --out"),
    Row("a run where nobody may write", with_flags(with_classes(), "--out", "/proc/x"),
        "cannot write in /proc/x (No such file or directory); choose another --out"),
    # places that are read as well
    Row("a run in its own data", with_flags(with_classes(), "--out", "data"),
        "data lies in data, whose folders are taken for classes, so data would be other data from then on; "
        "choose another --out"),
    Row("a run among the classes", with_flags(with_classes(), "--out", "data/runs/first"),
        "data/runs/first lies in data, whose folders are taken for classes, so data would be other data from then on; "
        "choose another --out"),
    Row("contact sheets among the classes", lambda tmp: class_folders(tmp / "data") and None,
        "data/sheets lies in data, whose folders are taken for classes, so data would be other data from then on; "
        "choose another --out", ("data", "show", "data", "--out", "data/sheets")),
    Row("features below a file", flags(), "cannot write in run/recipe.json (Not a directory); choose another --out",
        ("embed", "run", "--data", "digits", "--out", "run/recipe.json/f.npz")),
    Row("JSON into no folder", flags(),
        "--json no/x.json: cannot be written (there is no folder no); name another file, or - for standard output",
        ("recipes", "--json", "no/x.json")),
    Row("JSON over a folder", flags(), "--json run: cannot be written (it is a folder); name another file, "
        "or - for standard output", ("recipes", "--json", "run")),
    Row("JSON onto a full disk", flags(), "--json /dev/full: cannot be written (No space left on device); "
        "name another file, or - for standard output", ("recipes", "--json", "/dev/full")),
    Row("JSON into no folder after hours of training", flags("--json", "no/x.json"),
        "--json no/x.json: cannot be written (there is no folder no); name another file, or - for standard output"),
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
    kept = root / "run" / "recipe.json"
    kept.write_text(kept.read_text().replace(json.dumps(str(root / "data")), '"data"'))
    return root / "run"


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_line(said) -> str:
    """The error that a command told, without the command's name."""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert "Traceback" not in said.err + said.out
    name, _, line = lines[0].partition(": ")
    assert name == "supancl"
    return line


@pytest.mark.parametrize("row", [*NAMES, *DATA, *FILES], ids=lambda row: row.what)
def test_bad_input_is_one_line_exit_code_2_and_changes_nothing(row, place, finished, capsys):
    if row in FILES:
        shutil.copytree(finished, place / "run")
    if row.command == RESUME:
        class_folders(place / "data")
    more = row.make(place)
    before = contents(place)
    said = supancl(capsys, *row.command, *(more if isinstance(more, tuple) else ()))
    line = one_line(said)
    if isinstance(row.line, str):
        assert line == row.line
    else:
        assert row.line.fullmatch(line), line
    assert said.code == 2
    assert contents(place) == before


def test_debug_shows_where_it_happened_and_still_ends_with_the_line(place, capsys):
    said = supancl(capsys, *PRETRAIN, "--data", "no/where", "--debug")
    assert said.code == 2
    assert said.err.startswith("Traceback")
    assert said.err.splitlines()[-1] == "supancl: no data at 'no/where'; check the path"


# --- unreadable images, skipped only when asked for -------------------------------------------------------------------


def test_skipped_images_are_listed_and_counted_in_recipe_json(place, capsys):
    class_folders(place / "data", each=8)
    bad = [place / "data" / "cat" / "1.png", place / "data" / "dog" / "2.png"]
    bad[0].write_text("x")
    torn(bad[1])
    said = supancl(capsys, *PRETRAIN, "--data", "data", "--skip-bad-images")
    assert said.code == 0
    assert said.err == "warning: 2 unreadable images were skipped: data/cat/1.png, data/dog/2.png\n"
    kept = json.loads((place / "out" / "recipe.json").read_text())
    assert kept["data"]["skipped"] == 2
    assert kept["data"]["train"] + kept["data"]["held_out"] == 14
    assert kept["recipe"]["data"]["skip_bad_images"] is True


def test_without_bad_images_none_is_counted(finished):
    assert json.loads((finished / "recipe.json").read_text())["data"]["skipped"] == 0


def test_judging_skips_bad_images_only_when_asked_for_and_says_so(place, finished, capsys):
    shutil.copytree(finished, place / "run")
    class_folders(place / "other", each=8)
    (place / "other" / "cat" / "1.png").write_text("x")
    warning = "warning: 1 unreadable image was skipped: other/cat/1.png\n"
    others = ("--data", "other")
    for command in (("evaluate", "knn", "run", *others), ("embed", "run", *others, "--out", "f.npz")):
        assert supancl(capsys, *command).code == 2
        said = supancl(capsys, *command, "--skip-bad-images", "--json", "result.json", "--device", "cpu")
        assert (said.code, said.err) == (0, warning)
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


def test_without_permission_the_place_is_named(finished):
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
            [sys.executable, "-c", AS_NOBODY], input=json.dumps([command for command, _ in expected]), cwd=root,
            capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        told = json.loads(asked.stdout)
        assert told == [[2, f"supancl: {line}\n"] for _, line in expected]
        for name in modes:
            (root / name).chmod(0o755)
        assert contents(root) == before
    finally:
        shutil.rmtree(root)


def closed_places(root: Path, finished: Path) -> list[tuple[list[str], str]]:
    """Commands that lead to a place that is closed, with the line each must end in."""
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
    tail = "Permission denied; check the path and its permissions"
    return [
        ([*base, "--data", "good", "--out", "closed"],
         "cannot write in closed (Permission denied); choose another --out"),
        ([*base, "--data", "good", "--out", "closed/run"],
         "cannot write in closed/run (Permission denied); choose another --out"),
        ([*base, "--data", "secret"], f"secret: {tail}"),
        ([*base, "--data", "secret/deeper"], f"secret/deeper: {tail}"),
        ([*base, "--data", "data"], f"data/cat/deep: {tail}"),
        ([*base, "--data", "secret.csv"], f"secret.csv: {tail}"),
        ([*base, "--data", "secret.npz"],
         "secret.npz: cannot be read (Permission denied); save it with numpy.savez and plain arrays"),
        (["evaluate", "knn", "run", "--data", "good"],
         "run/encoder.safetensors: cannot be read (Permission denied); check its permissions"),
        ([*base, "--data", "good", "--init", "run/encoder.safetensors", "--out", "secret/x"],
         "cannot write in secret/x (Permission denied); choose another --out"),
        ([*base, "--data", "good", "--init", "secret/w.pt", "--out", "run/x"],
         "cannot write in run/x (Permission denied); choose another --out"),
        (["recipes", "--json", "mine.json"],
         "--json mine.json: cannot be written (Permission denied); name another file, or - for standard output"),
        (["recipes", "--json", "closed/x.json"],
         "--json closed/x.json: cannot be written (Permission denied); name another file, or - for standard output"),
    ]  # fmt: skip


# --- a full disk ------------------------------------------------------------------------------------------------------


def full(path: Path) -> None:
    """Whatever is written to the temporary file of `path` meets a disk without room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_of(path).symlink_to("/dev/full")


UNTOUCHED = "what was there before is untouched. Make room (a run then continues with --resume) or choose another --out"


def test_a_disk_full_before_the_first_step_leaves_nothing(place, monkeypatch, capsys):
    class_folders(place / "data")
    monkeypatch.setattr(
        RunFolder, "remove_temporary_files", lambda self: None
    )  # it would remove what stands for the full disk
    (place / "out").mkdir()
    before = contents(place)
    full(place / "out" / "recipe.json")
    said = supancl(capsys, *PRETRAIN, "--data", "data")
    assert one_line(said) == f"out/recipe.json cannot be written (No space left on device); {UNTOUCHED}"
    assert said.code == 2
    assert contents(place) == before


def test_a_disk_full_at_a_checkpoint_keeps_the_one_before_and_the_run_can_go_on(place, monkeypatch, capsys):
    class_folders(place / "data")
    command = (*PRETRAIN, "--data", "data", "--epochs", "2")
    monkeypatch.setattr(
        RunFolder, "remove_temporary_files", lambda self: None
    )  # it would remove what stands for the full disk
    full(place / "out" / "checkpoints" / "step-000000004.pt")
    said = supancl(capsys, *command)
    assert said.code == 2
    assert one_line(said) == (
        f"out/checkpoints/step-000000004.pt cannot be written (No space left on device); {UNTOUCHED}"
    )
    left = sorted(path.name for path in (place / "out" / "checkpoints").iterdir())
    assert left == ["step-000000002.pt", "step-000000002.sha256"]
    assert supancl(capsys, "pretrain", "--resume", "--out", "out").code == 0
    assert newest(place / "out").name == "step-000000004.pt"


def test_a_disk_full_at_the_encoder_keeps_the_one_before(place, finished, monkeypatch, capsys):
    shutil.copytree(finished, place / "run")
    class_folders(place / "data")
    shutil.rmtree(place / "run" / "checkpoints")
    before = (place / "run" / "encoder.safetensors").read_bytes()

    def no_room(*arguments, **options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("supancl.weights.encoder_file.save_file", no_room)
    said = supancl(capsys, *RESUME)
    assert one_line(said) == (
        "run/encoder.safetensors cannot be written (Error while serializing: I/O error: No space left on device "
        f"(os error 28)); {UNTOUCHED}"
    )
    assert said.code == 2
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
    assert one_line(said) == f"run/evaluate/knn-k8.json cannot be written (No space left on device); {UNTOUCHED}"
    assert said.code == 2
    assert contents(place) == before


# numpy 2.0 leaves its archive to the garbage collector, which then complains
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_full_while_features_are_written_leaves_no_file(place, finished, capsys):
    shutil.copytree(finished, place / "run")
    class_folders(place / "data")
    before = contents(place)
    full(place / "f.npz")
    said = supancl(capsys, "embed", "run", "--data", "data", "--out", "f.npz", "--device", "cpu")
    assert one_line(said) == f"f.npz cannot be written (No space left on device); {UNTOUCHED}"
    assert said.code == 2
    assert contents(place) == before


def test_a_disk_full_under_the_metrics_names_the_command_that_continues(place):
    folder = RunFolder(place / "run")
    folder.create()
    folder.metrics_file.symlink_to("/dev/full")
    log = MetricsLog(folder, None)
    with pytest.raises(checkpoint.BadInput) as caught:
        log.write({"kind": "train", "step": 1, "loss": 0.5})
    log.close()
    assert str(caught.value) == (
        f"{folder.metrics_file} cannot be written (No space left on device); make room, then continue with --resume "
        f"--out {folder.path}"
    )
