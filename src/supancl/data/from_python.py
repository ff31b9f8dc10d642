"""Images that are Python objects: arrays, tensors, Pillow images, paths, lists of them, and data sets of torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from supancl.data.decode import LISTED_SUFFIXES, Resample, decode, image_problem, map_in_order
from supancl.data.listing import as_source
from supancl.data.sources.arrays import (
    as_array,
    check_image_array,
    check_label_array,
    close_gaps,
    convert_channels,
    list_arrays,
    number_labels,
    read_labels,
)
from supancl.data.splits import DataSpec, Source, full_split
from supancl.data.store.memory import ArrayImages, Batch, ImageStore, PackedImages
from supancl.data.views.evaluation import evaluation_short_side, evaluation_view
from supancl.errors import BadInput, plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

OneImage = np.ndarray | Image.Image | Path | str
Images = np.ndarray | Sequence[OneImage]
KINDS = "an array (N, H, W[, C]) or a tensor (N, C, H, W) of uint8, or a list of Pillow images or paths"


def is_image_file(name: object) -> bool:
    """Whether this is the path of one image, by its suffix.

    >>> is_image_file("photos/7.jpg"), is_image_file("photos")
    (True, False)
    """
    return isinstance(name, (str, Path)) and Path(name).suffix.lower() in LISTED_SUFFIXES


def decode_any(image: OneImage, channels: int, short_side: int | None, resample: Resample = "bilinear") -> Tensor:
    """One image as uint8 (C, H, W), the same pixels as from a folder; an array keeps its size, as in a .npz."""
    if isinstance(image, (str, Path)):
        try:
            return decode(Path(image), channels, short_side, resample)
        except (OSError, ValueError) as error:
            raise BadInput(f"{image}: cannot be read as an image ({image_problem(error)}); check the path") from None
    if isinstance(image, Image.Image):
        try:
            return decode(image, channels, short_side, resample)
        except (OSError, ValueError) as error:
            raise BadInput(f"a Pillow image of mode {image.mode} cannot be used ({image_problem(error)})") from None
    array = np.asarray(as_array(image, 3) if hasattr(image, "__array__") else None)
    if array.ndim not in (2, 3) or array.dtype == object:
        raise BadInput(
            f"{_describe(image)} is not one image; give an array (H, W) or (H, W, C), a Pillow image or a path"
        )
    batch = array[None] if array.ndim == 3 else array[None, ..., None]
    check_image_array(batch.shape, batch.dtype, "the image")
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


def store_images(
    images: Images, channels: int, short_side: int | None = None, resample: Resample = "bilinear"
) -> ImageStore:
    """The images in memory, in their order; photographs shrunk to `short_side`."""
    images = as_array(images)
    if isinstance(images, np.ndarray) and images.dtype != object:
        check_batch(images)
        return ArrayImages(convert_channels(images if images.ndim == 4 else images[..., None], channels))
    check_is_list(images)
    pixels = list(map_in_order(lambda image: decode_any(image, channels, short_side, resample), images))
    if len({tuple(image.shape) for image in pixels}) == 1:
        return ArrayImages(torch.stack(pixels))
    return PackedImages.from_images(pixels)


def check_is_list(images: Any) -> None:
    if isinstance(images, torch.utils.data.DataLoader):
        raise BadInput("a DataLoader gives batches; give its data set, loader.dataset")
    if hasattr(images, "columns"):
        raise BadInput("a table is not a list of images; give one of its columns, such as table['path']")
    if isinstance(images, (str, Path, Mapping)) or not isinstance(images, Iterable) or not isinstance(images, Sized):
        raise BadInput(f"{_describe(images)} is not a list of images; give {KINDS}")
    if not len(images):
        raise BadInput(f"the list of images is empty; give {KINDS}")


def check_batch(images: np.ndarray) -> None:
    """Refuse an array that is not several images; one image, (H, W) or (H, W, 3), would be taken for many."""
    if images.ndim == 2 or (images.ndim == 3 and images.shape[2] in (1, 3)):
        raise BadInput(f"an array of shape {images.shape} is one image; give several, or this one as image[None]")
    check_image_array(images.shape, images.dtype, "the array of images")


def split_labels(data: Any, spec: DataSpec, channels: int) -> tuple[Any, Any]:
    """The images, and their labels or None, of whatever holds both: (images, labels), a data set of torch, or a list of
    (image, label). A data set is read once, and its photographs are shrunk at once: all of them may not fit in memory.

    >>> split_labels([("1.png", "cat"), ("2.png", "dog")], DataSpec(), 3)
    (['1.png', '2.png'], ['cat', 'dog'])
    """
    if is_pair(data):
        return data[0], data[1]
    if isinstance(data, torch.utils.data.Dataset):

        def read(row: Any) -> Any:
            image, *rest = row if isinstance(row, (list, tuple)) else [row]
            pixels = decode_any(image, channels, spec.short_side, spec.resample).permute(1, 2, 0).numpy()
            return (pixels, *rest) if isinstance(row, (list, tuple)) else pixels

        rows: Any = data
        data = [read(row) for row in (map(rows.__getitem__, range(len(rows))) if isinstance(data, Sized) else rows)]
    if not isinstance(data, (list, tuple)) or not data or not isinstance(data[0], (list, tuple)):
        return data, None
    for row in data:
        if not isinstance(row, (list, tuple)) or len(row) != 2:
            raise BadInput(f"{_describe(row)} is not (image, label); give pairs of an image and its label")
    return [image for image, _ in data], [label for _, label in data]


def is_pair(data: Any) -> bool:
    """Whether this is (images, labels), not two images and not two rows (image, label).

    Labels have one dimension, or two if they are weights of several labels.
    """
    if not isinstance(data, (list, tuple)) or len(data) != 2:
        return False
    images, labels = data
    if isinstance(images, (str, Path, Image.Image)) or (isinstance(data, list) and isinstance(images, tuple)):
        return False
    try:
        dims = 1 if labels is None else np.ndim(labels)
    except ValueError:  # a row
        return False
    return dims == 1 or (dims == 2 and getattr(images, "ndim", 0) != 2 and not isinstance(labels, Image.Image))


def source_from_images(images: Any, labels: Any, spec: DataSpec, channels: int) -> Source:
    """A source of Python objects: `labels` are numbers or class names, -1, '' or None for unlabelled.

    Labels (N, C) are weights of several or soft labels, one column per class. Other integers are class names: they may
    have gaps.
    """
    images = as_array(images)
    check_is_list(images)
    count = len(images)
    (labels,), classes = close_gaps(np.full(count, -1) if labels is None else as_label_array(labels))
    if isinstance(images, np.ndarray) and images.dtype != object:
        check_batch(images)
        return as_source(list_arrays({"train": (images, labels)}, channels, "the arrays", classes, spec.max_labels))
    check_label_array(labels.shape, labels.dtype, count, "the images: labels")
    numbered, classes = number_labels({"train": (np.empty(0), labels)}, "the images", classes)
    by_split, classes = read_labels(numbered, "the images", classes, spec.max_labels)
    if classes is None:
        ids = by_split["train"].single
        classes = tuple(map(str, range(int(ids.max()) + 1 if len(ids) else 0)))
    names = [str(image) if isinstance(image, (str, Path)) else f"images[{i}]" for i, image in enumerate(images)]
    split = full_split(store_images(images, channels, spec.short_side, spec.resample), by_split["train"], names)
    return Source({"train": split}, classes)


def label_numbers(labels: Any, count: int) -> Tensor:
    """Labels of `count` images as they are given: names would have other numbers where other classes are present."""
    array = as_label_array(labels)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise BadInput(
            f"labels {array.shape} of {array.dtype} for {plural(count, 'image')}; give one integer per image"
        )
    return torch.from_numpy(array.astype(np.int64))


def as_label_array(labels: Any) -> np.ndarray:
    """Labels as an array of numbers or of texts; None, NaN and pandas.NA, as in a column with gaps, are unlabelled.

    >>> as_label_array(["cat", None, "dog"]).tolist(), as_label_array([2.0, float("nan")]).tolist()
    (['cat', '', 'dog'], [2, -1])
    """
    array = keep_missing(labels)
    if array.dtype.kind == "O":
        values = array.ravel().tolist()
        has_texts = any(isinstance(label, str) for label in values)
        filled = [("" if has_texts else -1) if is_missing(label) else label for label in values]
        array = np.asarray([str(label) for label in filled] if has_texts else filled).reshape(array.shape)
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
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA does not say whether it equals itself
        return True


def _describe(value: Any) -> str:
    if (shape := getattr(value, "shape", None)) is not None:
        return f"an array of shape {tuple(shape)}"
    return repr(str(value)[:80]) if isinstance(value, (str, Path, int, float)) else f"a {type(value).__name__}"
