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
from typing import TYPE_CHECKING

import numpy as np

from supancl.core.labels import Labels
from supancl.data.columns import SPLITS, Columns, ItemNames
from supancl.data.hierarchy import apply_hierarchy
from supancl.data.joining import join_sources
from supancl.data.labels import check_count, labels_of_splits, pairs_from_sets
from supancl.data.preparing import prepare_data
from supancl.data.repeated_files import repeated_file_remarks
from supancl.data.sources import arrays, benchmarks, folder, libraries, table, tars, voc
from supancl.data.sources.benchmark_rows import Use
from supancl.data.splits import Data, DataSpec, Listing, Source, Split, full_split, sorted_names
from supancl.data.store.building import dark_image_remarks, store_images
from supancl.data.store.cache import other_positions
from supancl.data.store.memory import FileImages, ImageStore, Progress
from supancl.data.store.stream import StreamImages
from supancl.errors import BadInput, did_you_mean, plural, program_name
from supancl.files import did_you_mean_path
from supancl.reporter import ProgressFunction, report_to, track_task

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

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
    entries = Columns.from_entries(listing.entries)
    assert isinstance(entries.items, tars.TarItems)
    store = StreamImages(entries.items, channels, spec.short_side, spec.resample, spec.skip_bad_images, spec.window)
    return _source_from_columns(listing, entries, store)


def peek_data(spec: DataSpec, channels: int) -> Data:
    """The data as `open_data` gives them, but each image is decoded when it is read: for a look at a few of them.

    Images that cannot be read are not noticed, so they count.
    """
    listing = list_source(spec, channels)
    if isinstance(listing, Listing):
        entries = Columns.from_entries(listing.entries)
        store = FileImages(entries.items, channels, spec.short_side, spec.resample)
        listing = _with_class_order(_source_from_columns(listing, entries, store), spec)
    return prepare_data(listing, spec)


def _with_class_order(source: Source, spec: DataSpec) -> Source:
    """The source with the classes of a benchmark in their official order."""
    is_benchmark = _is_benchmark(spec.source) and not spec.joined
    return benchmarks.apply_class_order(source, spec.source.partition("@")[0]) if is_benchmark else source


def list_source(spec: DataSpec, channels: int, lenient: bool = False) -> Source | Listing:
    """What `spec.source` holds: a list of image files, or a source that is in memory already; nothing is decoded.

    `lenient` lists empty class folders instead of refusing them.
    """
    if spec.joined:
        return _list_joined(spec, channels)
    if _is_benchmark(spec.source):
        benchmark_name, _, root = spec.source.partition("@")
        return benchmarks.list_benchmark(benchmark_name, root, channels, None, False)
    if not spec.source:
        raise BadInput(NO_SOURCE)
    return _read_or_list(spec, channels, lenient)


def _list_joined(spec: DataSpec, channels: int) -> Listing:
    """The images of all sources of `spec`; its columns are those of each .csv."""
    names = [absolute_source(name) for name in spec.all_sources]
    for name, absolute in zip(spec.all_sources, names, strict=True):
        if names.count(absolute) > 1:
            raise BadInput(f"{name} is named twice; name each source once")
    if spec.columns and not any(name.lower().endswith(table.SUFFIXES) for name in names):
        raise BadInput(f"data.columns = {spec.columns}: is for a .csv or .parquet, and there is none; leave it out")
    listings = {}
    for name in spec.all_sources:
        columns = spec.columns if name.lower().endswith(table.SUFFIXES) else ""
        listings[name] = list_source(replace(spec, source=name, joined=(), columns=columns), channels)
    return join_sources(listings, spec.holdout is None, " + ".join(names))


def _read_or_list(spec: DataSpec, channels: int, lenient: bool) -> Source | Listing:
    """A source whose images are in memory, or a list of image files."""
    name = spec.source
    if spec.columns and not name.lower().endswith(table.SUFFIXES):
        raise BadInput(f"data.columns = {spec.columns}: is for a .csv or .parquet, and {name} is none; leave it out")
    if name in arrays.BUILT_IN:
        return arrays.BUILT_IN[name](channels)
    kind, _, library_name = name.partition(":")
    if tars.is_tar(name):
        return tars.list_tars(name)
    with track_task(f"listing {name}"):
        if kind in libraries.READERS:
            return _check_counts(libraries.READERS[kind](library_name, channels), spec)
        path = _existing_path(name)
        if path.is_dir():
            if voc_folder := voc.find_voc(path):
                return _check_counts(voc.list_voc(voc_folder), spec)
            return folder.list_folder(path, lenient, nested=spec.hierarchy == "paths")
        if path.suffix.lower() == ".npz":
            return arrays.read_npz(path, channels, spec.max_labels)
        if path.suffix.lower() in table.SUFFIXES:
            return table.list_table(path, spec.columns, spec.max_labels)
        if path.suffix.lower() in (".zip", ".rar", ".7z"):
            raise BadInput(f"{name}: archives of this kind are not read; unpack it, and give the folder")
    raise BadInput(
        f"{name}: not a source; give a folder of images, a .npz, a .csv or .parquet (path,label[,split]), .tar shards, "
        "torchvision:NAME@ROOT or hf:NAME"
    )


def _check_counts(listing: Source | Listing, spec: DataSpec) -> Source | Listing:
    """The listing, if none of its images has too many labels."""
    if isinstance(listing, Listing) and listing.label_sets:
        largest = max(listing.label_sets.values(), key=len)
        check_count(len(largest), spec.max_labels, f"{spec.source}: an image with {', '.join(sorted(largest))[:80]}")
    return listing


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
    (36, 4, ('0', '1'))
    """
    images, test_images = arrays.as_array(images), arrays.as_array(test_images)
    if channels is None:
        channels = images.shape[3] if images.ndim == 4 else 1
    by_split = {"train": (images, labels)} | ({} if test_images is None else {"test": (test_images, test_labels)})
    given = [np.full(len(x), -1) if y is None else np.asarray(y) for x, y in by_split.values()]
    numbered, names = arrays.close_gaps(*given) if classes is None else (given, tuple(classes))
    splits = {name: (by_split[name][0], array) for name, array in zip(by_split, numbered, strict=True)}
    spec = spec or DataSpec(source=arrays.FROM_PYTHON)
    return prepare_data(arrays.source_from_arrays(splits, channels, "the arrays", names, spec.max_labels), spec)


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


def load_images(listing: Source | Listing, channels: int, spec: DataSpec) -> Source:
    """Decode every listed image once into a store. Unreadable ones are refused, or skipped with a remark."""
    if isinstance(listing, Source):  # images are in memory already
        return listing
    entries, remarks = Columns.from_entries(listing.entries), list[str]()
    items = entries.items
    cache_name = listing.cache_name or absolute_source(spec.source) or str(listing.location)
    store, unreadable = store_images(items, cache_name, channels, spec, remarks)
    if unreadable and not spec.skip_bad_images:
        position, reason = unreadable[0]
        others, them = (f" and {len(unreadable) - 1} more", "them") if len(unreadable) > 1 else ("", "it")
        raise BadInput(
            f"{items[position]}: cannot be read as an image ({reason}){others}; repair or remove {them}, "
            f"or skip {them} with skip_bad_images"
        )
    skipped = dict(sorted((str(items[position]), reason) for position, reason in unreadable))
    explained = [f"{path} ({reason})" for path, reason in skipped.items()]
    if unreadable:
        entries = entries.take(other_positions(len(items), unreadable))
    remarks += dark_image_remarks(store, entries.items)
    if unreadable:
        remarks.append(
            f"{plural(len(skipped), 'unreadable image was', 'unreadable images were')} skipped: " + ", ".join(explained)
        )
    if not entries.has_split("train"):
        example = f", such as {explained[0]}" if explained else ""
        place = listing.listed_in or listing.location
        raise BadInput(f"{place}: no training image could be read{example}; repair the files or the list of them")
    source = _source_from_columns(listing, entries, store)
    return replace(source, remarks=(*source.remarks, *remarks), skipped=skipped)


def _source_from_columns(listing: Listing, entries: Columns, store: ImageStore) -> Source:
    """The splits of these entries, whose images are those of the store."""
    classes, labels = number_classes(listing, entries)
    all_images = full_split(store, labels, ItemNames(entries.items))
    splits: dict[str, Split] = {
        name: all_images.take(torch.from_numpy(entries.positions_of(name)))
        for name in SPLITS
        if entries.has_split(name)
    }
    repeated = repeated_file_remarks(listing.listed_in, entries) if listing.listed_in else ()
    remarks = (*listing.remarks, *repeated)
    return Source(splits, classes, remarks, {}, entries.items, listing.empty_folders)


def number_classes(listing: Listing, entries: Columns) -> tuple[tuple[str, ...], Labels]:
    """The class names in label order, and the labels of these entries."""
    if listing.label_table is not None:
        pairs = listing.label_table.pairs[torch.from_numpy(entries.labels).long()]
        return listing.label_table.classes, labels_of_splits({"all": pairs})["all"]
    used = entries.used_names()
    if listing.label_sets is None:
        classes = sorted_names(used, listing.by_number) if listing.classes is None else listing.classes
        return classes, Labels.of(torch.from_numpy(entries.class_numbers(classes)))
    used_classes = {name for text in used for name in listing.label_sets[text]}
    classes = sorted_names(used_classes, listing.by_number) if listing.classes is None else listing.classes
    sets = [listing.label_sets[text] if text in used else {} for text in entries.label_names]
    pairs = pairs_from_sets(sets, classes)[torch.from_numpy(entries.labels).long()]
    return classes, labels_of_splits({"all": pairs})["all"]
