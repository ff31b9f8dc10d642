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
from supancl.data.preparing import prepare_data, select_images
from supancl.data.sources import arrays, benchmarks, folder, libraries, table, tars
from supancl.data.sources.benchmark_rows import Use
from supancl.data.spec import DataSpec
from supancl.data.splits import Data, Source, join_sources
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
    Data(digits; training images: 1618, labelled: 1618, held out: 179, classes: 10)
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
    source = with_levels(tars.list_tars(spec.source), spec)
    assert isinstance(source.items, tars.TarItems)
    return replace(source, store=StreamImages(source.items, channels, spec))


def peek_data(spec: DataSpec, channels: int) -> Data:
    """The data of a run as `open_data` gives them, but each image is decoded when it is read: for a look at a few.

    Images that cannot be read are not noticed, so they count. The user has not named this source: it is opened from
    the disk and from local caches alone.
    """
    with libraries.local_caches(spec.all_sources):
        return prepare_data(undecoded(spec, channels), spec)


def undecoded(spec: DataSpec, channels: int) -> Source:
    """The source with a store that decodes an image when it is read, unless they are in memory."""
    source = with_levels(list_source(spec, channels), spec)
    return source if source.store is not None else replace(source, store=FileImages(source.items, channels, spec))


def list_source(spec: DataSpec, channels: int) -> Source:
    """List the images of `spec.source`; nothing is decoded."""
    name = spec.source
    if spec.joined:
        names = [absolute_source(source) for source in spec.all_sources]
        if len(set(names)) < len(names):
            raise BadInput(f"{spec.location}: a source is there twice; name each once")
        specs = [replace(spec, source=source, joined=()) for source in spec.all_sources]
        return join_sources({each.source: list_source(each, channels) for each in specs}, " + ".join(names))
    if benchmarks.is_benchmark(name):
        benchmark_name, _, root = name.partition("@")
        return benchmarks.list_benchmark(benchmark_name, root, channels)
    check_source(name)
    kind, _, library_name = name.partition(":")
    with track_task(f"listing {name}"):
        if name in arrays.BUILT_IN:
            return arrays.BUILT_IN[name](channels)
        if tars.is_tar(name):
            return tars.list_tars(name)
        if kind in libraries.READERS:
            return libraries.READERS[kind](library_name, channels)
        if (path := Path(name)).is_dir():
            is_voc = (path / "ImageSets/Main").is_dir() and (path / "JPEGImages").is_dir()
            return folder.list_voc(path) if is_voc else folder.list_folder(path, spec.hierarchy == "paths")
        if path.suffix.lower() == ".npz":
            return arrays.read_npz(path, channels)
        if name.lower().endswith(table.SUFFIXES):
            return table.list_table(path, spec.columns, spec.max_labels)
    raise BadInput(f"{name}: not a source (unpack archives); give a folder, .npz, .csv, .parquet or .tar")


def load(source: Source, channels: int, spec: DataSpec) -> Source:
    """Decode every listed image once into a store. Unreadable ones are refused, or skipped with a remark."""
    if source.store is not None:
        return with_levels(source, spec)
    items, remarks = source.items, list(source.remarks)
    store, unreadable = store_images(items, source.cache_name or absolute_source(spec.source), channels, spec)
    reasons = dict(sorted((str(items[position]), reason) for position, reason in unreadable))
    if unreadable:
        path, reason = next(iter(reasons.items()))
        source = source.take(np.delete(np.arange(len(items)), [position for position, _ in unreadable]))
        if not spec.skip_bad_images or not len(source.rows_of("train")):
            raise BadInput(unreadable_image(path, f"{reason}; unreadable images: {len(reasons)} of {len(items)}"))
        remarks.append(f"unreadable images that were skipped: {len(reasons)}, such as {path} ({reason})")
    remarks += dark_image_remarks(store, source.items)
    return replace(with_levels(source, spec), store=store, remarks=tuple(remarks), skipped=reasons)


def with_levels(source: Source, spec: DataSpec) -> Source:
    """The source with one label per level of `data.hierarchy`; the same without one."""
    check_count(int((source.labels.classes >= 0).sum(1).max()), spec.max_labels, f"{source.location}: an image")
    labels, classes, levels = add_levels(source.labels, source.classes, spec)
    return replace(source, labels=labels, classes=classes, levels=levels)


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
    return prepare_data(load(arrays.list_arrays(splits, channels, "the arrays", names), channels, spec), spec)


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
        return
    if name in arrays.BUILT_IN or name.partition(":")[0] in libraries.READERS or tars.is_tar(name):
        return
    if not name:
        raise BadInput(NO_SOURCE)
    if not Path(name).exists():
        near = did_you_mean_path(name) or ("" if "/" in name else did_you_mean(name, arrays.BUILT_IN))
        hint = near or "; check the path, or tell a run where its data are now: pretrain --resume --data NEW --out RUN"
        if name == arrays.FROM_PYTHON:
            hint = "; images from Python are not kept: give them again in Python (data=...), or name a source"
        raise BadInput(f"no data at {name!r}{hint}")


# --- what a source holds, without decoding it -------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """The training images of a source: their number, how many have a label, classes, and the usual short side."""

    images: int
    labelled: int
    classes: int
    side: int  # pixels, median


def survey_source(spec: DataSpec, channels: int = 3) -> Survey:
    """List `spec.source` and read the sizes of some images from their headers."""
    source = undecoded(spec, channels)
    if not isinstance(source.store, FileImages):
        return survey_data(select_images(source, spec)[0])
    rows, sides = source.rows_of("train"), list[int]()
    for position in evenly_spaced_positions(len(rows)):
        with suppress(OSError, ValueError):  # unreadable ones are reported when they are decoded
            sides.append(min(upright_size(source.items[int(rows[position])])))
    return survey_data(select_images(source, spec)[0], round(median(sides or [0])))


def survey_data(data: Data, side: int | None = None) -> Survey:
    """The same for data that are open; the side is 0 for vectors."""
    train, classes = data.train, len(data.train.class_ids())
    if not train.all_labels.has_one_each:  # one path of levels is one class
        classes = min(train.all_labels.count_distinct(), classes)
    side = train.median_short_side() or 0 if side is None else side
    return Survey(len(train), train.num_labelled, classes, side)
