"""Benchmark data sets in small, in their official layouts; a builder returns {file: (official split, class)}."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Iterable
from functools import partial
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
        kind = {".png": "PNG", ".ppm": "PPM"}.get(path.suffix.lower(), "JPEG")
        mode = "L" if kind == "PNG" else "RGB"  # Omniglot is black on white
        Image.fromarray(noise(6, 5, 3, seed=next(self.seeds))).convert(mode).save(path, kind)
        self.expected[name] = (split, label)

    def images(
        self, folder: str, name: str, classes: Iterable[str] | dict[str, str], **each: int
    ) -> dict[str, dict[str, str]]:
        """{split: {file below the folder: class}}, with so many images of each class; a dict gives other class names.

        The name has {0} for the class, {1} for the split, {2} for the number within both and {3} for that of them all.
        """
        classes = classes if isinstance(classes, dict) else {label: label for label in classes}
        made, numbers = {}, count(1)
        for split, images in each.items():
            files = [(name.format(c, split, i + 1, next(numbers)), c) for c in classes for i in range(images)]
            made[split] = {file: classes[c] for file, c in files}
            for file, label in made[split].items():
                self.image(folder + file, split, label)
        return made

    def text(self, name: str, lines: Iterable[str]) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def mat(self, name: str, **lists: object) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        savemat(self.root / name, lists)


def dtd(tree: Tree, classes: Iterable[str] = ("banded", "zigzagged", "dotted"), each: int = 2) -> None:
    sizes = dict.fromkeys(("train", "val", "test"), each)
    for split, files in tree.images("dtd/images/", "{0}/{0}_{1}{2}.jpg", classes, **sizes).items():
        tree.text(f"dtd/labels/{split}1.txt", files)
        tree.text(f"dtd/labels/{split}2.txt", ["never/read.jpg"])


def food101(tree: Tree) -> None:
    classes = ("waffles", "apple_pie")
    for split, files in tree.images("food-101/images/", "{0}/{1}{2}.jpg", classes, trainval=10, test=2).items():
        listed = {label: [file[:-4] for file in files if files[file] == label] for label in classes}
        tree.text(f"food-101/meta/{split.removesuffix('val')}.json", [json.dumps(listed)])


def mit67(tree: Tree) -> None:
    classes = ("airport_inside", "winecellar")
    for split, files in tree.images("mit67/Images/", "{0}/{1}_{2}.jpg", classes, trainval=8, test=2).items():
        tree.text(f"mit67/{split.removesuffix('val').title()}Images.txt", files)


def sun397(tree: Tree) -> None:
    classes = {"a/abbey": "abbey", "u/underwater/coral_reef": "underwater/coral_reef"}
    tree.text("SUN397/ClassName.txt", [f"/{folder}" for folder in classes])
    for split, files in tree.images("SUN397/", "{0}/sun_{1}{2}.jpg", classes, trainval=5, test=5).items():
        tree.text(f"SUN397/{split.removesuffix('val').title()}ing_01.txt", [f"/{file}" for file in files])


def caltech101(tree: Tree) -> None:
    classes = ("Faces", "yin_yang", "BACKGROUND_Google")
    tree.images("caltech101/101_ObjectCategories/", "{0}/image_{2:04d}.jpg", classes, all=33)


def cub200(tree: Tree) -> None:
    classes = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    made = tree.images("CUB_200_2011/images/", "{0}/bird_{1}{2}.jpg", classes, trainval=6, test=3)
    listed = sorted((file, split) for split, files in made.items() for file in files)
    tree.text("CUB_200_2011/images.txt", [f"{n} {file}" for n, (file, _) in enumerate(listed, 1)])
    parts = [f"{n} {int(split == 'trainval')}" for n, (_, split) in enumerate(listed, 1)]
    tree.text("CUB_200_2011/train_test_split.txt", parts)


def dogs(tree: Tree) -> None:
    classes = ("n02085620-Chihuahua", "n02115913-dhole")
    for split, files in tree.images("StanfordDogs/Images/", "{0}/{1}_{2}.jpg", classes, trainval=10, test=3).items():
        cells = np.array(list(files), dtype=object)[:, None]
        labels = np.array([[1 + classes.index(label)] for label in files.values()], dtype=np.uint8)
        tree.mat(f"StanfordDogs/{split.removesuffix('val')}_list.mat", file_list=cells, labels=labels)


def flowers102(tree: Tree) -> None:
    classes = ("002", "001", "003")
    made = tree.images("flowers-102/jpg/", "image_{3:05d}.jpg", classes, train=2, val=1, test=3)
    tree.mat("flowers-102/imagelabels.mat", labels=[[int(c) for files in made.values() for c in files.values()]])
    ids = {key: [[int(file[6:11]) for file in made[split]]] for key, split in
           (("trnid", "train"), ("valid", "val"), ("tstid", "test"))}  # fmt: skip
    tree.mat("flowers-102/setid.mat", **ids)


def pets(tree: Tree) -> None:
    classes = ("Abyssinian", "american_bulldog", "Bengal")
    for split, files in tree.images("oxford-iiit-pet/images/", "{0}_{3}.jpg", classes, trainval=10, test=3).items():
        lines = [f"{file[:-4]} {1 + classes.index(label)} 1 1" for file, label in files.items()]
        tree.text(f"oxford-iiit-pet/annotations/{split}.txt", lines)


def aircraft(tree: Tree) -> None:
    data, classes = "fgvc-aircraft-2013b/data/", ("707-320", "Boeing 717")
    tree.text(f"{data}variants.txt", classes)
    for split, files in tree.images(f"{data}images/", "{3:07d}.jpg", classes, train=2, val=2, test=2).items():
        tree.text(f"{data}images_variant_{split}.txt", [f"{file[:-4]} {label}" for file, label in files.items()])


def fungi(tree: Tree) -> None:
    """Two of the three categories have the same name."""
    names = ("Agaricus altipes", "Amanita crocea", "Agaricus altipes")
    classes = {f"{category}_{name}": f"{category:04d}.{name}" for category, name in enumerate(names)}
    for split, files in tree.images("fgvc_fungi/", "images/{0}/{1}{2}.JPG", classes, train=3, val=3).items():
        annotations = [{"image_id": file[7:], "category_id": int(label[:4])} for file, label in files.items()]
        listed = {
            "images": [{"id": file[7:], "file_name": file} for file in files],
            "annotations": annotations[::-1],
            "categories": [{"id": category, "name": name} for category, name in enumerate(names)],
        }
        tree.text(f"fgvc_fungi/{split}.json", [json.dumps(listed)])


def omniglot(tree: Tree) -> None:
    alphabets = ("images_background/Greek", "images_background/Latin", "images_evaluation/Tengwar")
    folders = [f"{alphabet}/character0{i}" for alphabet in alphabets for i in (1, 2)]
    classes = {folder: folder.partition("/")[2] for folder in folders}
    tree.images("omniglot-py/", "{0}/0001_{2:02d}.png", classes, all=3)


def traffic_signs(tree: Tree) -> None:
    classes = ("00016", "00001", "00038")
    files = tree.images("gtsrb/GTSRB/Final_Test/Images/", "{3:05d}.ppm", classes, test=2)["test"]
    rows = [f"{file};53;54;6;5;48;49;{int(label)}" for file, label in files.items()]
    tree.text("gtsrb/GT-final_test.csv", ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId", *rows])


def imagenet100(tree: Tree) -> None:
    """The hundred classes, and one that is not among them."""
    tree.images("imagenet/", "{1}/{0}/{0}_{2}.JPEG", (*imagenet100_classes(), "n00000000"), train=1, val=1)


def built(layout: Callable[[Tree], None], root: Path) -> Expected:
    tree = Tree(root)
    layout(tree)
    return {file: found for file, found in tree.expected.items() if found[1] not in ("BACKGROUND_Google", "n00000000")}


LAYOUTS = (
    dtd, food101, mit67, sun397, caltech101, cub200, dogs, flowers102, pets, aircraft, fungi, omniglot, traffic_signs,
    imagenet100,
)  # fmt: skip
BUILDERS = {layout.__name__.replace("_", "-"): partial(built, layout) for layout in LAYOUTS}


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
