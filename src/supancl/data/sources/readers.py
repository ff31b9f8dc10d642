"""Readers, one per kind of source. Each gives splits and class names, or one line that says what is wrong."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.data.sources.toy import toy_source
from supancl.data.splits import DataSpec, Progress, Source, whole
from supancl.data.store.decoding import from_items
from supancl.data.store.images import SUFFIXES, ArrayImages
from supancl.errors import BadInput, counted

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
UNLABELLED_FOLDERS = ("unlabelled", "unlabeled", "_unlabelled", "_unlabeled")
NO_LABEL = ("-1", "-1.0")  # the second is what becomes of the first in a column with gaps
MOST_CLASSES = 1_000_000  # a larger label is not a class number: every number below it gets a name and a place


def digits(channels: int) -> Source:
    """The 1,797 handwritten digits (8 x 8) that ship inside scikit-learn."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = (loaded.images * (255 / 16)).round().astype(np.uint8)
    return from_splits({"train": (images, loaded.target)}, channels, "digits", tuple("0123456789"))


BUILT_IN: dict[str, Callable[[int], Source]] = {"digits": digits, "toy": toy_source}


# --- arrays -----------------------------------------------------------------------------------------------------------


def read_npz(path: Path, channels: int) -> Source:
    """train_images, train_labels and, if there, val_* and test_*; class_names names the labels."""
    arrays = _arrays(path)
    names = arrays.pop("class_names", None)
    if names is not None and (names.dtype.kind not in "US" or names.ndim != 1):
        raise BadInput(f"{path}: class_names has shape {names.shape} of {names.dtype}; wanted a list of strings")
    if names is not None and names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8", "replace")
    splits = {}
    for split in ("train", "val", "test"):
        if f"{split}_images" not in arrays:
            if split == "train":
                raise BadInput(
                    f"{path}: no train_images; it has {', '.join(sorted(arrays)) or 'nothing'}, wanted "
                    "train_images and train_labels"
                )
            continue
        if f"{split}_labels" not in arrays:
            raise BadInput(f"{path}: {split}_images has no {split}_labels; store -1 for images without a label")
        splits[split] = (arrays[f"{split}_images"], arrays[f"{split}_labels"])
    return from_splits(splits, channels, str(path), None if names is None else tuple(map(str, names)))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of the archive, none of them unpickled."""
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array, not an archive")
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # numpy, zipfile and zlib each have their own ways to say "broken"
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = "it holds pickled objects, which are never executed here" if "pickle" in reason else reason
        raise BadInput(f"{path}: cannot be read ({reason}); save it with numpy.savez and plain arrays") from None


def from_splits(
    splits: dict[str, tuple[np.ndarray, np.ndarray]], channels: int, where: str, classes: tuple[str, ...] | None
) -> Source:
    built, found = {}, {}
    for name, (images, labels) in splits.items():
        images, depth = _checked_images(np.asarray(images), f"{where}: {name}_images")
        found[name] = depth
        checked = _checked_labels(np.asarray(labels), len(images), f"{where}: {name}_labels")
        store = ArrayImages(_to_channels(images, channels))
        built[name] = whole(store, checked, _RowNames(f"{name}_images", len(images)))
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name} {depth}" for name, depth in found.items())
        raise BadInput(f"{where}: images have different channel counts ({told}); convert them to one")
    highest = max(int(split.labels.max()) if len(split) else -1 for split in built.values())
    if classes is None:
        classes = tuple(str(i) for i in range(highest + 1))
    if highest >= len(classes):
        raise BadInput(f"{where}: label {highest} has no name; class_names lists {len(classes)}")
    return Source(built, classes)


class _RowNames(Sequence[str]):
    """'train_images[17]', made when asked for."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return f"{self.name}[{index}]"


def _checked_images(images: np.ndarray, where: str) -> tuple[np.ndarray, int]:
    if images.dtype != np.uint8:
        raise BadInput(f"{where} holds {images.dtype}; images must be uint8, 0 to 255")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise BadInput(f"{where} has shape {images.shape}; wanted (N, H, W), (N, H, W, 1) or (N, H, W, 3)")
    if not images.size:
        raise BadInput(f"{where} is empty (shape {images.shape}); give at least one image of one pixel")
    return images, int(images.shape[3])


def _checked_labels(labels: np.ndarray, images: int, where: str) -> Tensor:
    if labels.dtype.kind not in "iu":
        raise BadInput(f"{where} holds {labels.dtype}; labels must be integers, -1 for unlabelled")
    if labels.shape != (images,):
        raise BadInput(f"{where} has shape {labels.shape} for {counted(images, 'image')}; wanted ({images},)")
    if labels.size and int(labels.min()) < -1:
        raise BadInput(f"{where} holds {int(labels.min())}; labels are 0, 1, ... and -1 for unlabelled")
    if labels.size and int(labels.max()) >= MOST_CLASSES:
        raise BadInput(
            f"{where} holds {int(labels.max())}; labels are class numbers 0, 1, ... below {MOST_CLASSES}, "
            "and -1 for unlabelled"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _to_channels(images: np.ndarray, channels: int) -> Tensor:
    """(N, C, H, W): grey repeated for an RGB encoder, RGB weighed to grey for a grey one."""
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    if pixels.shape[1] == channels:
        return pixels.contiguous()
    if channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([0.2989, 0.587, 0.114])[:, None, None]
    return (pixels * weights).sum(1, keepdim=True).round().to(torch.uint8)


# --- files ------------------------------------------------------------------------------------------------------------


def read_folder(
    root: Path, channels: int, spec: DataSpec, progress: Progress | None = None, lenient: bool = False
) -> Source:
    """train/ with val/ or test/ beside it, or class folders alone; images outside a class folder are unlabelled.

    A class folder without an image is refused, or, where one is `lenient`, listed.
    """
    remarks: list[str] = []
    empty: list[Path] = []
    folders = _split_folders(root, remarks)
    entries = [
        (split, path, label)
        for split, folder in folders.items()
        for path, label in _class_files(folder, remarks, empty)
    ]
    if empty and not lenient:
        raise BadInput(f"class folder {empty[0]} has no image; fill it or remove it")
    if folders["train"] != root:  # unlabelled/ may stand beside train/ as well as in it
        entries += [
            ("train", path, "")
            for child in sorted(root.iterdir())
            if is_unlabelled(child)
            for path in sorted(_walk(child))
            if path.suffix.lower() in SUFFIXES
        ]
    if not entries:
        raise BadInput(f"{root}: no image in it; wanted class folders with {', '.join(sorted(SUFFIXES))} files")
    _say_one_class({label for _, _, label in entries if label}, folders["train"], remarks)
    _say_same_folders({path.parent for _, path, _ in entries}, remarks)
    found = from_items(entries, root, channels, spec, progress, remarks)
    return replace(found, empty=tuple(map(str, empty)))


def check_apart(source: str, out: Path) -> None:
    """Refuse to write where the next look at a folder of images would take it for a class, or for images."""
    root = Path(source)
    if not source or source in BUILT_IN or not root.is_dir():
        return
    read = [*_split_folders(root, []).values(), *(child for child in root.iterdir() if is_unlabelled(child))]
    for folder in read:
        try:
            within = out.resolve().relative_to(folder.resolve())
        except ValueError:
            continue
        if not any(part.startswith(".") for part in within.parts):  # such folders are passed over
            raise BadInput(
                f"{out} lies in {_told(folder)}, whose folders are taken for classes, so {_told(root)} "
                "would be other data from then on; choose another --out"
            )


def _told(folder: Path) -> Path:
    """As it was typed, but for one of no name: `.` tells nobody where that is."""
    return folder if folder.name.strip(".") else folder.resolve()


def is_unlabelled(folder: Path) -> bool:
    """By its name, in capitals or not, as with the names of splits."""
    return folder.name.lower() in UNLABELLED_FOLDERS


def _split_folders(root: Path, remarks: list[str]) -> dict[str, Path]:
    """train/, val/ and test/ below the root; where they are not, or are classes themselves, the root is train."""
    children = [child for child in sorted(root.iterdir()) if not child.name.startswith(".")]
    named = [child for child in children if child.name.lower() in SPLIT_NAMES and child.is_dir()]
    beside = [child for child in children if child not in named]
    among_classes = len(named) == 1 and any(child.is_dir() for child in beside)
    if among_classes and not any(child.is_dir() for child in named[0].iterdir()):
        # CIFAR-100 has a class called train
        remarks.append(f"{named[0]} is taken for a class: it has no class folders in it, and other folders beside it")
        return {"train": root}
    folders: dict[str, Path] = {}
    for child in named:
        split = SPLIT_NAMES[child.name.lower()]
        if split in folders:
            raise BadInput(f"{root} has both {folders[split].name}/ and {child.name}/ for {split}; keep one of them")
        folders[split] = child
    if folders and "train" not in folders:
        name = next(iter(folders.values())).name
        raise BadInput(f"{root} has {name}/ but no train/; to use {name}/ as the data, give {root / name}")
    beside = [child for child in beside if not is_unlabelled(child)]
    if folders and beside:
        remarks.append(f"{root}: {', '.join(child.name for child in beside)} beside {folders['train'].name}/ left out")
    return folders or {"train": root}


def _class_files(folder: Path, remarks: list[str], empty: list[Path]) -> Iterable[tuple[Path, str]]:
    """(file, class) for each image below a split's folder; the class is the first folder on the way, '' if none."""
    ignored: list[Path] = []
    for child in sorted(folder.iterdir()):
        if child.name.startswith("."):
            continue
        if not child.is_dir():  # a link that leads nowhere is told by who opens it
            if child.suffix.lower() in SUFFIXES:
                yield child, ""
            else:
                ignored.append(child)
            continue
        found = False
        for path in sorted(_walk(child)):
            if path.suffix.lower() in SUFFIXES:
                found = True
                yield path, "" if is_unlabelled(child) else child.name
            else:
                ignored.append(path)
        if not found:
            empty.append(child)
    if ignored:
        kinds = Counter(path.suffix.lower() or "without a suffix" for path in ignored).most_common(5)
        were = "was" if len(ignored) == 1 else "were"
        remarks.append(
            f"{folder}: {counted(len(ignored), 'file is', 'files are')} of no image format that is read "
            f"here and {were} left out ({', '.join(f'{count} {kind}' for kind, count in kinds)}), such as "
            f"{ignored[0].name}"
        )


def _say_one_class(classes: set[str], folder: Path, remarks: list[str]) -> None:
    """An archive often unpacks into a folder within a folder, which then passes for the only class."""
    if len(classes) != 1:
        return
    only = folder / next(iter(classes))
    if not only.is_dir():  # only what is held out has labels
        return
    within = [child.name for child in sorted(only.iterdir()) if child.is_dir() and child.name[0] != "."]
    if len(within) > 1:
        remarks.append(
            f"{folder}: the only class is {only.name}, which has {len(within)} folders in it, such as "
            f"{within[0]}; for those as classes, give {only}"
        )


def _say_same_folders(folders: set[Path], remarks: list[str]) -> None:
    """A link makes of one folder two classes, or trains on what is held out."""
    first: dict[str, Path] = {}
    for folder in sorted(folders):
        other = first.setdefault(os.path.realpath(folder), folder)
        if other != folder:
            remarks.append(f"{folder} is the same folder as {other}, by a link: its images are there twice")
            return


def _walk(folder: Path) -> Iterable[Path]:
    def refuse(error: OSError) -> None:
        raise error  # os.walk would pass over what it may not read

    seen: set[str] = set()
    if not folder.is_dir():
        return
    for directory, below, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(directory)
        if real in seen:  # a link back to where we were
            below.clear()
            continue
        seen.add(real)
        # such as .ipynb_checkpoints; sorted: of two ways to the same folder the same one on every machine
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in files:
            if not name.startswith("."):
                yield Path(directory) / name


def read_csv(path: Path, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """A table with columns path, label and, if there, split; paths start from the table's own folder."""
    entries = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            names = Counter(rows.fieldnames or ())
            missing = {"path", "label"} - set(names)
            if missing:
                have = ", ".join(rows.fieldnames or ()) or "nothing"
                raise BadInput(
                    f"{path}: no column {sorted(missing)[0]!r}; the first line has {have}, wanted path,label[,split]"
                )
            twice = next((name for name in ("path", "label", "split") if names[name] > 1), None)
            if twice is not None:
                raise BadInput(f"{path}: {names[twice]} columns are called {twice!r}; keep one of them")
            for row in rows:
                if any(row.get(None) or ()):  # what is beyond the last column: a label 'cat, grey' would become 'cat'
                    raise BadInput(
                        f"{path} line {rows.line_num}: more values than the {len(rows.fieldnames or ())} "
                        "columns of the first line; put a value that has a comma in double quotes"
                    )
                entries.append(_csv_entry(row, path, rows.line_num, spec.skip_bad_images))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: not a csv file in UTF-8 ({error}); save it in that encoding") from None
    if not entries:
        raise BadInput(f"{path}: no image is listed; each line below the first is path,label[,split]")
    if not any(split == "train" for split, _, _ in entries):
        raise BadInput(f"{path}: no row has split 'train'; give it to some, or drop the column")
    remarks: list[str] = []
    again = [file for file, times in Counter(os.path.abspath(file) for _, file, _ in entries).items() if times > 1]
    if again:
        remarks.append(
            f"{path}: {counted(len(again), 'file is', 'files are')} listed more than once, such as "
            f"{again[0]}; one that is trained on and held out too judges nothing"
        )
    return from_items(entries, path.parent, channels, spec, progress, remarks)


def _csv_entry(row: dict[str, str | None], table: Path, line: int, skip_bad: bool) -> tuple[str, Path, str]:
    if any("\n" in (value or "") for value in (row["path"], row["label"])):  # it has swallowed the lines below it
        raise BadInput(
            f"{table}, up to line {line}: a value reaches over several lines; close its double quote, and "
            "write a quote that belongs to it twice"
        )
    if not row["path"]:
        raise BadInput(f"{table} line {line}: no path; wanted path,label[,split]")
    file = table.parent / row["path"]
    if not skip_bad and not file.is_file():  # else it is listed with what cannot be read
        raise BadInput(
            f"{table} line {line}: no file {row['path']!r} (looked in {table.parent}); mend the path, "
            "remove the line, or pass --skip-bad-images"
        )
    split = (row.get("split") or "train").strip().lower()
    if split not in SPLIT_NAMES:
        raise BadInput(f"{table} line {line}: split {split!r}; wanted train, val or test")
    label = (row["label"] or "").strip()
    return SPLIT_NAMES[split], file, "" if label in NO_LABEL else label
