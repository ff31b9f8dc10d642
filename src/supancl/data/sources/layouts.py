"""Official layouts of the benchmark data sets: which file belongs to which split and class.

A reader gets the data set's folder and lists (split, file, class); nothing is decoded. The split is the official one:
train, val or test; "trainval" and "all" are divided later (benchmarks.py). torchvision has classes for most of
these layouts, but keeps their lists private, has no splits of SUN397 and counts Caltech101's files instead of reading
their names; so the split files are parsed here, and the tests compare the results with torchvision's.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import parse_json
from supancl.data.decode import LISTED_SUFFIXES
from supancl.errors import BadInput
from supancl.files import read_text

Entry = tuple[str, Path, str]


class OfficialList(NamedTuple):
    """The images that the split files (or folders) list, and what a reader did not find."""

    entries: list[Entry]
    missing: tuple[str, ...] = ()


FileReader = Callable[[Path], OfficialList]


# --- split files ------------------------------------------------------------------------------------------------------


def dtd(folder: Path) -> OfficialList:
    """labels/{train,val,test}1.txt hold 'banded/banded_0002.jpg': split 1 of ten."""
    entries = [
        (split, folder / "images" / line, line.split("/")[0])
        for split in ("train", "val", "test")
        for line in _read_lines(folder / "labels" / f"{split}1.txt", "/")
    ]
    return OfficialList(entries)


def food101(folder: Path) -> OfficialList:
    """meta/{train,test}.json map a class to its images, without '.jpg'."""
    entries = []
    for official, split in (("train", "trainval"), ("test", "test")):
        path = folder / "meta" / f"{official}.json"
        content = _read_json(path)
        if not isinstance(content, dict) or not all(isinstance(images, list) for images in content.values()):
            raise _bad_list_error(path, "it must be {class: [image, ...]}")
        entries += [
            (split, folder / "images" / f"{image}.jpg", name) for name, images in content.items() for image in images
        ]
    return OfficialList(entries)


def mit67(folder: Path) -> OfficialList:
    """TrainImages.txt and TestImages.txt hold 'gameroom/bt_132294gameroom2.jpg'."""
    images = folder / "Images"
    if not images.is_dir() and (folder / "indoorCVPR_09" / "Images").is_dir():
        images = folder / "indoorCVPR_09" / "Images"
    entries = [
        (split, images / line, line.split("/")[0])
        for official, split in (("Train", "trainval"), ("Test", "test"))
        for line in _read_lines(folder / f"{official}Images.txt", "/")
    ]
    return OfficialList(entries)


def sun397(folder: Path) -> OfficialList:
    """Training_01.txt and Testing_01.txt hold '/a/abbey/sun_....jpg'; a class may be two folders deep."""
    lists = folder / "Partitions" if (folder / "Partitions").is_dir() else folder
    entries = []
    for official, split in (("Training", "trainval"), ("Testing", "test")):
        path = lists / f"{official}_01.txt"
        for line in _read_lines(path, "/"):
            letter, *names = line.strip("/").split("/")
            if len(names) < 2:
                raise _bad_list_error(path, f"lines must be /LETTER/CLASS/IMAGE, not {line!r}")
            entries.append((split, folder.joinpath(letter, *names), "/".join(names[:-1])))
    return OfficialList(entries)


def cub200(folder: Path) -> OfficialList:
    """images.txt: '1 001.Black_footed_Albatross/....jpg'; train_test_split.txt: '1 0', where 1 is training."""
    images, training = _read_pairs(folder / "images.txt"), _read_pairs(folder / "train_test_split.txt")
    unknown = sorted(set(images) ^ set(training), key=lambda number: (len(number), number))
    if unknown:
        raise BadInput(
            f"{folder}: image {unknown[0]} is in only one of images.txt and train_test_split.txt"
            f"{and_more(unknown)}; unpack CUB_200_2011.tgz again"
        )
    entries = [
        ("trainval" if training[number] == "1" else "test", folder / "images" / image, image.split("/")[0])
        for number, image in images.items()
    ]
    return OfficialList(entries)


def dogs(folder: Path) -> OfficialList:
    """train_list.mat and test_list.mat, file_list: 'n02085620-Chihuahua/n02085620_5927.jpg'."""
    lists = folder / "lists" if (folder / "lists").is_dir() else folder
    entries = [
        (split, folder / "Images" / str(image), str(image).split("/")[0])
        for official, split in (("train", "trainval"), ("test", "test"))
        for image in _read_mat(lists / f"{official}_list.mat", "file_list")
    ]
    return OfficialList(entries)


def flowers102(folder: Path) -> OfficialList:
    """setid.mat numbers the images of each split from 1, imagelabels.mat gives each image's class from 1."""
    labels = [int(label) for label in _read_mat(folder / "imagelabels.mat", "labels")]
    entries = []
    for key, split in (("trnid", "train"), ("valid", "val"), ("tstid", "test")):
        for number in map(int, _read_mat(folder / "setid.mat", key)):
            if not 1 <= number <= len(labels):
                raise _bad_list_error(folder / "setid.mat", f"image {number} has no label in imagelabels.mat")
            entries.append((split, folder / "jpg" / f"image_{number:05d}.jpg", f"{labels[number - 1]:03d}"))
    return OfficialList(entries)


def pets(folder: Path) -> OfficialList:
    """annotations/{trainval,test}.txt hold 'Abyssinian_100 1 1 1'; the class is the name without its number."""
    entries = []
    for split in ("trainval", "test"):
        for line in _read_lines(folder / "annotations" / f"{split}.txt", " "):
            if not line.startswith("#"):
                image = line.split()[0]
                entries.append((split, folder / "images" / f"{image}.jpg", image.rsplit("_", 1)[0]))
    return OfficialList(entries)


def aircraft(folder: Path) -> OfficialList:
    """data/images_variant_{train,val,test}.txt hold '1025794 707-320'."""
    entries = [
        (split, folder / "data" / "images" / f"{image}.jpg", variant)
        for split in ("train", "val", "test")
        for image, variant in _read_pairs(folder / "data" / f"images_variant_{split}.txt").items()
    ]
    return OfficialList(entries)


def fungi(folder: Path) -> OfficialList:
    """train.json and val.json list images and annotations; class names include the id, as some names occur twice."""
    entries = []
    for split in ("train", "val"):
        path = folder / f"{split}.json"
        content = _read_json(path)
        try:
            names = {row["id"]: f"{row['id']:04d}.{str(row['name']).strip()}" for row in content["categories"]}
            files = {row["id"]: folder / row["file_name"] for row in content["images"]}
            entries += [(split, files[row["image_id"]], names[row["category_id"]]) for row in content["annotations"]]
        except (KeyError, TypeError, ValueError) as error:
            raise _bad_list_error(path, f"it must have images, annotations and categories; {error!r}") from None
    return OfficialList(entries)


def gtsrb(folder: Path) -> OfficialList:
    """GT-final_test.csv: Filename;...;ClassId, for GTSRB/Final_Test/Images."""
    path = folder / "GT-final_test.csv"
    rows = csv.DictReader(_read_lines(path, ";"), delimiter=";", skipinitialspace=True)
    try:
        images = folder / "GTSRB" / "Final_Test" / "Images"
        entries = [("test", images / row["Filename"], f"{int(row['ClassId']):05d}") for row in rows]
        return OfficialList(entries)
    except (KeyError, TypeError, ValueError):
        raise _bad_list_error(path, "it must have the columns Filename and ClassId, separated by ';'") from None


# --- class folders ----------------------------------------------------------------------------------------------------


def caltech101(folder: Path) -> OfficialList:
    """101_ObjectCategories/CLASS/image_0001.jpg; the background is not a class."""
    files = _iter_class_folders(folder / "101_ObjectCategories")
    return OfficialList([("all", path, name) for path, name in files if name != "BACKGROUND_Google"])


def omniglot(folder: Path) -> OfficialList:
    """images_background and images_evaluation: ALPHABET/CHARACTER/0001_01.png; each character is a class."""
    entries, missing = [], []
    for half in ("images_background", "images_evaluation"):
        if not (folder / half).is_dir():
            missing.append(f"{half}/")
            continue
        for alphabet in _subfolders(folder / half):
            entries += [("all", path, f"{alphabet.name}/{name}") for path, name in _iter_class_folders(alphabet)]
    return OfficialList(entries, tuple(missing))


def split_folders(folder: Path) -> OfficialList:
    """SPLIT/CLASS/IMAGE: the official splits of a data set, sorted into class folders."""
    entries = [
        (split, path, name)
        for split in ("trainval", "train", "val", "test")
        if (folder / split).is_dir()
        for path, name in _iter_class_folders(folder / split)
    ]
    return OfficialList(entries)


def test_folders(folder: Path) -> OfficialList:
    """test/CLASS/IMAGE; other folders are ignored."""
    return OfficialList([("test", path, name) for path, name in _iter_class_folders(folder / "test")])


def imagenet100(folder: Path) -> OfficialList:
    """train/WNID and val/WNID of the hundred classes; the other classes of ImageNet may be there too."""
    entries, missing = [], []
    for split in ("train", "val"):
        for name in imagenet100_classes():
            files = sorted(_iter_images(folder / split / name))
            entries += [(split, path, name) for path in files]
            missing += [] if files else [f"{split}/{name}/"]
    return OfficialList(entries, tuple(missing))


@cache
def imagenet100_classes() -> tuple[str, ...]:
    """The class list of "Contrastive multiview coding", in label order."""
    return tuple(
        resources.files("supancl.data.sources").joinpath("imagenet100.txt").read_text(encoding="utf-8").split()
    )


# --- reading lists ----------------------------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    try:
        return read_text(path, "utf-8-sig")
    except FileNotFoundError:
        raise _missing_file_error(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_list_error(path, getattr(error, "strerror", None) or str(error)) from None


def _read_lines(path: Path, separator: str) -> list[str]:
    """The non-empty lines; each must contain the separator."""
    lines = [line.strip() for line in _read_text(path).splitlines() if line.strip()]
    bad_line = next((line for line in lines if separator not in line), None)
    if bad_line is not None:
        raise _bad_list_error(path, f"no {separator!r} in the line {bad_line[:60]!r}")
    if not lines:
        raise _bad_list_error(path, "it is empty")
    return lines


def _read_pairs(path: Path) -> dict[str, str]:
    """A dict from lines 'KEY VALUE'."""
    return {key: value.strip() for key, value in (line.split(" ", 1) for line in _read_lines(path, " "))}


def _read_json(path: Path) -> Any:
    try:
        return parse_json(_read_text(path))
    except ValueError as error:
        raise _bad_list_error(path, str(error)) from None


def _read_mat(path: Path, key: str) -> list[Any]:
    from scipy.io import loadmat

    if not path.is_file():
        raise _missing_file_error(path)
    try:
        return list(loadmat(path, squeeze_me=True)[key].reshape(-1))
    except Exception as error:  # scipy may raise nearly anything on a broken file
        raise _bad_list_error(path, f"no list {key!r} in it ({type(error).__name__})") from None


def _missing_file_error(path: Path) -> BadInput:
    return BadInput(f"{path}: not there; download and unpack the official data again")


def _bad_list_error(path: Path, reason: str) -> BadInput:
    return BadInput(f"{path}: not the official list ({reason}); download and unpack it again")


def and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _iter_images(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix.lower() in LISTED_SUFFIXES and not path.name.startswith("."):
            yield path


def _iter_class_folders(folder: Path) -> Iterable[tuple[Path, str]]:
    for child in _subfolders(folder):
        yield from ((path, child.name) for path in sorted(_iter_images(child)))
