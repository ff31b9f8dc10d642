"""Sources in memory: arrays from Python, `.npz` files, the built-in digits and toy data, and CIFAR as published."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from supancl.config import Count, NotNegative
from supancl.core.labels import Labels
from supancl.data.labels import SUPERCLASSES, labels_from_pairs, pairs_from_matrix
from supancl.data.listing import OFFICIAL_SPLITS, SPLITS, Listing, list_stored, renumbered
from supancl.data.order import derive_seed
from supancl.data.splits import NO_LABEL, DataSpec, sorted_names
from supancl.data.store.memory import ArrayImages
from supancl.errors import BadInput, did_you_mean
from supancl.files import check_fits_memory, check_zip, open_regular

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

ArrayReader = Callable[[Path, int], Listing]  # (folder, channels); the splits have their official names


def list_arrays(
    splits: Mapping[str, tuple[np.ndarray, np.ndarray | None]],
    channels: int,
    location: str,
    classes: tuple[str, ...] | None = None,
    max_labels: int = DataSpec.max_labels,
) -> Listing:
    """A listing of (images, labels) by split; `location` names it in messages.

    Images are (N, H, W[, C]) uint8, of one size. Labels are (N,) numbers of `classes`, or names, or weights (N, C) of
    several or soft labels, one column per class.
    """
    for name, (images, _) in splits.items():
        check_image_array(images.shape, images.dtype, f"{location}: {name}_images")
    shapes = {name: (*images.shape, 1)[1:4] for name, (images, _) in splits.items()}
    if len(set(shapes.values())) > 1:
        raise BadInput(f"{location}: images have different sizes or channels ({shapes}); give them one")
    counts = {name: len(images) for name, (images, _) in splits.items()}
    given = {name: np.full(counts[name], -1) if labels is None else labels for name, (_, labels) in splits.items()}
    labels, classes = number_labels(given, counts, location, classes, max_labels)
    if len(splits) == 1:
        pixels = convert_channels(next(iter(splits.values()))[0], channels)
    else:  # one split after the other, so that there are never two copies of all
        height, width, _ = next(iter(shapes.values()))
        pixels, start = torch.empty(sum(counts.values()), channels, height, width, dtype=torch.uint8), 0
        for images, _ in splits.values():
            pixels[start : start + len(images)] = convert_channels(images, channels)
            start += len(images)
    names = {name: [f"{name}_images[{row}]" for row in range(count)] for name, count in counts.items()}
    return list_stored(ArrayImages(pixels), labels, names, classes, location)


def number_labels(
    given: Mapping[str, np.ndarray],
    counts: Mapping[str, int],
    location: str,
    classes: tuple[str, ...] | None,
    max_labels: int,
) -> tuple[Labels, tuple[str, ...]]:
    """The labels of all splits, one after the other, and the class names."""
    if classes is not None and len({name.strip() for name in classes} - {""}) < len(classes):
        raise BadInput(f"{location}: class_names has an empty name, or one twice; give every class a name of its own")
    for name, labels in given.items():
        _check_label_array(labels.shape, labels.dtype, counts[name], f"{location}: {name}_labels")
    kinds = {name: (labels.ndim, labels.dtype.kind in "US") for name, labels in given.items()}
    used = [name for name, labels in given.items() if not (kinds[name] == (1, False) and bool((labels == -1).all()))]
    if len({(kinds[name], given[name].shape[1:]) for name in used}) > 1:
        raise BadInput(f"{location}: labels are numbers in one split, names or weights of classes in another; use one")
    columns = given[used[0]].shape[1:] if used else ()
    if columns:  # weights
        parts = [labels if name in used else np.full((len(labels), *columns), -1) for name, labels in given.items()]
        if classes is not None and len(classes) != columns[0]:
            raise BadInput(f"{location}: labels have {columns[0]} columns, class_names {len(classes)}; give one each")
        pairs = pairs_from_matrix(np.concatenate(parts), max_labels, f"{location}: labels")
        return labels_from_pairs(pairs), classes or tuple(map(str, range(columns[0])))
    if used and kinds[used[0]][1]:
        joined = np.concatenate([given[name] if name in used else np.full(counts[name], "") for name in given])
        present, rows = np.unique(np.char.strip(_as_text(joined)), return_inverse=True)
        names = [str(text) for text in present if text not in ("", *NO_LABEL)]
        classes = sorted_names(set(names), by_number=False) if classes is None else classes
        if unknown := sorted(set(names) - set(classes)):
            raise BadInput(f"{location}: label {unknown[0]!r} is not in class_names{did_you_mean(unknown[0], classes)}")
        number = {name: i for i, name in enumerate(classes)}
        return Labels.of(torch.tensor([number.get(str(text), -1) for text in present])[torch.from_numpy(rows)]), classes
    numbers = np.concatenate([labels.astype(np.int64) for labels in given.values()])
    lowest, highest = (int(numbers.min()), int(numbers.max())) if len(numbers) else (-1, -1)
    if lowest < -1 or highest >= (MAX_CLASSES if classes is None else len(classes)):
        raise BadInput(
            f"{location}: labels from {lowest} to {highest}; labels are class numbers 0, 1, ... below "
            f"{f'{MAX_CLASSES:,}' if classes is None else f'{len(classes)} (class_names)'}, and -1 for unlabelled"
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


def _as_text(labels: np.ndarray) -> np.ndarray:
    return np.char.decode(labels, "utf-8", "replace") if labels.dtype.kind == "S" else labels


def check_image_array(shape: tuple[int, ...], dtype: np.dtype[Any], location: str) -> None:
    """Refuse an array that is not one of images; its shape and type are in the header of its file."""
    full = (*shape, 1) if len(shape) == 3 else shape
    is_one = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))  # would be taken for many narrow ones
    if dtype != np.uint8 or is_one or len(full) != 4 or full[3] not in (1, 3) or not math.prod(full):
        raise BadInput(
            f"{location}: shape {shape} of {dtype}; images are uint8, 0 to 255, of shape (N, H, W) or (N, H, W, 3); of "
            "0 to 1: (images * 255).round().astype('uint8'), of (N, C, H, W): images.transpose(0, 2, 3, 1), one: "
            "image[None]"
        )


def _check_label_array(shape: tuple[int, ...], dtype: np.dtype[Any], images: int, location: str) -> None:
    is_weights = len(shape) == 2 and shape[1] > 1  # a single column is more likely class numbers
    is_kind = dtype.kind in ("biuf" if is_weights else "iuUS")
    if not is_kind or shape[:1] != (images,) or not (is_weights or len(shape) == 1):
        raise BadInput(
            f"{location}: shape {shape} of {dtype} for {images} images; labels are ({images},) class numbers, -1 for "
            f"unlabelled, or names; or ({images}, C) with the weights of C classes"
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
    grey = torch.empty(len(pixels), 1, *pixels.shape[2:], dtype=torch.uint8)
    rows = max(1, GREY_CHUNK_BYTES // pixels[0].numel())  # as floats, all at once would take five times their memory
    for start in range(0, len(pixels), rows):
        chunk = pixels[start : start + rows]
        grey[start : start + rows] = (chunk * weights).sum(1, keepdim=True).round().to(torch.uint8)
    return grey


# --- .npz files -------------------------------------------------------------------------------------------------------


def read_npz(path: Path, channels: int, max_labels: int = DataSpec.max_labels) -> Listing:
    """A source from train_images and train_labels, and optionally val_*, test_* and class_names."""
    try:
        with open_regular(path) as file:
            check_zip(file)
            with zipfile.ZipFile(file) as archive:
                read = _read_arrays(path, archive)
    except BadInput:
        raise
    except Exception as error:  # numpy, zipfile and zlib each raise something else
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadInput(f"{path}: cannot be read ({reason}); save it with numpy.savez and plain arrays") from None
    arrays = {
        split: (read[f"{split}_images"], read.get(f"{split}_labels")) for split in SPLITS if f"{split}_images" in read
    }
    names = read.get("class_names")
    if names is not None and (names.ndim != 1 or names.dtype.kind not in "US"):
        raise BadInput(f"{path}: class_names has shape {names.shape} of {names.dtype}; it must be a list of strings")
    classes = None if names is None else tuple(map(str, _as_text(names)))
    return list_arrays(arrays, channels, str(path), classes, max_labels)


def _read_arrays(path: Path, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    """The arrays of a source, after the headers of all of them were checked. Nothing is ever unpickled."""
    wanted = {f"{split}_{part}" for split in SPLITS for part in ("images", "labels")} | {"class_names"}
    members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    if "train_images" not in members:
        has = ", ".join(sorted(members)) or "nothing"
        raise BadInput(f"{path}: no train_images; it has {has}; save train_images and train_labels")
    members = {name: member for name, member in members.items() if name in wanted}
    for name, member in members.items():
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            header_bytes = file.tell()
        if dtype.hasobject:
            raise ValueError(
                f"{name} holds pickled objects, which are never executed; save names as labels.astype(str)"
            )
        if name.endswith("_images"):
            check_image_array(shape, dtype, f"{path}: {name}")
        size, stored = member.file_size, member.compress_size
        if math.prod(shape) * dtype.itemsize + header_bytes != size:
            raise ValueError(f"{name} has {size:,} bytes, which do not fit its shape {shape}")
        if size > MIN_CHECKED_BYTES and size > MAX_RATIO * stored:
            raise BadInput(
                f"{path}: {name} has {size:,} bytes in {stored:,} of the file, more than {MAX_RATIO} times as many; if "
                "you trust it, save it again with numpy.savez, which does not compress"
            )
    total = sum(member.file_size for member in members.values())
    check_fits_memory(total, f"{path}: {', '.join(members)}", "use a folder of images, or fewer of them")
    arrays = {}
    for name, member in members.items():
        with archive.open(member) as file:
            arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def cifar_python(kind: str) -> ArrayReader:
    """Reader of the 'python version' of CIFAR10 or CIFAR100: its pickles are opened if their checksums match."""

    def read(folder: Path, channels: int) -> Listing:
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity

        dataset = getattr(datasets, kind)
        local_dataset = type(kind, (dataset,), {"base_folder": folder.name})  # the folder may have any name
        meta = [dataset.meta["filename"], dataset.meta["md5"]]
        for name, md5 in [*dataset.train_list, *dataset.test_list, meta]:
            if not check_integrity(str(folder / name), md5):
                raise BadInput(
                    f"{folder / name}: not there, or not the published file (by its MD5), and other pickles are never "
                    f"opened; unpack {dataset.filename} again"
                )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*align")  # early numpy 2.4 on old files: pytorch/vision#9340
            train, test = (local_dataset(folder.parent, train=is_train) for is_train in (True, False))
        splits = {"trainval": (train.data, np.array(train.targets)), "test": (test.data, np.array(test.targets))}
        return list_arrays(splits, channels, str(folder), tuple(test.classes))

    return read


def cifar_npz(file: str) -> ArrayReader:
    """Reader of NAME.npz with train_images, train_labels, test_images, test_labels, class_names."""

    def read(folder: Path, channels: int) -> Listing:
        listing = read_npz(folder / file, channels)
        train, val, test = (SPLITS.index(name) for name in SPLITS)
        if (listing.splits == val).any() or not (listing.splits == test).any():
            raise BadInput(f"{folder / file}: it must have the splits train and test, as published")
        trainval = OFFICIAL_SPLITS.index("trainval")
        return replace(listing, splits=np.where(listing.splits == train, trainval, listing.splits))

    return read


FC100_TEST_CLASSES = tuple(
    sorted(name for group in ("aquatic_mammals", "insects", "medium_mammals", "people") for name in SUPERCLASSES[group])
)


def fc100(cifar100: ArrayReader) -> ArrayReader:
    """Reader of the meta-test classes of FC100: all 600 images of twenty classes of CIFAR100."""

    def read(folder: Path, channels: int) -> Listing:
        listing = cifar100(folder, channels)
        if missing := sorted(set(FC100_TEST_CLASSES) - set(listing.classes)):
            raise BadInput(f"{folder}: no class {missing[0]!r}; FC100 needs CIFAR100 with its names (class_names)")
        place = {name: number for number, name in enumerate(FC100_TEST_CLASSES)}
        numbers = torch.tensor([*(place.get(name, -1) for name in listing.classes), -1])
        listing = replace(listing, labels=renumbered(listing.labels, numbers), classes=FC100_TEST_CLASSES)
        listing = listing.take(np.flatnonzero(listing.labels.single.numpy() >= 0))
        return replace(listing, splits=np.full(len(listing), OFFICIAL_SPLITS.index("test"), np.uint8))

    return read


# --- built in ---------------------------------------------------------------------------------------------------------


def list_digits(channels: int) -> Listing:
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


def list_toy(channels: int) -> Listing:
    """The toy data of App. B: three Gaussian classes in 2048 dimensions, with orthogonal means."""
    toy = draw_toy(ToySpec(), TOY_SEED)
    names = {
        split: [f"toy[{i}]" for i in range(len(rows))] for split, rows in (("train", toy.train), ("test", toy.test))
    }
    labels = Labels.of(torch.cat([toy.train_labels, toy.test_labels]))
    return list_stored(ArrayImages(torch.cat([toy.train, toy.test])), labels, names, tuple("ABC"), "toy")


BUILT_IN: dict[str, Callable[[int], Listing]] = {"digits": list_digits, "toy": list_toy}
