"""CIFAR10 and CIFAR100 as published or as arrays, and FC100, a subset of CIFAR100.

torchvision reads the published pickles, after their checksums have been verified.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.core.labels import Labels
from supancl.data.listing import OFFICIAL_SPLITS, SPLITS, Listing, list_stored, take_parts
from supancl.data.sources import arrays
from supancl.data.sources.layouts import and_more
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

ArrayReader = Callable[[Path, int], Listing]  # (folder, channels); the splits have their official names


def cifar_python(kind: str) -> ArrayReader:
    """Reader of the 'python version' of CIFAR10 or CIFAR100: pickles, opened only if their checksums match."""

    def read(folder: Path, channels: int) -> Listing:
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
        return arrays.list_arrays(pairs, channels, str(folder), tuple(subsets["test"].classes))

    return read


def cifar_npz(file: str) -> ArrayReader:
    """Reader of NAME.npz with train_images, train_labels, test_images, test_labels, class_names."""

    def read(folder: Path, channels: int) -> Listing:
        listing = arrays.read_npz(folder / file, channels)
        found = [name for name in SPLITS if len(listing.rows_of(name))]
        if found != ["train", "test"]:
            raise BadInput(f"{folder / file}: it has {', '.join(found)}; it must have train and test, as published")
        trainval, train = OFFICIAL_SPLITS.index("trainval"), SPLITS.index("train")
        return replace(listing, splits=np.where(listing.splits == train, trainval, listing.splits))

    return read


# the classes of aquatic mammals, insects, medium-sized mammals and people; sorted, so in label order
FC100_TEST_CLASSES = (
    "baby", "beaver", "bee", "beetle", "boy", "butterfly", "caterpillar", "cockroach", "dolphin", "fox", "girl", "man",
    "otter", "porcupine", "possum", "raccoon", "seal", "skunk", "whale", "woman",
)  # fmt: skip


def fc100(cifar100: ArrayReader) -> ArrayReader:
    """Reader of the meta-test classes of FC100: all 600 images of twenty classes of CIFAR100."""

    def read(folder: Path, channels: int) -> Listing:
        listing = cifar100(folder, channels)
        classes = FC100_TEST_CLASSES
        missing = sorted(set(classes) - set(listing.classes))
        if missing:
            raise BadInput(
                f"{folder}: no class {missing[0]!r}{and_more(missing)}; FC100 is a subset of CIFAR100 by "
                "class name, so give data with its names (class_names)"
            )
        ids = torch.full((len(listing.classes),), -1)
        ids[torch.tensor([listing.classes.index(name) for name in classes])] = torch.arange(len(classes))
        rows = (ids[listing.labels.single] >= 0).nonzero()[:, 0]
        test = take_parts(listing.parts, rows, Labels.of(ids[listing.labels.single[rows]]))
        return list_stored({"test": test}, classes, folder, remarks=listing.remarks)

    return read
