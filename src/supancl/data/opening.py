"""Open a data source: training images, held-out images, labels and class names.

SOURCE is `digits`, `toy`, an image folder, a folder in VOC's layout, a `.npz`, a `.csv`, tar shards,
`torchvision:NAME@ROOT`, `hf:NAME`, or `NAME@ROOT` for a benchmark; `from_arrays` takes arrays from Python. A reader of
`sources/` lists the images, `load_images` decodes them into a store, `apply_hierarchy` gives classes their levels,
`prepare_data` holds some images out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from supancl.data.hierarchy import apply_hierarchy
from supancl.data.labels import check_count
from supancl.data.listing import Listing, as_source, divided_file_remarks, join_listings
from supancl.data.preparing import prepare_data
from supancl.data.sources import arrays, benchmarks, folder, libraries, table, tars, voc
from supancl.data.sources.benchmark_rows import Use
from supancl.data.splits import Data, DataSpec, Source
from supancl.data.store.building import dark_image_remarks, store_images
from supancl.data.store.cache import other_positions
from supancl.data.store.memory import Progress
from supancl.data.store.stream import FileImages, StreamImages, unreadable_image
from supancl.errors import BadInput, did_you_mean, program_name
from supancl.files import did_you_mean_path
from supancl.reporter import ProgressFunction, report_to, track_task

SKIPPED = "unreadable images that were skipped: "
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


def open_source(spec: DataSpec, channels: int, lenient: bool = False) -> Source:
    """Open `spec.source`; `lenient` lists empty class folders instead of refusing them."""
    if spec.stream:
        source = _stream_images(spec, channels)
    else:
        source = load_images(list_source(spec, channels, lenient), channels, spec)
    return apply_hierarchy(_with_class_order(source, spec), spec)


def _stream_images(spec: DataSpec, channels: int) -> Source:
    """The images of tar shards, which are read while training."""
    if spec.joined or not tars.is_tar(spec.source):
        raise BadInput(
            f"{spec.location}: data.stream is for tar shards that one pattern names (shards/{{000..099}}.tar, or a "
            "folder of them); remove it for other sources"
        )
    if spec.balanced:
        raise BadInput("data.balanced mixes all images, and data.stream those of some shards; leave one of them out")
    listing = tars.list_tars(spec.source)
    assert isinstance(listing.items, tars.TarItems)
    settings = spec.short_side, spec.resample, spec.skip_bad_images, spec.window
    return as_source(listing, StreamImages(listing.items, channels, *settings))


def peek_data(spec: DataSpec, channels: int) -> Data:
    """The data of a run as `open_data` gives them, but each image is decoded when it is read: for a look at a few.

    Images that cannot be read are not noticed, so they count. The user has not named this source: it is opened from
    the disk and from local caches alone.
    """
    with libraries.offline() if any(name.startswith("hf:") for name in spec.all_sources) else nullcontext():
        listing = list_source(spec, channels)
    store = None if listing.parts else FileImages(listing.items, channels, spec.short_side, spec.resample)
    return prepare_data(_with_class_order(as_source(listing, store), spec), spec)


def _with_class_order(source: Source, spec: DataSpec) -> Source:
    """The source with the classes of a benchmark in their official order."""
    is_benchmark = _is_benchmark(spec.source) and not spec.joined
    return benchmarks.apply_class_order(source, spec.source.partition("@")[0]) if is_benchmark else source


def list_source(spec: DataSpec, channels: int, lenient: bool = False) -> Listing:
    """List the images of `spec.source`; nothing is decoded. `lenient` lists empty class folders, too."""
    name = spec.source
    if spec.columns and not any(map(_is_table, spec.all_sources)):
        raise BadInput(f"data.columns = {spec.columns}: is for a .csv or .parquet, and {spec.location} is none")
    if spec.joined:
        names = [absolute_source(source) for source in spec.all_sources]
        if len(set(names)) < len(names):
            raise BadInput(f"{spec.location}: a source is there twice; name each once")
        specs = [replace(spec, source=source, joined=(), columns="") for source in spec.all_sources]
        specs = [replace(each, columns=spec.columns) if _is_table(each.source) else each for each in specs]
        return join_listings({each.source: list_source(each, channels) for each in specs}, " + ".join(names))
    if not name:
        raise BadInput(NO_SOURCE)
    if _is_benchmark(name):
        benchmark_name, _, root = name.partition("@")
        return benchmarks.list_benchmark(benchmark_name, root, channels, None, False)
    if name in arrays.BUILT_IN:
        return arrays.BUILT_IN[name](channels)
    with track_task(f"listing {name}"):
        listing = _read(spec, channels, lenient)
    counts = (listing.labels.classes >= 0).sum(1)
    check_count(int(counts.max()), spec.max_labels, f"{name}: an image")
    return listing


def _read(spec: DataSpec, channels: int, lenient: bool) -> Listing:
    """What the reader of this kind of source lists."""
    name = spec.source
    kind, _, library_name = name.partition(":")
    if tars.is_tar(name):
        return tars.list_tars(name)
    if kind in libraries.READERS:
        return libraries.READERS[kind](library_name, channels)
    path = _existing_path(name)
    if path.is_dir():
        voc_folder = voc.find_voc(path)
        return voc.list_voc(voc_folder) if voc_folder else folder.list_folder(path, lenient, spec.hierarchy == "paths")
    if path.suffix.lower() == ".npz":
        return arrays.read_npz(path, channels, spec.max_labels)
    if _is_table(name):
        return table.list_table(path, spec.columns, spec.max_labels)
    raise BadInput(
        f"{name}: not a source; give a folder of images (unpack archives), a .npz, a .csv or .parquet "
        "(path,label[,split]), .tar shards, torchvision:NAME@ROOT or hf:NAME"
    )


def _is_table(name: str) -> bool:
    return name.lower().endswith(table.SUFFIXES)


def open_benchmark(
    name: str,
    root: Path | str,
    channels: int = 3,
    spec: DataSpec | None = None,
    use: Use | None = None,
    partial: bool = False,
) -> Source:
    """Open a benchmark that lies in ROOT, or in its folder below ROOT, with the splits of the paper.

    For transfer: train, val and test. For few-shot: one split, train, with every image. `use` defaults to the
    benchmark's first use. Incomplete data are refused, or with `partial` used with a remark.
    """
    listing, spec = benchmarks.list_benchmark(name, root, channels, use, partial), spec or DataSpec()
    source = benchmarks.apply_class_order(load_images(listing, channels, spec), name)
    return apply_hierarchy(source, spec)


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
    images, test_images = arrays.as_array(images), arrays.as_array(test_images)
    if channels is None:
        channels = images.shape[3] if images.ndim == 4 else 1
    by_split = {"train": (images, labels)} | ({} if test_images is None else {"test": (test_images, test_labels)})
    given = [np.full(len(x), -1) if y is None else np.asarray(y) for x, y in by_split.values()]
    numbered, names = arrays.close_gaps(*given) if classes is None else (given, tuple(classes))
    splits = {name: (by_split[name][0], array) for name, array in zip(by_split, numbered, strict=True)}
    spec = spec or DataSpec(source=arrays.FROM_PYTHON)
    listing = arrays.list_arrays(splits, channels, "the arrays", names, spec.max_labels)
    return prepare_data(as_source(listing), spec)


# --- names of sources -------------------------------------------------------------------------------------------------


def absolute_source(name: str) -> str:
    """The source with its path made absolute; built-in names are unchanged."""
    if not name or name in arrays.BUILT_IN:
        return name
    prefix, separator, root = name.partition("@")
    if separator and not Path(name).exists():  # torchvision:NAME@ROOT, NAME@ROOT
        return f"{prefix}@{Path(root).resolve()}"
    kind, separator, hf_name = name.partition(":")
    if kind == "hf" and Path(hf_name).exists():
        return f"hf:{Path(hf_name).resolve()}"
    if separator and not Path(name).exists():
        return name
    path = Path(name)
    return str(path.resolve()) if path.exists() or path.suffix == ".tar" else name  # {000..009}.tar does not exist


def is_same_source(first: str, second: str) -> bool:
    """Whether two names mean the same data."""
    return absolute_source(first) == absolute_source(second)


def check_source(name: str) -> None:
    """Refuse a missing source before any is read: reading the ones before it may take hours."""
    if not name:
        raise BadInput(NO_SOURCE)
    benchmark_name, _, root = name.partition("@")
    if _is_benchmark(name):
        benchmarks.find_benchmark(benchmark_name, root)
    elif name not in arrays.BUILT_IN and name.partition(":")[0] not in libraries.READERS and not tars.is_tar(name):
        _existing_path(name)


def _is_benchmark(name: str) -> bool:
    benchmark_name, separator, _ = name.partition("@")
    return bool(separator) and (benchmark_name in benchmarks.BENCHMARKS or benchmark_name in benchmarks.ALIASES)


def _existing_path(name: str) -> Path:
    path = Path(name)
    if not path.exists():
        hint = did_you_mean_path(path) or ("" if "/" in name or path.suffix else did_you_mean(name, arrays.BUILT_IN))
        benchmark_name, separator, root = name.partition("@")
        if separator and Path(root).is_dir():
            raise BadInput(
                f"no benchmark {benchmark_name!r}, so {name!r} cannot be opened; register your own in a --plugin FILE"
            )
        if name == arrays.FROM_PYTHON:
            raise BadInput(
                f"no data at {name!r}: a run with this source was trained on images from Python, which it does not "
                "keep; give them again in Python (data=...), or name a source"
            )
        # a run has the absolute path of its data, which may have been moved since
        resume = f"{program_name()} pretrain --resume --data NEW --out RUN"
        moved = f", or tell a run where its data are now: {resume}" if path.is_absolute() else ""
        raise BadInput(f"no data at {name!r}{hint if 'did you mean' in hint else '; check the path'}{moved}")
    return path


# --- from a list of files to stored images ----------------------------------------------------------------------------


def load_images(listing: Listing, channels: int, spec: DataSpec) -> Source:
    """Decode every listed image once into a store. Unreadable ones are refused, or skipped with a remark."""
    if listing.parts:  # images are in memory already
        return as_source(listing)
    items = listing.items
    cache_name = listing.cache_name or absolute_source(spec.source) or listing.location
    store, unreadable = store_images(items, cache_name, channels, spec)
    reasons = dict(sorted((str(items[position]), reason) for position, reason in unreadable))
    explained = [f"{path} ({reason})" for path, reason in reasons.items()]
    if unreadable and not spec.skip_bad_images:
        position, reason = unreadable[0]
        others = f"; unreadable images: {len(unreadable)}" if len(unreadable) > 1 else ""
        raise BadInput(unreadable_image(items[position], reason + others))
    if unreadable:
        listing = listing.take(other_positions(len(items), unreadable))
    if not len(listing.rows_of("train")):
        raise BadInput(f"{listing.location}: no training image could be read, such as {explained[0]}; repair the files")
    remarks = dark_image_remarks(store, listing.items)
    if unreadable:
        remarks.append(f"{SKIPPED}{len(reasons)}: {', '.join(explained)}")
    source = as_source(listing, store)
    remarks = [*source.remarks, *divided_file_remarks(listing), *remarks]
    return replace(source, remarks=tuple(remarks), skipped=reasons)
