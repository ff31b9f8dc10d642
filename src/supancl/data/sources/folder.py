"""Source: a folder of images with train/ and val/ or test/, or class folders alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

from supancl.data.decode import LISTED_SUFFIXES
from supancl.data.listing import Listing, list_entries
from supancl.data.sources.arrays import BUILT_IN
from supancl.data.splits import SPLIT_NAMES
from supancl.errors import BadInput

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled", "_unlabelled", "_unlabeled")


def list_folder(root: Path, lenient: bool = False, nested: bool = False) -> Listing:
    """List a folder with train/ and val/ or test/, or with class folders. Images outside class folders are unlabelled.

    An empty class folder is refused, or listed if `lenient`. With `nested`, folders in class folders are classes too,
    with names such as animal/cat.
    """
    empty: list[Path] = []
    ignored: list[Path] = []
    folders = _split_folders(root)
    entries = [
        (split, path, label)
        for split, folder in folders.items()
        for path, label in _class_files(folder, ignored, empty, nested)
    ]
    if empty and not lenient:
        raise BadInput(f"class folder {empty[0]} has no image; fill it or remove it")
    if folders["train"] != root:  # unlabelled/ may be next to train/ or inside it
        entries += [
            ("train", path, "")
            for child in sorted(root.iterdir())
            if is_unlabelled(child)
            for path in sorted(_iter_files(child))
            if path.suffix.lower() in LISTED_SUFFIXES
        ]
    if not entries:
        raise BadInput(f"{root}: no image in it; add class folders with {', '.join(sorted(LISTED_SUFFIXES))} files")
    remarks = [f"{root}: files that are no images: {len(ignored)}, such as {ignored[0].name}"] if ignored else []
    return list_entries(entries, root, remarks=tuple(remarks), empty_folders=tuple(map(str, empty)))


def check_out_folder(source: str, out: Path) -> None:
    """Refuse an output folder inside the image folders: it would be read as a class the next time."""
    root = Path(source)
    if not source or source in BUILT_IN or not root.is_dir():
        return
    image_folders = [*_split_folders(root).values(), *(child for child in root.iterdir() if is_unlabelled(child))]
    for folder in image_folders:
        try:
            relative = out.resolve().relative_to(folder.resolve())
        except ValueError:
            continue
        if not any(map(is_hidden, relative.parts)):  # hidden folders are not read
            raise BadInput(
                f"{out} is inside {_readable_path(folder)}, whose folders are read as classes, so it would change "
                f"the data in {_readable_path(root)}; choose another out"
            )


def _readable_path(folder: Path) -> Path:
    """The folder as typed, with `.` and `..` resolved."""
    return folder if folder.name.strip(".") else folder.resolve()


def is_unlabelled(folder: Path) -> bool:
    """Whether the name says unlabelled, in any case."""
    return folder.name.lower() in UNLABELLED_FOLDERS


def is_hidden(name: str) -> bool:
    """Whether a file or folder is no data: .DS_Store, ._1.jpg, .ipynb_checkpoints, and what macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def _split_folders(root: Path) -> dict[str, Path]:
    """train/, val/ and test/ below the root; if there are none, or they are classes, the root is train."""
    children = [child for child in sorted(root.iterdir()) if not is_hidden(child.name) and child.is_dir()]
    split_named = [child for child in children if child.name.lower() in SPLIT_NAMES]
    if len(split_named) == 1 and len(children) > 1 and not any(child.is_dir() for child in split_named[0].iterdir()):
        return {"train": root}  # CIFAR-100 has a class called train
    folders: dict[str, Path] = {}
    for child in split_named:
        split = SPLIT_NAMES[child.name.lower()]
        if split in folders:
            raise BadInput(f"{root} has both {folders[split].name}/ and {child.name}/ for {split}; keep one of them")
        folders[split] = child
    if folders and "train" not in folders:
        name = next(iter(folders.values())).name
        raise BadInput(f"{root} has {name}/ but no train/; to use {name}/ as the data, give {root / name}")
    return folders or {"train": root}


def _class_files(folder: Path, ignored: list[Path], empty: list[Path], nested: bool) -> Iterable[tuple[Path, str]]:
    """(file, class) for each image of a split; the class is the first folder below it, '' if none.

    With `nested` it is the whole path of folders below the split.
    """
    for child in sorted(folder.iterdir()):
        if is_hidden(child.name):
            continue
        names: dict[Path, str] = {}  # of folders with an image in them
        is_folder = child.is_dir()  # a broken link is reported when it is opened
        for path in sorted(_iter_files(child)) if is_folder else [child]:
            if path.suffix.lower() not in LISTED_SUFFIXES:
                ignored.append(path)
                continue
            class_folder = path.parent if nested or not is_folder else child
            if class_folder not in names:
                names[class_folder] = _class_name(class_folder, folder)
            yield path, names[class_folder]
        filled = {path for class_folder in names for path in (class_folder, *class_folder.parents)}
        is_class = is_folder and not is_unlabelled(child)
        class_folders = ([path for path, _ in _walk(child)] if nested else [child]) if is_class else []
        empty += [path for path in class_folders if path not in filled]


def _class_name(class_folder: Path, split_folder: Path) -> str:
    """The folders from the split to the class, down to one that says unlabelled: '' if that is the first."""
    parts = class_folder.relative_to(split_folder).parts
    return "/".join(takewhile(lambda part: part.lower() not in UNLABELLED_FOLDERS, parts))


def _iter_files(folder: Path) -> Iterator[Path]:
    for directory, files in _walk(folder):
        yield from (directory / name for name in files)


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder from this one down, with its files; none that are hidden."""

    def refuse(error: OSError) -> None:
        raise error  # os.walk would skip unreadable folders silently

    visited: set[str] = set()
    if not folder.is_dir():
        return
    for directory, subfolders, files in os.walk(folder, onerror=refuse, followlinks=True):
        target = os.path.realpath(directory)
        if target in visited:  # a link to a folder above
            subfolders.clear()
            continue
        visited.add(target)
        # no hidden ones (.ipynb_checkpoints); sorted, so that of two links to a folder every machine takes the same
        subfolders[:] = sorted(name for name in subfolders if not is_hidden(name))
        yield Path(directory), [name for name in files if not is_hidden(name)]
