"""The fields of a recipe for encoder, heads, branches, pool and schedules; only `build` needs torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from supancl.config import Count, Fraction, Natural, Positive, Within, check_fields
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn

    from supancl.core.encoders import Encoder
    from supancl.core.pools import Pool
else:
    from supancl.lazy import nn

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


def check_size(spec: EncoderSpec) -> None:
    """Refuse a size that is not a multiple of the patch size: the encoder would ignore the border."""
    match = PATCH_SIZE_IN_NAME.match(spec.name)
    patch = 16 if spec.name == "vit-small" else int(match[1] or match[2]) if match else 1
    if spec.size % patch:
        raise BadInput(
            f"encoder.size = {spec.size}: {spec.name} cuts images into patches of {patch} px; use a multiple of it"
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
    momentum: Fraction = 0.996
    momentum_end: Fraction = 1.0  # equal to `momentum`: constant


@dataclass(frozen=True)
class MLP:
    """Widths of the hidden layers and of the output, and which layers have batch norm and bias.

    A hidden width of None is the input width: that of the encoder, for a projector.
    """

    hidden: tuple[Count | None, ...] = ()
    out: Count | None = None  # None: the number of classes, for a classifier
    norm: Literal["batch", "none"] = "batch"
    last_norm: Literal["none", "batch", "batch-no-affine"] = "none"
    bias: Literal["auto", "none"] = "auto"  # auto: only where no batch norm follows, which would cancel it

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def describe(weights: Mapping[str, Tensor]) -> tuple[MLP, int]:
        """The spec and the input width of a head with these weights, named as `build` names them."""
        linear = sorted(int(name.split(".")[0]) for name, value in weights.items() if value.ndim == 2)
        normed = [f"{index + 1}.running_mean" in weights for index in linear]
        biased = [f"{index}.bias" in weights for index in linear]
        widths = [len(weights[f"{index}.weight"]) for index in linear]
        affine = f"{linear[-1] + 1}.weight" in weights
        return MLP(
            tuple(widths[:-1]),
            widths[-1],
            "batch" if not linear[:-1] or normed[0] else "none",
            "none" if not normed[-1] else "batch" if affine else "batch-no-affine",
            "auto" if all(norm != bias for norm, bias in zip(normed, biased, strict=True)) else "none",
        ), weights[f"{linear[0]}.weight"].shape[1]

    def build(self, width: int) -> nn.Sequential:
        assert self.out is not None
        layers: list[nn.Module] = []
        for hidden_width in self.hidden:
            hidden = width if hidden_width is None else hidden_width
            normed = self.norm == "batch"
            layers.append(nn.Linear(width, hidden, bias=self.bias == "auto" and not normed))
            if normed:
                layers.append(nn.BatchNorm1d(hidden))
            layers.append(nn.ReLU(inplace=True))
            width = hidden
        normed = self.last_norm != "none"
        layers.append(nn.Linear(width, self.out, bias=self.bias == "auto" and not normed))
        if normed:
            layers.append(nn.BatchNorm1d(self.out, affine=self.last_norm == "batch"))
        return nn.Sequential(*layers)


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


Schedule = Callable[[int], float]


@dataclass(frozen=True)
class ScheduleSpec:
    """Linear warm-up, then cosine to zero; the predictor's rate may be constant (App. C).

    An extended run (`pretrain --extend`) has no second warm-up: its cosine starts at `restart_rate` times the peak.
    """

    warmup_epochs: Natural = 0
    decay: Literal["cosine", "constant"] = "cosine"
    predictor: Literal["constant", "follows"] = "constant"
    granularity: Literal["step", "epoch"] = "step"  # the released code changes the rate once an epoch
    restart_epoch: Natural = 0  # of an extended run: where the run that it continues ended
    restart_rate: Annotated[float, Within(0, 1, exclusive_low=True)] = 1.0


def learning_rate(
    spec: ScheduleSpec, peak: float, epochs: int, steps_per_epoch: int, predictor: bool = False
) -> Schedule:
    """A function: step (0, 1, ...) -> learning rate. Nothing else in the package changes it."""
    if predictor and spec.predictor == "constant":
        return lambda step: peak  # constant for the predictor, warm-up included: App. C
    warmup = spec.warmup_epochs
    decay_start, top = (spec.restart_epoch, peak * spec.restart_rate) if spec.restart_epoch else (warmup, peak)

    def rate(step: int) -> float:
        epoch = step / steps_per_epoch if spec.granularity == "step" else float(step // steps_per_epoch)
        if epoch < warmup:
            offset = 1 / steps_per_epoch if spec.granularity == "step" else 1  # so that the first rate is not 0
            return peak * min(1.0, (epoch + offset) / warmup)
        if spec.decay == "constant":
            return top
        return top * 0.5 * (1 + math.cos(math.pi * (epoch - decay_start) / (epochs - decay_start)))

    return rate


def ema_momentum(start: float, end: float, steps: int) -> Schedule:
    """m(t) = end - (end - start)(1 + cos(pi t / T)) / 2: from `start` to `end` over the run."""
    if start == end:
        return lambda step: start
    return lambda step: end - (end - start) * (1 + math.cos(math.pi * step / steps)) / 2
