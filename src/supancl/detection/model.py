"""Faster R-CNN around a ResNet encoder, built from torchvision's modules: C4 as in MoCo, or a feature pyramid."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models import ResNet
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import MultiScaleRoIAlign, RoIAlign

from supancl.core.encoders import Encoder, EncoderSpec
from supancl.detection.spec import DetectSpec
from supancl.errors import BadInput
from supancl.evaluation.feature_cache import encoder_key
from supancl.runs.importing import open_encoder

STRIDE = 16  # of res4
FPN_WIDTH, FPN_HIDDEN = 256, 1024  # torchvision's


@dataclass(frozen=True)
class Normalization:
    """Mean and deviation per channel of the encoder's training pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def open_body(text: str, seed: int = 0) -> tuple[ResNet, EncoderSpec]:
    """A copy of the ResNet that ENCODER names: random:NAME, or anything the evaluation commands take."""
    if text.startswith("random:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = EncoderSpec(text.removeprefix("random:")).build()
    else:
        encoder = open_encoder(text)
    return copy_resnet(encoder), encoder.spec


def encoder_checksum(text: str) -> str:
    """The checksum of the encoder, as in evaluation results; empty for random weights."""
    return "" if text.startswith("random:") else encoder_key(open_encoder(text))


def absolute_encoder_name(text: str) -> str:
    """The encoder's name with its path made absolute, also after an @."""
    name, separator, file = text.partition("@")
    if Path(text).exists():
        return str(Path(text).resolve())
    return f"{name}@{Path(file).resolve()}" if separator and Path(file).exists() else text


def copy_resnet(encoder: Encoder) -> ResNet:
    """A copy of the encoder's body; refused unless it is a ResNet with the ImageNet stem."""
    name = encoder.spec.name
    body: ResNet | None = encoder.body if isinstance(encoder.body, ResNet) else _as_torchvision_resnet(encoder.body)
    if body is None:
        raise BadInput(f"encoder {name!r} is not a ResNet of torchvision, which detection needs; give such as resnet50")
    if isinstance(body.maxpool, nn.Identity):
        raise BadInput(f"encoder {name!r} has the stem for 32 px images; give one with ImageNet's, such as resnet50")
    if encoder.spec.channels != 3:
        raise BadInput(f"encoder {name!r} takes {encoder.spec.channels} channels; detection needs one with 3 (RGB)")
    return copy.deepcopy(body)


@torch.no_grad()
def _as_torchvision_resnet(body: nn.Module) -> ResNet | None:
    """torchvision's ResNet with these weights; None unless its tensors and its output are the same."""
    state = body.state_dict()
    shapes = {name: value.shape for name, value in state.items()}
    for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
        with torch.device("meta"):
            resnet: ResNet = getattr(torchvision.models, name)()
            resnet.fc = nn.Identity()
        if {key: value.shape for key, value in resnet.state_dict().items()} != shapes:
            continue
        resnet.load_state_dict(copy.deepcopy(state), assign=True)
        training, image = body.training, torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        is_equal = torch.allclose(resnet.eval()(image), body.eval()(image), rtol=1e-3, atol=1e-5)
        body.train(training)
        return resnet.train(training) if is_equal else None
    return None


def normalization_of(spec: EncoderSpec) -> Normalization:
    return Normalization(tuple(spec.mean) * (3 // len(spec.mean)), tuple(spec.std) * (3 // len(spec.std)))


class Detector(GeneralizedRCNN):  # type: ignore[misc]
    """torchvision's two-stage detector, with frozen stages and another image size for testing."""

    def __init__(self, components: Sequence[nn.Module], spec: DetectSpec) -> None:
        super().__init__(*components)
        self.spec = spec
        for stage in self.frozen_stages():
            stage.requires_grad_(False)

    def frozen_stages(self) -> Iterator[nn.Module]:
        body = self.backbone.body if self.spec.arch == "fpn" else self.backbone
        for name in self.spec.freeze:
            if name == "stem":
                yield from (body.conv1, body.bn1)
            elif name == "layer4" and self.spec.arch == "c4":
                yield self.roi_heads.box_head.layer4
            else:
                yield body.get_submodule(name)

    def train(self, mode: bool = True) -> Detector:
        super().train(mode)
        for stage in self.frozen_stages():
            stage.eval()  # their running statistics stay the encoder's
        self.transform.min_size = self.spec.min_sizes if mode else (self.spec.test_size,)
        return self

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimizer; batch norms have a separate weight decay."""
        norms = {id(p) for module in self.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}
        trained = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if id(p) not in norms], "weight_decay": self.spec.weight_decay},
            {"params": [p for p in trained if id(p) in norms], "weight_decay": self.spec.norm_decay},
        ]


def build_detector(body: ResNet, spec: DetectSpec, classes: int, normalization: Normalization) -> Detector:
    """A detector around `body` (not a copy); `spec.seed` initialises the new layers and leaves the global seed alone.

    In a process group the batch norms are synchronised; in one process that makes no difference.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        build_components = _c4_components if spec.arch == "c4" else _fpn_components
        detector = Detector(build_components(body, spec, classes, normalization), spec)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return nn.SyncBatchNorm.convert_sync_batchnorm(detector)  # type: ignore[no-any-return]
    return detector


def move_to_device(detector: Detector, device: torch.device) -> Detector:
    """Move to the device; on a GPU with channels last, the order in which tensor cores read."""
    moved: Detector = detector.to(device)
    return moved.to(memory_format=torch.channels_last) if device.type == "cuda" else moved


# --- C4 ---------------------------------------------------------------------------------------------------------------


class C4Pool(nn.Module):
    """RoIAlign on the single feature map, with half-pixel alignment: Detectron2's ROIAlignV2."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.align = RoIAlign(size, 1 / STRIDE, sampling_ratio=0, aligned=True)

    def forward(self, features: dict[str, Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
        maps = features["0"]
        # back to the maps' precision here: the two convolutions that read a region would each keep a copy of it
        return self.align(maps.float(), boxes).to(maps.dtype)  # type: ignore[no-any-return]


class Res5(nn.Module):
    """The encoder's last stage on every region, MoCo's extra norm, and the mean over positions."""

    def __init__(self, layer4: nn.Module, width: int, extra_norm: bool) -> None:
        super().__init__()
        self.layer4 = layer4
        self.norm = nn.BatchNorm2d(width) if extra_norm else nn.Identity()

    def forward(self, regions: Tensor) -> Tensor:
        maps: Tensor = self.norm(self.layer4(regions))
        return maps.mean((2, 3))


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """Anchors in float32. torchvision's have the maps' precision, and bf16 counts only to 256."""

    def forward(self, images: ImageList, maps: list[Tensor]) -> list[Tensor]:
        sizes = [level.new_empty((1, 1, *level.shape[-2:]), dtype=torch.float32) for level in maps]
        anchors: list[Tensor] = super().forward(images, sizes)
        return anchors


class ProposalHead(RPNHead):  # type: ignore[misc]
    """Boxes and scores in float32: in bf16 close scores become ties, and boxes move by pixels."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, deltas = super().forward(maps)
        return [score.float() for score in scores], [delta.float() for delta in deltas]


class BoxPredictor(FastRCNNPredictor):  # type: ignore[misc]
    """Class scores and box corrections of a region: small initial weights as in Detectron2, float32 output."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        nn.init.zeros_(self.cls_score.bias)
        nn.init.zeros_(self.bbox_pred.bias)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        scores, deltas = super().forward(regions)
        return scores.float(), deltas.float()


def _out_channels(stage: nn.Module) -> int:
    """Output channels of a stage, with basic blocks or bottlenecks."""
    return [module for module in stage.modules() if isinstance(module, nn.Conv2d)][-1].out_channels


def _c4_components(body: ResNet, spec: DetectSpec, classes: int, normalization: Normalization) -> list[nn.Module]:
    names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
    backbone: Any = nn.Sequential(OrderedDict((name, getattr(body, name)) for name in names))
    backbone.out_channels = _out_channels(body.layer3)
    anchors = Anchors((spec.anchor_sizes,), (spec.anchor_ratios,))
    rpn = RegionProposalNetwork(
        anchors, ProposalHead(backbone.out_channels, anchors.num_anchors_per_location()[0]), fg_iou_thresh=0.7,
        bg_iou_thresh=0.3, batch_size_per_image=spec.rpn_batch, positive_fraction=0.5, **_proposal_counts(spec),
        nms_thresh=0.7,
    )  # fmt: skip
    width = _out_channels(body.layer4)
    heads = RoIHeads(
        C4Pool(spec.pool), Res5(body.layer4, width, spec.extra_norm), BoxPredictor(width, classes + 1),
        fg_iou_thresh=0.5, bg_iou_thresh=0.5, batch_size_per_image=spec.roi_batch, positive_fraction=0.25,
        bbox_reg_weights=None, score_thresh=spec.score_threshold, nms_thresh=spec.nms,
        detections_per_img=spec.detections,
    )  # fmt: skip
    return [
        backbone,
        rpn,
        heads,
        GeneralizedRCNNTransform(spec.min_sizes, spec.max_size, normalization.mean, normalization.std),
    ]


def _proposal_counts(spec: DetectSpec) -> dict[str, dict[str, int]]:
    (before, after), (before_test, after_test) = spec.rpn_train, spec.rpn_test
    return {
        "pre_nms_top_n": {"training": before, "testing": before_test},
        "post_nms_top_n": {"training": after, "testing": after_test},
    }


# --- FPN --------------------------------------------------------------------------------------------------------------


def _fpn_components(body: ResNet, spec: DetectSpec, classes: int, normalization: Normalization) -> list[nn.Module]:
    stages = ("layer1", "layer2", "layer3", "layer4")
    widths = [_out_channels(getattr(body, name)) for name in stages]
    backbone = BackboneWithFPN(body, {name: str(i) for i, name in enumerate(stages)}, widths, FPN_WIDTH)
    anchors = Anchors(tuple((size,) for size in spec.anchor_sizes), (spec.anchor_ratios,) * 5)
    proposals = _proposal_counts(spec)
    model = FasterRCNN(
        backbone, min_size=spec.min_sizes, max_size=spec.max_size,
        image_mean=normalization.mean, image_std=normalization.std,
        rpn_anchor_generator=anchors, rpn_head=ProposalHead(FPN_WIDTH, len(spec.anchor_ratios)),
        rpn_pre_nms_top_n_train=proposals["pre_nms_top_n"]["training"],
        rpn_pre_nms_top_n_test=proposals["pre_nms_top_n"]["testing"],
        rpn_post_nms_top_n_train=proposals["post_nms_top_n"]["training"],
        rpn_post_nms_top_n_test=proposals["post_nms_top_n"]["testing"], rpn_batch_size_per_image=spec.rpn_batch,
        box_roi_pool=MultiScaleRoIAlign([str(i) for i in range(len(stages))], spec.pool, sampling_ratio=2),
        box_predictor=BoxPredictor(FPN_HIDDEN, classes + 1), box_batch_size_per_image=spec.roi_batch,
        box_score_thresh=spec.score_threshold, box_nms_thresh=spec.nms, box_detections_per_img=spec.detections,
    )  # fmt: skip
    return [model.backbone, model.rpn, model.roi_heads, model.transform]
