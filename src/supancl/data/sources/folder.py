"""A folder of images: train/ with val/ or test/ beside it, or class folders alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from supancl.data.decode import SUFFIXES
from supancl.data.sources.arrays import BUILT_IN
from supancl.data.splits import SPLIT_NAMES, Listing
from supancl.errors import BadInput, plural

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled", "_unlabelled", "_unlabeled")


def list_folder(root: Path, lenient: bool = False) -> Listing:
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
    _remark_on_one_class({label for _, _, label in entries if label}, folders["train"], remarks)
    _remark_on_links({path.parent for _, path, _ in entries}, remarks)
    return Listing(entries, root, tuple(remarks), empty=tuple(map(str, empty)))


def check_apart(source: str, out: Path) -> None:
    """Refuse an output folder inside the folders of images: the next reader would take it for a class."""
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
                f"{out} lies in {_readable_path(folder)}, whose folders are taken for classes, so "
                f"{_readable_path(root)} would be other data from then on; choose another --out"
            )


def _readable_path(folder: Path) -> Path:
    """The folder as it was typed; `.` and `..` in full."""
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
            f"{folder}: {plural(len(ignored), 'file is', 'files are')} of no image format that is read "
            f"here and {were} left out ({', '.join(f'{count} {kind}' for kind, count in kinds)}), such as "
            f"{ignored[0].name}"
        )


def _remark_on_one_class(classes: set[str], folder: Path, remarks: list[str]) -> None:
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


def _remark_on_links(folders: set[Path], remarks: list[str]) -> None:
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
