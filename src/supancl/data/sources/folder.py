"""Sources that are folders: class folders, Pascal VOC, and the official layouts of the benchmarks.

A reader of a benchmark gets its folder and lists (split, file, class) of every image; the split is the official one:
train, val or test; "trainval" and "all" are divided later (benchmarks.py). torchvision has classes for most of these
layouts, but keeps their lists private, has no splits of SUN397 and counts Caltech101's files instead of reading their
names; so the lists are parsed here, and the tests compare the results with torchvision's.
"""

from __future__ import annotations

import csv
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from supancl.config import parse_json
from supancl.data.decode import LISTED_SUFFIXES
from supancl.data.sources.arrays import BUILT_IN
from supancl.data.splits import SPLIT_NAMES, Entry, Source, list_entries
from supancl.errors import BadInput
from supancl.files import open_regular, read_text

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled", "_unlabelled", "_unlabeled")
FileReader = Callable[[Path], Iterable[tuple[str, Path, str]]]


# --- class folders ----------------------------------------------------------------------------------------------------


def list_folder(root: Path, nested: bool = False) -> Source:
    """List a folder with train/ and val/ or test/, or with class folders. Images outside class folders are unlabelled.

    With `nested`, folders in class folders are classes too, with names such as animal/cat.
    """
    entries: list[Entry] = []
    folders = _split_folders(root)
    for split, folder in folders.items():
        for child in _children(folder):
            images = _list_images(child)
            if child.is_dir() and not images and not is_unlabelled(child):
                raise BadInput(f"class folder {child} has no image; fill it or remove it")
            for class_folder, paths in groupby(images, lambda path: path.parent):
                name = _class_name(class_folder if nested or class_folder == folder else child, folder)
                entries += [(split, path, name) for path in paths]
    if folders["train"] != root:  # unlabelled/ may be next to train/ or inside it
        outside = filter(is_unlabelled, _children(root))
        entries += [("train", path, "") for child in outside for path in _list_images(child)]
    if not entries:
        raise BadInput(f"{root}: no image in it; add class folders of images")
    return list_entries(entries, root)


def check_out_folder(source: str, out: Path) -> None:
    """Refuse an output folder inside the image folders: it would be read as a class the next time."""
    root = Path(source)
    if not source or source in BUILT_IN or not root.is_dir():
        return
    for folder in (*_split_folders(root).values(), *filter(is_unlabelled, _children(root))):
        if out.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"{out} is inside {folder}, whose folders are read as classes; choose another out")


def is_unlabelled(folder: Path) -> bool:
    """Whether the name says unlabelled, in any case."""
    return folder.name.lower() in UNLABELLED_FOLDERS


def _is_hidden(name: str) -> bool:
    """Whether a file or folder is no data: .DS_Store, ._1.jpg, .ipynb_checkpoints, and what macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def _children(folder: Path) -> list[Path]:
    return [child for child in sorted(folder.iterdir()) if not _is_hidden(child.name)]


def _split_folders(root: Path) -> dict[str, Path]:
    """train/, val/ and test/ below the root; if there are none, or they are classes, the root is train."""
    children = [child for child in _children(root) if child.is_dir()]
    split_named = [child for child in children if child.name.lower() in SPLIT_NAMES]
    if len(split_named) == 1 and len(children) > 1 and not any(child.is_dir() for child in split_named[0].iterdir()):
        return {"train": root}  # CIFAR-100 has a class called train
    folders = {SPLIT_NAMES[child.name.lower()]: child for child in split_named}
    if len(folders) < len(split_named) or (folders and "train" not in folders):
        names = ", ".join(f"{child.name}/" for child in split_named)
        raise BadInput(f"{root} has {names}: train/ is needed, and each split once; give a folder of it to use that")
    return folders or {"train": root}


def _class_name(class_folder: Path, split_folder: Path) -> str:
    """The folders from the split to the class, down to one that says unlabelled: '' if that is the first."""
    parts = class_folder.relative_to(split_folder).parts
    return "/".join(takewhile(lambda part: part.lower() not in UNLABELLED_FOLDERS, parts))


def _list_images(folder: Path) -> list[Path]:
    """Every image file below a folder, sorted, none that is hidden; or the file itself."""

    def refuse(error: OSError) -> None:
        raise error  # os.walk would skip unreadable folders silently

    files, visited = [] if folder.is_dir() else [folder], set[str]()
    for directory, subfolders, names in os.walk(folder, onerror=refuse, followlinks=True) if folder.is_dir() else ():
        target = os.path.realpath(directory)
        # sorted, so that of two links to a folder every machine takes the same; a link may lead to a folder above
        subfolders[:] = [] if target in visited else sorted(name for name in subfolders if not _is_hidden(name))
        files += [] if target in visited else [Path(directory, name) for name in names if not _is_hidden(name)]
        visited.add(target)
    return sorted(path for path in files if path.suffix.lower() in LISTED_SUFFIXES)


# --- Pascal VOC: the labels of an image are the classes of its objects ------------------------------------------------


class Annotation(NamedTuple):
    """Height and width of an image, and of each object the class, the box and whether VOC calls it difficult."""

    size: tuple[int, int]
    names: list[str]
    boxes: list[list[float]]
    difficult: list[bool]


def list_voc(folder: Path) -> Source:
    """List the images of train.txt, val.txt and test.txt; without train.txt, those of trainval.txt are trained on.

    A class whose objects in an image are all difficult is left out there. (VOC counts such an image neither as one of
    the class nor as none; labels here have no third value.)
    """
    has_train = (folder / "ImageSets/Main/train.txt").is_file()
    entries: list[Entry] = []
    for split in ("train", "val", "test") if has_train else ("trainval", "test"):
        names = read_list(folder, split) if (folder / f"ImageSets/Main/{split}.txt").is_file() else []
        if split == "test" and not all((folder / f"Annotations/{name}.xml").exists() for name in names):
            continue  # those of VOC2012 were never published
        for name in names:
            found = read_annotation(folder, name, with_boxes=False)
            clear = {kind for kind, hard in zip(found.names, found.difficult, strict=True) if not hard}
            entries.append((SPLIT_NAMES[split], folder / f"JPEGImages/{name}.jpg", tuple(sorted(clear))))
    if "train" not in [split for split, _, _ in entries]:
        raise BadInput(f"{folder}/ImageSets/Main lists no image to train on; unpack it again")
    return list_entries(entries, folder)


def read_list(folder: Path, name: str) -> list[str]:
    """The images that ImageSets/Main/NAME.txt lists."""
    path = folder / f"ImageSets/Main/{name}.txt"
    try:
        return [line.split()[0] for line in read_text(path).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"cannot read the list {path}; unpack all of ImageSets/Main") from None


def read_annotation(folder: Path, name: str, with_boxes: bool = True) -> Annotation:
    """Annotations/NAME.xml; boxes count from 0, and their right and lower ends are outside."""
    file, boxes, size = folder / "Annotations" / f"{name}.xml", list[list[float]](), (0, 0)
    try:
        with open_regular(file) as opened:
            tree = ElementTree.parse(opened).getroot()
        objects = [each for each in tree.findall("object") if _text_at(each, "name")]
        if tree.tag != "annotation":
            raise ValueError("no <annotation>")
        if with_boxes:
            size = int(_text_at(tree, "size/height")), int(_text_at(tree, "size/width"))
        for each in objects if with_boxes else ():
            left, top, right, bottom = (
                float(_text_at(each, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            # VOC counts pixels from 1 and includes both ends: 1..W is the full width, which is 0..W here
            boxes.append([left - 1, top - 1, right, bottom])
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise BadInput(f"{file}: not a VOC annotation ({error}); fix it, or remove {name} from the list") from None
    difficult = [(each.findtext("difficult") or "").strip() == "1" for each in objects]
    return Annotation(size, [_text_at(each, "name") for each in objects], boxes, difficult)


def _text_at(element: Element, path: str) -> str:
    if not (text := (element.findtext(path) or "").strip()):
        raise ValueError(f"no <{path.replace('/', '><')}>")
    return text


# --- official lists of benchmarks; `benchmarks` refuses what they hold instead ------------------------------------


def lists(files: Mapping[str, str], parse: Callable[[str], tuple[str, str]]) -> FileReader:
    """Reader of a list for each split; `parse` gives the file and the class of a line."""

    def read(folder: Path) -> list[tuple[str, Path, str]]:
        entries = [(split, parse(line)) for split, file in files.items() for line in _read_lines(folder / file)]
        return [(split, folder / path, name) for split, (path, name) in entries]

    return read


def _read_lines(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path, "utf-8-sig").splitlines() if line.strip()]


def in_class_folder(images: str) -> Callable[[str], tuple[str, str]]:
    """Of 'banded/banded_0002.jpg', a file below `images`."""
    return lambda line: (f"{images}/{line}", line[: line.index("/")])


dtd = lists({split: f"labels/{split}1.txt" for split in ("train", "val", "test")}, in_class_folder("images"))
aircraft = lists(  # 1025794 707-320
    {split: f"data/images_variant_{split}.txt" for split in ("train", "val", "test")},
    lambda line: (f"data/images/{line.split(' ', 1)[0]}.jpg", line.split(" ", 1)[1].strip()),
)
mit67 = lists({"trainval": "TrainImages.txt", "test": "TestImages.txt"}, in_class_folder("Images"))
sun397 = lists(  # /a/abbey/sun_....jpg; a class may be two folders deep
    {"trainval": "Training_01.txt", "test": "Testing_01.txt"},
    lambda line: (line.strip("/"), "/".join(line.strip("/").split("/")[1:-1])),
)
pets = lists(  # Abyssinian_100 1 1 1
    {split: f"annotations/{split}.txt" for split in ("trainval", "test")},
    lambda line: (f"images/{line.split()[0]}.jpg", line.split()[0].rpartition("_")[0]),
)


def food101(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """meta/{train,test}.json map a class to its images, without '.jpg'."""
    for split, file in (("trainval", "train"), ("test", "test")):
        for name, images in _read_json(folder / f"meta/{file}.json").items():
            yield from ((split, folder / f"images/{image}.jpg", name) for image in images)


def cub200(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """images.txt: '1 001.Black_footed_Albatross/....jpg'; train_test_split.txt: '1 0', where 1 is training."""
    training = dict(line.split() for line in _read_lines(folder / "train_test_split.txt"))
    for number, image in (line.split(" ", 1) for line in _read_lines(folder / "images.txt")):
        yield "trainval" if training[number] == "1" else "test", folder / "images" / image, image.split("/")[0]


def dogs(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """train_list.mat and test_list.mat, file_list: 'n02085620-Chihuahua/n02085620_5927.jpg'."""
    for split, file in (("trainval", "train"), ("test", "test")):
        for image in map(str, _read_mat(folder / f"{file}_list.mat", "file_list")):
            yield split, folder / "Images" / image, image.split("/")[0]


def flowers102(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """setid.mat numbers the images of each split from 1, imagelabels.mat gives each image's class from 1."""
    labels = dict(enumerate(map(int, _read_mat(folder / "imagelabels.mat", "labels")), start=1))
    for key, split in (("trnid", "train"), ("valid", "val"), ("tstid", "test")):
        for number in map(int, _read_mat(folder / "setid.mat", key)):
            yield split, folder / f"jpg/image_{number:05d}.jpg", f"{labels[number]:03d}"


def fungi(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """train.json and val.json list images and annotations; class names include the id, as some names occur twice."""
    for split in ("train", "val"):
        content = _read_json(folder / f"{split}.json")
        names = {row["id"]: f"{row['id']:04d}.{row['name'].strip()}" for row in content["categories"]}
        files = {row["id"]: folder / row["file_name"] for row in content["images"]}
        yield from ((split, files[row["image_id"]], names[row["category_id"]]) for row in content["annotations"])


def gtsrb(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """GT-final_test.csv: Filename;...;ClassId, for GTSRB/Final_Test/Images."""
    lines = _read_lines(folder / "GT-final_test.csv")
    for row in csv.DictReader(lines, delimiter=";", skipinitialspace=True):
        yield "test", folder / "GTSRB/Final_Test/Images" / row["Filename"], f"{int(row['ClassId']):05d}"


def caltech101(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """101_ObjectCategories/CLASS/image_0001.jpg; the background is not a class."""
    files = _iter_class_folders(folder / "101_ObjectCategories")
    return (("all", path, name) for path, name in files if name != "BACKGROUND_Google")


def omniglot(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """images_background and images_evaluation: ALPHABET/CHARACTER/0001_01.png; each character is a class."""
    for half in ("images_background", "images_evaluation"):
        for alphabet in sorted((folder / half).glob("[!.]*")):
            yield from (("all", path, f"{alphabet.name}/{name}") for path, name in _iter_class_folders(alphabet))


def split_folders(*splits: str) -> FileReader:
    """Reader of SPLIT/CLASS/IMAGE; other folders are ignored."""
    return lambda folder: (
        (split, path, name) for split in splits for path, name in _iter_class_folders(folder / split)
    )


def imagenet100(folder: Path) -> Iterable[tuple[str, Path, str]]:
    """train/WNID and val/WNID of the hundred classes; the other classes of ImageNet may be there too."""
    for split in ("train", "val"):
        for path, name in _iter_class_folders(folder / split, imagenet100_classes()):
            yield split, path, name


@cache
def imagenet100_classes() -> tuple[str, ...]:
    """The class list of "Contrastive multiview coding", in label order."""
    return tuple(resources.files("supancl.data.sources").joinpath("imagenet100.txt").read_text("utf-8").split())


def _read_json(path: Path) -> Any:
    return parse_json(read_text(path, "utf-8-sig"))


def _read_mat(path: Path, key: str) -> list[Any]:
    from scipy.io import loadmat

    return list(loadmat(path, squeeze_me=True)[key].reshape(-1))


def _iter_class_folders(folder: Path, names: Iterable[str] = ()) -> Iterable[tuple[Path, str]]:
    for child in [folder / name for name in names] or sorted(folder.glob("[!.]*")):
        for path in sorted(child.glob("[!.]*")):
            if path.suffix.lower() in LISTED_SUFFIXES:
                yield path, child.name
