"""Faster R-CNN around a ResNet encoder, out of torchvision's parts: C4 as MoCo has it, or a feature pyramid."""

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
from supancl.detect.spec import DetectSpec
from supancl.errors import BadInput, plural
from supancl.evaluate.feature_cache import encoder_key
from supancl.weights.importing import open_encoder

STRIDE = 16  # of res4
FPN_WIDTH, FPN_HIDDEN = 256, 1024  # torchvision's


@dataclass(frozen=True)
class Normalization:
    """Mean and deviation of the pixels that the encoder was trained on, by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def open_body(text: str, seed: int = 0) -> tuple[ResNet, EncoderSpec]:
    """The ResNet that ENCODER names, its own copy: random:NAME, or whatever the evaluation commands take."""
    if text.startswith("random:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = EncoderSpec(text.removeprefix("random:")).build()
    else:
        encoder = open_encoder(text)
    return resnet_of(encoder), encoder.spec


def encoder_weights(text: str) -> str:
    """The checksum of the encoder that a detector begins from, as evaluations have it; empty for random weights."""
    return "" if text.startswith("random:") else encoder_key(open_encoder(text))


def absolute_encoder(text: str) -> str:
    """The same name from every folder: the file in it, after an @ too, as a whole path."""
    name, at, file = text.partition("@")
    if Path(text).exists():
        return str(Path(text).resolve())
    return f"{name}@{Path(file).resolve()}" if at and Path(file).exists() else text


def resnet_of(encoder: Encoder) -> ResNet:
    """The encoder's body where it is a ResNet with the stem for photographs; anything else is refused."""
    name = encoder.spec.name
    body: ResNet | None = encoder.body if isinstance(encoder.body, ResNet) else _same_resnet(encoder.body)
    if body is None:
        raise BadInput(
            f"encoder {name!r} is no ResNet as torchvision has them (stages res2 to res5), which detection "
            "is built on; give resnet18, 34, 50, 101, 152 or another of its ResNets (torchvision:NAME)"
        )
    if isinstance(body.maxpool, nn.Identity):
        raise BadInput(
            f"encoder {name!r} has the stem for 32 px images: its maps would be {STRIDE // 4} times finer "
            "than the anchors; give one with the ImageNet stem, such as resnet18 or resnet50"
        )
    if encoder.spec.channels != 3:
        raise BadInput(f"encoder {name!r} takes {plural(encoder.spec.channels, 'channel')}; detection reads RGB images")
    return copy.deepcopy(body)


@torch.no_grad()
def _same_resnet(body: nn.Module) -> ResNet | None:
    """torchvision's ResNet with the weights of another library's, where it has the same tensors and the same answer."""
    state = body.state_dict()
    shapes = {name: value.shape for name, value in state.items()}
    for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
        with torch.device("meta"):
            plain: ResNet = getattr(torchvision.models, name)()
            plain.fc = nn.Identity()
        if {key: value.shape for key, value in plain.state_dict().items()} != shapes:
            continue
        plain.load_state_dict(copy.deepcopy(state), assign=True)
        training, probe = body.training, torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        alike = torch.allclose(plain.eval()(probe), body.eval()(probe), rtol=1e-3, atol=1e-5)
        body.train(training)
        return plain.train(training) if alike else None
    return None


def normalization_of(spec: EncoderSpec) -> Normalization:
    return Normalization(tuple(spec.mean) * (3 // len(spec.mean)), tuple(spec.std) * (3 // len(spec.std)))


class Detector(GeneralizedRCNN):  # type: ignore[misc]
    """torchvision's two-stage detector; frozen stages stay frozen, and tests have a size of their own."""

    def __init__(self, parts: Sequence[nn.Module], spec: DetectSpec) -> None:
        super().__init__(*parts)
        self.spec = spec
        for stage in self.frozen():
            stage.requires_grad_(False)

    def frozen(self) -> Iterator[nn.Module]:
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
        for stage in self.frozen():
            stage.eval()  # their statistics too are those of the encoder
        self.transform.min_size = self.spec.min_sizes if mode else (self.spec.test_size,)
        return self

    def groups(self) -> list[dict[str, Any]]:
        """Parameters for the optimizer; the affine part of norms has its own weight decay."""
        norms = {id(p) for module in self.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}
        trained = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if id(p) not in norms], "weight_decay": self.spec.weight_decay},
            {"params": [p for p in trained if id(p) in norms], "weight_decay": self.spec.norm_decay},
        ]


def build_detector(
    body: ResNet, spec: DetectSpec, classes: int, normalization: Normalization, seed: int | None = None
) -> Detector:
    """A detector whose backbone is `body` (not a copy); `seed` draws the new layers, the caller's state is kept.

    In a process group its batch norms are synchronised; in one process their statistics are over the whole batch
    already, which is the same thing.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed if seed is None else seed)
        parts_of = _c4 if spec.arch == "c4" else _fpn
        detector = Detector(parts_of(body, spec, classes, normalization), spec)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return nn.SyncBatchNorm.convert_sync_batchnorm(detector)  # type: ignore[no-any-return]
    return detector


def laid_out(detector: Detector, device: torch.device) -> Detector:
    """On the device; on a GPU with channels last, the order in which tensor cores read."""
    there: Detector = detector.to(device)
    return there.to(memory_format=torch.channels_last) if device.type == "cuda" else there


# --- C4 ---------------------------------------------------------------------------------------------------------------


class C4Pool(nn.Module):
    """RoIAlign on the one map there is, with half-pixel alignment: Detectron2's ROIAlignV2."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.align = RoIAlign(size, 1 / STRIDE, sampling_ratio=0, aligned=True)

    def forward(self, features: dict[str, Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
        maps = features["0"]
        # back in the maps' precision at once: the two convolutions that read a region would each keep a copy of it
        return self.align(maps.float(), boxes).to(maps.dtype)  # type: ignore[no-any-return]


class Res5(nn.Module):
    """The encoder's last stage on every region, MoCo's extra norm, and the mean over places."""

    def __init__(self, layer4: nn.Module, width: int, extra_norm: bool) -> None:
        super().__init__()
        self.layer4 = layer4
        self.norm = nn.BatchNorm2d(width) if extra_norm else nn.Identity()

    def forward(self, regions: Tensor) -> Tensor:
        maps: Tensor = self.norm(self.layer4(regions))
        return maps.mean((2, 3))


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """Anchors in full precision whatever the maps are in: torchvision's take the maps', and bf16 counts only to 256."""

    def forward(self, images: ImageList, maps: list[Tensor]) -> list[Tensor]:
        sizes = [each.new_empty((1, 1, *each.shape[-2:]), dtype=torch.float32) for each in maps]
        anchors: list[Tensor] = super().forward(images, sizes)
        return anchors


class ProposalHead(RPNHead):  # type: ignore[misc]
    """Boxes and scores in full precision: in bf16 neighbouring scores are ties, and boxes move by pixels."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, deltas = super().forward(maps)
        return [score.float() for score in scores], [delta.float() for delta in deltas]


class BoxPredictor(FastRCNNPredictor):  # type: ignore[misc]
    """Class scores and box corrections of a region, drawn small as in Detectron2 and given in full precision."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        nn.init.zeros_(self.cls_score.bias)
        nn.init.zeros_(self.bbox_pred.bias)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        scores, deltas = super().forward(regions)
        return scores.float(), deltas.float()


def _width(stage: nn.Module) -> int:
    """Channels that come out of a stage, with basic blocks or bottlenecks."""
    return [module for module in stage.modules() if isinstance(module, nn.Conv2d)][-1].out_channels


def _c4(body: ResNet, spec: DetectSpec, classes: int, normalization: Normalization) -> list[nn.Module]:
    names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
    backbone: Any = nn.Sequential(OrderedDict((name, getattr(body, name)) for name in names))
    backbone.out_channels = _width(body.layer3)
    anchors = Anchors((spec.anchor_sizes,), (spec.anchor_ratios,))
    rpn = RegionProposalNetwork(
        anchors, ProposalHead(backbone.out_channels, anchors.num_anchors_per_location()[0]), fg_iou_thresh=0.7,
        bg_iou_thresh=0.3, batch_size_per_image=spec.rpn_batch, positive_fraction=0.5, **_proposals(spec),
        nms_thresh=0.7,
    )  # fmt: skip
    width = _width(body.layer4)
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


def _proposals(spec: DetectSpec) -> dict[str, dict[str, int]]:
    (before, after), (before_test, after_test) = spec.rpn_train, spec.rpn_test
    return {
        "pre_nms_top_n": {"training": before, "testing": before_test},
        "post_nms_top_n": {"training": after, "testing": after_test},
    }


# --- FPN --------------------------------------------------------------------------------------------------------------


def _fpn(body: ResNet, spec: DetectSpec, classes: int, normalization: Normalization) -> list[nn.Module]:
    stages = ("layer1", "layer2", "layer3", "layer4")
    widths = [_width(getattr(body, name)) for name in stages]
    backbone = BackboneWithFPN(body, {name: str(i) for i, name in enumerate(stages)}, widths, FPN_WIDTH)
    anchors = Anchors(tuple((size,) for size in spec.anchor_sizes), (spec.anchor_ratios,) * 5)
    proposals = _proposals(spec)
    made = FasterRCNN(
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
    return [made.backbone, made.rpn, made.roi_heads, made.transform]
