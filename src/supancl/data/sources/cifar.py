"""CIFAR10 and CIFAR100 as published or as arrays, and FC100, a subset of CIFAR100.

torchvision reads the published pickles, after their checksums have been verified.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from supancl.data.sources import arrays
from supancl.data.sources.layouts import and_more
from supancl.data.splits import Source, full_split
from supancl.data.store.memory import ArrayImages
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

ArrayReader = Callable[[Path, int], Source]  # (folder, channels); the splits have their official names


def cifar_python(kind: str) -> ArrayReader:
    """Reader of the 'python version' of CIFAR10 or CIFAR100: pickles, opened only if their checksums match."""

    def read(folder: Path, channels: int) -> Source:
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity

        dataset = getattr(datasets, kind)
        local_dataset = type(kind, (dataset,), {"base_folder": folder.name})  # the folder may have any name
        meta = [dataset.meta["filename"], dataset.meta["md5"]]
        for name, md5 in [*dataset.train_list, *dataset.test_list, meta]:
            if not (folder / name).is_file():
                raise BadInput(f"{folder / name}: not there; unpack {dataset.filename} again")
            if not check_integrity(str(folder / name), md5):
                raise BadInput(
                    f"{folder / name}: not the published file (its MD5 differs), and other pickles are never "
                    f"opened; unpack {dataset.filename} again"
                )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*align")  # early numpy 2.4 on old files: pytorch/vision#9340
            subsets = {
                "trainval": local_dataset(folder.parent, train=True),
                "test": local_dataset(folder.parent, train=False),
            }
        pairs = {split: (subset.data, torch.tensor(subset.targets).numpy()) for split, subset in subsets.items()}
        return arrays.source_from_arrays(pairs, channels, str(folder), tuple(subsets["test"].classes))

    return read


def cifar_npz(file: str) -> ArrayReader:
    """Reader of NAME.npz with train_images, train_labels, test_images, test_labels, class_names."""

    def read(folder: Path, channels: int) -> Source:
        source = arrays.read_npz(folder / file, channels)
        if set(source.splits) != {"train", "test"}:
            raise BadInput(
                f"{folder / file}: it has {', '.join(source.splits)}; it must have train and test, as published"
            )
        return replace(source, splits={"trainval": source.splits["train"], "test": source.splits["test"]})

    return read


# the classes of aquatic mammals, insects, medium-sized mammals and people; sorted, so in label order
FC100_TEST_CLASSES = (
    "baby", "beaver", "bee", "beetle", "boy", "butterfly", "caterpillar", "cockroach", "dolphin", "fox", "girl", "man",
    "otter", "porcupine", "possum", "raccoon", "seal", "skunk", "whale", "woman",
)  # fmt: skip


def fc100(cifar100: ArrayReader) -> ArrayReader:
    """Reader of the meta-test classes of FC100: all 600 images of twenty classes of CIFAR100."""

    def read(folder: Path, channels: int) -> Source:
        source = cifar100(folder, channels)
        classes = FC100_TEST_CLASSES
        missing = sorted(set(classes) - set(source.classes))
        if missing:
            raise BadInput(
                f"{folder}: no class {missing[0]!r}{and_more(missing)}; FC100 is a subset of CIFAR100 by "
                "class name, so give data with its names (class_names)"
            )
        ids = torch.full((len(source.classes),), -1)
        ids[torch.tensor([source.classes.index(name) for name in classes])] = torch.arange(len(classes))
        pixels, labels, names = [], [], []
        for split in source.splits.values():
            selected = (ids[split.labels] >= 0).nonzero()[:, 0]
            pixels.append(split.batch(selected).pixels)
            labels.append(ids[split.labels[selected]])
            names += split.names_at(selected)
        all_images = full_split(ArrayImages(torch.cat(pixels)), torch.cat(labels), names)
        return Source({"test": all_images}, classes, source.remarks)

    return read
