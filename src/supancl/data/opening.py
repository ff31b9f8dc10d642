"""A SOURCE becomes data: training images, held-out images, labels and class names.

SOURCE is `digits`, `toy`, an image folder, a `.npz`, a `.csv`, tar shards, `torchvision:NAME@ROOT`, `hf:NAME`, or
`NAME@ROOT` for a data set of the registry; `from_arrays` takes arrays from Python. A reader of `sources/` finds the
images, `load` decodes them into a store, `prepare` holds some of them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.decode import Item, decode_or_fault, map_in_order, open_image, remarks_on_large, shrunk_size, size_of
from supancl.data.sources import arrays, benchmarks, csv_table, folder, libraries, tars
from supancl.data.sources.benchmark_rows import Use
from supancl.data.splits import Data, DataSpec, Listing, Source, Split, prepare_data, sorted_names, whole_split
from supancl.data.store import stream
from supancl.data.store.cache import Cache
from supancl.data.store.memory import ArrayImages, FileImages, ImageStore, PackedImages, Progress
from supancl.errors import BadInput, counted, nearest
from supancl.files import beside

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

CACHE_FROM = 256 * 2**20  # bytes of pixels; less is decoded again in seconds
LOOKED_AT = 64  # images that stand for all of them, where every one would take too long
DARK = 16  # of 255, as bright as 12 bits get in a file of 16: 4095 of 65535


def open_data(spec: DataSpec, channels: int, progress: Progress | None = None) -> Data:
    """Read the source that `spec` names and take from it what `spec` asks for."""
    return prepare_data(open_source(spec, channels, progress), spec)


def open_source(spec: DataSpec, channels: int, progress: Progress | None = None, lenient: bool = False) -> Source:
    """The source that `spec` names; a `lenient` look lists empty class folders instead of refusing them."""
    name = spec.source
    if not name:
        raise BadInput("this recipe brings no data; name some: --data FOLDER, --data FILE.npz, --data FILE.csv")
    if spec.stream:
        if not tars.is_tar(name):
            raise BadInput(
                f"{name}: data.stream is for tar shards (shards/{{000..099}}.tar, or a folder of them); "
                "leave it out for other sources"
            )
        return stream.read_stream(name, channels, spec, progress)
    known, _, root = name.partition("@")
    if _is_benchmark(name):
        return open_benchmark(known, root, channels, spec, progress)
    return load(_find_images(spec, channels, progress, lenient), channels, spec, progress)


def _find_images(spec: DataSpec, channels: int, progress: Progress | None, lenient: bool) -> Source | Listing:
    """Arrays, which are in memory, or a list of files."""
    name = spec.source
    if name in arrays.BUILT_IN:
        return arrays.BUILT_IN[name](channels)
    kind, _, rest = name.partition(":")
    if kind in libraries.KINDS:
        return libraries.KINDS[kind](rest, channels)
    if tars.is_tar(name):
        return tars.list_tars(name, progress)
    path = _existing_path(name)
    if path.is_dir():
        return folder.list_folder(path, lenient)
    if path.suffix.lower() == ".npz":
        return arrays.read_npz(path, channels)
    if path.suffix.lower() == ".csv":
        return csv_table.list_csv(path, spec.skip_bad_images)
    raise BadInput(
        f"{name}: not a source; give a folder of images, a .npz, a .csv (path,label[,split]), .tar shards, "
        "torchvision:NAME@ROOT or hf:NAME"
    )


def open_benchmark(
    name: str,
    root: Path | str,
    channels: int = 3,
    spec: DataSpec | None = None,
    progress: Progress | None = None,
    use: Use | None = None,
    partial: bool = False,
) -> Source:
    """The data set in ROOT, or in its folder below ROOT, with the splits of the paper.

    For transfer: train, val and test. For few-shot: one split, train, with every image there is. `use` is the row's
    first one unless given. Data that are not whole are refused, or with `partial` used as they are, and said to be.
    """
    found = benchmarks.find_images(name, root, channels, use, partial)
    return benchmarks.in_class_order(load(found, channels, spec or DataSpec(), progress), name)


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

    >>> data = from_arrays(np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2)
    >>> len(data.train), len(data.held_out), data.classes
    (36, 4, ('0', '1'))
    """
    if channels is None:
        channels = images.shape[3] if images.ndim == 4 else 1
    splits = {"train": (images, np.full(len(images), -1) if labels is None else labels)}
    if test_images is not None:
        unknown = np.full(len(test_images), -1)
        splits["test"] = (test_images, unknown if test_labels is None else test_labels)
    source = arrays.source_from_arrays(splits, channels, "the arrays", None if classes is None else tuple(classes))
    return prepare_data(source, spec or DataSpec(source="arrays"))


# --- names of sources -------------------------------------------------------------------------------------------------


def absolute_source(name: str) -> str:
    """A path as it is found from any folder; built-in names as they are."""
    if not name or name in arrays.BUILT_IN:
        return name
    before, at, root = name.partition("@")
    if at and not Path(name).exists():  # torchvision:NAME@ROOT, NAME@ROOT
        return f"{before}@{Path(root).resolve()}"
    kind, colon, rest = name.partition(":")
    if kind == "hf" and Path(rest).exists():
        return f"hf:{Path(rest).resolve()}"
    if colon and not Path(name).exists():
        return name
    found = Path(name)
    return str(found.resolve()) if found.exists() or found.suffix == ".tar" else name  # {000..009}.tar does not exist


def same_source(one: str, other: str) -> bool:
    """Whether two names stand for the same data."""
    return absolute_source(one) == absolute_source(other)


def check_source(name: str) -> None:
    """Refuse a source that is not there, without reading it: of several, the last one may be hours away."""
    known, _, root = name.partition("@")
    if _is_benchmark(name):
        benchmarks.find_benchmark(known, root)
    elif name not in arrays.BUILT_IN and name.partition(":")[0] not in libraries.KINDS and not tars.is_tar(name):
        _existing_path(name)


def _is_benchmark(name: str) -> bool:
    known, at, _ = name.partition("@")
    return bool(at) and (known in benchmarks.BENCHMARKS or known in benchmarks.ALIASES)


def _existing_path(name: str) -> Path:
    path = Path(name)
    if not path.exists():
        hint = beside(path) or ("" if "/" in name or path.suffix else nearest(name, arrays.BUILT_IN))
        known_as, at, root = name.partition("@")
        if at and Path(root).is_dir():
            raise BadInput(
                f"no benchmark {known_as!r}, so nothing is known at {name!r}; one of your own: --plugin FILE"
            )
        raise BadInput(f"no data at {name!r}{hint if 'did you mean' in hint else '; check the path'}")
    return path


# --- from a list of files to stored images ----------------------------------------------------------------------------


def load(found: Source | Listing, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """Decode every listed image once into a store; what cannot be read is refused, or skipped and named."""
    if isinstance(found, Source):  # its images are in memory
        return found
    remarks, entries = list(found.remarks), found.entries
    items = [item for _, item, _ in entries]
    cache_name = found.cache_name or absolute_source(spec.source) or str(found.where)
    store, broken = _store_images(items, cache_name, channels, spec, progress, remarks)
    if broken and not spec.skip_bad_images:
        position, reason = broken[0]
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise BadInput(
            f"{items[position]}: cannot be read as an image ({reason}){more}; mend or remove it, "
            "or pass --skip-bad-images to go on without"
        )
    bad = {position for position, _ in broken}
    remarks += remarks_on_dark(store, [item for position, item in enumerate(items) if position not in bad])
    skipped = sorted(str(items[position]) for position in bad)
    if bad:
        entries = [entry for position, entry in enumerate(entries) if position not in bad]
        remarks.append(
            f"{counted(len(bad), 'unreadable image was', 'unreadable images were')} skipped: " + ", ".join(skipped)
        )
    if not any(split == "train" for split, _, _ in entries):
        such = f", such as {skipped[0]}" if skipped else ""
        raise BadInput(f"{found.where}: no training image could be read{such}; mend the files, or what lists them")
    classes = found.classes
    if classes is None:
        classes = sorted_names({label for _, _, label in entries if label}, found.by_number)
    ids = {name: i for i, name in enumerate(classes)} | {"": -1}
    every = whole_split(
        store, torch.tensor([ids[label] for _, _, label in entries]), [str(item) for _, item, _ in entries]
    )
    of_split = np.array([split for split, _, _ in entries])
    splits: dict[str, Split] = {
        name: every.take(torch.from_numpy(np.flatnonzero(of_split == name)))
        for name in ("train", "val", "test")
        if (of_split == name).any()
    }
    return Source(splits, classes, tuple(remarks), tuple(skipped), [item for _, item, _ in entries], found.empty)


def remarks_on_dark(store: ImageStore, items: Sequence[Path | Item]) -> list[str]:
    """A remark where images are nearly black, as 12 bits of a camera are in a file of 16, which does not say so.

    `items` are those of the store. Of files of 8 bits nothing is said: masks of 0 and 1 are as they should be.
    """
    looked = _evenly_spaced(len(items))
    if not any(_is_deep(items[i]) for i in looked):
        return []
    if any(int(store.batch(torch.tensor([i])).pixels.max()) > DARK for i in looked):
        return []
    return [
        f"none of {counted(len(looked), 'image')} looked at has a pixel above {DARK} of 255: 12 bits of a camera "
        "in 16-bit files? Scale them up first, such as by 16"
    ]


def _evenly_spaced(count: int) -> list[int]:
    """Positions of the images to look at, from the first to the last."""
    found: list[int] = np.linspace(0, count - 1, min(LOOKED_AT, count)).round().astype(int).tolist()
    return found


def _is_deep(item: Path | Item) -> bool:
    """Whether an image has more than 8 bits a sample, by its header."""
    try:
        with open_image(item) as opened:
            stored = [part[3] for part in getattr(opened, "tile", ())]  # colours of 16 bits have the mode RGB too
            return str(opened.mode).startswith("I") or ";16" in str(stored)
    except (OSError, ValueError):  # it has gone since it was decoded
        return False


def _store_images(
    items: list[Path | Item],
    cache_name: str,
    channels: int,
    spec: DataSpec,
    progress: Progress | None,
    remarks: list[str],
) -> tuple[ImageStore, list[tuple[int, str]]]:
    """A store with the readable items in their order, and (position, reason) of the others.

    Small data are kept in memory, large ones in the packed cache; without a cache, large ones are decoded each time.
    """
    estimate = expected_bytes(items, channels, spec.short_side)
    if spec.cache == "always" or (spec.cache == "auto" and estimate > CACHE_FROM):
        cache = Cache(cache_name, channels, spec.short_side, spec.resample)
        cached, broken, said = cache.build(items, progress)
        remarks += said
        return cached, broken
    keep = estimate <= 2 * spec.memory_gb * 1e9  # a guess well above it needs no trying
    images, broken = _decode_all(items, channels, spec, progress, keep, remarks)
    bad = {position for position, _ in broken}
    good = [item for position, item in enumerate(items) if position not in bad]
    if images is None:
        return FileImages(good, channels, spec.short_side, spec.resample), broken
    if len({tuple(image.shape) for image in images}) == 1:
        return ArrayImages(torch.stack(images)), broken
    return PackedImages.of(images) if images else FileImages([], channels, None), broken


def expected_bytes(items: Sequence[Path | Item], channels: int, short_side: int | None) -> float:
    """How many bytes of pixels these images have, judged by the headers of some of them."""
    sizes = []
    for i in _evenly_spaced(len(items)):
        try:
            height, width = shrunk_size(size_of(items[i]), short_side)
            sizes.append(height * width)
        except Exception:  # what cannot be read is told later, by who decodes it
            continue
    return channels * float(np.mean(sizes)) * len(items) if sizes else 0.0


def _decode_all(
    items: list[Path | Item], channels: int, spec: DataSpec, progress: Progress | None, keep: bool, remarks: list[str]
) -> tuple[list[Tensor] | None, list[tuple[int, str]]]:
    """Pixels of the readable items (None once they outgrow data.memory_gb), and (position, reason) of the others."""
    images: list[Tensor] | None = [] if keep else None
    broken: list[tuple[int, str]] = []
    large: list[str] = []
    used = 0

    decode_one = partial(
        decode_or_fault, channels=channels, short_side=spec.short_side, resample=spec.resample, large=large
    )
    for done, image in enumerate(map_in_order(decode_one, items), start=1):
        if isinstance(image, str):
            broken.append((done - 1, image))
        else:
            used += image.numel()
            if images is not None:
                images.append(image)
            if used > spec.memory_gb * 1e9:
                images = None
        if progress is not None:
            progress("reading images", done, len(items))
    remarks += remarks_on_large(large)
    return images, broken
