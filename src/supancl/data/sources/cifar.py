"""CIFAR10 and CIFAR100 as published or as arrays, and FC100, which is cut out of CIFAR100.

torchvision reads the published pickles; none is opened whose checksum is not the published one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from supancl.data.sources import arrays
from supancl.data.sources.layouts import and_more
from supancl.data.splits import Source, whole_split
from supancl.data.store.memory import ArrayImages
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

ArrayReader = Callable[[Path, int], Source]  # (folder, channels); the splits have their official names


def cifar_python(kind: str) -> ArrayReader:
    """The 'python version' of CIFAR10 or CIFAR100: pickles, opened only if they are the published ones."""

    def read(folder: Path, channels: int) -> Source:
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity

        official = getattr(datasets, kind)
        here = type(kind, (official,), {"base_folder": folder.name})  # whatever the folder is called
        meta = [official.meta["filename"], official.meta["md5"]]
        for name, md5 in [*official.train_list, *official.test_list, meta]:
            if not (folder / name).is_file():
                raise BadInput(f"{folder / name}: not there; unpack {official.filename} again")
            if not check_integrity(str(folder / name), md5):
                raise BadInput(
                    f"{folder / name}: not the published file (its MD5 differs), and no other pickle is "
                    f"opened; unpack {official.filename} again"
                )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*align")  # early numpy 2.4 on old files: pytorch/vision#9340
            parts = {"trainval": here(folder.parent, train=True), "test": here(folder.parent, train=False)}
        pairs = {split: (part.data, torch.tensor(part.targets).numpy()) for split, part in parts.items()}
        return arrays.source_from_arrays(pairs, channels, str(folder), tuple(parts["test"].classes))

    return read


def cifar_npz(file: str) -> ArrayReader:
    """NAME.npz with train_images, train_labels, test_images, test_labels, class_names."""

    def read(folder: Path, channels: int) -> Source:
        source = arrays.read_npz(folder / file, channels)
        if set(source.splits) != {"train", "test"}:
            raise BadInput(f"{folder / file}: it has {', '.join(source.splits)}; wanted train and test, as published")
        return replace(source, splits={"trainval": source.splits["train"], "test": source.splits["test"]})

    return read


# the classes of aquatic mammals, insects, medium-sized mammals and people; sorted, so in label order
FC100_TEST = (
    "baby", "beaver", "bee", "beetle", "boy", "butterfly", "caterpillar", "cockroach", "dolphin", "fox", "girl", "man",
    "otter", "porcupine", "possum", "raccoon", "seal", "skunk", "whale", "woman",
)  # fmt: skip


def fc100(cifar100: ArrayReader) -> ArrayReader:
    """The meta-test classes of FC100: all 600 images of twenty classes of CIFAR100."""

    def read(folder: Path, channels: int) -> Source:
        source = cifar100(folder, channels)
        classes = FC100_TEST
        lacking = sorted(set(classes) - set(source.classes))
        if lacking:
            raise BadInput(
                f"{folder}: no class {lacking[0]!r}{and_more(lacking)}; FC100 is cut out of CIFAR100 by "
                "class name, so give data with its names (class_names)"
            )
        ids = torch.full((len(source.classes),), -1)
        ids[torch.tensor([source.classes.index(name) for name in classes])] = torch.arange(len(classes))
        pixels, labels, names = [], [], []
        for split in source.splits.values():
            mine = (ids[split.labels] >= 0).nonzero()[:, 0]
            pixels.append(split.batch(mine).pixels)
            labels.append(ids[split.labels[mine]])
            names += split.named(mine)
        every = whole_split(ArrayImages(torch.cat(pixels)), torch.cat(labels), names)
        return Source({"test": every}, classes, source.remarks)

    return read
