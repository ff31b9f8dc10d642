"""Images with boxes, from the layout of Pascal VOC or COCO's JSON; batches of them are a function of seed and step."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from supancl.data.decode import try_decode
from supancl.data.order import derive_seed, epoch_order
from supancl.data.sources.folder import read_annotation, read_list
from supancl.data.threads import ReadingThreads, waiting_for_images
from supancl.detection import DetectSpec
from supancl.errors import BadInput
from supancl.files import read_text
from supancl.reporter import warn

Batch = tuple[list[Tensor], list[dict[str, Tensor]]]
FLIP_STREAM = 5  # of random numbers
MAX_ANNOTATION_BYTES = 2**31  # of a COCO JSON: those of large data sets have about a gigabyte
Year = Literal["07+12", "2007", "2012"]
# year -> lists of images to train on and to test on: (year, name of the list)
YEARS: dict[Year, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "07+12": ([("2007", "trainval"), ("2012", "trainval")], [("2007", "test")]),
    "2007": ([("2007", "trainval")], [("2007", "test")]),
    "2012": ([("2012", "train")], [("2012", "val")]),  # the annotations of its test set were never published
}


@dataclass(frozen=True, eq=False)
class Scene:
    """One image and its boxes (N, 4) as x1, y1, x2, y2 in pixels from 0.

    Boxes marked `difficult` (VOC) or `crowd` (COCO) do not count in a test, and detecting one is no mistake.
    """

    path: Path
    height: int
    width: int
    boxes: Tensor
    labels: Tensor  # into the class names, from 0
    difficult: Tensor
    crowd: Tensor

    def select(self, keep: Tensor) -> Scene:
        boxes, labels, difficult = self.boxes[keep], self.labels[keep], self.difficult[keep]
        return replace(self, boxes=boxes, labels=labels, difficult=difficult, crowd=self.crowd[keep])


@dataclass(frozen=True, eq=False)
class Scenes:
    """A set of annotated images."""

    scenes: tuple[Scene, ...]
    classes: tuple[str, ...]
    location: str
    cache_bytes: float = 0.0  # of decoded images in memory
    decoded: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.scenes)

    def image(self, position: int) -> Tensor:
        """uint8 (3, H, W); refused if its size differs from the annotation's."""
        if position in self.decoded:
            return self.decoded[position]
        scene = self.scenes[position]
        if isinstance(image := try_decode(scene.path), str):
            raise BadInput(f"{scene.path}: no readable image ({image}); fix or remove it")
        if image.shape[1:] != (scene.height, scene.width):
            raise BadInput(
                f"{scene.path} is {image.shape[2]} x {image.shape[1]} (upright), its annotation says {scene.width} x "
                f"{scene.height}; scale or rotate the boxes like the image"
            )
        if position < self.cached_count:
            self.decoded[position] = image
        return image

    @cached_property
    def cached_count(self) -> int:
        """How many images, from the first on, fit into `cache_bytes`."""
        used = np.cumsum([3 * scene.height * scene.width for scene in self.scenes], dtype=np.int64)
        return int(np.searchsorted(used, self.cache_bytes, side="right"))

    def fingerprint(self) -> str:
        """Changes with any image name, class or box."""
        checksum = hashlib.sha256("\n".join(self.classes).encode())
        for scene in self.scenes:
            checksum.update(os.fsencode(scene.path.name))  # file names may have any encoding
            checksum.update(scene.boxes.numpy().tobytes() + scene.labels.numpy().tobytes())
        return checksum.hexdigest()[:16]


def make_scene(
    path: Path, size: tuple[int, int], boxes: Sequence[Sequence[float]], labels: Sequence[int],
    difficult: Sequence[bool] = (), crowd: Sequence[bool] = (), location: str | None = None,
) -> Scene:  # fmt: skip
    """A checked scene; `size` is (height, width).

    A box that crosses the border is cut there; an empty box, or one outside the image, is refused.
    """
    height, width = size
    annotated = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    cut = torch.minimum(annotated.clamp(min=0), torch.tensor([width, height, width, height], dtype=torch.float64))
    empty = ~torch.isfinite(annotated).all(1) | ~(cut[:, 2:] > cut[:, :2]).all(1)
    if empty.any():
        number = int(empty.nonzero()[0, 0])
        raise BadInput(
            f"{location or path}: box {number + 1} {annotated[number].tolist()} is empty or lies outside the image of "
            f"{width} x {height}; fix or remove it"
        )
    marks = [torch.tensor(mark or [False] * len(annotated), dtype=torch.bool) for mark in (difficult, crowd)]
    return Scene(path, height, width, cut.float(), torch.tensor(labels, dtype=torch.long).reshape(-1), *marks)


def prepare_for_training(scenes: Scenes, train_difficult: bool, keep_empty: bool, memory_gb: float) -> Scenes:
    """Drop crowds and, unless they are wanted, difficult boxes and images without a box."""
    selected = [scene.select(~scene.crowd & (~scene.difficult | train_difficult)) for scene in scenes.scenes]
    if not keep_empty:
        selected = [scene for scene in selected if len(scene.boxes)]
    if not any(len(scene.boxes) for scene in selected):
        raise BadInput(f"{scenes.location}: no box to train on; is it the right list of images?")
    return replace(scenes, scenes=tuple(selected), cache_bytes=memory_gb * 1e9, decoded={})


def prepare_for_testing(scenes: Scenes, memory_gb: float = 0.0, limit: int = 0) -> Scenes:
    """At most `limit` of the scenes, evenly spaced (0: all); refuse scenes without a box to find."""
    if limit and limit < len(scenes):
        rows = np.linspace(0, len(scenes) - 1, limit).round().astype(int).tolist()
        scenes = replace(scenes, scenes=tuple(scenes.scenes[row] for row in rows))
    if all(bool((scene.difficult | scene.crowd).all()) for scene in scenes.scenes):
        raise BadInput(f"{scenes.location}: no box to find; is it the right list of images?")
    return replace(scenes, cache_bytes=memory_gb * 1e9)


def relabelled(scenes: Scenes, classes: tuple[str, ...]) -> Scenes:
    """The same scenes with labels into another list of class names, which must contain theirs."""
    used = {scenes.classes[label] for scene in scenes.scenes for label in scene.labels.tolist()}
    if unknown := sorted(used - set(classes)):
        raise BadInput(f"{scenes.location}: class {unknown[0]!r} is none of the detector's: {', '.join(classes[:20])}")
    labels = torch.tensor([classes.index(name) if name in classes else -1 for name in scenes.classes], dtype=torch.long)
    renamed = tuple(replace(scene, labels=labels[scene.labels]) for scene in scenes.scenes)
    return replace(scenes, scenes=renamed, classes=classes)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DetectData:
    """What to train and to test on, as the user named it, so that a resumed run finds it again.

    `root` is a VOC root, COCO's folder, or a COCO JSON. With a JSON, `test` is a second one, and `images` the folder
    of the images if they are not next to it.
    """

    root: str
    year: Year = "07+12"
    test: str = ""
    images: str = ""


def open_scenes(data: DetectData) -> tuple[Scenes, Scenes]:
    """The training and the test images, under one list of class names."""
    if Path(data.root).is_file() and not data.test:
        raise BadInput(f"{data.root} is the training set; give the test set with test FILE.json")
    train, test = open_split(data, "train"), open_split(data, "test")
    names = tuple(sorted({*train.classes, *test.classes}))
    if shared := len({scene.path for scene in train.scenes} & {scene.path for scene in test.scenes}):
        warn(f"test images that are trained on: {shared} of {len(test)}; the scores do not measure new images")
    return relabelled(train, names), relabelled(test, names)


def open_split(data: DetectData, split: Literal["train", "test"]) -> Scenes:
    """The images of one split; a single COCO JSON has but one."""
    root, is_test = Path(data.root), split == "test"
    if is_test and data.test:
        scenes = read_coco(Path(data.test), data.images)
    elif root.is_file():
        scenes = read_coco(root, data.images)
    elif any(root.glob("annotations/instances_*.json")):
        name = "val" if is_test else "train"
        files = sorted(root.glob(f"annotations/instances_{name}*.json"))
        if not files:
            raise BadInput(f"{root}/annotations lacks instances_{name}*.json; name a test set")
        scenes = read_coco(files[-1], data.images or str(root / files[-1].stem.removeprefix("instances_")))
    else:
        scenes = read_voc(root, YEARS[data.year][is_test])
    missing = [scene.path for scene in scenes.scenes if not scene.path.is_file()]
    if missing:  # found out now, and not after the last step of a training
        raise BadInput(f"{scenes.location}: images missing: {len(missing)} of {len(scenes)}, such as {missing[0]}")
    return scenes


def read_voc(root: Path, lists: Sequence[tuple[str, str]]) -> Scenes:
    """Read Annotations/*.xml of the images in ImageSets/Main/LIST.txt, for one year or several."""
    entries: list[tuple[Path, str]] = []
    for year, name in lists:
        # in VOCdevkit/, in the root, or the root itself unless it is named after another year
        folders = [root / "VOCdevkit" / f"VOC{year}", root / f"VOC{year}"]
        folders += [root] if root.name == f"VOC{year}" or not root.name.startswith("VOC") else []
        folder = next((folder for folder in folders if (folder / "Annotations").is_dir()), folders[0])
        try:
            entries += [(folder, image) for image in read_list(folder, name)]
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{root}: cannot read list {name} of VOC{year}; unpack it, or choose another year") from None
    annotations = [read_annotation(folder, name) for folder, name in entries]
    classes = tuple(sorted({name for annotation in annotations for name in annotation.names}))
    scenes = tuple(
        make_scene(
            folder / "JPEGImages" / f"{name}.jpg",
            annotation.size,
            annotation.boxes,
            [classes.index(kind) for kind in annotation.names],
            annotation.difficult,
            location=str(folder / "Annotations" / f"{name}.xml"),
        )
        for (folder, name), annotation in zip(entries, annotations, strict=True)
    )
    return Scenes(scenes, classes, ", ".join(f"VOC{year} {name}" for year, name in lists) + f" in {root}")


def read_coco(file: Path, images: str = "") -> Scenes:
    """Read a JSON with images, annotations (bbox = x, y, width, height) and categories."""
    folder = Path(images) if images else file.parent
    try:
        content = json.loads(read_text(file, limit=MAX_ANNOTATION_BYTES))
        names = {int(entry["id"]): str(entry["name"]) for entry in content["categories"]}
        entries, classes = {int(entry["id"]): entry for entry in content["images"]}, tuple(sorted({*names.values()}))
        if len(entries) < len(content["images"]):  # as in files merged by hand: boxes would get lost
            raise ValueError("two images have the same id")
        annotations: dict[int, list[dict[str, Any]]] = {number: [] for number in entries}
        for entry in content["annotations"]:
            if 0 not in entry["bbox"][2:]:  # boxes of no width or height are left out
                annotations[int(entry["image_id"])].append(entry)
        scenes = tuple(
            make_scene(
                folder / str(entry["file_name"]),
                (int(entry["height"]), int(entry["width"])),
                [[x, y, x + width, y + height] for x, y, width, height in (a["bbox"] for a in annotations[number])],
                [classes.index(names[int(a["category_id"])]) for a in annotations[number]],
                crowd=[bool(a.get("iscrowd", 0)) for a in annotations[number]],
                location=f"{file} (image {entry['file_name']})",
            )
            for number, entry in entries.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{file}: not a COCO annotation file ({type(error).__name__}: {error})") from None
    return Scenes(scenes, classes, str(file))


# --- batches ----------------------------------------------------------------------------------------------------------


class Batches:
    """step -> images (float, 0 to 1) and torchvision's targets, on the device."""

    def __init__(self, scenes: Scenes, spec: DetectSpec, device: torch.device, steps: int) -> None:
        self.scenes, self.spec, self.device, self.steps = scenes, spec, device, steps
        self.pool = ReadingThreads(spec.workers, "scenes") if spec.workers else None
        self.pending: dict[int, list[Future[Tensor]]] = {}

    def positions(self, step: int) -> list[int]:
        """Which images a step trains on. Epochs follow without a gap, so any batch size works and none is left out."""
        count, size = len(self.scenes), self.spec.batch_size
        indices = range(step * size, (step + 1) * size)
        return [int(epoch_order(count, self.spec.seed, index // count)[index % count]) for index in indices]

    def __call__(self, step: int) -> Batch:
        if self.pool is None:
            images = [self.scenes.image(position) for position in self.positions(step)]
        else:
            for ahead in range(step, min(step + 3, self.steps)):
                if ahead not in self.pending:
                    self.pending[ahead] = [self.pool.submit(self.scenes.image, p) for p in self.positions(ahead)]
            with waiting_for_images():
                images = [future.result() for future in self.pending[step]]
            self.pending = {ahead: futures for ahead, futures in self.pending.items() if ahead > step}
        generator = torch.Generator().manual_seed(derive_seed(self.spec.seed, FLIP_STREAM, step))
        is_mirrored = (torch.rand(len(images), generator=generator) < self.spec.flip).tolist()
        ready_images, targets = [], []
        for image, position, mirror in zip(images, self.positions(step), is_mirrored, strict=True):
            scene, on_device = self.scenes.scenes[position], to_device(image, self.device)
            boxes = flip_boxes(scene.boxes, scene.width) if mirror else scene.boxes
            ready_images.append(on_device.flip(2) if mirror else on_device)
            values = {"boxes": boxes, "labels": scene.labels + 1}  # 0 is background
            targets.append({name: value.to(self.device, non_blocking=True) for name, value in values.items()})
        return ready_images, targets

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)


def to_device(image: Tensor, device: torch.device) -> Tensor:
    """The image as floats from 0 to 1; copied as bytes, which are a quarter of the size."""
    return image.to(device, non_blocking=True).float().div_(255)


def flip_boxes(boxes: Tensor, width: int) -> Tensor:
    """Boxes of the mirrored image."""
    return torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)
