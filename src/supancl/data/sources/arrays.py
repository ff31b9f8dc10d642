"""Sources in memory: arrays from Python, `.npz` files, the built-in digits and toy data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.data.sources.toy import toy_source
from supancl.data.splits import Source, full_split
from supancl.data.store.memory import ArrayImages
from supancl.errors import BadInput, plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

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
    arrays = _load_npz(path)
    names = arrays.pop("class_names", None)
    if names is not None and (names.dtype.kind not in "US" or names.ndim != 1):
        raise BadInput(f"{path}: class_names has shape {names.shape} of {names.dtype}; it must be a list of strings")
    if names is not None and names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8", "replace")
    splits = {}
    for split in ("train", "val", "test"):
        if f"{split}_images" not in arrays:
            if split == "train":
                raise BadInput(
                    f"{path}: no train_images; it has {', '.join(sorted(arrays)) or 'nothing'}; save it with "
                    "train_images and train_labels"
                )
            continue
        if f"{split}_labels" not in arrays:
            raise BadInput(f"{path}: {split}_images has no {split}_labels; add them, with -1 for unlabelled images")
        splits[split] = (arrays[f"{split}_images"], arrays[f"{split}_labels"])
    return source_from_arrays(splits, channels, str(path), None if names is None else tuple(map(str, names)))


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of the archive; nothing is unpickled."""
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array, not an archive")
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # numpy, zipfile and zlib each raise something else
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = "it holds pickled objects, which are never executed" if "pickle" in reason else reason
        raise BadInput(f"{path}: cannot be read ({reason}); save it with numpy.savez and plain arrays") from None


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


def _checked_images(images: np.ndarray, location: str) -> tuple[np.ndarray, int]:
    if images.dtype != np.uint8:
        raise BadInput(f"{location} holds {images.dtype}; images must be uint8, 0 to 255")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise BadInput(f"{location} has shape {images.shape}; it must be (N, H, W), (N, H, W, 1) or (N, H, W, 3)")
    if not images.size:
        raise BadInput(f"{location} is empty (shape {images.shape}); give at least one image of one pixel")
    return images, int(images.shape[3])


def _checked_labels(labels: np.ndarray, num_images: int, location: str) -> Tensor:
    if labels.dtype.kind not in "iu":
        raise BadInput(f"{location} holds {labels.dtype}; labels must be integers, -1 for unlabelled")
    if labels.shape != (num_images,):
        raise BadInput(
            f"{location} has shape {labels.shape} for {plural(num_images, 'image')}; it must be ({num_images},)"
        )
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
    return (pixels * weights).sum(1, keepdim=True).round().to(torch.uint8)
