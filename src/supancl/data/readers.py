"""Readers, one per kind of source. Each gives splits and class names, or one line that says what is wrong."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.data.images import SUFFIXES, ArrayImages, FileImages, ImageStore, RaggedImages, decode
from supancl.data.sources import DataSpec, Progress, Source, Split, whole
from supancl.data.toy import toy_source
from supancl.errors import BadInput

SPLIT_NAMES = {
    "train": "train", "training": "train", "trainval": "train",
    "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}
UNLABELLED_FOLDERS = ("unlabelled", "unlabeled", "_unlabelled", "_unlabeled")


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
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files if key != "class_names"}
            names = archive["class_names"] if "class_names" in archive.files else None
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, KeyError) as error:
        reason = "it holds pickled objects, which are never executed here" if "pickle" in str(error) else str(error)
        raise BadInput(f"{path}: cannot be read ({reason}); save it with numpy.savez and plain arrays") from None
    if names is not None and names.dtype.kind not in "US":
        raise BadInput(f"{path}: class_names must be strings, not {names.dtype}")
    splits = {}
    for split in ("train", "val", "test"):
        if f"{split}_images" not in arrays:
            if split == "train":
                raise BadInput(f"{path}: no train_images; it has {', '.join(sorted(arrays)) or 'nothing'}")
            continue
        if f"{split}_labels" not in arrays:
            raise BadInput(f"{path}: {split}_images has no {split}_labels; store -1 for images without a label")
        splits[split] = (arrays[f"{split}_images"], arrays[f"{split}_labels"])
    return from_splits(splits, channels, str(path), None if names is None else tuple(map(str, names)))


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
    if not len(images):
        raise BadInput(f"{where} is empty")
    return images, int(images.shape[3])


def _checked_labels(labels: np.ndarray, images: int, where: str) -> Tensor:
    if labels.dtype.kind not in "iu":
        raise BadInput(f"{where} holds {labels.dtype}; labels must be integers, -1 for unlabelled")
    if labels.shape != (images,):
        raise BadInput(f"{where} has shape {labels.shape} for {images} images; wanted ({images},)")
    if labels.size and int(labels.min()) < -1:
        raise BadInput(f"{where} holds {int(labels.min())}; labels are 0, 1, ... and -1 for unlabelled")
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


def read_folder(root: Path, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """train/ with val/ or test/ beside it, or class folders alone; images outside a class folder are unlabelled."""
    folders = {SPLIT_NAMES[p.name]: p for p in sorted(root.iterdir()) if p.is_dir() and p.name in SPLIT_NAMES}
    if folders and "train" not in folders:
        name = next(iter(folders.values())).name
        raise BadInput(f"{root} has {name}/ but no train/; to use {name}/ as the data, give {root / name}")
    folders = folders or {"train": root}
    remarks: list[str] = []
    entries = [
        (split, path, label) for split, folder in folders.items() for path, label in _class_files(folder, remarks)
    ]
    if not entries:
        raise BadInput(f"{root}: no image in it; wanted class folders with {', '.join(sorted(SUFFIXES))} files")
    return _from_files(entries, root, channels, spec, progress, remarks)


def _class_files(folder: Path, remarks: list[str]) -> Iterable[tuple[Path, str]]:
    """(file, class) for each image below a split's folder; the class is the first folder on the way, '' if none."""
    ignored: list[Path] = []
    for child in sorted(folder.iterdir()):
        if child.name.startswith("."):
            continue
        if child.is_file():
            if child.suffix.lower() in SUFFIXES:
                yield child, ""
            else:
                ignored.append(child)
            continue
        found = False
        for path in sorted(_walk(child)):
            if path.suffix.lower() in SUFFIXES:
                found = True
                yield path, "" if child.name in UNLABELLED_FOLDERS else child.name
            else:
                ignored.append(path)
        if not found:
            raise BadInput(f"class folder {child} has no image; fill it or remove it")
    if ignored:
        remarks.append(f"{folder}: {len(ignored)} files are no images and were left out, such as {ignored[0].name}")


def _walk(folder: Path) -> Iterable[Path]:
    for directory, _, files in os.walk(folder, followlinks=True):
        for name in files:
            if not name.startswith("."):
                yield Path(directory) / name


def read_csv(path: Path, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """A table with columns path, label and, if there, split; paths start from the table's own folder."""
    entries = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            missing = {"path", "label"} - set(rows.fieldnames or ())
            if missing:
                have = ", ".join(rows.fieldnames or ()) or "nothing"
                raise BadInput(f"{path}: no column {sorted(missing)[0]!r}; the first line has {have}, "
                               "wanted path,label[,split]")
            for row in rows:
                entries.append(_csv_entry(row, path, rows.line_num))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: not a csv file in UTF-8 ({error})") from None
    if not entries:
        raise BadInput(f"{path}: no image is listed")
    if not any(split == "train" for split, _, _ in entries):
        raise BadInput(f"{path}: no row has split 'train'")
    return _from_files(entries, path.parent, channels, spec, progress, [])


def _csv_entry(row: dict[str, str | None], table: Path, line: int) -> tuple[str, Path, str]:
    if not row["path"]:
        raise BadInput(f"{table} line {line}: no path")
    file = table.parent / row["path"]
    if not file.is_file():
        raise BadInput(f"{table} line {line}: no file {row['path']!r} (looked in {table.parent})")
    split = (row.get("split") or "train").strip().lower()
    if split not in SPLIT_NAMES:
        raise BadInput(f"{table} line {line}: split {split!r}; wanted train, val or test")
    label = (row["label"] or "").strip()
    return SPLIT_NAMES[split], file, "" if label == "-1" else label


def _from_files(
    entries: list[tuple[str, Path, str]],
    root: Path,
    channels: int,
    spec: DataSpec,
    progress: Progress | None,
    remarks: list[str],
) -> Source:
    """Decode every file once, keep the pixels if they fit, and refuse (or list and skip) what cannot be read."""
    images, broken = _decoded([path for _, path, _ in entries], channels, spec, progress)
    if broken and not spec.skip_bad_images:
        path, reason = broken[0]
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise BadInput(f"{path}: cannot be read as an image ({reason}){more}; mend or remove it, "
                       "or pass --skip-bad-images to go on without")
    bad = {path for path, _ in broken}
    if bad:
        keep = [i for i, (_, path, _) in enumerate(entries) if path not in bad]
        entries = [entries[i] for i in keep]
        images = None if images is None else [images[i] for i in keep]
        remarks.append(f"{len(bad)} unreadable images were skipped: " + ", ".join(sorted(str(path) for path in bad)))
    if not any(split == "train" for split, _, _ in entries):
        raise BadInput(f"{root}: no readable training image")
    classes = tuple(sorted({label for _, _, label in entries if label}))
    ids = {name: i for i, name in enumerate(classes)} | {"": -1}
    store = _store([path for _, path, _ in entries], images, channels, spec)
    labels = torch.tensor([ids[label] for _, _, label in entries])
    every = whole(store, labels, [str(path) for _, path, _ in entries])
    of_split = np.array([split for split, _, _ in entries])
    splits: dict[str, Split] = {
        name: every.take(torch.from_numpy(np.flatnonzero(of_split == name))) for name in sorted(set(of_split.tolist()))
    }
    return Source(splits, classes, tuple(remarks), tuple(sorted(str(path) for path in bad)))


def _decoded(
    paths: list[Path], channels: int, spec: DataSpec, progress: Progress | None
) -> tuple[list[Tensor] | None, list[tuple[Path, str]]]:
    """Pixels of all files (None once they outgrow data.memory_gb) and the files that could not be read."""
    images: list[Tensor] | None = []
    broken: list[tuple[Path, str]] = []
    used = 0

    def one(path: Path) -> Tensor | str:
        try:
            return decode(path, channels, spec.short_side)
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__

    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as threads:
        for done, (path, image) in enumerate(zip(paths, threads.map(one, paths), strict=True), start=1):
            if isinstance(image, str):
                broken.append((path, image.partition("'/")[0].strip() if "cannot identify" in image else image))
                image = torch.zeros(channels, 1, 1, dtype=torch.uint8)
            used += image.numel()
            if images is not None:
                images.append(image)
                if used > spec.memory_gb * 1e9:
                    images = None
            if progress is not None:
                progress("reading images", done, len(paths))
    return images, broken


def _store(paths: list[Path], images: list[Tensor] | None, channels: int, spec: DataSpec) -> ImageStore:
    if images is None:
        return FileImages(paths, channels, spec.short_side)
    if len({tuple(image.shape) for image in images}) == 1:
        return ArrayImages(torch.stack(images))
    return RaggedImages(images)
