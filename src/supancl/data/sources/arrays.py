"""Sources in memory: arrays from Python, `.npz` files, the built-in digits and toy data."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from supancl.core.labels import Labels
from supancl.data.labels import labels_of_splits, pairs_from_matrix
from supancl.data.listing import Listing, list_stored
from supancl.data.sources.toy import list_toy
from supancl.data.splits import NO_LABEL, DataSpec, full_split, sorted_names
from supancl.data.store.memory import ArrayImages
from supancl.errors import BadInput, did_you_mean, plural
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

Header = tuple[tuple[int, ...], "np.dtype[Any]"]  # shape and type


def list_digits(channels: int) -> Listing:
    """The 1,797 handwritten digits (8 x 8) that ship inside scikit-learn."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    images = (dataset.images * (255 / 16)).round().astype(np.uint8)
    return list_arrays({"train": (images, dataset.target)}, channels, "digits", tuple("0123456789"))


FROM_PYTHON = "arrays"  # the source of a run on arrays or lists in Python, which are not kept
BUILT_IN: dict[str, Callable[[int], Listing]] = {"digits": list_digits, "toy": list_toy}


def read_npz(path: Path, channels: int, max_labels: int = DataSpec.max_labels) -> Listing:
    """A source from train_images and train_labels, and optionally val_*, test_* and class_names."""
    try:
        with open_npz(path) as archive:
            return _read_npz(archive, channels, max_labels)
    except BadInput:
        raise
    except Exception as error:  # numpy, zipfile and zlib each raise something else
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadInput(f"{path}: cannot be read ({reason}); save it with numpy.savez and plain arrays") from None


def _read_npz(archive: NpzArchive, channels: int, max_labels: int) -> Listing:
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
        shape, dtype = headers[f"{split}_images"]
        check_image_array(shape, dtype, f"{path}: {split}_images")
        if f"{split}_labels" in headers:
            check_label_array(*headers[f"{split}_labels"], shape[0], f"{path}: {split}_labels")
        splits.append(split)
    names = [*(f"{split}_{part}" for split in splits for part in ("images", "labels")), "class_names"]
    archive.check_sizes([name for name in names if name in headers])
    class_names = archive.read("class_names") if "class_names" in headers else None
    class_names = None if class_names is None else _as_text(class_names)
    images = {split: archive.read(f"{split}_images") for split in splits}
    labels = {split: archive.read(name) for split in splits if (name := f"{split}_labels") in headers}
    arrays = {split: (images[split], labels.get(split, np.full(len(images[split]), -1))) for split in splits}
    classes = None if class_names is None else tuple(map(str, class_names))
    return list_arrays(arrays, channels, str(path), classes, max_labels)


def list_arrays(
    splits: dict[str, tuple[np.ndarray, np.ndarray]],
    channels: int,
    location: str,
    classes: tuple[str, ...] | None,
    max_labels: int = DataSpec.max_labels,
) -> Listing:
    """A listing of (images, labels) by split; `location` names it in messages.

    Labels are (N,), or weights (N, C) of several or soft labels, one column per class.
    """
    _check_class_names(classes or (), location)
    for name, (images, given) in splits.items():
        check_label_array(np.shape(given), np.asarray(given).dtype, len(images), f"{location}: {name}_labels")
    splits, classes = number_labels(splits, location, classes)
    labels, classes = read_labels(splits, location, classes, max_labels)
    by_split, depth_by_split = {}, {}
    for name, (images, _) in splits.items():
        images, depth = _checked_images(np.asarray(images), f"{location}: {name}_images")
        depth_by_split[name] = depth
        store = ArrayImages(convert_channels(images, channels))
        by_split[name] = full_split(store, labels[name], _RowNames(f"{name}_images", len(images)))
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
    return list_stored(by_split, classes, location)


def _check_class_names(classes: Sequence[str], location: str) -> None:
    """Refuse an empty name, and names that differ in spaces at most: in a table of labels they would be one class."""
    seen: set[str] = set()
    for number, name in enumerate(map(str.strip, classes)):
        if not name or name in seen:
            fault = f"{name[:80]!r} for two classes" if name else f"no name for class {number}"
            raise BadInput(f"{location}: class_names has {fault}; give every class a name, each a different one")
        seen.add(name)


def read_labels(
    splits: dict[str, tuple[np.ndarray, np.ndarray]], location: str, classes: tuple[str, ...] | None, max_labels: int
) -> tuple[dict[str, Labels], tuple[str, ...] | None]:
    """The checked labels of each split, and the class names, one per column if labels are weights (N, C)."""
    arrays = {name: np.asarray(labels) for name, (_, labels) in splits.items()}
    columns = {name: labels.shape[1] for name, labels in arrays.items() if labels.ndim == 2}
    if not columns:
        return {
            name: Labels.of(checked_labels(labels, f"{location}: {name}_labels")) for name, labels in arrays.items()
        }, classes
    first, count = next(iter(columns.items()))
    for name, labels in arrays.items():
        if labels.ndim == 1 and bool((labels == -1).all()):
            arrays[name] = np.full((len(labels), count), -1)  # no labels at all
        elif columns.get(name) != count:
            raise BadInput(
                f"{location}: {first}_labels has shape {arrays[first].shape}, {name}_labels {labels.shape}; give all "
                "splits one column per class, the same ones"
            )
    if classes is not None and len(classes) != count:
        raise BadInput(
            f"{location}: {first}_labels has {count} columns, class_names {len(classes)} names; give one per column"
        )
    pairs = {
        name: pairs_from_matrix(labels, max_labels, f"{location}: {name}_labels: row {{}}".format, range(count))
        for name, labels in arrays.items()
    }
    return labels_of_splits(pairs), classes or tuple(map(str, range(count)))


def number_labels(
    splits: dict[str, tuple[np.ndarray, np.ndarray]], location: str, classes: tuple[str, ...] | None
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], tuple[str, ...] | None]:
    """Numbers in place of labels that are texts: in the order of `classes`, or sorted. '' and -1 are no labels."""
    texts = {name: np.asarray(labels) for name, (_, labels) in splits.items() if np.asarray(labels).dtype.kind in "US"}
    if not texts:
        return splits, classes
    texts = {name: np.char.strip(_as_text(labels)) for name, labels in texts.items()}
    used = {str(text) for labels in texts.values() for text in np.unique(labels)} - {"", *NO_LABEL}
    for name, (_, labels) in splits.items():
        if name not in texts and (np.asarray(labels) >= 0).any():
            raise BadInput(f"{location}: {name}_labels are numbers, {next(iter(texts))}_labels texts; use one of them")
    classes = sorted_names(used, by_number=False) if classes is None else classes
    if unknown := sorted(used - set(classes)):
        raise BadInput(f"{location}: label {unknown[0]!r} is not in class_names{did_you_mean(unknown[0], classes)}")
    number = {name: i for i, name in enumerate(classes)}
    numbered = dict(splits)
    for name, labels in texts.items():
        present, rows = np.unique(labels, return_inverse=True)
        numbered[name] = splits[name][0], np.array([number.get(str(text), -1) for text in present], np.int64)[rows]
    return numbered, classes


def close_gaps(*labels: np.ndarray) -> tuple[list[np.ndarray], tuple[str, ...] | None]:
    """Class numbers 0, 1, ... of integers that have gaps, and the integers as class names; without gaps no names.

    >>> close_gaps(np.array([20, 10, -1, 20]))
    ([array([ 1,  0, -1,  1])], ('10', '20'))
    >>> close_gaps(np.array([1, 0, -1]))
    ([array([ 1,  0, -1])], None)
    """
    if any(array.dtype.kind not in "iu" or array.ndim != 1 for array in labels):
        return list(labels), None
    used = sorted({number for array in labels for number in np.unique(array).tolist() if number >= 0})
    if used == list(range(len(used))):
        return list(labels), None
    numbered = [np.where(array < 0, array.astype(np.int64), np.searchsorted(used, array)) for array in labels]
    return numbered, tuple(map(str, used))


def _as_text(labels: np.ndarray) -> np.ndarray:
    return np.char.decode(labels, "utf-8", "replace") if labels.dtype.kind == "S" else labels


class _RowNames(Sequence[str]):
    """Names such as 'train_images[17]', built on demand."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return f"{self.name}[{index}]"


def as_array(images: Any, dims: int = 4) -> Any:
    """A tensor of `dims` dimensions as an array with its channels last; anything else as it is.

    >>> as_array(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), 4).shape
    (5, 8, 8, 3)
    """
    if not isinstance(images, torch.Tensor):
        return images
    if images.dtype != torch.uint8:
        raise BadInput(
            f"a tensor of images holds {images.dtype}; it must be uint8, 0 to 255; if it is from 0 to 1, as ToTensor "
            "makes it: (images * 255).round().byte()"
        )
    if images.ndim == 3 < dims and images.shape[0] in (1, 3):
        raise BadInput(
            f"a tensor of shape {tuple(images.shape)} is one image; give several, or this one as image[None]"
        )
    if images.ndim == dims and images.shape[-3] in (1, 3) and images.shape[-1] not in (1, 3):
        images = images.movedim(-3, -1)
    return images.cpu().numpy()


def check_image_array(shape: tuple[int, ...], dtype: np.dtype[Any], location: str) -> None:
    """Refuse an array that is not one of images; its shape and type are in the header of its file."""
    if dtype != np.uint8:
        convert = "; if they are from 0 to 1: (images * 255).round().astype('uint8')" if dtype.kind == "f" else ""
        raise BadInput(f"{location} holds {dtype}; images must be uint8, 0 to 255{convert}")
    shape = (*shape, 1) if len(shape) == 3 else shape
    if len(shape) != 4 or shape[3] not in (1, 3):
        convert = (
            "; if it is (N, C, H, W): images.transpose(0, 2, 3, 1)" if len(shape) == 4 and shape[1] in (1, 3) else ""
        )
        raise BadInput(f"{location} has shape {shape}; it must be (N, H, W), (N, H, W, 1) or (N, H, W, 3){convert}")
    if not math.prod(shape):
        raise BadInput(f"{location} is empty (shape {shape}); give at least one image of one pixel")


def check_label_array(shape: tuple[int, ...], dtype: np.dtype[Any], num_images: int, location: str) -> None:
    is_weights = len(shape) == 2 and shape[1] > 1  # a single column is more likely class numbers
    if dtype.kind not in ("biuf" if is_weights else "iuUS"):
        kind = "weights must be numbers" if is_weights else "labels must be integers, -1 for unlabelled, or class names"
        raise BadInput(f"{location} holds {dtype}; {kind}")
    if shape[:1] != (num_images,) or not (is_weights or len(shape) == 1):
        raise BadInput(
            f"{location} has shape {shape} for {plural(num_images, 'image')}; it must be ({num_images},), or "
            f"({num_images}, C) with the weights of C classes"
        )


def _checked_images(images: np.ndarray, location: str) -> tuple[np.ndarray, int]:
    check_image_array(images.shape, images.dtype, location)
    images = images[..., None] if images.ndim == 3 else images
    return images, int(images.shape[3])


def checked_labels(labels: np.ndarray, location: str) -> Tensor:
    """Class numbers (N,) as a tensor; numbers that are no class are refused."""
    if labels.size and int(labels.min()) < -1:
        raise BadInput(f"{location} holds {int(labels.min())}; labels are 0, 1, ... and -1 for unlabelled")
    if labels.size and int(labels.max()) >= MAX_CLASSES:
        raise BadInput(
            f"{location} holds {int(labels.max())}; labels are class numbers 0, 1, ... below {MAX_CLASSES}, "
            "and -1 for unlabelled"
        )
    return torch.from_numpy(labels.astype(np.int64))


def convert_channels(images: np.ndarray, channels: int) -> Tensor:
    """(N, C, H, W) with `channels`: grey is repeated to RGB, RGB is weighted to grey."""
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


# --- .npz files: what their arrays are is known from their headers, before any of them is read ------------------------


class NpzArchive:
    """An open .npz: `headers` has shape and type of each array; `read` reads one. Nothing is ever unpickled."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        members = {member.filename: member for member in archive.infolist()}
        self.members = {name.removesuffix(".npy"): member for name, member in members.items() if name.endswith(".npy")}
        self.headers = {name: self._read_header(member) for name, member in self.members.items()}

    def _read_header(self, member: zipfile.ZipInfo) -> Header:
        with self.archive.open(member) as file:
            shape, dtype = read_npy_header(file)
            header_bytes = file.tell()
        if dtype.hasobject:
            raise ValueError(
                f"{member.filename} holds pickled objects, which are never executed; save names as labels.astype(str)"
            )
        if math.prod(shape) * dtype.itemsize + header_bytes != member.file_size:
            raise ValueError(f"{member.filename} has {member.file_size:,} bytes, which do not fit its shape {shape}")
        return shape, dtype

    def check_sizes(self, names: Sequence[str]) -> None:
        """Refuse arrays that would not fit into memory, or that a small file blows up."""
        for name in names:
            size, stored = self.members[name].file_size, self.members[name].compress_size
            if size > MIN_CHECKED_BYTES and size > MAX_RATIO * stored:
                raise BadInput(
                    f"{self.path}: {name} has {size:,} bytes in {stored:,} of the file, more than {MAX_RATIO} times as "
                    "many; if you trust it, save it again with numpy.savez, which does not compress"
                )
        total = sum(self.members[name].file_size for name in names)
        check_fits_memory(total, f"{self.path}: {', '.join(names)}", "use a folder of images, or fewer of them")

    def read(self, name: str) -> np.ndarray:
        with self.archive.open(self.members[name]) as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            return array


def read_npy_header(file: IO[bytes]) -> Header:
    """Shape and type of an array, from the beginning of its file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[NpzArchive]:
    """Open a .npz; a file that is none raises whatever numpy and zipfile raise."""
    with open_regular(path) as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is a single array, not an archive")
        check_zip(file)
        with zipfile.ZipFile(file) as archive:
            yield NpzArchive(path, archive)
