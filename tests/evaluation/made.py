"""Runs without training, small sources that can be learned, and subjects on the CPU: for the tests beside this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supancl import recipe
from supancl.core.encoders import EncoderSpec
from supancl.data.opening import open_data
from supancl.evaluation import PROTOCOLS
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions, open_evaluated_encoder
from supancl.evaluation.protocols import evaluate
from supancl.reporter import report_to
from supancl.runs.encoder_file import save_encoder
from supancl.runs.folder import RunFolder
from tests.helpers import Notes, archive

SPEC = EncoderSpec("cnn", channels=1, size=8, width=12, mean=(0.5,), std=(0.5,))


def encoder(seed: int = 0, spec: EncoderSpec = SPEC):
    """An encoder of random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return spec.build().eval()


def run_folder(
    path: Path, seed: int = 0, source: str = "", spec: EncoderSpec = SPEC, described: bool = False, **settings: object
) -> Path:
    """What pretrain leaves behind, with random weights of that seed; settings have __ for the dot.

    `described`: with what the data were at that time.
    """
    base = recipe("digits.supsiam")
    chosen = replace(base, encoder=spec, views=replace(base.views, size=spec.size))
    fields = {name.replace("__", "."): value for name, value in settings.items()}
    chosen = chosen.with_set({"data.source": source, "data.holdout": None, "train.seed": seed, **fields})
    path.mkdir(parents=True)
    data = open_data(chosen.data, spec.channels) if described else None
    RunFolder(path).write_recipe(chosen, () if data is None else data.classes, {} if data is None else data.summary)
    save_encoder(path / "encoder.safetensors", encoder(seed, spec), (), chosen.name)
    return path


def bright(n: int, classes: int = 3, seed: int = 0, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Images of noise, each class a little brighter than the last, with overlaps: something to find for any encoder."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    levels = random.normal(60 + 40 * labels, 12)[:, None, None]
    images = levels + random.integers(-40, 40, (n, side, side))
    return images.clip(0, 255).astype(np.uint8), labels


def source(path: Path, train: int = 60, val: int = 0, test: int = 0, classes: int = 3) -> Path:
    """A .npz with the splits that are asked for."""
    arrays = dict(zip(("train_images", "train_labels"), bright(train, classes), strict=True))
    for seed, (name, size) in enumerate((("val", val), ("test", test)), start=1):
        if size:
            arrays |= dict(zip((f"{name}_images", f"{name}_labels"), bright(size, classes, seed), strict=True))
    return archive(path, **arrays)


def subject(where: Path | str, options: EvaluationOptions | None = None) -> EvaluatedEncoder:
    with report_to(Notes()):
        return open_evaluated_encoder(str(where), options or EvaluationOptions(torch.device("cpu")))


def asked(protocol: str) -> Callable[..., dict[str, Any]]:
    """A protocol as a function of an encoder, a source and settings."""

    def ask(
        evaluated: EvaluatedEncoder, source: str | None = None, name: str | None = None, **given: Any
    ) -> dict[str, Any]:
        return evaluate(evaluated, PROTOCOLS[protocol].given(given), source, name)

    return ask


knn, linear, variances = asked("knn"), asked("linear"), asked("variance")
transferred, episodes, fine_tuned = asked("transfer"), asked("fewshot"), asked("finetune")
