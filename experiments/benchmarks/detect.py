"""A detector's training step beside torchvision's own, in one run: `python experiments/benchmarks/detect.py [--quick]`.

- fpn: our pyramid beside `torchvision.models.detection.fasterrcnn_resnet50_fpn` as torchvision builds it;
- c4: ours beside a `FasterRCNN` put together from torchvision's parts alone (the same stages as backbone and box head,
  its own anchors, heads and RoIAlign), because torchvision ships no C4.

Everyone has the same images in the same order through the same feeding, the same sizes, proposals, regions, batch norm
that is trained, SGD, and the same autocast; torchvision's step is that of its reference script without the logging that
waits for the device. Contenders take turns, because other work on a machine slows whoever runs at the time; a third row
on a GPU is ours without channels-last. Images are noise with three boxes each unless --data names a VOC root: noise
costs a detector the same arithmetic, and the number of regions is set by the recipe.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torchvision
from common import Record, about, keep, show
from step_ours import wait
from torch import Tensor, nn
from torchvision.models import resnet
from torchvision.models.detection import FasterRCNN, fasterrcnn_resnet50_fpn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

from supancl.core.encoders import EncoderSpec
from supancl.detection import DetectSpec, detect_spec
from supancl.detection.model import build_detector
from supancl.detection.scenes import Batches, DetectData, Scenes, make_scene, open_scenes, prepare_for_training
from supancl.detection.train import Training
from supancl.distributed.ranks import autocast_for

CLASSES = 20
Step = Callable[[int], None]


# --- images


def noise(count: int, height: int, width: int) -> Scenes:
    """Decoded already: reading files is not what is compared."""
    generator = torch.Generator().manual_seed(0)
    scenes, kept = [], {}
    for number in range(count):
        corners = torch.rand(3, 2, generator=generator) * torch.tensor([width * 0.6, height * 0.6])
        sides = (0.1 + 0.3 * torch.rand(3, 2, generator=generator)) * torch.tensor([width, height])
        boxes = torch.cat([corners, corners + sides], 1).tolist()
        labels = torch.randint(CLASSES, (3,), generator=generator).tolist()
        scenes.append(make_scene(Path(f"{number}.jpg"), (height, width), boxes, labels))
        kept[number] = torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8)
    return Scenes(tuple(scenes), tuple(f"class {i:02d}" for i in range(CLASSES)), "noise", decoded=kept)


def images_of(args: argparse.Namespace) -> Scenes:
    if not args.data:
        return noise(args.images, *((375, 500) if not args.quick else (96, 128)))
    scenes = prepare_for_training(open_scenes(DetectData(args.data, args.year))[0], True, False, 8)
    first = replace(scenes, scenes=scenes.scenes[: args.images])
    for position in range(len(first)):
        first.image(position)  # keeps it
    return first


# --- torchvision's


class Stages(nn.Module):
    """conv1 to layer3 of a ResNet, as torchvision's FasterRCNN wants a backbone."""

    def __init__(self, body: resnet.ResNet, width: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(
            OrderedDict(
                (name, getattr(body, name))
                for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
            )
        )
        self.out_channels = width

    def forward(self, images: Tensor) -> Tensor:
        return self.stages(images)  # type: ignore[no-any-return]


class LastStage(nn.Module):
    def __init__(self, layer4: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer4, self.norm = layer4, norm

    def forward(self, regions: Tensor) -> Tensor:
        return self.norm(self.layer4(regions)).mean((2, 3))  # type: ignore[no-any-return]


def reference(spec: DetectSpec, name: str, classes: int) -> Any:
    """torchvision's detector with the recipe's numbers."""
    numbers: dict[str, Any] = {
        "min_size": spec.min_sizes[0], "max_size": spec.max_size, "rpn_batch_size_per_image": spec.rpn_batch,
        "rpn_pre_nms_top_n_train": spec.rpn_train[0], "rpn_post_nms_top_n_train": spec.rpn_train[1],
        "box_batch_size_per_image": spec.roi_batch,
    }  # fmt: skip
    if spec.arch == "fpn" and name == "resnet50":
        # without weights torchvision trains all five stages
        return fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=classes + 1, **numbers)
    body = getattr(resnet, name)()
    if spec.arch == "fpn":
        from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor

        return FasterRCNN(_resnet_fpn_extractor(body, 5), classes + 1, **numbers)
    width = body.fc.in_features
    anchors = AnchorGenerator((spec.anchor_sizes,), (spec.anchor_ratios,))
    head = LastStage(body.layer4, nn.BatchNorm2d(width) if spec.extra_norm else nn.Identity())
    return FasterRCNN(
        Stages(body, width // 2), None, rpn_anchor_generator=anchors, box_head=head,
        box_roi_pool=MultiScaleRoIAlign(["0"], spec.pool, sampling_ratio=0),
        box_predictor=torchvision.models.detection.faster_rcnn.FastRCNNPredictor(width, classes + 1), **numbers,
    )  # fmt: skip


def reference_step(spec: DetectSpec, batches: Batches, precision: str, name: str, classes: int) -> Step:
    device = batches.device
    torch.manual_seed(0)
    model = reference(spec, name, classes).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)

    def step(number: int) -> None:
        images, targets = batches(number)
        with autocast_for(device, precision):
            losses = model(images, targets)
            loss = sum(losses.values())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


# --- ours


def our_step(spec: DetectSpec, batches: Batches, name: str, classes: int, channels_last: bool = True) -> Step:
    torch.manual_seed(0)
    names = tuple(f"class {i:02d}" for i in range(classes))
    training = Training(build_detector(EncoderSpec(name).build(), spec, names), batches.device)
    if not channels_last:
        training.detector.to(memory_format=torch.contiguous_format)

    def step(number: int) -> None:
        training.step = number
        training.advance(batches)

    return step


# --- turns


def measured(makers: dict[str, Callable[[], Step]], args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Images per second of every round; each contender warms up, then they take turns, in turning order."""
    steps: dict[str, Step] = {}
    rates: dict[str, list[float]] = {name: [] for name in makers}
    memory: dict[str, float] = {}
    for name, make in makers.items():
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        steps[name] = make()
        for number in range(args.warm):
            steps[name](number)
        wait(device)
        if device.type == "cuda":
            memory[name] = (torch.cuda.max_memory_allocated(device) - before) / 1e9
            torch.cuda.empty_cache()
    names, number = list(makers), args.warm
    for turn in range(args.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            wait(device)
            begin = time.perf_counter()
            for ahead in range(args.steps):
                steps[name](number + ahead)
            wait(device)
            rates[name].append(args.steps * args.batch / (time.perf_counter() - begin))
        number += args.steps
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        name: {
            "images_per_second": medians[name],
            "all": values,
            "memory_gb": memory.get(name),
            "ratio": medians[name] / medians["torchvision"],
        }
        for name, values in rates.items()
    }


def one(arch: str, scenes: Scenes, args: argparse.Namespace, device: torch.device, precision: str) -> dict[str, Any]:
    total = args.warm + args.rounds * args.steps + 3
    overrides: dict[str, Any] = {
        "iters": total,
        "batch_size": args.batch,
        "min_sizes": [args.short],
        "precise_bn": 0,
        "test_size": args.short,
        "max_size": args.short * 5 // 3,
        "lr": 2e-5,
        "warmup": 0,
        "steps": [],
        "workers": args.workers,
        "precision": precision,
    }
    if args.quick:
        overrides |= {"rpn_train": [200, 50], "roi_batch": 16}
    elif args.regions:
        overrides["roi_batch"] = args.regions
    spec = detect_spec(arch, overrides)
    classes = len(scenes.classes)

    feeds: list[Batches] = []

    def fresh() -> Batches:  # one for each: the images that come next are made ready ahead
        feeds.append(Batches(scenes, spec, device, total))
        return feeds[-1]

    makers: dict[str, Callable[[], Step]] = {
        "torchvision": lambda: reference_step(spec, fresh(), precision, args.encoder, classes),
        "supancl": lambda: our_step(spec, fresh(), args.encoder, classes),
    }
    if device.type == "cuda":
        makers["supancl, not channels-last"] = lambda: our_step(spec, fresh(), args.encoder, classes, False)
    try:
        return measured(makers, args, device)
    finally:
        for feed in feeds:
            feed.__exit__()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="fpn,c4")
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--short", type=int, default=640, help="short side of the images in training")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--regions", type=int, default=0, help="regions of an image that the box head sees")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--data", help="a VOC root instead of noise")
    parser.add_argument("--year", default="2012")
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of a turn")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--quick", action="store_true", help="seconds on a CPU: that it runs, not how fast")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.quick:
        args.encoder, args.short, args.batch, args.images = "resnet18", 96, 4, 8
        args.warm, args.rounds, args.steps = 1, 3, 1
    device = torch.device(args.device)
    precision = args.precision if args.precision != "auto" else "bf16" if device.type == "cuda" else "fp32"
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    scenes, rows = images_of(args), list[Record]()
    for arch in args.arch.split(","):
        found = one(arch, scenes, args, device, precision)
        rows += [{"arch": arch, "name": name, **row} for name, row in found.items()]
        keep(args.json, {**about(device, "torchvision"), "settings": vars(args), "precision": precision, "rows": rows})
    print(f"{args.encoder}, batch {args.batch}, short side {args.short}, {precision}, data {scenes.location}")
    show([{key: value for key, value in row.items() if key != "all"} for row in rows])


if __name__ == "__main__":
    main()
