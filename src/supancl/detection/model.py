"""Faster R-CNN around a ResNet encoder, of torchvision's modules: C4 as in MoCo, or a feature pyramid; and its file."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Iterator
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
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import MultiScaleRoIAlign, RoIAlign

from supancl.config import from_json, parse_json, to_json
from supancl.core.encoders import Encoder, EncoderSpec
from supancl.detection import DetectSpec
from supancl.errors import BadInput
from supancl.files import did_you_mean_path
from supancl.runs.encoder_file import SCHEMA_VERSION, read_header, read_safetensors, save_safetensors
from supancl.runs.importing import open_encoder

STRIDE = 16  # of res4
FPN_WIDTH, FPN_HIDDEN = 256, 1024  # torchvision's


def open_start(text: str, seed: int = 0) -> Encoder:
    """The encoder that ENCODER names: random:NAME, or anything the evaluation commands take."""
    if not text.startswith("random:"):
        return open_encoder(text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EncoderSpec(text.removeprefix("random:")).build()


def copy_resnet(encoder: Encoder) -> ResNet:
    """A copy of the encoder's body; refused unless it is a ResNet with the ImageNet stem."""
    body: ResNet | None = encoder.body if isinstance(encoder.body, ResNet) else _as_torchvision_resnet(encoder.body)
    if body is None or isinstance(body.maxpool, nn.Identity) or encoder.spec.channels != 3:
        raise BadInput(
            f"encoder {encoder.spec.name!r}: detection needs a ResNet of torchvision for 3 channels, with the stem for "
            "ImageNet; give such as resnet50"
        )
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


class Detector(FasterRCNN):  # type: ignore[misc]
    """torchvision's two-stage detector, with frozen stages and another image size for testing."""

    def __init__(self, encoder: Encoder, spec: DetectSpec, classes: tuple[str, ...]) -> None:
        mean, std = (
            [*values] * (3 // len(values)) for values in (encoder.spec.mean, encoder.spec.std)
        )  # per channel of RGB
        backbone, anchors, pool, head, width = _parts(copy_resnet(encoder), spec)
        (before, after), (before_test, after_test) = spec.rpn_train, spec.rpn_test
        super().__init__(
            backbone, min_size=spec.min_sizes, max_size=spec.max_size, image_mean=mean, image_std=std,
            rpn_anchor_generator=anchors,
            rpn_head=ProposalHead(backbone.out_channels, anchors.num_anchors_per_location()[0]),
            rpn_pre_nms_top_n_train=before, rpn_pre_nms_top_n_test=before_test, rpn_post_nms_top_n_train=after,
            rpn_post_nms_top_n_test=after_test, rpn_batch_size_per_image=spec.rpn_batch,
            box_roi_pool=pool if spec.arch == "fpn" else None, box_head=head,
            box_predictor=BoxPredictor(width, len(classes) + 1), box_batch_size_per_image=spec.roi_batch,
            box_score_thresh=spec.score_threshold, box_nms_thresh=spec.nms, box_detections_per_img=spec.detections,
        )  # fmt: skip
        self.roi_heads.box_roi_pool = pool  # FasterRCNN would refuse that of C4
        self.spec, self.classes, self.encoder = spec, classes, encoder.spec
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


def build_detector(encoder: Encoder, spec: DetectSpec, classes: tuple[str, ...]) -> Detector:
    """A detector around a copy of the encoder; `spec.seed` initialises the new layers and leaves the global seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return Detector(encoder, spec, classes)


def move_to_device(detector: Detector, device: torch.device) -> Detector:
    """Move to the device; on a GPU with channels last, the order in which tensor cores read."""
    moved: Detector = detector.to(device)
    return moved.to(memory_format=torch.channels_last) if device.type == "cuda" else moved


# --- parts ------------------------------------------------------------------------------------------------------------


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


def _parts(body: ResNet, spec: DetectSpec) -> tuple[Any, Anchors, nn.Module, nn.Module | None, int]:
    """Backbone, anchors, what reads regions, the box head (None: torchvision's), and its width."""
    if spec.arch == "c4":
        names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
        backbone: Any = nn.Sequential(OrderedDict((name, getattr(body, name)) for name in names))
        backbone.out_channels, width = _out_channels(body.layer3), _out_channels(body.layer4)
        anchors, head = Anchors((spec.anchor_sizes,), (spec.anchor_ratios,)), Res5(body.layer4, width, spec.extra_norm)
        return backbone, anchors, C4Pool(spec.pool), head, width
    stages = ("layer1", "layer2", "layer3", "layer4")
    widths = [_out_channels(getattr(body, name)) for name in stages]
    backbone = BackboneWithFPN(body, {name: str(i) for i, name in enumerate(stages)}, widths, FPN_WIDTH)
    anchors = Anchors(tuple((size,) for size in spec.anchor_sizes), (spec.anchor_ratios,) * 5)
    pool = MultiScaleRoIAlign([str(i) for i in range(len(stages))], spec.pool, sampling_ratio=2)
    return backbone, anchors, pool, None, FPN_HIDDEN


# --- files ------------------------------------------------------------------------------------------------------------


def save_detector(path: Path, detector: Detector) -> None:
    metadata = {
        "schema_version": str(SCHEMA_VERSION), "kind": "detector", "spec": json.dumps(to_json(detector.spec)),
        "encoder": json.dumps(to_json(detector.encoder)), "classes": json.dumps(detector.classes),
    }  # fmt: skip
    save_safetensors(path, detector.state_dict(), metadata)


def load_detector(path: Path | str) -> Detector:
    """The detector of a run of `supancl detect train`, or of a detector.safetensors, in eval mode."""
    file = Path(path) / "detector.safetensors" if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise BadInput(f"no file {file}{did_you_mean_path(file) or '; give a finished run of supancl detect train'}")
    metadata, shapes = read_header(file)
    try:
        if metadata["kind"] != "detector" or int(metadata["schema_version"]) > SCHEMA_VERSION:
            raise ValueError(f"it is none, or of a newer supancl than schema {SCHEMA_VERSION}")
        spec = from_json(DetectSpec, parse_json(metadata["spec"]), "")
        encoder = from_json(EncoderSpec, parse_json(metadata["encoder"]), "encoder")
        classes = tuple(map(str, parse_json(metadata["classes"])))
        with torch.device("meta"):  # without memory: the description may claim anything
            skeleton = build_detector(encoder.build(), spec, classes)
        if {name: value.shape for name, value in skeleton.state_dict().items()} != shapes:
            raise ValueError("its tensors do not fit its description")
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{file}: not a detector of supancl ({error}); train one with supancl detect train") from None
    detector = build_detector(encoder.build(), spec, classes)
    detector.load_state_dict(read_safetensors(file)[0])
    return detector.train(False)
