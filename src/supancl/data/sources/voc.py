"""Source: a folder in the layout of Pascal VOC. The labels of an image are the classes of its objects."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element

from supancl.data.labels import LabelSet, join_names, set_of_names
from supancl.data.listing import Entry, Listing, list_entries
from supancl.errors import BadInput
from supancl.files import open_regular, read_text

LISTS = "ImageSets/Main"
FOLDERS = ("Annotations", LISTS, "JPEGImages")
SIDES = ("xmin", "ymin", "xmax", "ymax")


class Annotation(NamedTuple):
    """Height and width of an image, and of each object the class, the box and whether VOC calls it difficult."""

    size: tuple[int, int]
    names: list[str]
    boxes: list[list[float]]
    difficult: list[bool]


def find_voc(root: Path) -> Path | None:
    """The folder of a year: this one, or the one below it (VOC2012/, VOCdevkit/VOC2012/); None if there is none."""
    years = [
        folder
        for folder in (root, *sorted(root.glob("VOC*")), *sorted(root.glob("VOCdevkit/VOC*")))
        if all((folder / name).is_dir() for name in FOLDERS)
    ]
    if len(years) > 1:
        raise BadInput(
            f"{root} holds {years[0].name} and {years[1].name}; name one of them, or both with data {years[0]} "
            f"data {years[1]}"
        )
    return years[0] if years else None


def list_voc(folder: Path) -> Listing:
    """List the images of train.txt, val.txt and test.txt; without train.txt, those of trainval.txt are trained on.

    A class whose objects in an image are all difficult is left out there. (VOC counts such an image neither as one of
    the class nor as none; labels here have no third value.)
    """
    entries: list[Entry] = []
    remarks: list[str] = []
    only_difficult = 0
    for split, images in _read_lists(folder, remarks).items():
        for name in images:
            names, difficult = read_classes(folder, name)
            clear = {kind for kind, hard in zip(names, difficult, strict=True) if not hard}
            only_difficult += bool(set(names) - clear)
            entries.append((split, folder / "JPEGImages" / f"{name}.jpg", join_names(clear)))
    if only_difficult:
        remarks.append(f"{folder}: images without a class whose objects are all difficult there: {only_difficult}")
    sets: dict[str, LabelSet] = {text: set_of_names(text) for _, _, text in entries}
    return list_entries(entries, folder, sets, remarks=tuple(remarks))


def _read_lists(folder: Path, remarks: list[str]) -> dict[str, list[str]]:
    """The names of the images of each split."""
    lists = folder / LISTS
    has_train = (lists / "train.txt").is_file()
    files = {"train": "train.txt" if has_train else "trainval.txt", "val": "val.txt", "test": "test.txt"}
    names: dict[str, list[str]] = {}
    for split, file in files.items():
        if split != "train" and (not (lists / file).is_file() or (split == "val" and not has_train)):
            continue  # without train.txt, the images of val.txt are in trainval.txt
        try:
            names[split] = read_list(folder, file.removesuffix(".txt"))
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"cannot read the list {lists / file}; unpack all of ImageSets/Main") from None
    if not names["train"]:
        raise BadInput(f"{lists / files['train']} lists no image; unpack it again")
    missing = [name for name in names.get("test", ()) if not (folder / "Annotations" / f"{name}.xml").exists()]
    if missing:  # those of VOC2012 were never published
        remarks.append(f"{lists / 'test.txt'} is left out: there is no annotation of {missing[0]}")
        del names["test"]
    return {split: images for split, images in names.items() if images}


def read_list(folder: Path, name: str) -> list[str]:
    """The images that ImageSets/Main/NAME.txt lists."""
    lines = read_text(folder / LISTS / f"{name}.txt").splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def read_annotation(folder: Path, name: str) -> Annotation:
    """Annotations/NAME.xml; boxes count from 0, and their right and lower ends are outside."""
    with _open_annotation(folder, name) as tree:
        size = int(_text_at(tree, "size/height")), int(_text_at(tree, "size/width"))
        names, difficult = _list_classes(tree)
        boxes = []
        for entry in tree.findall("object"):
            left, top, right, bottom = (float(_text_at(entry, f"bndbox/{side}")) for side in SIDES)
            # VOC counts pixels from 1 and includes both ends: 1..W is the full width, which is 0..W here
            boxes.append([left - 1, top - 1, right, bottom])
        return Annotation(size, names, boxes, difficult)


def read_classes(folder: Path, name: str) -> tuple[list[str], list[bool]]:
    """The class of each object in Annotations/NAME.xml, and whether it is difficult; sizes and boxes may be missing."""
    with _open_annotation(folder, name) as tree:
        return _list_classes(tree)


@contextmanager
def _open_annotation(folder: Path, name: str) -> Iterator[Element]:
    """The root of Annotations/NAME.xml; faults that are found in it are refused with its name."""
    file = folder / "Annotations" / f"{name}.xml"
    try:
        with open_regular(file) as opened:
            tree = ElementTree.parse(opened).getroot()
        if tree.tag != "annotation":
            raise ValueError("no <annotation>")
        yield tree
    except OSError:
        raise BadInput(
            f"no annotation {file}, but {name} is in the list of images; add it, or remove {name} from the list"
        ) from None
    except (ElementTree.ParseError, ValueError) as error:
        raise BadInput(f"{file}: not a VOC annotation ({error}); fix it, or remove {name} from the list") from None


def _list_classes(tree: Element) -> tuple[list[str], list[bool]]:
    objects = tree.findall("object")
    difficult = [(entry.findtext("difficult") or "").strip() == "1" for entry in objects]
    return [_text_at(entry, "name") for entry in objects], difficult


def _text_at(element: Element, path: str) -> str:
    """The text of the one element at a path; ValueError if there is none."""
    elements = element.findall(path)
    text = (elements[0].text or "").strip() if len(elements) == 1 else ""
    if not text:
        raise ValueError(f"no <{path.replace('/', '><')}>")
    return text
