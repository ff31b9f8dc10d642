"""Detectors: sheets of images with their boxes, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image, ImageColor, ImageDraw, ImageFont
from torch import Tensor

from supancl.detection.scenes import Scenes
from supancl.detection.test import Detections
from supancl.errors import make_visible
from supancl.files import write_atomically
from supancl.reports.pictures import COLOURS, escape_label

SIDE, GAP, CAPTION = 220, 8, 18
SCENES = 12  # that are drawn
MIN_SCORE = 0.5  # of the detections that are drawn


def draw_detection_sheet(scenes: Scenes, detections: Sequence[Detections], path: Path) -> None:
    """Draw images spread evenly over the set, each twice: true boxes on the left, detections on the right.

    Boxes of a class have one colour; difficult boxes and crowds are thin.
    """
    numbers = torch.linspace(0, len(scenes) - 1, min(SCENES, len(scenes))).round().long().unique().tolist()
    columns = min(3, len(numbers))
    rows = -(-len(numbers) // columns)
    width, height = 2 * SIDE + 2 * GAP, SIDE + CAPTION + GAP
    sheet = Image.new("RGB", (columns * (width + GAP) + GAP, rows * height + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for slot, number in enumerate(numbers):
        left, top = GAP + slot % columns * (width + GAP), GAP + slot // columns * height
        scene, detected = scenes.scenes[number], detections[number]
        is_shown = detected.scores >= MIN_SCORE
        truth_is_thin = (scene.difficult | scene.crowd).tolist()
        truth = [scenes.classes[label] for label in scene.labels.tolist()]
        pairs = zip(detected.labels[is_shown].tolist(), detected.scores[is_shown].tolist(), strict=True)
        names = [f"{scenes.classes[label]} {score:.2f}" for label, score in pairs]
        image = scenes.image(number)
        found, thick = (detected.boxes[is_shown], detected.labels[is_shown]), [False] * len(names)
        panels = (
            (scene.boxes, scene.labels, truth, truth_is_thin, "truth"),
            (*found, names, thick, f"found, score >= {MIN_SCORE:g}"),
        )
        for side, (boxes, labels, captions, is_thin, title) in enumerate(panels):
            x = left + side * (SIDE + GAP)
            picture = _draw_boxes(image, boxes, labels, captions, is_thin)
            sheet.paste(picture, (x, top))
            text = make_visible(f"{title}: {scene.path.stem}")
            pen.text((x, top + picture.height + 2), text, fill="#333333", font=font)
    write_atomically(path, lambda temporary: sheet.save(temporary, format="PNG"))


def _draw_boxes(
    image: Tensor, boxes: Tensor, labels: Tensor, captions: Sequence[str], is_thin: Sequence[bool]
) -> Image.Image:
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    scale = SIDE / max(picture.size)
    picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(11)
    captions = [make_visible(caption) for caption in captions]
    for box, label, caption, thin in zip((boxes * scale).tolist(), labels.tolist(), captions, is_thin, strict=True):
        colour = COLOURS[label % len(COLOURS)]
        pen.rectangle(box, outline=colour, width=1 if thin else 2)
        corner = (box[0] + 2, max(0.0, box[1] + 1))
        pen.rectangle(pen.textbbox(corner, caption, font=font), fill=colour)
        pen.text(corner, caption, fill=text_colour(colour), font=font)
    return picture


def text_colour(colour: str) -> str:
    """Black or white, whichever reads better on this colour (by the relative luminance of WCAG 2)."""
    channels = [channel / 255 for channel in ImageColor.getrgb(colour)[:3]]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return "black" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 else "white"


def draw_detection_curves(metrics: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot the loss, its four terms, and AP, AP50 and AP75 against the step, one line per run."""
    panels = (
        ("loss", "train", "loss"), ("loss_objectness", "train", "RPN: objectness"),
        ("loss_rpn_box_reg", "train", "RPN: boxes"), ("loss_classifier", "train", "classes"),
        ("loss_box_reg", "train", "boxes"), ("AP", "test", "AP (%)"), ("AP50", "test", "AP50 (%)"),
        ("AP75", "test", "AP75 (%)"),
    )  # fmt: skip
    figure = Figure(figsize=(15, 6.4), layout="constrained")
    for axis, (key, kind, title) in zip(figure.subplots(2, 4).flat, panels, strict=True):
        for i, (name, rows) in enumerate(metrics.items()):
            # the last row of a step counts: a finished run that is resumed is tested again
            points = {row["step"]: row[key] for row in rows if row["kind"] == kind and row.get(key) is not None}
            if points:
                style = {"marker": "o"} if kind == "test" else {}
                style |= {"label": escape_label(name), "color": COLOURS[i % len(COLOURS)]}
                axis.plot(list(points), list(points.values()), **style)
        if kind == "test":
            axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        if key == "loss" and len(metrics) > 1:
            axis.legend()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=110))
