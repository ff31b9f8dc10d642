"""Object detection: Faster R-CNN from a pretrained ResNet encoder (the paper's VOC result). Here are its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from supancl.config import INCIDENTAL, Count, Fraction, Natural, NotNegative, Positive, Within, marked, replaced
from supancl.errors import BadInput

Stage = Literal["stem", "layer1", "layer2", "layer3", "layer4"]
Side = Annotated[int, Within(16, None)]


@dataclass(frozen=True)
class DetectSpec:
    """Faster R-CNN as MoCo fine-tunes it on VOC07+12 (R50-C4, 24k iterations); SOURCES has the source of each value."""

    arch: Literal["c4", "fpn"] = "c4"
    # the schedule
    iters: Count = 24_000
    batch_size: Count = 16
    lr: Positive = 0.02
    momentum: Annotated[float, Within(0, 0.9999)] = 0.9
    weight_decay: NotNegative = 1e-4
    norm_decay: NotNegative = 0.0
    warmup: Natural = 100
    warmup_factor: Fraction = 0.001
    steps: tuple[Count, ...] = (18_000, 22_000)
    gamma: Fraction = 0.1
    # what the images look like
    min_sizes: tuple[Side, ...] = tuple(range(480, 801, 32))
    test_size: Side = 800
    max_size: Side = 1333
    flip: Fraction = 0.5
    train_difficult: bool = True
    keep_empty: bool = False
    # the detector
    anchor_sizes: tuple[Count, ...] = (32, 64, 128, 256, 512)
    anchor_ratios: tuple[Positive, ...] = (0.5, 1.0, 2.0)
    rpn_train: tuple[Count, Count] = (12_000, 2_000)
    rpn_test: tuple[Count, Count] = (6_000, 1_000)
    rpn_batch: Count = 256
    roi_batch: Count = 512
    pool: Count = 14
    extra_norm: bool = True
    freeze: tuple[Stage, ...] = ()
    # testing
    precise_bn: Natural = 200
    score_threshold: Fraction = 0.05
    nms: Fraction = 0.5
    detections: Count = 100
    test_batch: Count = 4
    test_limit: Natural = 0
    # the run
    seed: Natural = marked(0, INCIDENTAL)
    device: Literal["auto", "cpu", "cuda"] = marked("auto", INCIDENTAL)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    workers: Natural = marked(4, INCIDENTAL)
    memory_gb: NotNegative = marked(4.0, INCIDENTAL)
    log_every: Count = marked(20, INCIDENTAL)
    eval_every: Natural = marked(0, INCIDENTAL)
    checkpoint_every: Count = marked(1_000, INCIDENTAL)


MOCO_VOC = "MoCo detection/configs/pascal_voc_R_50_C4_24k.yaml"
MOCO_BASE = "MoCo detection/configs/Base-RCNN-C4-BN.yaml"
D2 = "Detectron2 config/defaults.py"
SOURCES: dict[str, str] = {
    "iters": MOCO_VOC, "steps": MOCO_VOC, "warmup": MOCO_VOC, "min_sizes": MOCO_VOC, "test_size": MOCO_VOC,
    "batch_size": MOCO_BASE, "lr": MOCO_BASE, "rpn_test": MOCO_BASE, "freeze": f"{MOCO_BASE} (FREEZE_AT 0)",
    "extra_norm": f"{MOCO_BASE} (Res5ROIHeadsExtraNorm)", "precise_bn": f"{MOCO_BASE}; number from {D2}",
    "arch": "the paper: following MoCo, which takes R50-C4",
    "momentum": D2, "weight_decay": D2, "norm_decay": D2, "warmup_factor": D2, "gamma": D2, "max_size": D2,
    "flip": D2, "keep_empty": D2, "anchor_sizes": D2, "anchor_ratios": D2, "rpn_train": D2, "rpn_batch": D2,
    "roi_batch": D2, "pool": D2, "score_threshold": D2, "nms": D2, "detections": D2,
    "train_difficult": "Detectron2 data/datasets/pascal_voc.py keeps them in training",
}  # fmt: skip
OWN_CHOICE = "chosen here"
# torchvision's, where an fpn differs
FPN_DEFAULTS: dict[str, Any] = {
    "rpn_train": (2_000, 2_000), "rpn_test": (1_000, 1_000), "pool": 7, "extra_norm": False,
}  # fmt: skip


def detect_spec(arch: str = "c4", overrides: Mapping[str, Any] | None = None) -> DetectSpec:
    """The recipe of an architecture with overrides; another number of iterations scales the schedule.

    >>> detect_spec("c4", {"iters": 2400}).steps
    (1800, 2200)
    """
    changed = dict(overrides or {})
    usual = replaced(DetectSpec(), "arch", changed.pop("arch", arch))
    spec = usual = replace(usual, **FPN_DEFAULTS) if usual.arch == "fpn" else usual
    for name, value in changed.items():
        spec = replaced(spec, name, value)
    if spec.arch == "fpn" and (spec.extra_norm or len(spec.anchor_sizes) != 5):
        raise BadInput("fpn takes 5 anchor_sizes, one for each level, and no extra_norm")
    if spec.iters == usual.iters:
        return spec
    tenth = max(1, spec.iters // 10)  # warm-up and precise BN take at most so many
    scaled = {
        "steps": tuple(max(1, round(step * spec.iters / usual.iters)) for step in usual.steps),
        "warmup": min(spec.warmup, tenth),
        "precise_bn": min(spec.precise_bn, tenth),
    }
    return replace(spec, **{name: value for name, value in scaled.items() if name not in changed})  # type: ignore[arg-type]


def learning_rate(spec: DetectSpec, step: int) -> float:
    """The learning rate of a step (0, 1, ...): linear warm-up, then multiplied by gamma at each of `steps`."""
    progress = min(step / spec.warmup, 1.0) if spec.warmup else 1.0
    warmup = spec.warmup_factor * (1 - progress) + progress
    return float(spec.lr * warmup * spec.gamma ** sum(step >= boundary for boundary in spec.steps))
