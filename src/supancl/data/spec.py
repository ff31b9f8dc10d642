"""The settings of a run's data: which source, and which of its images and labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from supancl.config import INCIDENTAL, Count, Fraction, Natural, Positive, Within, marked

NoiseKind = Literal["symmetric", "pair"]
# settings that take training images away or change their labels
CHANGES = ("limit", "leave_out", "imbalance", "labelled", "label_noise")


@dataclass(frozen=True)
class DataSpec:
    """Which data to use, and which images of it. `source` is empty if the recipe leaves it to --data."""

    source: str = marked("", INCIDENTAL)
    limit: Count | None = None  # train on this many images, drawn with a fixed seed
    holdout: Annotated[float, Within(0, 0.9)] | None = None  # None: a tenth or a fifth (docs/data.md) where none are
    leave_out: tuple[str, ...] = ()  # classes kept out of pretraining, for transfer
    imbalance: Annotated[float, Within(1, 1e6)] = 1.0  # times fewer images in the last class than in the first
    labelled: Fraction = 1.0  # fraction of the training labels that are kept
    max_labels: Count = 16  # of an image; 1: a ; in a .csv is part of a class name
    hierarchy: Literal["none", "paths", "cifar100"] = "none"  # paths: animal/cat is a cat and an animal
    level_weights: tuple[Positive, ...] = ()  # of the labels on each level, the coarsest first; (): all 1
    label_noise: Annotated[float, Within(0, 0.9)] = 0.0  # fraction of them that is made wrong
    label_noise_kind: NoiseKind = "symmetric"  # pair: every class is mistaken for the next one
    label_noise_seed: Natural = 0  # which labels
    short_side: Count | None = None  # larger images are shrunk to this when decoded
    resample: Literal["bilinear", "bicubic"] = "bilinear"  # filter used for shrinking
    balanced: bool = False  # every class equally often in an epoch, whatever its number of images
    # auto: if decoded images take more than 256 MB
    cache: Literal["auto", "always", "never"] = marked("auto", INCIDENTAL)
    memory_gb: Positive = marked(8.0, INCIDENTAL)  # without a cache, data above this are decoded again each time
    stream: bool = False  # read tar shards while training, without cache or memory
    window: Count = 16  # number of streamed shards whose images are shuffled together
    skip_bad_images: bool = marked(False, INCIDENTAL)
    joined: tuple[str, ...] = marked((), INCIDENTAL)  # further sources, whose images are added to those of `source`
    columns: str = marked("", INCIDENTAL)  # of a .csv with other names: image=file,label=species

    @property
    def all_sources(self) -> tuple[str, ...]:
        return (self.source, *self.joined)

    @property
    def location(self) -> str:
        """The sources, for messages."""
        return " + ".join(self.all_sources) or "the data"

    @property
    def is_whole(self) -> bool:
        """Whether all training images are used, with the labels that the source gives them."""
        return all(getattr(self, name) == getattr(DataSpec, name) for name in CHANGES)

    def whole(self) -> DataSpec:
        """The same data with all training images, as the source gives them."""
        return replace(self, balanced=False, **{name: getattr(DataSpec, name) for name in CHANGES})
