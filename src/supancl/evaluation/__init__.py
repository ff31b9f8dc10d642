"""The settings of each evaluation protocol: its flags, its defaults and the names of its results follow from them.

A field that its docstring does not explain is no flag. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from supancl.config import Count, Natural, NotNegative, Positive, Within, from_json, hints
from supancl.data.views.render import View
from supancl.errors import BadInput

Tested = Literal["held-out", "test"]
AtLeastTwo = Annotated[int, Within(2, None)]
TRAINED_IMAGES = "trained images"  # what chose a ridge
PROTOCOLS: dict[str, type[Settings]] = {}


def setting(default: Any, key: str = "", usual: Any = None, is_shown: bool = True) -> Any:
    """A field with another key in results, another usual value than the default, or that file names do not show."""
    return field(default=default, metadata={"key": key, "usual": usual, "is_shown": is_shown})


@dataclass(frozen=True)
class Settings:
    """What all protocols share."""

    name: ClassVar[str] = ""
    needs_data: ClassVar[bool] = False  # whether it is asked about named data sets, not about the run's own
    several: ClassVar[bool] = False  # whether an image may have several labels

    def __init_subclass__(cls, name: str, needs_data: bool = False, several: bool = False) -> None:
        cls.name, cls.needs_data, cls.several = name, needs_data, several
        PROTOCOLS[name] = cls

    @property
    def is_quick(self) -> bool:
        """Whether baselines are measured, too: not if they took as long as training again."""
        return True

    @property
    def is_cross_validated(self) -> bool:
        """Whether few held-out images are joined by others."""
        return False

    @classmethod
    def keys(cls) -> dict[str, Field[Any]]:
        """The fields by their key in results."""
        return {each.metadata.get("key") or each.name: each for each in fields(cls)}

    def in_result(self) -> dict[str, Any]:
        """What a result says of the settings, besides what was measured with."""
        values = {key: plain(getattr(self, each.name)) for key, each in self.keys().items()}
        return {key: value for key, value in values.items() if value is not None and key != "split"}

    @classmethod
    def given(cls, values: Mapping[str, Any]) -> Self:
        """The settings with these values, checked. None stands for the default, and a number for a tuple of one."""
        several = {name for name, kind in hints(cls).items() if "tuple" in str(kind)}
        values = {key: str(each) if isinstance(each, Path) else each for key, each in values.items()}
        chosen = {
            key: (each,) if key in several and isinstance(each, (int, float)) else each for key, each in values.items()
        }
        return from_json(cls, {key: each for key, each in chosen.items() if each is not None}, "")

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """Key in results -> the value that file names do not show."""
        shown = {key: each for key, each in cls.keys().items() if each.metadata.get("is_shown", True)}
        usual = {key: plain(each.metadata.get("usual") or each.default) for key, each in shown.items()}
        return usual | {"layer": "pooled", "normalize": False}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Knn(Settings, name="knn", several=True):
    """Classify images by their k nearest neighbours among the training images.

    Parameters
    ----------
    split
        evaluated images; held-out: val, else test, else a part of train
    k
        neighbours; of several, the first is the result (default: 20, or a quarter of the references per class if that
        is less)
    temperature
        of the neighbours' votes
    metric
        how features are compared
    leave_one_out
        use the evaluated images as references for one another
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer

    Examples
    --------
    $ supancl evaluate knn runs/photos --k 20,5
    $ supancl evaluate knn runs/a runs/b --data photos --format markdown
    """

    k: tuple[Count, ...] | None = setting(None, usual=20)
    temperature: Positive = 0.1
    metric: Literal["cosine", "l2"] = "cosine"
    leave_one_out: bool = False
    split: Tested = "held-out"
    view: View = "margin"

    @property
    def is_cross_validated(self) -> bool:
        return not self.leave_one_out


@dataclass(frozen=True)
class Linear(Settings, name="linear", several=True):
    """Train a linear classifier on frozen features.

    Parameters
    ----------
    split
        evaluated images; held-out: val, else test, else a part of train
    probe
        lbfgs: fast and convex; sgd: as in the paper
    augmented
        sgd on random crops, encoded again every epoch
    epochs
        of sgd; the learning rate drops at 60% and 80%
    lr
        learning rate of sgd for a batch of 256
    probe_batch
        batch size of sgd
    seed
        of the images held out of training, and of sgd
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer

    Examples
    --------
    $ supancl evaluate linear runs/photos
    $ supancl evaluate linear runs/a runs/b --probe sgd
    """

    probe: Literal["lbfgs", "sgd"] = "lbfgs"
    augmented: bool = False
    epochs: Count = 100
    lr: Positive = 30.0
    probe_batch: Count = setting(256, "batch_size")
    seed: Natural = 0
    split: Tested = "held-out"
    view: View = "margin"

    def __post_init__(self) -> None:
        changed = [
            name
            for name in ("augmented", "epochs", "lr", "probe_batch")
            if getattr(self, name) != getattr(Linear, name)
        ]
        if self.probe == "lbfgs" and changed:
            raise BadInput(f"{', '.join(changed)}: only for probe sgd; give probe sgd, or leave it out")

    @property
    def is_quick(self) -> bool:
        return not self.augmented

    @property
    def is_cross_validated(self) -> bool:
        return self.probe == "lbfgs"

    def in_result(self) -> dict[str, Any]:
        hidden = ("epochs", "lr", "batch_size") if self.probe == "lbfgs" else ()
        return {key: value for key, value in super().in_result().items() if key not in hidden}


@dataclass(frozen=True)
class Variance(Settings, name="variance"):
    """Measure variance within classes, effective rank and neural collapse.

    Parameters
    ----------
    split
        evaluated images; held-out: val, else test, else a part of train
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer

    Examples
    --------
    $ supancl evaluate variance runs/photos
    $ supancl evaluate variance runs/photos --layer projector --split train
    """

    split: Literal["held-out", "test", "train"] = "held-out"
    view: View = "margin"

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """Features are always normalised."""
        return {key: value for key, value in super().usual().items() if key != "normalize"}


@dataclass(frozen=True)
class Transfer(Settings, name="transfer", needs_data=True, several=True):
    """Transfer to other data sets by logistic regression, as in App. E.

    Parameters
    ----------
    metric
        default: the benchmark's, or top-1

    Examples
    --------
    $ supancl evaluate transfer runs/photos --data other
    $ supancl evaluate transfer runs/a runs/b --root benchmarks --sets pets,dtd
    """

    metric: Literal["top-1", "mean-per-class"] | None = setting(None, usual="top-1")
    view: View = "whole"


@dataclass(frozen=True)
class FewShot(Settings, name="fewshot", needs_data=True):
    """Measure N-way K-shot episodes on other data sets.

    Parameters
    ----------
    ways
        classes per episode
    shots
        labelled images per class
    queries
        query images per class
    fill_queries
        draw queries of classes with few images with replacement, as in the authors' code
    episodes
        number of episodes
    seed
        of the episodes, which are the same for every encoder

    Examples
    --------
    $ supancl evaluate fewshot runs/photos --data other --shots 1,5
    $ supancl evaluate fewshot runs/a runs/b --root benchmarks
    """

    ways: AtLeastTwo = setting(5, is_shown=False)
    shots: tuple[Count, ...] = setting((1, 5), is_shown=False)
    queries: Count = 16
    fill_queries: bool = False
    episodes: Count = 2000
    seed: Natural = 0
    view: View = "whole"


@dataclass(frozen=True)
class FineTune(Settings, name="finetune"):
    """Train the encoder and a new classifier together.

    Parameters
    ----------
    split
        evaluated images; held-out: val, else test, else a part of train
    epochs
        passes over the training images
    train_batch
        images per step
    lr
        learning rates; of several, the best on held-out training images is used
    weight_decay
        of all weights
    seed
        of the order, the views and the classifier
    views
        random crops, or pretraining: colours too
    freeze_norm
        batch norm keeps the encoder's statistics
    probe_first
        start from the linear classifier on the encoder
    out
        folder for the fine-tuned encoder and its classifier

    Examples
    --------
    $ supancl evaluate finetune runs/photos --out runs/tuned
    $ supancl evaluate finetune timm:resnet18 --data photos --epochs 10
    """

    epochs: Count = 20
    train_batch: AtLeastTwo = setting(64, "batch_size")  # batch norm needs two images
    lr: tuple[Positive, ...] = setting((0.01, 0.1, 1.0), "lrs")  # at batch 256
    weight_decay: NotNegative = 1e-4
    seed: Natural = 0
    views: Literal["crops", "pretraining"] = "crops"
    freeze_norm: bool = False
    probe_first: bool = False
    split: Tested = "held-out"
    out: str | None = setting(None, is_shown=False)

    @property
    def is_quick(self) -> bool:
        return False

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """It takes the encoder's output as it is."""
        return {key: value for key, value in super().usual().items() if key not in ("layer", "normalize")}

    def in_result(self) -> dict[str, Any]:
        return super().in_result() | {"out": self.out}
