"""Sources from other libraries: `torchvision:NAME@ROOT` and `hf:NAME`. We download nothing."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from supancl.data.decode import Item, MadeItem, file_stamp, open_image_bytes, open_image_file
from supancl.data.sources import arrays
from supancl.data.splits import SPLIT_NAMES, SPLITS, Entry, Source, list_entries
from supancl.data.store.memory import LazyItems
from supancl.errors import BadInput, did_you_mean
from supancl.files import reason

UNSAFE_DATASETS = ("LSUN", "LSUNClass")  # torchvision unpickles a cache file in the working folder: it could run code


def _rows(name: str, count: int, content: str, read: Callable[[int], Any]) -> LazyItems:
    """The rows of a data set that reads images by number; they change with the content of the whole."""
    dataset_hash = int(hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:15], 16)

    def open_row(index: int) -> Any:
        image = read(index)
        if isinstance(image, dict):  # Hugging Face, undecoded
            return open_image_bytes(image["bytes"]) if image.get("bytes") else open_image_file(image["path"])
        if not isinstance(image, Image.Image):
            raise ValueError("holds no image")
        return image.copy()  # decoding closes it, and the data set may return the same object again

    return LazyItems(
        count, lambda index: MadeItem(f"{name}[{index}]", partial(open_row, index), lambda: (index, dataset_hash))
    )


# --- torchvision ------------------------------------------------------------------------------------------------------


def read_torchvision(text: str, channels: int) -> Source:
    """Open torchvision:NAME@ROOT: a class of torchvision.datasets whose files are below ROOT."""
    from torchvision import datasets

    name, _, root = text.partition("@")
    kinds = {key: kind for key, kind in vars(datasets).items() if inspect.isclass(kind) and key not in UNSAFE_DATASETS}
    if name not in kinds or not root:
        raise BadInput(f"torchvision:{text}: write torchvision:NAME@ROOT{did_you_mean(name, kinds)}")
    location, splits = f"torchvision:{name}@{root}", _torchvision_splits(kinds[name], name, Path(root))
    pixels = {split: _pixel_array(data) for split, data in splits.items()}
    labels = {split: _class_numbers(data, location) for split, data in splits.items()}
    classes = next((_class_names(data.classes) for data in splits.values() if getattr(data, "classes", None)), None)
    if all(array is not None for array in pixels.values()):
        pairs = {split: (array, labels[split]) for split, array in pixels.items() if array is not None}
        return arrays.list_arrays(pairs, channels, f"torchvision:{name}", classes)
    counts = {split: len(data) for split, data in splits.items()}
    numbers, classes = arrays.number_labels(labels, counts, location, classes)
    items = [item for split, data in splits.items() for item in _list_items(data, f"torchvision:{name}.{split}", root)]
    split_numbers = np.repeat([SPLITS.index(split) for split in splits], list(counts.values())).astype(np.uint8)
    return Source(items, split_numbers, numbers, classes, location)


def _torchvision_splits(dataset_class: Any, name: str, root: Path) -> dict[str, Any]:
    """Its splits by our names."""
    parameters = inspect.signature(dataset_class).parameters
    attempts: list[tuple[str, dict[str, Any]]] = [("train", {})]
    if "train" in parameters:
        attempts = [("train", {"train": True}), ("test", {"train": False})]
    elif "split" in parameters:
        attempts = [(split, {"split": option}) for option, split in (SPLIT_NAMES | {"train_noval": "train"}).items()]
    splits, cause = dict[str, Any](), ""
    for split, arguments in attempts:
        try:
            splits[split] = splits.get(split) or dataset_class(str(root), **arguments)
        except Exception as error:  # each class raises something else
            if "Valid values are" not in str(error):  # the split exists, but its files do not
                cause = cause or reason(error)
    if "train" not in splits:
        raise BadInput(f"torchvision:{name}@{root}: cannot be opened ({cause}); put its files there (download=True)")
    return splits


def _class_names(names: Sequence[Any]) -> tuple[str, ...]:
    """One unique name per class; ImageNet's are tuples of synonyms, and two of its classes are called crane."""
    all_names = [", ".join(map(str, name)) if isinstance(name, (tuple, list)) else str(name) for name in names]
    count = Counter(all_names)
    return tuple(f"{name} ({i})" if count[name] > 1 else name for i, name in enumerate(all_names))


def _list_items(data: Any, name: str, root: str) -> Sequence[Item]:
    """The image files if the data set lists them, else its rows, which count as changed when anything below the root
    has changed."""
    for attribute in ("_image_files", "_images", "_samples", "samples", "images"):
        listed = getattr(data, attribute, None)
        if isinstance(listed, list) and len(listed) == len(data):
            files = [row[0] if isinstance(row, tuple) else row for row in listed]
            if all(isinstance(file, (str, Path)) for file in files) and Path(files[0]).is_file():
                return [Path(file) for file in files]
    files = [path for path in sorted(Path(root).rglob("*")) if path.is_file()]
    content = "".join(f"{path}\0{file_stamp(path)}" for path in files)
    return _rows(name, len(data), content, lambda index: data[index][0])


def _pixel_array(data: Any) -> np.ndarray | None:
    """The pixels (N, H, W[, 3]) if the data set holds them in memory."""
    pixels = getattr(data, "data", None)
    array = np.asarray(None if isinstance(pixels, list) else pixels)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return None
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 and array.shape[1] == 3 and array.shape[3] != 3 else array


def _class_numbers(data: Any, location: str) -> np.ndarray:
    """The class number of every sample; images are opened only if the data set does not list the numbers."""
    candidates = [getattr(data, attribute, None) for attribute in ("targets", "labels", "_labels", "y")]
    rows: list[Any] = getattr(data, "_samples", None) or getattr(data, "samples", None) or []
    try:
        for values in (*candidates, [row[1] for row in rows]):
            numbers = np.asarray(() if values is None else values)
            if numbers.shape == (len(data),) and numbers.dtype.kind in "iu":
                return numbers.astype(np.int64)
        return np.array([int(data[i][1]) for i in range(len(data))], np.int64)
    except Exception:  # its samples are not pairs with a number
        raise BadInput(f"{location}: its samples are not (image, class number); save it as class folders") from None


# --- Hugging Face -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def local_caches(sources: Iterable[str]) -> Iterator[None]:
    """For sources that the user has not named: the libraries of Hugging Face look into their caches, not for hosts."""
    with ExitStack() as stack:
        for library in ("datasets.config", "huggingface_hub.constants") * any(x.startswith("hf:") for x in sources):
            with contextlib.suppress(ImportError):
                module: Any = import_module(library)
                stack.callback(setattr, module, "HF_HUB_OFFLINE", module.HF_HUB_OFFLINE)
                module.HF_HUB_OFFLINE = True
        yield


def list_hugging_face(text: str, channels: int) -> Source:
    """List hf:NAME: a data set of the hub or a folder written by save_to_disk. Needs the extra `hf`."""
    try:
        import datasets
    except ImportError:
        raise BadInput(f"hf:{text}: needs the package datasets; pip install 'supancl[hf]'") from None
    try:
        folder = Path(text)
        is_saved = (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()
        dataset = (datasets.load_from_disk if is_saved else datasets.load_dataset)(text)
    except Exception as error:  # network, hub, arrow and pickle each raise something else
        raise BadInput(f"hf:{text}: cannot be loaded ({reason(error)}); or give a folder of save_to_disk") from None
    splits = dict(dataset) if isinstance(dataset, datasets.DatasetDict) else {"train": dataset}
    names = {split: [name for name in splits if SPLIT_NAMES.get(name.lower()) == split] for split in SPLITS}
    if not names["train"] or any(len(each) > 1 for each in names.values()):
        raise BadInput(f"hf:{text}: splits {', '.join(splits)}: one must be train, one at most val and test each")
    entries, all_classes = list[Entry](), set[tuple[str, ...] | None]()
    cache_name = os.path.realpath(text) if Path(text).exists() else text
    for split, (name, *_) in ((split, found) for split, found in names.items() if found):
        data, location = splits[name], f"hf:{text} ({name})"
        image, label = _find_columns(datasets, data, location)
        kind = data.features[label] if label else None
        listed = getattr(getattr(kind, "feature", kind), "names", None)  # of a column of lists: of what they hold
        all_classes.add(tuple(listed) if listed else None)
        labels = [_label_names(value, listed) for value in (data[label] if label else [None] * len(data))]
        items = _list_rows(datasets, data, image, f"hf:{cache_name}.{name}")
        entries += [(split, item, label) for item, label in zip(items, labels, strict=True)]
    if len(all_classes) > 1:
        raise BadInput(f"hf:{text}: the classes of its splits differ")
    return list_entries(entries, f"hf:{text}", classes=all_classes.pop(), by_number=True)


def _list_rows(datasets: Any, data: Any, column: str, name: str) -> Sequence[Item]:
    """The files that the rows refer to, else the rows, which hold the bytes."""
    raw = data.cast_column(column, datasets.Image(decode=False))
    if len(raw) and not (raw[0][column] or {}).get("bytes"):
        images = [image or {} for image in raw[column]]
        if all(image.get("path") and not image.get("bytes") for image in images):
            return [Path(image["path"]) for image in images]
    return _rows(name, len(data), str(data._fingerprint), lambda index: raw[index][column])


def _find_columns(datasets: Any, data: Any, location: str) -> tuple[str, str | None]:
    """Names of the image column and of the label column (None if there is none)."""
    images = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    if not images:
        raise BadInput(f"{location}: no column of images; it has {', '.join(data.features)}")
    usual = [name for name in ("label", "labels", "fine_label", "class") if name in data.features]
    features = {name: getattr(kind, "feature", kind) for name, kind in data.features.items()}
    labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    return images[0], next((name for name in usual if name in labels), (labels or usual or [None])[0])


def _label_names(value: Any, names: Sequence[str] | None) -> str | tuple[str, ...]:
    """The class of a row, '' for none; of a list the classes in it."""
    if value is None or value == -1:
        return ""
    present = [item for item in value if item != -1] if isinstance(value, (list, tuple)) else []
    if isinstance(value, float) or (names is None and len(set(present)) < len(present)):  # or weights of all classes
        raise BadInput(f"the label {str(value)[:80]} is no class; save weights as a .npz with train_labels (N, C)")
    if isinstance(value, (list, tuple)):
        return tuple(sorted({str(_label_names(item, names)) for item in value} - {""}))
    return str(names[value]) if names else str(value)


READERS: dict[str, Callable[[str, int], Source]] = {"torchvision": read_torchvision, "hf": list_hugging_face}
