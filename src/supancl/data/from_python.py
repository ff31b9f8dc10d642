"""Images that are Python objects: arrays, tensors, Pillow images, paths, lists of them, and data sets of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from supancl.data.decode import LISTED_SUFFIXES, Resample, map_in_order, try_decode
from supancl.data.sources.arrays import check_image_array, close_gaps, convert_channels, list_arrays, number_labels
from supancl.data.spec import DataSpec
from supancl.data.splits import Source, list_stored
from supancl.data.store.memory import ArrayImages, Batch, PackedImages
from supancl.data.views.render import evaluation_short_side, evaluation_view
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

OneImage = np.ndarray | Image.Image | Path | str
Images = np.ndarray | Sequence[OneImage]


def is_image_file(name: object) -> bool:
    """Whether this is the path of one image, by its suffix.

    >>> is_image_file("photos/7.jpg"), is_image_file("photos")
    (True, False)
    """
    return isinstance(name, (str, Path)) and Path(name).suffix.lower() in LISTED_SUFFIXES


def as_array(images: Any, dims: int = 4) -> Any:
    """A tensor of `dims` dimensions as an array with its channels last; anything else as it is.

    >>> as_array(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), 4).shape
    (5, 8, 8, 3)
    """
    if not isinstance(images, torch.Tensor):
        return images
    if images.ndim == dims and images.shape[-3] in (1, 3) and images.shape[-1] not in (1, 3):
        images = images.movedim(-3, -1)
    return images.cpu().numpy()


def decode_any(image: OneImage, channels: int, short_side: int | None, resample: Resample = "bilinear") -> Tensor:
    """One image as uint8 (C, H, W), the same pixels as from a folder; an array keeps its size, as in a .npz."""
    if isinstance(image, (str, Path, Image.Image)):
        if isinstance(pixels := try_decode(image, channels, short_side, resample), str):
            raise BadInput(f"{image}: cannot be read as an image ({pixels})")
        return pixels
    array = np.asarray(as_array(image, 3) if hasattr(image, "__array__") else None)
    batch = array[None, ..., None] if array.ndim == 2 else array[None]
    check_image_array(batch.shape, batch.dtype, f"one image, of {type(image).__name__}")
    return convert_channels(batch, channels)[0]


@dataclass(frozen=True)
class Preprocessing:
    """From one image to the normalised tensor that an encoder takes: the pixels that `supancl embed` uses.

    The image is turned upright, its short side shrunk to 8/7 of `size`, the central square cut out and normalised.

    >>> Preprocessing(3, 32, (0.5,), (0.5,))(np.zeros((40, 60), np.uint8)).shape
    torch.Size([3, 32, 32])
    """

    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: OneImage) -> Tensor:
        """(C, size, size) of an array (H, W[, C]) of uint8, a Pillow image or a path."""
        pixels = decode_any(image, self.channels, evaluation_short_side(self.size))
        return evaluation_view(Batch(pixels[None]), self.size, self.mean, self.std)[0]


def split_labels(data: Any, spec: DataSpec, channels: int) -> tuple[Any, Any]:
    """The images, and their labels or None, of (images, labels), of a data set of torch, which is read once, of a list
    of (image, label), or of images.

    >>> split_labels([("1.png", "cat"), ("2.png", "dog")], DataSpec(), 3)
    (['1.png', '2.png'], ['cat', 'dog'])
    """
    if isinstance(data, torch.utils.data.Dataset):
        rows, size = cast(Any, data), (spec.short_side, spec.resample)  # all its photographs may not fit in memory
        read = (rows[index] for index in range(len(rows)))
        pairs = (row[:2] if isinstance(row, (list, tuple)) else (row, None) for row in read)
        data = [(decode_any(image, channels, *size).permute(1, 2, 0).numpy(), label) for image, label in pairs]
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], tuple):
        return data
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, tuple) and len(row) == 2 for row in data):
        return [image for image, _ in data], [label for _, label in data]
    return data, None


def list_images(images: Any, labels: Any, spec: DataSpec, channels: int) -> Source:
    """A source of Python objects, all decoded: `labels` are numbers or names, -1, '' or None for unlabelled.

    Labels (N, C) are weights of several or soft labels, one column per class. Other integers are class names: they may
    have gaps.
    """
    images = as_array(images)
    if not isinstance(images, (np.ndarray, list, tuple)) or not len(images):
        raise BadInput("these are no images: give an array, a tensor, or a list of Pillow images or paths")
    count, listed = len(images), cast(Sequence[OneImage], images)
    (given,), classes = close_gaps([np.full(count, -1) if labels is None else as_label_array(labels)])
    if isinstance(images, np.ndarray) and images.dtype != object:
        return list_arrays({"train": (images, given)}, channels, "the arrays", classes)
    numbers, classes = number_labels({"train": given}, {"train": count}, "the images", classes)
    pixels = list(map_in_order(lambda image: decode_any(image, channels, spec.short_side, spec.resample), listed))
    has_one_size = len({tuple(image.shape) for image in pixels}) == 1
    store = ArrayImages(torch.stack(pixels)) if has_one_size else PackedImages.from_images(pixels)
    names = [str(image) if isinstance(image, (str, Path)) else f"images[{i}]" for i, image in enumerate(listed)]
    return list_stored(store, numbers, {"train": names}, classes, "the images")


def label_numbers(labels: Any, count: int) -> Tensor:
    """Labels of `count` images as they are given: names would have other numbers where other classes are present."""
    array = as_label_array(labels)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise BadInput(f"labels {array.shape} of {array.dtype} for {count} images; give one integer per image")
    return torch.from_numpy(array.astype(np.int64))


def as_label_array(labels: Any) -> np.ndarray:
    """Labels as an array of numbers or of texts; None, NaN and pandas.NA, as in a column with gaps, are unlabelled.

    >>> as_label_array(["cat", None, "dog"]).tolist(), as_label_array([2.0, float("nan")]).tolist()
    (['cat', '', 'dog'], [2, -1])
    """
    array = keep_missing(labels)
    if array.dtype.kind == "O":
        values = array.ravel().tolist()
        none, kind = ("", str) if any(isinstance(label, str) for label in values) else (-1, None)
        array = np.asarray([none if is_missing(label) else label for label in values], kind).reshape(array.shape)
    if array.dtype.kind == "f" and bool((np.isnan(array) | (array == np.floor(array))).all()):
        array = np.where(np.isnan(array), -1, array).astype(np.int64)
    return array


def keep_missing(labels: Any) -> np.ndarray:
    """Labels as an array in which a missing one is still None, NaN or NA: of a list of texts NumPy makes it 'nan'."""
    labels = labels.cpu() if isinstance(labels, torch.Tensor) else labels
    array = np.asarray(labels)
    return array if hasattr(labels, "dtype") or array.dtype.kind not in "US" else np.asarray(labels, dtype=object)


def is_missing(label: Any) -> bool:
    """Whether a label of a list or a column is None, NaN or pandas.NA.

    >>> [is_missing(label) for label in (None, float("nan"), "nan", 0)]
    [True, True, False, False]
    """
    return label is None or type(label).__name__ == "NAType" or bool(label != label)
