"""How fast this machine trains and decodes, beside what was measured before."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from PIL import features as pillow_features

from supancl.data.decode import decode_opened
from supancl.data.opening import from_arrays
from supancl.data.survey import Survey
from supancl.doctor.findings import Finding
from supancl.errors import BadInput, is_out_of_memory
from supancl.files import reason

if TYPE_CHECKING:
    import torch

    from supancl.recipes import Recipe
else:
    from supancl.lazy import torch

CLASSES = 10
DECODED_SIDE = 256  # of photographs
TRIAL_BATCHES = 2  # of images in memory
TRIAL_EPOCHS = 200
SLOW_SHARE = 0.7  # of the measured rate, below which something is wrong
JPEG_SIDE = 500
JPEG_SECONDS = 0.5


@dataclass(frozen=True)
class Trial:
    """The images to which `auto` is fitted."""

    images: int
    side: int


TRIALS = {
    "cuda": (Trial(20_000, 32),),  # those of MEASURED_RATES
    "cpu": (Trial(1_000, DECODED_SIDE), Trial(20_000, DECODED_SIDE)),  # few photographs get a small network
}


@dataclass(frozen=True)
class MeasuredRate:
    """Training images per second on a GPU, and under which conditions."""

    images_per_second: float
    conditions: str


# docs/performance.md: cifar100.supsiam, which has the step that `auto.supsiam` has for images of 32 px
MEASURED_RATES = {"NVIDIA H200": MeasuredRate(21_808.0, "idle H200, torch 2.11, bf16, replayed, not compiled")}


def check_step() -> Iterator[Finding]:
    """Train some steps of the recipes that `auto` chooses for labelled images on this device."""
    from supancl.training.preflight import pick_device

    device = pick_device("auto")
    for trial in TRIALS[device.type]:
        yield time_trial(trial, device)


def time_trial(trial: Trial, device: torch.device) -> Finding:
    """Images per second, beside the measured rate if this GPU has one."""
    from supancl.training.cost import in_words

    fitted = fit_auto(trial, device)
    recipe = trial_recipe(fitted, device)
    work = f"{recipe.name}, {recipe.encoder.name}, {recipe.encoder.size} px, batch {recipe.train.batch_size}"
    work += f", {recipe.train.precision}"
    try:
        rate = measure_training(recipe, trial.side, device)
    except Exception as error:
        advice = "close other programs, or use a smaller --batch-size" if is_out_of_memory(error) else "see the message"
        advice = advice if not isinstance(error, BadInput) else "the message says how"
        return Finding("training", "problem", f"a step of {work} fails: {reason(error)}", advice)
    values = {"images_per_second": round(rate, 1), "recipe": work, "device": device.type, "images": trial.images}
    text = f"{trial.images:,} images: about {in_words(trial.images / rate)} per epoch, {fitted.train.epochs} epochs; "
    text += f"{rate:,.0f} images per second ({work})"
    if device.type != "cuda":
        return Finding("training", "ok", text, values=values)
    name = torch.cuda.get_device_name(device)
    measured = MEASURED_RATES.get(name)
    if measured is None:
        return Finding("training", "ok", f"{text}; no figure to compare with for {name}", values=values)
    ratio = rate / measured.images_per_second
    text += f"; {ratio:.2f} of {measured.images_per_second:,.0f} ({measured.conditions})"
    values["share_of_measured"] = round(ratio, 3)
    advice = "is another process on this GPU (nvidia-smi), or does it run hot or at a lower power limit?"
    is_slow = ratio < SLOW_SHARE
    return Finding("training", "note" if is_slow else "ok", text, advice if is_slow else "", values)


def fit_auto(trial: Trial, device: torch.device) -> Recipe:
    """What `supancl pretrain --data` chooses for these images on this device."""
    from supancl.recipes import recipe
    from supancl.recipes.auto import fit_recipe

    survey = Survey(trial.images, trial.images, CLASSES, trial.side)
    return fit_recipe(recipe("auto.supsiam"), survey, on_gpu=device.type == "cuda")


def trial_recipe(fitted: Recipe, device: torch.device) -> Recipe:
    """The recipe to measure: long enough to be timed, and not compiled, which takes a minute."""
    from supancl.training.preflight import with_short_side, with_speed

    settings = {"train.epochs": TRIAL_EPOCHS, "train.compile": False, "train.device": device.type}
    trial = with_short_side(fitted.with_set(settings))
    return with_speed(trial, device, TRIAL_BATCHES * trial.train.batch_size)


def measure_training(recipe: Recipe, side: int, device: torch.device) -> float:
    """Images per second of this recipe on random pixels that are in memory."""
    from supancl.recipes.recipe import resolve_warmup
    from supancl.training.cost import check_memory, measure_step
    from supancl.training.trainer import Trainer

    check_memory(recipe, device)
    side = min(side, recipe.data.short_side or side)
    random, count = np.random.default_rng(0), TRIAL_BATCHES * recipe.train.batch_size
    pixels = random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    labels = np.arange(count) % CLASSES
    data = from_arrays(pixels, labels, pixels[:CLASSES], labels[:CLASSES])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trainer = Trainer(resolve_warmup(recipe), data, device)
        try:
            seconds = measure_step(trainer, short_run=0.0)
        finally:
            trainer.feed.close()
    assert seconds is not None
    return recipe.train.batch_size / seconds


def check_jpeg() -> Iterator[Finding]:
    """Decode a JPEG of usual size to the size that training uses, on one core."""
    smooth = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    photograph = Image.fromarray(smooth).resize((JPEG_SIDE * 4 // 3, JPEG_SIDE), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    photograph.save(buffer, "JPEG", quality=90)
    started, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - started < JPEG_SECONDS:
        decode_opened(Image.open(io.BytesIO(buffer.getvalue())), 3, DECODED_SIDE, "bilinear")
        count += 1
    rate = count / (time.perf_counter() - started)
    text = f"{rate:,.0f} JPEGs of {JPEG_SIDE} px per second and core"
    values = {"images_per_second_and_core": round(rate, 1), "turbo": pillow_features.check_feature("libjpeg_turbo")}
    if values["turbo"]:
        yield Finding("decoding", "ok", text, values=values)
    else:
        text += ", without libjpeg-turbo"
        yield Finding("decoding", "note", text, "pip install --force-reinstall pillow brings it", values)
