"""Data sets of other libraries as sources: `torchvision:NAME@ROOT` and `hf:NAME`. Nothing is downloaded by us."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from supancl.data import readers
from supancl.data.decoding import Entry, from_items
from supancl.data.sources import DataSpec, Progress, Source
from supancl.errors import BadInput, nearest
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
        if isinstance(image, dict):  # Hugging Face, undecoded
            return Image.open(io.BytesIO(image["bytes"]) if image.get("bytes") else image["path"])
        if not isinstance(image, Image.Image):
            raise ValueError(f"holds a {type(image).__name__}, not an image")
        return image.copy()  # it is closed after decoding, and the data set may hand the same one out again


# --- torchvision ------------------------------------------------------------------------------------------------------


def read_torchvision(text: str, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """torchvision:NAME@ROOT, a class of torchvision.datasets whose files lie below ROOT."""
    from torchvision import datasets

    name, at, root = text.partition("@")
    kinds = [each for each in dir(datasets) if inspect.isclass(getattr(datasets, each))]
    if name not in kinds:
        raise BadInput(f"torchvision has no data set {name!r}{nearest(name, kinds)}")
    if not at or not root:
        raise BadInput(f"torchvision:{name}: where are its files? Write torchvision:{name}@ROOT")
    built = _torchvision_splits(getattr(datasets, name), name, Path(root))
    arrays = {split: _array(data) for split, data in built.items()}
    labels = {split: _labels(data, f"torchvision:{name}") for split, data in built.items()}
    classes = next((tuple(map(str, data.classes)) for data in built.values() if getattr(data, "classes", None)), None)
    if all(array is not None for array in arrays.values()):
        pairs = {split: (array, labels[split]) for split, array in arrays.items() if array is not None}
        return readers.from_splits(pairs, channels, f"torchvision:{name}", classes)
    if classes is None:
        classes = tuple(str(i) for i in range(1 + max(int(each.max()) for each in labels.values())))
    state = _state(Path(root))
    entries: list[Entry] = [
        (split, RowItem(f"torchvision:{name}.{split}", i, state, _first_of(data)), classes[label] if label >= 0 else "")
        for split, data in built.items() for i, label in enumerate(labels[split].tolist())
    ]
    return from_items(entries, Path(root), channels, spec, progress, [], classes)


def _torchvision_splits(kind: Any, name: str, root: Path) -> dict[str, Any]:
    options = inspect.signature(kind).parameters
    wanted: dict[str, list[dict[str, Any]]] = {"train": [{}]}
    if "train" in options:
        wanted = {"train": [{"train": True}], "test": [{"train": False}]}
    elif "split" in options:
        wanted = {ours: [{"split": theirs} for theirs in names] for ours, names in SPLITS.items()}
    built, said = {}, ""
    for split, tries in wanted.items():
        for option in tries:
            try:
                built[split] = kind(str(root), **option)
                break
            except Exception as error:  # each of its classes refuses in a way of its own
                said = said or reason(error)
    if "train" not in built:
        raise BadInput(f"torchvision:{name}@{root}: cannot be opened ({said}); lay its files out there, for example "
                       f"with torchvision.datasets.{name}({str(root)!r}, download=True)")
    return built


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
    for attribute in ("targets", "labels", "_labels", "y"):
        found = getattr(data, attribute, None)
        if found is not None and len(found) == len(data):
            return np.asarray(found, dtype=np.int64)
    if hasattr(data, "_samples") and len(data._samples) == len(data):
        return np.array([int(sample[1]) for sample in data._samples])
    try:
        return np.array([int(data[i][1]) for i in range(len(data))])
    except (TypeError, ValueError, IndexError, KeyError):
        raise BadInput(f"{where}: its samples are not (image, class number); unpack it into class folders") from None


def _first_of(data: Any) -> Callable[[int], Any]:
    return lambda index: data[index][0]


def _state(root: Path) -> int:
    return root.stat().st_mtime_ns if root.exists() else 0


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def read_hugging_face(text: str, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """hf:NAME, a data set of the hub or a folder written by save_to_disk; the extra `hf` brings the library."""
    try:
        import datasets
    except ImportError:
        raise BadInput(f"hf:{text}: needs the library datasets; pip install 'supancl[hf]'") from None
    if not text:
        raise BadInput("hf: names no data set; write hf:NAME, such as hf:beans, or hf:FOLDER")
    loaded = _loaded(datasets, text)
    splits = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    entries: list[Entry] = []
    classes: tuple[str, ...] | None = None
    for name, data in splits.items():
        split = readers.SPLIT_NAMES.get(name.lower())
        if split is None:
            continue
        image, label = _columns(datasets, data, f"hf:{text} ({name})")
        names = getattr(data.features[label], "names", None) if label else None
        classes = tuple(names) if names else classes
        raw = data.cast_column(image, datasets.Image(decode=False))
        state = int(str(data._fingerprint)[:15], 16) if str(data._fingerprint)[:15].isalnum() else 0
        labels = _names(data[label] if label else [None] * len(data), names)
        read = _image_of(raw, image)
        entries += [(split, RowItem(f"hf:{text}.{name}", i, state, read), labels[i]) for i in range(len(data))]
    if not any(split == "train" for split, _, _ in entries):
        raise BadInput(f"hf:{text}: no training split; it has {', '.join(splits)}")
    return from_items(entries, Path(text), channels, spec, progress, [], classes)


def _loaded(datasets: Any, text: str) -> Any:
    try:
        folder = Path(text)
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            return datasets.load_from_disk(text)
        return datasets.load_dataset(text)
    except Exception as error:  # network, hub, arrow and pickle each fail in their own way
        raise BadInput(f"hf:{text}: cannot be loaded ({reason(error)}); check the name, or give a folder written by "
                       "save_to_disk") from None


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


KINDS = {"torchvision": read_torchvision, "hf": read_hugging_face}
