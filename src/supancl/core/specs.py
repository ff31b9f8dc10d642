"""The fields of a recipe for encoder, heads, branches and pool. Only `build` needs torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from supancl.config import FREE_IN_A_SHARED_STEP, Count, Fraction, Positive, Within, marked
from supancl.core.heads import MLP
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.errors import BadInput

if TYPE_CHECKING:
    from supancl.core.encoders import Encoder
    from supancl.core.pools import Pool

# the patch size in the names of vision transformers
PATCH_SIZE_IN_NAME = re.compile(r"timm:.*patch(\d+)|torchvision:vit_[a-z]+_(\d+)$")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class EncoderSpec:
    """`name` is resnet18, resnet50, cifar-resnet18, vit-small, cnn, linear, timm:NAME for any model of timm,
    torchvision:NAME for any classifier of torchvision, or one of VARIANTS.
    """

    name: str = "resnet50"
    channels: Annotated[Count, Within(None, 4096)] = 3
    # side of the square input; for `linear` the length of the input vector
    size: Annotated[Count, Within(None, 16_384)] = 224
    width: Count | None = None  # of the features, if the encoder has no fixed width (cnn, linear)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[Positive, ...] = IMAGENET_STD

    def build(self) -> Encoder:
        from supancl.core.encoders import Encoder

        return Encoder(self)


def suggest_timm(name: str) -> str:
    """'; did you mean timm:NAME?' if timm has a model of this name, else empty.

    Importing timm takes seconds, so it is asked only about what looks like an architecture: resnet50d, convnext_tiny.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*[0-9_][a-z0-9_]*(\.[a-z0-9_]+)?", name):
        return ""
    import timm

    return f"; did you mean 'timm:{name}'?" if timm.is_model(name) else ""


def check_size(spec: EncoderSpec, patch: int | None = None) -> None:
    """Refuse a size that is not a multiple of the patch size: the encoder would ignore the border."""
    match = PATCH_SIZE_IN_NAME.match(spec.name)
    patch = patch or (16 if spec.name == "vit-small" else int(match[1] or match[2]) if match else 1)
    remainder = spec.size % patch
    if remainder:
        sizes = [side for side in (spec.size - remainder, spec.size - remainder + patch) if side]
        raise BadInput(
            f"encoder.size = {spec.size}: {spec.name} cuts images into patches of {patch} px and would "
            f"never see the last {remainder} px of their rows and columns; use {' or '.join(map(str, sizes))}"
        )


Target = Literal["shared", "stop-gradient", "momentum"]


@dataclass(frozen=True)
class BranchSpec:
    """Where targets come from, and the EMA momentum of a momentum copy.

    shared         the online branch, with gradient (SimCLR, SupCon)
    stop-gradient  the online branch, gradient stopped (SimSiam, SupSiam)
    momentum       an EMA copy of the online branch (BYOL, SupBYOL, MoCo)
    """

    target: Target = "stop-gradient"
    momentum: Fraction = marked(0.996, FREE_IN_A_SHARED_STEP)
    momentum_end: Fraction = marked(1.0, FREE_IN_A_SHARED_STEP)  # equal to `momentum`: constant


@dataclass(frozen=True)
class HeadSpec:
    """The projector g and the predictor h, if the method has one."""

    projector: MLP = MLP(hidden=(2048, 2048), out=2048)
    predictor: MLP | None = None


@dataclass(frozen=True)
class PoolSpec:
    """Which pool and how large: `size` slots in all (queue), `size` per class (class-queues), or prototypes."""

    kind: Literal["none", "queue", "class-queues", "prototypes"] = "none"
    size: Count = 8192
    rate: Fraction = 0.9  # of a prototype: weight of the old value in one push
    sharded: bool = False  # prototypes: each rank holds those of some classes
    start: Literal["empty", "random"] = "empty"  # random: a queue full of unit vectors without a label, as in MoCo

    def build(
        self, width: int, classes: int, unlabelled: bool = False, ranks: Ranks = SINGLE_PROCESS, pairs: int = 0
    ) -> Pool | None:
        """`pairs` is the number of labels per sample, 0 for one of weight 1."""
        if self.kind == "none":
            return None
        from supancl.core.pools import ClassQueues, Prototypes, Queue

        if self.kind == "queue":
            queue = Queue(self.size, width, classes, unlabelled, pairs)
            if self.start == "random":
                queue.fill_randomly()
            return queue
        if self.kind == "class-queues":
            return ClassQueues(self.size, width, classes, pairs)
        return Prototypes(width, classes, self.rate, ranks if self.sharded else SINGLE_PROCESS)
