"""Sources from other libraries: `torchvision:NAME@ROOT` and `hf:NAME`. We download nothing."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from supancl.data.decode import file_stamp, open_image_bytes, open_image_file
from supancl.data.labels import LabelSet, join_names, set_of_names
from supancl.data.listing import Entry, Listing, list_entries
from supancl.data.sources import arrays
from supancl.data.splits import SPLIT_NAMES
from supancl.errors import BadInput, did_you_mean
from supancl.files import reason

LSUN_CACHE = "torchvision unpickles a cache file in the working folder, which could run code"
UNSAFE_DATASETS = {"LSUN": LSUN_CACHE, "LSUNClass": LSUN_CACHE}  # -> why
SPLIT_NAMES_TO_TRY = {
    "train": ("train", "trainval", "train_noval"),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}


@dataclass(frozen=True, slots=True, eq=False)
class RowItem:
    """Row `index` of a data set that reads images by number."""

    name: str
    index: int
    dataset_hash: int  # of the whole data set; changes with its content
    read: Callable[[int], Any]

    def __str__(self) -> str:
        return f"{self.name}[{self.index}]"

    def stamp(self) -> tuple[int, int]:
        return self.index, self.dataset_hash

    def open(self) -> Any:
        image = self.read(self.index)
        if image is None:
            raise ValueError("holds no image")
        if isinstance(image, dict):  # Hugging Face, undecoded
            return open_image_bytes(image["bytes"]) if image.get("bytes") else open_image_file(image["path"])
        if not isinstance(image, Image.Image):
            raise ValueError(f"holds a {type(image).__name__}, not an image")
        return image.copy()  # decoding closes it, and the data set may return the same object again


# --- torchvision ------------------------------------------------------------------------------------------------------


def read_torchvision(text: str, channels: int) -> Listing:
    """Open torchvision:NAME@ROOT: a class of torchvision.datasets whose files are below ROOT."""
    from torchvision import datasets

    name, separator, root = text.partition("@")
    available = [class_name for class_name in dir(datasets) if inspect.isclass(getattr(datasets, class_name))]
    if name in UNSAFE_DATASETS:
        raise BadInput(f"torchvision:{name} is not offered: {UNSAFE_DATASETS[name]}; save its images as class folders")
    available = [class_name for class_name in available if class_name not in UNSAFE_DATASETS]
    if name not in available:
        raise BadInput(f"torchvision has no data set {name!r}{did_you_mean(name, available)}")
    if not separator or not root:
        raise BadInput(f"torchvision:{name}: no folder for its files; write torchvision:{name}@ROOT")
    datasets_by_split, remarks = _torchvision_splits(getattr(datasets, name), name, Path(root))
    pixels = {split: _pixel_array(data) for split, data in datasets_by_split.items()}
    labels = {split: _class_numbers(data, f"torchvision:{name}") for split, data in datasets_by_split.items()}
    classes = next(
        (_class_names(data.classes) for data in datasets_by_split.values() if getattr(data, "classes", None)), None
    )
    if all(array is not None for array in pixels.values()):
        pairs = {split: (array, labels[split]) for split, array in pixels.items() if array is not None}
        return replace(arrays.list_arrays(pairs, channels, f"torchvision:{name}", classes), remarks=tuple(remarks))
    highest_label = max(int(numbers.max(initial=-1)) for numbers in labels.values())
    if classes is None:
        classes = tuple(str(i) for i in range(1 + highest_label))
    if highest_label >= len(classes):
        raise BadInput(f"torchvision:{name}@{root}: label {highest_label} has no name; it names {len(classes)} classes")
    entries: list[Entry] = []
    for split, data in datasets_by_split.items():
        items = _list_items(data, f"torchvision:{name}.{split}", Path(root))
        names = [classes[label] if label >= 0 else "" for label in labels[split].tolist()]
        entries += [(split, item, label) for item, label in zip(items, names, strict=True)]
    return list_entries(entries, f"torchvision:{name}@{root}", classes=classes, remarks=tuple(remarks))


def _torchvision_splits(dataset_class: Any, name: str, root: Path) -> tuple[dict[str, Any], list[str]]:
    """Its splits by our names, and remarks on those that could not be opened."""
    parameters = inspect.signature(dataset_class).parameters
    attempts: dict[str, list[dict[str, Any]]] = {"train": [{}]}
    if "train" in parameters:
        attempts = {"train": [{"train": True}], "test": [{"train": False}]}
    elif "split" in parameters:
        attempts = {split: [{"split": option} for option in names] for split, names in SPLIT_NAMES_TO_TRY.items()}
    datasets_by_split: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for split, alternatives in attempts.items():
        for arguments in alternatives:
            try:
                datasets_by_split[split] = dataset_class(str(root), **arguments)
                break
            except Exception as error:  # each class raises something else
                if "Valid values are" not in str(error):  # the split exists, but its files do not
                    failures.setdefault(split, reason(error))
    if "train" not in datasets_by_split:
        cause = failures.get("train", "it has no training split")
        raise BadInput(
            f"torchvision:{name}@{root}: cannot be opened ({cause}); put its files there, for example "
            f"with torchvision.datasets.{name}({str(root)!r}, download=True)"
        )
    unopened = {split: cause for split, cause in failures.items() if split not in datasets_by_split}
    return datasets_by_split, [
        f"torchvision:{name}@{root}: no {split} split ({cause})" for split, cause in unopened.items()
    ]


def _class_names(names: Sequence[Any]) -> tuple[str, ...]:
    """One unique name per class; ImageNet's are tuples of synonyms, and two of its classes are called crane."""
    all_names = [", ".join(map(str, name)) if isinstance(name, (tuple, list)) else str(name) for name in names]
    count = Counter(all_names)
    return tuple(f"{name} ({i})" if count[name] > 1 else name for i, name in enumerate(all_names))


def _list_items(data: Any, name: str, root: Path) -> Sequence[Path | RowItem]:
    """The image files if the data set lists them, else its rows, which count as changed when anything below the root
    has changed."""
    for attribute in ("_image_files", "_images", "_samples", "samples", "images"):
        listed = getattr(data, attribute, None)
        if isinstance(listed, list) and len(listed) == len(data):
            files = [row[0] if isinstance(row, tuple) else row for row in listed]
            if all(isinstance(file, (str, Path)) for file in files) and Path(files[0]).is_file():
                return [Path(file) for file in files]
    dataset_hash = _hash_folder(root)
    return [RowItem(name, i, dataset_hash, _image_reader(data)) for i in range(len(data))]


def _pixel_array(data: Any) -> np.ndarray | None:
    """The pixels (N, H, W[, 3]) if the data set holds them in memory."""
    pixels = getattr(data, "data", None)
    if pixels is None or isinstance(pixels, list):
        return None
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return None
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 and array.shape[1] == 3 and array.shape[3] != 3 else array


def _class_numbers(data: Any, location: str) -> np.ndarray:
    """The class number of every sample; images are opened only if the data set does not list the numbers."""
    candidates = [getattr(data, attribute, None) for attribute in ("targets", "labels", "_labels", "y")]
    rows: list[Any] = getattr(data, "_samples", None) or getattr(data, "samples", None) or []
    try:
        for values in (*candidates, [row[1] for row in rows]):
            if values is not None and len(values) == len(data):
                numbers = np.asarray(values)
                if numbers.ndim == 1 and numbers.dtype.kind in "iu":
                    return numbers.astype(np.int64)
        return np.array([int(data[i][1]) for i in range(len(data))], np.int64)
    except Exception:  # its samples are not pairs with a number
        raise BadInput(f"{location}: its samples are not (image, class number); save it as class folders") from None


def _image_reader(data: Any) -> Callable[[int], Any]:
    return lambda index: data[index][0]


def _hash_folder(root: Path) -> int:
    """A hash of everything below the root: names, sizes and modification times."""
    content = hashlib.sha256()
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        for name in sorted(files):
            with contextlib.suppress(OSError):
                content.update(f"{folder}/{name}\0{file_stamp(Path(folder, name))}".encode("utf-8", "surrogateescape"))
    return int(content.hexdigest()[:15], 16)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Let the libraries of Hugging Face look into their caches alone, not for hosts."""
    try:
        from datasets import config
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def list_hugging_face(text: str, channels: int) -> Listing:
    """List hf:NAME: a data set of the hub or a folder written by save_to_disk. Needs the extra `hf`."""
    try:
        import datasets
    except ImportError:
        raise BadInput(f"hf:{text}: needs the package datasets; pip install 'supancl[hf]'") from None
    if not text:
        raise BadInput("hf: names no data set; write hf:NAME, such as hf:beans, or hf:FOLDER")
    dataset = _load_dataset(datasets, text)
    splits = dict(dataset) if isinstance(dataset, datasets.DatasetDict) else {"train": dataset}
    name_by_split, remarks = _hugging_face_splits(splits, text)
    entries: list[Entry] = []
    classes: tuple[str, ...] | None = None
    for split, name in name_by_split.items():
        data, location = splits[name], f"hf:{text} ({name})"
        image, label = _find_columns(datasets, data, location)
        names = getattr(_element(data.features[label]), "names", None) if label else None
        if names and classes not in (None, tuple(names)):
            raise BadInput(
                f"{location}: its classes differ from those of the other splits; cast them to one ClassLabel"
            )
        classes = tuple(names) if names else classes
        values = data[label] if label else [None] * len(data)
        _check_lists(values, names, f"{location}: column {label}")
        labels = _label_names(values, names)
        cache_name = os.path.realpath(text) if Path(text).exists() else text
        items = _list_rows(datasets, data, image, f"hf:{cache_name}.{name}")
        entries += [(split, item, label) for item, label in zip(items, labels, strict=True)]
    label_sets: dict[str, LabelSet] = {label: set_of_names(label) for label in {label for _, _, label in entries}}
    if classes is not None and not {name for labels in label_sets.values() for name in labels} <= set(classes):
        raise BadInput(f"hf:{text}: only some splits name their classes; cast them to one ClassLabel")
    return list_entries(entries, f"hf:{text}", label_sets, remarks=tuple(remarks), classes=classes, by_number=True)


def _hugging_face_splits(splits: dict[str, Any], text: str) -> tuple[dict[str, str], list[str]]:
    """Our split name -> theirs, and remarks on splits that are left out."""
    name_by_split: dict[str, str] = {}
    remarks = []
    for name in splits:
        split = SPLIT_NAMES.get(name.lower())
        if split is None:
            remarks.append(f"hf:{text}: split {name} is neither train, val nor test and is ignored")
        elif split in name_by_split:
            raise BadInput(
                f"hf:{text} has both {name_by_split[split]} and {name} for {split}; save one of them alone "
                "(save_to_disk) and give that folder"
            )
        else:
            name_by_split[split] = name
    if "train" not in name_by_split:
        raise BadInput(f"hf:{text}: no training split; it has {', '.join(splits)}")
    return name_by_split, remarks


def _list_rows(datasets: Any, data: Any, column: str, name: str) -> Sequence[Path | RowItem]:
    """The files that the rows refer to, else the rows, which hold the bytes."""
    raw = data.cast_column(column, datasets.Image(decode=False))
    if len(raw) and not (raw[0][column] or {}).get("bytes"):
        images = [image or {} for image in raw[column]]
        if all(image.get("path") and not image.get("bytes") for image in images):
            return [Path(image["path"]) for image in images]
    dataset_hash = int(hashlib.sha256(str(data._fingerprint).encode()).hexdigest()[:15], 16)
    read = _column_reader(raw, column)
    return [RowItem(name, i, dataset_hash, read) for i in range(len(data))]


def _load_dataset(datasets: Any, text: str) -> Any:
    try:
        folder = Path(text)
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            return datasets.load_from_disk(text)
        return datasets.load_dataset(text)
    except Exception as error:  # network, hub, arrow and pickle each raise something else
        raise BadInput(
            f"hf:{text}: cannot be loaded ({reason(error)}); check the name, or give a folder written by save_to_disk"
        ) from None


def _find_columns(datasets: Any, data: Any, location: str) -> tuple[str, str | None]:
    """Names of the image column and of the label column (None if there is none)."""
    images = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    if not images:
        raise BadInput(f"{location}: no column of images; it has {', '.join(data.features)}")
    usual = [name for name in ("label", "labels", "fine_label", "class") if name in data.features]
    labels = [name for name, kind in data.features.items() if isinstance(kind, datasets.ClassLabel)]
    if not labels:
        labels = [name for name, kind in data.features.items() if isinstance(_element(kind), datasets.ClassLabel)]
    return images[0], next((name for name in usual if name in labels), (labels or usual or [None])[0])


def _element(kind: Any) -> Any:
    """What a column's lists hold, or the kind itself if it holds no lists."""
    if isinstance(kind, list):  # how early versions write Sequence
        return kind[0] if kind else None
    return getattr(kind, "feature", kind)


def _check_lists(values: Iterable[Any], names: Sequence[str] | None, location: str) -> None:
    """Refuse lists of numbers without names that are weights of all classes, not the classes of an image."""
    if names:
        return
    for value in values:
        items = value if isinstance(value, (list, tuple)) else ()
        numbers = [item for item in items if isinstance(item, (bool, int, float)) and item != -1]
        if any(isinstance(number, (bool, float)) for number in numbers) or len(set(numbers)) < len(numbers):
            raise BadInput(
                f"{location} holds {str(value)[:80]}, which are no classes of an image; give lists of class numbers or "
                "names, or save weights as a .npz with train_labels (N, C)"
            )


def _label_names(values: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    """The label of each row: a class, or as `join_names` the classes in a list."""

    def to_name(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return join_names(name for name in map(to_name, value) if name)
        if value is None or value == -1:
            return ""
        return str(names[value]) if names else str(value)

    return [to_name(value) for value in values]


def _column_reader(data: Any, column: str) -> Callable[[int], Any]:
    return lambda index: data[index][column]


READERS: dict[str, Callable[[str, int], Listing]] = {"torchvision": read_torchvision, "hf": list_hugging_face}
