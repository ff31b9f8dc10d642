"""A SOURCE becomes data: training images, held-out images, labels and class names.

SOURCE is `digits`, `toy`, an image folder, a `.npz`, a `.csv`, tar shards, `torchvision:NAME@ROOT`, `hf:NAME`, or
`NAME@ROOT` for a data set of the registry; `from_arrays` takes arrays from Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from supancl.config import INCIDENTAL, Count, Fraction, Positive, Within, marked
from supancl.data.order import seeded
from supancl.data.store.images import ArrayImages, Batch, ImageStore, PackedImages
from supancl.errors import BadInput, counted, nearest
from supancl.files import beside

Progress = Callable[[str, int, int], None]
SPLIT_SEED = 20240  # held-out images are the same for every run, whatever its seed


@dataclass(frozen=True)
class DataSpec:
    """Which data, and which part of them. `source` is empty where a recipe leaves it to --data."""

    source: str = marked("", INCIDENTAL)
    limit: Count | None = None  # train on this many images, drawn with a fixed seed
    holdout: Annotated[float, Within(0, 0.9)] | None = None  # None: 10% where the data have no held-out split
    leave_out: tuple[str, ...] = ()  # classes kept out of pretraining, for transfer
    labelled: Fraction = 1.0  # share of the training labels that are kept
    short_side: Count | None = marked(None, INCIDENTAL)  # larger images are brought down to this when decoded
    resample: Literal["bilinear", "bicubic"] = "bilinear"  # how
    balanced: bool = False  # every class equally often in an epoch, whatever its number of images
    # auto: where decoded images take more than 256 MB
    cache: Literal["auto", "always", "never"] = marked("auto", INCIDENTAL)
    memory_gb: Positive = marked(8.0, INCIDENTAL)  # without a cache, images beyond this are decoded again each time
    stream: bool = False  # tar shards are read while training, neither cached nor held in memory
    window: Count = 16  # of streamed shards, so many are shuffled among each other at a time
    skip_bad_images: bool = marked(False, INCIDENTAL)


@dataclass(frozen=True)
class Split:
    """Some of the images of a store, with labels (-1: unlabelled) and names for messages."""

    store: ImageStore
    index: Tensor
    labels: Tensor
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, positions: Tensor) -> Batch:
        return self.store.batch(self.index[positions])

    def named(self, positions: Tensor) -> list[str]:
        return [self.names[i] for i in self.index.cpu()[positions.cpu()].tolist()]

    def take(self, positions: Tensor) -> Split:
        return replace(self, index=self.index[positions], labels=self.labels[positions])

    def listed(self) -> Split:
        """The split with rows and labels in memory, as all but streamed ones have them."""
        return self

    @property
    def labelled(self) -> int:
        return int((self.labels >= 0).sum())

    def present(self) -> list[int]:
        """The classes that have an image, by id."""
        found: list[int] = torch.unique(self.labels[self.labels >= 0]).tolist()
        return found

    def some(self, count: int) -> Split:
        """At most so many images, the same ones every time."""
        if len(self) <= count:
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.take(order[:count].sort().values)

    def content(self) -> Iterator[bytes]:
        """What tells it apart from other files or other labels, wherever the files lie."""
        yield self.labels.numpy().tobytes()
        names = "\n".join(Path(name).name for name in self.named(torch.arange(len(self))))
        yield names.encode("utf-8", "surrogateescape")  # the name of a file may be in any encoding

    def relabelled(self, ids: Tensor) -> Split:
        """Labels replaced by ids[label]; -1 stays."""
        known = self.labels >= 0
        return replace(self, labels=torch.where(known, ids[self.labels.clamp(min=0)], self.labels))


@dataclass(frozen=True)
class Source:
    """What a reader found: splits by name (train, val, test), class names in label order, remarks for the user."""

    splits: dict[str, Split]
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    items: Sequence[object] = ()  # images outside memory, in the order of their store
    empty: tuple[str, ...] = ()  # class folders without an image


@dataclass(frozen=True)
class Data:
    """What a run works with. `transfer` holds the left-out classes: images to fit on, images to test on."""

    train: Split
    held_out: Split
    classes: tuple[str, ...]
    test: Split | None = None
    transfer: tuple[Split, Split] | None = None
    transfer_classes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    described: dict[str, object] = field(default_factory=dict)


def absolute_source(name: str) -> str:
    """A path as it is found from any folder; built-in names as they are."""
    from supancl.data.sources import readers

    if not name or name in readers.BUILT_IN:
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
    return absolute_source(one) == absolute_source(other)


def fingerprint(*splits: Split) -> str:
    """Tells other files or other labels apart, wherever the files lie."""
    content = hashlib.sha256()
    for split in splits:
        for part in split.content():
            content.update(part)
    return content.hexdigest()[:16]


def whole(store: ImageStore, labels: Tensor, names: Sequence[str]) -> Split:
    return Split(store, torch.arange(len(store)), labels, names)


def open_data(spec: DataSpec, channels: int, progress: Progress | None = None) -> Data:
    """Read the source that `spec` names and take from it what `spec` asks for."""
    return prepared(open_source(spec, channels, progress), spec)


def check_source(name: str) -> None:
    """Refuse a source that is not there, without reading it: of several, the last one may be hours away."""
    from supancl.data.sources import benchmarks, libraries, readers, tars

    known, at, root = name.partition("@")
    if at and (known in benchmarks.BENCHMARKS or known in benchmarks.ALIASES):
        benchmarks.find_benchmark(known, root)
    elif name not in readers.BUILT_IN and name.partition(":")[0] not in libraries.KINDS and not tars.is_tar(name):
        _there(name)


def _there(name: str) -> Path:
    from supancl.data.sources import readers

    path = Path(name)
    if not path.exists():
        hint = beside(path) or ("" if "/" in name or path.suffix else nearest(name, readers.BUILT_IN))
        raise BadInput(f"no data at {name!r}{hint if 'did you mean' in hint else '; check the path'}")
    return path


def open_source(spec: DataSpec, channels: int, progress: Progress | None = None, lenient: bool = False) -> Source:
    """The source that `spec` names; a `lenient` look lists empty class folders instead of refusing them."""
    # readers build Splits, so they are above this file
    from supancl.data.sources import benchmarks, libraries, readers, tars
    from supancl.data.store import stream

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
    if name in readers.BUILT_IN:
        return readers.BUILT_IN[name](channels)
    kind, _, rest = name.partition(":")
    if kind in libraries.KINDS:
        return libraries.KINDS[kind](rest, channels, spec, progress)
    known, at, root = name.partition("@")
    if at and (known in benchmarks.BENCHMARKS or known in benchmarks.ALIASES):
        return benchmarks.open_benchmark(known, Path(root), channels, spec, progress)
    if tars.is_tar(name):
        return tars.read_tars(name, channels, spec, progress)
    path = _there(name)
    if path.is_dir():
        return readers.read_folder(path, channels, spec, progress, lenient)
    if path.suffix.lower() == ".npz":
        return readers.read_npz(path, channels)
    if path.suffix.lower() == ".csv":
        return readers.read_csv(path, channels, spec, progress)
    raise BadInput(
        f"{name}: not a source; give a folder of images, a .npz, a .csv (path,label[,split]), .tar shards, "
        "torchvision:NAME@ROOT or hf:NAME"
    )


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
    from supancl.data.sources import readers

    if channels is None:
        channels = images.shape[3] if images.ndim == 4 else 1
    splits = {"train": (images, np.full(len(images), -1) if labels is None else labels)}
    if test_images is not None:
        unknown = np.full(len(test_images), -1)
        splits["test"] = (test_images, unknown if test_labels is None else test_labels)
    source = readers.from_splits(splits, channels, "the arrays", None if classes is None else tuple(classes))
    return prepared(source, spec or DataSpec(source="arrays"))


def prepared(source: Source, spec: DataSpec) -> Data:
    """Hold out, leave out, hide labels, limit: in this order, each with a fixed seed."""
    train, held_out, held_out_from = _held_out(source, spec)
    remarks = (*source.remarks, *_unjudged(train, held_out, held_out_from, source.classes))
    test = source.splits.get("test")
    classes, transfer = source.classes, None
    transfer_classes: tuple[str, ...] = ()
    if spec.leave_out:
        kept, left = _class_sets(source.classes, spec.leave_out)
        transfer = (_of_classes(train, left), _of_classes(held_out, left))
        transfer_classes = tuple(source.classes[i] for i in left)
        # an image without a label may show a left-out class: nobody can tell, so it stays
        train, held_out = _of_classes(train, kept, unlabelled=True), _of_classes(held_out, kept, unlabelled=True)
        test = None if test is None else _of_classes(test, kept)
        classes = tuple(source.classes[i] for i in kept)
    known, told = _hidden(train, spec.labelled)
    train = _limited(known, spec.limit)
    if spec.labelled < 1 and (lost := len(known.present()) - len(train.present())):
        told.append(
            f"data.limit = {spec.limit} leaves {lost} of {len(known.present())} classes without a label, for "
            "it is drawn after data.labelled has hidden them; raise one of the two"
        )
    remarks = (*remarks, *told)
    if not len(train):
        raise BadInput(f"{spec.source}: no image is left to train on; look at data.leave_out and data.holdout")
    described: dict[str, object] = {
        "source": spec.source,
        "train": len(train),
        "labelled": train.labelled,
        "held_out": len(held_out),
        "held_out_from": held_out_from,
        "classes": len(classes),
        "skipped": len(source.skipped),
        "fingerprint": fingerprint(train, held_out),
    }
    return Data(train, held_out, classes, test, transfer, transfer_classes, remarks, source.skipped, described)


def _held_out(source: Source, spec: DataSpec) -> tuple[Split, Split, str]:
    """The val split, else the test split, else a stratified share of train; `data.holdout` always takes a share."""
    train = source.splits["train"]
    for name in ("val", "test"):
        if spec.holdout is None and name in source.splits:
            return train, source.splits[name], name
    share = 0.1 if spec.holdout is None else spec.holdout
    if share == 0:
        return train, train.take(torch.empty(0, dtype=torch.long)), "train"
    # an image without a label can judge nothing, so it is trained on, unless there are no others
    judging = (train.labels >= 0).nonzero()[:, 0] if bool((train.labels >= 0).any()) else torch.arange(len(train))
    chosen = judging[stratified(train.labels[judging], share, SPLIT_SEED)]
    if share > 0 and len(chosen) == 0:
        raise BadInput(
            f"{spec.source}: {counted(len(train), 'image is', 'images are')} too few to hold {share:.0%} "
            "of each class out; add images or a val/ folder (for training alone: --set data.holdout=0)"
        )
    mask = torch.zeros(len(train), dtype=torch.bool)
    mask[chosen] = True
    return train.take((~mask).nonzero()[:, 0]), train.take(mask.nonzero()[:, 0]), "train"


def _unjudged(train: Split, held_out: Split, name: str, classes: Sequence[str]) -> Iterator[str]:
    """Remarks on what is held out and can judge nothing: images without a label, classes that nobody trains on."""
    if not train.labelled or not len(held_out):
        return
    if not held_out.labelled:
        some, them = (
            (f"the one image of {name} has no", "it")
            if len(held_out) == 1
            else (f"none of the {len(held_out)} images of {name} has a", "them")
        )
        yield (
            f"{some} label, so nothing can be judged by {them}; to hold labelled images of train out "
            "instead: --set data.holdout=0.1"
        )
    unknown = [classes[label] for label in sorted(set(held_out.present()) - set(train.present()))]
    if unknown:
        yield (
            f"{counted(len(unknown), 'class is held out and has', 'classes are held out and have')} no image to "
            f"train on, such as {unknown[0]!r}; a name counts with its capitals, spaces and the way its accents are "
            "encoded"
        )


def stratified(labels: Tensor, share: float, seed: int, ones: bool = False) -> Tensor:
    """Positions of about `share` of each class (unlabelled ones are a class here), at most all but one of it.

    Of a class of one none is taken, or with `ones` that one.
    """
    chosen = []
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero()[:, 0]
        most = len(members) if ones and len(members) == 1 else len(members) - 1
        count = min(most, max(round(share * len(members)), 1 if share > 0 else 0))
        order = torch.randperm(len(members), generator=torch.Generator().manual_seed(seeded(seed, label + 1)))
        chosen.append(members[order[:count]])
    return torch.cat(chosen).sort().values if chosen else torch.empty(0, dtype=torch.long)


def _class_sets(classes: Sequence[str], leave_out: Sequence[str]) -> tuple[list[int], list[int]]:
    for name in leave_out:
        if name not in classes:
            raise BadInput(f"data.leave_out names class {name!r}, which the data do not have{nearest(name, classes)}")
    left = [i for i, name in enumerate(classes) if name in leave_out]
    return [i for i in range(len(classes)) if i not in left], left


def _of_classes(split: Split, classes: Sequence[int], unlabelled: bool = False) -> Split:
    """Only images of these classes, relabelled 0, 1, ... in their order."""
    ids = torch.full((int(max([*classes, *split.labels.tolist(), 0])) + 1,), -2)
    ids[torch.tensor(list(classes), dtype=torch.long)] = torch.arange(len(classes))
    mapped = split.relabelled(ids)
    keep = (mapped.labels >= 0) | ((split.labels < 0) if unlabelled else False)
    return mapped.take(keep.nonzero()[:, 0])


def _hidden(train: Split, share: float) -> tuple[Split, list[str]]:
    """Labels of about `share` of each class, and a remark where small classes make it another share of them all."""
    if share == 1.0:
        return train, []
    kept = stratified(train.labels, share, SPLIT_SEED + 1, ones=True)
    labels = torch.full_like(train.labels, -1)
    labels[kept] = train.labels[kept]
    sizes = torch.bincount(train.labels[train.labels >= 0])
    taken = torch.bincount(labels[labels >= 0], minlength=len(sizes))
    found, wanted = int(taken.sum()), round(share * int(sizes.sum()))
    rounded, why = (sizes.double() * share).round(), ""
    if found > wanted and bool((taken > rounded).any()):
        why = "every class keeps one at least"
    elif found < wanted and bool((taken < rounded).any()):
        why = "every class of two or more hides one at least"
    elif abs(found - wanted) > max(1, 0.05 * wanted):
        why = "the share is rounded in each class"
    told = (
        f"data.labelled = {share:g} asks for {wanted:,} of {int(sizes.sum()):,} labels; {found:,} are kept, for {why}"
    )
    return replace(train.listed(), labels=labels), [told] if why else []


def _limited(train: Split, limit: int | None) -> Split:
    if limit is None or limit >= len(train):
        return train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(SPLIT_SEED + 2))
    return train.take(order[:limit].sort().values)


def resident(split: Split, device: torch.device, progress: Progress | None = None) -> Split:
    """The split with its pixels on the device, where they fit: one array, or packed images."""
    store = split.store
    if isinstance(store, ArrayImages) and (device.type != "cuda" or fits(store.pixels.nbytes, device)):
        return replace(split, store=store.to(device), index=split.index.to(device))
    if isinstance(store, PackedImages) and device.type == "cuda" and fits(store.nbytes, device):

        def tell(done: int, total: int) -> None:
            if progress is not None:
                progress("moving images to the GPU", done, total)

        return replace(split, store=store.to(device, tell), index=split.index.to(device))
    return split


def fits(nbytes: int, device: torch.device) -> bool:
    """Whether pixels may stay on the GPU: at most half of what is free, the rest is for training."""
    return nbytes <= torch.cuda.mem_get_info(device)[0] / 2
