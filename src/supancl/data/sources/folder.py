"""Source: a folder of images with train/ and val/ or test/, or class folders alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

from supancl.data.decode import LISTED_SUFFIXES
from supancl.data.sources.arrays import BUILT_IN
from supancl.data.splits import SPLIT_NAMES, Listing
from supancl.errors import BadInput, plural

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled", "_unlabelled", "_unlabeled")


def list_folder(root: Path, lenient: bool = False, nested: bool = False) -> Listing:
    """List a folder with train/ and val/ or test/, or with class folders. Images outside class folders are unlabelled.

    An empty class folder is refused, or listed if `lenient`. With `nested`, folders in class folders are classes too,
    with names such as animal/cat.
    """
    remarks: list[str] = []
    empty: list[Path] = []
    folders = _split_folders(root, remarks)
    entries = [
        (split, path, label)
        for split, folder in folders.items()
        for path, label in _class_files(folder, remarks, empty, nested)
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
    _remark_on_single_class({label for _, _, label in entries if label}, folders["train"], remarks)
    _remark_on_links({path.parent for _, path, _ in entries}, remarks)
    return Listing(entries, root, tuple(remarks), empty_folders=tuple(map(str, empty)))


def check_out_folder(source: str, out: Path) -> None:
    """Refuse an output folder inside the image folders: it would be read as a class the next time."""
    root = Path(source)
    if not source or source in BUILT_IN or not root.is_dir():
        return
    image_folders = [*_split_folders(root, []).values(), *(child for child in root.iterdir() if is_unlabelled(child))]
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


def _split_folders(root: Path, remarks: list[str]) -> dict[str, Path]:
    """train/, val/ and test/ below the root; if there are none, or they are classes, the root is train."""
    children = [child for child in sorted(root.iterdir()) if not is_hidden(child.name)]
    split_named = [child for child in children if child.name.lower() in SPLIT_NAMES and child.is_dir()]
    others = [child for child in children if child not in split_named]
    may_be_class = len(split_named) == 1 and any(child.is_dir() for child in others)
    if may_be_class and not any(child.is_dir() for child in split_named[0].iterdir()):
        # CIFAR-100 has a class called train
        remarks.append(
            f"{split_named[0]} is read as a class: it has no class folders, and there are other folders next to it"
        )
        return {"train": root}
    folders: dict[str, Path] = {}
    for child in split_named:
        split = SPLIT_NAMES[child.name.lower()]
        if split in folders:
            raise BadInput(f"{root} has both {folders[split].name}/ and {child.name}/ for {split}; keep one of them")
        folders[split] = child
    if folders and "train" not in folders:
        name = next(iter(folders.values())).name
        raise BadInput(f"{root} has {name}/ but no train/; to use {name}/ as the data, give {root / name}")
    others = [child for child in others if not is_unlabelled(child)]
    if folders and others:
        remarks.append(
            f"{root}: {', '.join(child.name for child in others)} next to {folders['train'].name}/ is ignored"
        )
    return folders or {"train": root}


def _class_files(folder: Path, remarks: list[str], empty: list[Path], nested: bool) -> Iterable[tuple[Path, str]]:
    """(file, class) for each image of a split; the class is the first folder below it, '' if none.

    With `nested` it is the whole path of folders below the split.
    """
    ignored: list[Path] = []
    for child in sorted(folder.iterdir()):
        if is_hidden(child.name):
            continue
        if not child.is_dir():  # a broken link is reported when it is opened
            if child.suffix.lower() in LISTED_SUFFIXES:
                yield child, ""
            else:
                ignored.append(child)
            continue
        names: dict[Path, str] = {}  # of folders with an image in them
        for path in sorted(_iter_files(child)):
            if path.suffix.lower() in LISTED_SUFFIXES:
                class_folder = path.parent if nested else child
                if class_folder not in names:
                    names[class_folder] = _class_name(class_folder, folder)
                yield path, names[class_folder]
            else:
                ignored.append(path)
        filled = {path for class_folder in names for path in (class_folder, *class_folder.parents)}
        class_folders = [] if is_unlabelled(child) else [path for path, _ in _walk(child)] if nested else [child]
        empty += [path for path in class_folders if path not in filled]
    if ignored:
        kinds = Counter(path.suffix.lower() or "without a suffix" for path in ignored).most_common(5)
        was_or_were = "was" if len(ignored) == 1 else "were"
        remarks.append(
            f"{folder}: {plural(len(ignored), 'file is', 'files are')} of no known image format "
            f"and {was_or_were} ignored ({', '.join(f'{count} {kind}' for kind, count in kinds)}), such as "
            f"{ignored[0].name}"
        )


def _class_name(class_folder: Path, split_folder: Path) -> str:
    """The folders from the split to the class, down to one that says unlabelled: '' if that is the first."""
    parts = class_folder.relative_to(split_folder).parts
    return "/".join(takewhile(lambda part: part.lower() not in UNLABELLED_FOLDERS, parts))


def _remark_on_single_class(classes: set[str], folder: Path, remarks: list[str]) -> None:
    """A remark if the only class is a folder of folders, as after unpacking an archive into a folder."""
    if len(classes) != 1:
        return
    class_folder = folder / next(iter(classes))
    if not class_folder.is_dir():  # only held-out images have labels
        return
    subfolders = [
        child.name for child in sorted(class_folder.iterdir()) if child.is_dir() and not is_hidden(child.name)
    ]
    if len(subfolders) > 1:
        remarks.append(
            f"{folder}: the only class is {class_folder.name}, which has {len(subfolders)} folders in it, such as "
            f"{subfolders[0]}; to use those as classes, give {class_folder}"
        )


def _remark_on_links(folders: set[Path], remarks: list[str]) -> None:
    """A remark if a link makes two classes of one folder, or puts held-out images into train."""
    first_by_target: dict[str, Path] = {}
    for folder in sorted(folders):
        other = first_by_target.setdefault(os.path.realpath(folder), folder)
        if other != folder:
            remarks.append(f"{folder} is a link to the same folder as {other}, so its images are used twice")
            return


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
