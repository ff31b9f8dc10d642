"""Data sets of other libraries as sources: `torchvision:NAME@ROOT` and `hf:NAME`. Nothing is downloaded by us."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from supancl.data.decode import file_stamp
from supancl.data.sources import arrays
from supancl.data.splits import SPLIT_NAMES, Entry, Listing, Source
from supancl.errors import BadInput, did_you_mean, plural
from supancl.files import reason

SPLITS = {"train": ("train", "trainval", "train_noval"), "val": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True, slots=True, eq=False)
class RowItem:
    """Row `index` of a data set that opens images by number."""

    name: str
    index: int
    state: int  # of the whole data set: another number, other content
    read: Callable[[int], Any]

    def __str__(self) -> str:
        return f"{self.name}[{self.index}]"

    def stamp(self) -> tuple[int, int]:
        return self.index, self.state

    def open(self) -> Any:
        image = self.read(self.index)
        if image is None:
            raise ValueError("holds no image")
        if isinstance(image, dict):  # Hugging Face, undecoded
            return Image.open(io.BytesIO(image["bytes"]) if image.get("bytes") else image["path"])
        if not isinstance(image, Image.Image):
            raise ValueError(f"holds a {type(image).__name__}, not an image")
        return image.copy()  # it is closed after decoding, and the data set may hand the same one out again


# --- torchvision ------------------------------------------------------------------------------------------------------


def read_torchvision(text: str, channels: int) -> Source | Listing:
    """torchvision:NAME@ROOT, a class of torchvision.datasets whose files lie below ROOT."""
    from torchvision import datasets

    name, at, root = text.partition("@")
    kinds = [each for each in dir(datasets) if inspect.isclass(getattr(datasets, each))]
    if name not in kinds:
        raise BadInput(f"torchvision has no data set {name!r}{did_you_mean(name, kinds)}")
    if not at or not root:
        raise BadInput(f"torchvision:{name}: where are its files? Write torchvision:{name}@ROOT")
    built, remarks = _torchvision_splits(getattr(datasets, name), name, Path(root))
    pixels = {split: _array(data) for split, data in built.items()}
    labels = {split: _labels(data, f"torchvision:{name}") for split, data in built.items()}
    classes = next((_class_names(data.classes) for data in built.values() if getattr(data, "classes", None)), None)
    if all(array is not None for array in pixels.values()):
        pairs = {split: (array, labels[split]) for split, array in pixels.items() if array is not None}
        source = arrays.source_from_arrays(pairs, channels, f"torchvision:{name}", classes)
        return replace(source, remarks=(*source.remarks, *remarks))
    highest = max(int(each.max(initial=-1)) for each in labels.values())
    if classes is None:
        classes = tuple(str(i) for i in range(1 + highest))
    if highest >= len(classes):
        raise BadInput(
            f"torchvision:{name}@{root}: label {highest} has no name; it names "
            f"{plural(len(classes), 'class', 'classes')}"
        )
    entries: list[Entry] = []
    for split, data in built.items():
        items = _items(data, f"torchvision:{name}.{split}", Path(root))
        named = [classes[label] if label >= 0 else "" for label in labels[split].tolist()]
        entries += [(split, item, label) for item, label in zip(items, named, strict=True)]
    return Listing(entries, Path(root), tuple(remarks), classes)


def _torchvision_splits(kind: Any, name: str, root: Path) -> tuple[dict[str, Any], list[str]]:
    """Its splits by our names, and which of those it knows could not be opened."""
    options = inspect.signature(kind).parameters
    wanted: dict[str, list[dict[str, Any]]] = {"train": [{}]}
    if "train" in options:
        wanted = {"train": [{"train": True}], "test": [{"train": False}]}
    elif "split" in options:
        wanted = {ours: [{"split": theirs} for theirs in names] for ours, names in SPLITS.items()}
    built: dict[str, Any] = {}
    said: dict[str, str] = {}
    for split, tries in wanted.items():
        for option in tries:
            try:
                built[split] = kind(str(root), **option)
                break
            except Exception as error:  # each of its classes refuses in a way of its own
                if "Valid values are" not in str(error):  # it knows this split, but not from these files
                    said.setdefault(split, reason(error))
    if "train" not in built:
        refused = said.get("train", "it has no training split")
        raise BadInput(
            f"torchvision:{name}@{root}: cannot be opened ({refused}); lay its files out there, for example "
            f"with torchvision.datasets.{name}({str(root)!r}, download=True)"
        )
    lost = {split: why for split, why in said.items() if split not in built}
    return built, [f"torchvision:{name}@{root}: no {split} split ({why})" for split, why in lost.items()]


def _class_names(names: Sequence[Any]) -> tuple[str, ...]:
    """One name a class; ImageNet's are tuples of synonyms, and two of its classes are both called crane."""
    joined = [", ".join(map(str, name)) if isinstance(name, (tuple, list)) else str(name) for name in names]
    count = Counter(joined)
    return tuple(f"{name} ({i})" if count[name] > 1 else name for i, name in enumerate(joined))


def _items(data: Any, where: str, root: Path) -> Sequence[Path | RowItem]:
    """The image files where the data set lists them; else its rows, which count as changed when anything below the
    root has changed."""
    for attribute in ("_image_files", "_images", "_samples", "samples", "images"):
        found = getattr(data, attribute, None)
        if isinstance(found, list) and len(found) == len(data):
            files = [row[0] if isinstance(row, tuple) else row for row in found]
            if all(isinstance(file, (str, Path)) for file in files) and Path(files[0]).is_file():
                return [Path(file) for file in files]
    state = _content_number(root)
    return [RowItem(where, i, state, _first_of(data)) for i in range(len(data))]


def _array(data: Any) -> np.ndarray | None:
    """The pixels (N, H, W[, 3]) of a data set that keeps them in memory."""
    pixels = getattr(data, "data", None)
    if pixels is None or isinstance(pixels, list):
        return None
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return None
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 and array.shape[1] == 3 and array.shape[3] != 3 else array


def _labels(data: Any, where: str) -> np.ndarray:
    """The class number of every sample, without opening images where the data set keeps the numbers."""
    candidates = [getattr(data, attribute, None) for attribute in ("targets", "labels", "_labels", "y")]
    rows: list[Any] = getattr(data, "_samples", None) or getattr(data, "samples", None) or []
    try:
        for found in (*candidates, [row[1] for row in rows]):
            if found is not None and len(found) == len(data):
                numbers = np.asarray(found)
                if numbers.ndim == 1 and numbers.dtype.kind in "iu":
                    return numbers.astype(np.int64)
        return np.array([int(data[i][1]) for i in range(len(data))], np.int64)
    except Exception:  # whatever its samples are, they are something else
        raise BadInput(f"{where}: its samples are not (image, class number); unpack it into class folders") from None


def _first_of(data: Any) -> Callable[[int], Any]:
    return lambda index: data[index][0]


def _content_number(root: Path) -> int:
    """A number for all that lies below the root: names, sizes and times of change."""
    content = hashlib.sha256()
    for folder, below, files in os.walk(root):
        below.sort()
        for name in sorted(files):
            with contextlib.suppress(OSError):
                content.update(f"{folder}/{name}\0{file_stamp(Path(folder, name))}".encode("utf-8", "surrogateescape"))
    return int(content.hexdigest()[:15], 16)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def list_hugging_face(text: str, channels: int) -> Listing:
    """hf:NAME, a data set of the hub or a folder written by save_to_disk; the extra `hf` brings the library."""
    try:
        import datasets
    except ImportError:
        raise BadInput(f"hf:{text}: needs the library datasets; pip install 'supancl[hf]'") from None
    if not text:
        raise BadInput("hf: names no data set; write hf:NAME, such as hf:beans, or hf:FOLDER")
    loaded = _load_dataset(datasets, text)
    splits = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    taken, remarks = _hugging_face_splits(splits, text)
    entries: list[Entry] = []
    classes: tuple[str, ...] | None = None
    for split, name in taken.items():
        data, where = splits[name], f"hf:{text} ({name})"
        image, label = _columns(datasets, data, where)
        names = getattr(data.features[label], "names", None) if label else None
        if names and classes not in (None, tuple(names)):
            raise BadInput(f"{where}: its classes are not those of the splits before it; cast them to one ClassLabel")
        classes = tuple(names) if names else classes
        labels = _names(data[label] if label else [None] * len(data), names)
        items = _rows(datasets, data, image, f"hf:{_cache_name(text)}.{name}")
        entries += [(split, item, label) for item, label in zip(items, labels, strict=True)]
    if classes is not None and not {label for _, _, label in entries} <= {"", *classes}:
        raise BadInput(f"hf:{text}: some splits name their classes and others do not; cast them to one ClassLabel")
    return Listing(entries, Path(text), tuple(remarks), classes, by_number=True)


def _hugging_face_splits(splits: dict[str, Any], text: str) -> tuple[dict[str, str], list[str]]:
    """Our name of a split -> theirs, and which of theirs are left out."""
    taken: dict[str, str] = {}
    remarks = []
    for name in splits:
        split = SPLIT_NAMES.get(name.lower())
        if split is None:
            remarks.append(f"hf:{text}: split {name} is neither train, val nor test and is left out")
        elif split in taken:
            raise BadInput(
                f"hf:{text} has both {taken[split]} and {name} for {split}; save one of them alone "
                "(save_to_disk) and give that folder"
            )
        else:
            taken[split] = name
    if "train" not in taken:
        raise BadInput(f"hf:{text}: no training split; it has {', '.join(splits)}")
    return taken, remarks


def _rows(datasets: Any, data: Any, column: str, where: str) -> Sequence[Path | RowItem]:
    """The files that the rows point to, else the rows with their bytes."""
    raw = data.cast_column(column, datasets.Image(decode=False))
    if len(raw) and not (raw[0][column] or {}).get("bytes"):
        images = [image or {} for image in raw[column]]
        if all(image.get("path") and not image.get("bytes") for image in images):
            return [Path(image["path"]) for image in images]
    state = int(hashlib.sha256(str(data._fingerprint).encode()).hexdigest()[:15], 16)
    read = _image_of(raw, column)
    return [RowItem(where, i, state, read) for i in range(len(data))]


def _cache_name(text: str) -> str:
    return os.path.realpath(text) if Path(text).exists() else text


def _load_dataset(datasets: Any, text: str) -> Any:
    try:
        folder = Path(text)
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            return datasets.load_from_disk(text)
        return datasets.load_dataset(text)
    except Exception as error:  # network, hub, arrow and pickle each fail in their own way
        raise BadInput(
            f"hf:{text}: cannot be loaded ({reason(error)}); check the name, or give a folder written by save_to_disk"
        ) from None


def _columns(datasets: Any, data: Any, where: str) -> tuple[str, str | None]:
    """The column of images and that of labels, None where there is none."""
    images = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    if not images:
        raise BadInput(f"{where}: no column of images; it has {', '.join(data.features)}")
    labels = [name for name, kind in data.features.items() if isinstance(kind, datasets.ClassLabel)]
    plain = [name for name in ("label", "labels", "fine_label", "class") if name in data.features]
    return images[0], next((name for name in plain if name in labels), (labels or plain or [None])[0])


def _names(values: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    def one(value: Any) -> str:
        if value is None or value == -1:
            return ""
        return str(names[value]) if names else str(value)

    return [one(value) for value in values]


def _image_of(data: Any, column: str) -> Callable[[int], Any]:
    return lambda index: data[index][column]


KINDS: dict[str, Callable[[str, int], Source | Listing]] = {"torchvision": read_torchvision, "hf": list_hugging_face}
