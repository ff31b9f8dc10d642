"""Open a data source: training images, held-out images, labels and class names.

SOURCE is `digits`, `toy`, an image folder, a folder in VOC's layout, a `.npz`, a `.csv`, tar shards,
`torchvision:NAME@ROOT`, `hf:NAME`, or `NAME@ROOT` for a benchmark; `from_arrays` takes arrays from Python. A reader of
`sources/` lists the images, `load` decodes them into a store, `prepare_data` holds some images out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from supancl.data.decode import upright_size
from supancl.data.from_python import as_array
from supancl.data.labels import add_levels, check_count
from supancl.data.listing import Listing, join_listings
from supancl.data.preparing import prepare_data, select_images
from supancl.data.sources import arrays, benchmarks, folder, libraries, table, tars
from supancl.data.sources.benchmark_rows import Use
from supancl.data.splits import Data, DataSpec, Source
from supancl.data.store.cache import (
    FileImages,
    StreamImages,
    dark_image_remarks,
    evenly_spaced_positions,
    store_images,
    unreadable_image,
)
from supancl.data.store.memory import Progress
from supancl.errors import BadInput, did_you_mean
from supancl.files import did_you_mean_path
from supancl.reporter import ProgressFunction, report_to, track_task

NO_SOURCE = "this recipe names no images: give data, such as a folder, a .npz or a .csv"


def open_data(spec: DataSpec | str | Path, channels: int = 3, progress: Progress | None = None) -> Data:
    """Open a source (a folder, a .npz, a .csv, ...), and hold out some of its images.

    A `DataSpec` also says how many are held out, which are left out, and whose labels are hidden. `channels` is 3 or 1.

    >>> data = open_data("digits", channels=1)
    >>> data
    Data(digits: 1618 training images, all labelled, 179 held out, 10 classes)
    >>> len(data.train), data.classes[:3]
    (1618, ('0', '1', '2'))
    """
    spec = DataSpec(source=str(spec)) if isinstance(spec, (str, Path)) else spec
    if not isinstance(spec, DataSpec):
        raise BadInput(f"a {type(spec).__name__} is not the name of a source; open arrays with from_arrays")
    with nullcontext() if progress is None else report_to(ProgressFunction(progress)):
        return prepare_data(open_source(spec, channels), spec)


def open_source(spec: DataSpec, channels: int) -> Source:
    """The splits of `spec.source` as they are, with their pixels."""
    if not spec.stream:
        return load(list_source(spec, channels), channels, spec)
    if spec.joined or spec.balanced or not tars.is_tar(spec.source):
        raise BadInput(f"{spec.location}: data.stream is for tar shards that one name matches, without data.balanced")
    listing = with_levels(tars.list_tars(spec.source), spec)
    assert isinstance(listing.items, tars.TarItems)
    return listing.open(StreamImages(listing.items, channels, spec))


def peek_data(spec: DataSpec, channels: int) -> Data:
    """The data of a run as `open_data` gives them, but each image is decoded when it is read: for a look at a few.

    Images that cannot be read are not noticed, so they count. The user has not named this source: it is opened from
    the disk and from local caches alone.
    """
    with libraries.local_caches(spec.all_sources):
        listing = with_levels(list_source(spec, channels), spec)
    store = None if listing.is_stored else FileImages(listing.items, channels, spec)
    return prepare_data(listing.open(store), spec)


def list_source(spec: DataSpec, channels: int) -> Listing:
    """List the images of `spec.source`; nothing is decoded."""
    name = spec.source
    if spec.joined:
        names = [absolute_source(source) for source in spec.all_sources]
        if len(set(names)) < len(names):
            raise BadInput(f"{spec.location}: a source is there twice; name each once")
        specs = [replace(spec, source=source, joined=()) for source in spec.all_sources]
        return join_listings({each.source: list_source(each, channels) for each in specs}, " + ".join(names))
    if benchmarks.is_benchmark(name):
        benchmark_name, _, root = name.partition("@")
        return benchmarks.list_benchmark(benchmark_name, root, channels)
    kind, _, library_name = name.partition(":")
    with track_task(f"listing {name}"):
        if name in arrays.BUILT_IN:
            listing = arrays.BUILT_IN[name](channels)
        elif tars.is_tar(name):
            listing = tars.list_tars(name)
        elif kind in libraries.READERS:
            listing = libraries.READERS[kind](library_name, channels)
        elif (path := _existing_path(name)).is_dir():
            is_voc = (path / "ImageSets/Main").is_dir() and (path / "JPEGImages").is_dir()
            listing = folder.list_voc(path) if is_voc else folder.list_folder(path, spec.hierarchy == "paths")
        elif path.suffix.lower() == ".npz":
            listing = arrays.read_npz(path, channels, spec.max_labels)
        elif name.lower().endswith(table.SUFFIXES):
            listing = table.list_table(path, spec.columns, spec.max_labels)
        else:
            raise BadInput(f"{name}: not a source (unpack archives); give a folder, .npz, .csv, .parquet or .tar")
    check_count(int((listing.labels.classes >= 0).sum(1).max()), spec.max_labels, f"{name}: an image")
    return listing


def load(listing: Listing, channels: int, spec: DataSpec) -> Source:
    """Decode every listed image once into a store. Unreadable ones are refused, or skipped with a remark."""
    if listing.is_stored:
        return with_levels(listing, spec).open()
    items = listing.items
    store, unreadable = store_images(items, listing.cache_name or absolute_source(spec.source), channels, spec)
    reasons = dict(sorted((str(items[position]), reason) for position, reason in unreadable))
    remarks = []
    if unreadable:
        path, reason = next(iter(reasons.items()))
        listing = listing.take(np.delete(np.arange(len(items)), [position for position, _ in unreadable]))
        if not spec.skip_bad_images or not len(listing.rows_of("train")):
            raise BadInput(unreadable_image(path, f"{reason}; unreadable images: {len(reasons)} of {len(items)}"))
        remarks = [f"unreadable images that were skipped: {len(reasons)}, such as {path} ({reason})"]
    remarks += dark_image_remarks(store, listing.items)
    source = with_levels(listing, spec).open(store)
    return replace(source, remarks=(*source.remarks, *remarks), skipped=reasons)


def with_levels(listing: Listing, spec: DataSpec) -> Listing:
    """The listing with one label per level of `data.hierarchy`; the same without one."""
    labels, classes, levels = add_levels(listing.labels, listing.classes, spec)
    return replace(listing, labels=labels, classes=classes, levels=levels)


def open_benchmark(
    name: str,
    root: Path | str,
    channels: int = 3,
    spec: DataSpec | None = None,
    use: Use | None = None,
    partial: bool = False,
) -> Source:
    """Open a benchmark in ROOT with the splits of the paper; for few-shot with one split, train, of every image.

    Incomplete data are refused, or with `partial` used with a remark.
    """
    return load(benchmarks.list_benchmark(name, root, channels, use, partial), channels, spec or DataSpec())


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray | None = None,
    test_images: np.ndarray | None = None,
    test_labels: np.ndarray | None = None,
    classes: Sequence[str] | None = None,
    spec: DataSpec | None = None,
    channels: int | None = None,
) -> Data:
    """Data from arrays in memory: images (N, H, W[, C]) uint8, labels (N,) integers, -1 or None for unlabelled.

    Labels are numbers of `classes`. Without these, each integer that occurs is a class: they may have gaps and need not
    start at 0. Labels (N, C) are weights of several or soft labels, one column per class.

    >>> data = from_arrays(np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2)
    >>> len(data.train), len(data.held_out), data.classes
    (32, 8, ('0', '1'))
    """
    images, test_images = as_array(images), as_array(test_images)
    if channels is None:
        channels = images.shape[3] if images.ndim == 4 else 1
    by_split = {"train": (images, labels)} | ({} if test_images is None else {"test": (test_images, test_labels)})
    given = [np.full(len(x), -1) if y is None else np.asarray(y) for x, y in by_split.values()]
    numbered, names = arrays.close_gaps(given) if classes is None else (given, tuple(classes))
    splits = {name: (by_split[name][0], array) for name, array in zip(by_split, numbered, strict=True)}
    spec = spec or DataSpec(source=arrays.FROM_PYTHON)
    listing = arrays.list_arrays(splits, channels, "the arrays", names, spec.max_labels)
    return prepare_data(load(listing, channels, spec), spec)


# --- names of sources -------------------------------------------------------------------------------------------------


def absolute_source(name: str) -> str:
    """The source with its path made absolute; built-in names are unchanged."""
    if not name or name in arrays.BUILT_IN:
        return name
    path = Path(name)
    if path.exists() or path.suffix == ".tar":  # {000..009}.tar does not exist
        return str(path.resolve())
    prefix, separator, root = name.partition("@")
    if separator:  # torchvision:NAME@ROOT, NAME@ROOT
        return f"{prefix}@{Path(root).resolve()}"
    kind, _, hf_name = name.partition(":")
    return f"hf:{Path(hf_name).resolve()}" if kind == "hf" and Path(hf_name).exists() else name


def is_same_source(first: str, second: str) -> bool:
    """Whether two names mean the same data."""
    return absolute_source(first) == absolute_source(second)


def check_source(name: str) -> None:
    """Refuse a missing source before any is read: reading the ones before it may take hours."""
    if benchmarks.is_benchmark(name):
        benchmarks.find_benchmark(*name.split("@", 1))
    elif name not in arrays.BUILT_IN and name.partition(":")[0] not in libraries.READERS and not tars.is_tar(name):
        _existing_path(name)


def _existing_path(name: str) -> Path:
    if not name:
        raise BadInput(NO_SOURCE)
    if not Path(name).exists():
        near = did_you_mean_path(name) or ("" if "/" in name else did_you_mean(name, arrays.BUILT_IN))
        hint = near or "; check the path, or tell a run where its data are now: pretrain --resume --data NEW --out RUN"
        if name == arrays.FROM_PYTHON:
            hint = "; images from Python are not kept: give them again in Python (data=...), or name a source"
        raise BadInput(f"no data at {name!r}{hint}")
    return Path(name)


# --- what a source holds, without decoding it -------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """The training images of a source: their number, how many have a label, classes, and the usual short side."""

    images: int
    labelled: int
    classes: int
    side: int  # pixels, median

    @property
    def is_labelled(self) -> bool:
        return self.classes > 1


def survey_source(spec: DataSpec, channels: int = 3) -> Survey:
    """List `spec.source` and read the sizes of some images from their headers."""
    listing = with_levels(list_source(spec, channels), spec)
    if listing.is_stored:
        return survey_data(select_images(listing.open(), spec)[0])
    source = listing.open(FileImages(listing.items, channels, spec))
    rows, sides = listing.rows_of("train"), list[int]()
    for position in evenly_spaced_positions(len(rows)):
        with suppress(OSError, ValueError):  # unreadable ones are reported when they are decoded
            sides.append(min(upright_size(listing.items[int(rows[position])])))
    return survey_data(select_images(source, spec)[0], round(median(sides or [0])))


def survey_data(data: Data, side: int | None = None) -> Survey:
    """The same for data that are open; the side is 0 for vectors."""
    train, classes = data.train, len(data.train.class_ids())
    if not train.all_labels.has_one_each:  # one path of levels is one class
        classes = min(train.all_labels.count_distinct(), classes)
    side = train.median_short_side() or 0 if side is None else side
    return Survey(len(train), train.num_labelled, classes, side)
