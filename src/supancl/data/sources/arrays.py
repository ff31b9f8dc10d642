"""Sources in memory: arrays from Python, `.npz` files, the built-in digits and toy data, and CIFAR as published."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from supancl.config import Count, NotNegative
from supancl.core.labels import Labels
from supancl.data.labels import NO_LABEL, SUPERCLASSES, labels_among, labels_from_pairs, pairs_from_matrix
from supancl.data.order import derive_seed
from supancl.data.splits import OFFICIAL_SPLITS, SPLITS, Source, StoredItems, list_stored, sorted_names
from supancl.data.store.memory import ArrayImages
from supancl.errors import BadInput
from supancl.files import check_fits_memory, check_zip, open_regular, reason

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

GREY_CHUNK_BYTES = 2**22
MAX_RATIO = 200  # of the bytes of an array to its bytes in the file: real images compress far less
MIN_CHECKED_BYTES = 2**28  # smaller arrays may have any ratio: labels in order compress by 1,000
MAX_CLASSES = 1_000_000  # a larger label is hardly a class number: each number up to it becomes a class
FROM_PYTHON = "arrays"  # the source of a run on arrays or lists in Python, which are not kept

ArrayReader = Callable[[Path, int], Source]  # (folder, channels); the splits have their official names


def list_arrays(
    splits: Mapping[str, tuple[np.ndarray, np.ndarray | None]],
    channels: int,
    location: str,
    classes: tuple[str, ...] | None = None,
) -> Source:
    """A source of (images, labels) by split; `location` names it in messages.

    Images are (N, H, W[, C]) uint8, of one size. Labels are (N,) numbers of `classes`, or names, or weights (N, C) of
    several or soft labels, one column per class.
    """
    for name, (images, _) in splits.items():
        check_image_array(images.shape, images.dtype, f"{location}: {name}_images")
    shapes = {(*images.shape, 1)[1:4] for images, _ in splits.values()}
    if len(shapes) > 1:
        raise BadInput(f"{location}: images have different sizes or channels ({shapes}); give them one")
    counts = {name: len(images) for name, (images, _) in splits.items()}
    given = {name: np.full(counts[name], -1) if labels is None else labels for name, (_, labels) in splits.items()}
    labels, classes = number_labels(given, counts, location, classes)
    if len(splits) == 1:
        pixels = convert_channels(next(iter(splits.values()))[0], channels)
    else:  # one split after the other, so that there are never two copies of all
        pixels, start = torch.empty(sum(counts.values()), channels, *shapes.pop()[:2], dtype=torch.uint8), 0
        for images, _ in splits.values():
            pixels[start : start + len(images)] = convert_channels(images, channels)
            start += len(images)
    names = {name: [f"{name}_images[{row}]" for row in range(count)] for name, count in counts.items()}
    return list_stored(ArrayImages(pixels), labels, names, classes, location)


def number_labels(
    given: Mapping[str, np.ndarray], counts: Mapping[str, int], location: str, classes: tuple[str, ...] | None
) -> tuple[Labels, tuple[str, ...]]:
    """The labels of all splits, one after the other, and the class names."""
    if classes is not None and len({name.strip() for name in classes} - {""}) < len(classes):
        raise BadInput(f"{location}: class_names has an empty name, or one twice")
    arrays, kinds = list(given.values()), set[tuple[bool, tuple[int, ...]]]()
    for name, labels in given.items():
        _check_label_array(labels, counts[name], f"{location}: {name}_labels")
        if (is_text := labels.dtype.kind == "U") or not (labels == -1).all():
            kinds.add((is_text, labels.shape[1:]))
    if len(kinds) > 1:
        raise BadInput(f"{location}: labels are numbers in one split, names or weights of classes in another; use one")
    is_text, columns = kinds.pop() if kinds else (False, ())
    if columns:  # weights
        if classes is not None and len(classes) != columns[0]:
            raise BadInput(f"{location}: labels have {columns[0]} columns, class_names {len(classes)}; give one each")
        parts = [labels if labels.ndim == 2 else np.full((len(labels), *columns), -1) for labels in arrays]
        pairs = pairs_from_matrix(np.concatenate(parts), f"{location}: labels")
        return labels_from_pairs(pairs), classes or tuple(map(str, range(columns[0])))
    if is_text:  # numbers, -1, become texts too
        present, rows = np.unique(np.char.strip(np.concatenate(arrays)), return_inverse=True)
        names = {str(text) for text in present} - {"", *NO_LABEL}
        classes = sorted_names(names, by_number=False) if classes is None else classes
        if unknown := sorted(names - set(classes)):
            raise BadInput(f"{location}: label {unknown[0]!r} is not in class_names")
        number = {name: i for i, name in enumerate(classes)}
        return Labels.of(torch.tensor([number.get(str(text), -1) for text in present])[torch.from_numpy(rows)]), classes
    numbers = np.concatenate([labels.reshape(len(labels)).astype(np.int64) for labels in arrays])
    lowest, highest = (int(numbers.min()), int(numbers.max())) if len(numbers) else (-1, -1)
    if lowest < -1 or highest >= (most := MAX_CLASSES if classes is None else len(classes)):
        raise BadInput(
            f"{location}: labels from {lowest} to {highest}; give 0 to {most - 1} (class_names), -1 for none"
        )
    return Labels.of(torch.from_numpy(numbers)), classes or tuple(map(str, range(highest + 1)))


def close_gaps(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[str, ...] | None]:
    """Class numbers 0, 1, ... of integers that have gaps, and the integers as class names; without gaps no names.

    >>> close_gaps([np.array([20, 10, -1, 20])])
    ([array([ 1,  0, -1,  1])], ('10', '20'))
    >>> close_gaps([np.array([1, 0, -1])])
    ([array([ 1,  0, -1])], None)
    """
    if any(array.dtype.kind not in "iu" or array.ndim != 1 for array in arrays):
        return list(arrays), None
    used = sorted({number for array in arrays for number in np.unique(array).tolist() if number >= 0})
    if used == list(range(len(used))):
        return list(arrays), None
    numbered = [np.where(array < 0, array.astype(np.int64), np.searchsorted(used, array)) for array in arrays]
    return numbered, tuple(map(str, used))


def check_image_array(shape: tuple[int, ...], dtype: np.dtype[Any], location: str) -> None:
    """Refuse an array that is not one of images."""
    full = (*shape, 1) if len(shape) == 3 else shape
    is_one = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))  # would be taken for many narrow ones
    if dtype != np.uint8 or is_one or len(full) != 4 or full[3] not in (1, 3) or not math.prod(full):
        raise BadInput(f"{location}: shape {shape} of {dtype}; give uint8, 0 to 255, as (N, H, W) or (N, H, W, 3)")


def _check_label_array(labels: np.ndarray, images: int, location: str) -> None:
    shape, kind = labels.shape, labels.dtype.kind
    is_weights = len(shape) == 2 and shape[1] > 1  # a single column is more likely class numbers
    if shape[:1] != (images,) or kind not in ("biuf" if is_weights else "iuU" if len(shape) == 1 else ""):
        raise BadInput(
            f"{location}: shape {shape} of {labels.dtype} for {images} images; labels are ({images},) class numbers, "
            f"-1 for none, or names; or ({images}, C) weights"
        )


def convert_channels(images: np.ndarray, channels: int) -> Tensor:
    """(N, C, H, W) with `channels` of (N, H, W[, C]): grey is repeated to RGB, RGB is weighted to grey."""
    images = images[..., None] if images.ndim == 3 else images
    if not images.flags.writeable:  # as Pillow's and mapped ones, of which torch warns; copied in the order they get
        images = images.transpose(0, 3, 1, 2).copy().transpose(0, 2, 3, 1)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    if pixels.shape[1] == channels:
        return pixels.contiguous()
    if channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([0.2989, 0.587, 0.114])[:, None, None]
    chunks = pixels.split(max(1, GREY_CHUNK_BYTES // pixels[0].numel()))  # as floats all would take too much memory
    return torch.cat([(chunk * weights).sum(1, keepdim=True).round().to(torch.uint8) for chunk in chunks])


def read_npz(path: Path, channels: int) -> Source:
    """A source from train_images and train_labels, and optionally val_*, test_* and class_names."""
    wanted = {f"{split}_{part}" for split in SPLITS for part in ("images", "labels")} | {"class_names"}
    try:
        with open_regular(path) as file:
            check_zip(file)
            with np.load(file, allow_pickle=False) as archive:
                members = [each for each in archive.zip.infolist() if each.filename.removesuffix(".npy") in wanted]
                for each in members:
                    if each.file_size > max(MIN_CHECKED_BYTES, MAX_RATIO * each.compress_size):
                        advice = "if you trust it, save it again with numpy.savez, which does not compress"
                        raise BadInput(f"{path}: {each.filename} unpacks to over {MAX_RATIO} times its bytes; {advice}")
                check_fits_memory(sum(each.file_size for each in members), str(path), "use a folder")
                read = {name: archive[name] for name in archive.files if name in wanted}
    except BadInput:
        raise
    except Exception as error:  # numpy, zipfile and zlib each raise something else
        raise BadInput(
            f"{path}: cannot be read ({reason(error)}); save plain arrays, nothing that is pickled"
        ) from None
    if "train_images" not in read:
        raise BadInput(f"{path}: no train_images; save train_images and train_labels")
    parts = {
        split: (read[f"{split}_images"], read.get(f"{split}_labels")) for split in SPLITS if f"{split}_images" in read
    }
    names = read.get("class_names")
    classes = None if names is None else tuple(map(str, names.reshape(-1)))
    return list_arrays(parts, channels, str(path), classes)


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def cifar_python(kind: str) -> ArrayReader:
    """Reader of the 'python version' of CIFAR10 or CIFAR100: its pickles are opened if their checksums match."""

    def read(folder: Path, channels: int) -> Source:
        from torchvision import datasets

        dataset = type(kind, (getattr(datasets, kind),), {"base_folder": folder.name})  # the folder may have any name
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*align")  # early numpy 2.4 on old files: pytorch/vision#9340
            try:
                train, test = (dataset(folder.parent, train=is_train) for is_train in (True, False))
            except RuntimeError:  # before any is opened
                raise BadInput(f"{folder}: not the published files (by their MD5); unpack {kind} again") from None
        splits = {"trainval": (train.data, np.array(train.targets)), "test": (test.data, np.array(test.targets))}
        return list_arrays(splits, channels, str(folder), tuple(test.classes))

    return read


def cifar_npz(file: str) -> ArrayReader:
    """Reader of NAME.npz with train_images, train_labels, test_images, test_labels and class_names."""

    def read(folder: Path, channels: int) -> Source:
        source = read_npz(folder / file, channels)
        train, trainval = SPLITS.index("train"), OFFICIAL_SPLITS.index("trainval")
        return replace(source, split_numbers=np.where(source.split_numbers == train, trainval, source.split_numbers))

    return read


FC100_TEST_CLASSES = tuple(
    sorted(name for group in ("aquatic_mammals", "insects", "medium_mammals", "people") for name in SUPERCLASSES[group])
)


def fc100(cifar100: ArrayReader) -> ArrayReader:
    """Reader of the meta-test classes of FC100: all 600 images of twenty classes of CIFAR100."""

    def read(folder: Path, channels: int) -> Source:
        source = cifar100(folder, channels)
        assert isinstance(source.store, ArrayImages)
        assert isinstance(source.items, StoredItems)
        labels = labels_among(source.labels, source.classes, FC100_TEST_CLASSES)
        rows = labels.is_labelled.nonzero()[:, 0]
        names, pixels = [source.items.names[row] for row in rows.tolist()], source.store.pixels[rows]
        return list_stored(ArrayImages(pixels), labels[rows], {"test": names}, FC100_TEST_CLASSES, source.location)

    return read


# --- built in ---------------------------------------------------------------------------------------------------------


def list_digits(channels: int) -> Source:
    """The 1,797 handwritten digits (8 x 8) that ship inside scikit-learn."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    images = (dataset.images * (255 / 16)).round().astype(np.uint8)
    return list_arrays({"train": (images, dataset.target)}, channels, "digits", tuple("0123456789"))


TOY_SEED = 0


@dataclass(frozen=True)
class ToySpec:
    """The numbers of App. B: `scale`, the standard deviation per dimension, is the root of a covariance of 0.35.

    The toy study reads App. B differently by default (docs/measurements/toy-readings.md).
    """

    classes: Count = 3
    dimensions: Count = 2048
    train: Count = 1000  # per class
    test: Count = 500  # per class
    scale: NotNegative = 0.35**0.5


class Toy(NamedTuple):
    """Centred samples, their labels, and the class means before centring."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    means: Tensor
    centre: Tensor


def draw_toy(spec: ToySpec, seed: int) -> Toy:
    """Samples of every class around orthogonal means (left singular vectors of a Gaussian matrix)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, 1))
    gaussian = torch.randn(spec.dimensions, spec.classes, generator=generator, dtype=torch.float64)
    means = torch.linalg.svd(gaussian, full_matrices=False)[0].T.float()

    def sample(per_class: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(spec.classes).repeat_interleave(per_class)
        noise = torch.randn(len(labels), spec.dimensions, generator=generator)
        return means[labels] + spec.scale * noise, labels

    train, train_labels = sample(spec.train)
    test, test_labels = sample(spec.test)
    # masked dimensions get the data's mean; after centring that is zero
    centre = train.mean(0)
    return Toy(train - centre, train_labels, test - centre, test_labels, means, centre)


def list_toy(channels: int) -> Source:
    """The toy data of App. B: three Gaussian classes in 2048 dimensions, with orthogonal means."""
    toy = draw_toy(ToySpec(), TOY_SEED)
    names = {split: [f"toy[{i}]" for i in range(len(getattr(toy, split)))] for split in ("train", "test")}
    labels = Labels.of(torch.cat([toy.train_labels, toy.test_labels]))
    return list_stored(ArrayImages(torch.cat([toy.train, toy.test])), labels, names, tuple("ABC"), "toy")


BUILT_IN: dict[str, Callable[[int], Source]] = {"digits": list_digits, "toy": list_toy}
