"""Sources in memory: arrays from Python, `.npz` files, the built-in digits and toy data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.data.sources.npz import NpzArchive, open_npz
from supancl.data.sources.toy import toy_source
from supancl.data.splits import Source, full_split
from supancl.data.store.memory import ArrayImages
from supancl.errors import BadInput, plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

GREY_CHUNK_BYTES = 2**22
MAX_CLASSES = 1_000_000  # a larger label is hardly a class number: each number up to it becomes a class


def digits_source(channels: int) -> Source:
    """The 1,797 handwritten digits (8 x 8) that ship inside scikit-learn."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    images = (dataset.images * (255 / 16)).round().astype(np.uint8)
    return source_from_arrays({"train": (images, dataset.target)}, channels, "digits", tuple("0123456789"))


BUILT_IN: dict[str, Callable[[int], Source]] = {"digits": digits_source, "toy": toy_source}


def read_npz(path: Path, channels: int) -> Source:
    """A source from train_images and train_labels, and optionally val_*, test_* and class_names."""
    try:
        with open_npz(path) as archive:
            return _read_npz(archive, channels)
    except BadInput:
        raise
    except Exception as error:  # numpy, zipfile and zlib each raise something else
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadInput(f"{path}: cannot be read ({reason}); save it with numpy.savez and plain arrays") from None


def _read_npz(archive: NpzArchive, channels: int) -> Source:
    """Only the arrays that are needed are read, and only after the headers of all of them were checked."""
    path, headers = archive.path, archive.headers
    if "class_names" in headers:
        shape, dtype = headers["class_names"]
        if dtype.kind not in "US" or len(shape) != 1:
            raise BadInput(f"{path}: class_names has shape {shape} of {dtype}; it must be a list of strings")
    splits = []
    for split in ("train", "val", "test"):
        if f"{split}_images" not in headers:
            if split == "train":
                raise BadInput(
                    f"{path}: no train_images; it has {', '.join(sorted(headers)) or 'nothing'}; save it with "
                    "train_images and train_labels"
                )
            continue
        if f"{split}_labels" not in headers:
            raise BadInput(f"{path}: {split}_images has no {split}_labels; add them, with -1 for unlabelled images")
        shape, dtype = headers[f"{split}_images"]
        check_image_array(shape, dtype, f"{path}: {split}_images")
        check_label_array(*headers[f"{split}_labels"], shape[0], f"{path}: {split}_labels")
        splits.append(split)
    names = [*(f"{split}_{part}" for split in splits for part in ("images", "labels")), "class_names"]
    archive.check_sizes([name for name in names if name in headers])
    class_names = archive.read("class_names") if "class_names" in headers else None
    if class_names is not None and class_names.dtype.kind == "S":
        class_names = np.char.decode(class_names, "utf-8", "replace")
    arrays = {split: (archive.read(f"{split}_images"), archive.read(f"{split}_labels")) for split in splits}
    classes = None if class_names is None else tuple(map(str, class_names))
    return source_from_arrays(arrays, channels, str(path), classes)


def source_from_arrays(
    splits: dict[str, tuple[np.ndarray, np.ndarray]], channels: int, location: str, classes: tuple[str, ...] | None
) -> Source:
    """A source from (images, labels) by split; `location` names it in messages."""
    by_split, depth_by_split = {}, {}
    for name, (images, labels) in splits.items():
        images, depth = _checked_images(np.asarray(images), f"{location}: {name}_images")
        depth_by_split[name] = depth
        label_ids = _checked_labels(np.asarray(labels), len(images), f"{location}: {name}_labels")
        store = ArrayImages(_convert_channels(images, channels))
        by_split[name] = full_split(store, label_ids, _RowNames(f"{name}_images", len(images)))
    if len(set(depth_by_split.values())) > 1:
        counts = ", ".join(f"{name} {depth}" for name, depth in depth_by_split.items())
        raise BadInput(f"{location}: images have different channel counts ({counts}); convert them to one")
    highest_label = max(int(split.labels.max()) if len(split) else -1 for split in by_split.values())
    if classes is None:
        classes = tuple(str(i) for i in range(highest_label + 1))
    if highest_label >= len(classes):
        raise BadInput(
            f"{location}: label {highest_label} has no name; class_names has {len(classes)}, give one per label"
        )
    return Source(by_split, classes)


class _RowNames(Sequence[str]):
    """Names such as 'train_images[17]', built on demand."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return f"{self.name}[{index}]"


def check_image_array(shape: tuple[int, ...], dtype: np.dtype[Any], location: str) -> None:
    """Refuse an array that is not one of images; its shape and type are in the header of its file."""
    if dtype != np.uint8:
        raise BadInput(f"{location} holds {dtype}; images must be uint8, 0 to 255")
    shape = (*shape, 1) if len(shape) == 3 else shape
    if len(shape) != 4 or shape[3] not in (1, 3):
        raise BadInput(f"{location} has shape {shape}; it must be (N, H, W), (N, H, W, 1) or (N, H, W, 3)")
    if not math.prod(shape):
        raise BadInput(f"{location} is empty (shape {shape}); give at least one image of one pixel")


def check_label_array(shape: tuple[int, ...], dtype: np.dtype[Any], num_images: int, location: str) -> None:
    if dtype.kind not in "iu":
        raise BadInput(f"{location} holds {dtype}; labels must be integers, -1 for unlabelled")
    if shape != (num_images,):
        raise BadInput(f"{location} has shape {shape} for {plural(num_images, 'image')}; it must be ({num_images},)")


def _checked_images(images: np.ndarray, location: str) -> tuple[np.ndarray, int]:
    check_image_array(images.shape, images.dtype, location)
    images = images[..., None] if images.ndim == 3 else images
    return images, int(images.shape[3])


def _checked_labels(labels: np.ndarray, num_images: int, location: str) -> Tensor:
    check_label_array(labels.shape, labels.dtype, num_images, location)
    if labels.size and int(labels.min()) < -1:
        raise BadInput(f"{location} holds {int(labels.min())}; labels are 0, 1, ... and -1 for unlabelled")
    if labels.size and int(labels.max()) >= MAX_CLASSES:
        raise BadInput(
            f"{location} holds {int(labels.max())}; labels are class numbers 0, 1, ... below {MAX_CLASSES}, "
            "and -1 for unlabelled"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _convert_channels(images: np.ndarray, channels: int) -> Tensor:
    """(N, C, H, W) with `channels`: grey is repeated to RGB, RGB is weighted to grey."""
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    if pixels.shape[1] == channels:
        return pixels.contiguous()
    if channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([0.2989, 0.587, 0.114])[:, None, None]
    grey = torch.empty(len(pixels), 1, *pixels.shape[2:], dtype=torch.uint8)
    rows = max(1, GREY_CHUNK_BYTES // pixels[0].numel())  # as floats, all at once would take five times their memory
    for start in range(0, len(pixels), rows):
        chunk = pixels[start : start + rows]
        grey[start : start + rows] = (chunk * weights).sum(1, keepdim=True).round().to(torch.uint8)
    return grey
