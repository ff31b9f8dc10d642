"""CIFAR10 and CIFAR100 as published or as arrays, and FC100, a subset of CIFAR100.

torchvision reads the published pickles, after their checksums have been verified.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.core.labels import Labels
from supancl.data.listing import OFFICIAL_SPLITS, SPLITS, Listing, list_stored, take_parts
from supancl.data.sources import arrays
from supancl.data.sources.layouts import and_more
from supancl.errors import BadInput, NoLevels, did_you_mean

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


# --- superclasses -----------------------------------------------------------------------------------------------------

# the 20 of CIFAR-100, with five classes each (https://www.cs.toronto.edu/~kriz/cifar.html)
SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
FC100_TEST_CLASSES = tuple(
    sorted(
        name
        for superclass in ("aquatic_mammals", "insects", "medium_mammals", "people")
        for name in SUPERCLASSES[superclass]
    )
)
SUPERCLASS_OF = {name: superclass for superclass, names in SUPERCLASSES.items() for name in names}
CLASSES = tuple(sorted(SUPERCLASS_OF))  # in label order


def cifar100_paths(classes: Sequence[str], location: str) -> list[str]:
    """SUPERCLASS/CLASS for each class; the numbers 0 to 99 are the classes in CIFAR-100's order.

    >>> cifar100_paths(["apple", "wolf"], "data")
    ['fruit_and_vegetables/apple', 'large_carnivores/wolf']
    """
    by_number = {str(number): name for number, name in enumerate(CLASSES)}
    names = [by_number[name] for name in classes] if set(classes) == set(by_number) else classes
    unknown = next((name for name in names if name not in SUPERCLASS_OF), None)
    if unknown is not None:
        raise NoLevels(
            f"{location}: {unknown[:80]!r} is no class of CIFAR-100{did_you_mean(unknown, CLASSES)}; data.hierarchy = "
            "cifar100 is for its classes by name, or for all 100 by number"
        )
    return [f"{SUPERCLASS_OF[name]}/{name}" for name in names]
