"""Benchmark data sets in small, in their official layouts; a builder returns {file: (official split, class)}."""

from __future__ import annotations

import csv
import hashlib
import json
import pickle
from collections.abc import Callable
from io import BytesIO
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from supancl.data.sources.folder import imagenet100_classes
from tests.helpers import noise

Expected = dict[str, tuple[str, str]]


class Tree:
    """Files below a root, every image another one."""

    def __init__(self, root: Path) -> None:
        self.root, self.seeds = root, count()
        self.expected: Expected = {}

    def image(self, name: str, split: str, label: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = BytesIO()
        kind = {".png": "PNG", ".ppm": "PPM"}.get(path.suffix.lower(), "JPEG")
        mode = "L" if kind == "PNG" else "RGB"  # Omniglot is black on white
        Image.fromarray(noise(6, 5, 3, seed=next(self.seeds))).convert(mode).save(encoded, kind)
        path.write_bytes(encoded.getvalue())
        self.expected[name] = (split, label)

    def text(self, name: str, lines: list[str]) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def mat(self, name: str, **lists: object) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        savemat(self.root / name, lists)


def dtd(root: Path) -> Expected:
    tree = Tree(root)
    for split in ("train", "val", "test"):
        names = [f"{label}/{label}_{split}{i}.jpg" for label in ("banded", "zigzagged", "dotted") for i in range(2)]
        tree.text(f"dtd/labels/{split}1.txt", names)
        tree.text(f"dtd/labels/{split}2.txt", ["never/read.jpg"])
        for name in names:
            tree.image(f"dtd/images/{name}", split, name.split("/")[0])
    return tree.expected


def food101(root: Path) -> Expected:
    tree = Tree(root)
    for split, official, each in (("train", "trainval", 10), ("test", "test", 2)):
        listed = {label: [f"{label}/{split}{i}" for i in range(each)] for label in ("waffles", "apple_pie")}
        tree.text(f"food-101/meta/{split}.json", [json.dumps(listed)])
        for label, names in listed.items():
            for name in names:
                tree.image(f"food-101/images/{name}.jpg", official, label)
    return tree.expected


def mit67(root: Path) -> Expected:
    tree = Tree(root)
    for split, official, each in (("Train", "trainval", 8), ("Test", "test", 2)):
        names = [f"{label}/{split}_{i}.jpg" for label in ("airport_inside", "winecellar") for i in range(each)]
        tree.text(f"mit67/{split}Images.txt", names)
        for name in names:
            tree.image(f"mit67/Images/{name}", official, name.split("/")[0])
    return tree.expected


def sun397(root: Path) -> Expected:
    tree = Tree(root)
    tree.text("SUN397/ClassName.txt", ["/a/abbey", "/u/underwater/coral_reef"])
    for split, official, each in (("Training", "trainval", 5), ("Testing", "test", 5)):
        names = [f"/{at}/sun_{split}{i}.jpg" for at in ("a/abbey", "u/underwater/coral_reef") for i in range(each)]
        tree.text(f"SUN397/{split}_01.txt", names)
        for name in names:
            tree.image(f"SUN397{name}", official, "abbey" if "abbey" in name else "underwater/coral_reef")
    return tree.expected


def caltech101(root: Path) -> Expected:
    tree = Tree(root)
    for label, each in (("Faces", 31), ("yin_yang", 35), ("BACKGROUND_Google", 3)):
        for i in range(each):
            tree.image(f"caltech101/101_ObjectCategories/{label}/image_{i + 1:04d}.jpg", "all", label)
    return {name: entry for name, entry in tree.expected.items() if entry[1] != "BACKGROUND_Google"}


def cub200(root: Path) -> Expected:
    tree = Tree(root)
    images, training = [], []
    for label in ("001.Black_footed_Albatross", "002.Laysan_Albatross"):
        for i in range(9):
            number = len(images) + 1
            images.append(f"{number} {label}/bird_{i}.jpg")
            training.append(f"{number} {int(i < 6)}")
            tree.image(f"CUB_200_2011/images/{label}/bird_{i}.jpg", "trainval" if i < 6 else "test", label)
    tree.text("CUB_200_2011/images.txt", images)
    tree.text("CUB_200_2011/train_test_split.txt", training)
    return tree.expected


def dogs(root: Path) -> Expected:
    tree = Tree(root)
    for split, official, each in (("train", "trainval", 10), ("test", "test", 3)):
        breeds = ("n02085620-Chihuahua", "n02115913-dhole")
        names = [f"{breed}/{split}_{i}.jpg" for breed in breeds for i in range(each)]
        cells = np.array(names, dtype=object)[:, None]
        labels = np.repeat([1, 2], each)[:, None].astype(np.uint8)
        tree.mat(f"StanfordDogs/{split}_list.mat", file_list=cells, labels=labels)
        for name in names:
            tree.image(f"StanfordDogs/Images/{name}", official, name.split("/")[0])
    return tree.expected


def flowers102(root: Path) -> Expected:
    tree = Tree(root)
    labels = np.array([1, 2, 3] * 6)
    ids = {"trnid": range(1, 7), "valid": range(7, 10), "tstid": range(10, 19)}
    tree.mat("flowers-102/imagelabels.mat", labels=labels[None])
    tree.mat("flowers-102/setid.mat", **{key: np.array(numbers)[None] for key, numbers in ids.items()})
    for key, split in (("trnid", "train"), ("valid", "val"), ("tstid", "test")):
        for number in ids[key]:
            tree.image(f"flowers-102/jpg/image_{number:05d}.jpg", split, f"{labels[number - 1]:03d}")
    return tree.expected


def pets(root: Path) -> Expected:
    tree = Tree(root)
    for split, each in (("trainval", 10), ("test", 3)):
        lines = []
        for label, name in enumerate(("Abyssinian", "american_bulldog", "Bengal"), start=1):
            for i in range(each):
                image = f"{name}_{i if split == 'trainval' else 100 + i}"
                lines.append(f"{image} {label} 1 1")
                tree.image(f"oxford-iiit-pet/images/{image}.jpg", split, name)
        tree.text(f"oxford-iiit-pet/annotations/{split}.txt", lines)
    return tree.expected


def aircraft(root: Path) -> Expected:
    tree = Tree(root)
    variants = ("707-320", "Boeing 717")
    tree.text("fgvc-aircraft-2013b/data/variants.txt", list(variants))
    number = 1000
    for split in ("train", "val", "test"):
        lines = []
        for variant in variants:
            for _ in range(2):
                number += 1
                lines.append(f"{number:07d} {variant}")
                tree.image(f"fgvc-aircraft-2013b/data/images/{number:07d}.jpg", split, variant)
        tree.text(f"fgvc-aircraft-2013b/data/images_variant_{split}.txt", lines)
    return tree.expected


def fungi(root: Path) -> Expected:
    """Two of the three categories have the same name."""
    tree = Tree(root)
    names = {0: "Agaricus altipes", 1: "Amanita crocea", 2: "Agaricus altipes"}
    for split in ("train", "val"):
        images, annotations = [], []
        for category, name in names.items():
            for i in range(3):
                file = f"images/{category}_{name}/{split}{i}.JPG"
                images.append({"id": f"{split}{category}{i}", "file_name": file})
                annotations.append({"image_id": f"{split}{category}{i}", "category_id": category})
                tree.image(f"fgvc_fungi/{file}", split, f"{category:04d}.{name}")
        categories = [{"id": category, "name": name} for category, name in names.items()]
        listed = {"images": images, "annotations": annotations[::-1], "categories": categories}
        tree.text(f"fgvc_fungi/{split}.json", [json.dumps(listed)])
    return tree.expected


def omniglot(root: Path) -> Expected:
    tree = Tree(root)
    for part, alphabets in (("images_background", ("Greek", "Latin")), ("images_evaluation", ("Tengwar",))):
        for alphabet in alphabets:
            for character in ("character01", "character02"):
                for i in range(3):
                    name = f"omniglot-py/{part}/{alphabet}/{character}/0001_{i:02d}.png"
                    tree.image(name, "all", f"{alphabet}/{character}")
    return tree.expected


def traffic_signs(root: Path) -> Expected:
    tree = Tree(root)
    rows = []
    for i, label in enumerate([16, 1, 38, 1, 16, 38]):
        rows.append([f"{i:05d}.ppm", 53, 54, 6, 5, 48, 49, label])
        tree.image(f"gtsrb/GTSRB/Final_Test/Images/{i:05d}.ppm", "test", f"{label:05d}")
    with open(root / "gtsrb" / "GT-final_test.csv", "w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId"])
        writer.writerows(rows)
    return tree.expected


def imagenet100(root: Path) -> Expected:
    """The hundred classes, and one that is not among them."""
    tree = Tree(root)
    for label in (*imagenet100_classes(), "n00000000"):
        tree.image(f"imagenet/train/{label}/{label}_1.JPEG", "train", label)
        tree.image(f"imagenet/val/{label}/ILSVRC2012_val_{label}.JPEG", "val", label)
    return {name: entry for name, entry in tree.expected.items() if entry[1] != "n00000000"}


BUILDERS: dict[str, Callable[[Path], Expected]] = {
    "dtd": dtd,
    "food101": food101,
    "mit67": mit67,
    "sun397": sun397,
    "caltech101": caltech101,
    "cub200": cub200,
    "dogs": dogs,
    "flowers102": flowers102,
    "pets": pets,
    "aircraft": aircraft,
    "fungi": fungi,
    "omniglot": omniglot,
    "traffic-signs": traffic_signs,
    "imagenet100": imagenet100,
}


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def _old_pickle(value: object) -> bytes:
    """As numpy wrote arrays when CIFAR was published: a dtype with numbers for its flags.

    They were 0 and 1. Early numpy 2.4 warns about them, later ones about all but these: with 2 every numpy 2.4 warns.
    """

    def reduced(dtype: np.dtype) -> tuple[object, ...]:
        return np.dtype, ("u1", 0, 2), (3, "|", None, None, None, -1, -1, 0)

    written = BytesIO()
    pickler = pickle.Pickler(written, protocol=2)
    pickler.dispatch_table = {type(np.dtype("u1")): reduced}
    pickler.dump(value)
    return written.getvalue()


def cifar(root: Path, kind: type, classes: tuple[str, ...], each: int, monkeypatch) -> dict[str, np.ndarray]:
    """The published files of torchvision's class, in small, with their checksums put into that class."""
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    key = "labels" if kind.base_folder.startswith("cifar-10-") else "fine_labels"
    written = {}
    for part in ("train_list", "test_list"):
        sums = []
        for seed, (name, _) in enumerate(getattr(kind, part)):
            labels = np.arange(len(classes) * each) % len(classes)
            data = noise(len(labels), 3072, seed=seed + 10 * len(part))
            (folder / name).write_bytes(_old_pickle({"data": data, key: labels.tolist()}))
            sums.append([name, hashlib.md5((folder / name).read_bytes()).hexdigest()])
            written[name] = data.reshape(-1, 3, 32, 32)
        monkeypatch.setattr(kind, part, sums)
    content = _old_pickle({kind.meta["key"]: list(classes)})
    (folder / kind.meta["filename"]).write_bytes(content)
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": hashlib.md5(content).hexdigest()})
    return written
