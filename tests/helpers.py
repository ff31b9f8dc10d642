"""What tests of several rooms share: files and images, commands, tiny runs, random batches."""

from __future__ import annotations

import io
import json
import math
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import settings
from PIL import Image
from torch import Tensor

from supancl import METHODS, MLP, Data, HeadSpec, PoolSpec, Recipe, Reporter, from_arrays, recipe
from supancl.cli import main
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.spec import DataSpec
from supancl.data.views.augment import Draws
from supancl.data.views.specs import Crops
from supancl.runs.checkpoint import checkpoints, load_checkpoint
from supancl.training.step import Step

# --- files and commands

TINY = ["--epochs", "1", "--batch-size", "4", "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16"]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "L") -> Path:
    """An image of noise in a file whose suffix says the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(*size, 3, seed=seed)).convert(mode).save(path)
    return path


def png(seed: int, size: tuple[int, int] = (8, 6)) -> bytes:
    """A picture of noise, encoded."""
    content = io.BytesIO()
    Image.fromarray(noise(*size, 3, seed=seed)).save(content, "png")
    return content.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


def class_folders(root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 6, seed: int = 0) -> Path:
    """Images of noise in a folder per class; the same ones for the same seed."""
    for c, name in enumerate(classes):
        for i in range(each):
            picture(root / name / f"{i}.png", seed=seed + 100 * c + i)
    return root


def archive(path: Path, **arrays: object) -> Path:
    """A .npz of 20 grey images in two classes; what is named replaces or adds to it, None takes away."""
    content = {"train_images": noise(20, 8, 8), "train_labels": np.arange(20) % 2, **arrays}
    np.savez(path, **{name: np.asarray(value) for name, value in content.items() if value is not None})
    return path


def table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Said(NamedTuple):
    code: int
    out: str
    err: str


def supancl(capsys, *arguments: object) -> Said:
    """The command's exit code and what it printed."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as leaving:  # argparse ends the process itself
        code = leaving.code
    return Said(code, *capsys.readouterr())


def pattern_of(noun: object) -> str:
    """The literal, not within a longer word or number."""
    text = str(noun)
    before = r"(?<!\w)(?<!\d[.,])" if re.match(r"\d", text) else r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)(?![.,]\d)" if re.search(r"\d$", text) else r"(?!\w)" if re.search(r"\w$", text) else ""
    return before + re.escape(text) + after


def mentions(*nouns: object) -> str:
    """A pattern for `pytest.raises(match=...)`: a message that names all of these, in any order and case."""
    return "(?is)" + "".join(f"(?=.*{pattern_of(noun)})" for noun in nouns)


def assert_mentions(text: str, *nouns: object) -> None:
    """The text names all of these, in any order and case."""
    missing = [str(noun) for noun in nouns if not re.search(pattern_of(noun), text, re.IGNORECASE)]
    assert not missing, f"not mentioned: {missing} in: {text}"


def assert_one_line(text: str, *nouns: object) -> None:
    """The text is a single line that names all of these."""
    assert len(text.splitlines()) == 1, text
    assert_mentions(text, *nouns)


def assert_refused(said: Said | str, *nouns: object, code: int = 2) -> None:
    """One line without a traceback that names the thing, the place and the way out; of a command its exit code too."""
    if not isinstance(said, str):
        assert said.code == code, said.err
        assert "Traceback" not in said.out
        assert said.err.startswith("supancl: "), said.err
        said = said.err
    assert_one_line(said, *nouns)


def saved_result(path: Path) -> dict[str, object]:
    """The result in a file that was written with a digest, without that."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "digest"}


def contents(root: Path) -> dict[str, bytes | None]:
    """Every file below the root with its bytes, every folder with None; who holds a lock is no content."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if path.name != ".lock"
    }


# --- tiny runs

SIDE = 8


def tiny_data(
    images: int = 48, classes: int = 3, unlabelled: float = 0.0, seed: int = 0, several: bool = False
) -> Data:
    """`several`: up to three labels per image, of any weights."""
    random = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    # a class is a bright quarter, so that there is something to learn
    pixels = random.integers(0, 120, (images, SIDE, SIDE), dtype=np.uint8)
    for pixel, label in zip(pixels, labels, strict=True):
        pixel[: SIDE // 2, (label % 2) * 4 : (label % 2) * 4 + 4] += np.uint8(60 + 40 * (label // 2))
    labels = np.where(random.random(images) < unlabelled, -1, labels)
    if several:
        labels = several_labels(labels, classes, random)
    names = [f"class {i}" for i in range(classes)]
    return from_arrays(pixels, labels, classes=names, spec=DataSpec(source=FROM_PYTHON, holdout=0.1))


def several_labels(labels: np.ndarray, classes: int, random: np.random.Generator) -> np.ndarray:
    """Weights (N, classes): the label and up to two more."""
    weights = np.full((len(labels), classes), -1.0)
    for row, label in zip(weights, labels.tolist(), strict=True):
        if label >= 0:
            row[:] = 0
            row[random.choice(classes, 2, replace=False)] = random.uniform(0.1, 0.9, 2)
            row[label] = 1
    return weights


def tiny_recipe(method: str = "supsiam", pool: str | None = None, **overrides: object) -> Recipe:
    """A run of seconds with the method's own row; overrides are dotted names with __ for the dot."""
    row = METHODS[method]
    predictor = MLP((8,), 16) if row.predictor else None
    projector = MLP((), None, norm="none") if method == "crossentropy" else MLP((16,), 16)
    spec = replace(row.pool, size=20) if pool is None else PoolSpec(pool, 20 if pool == "queue" else 4)
    base = recipe("digits.supsiam")
    built = replace(
        base,
        name=f"tiny.{method}",
        method=method,
        branches=row.branches,
        loss=row.loss,
        pool=spec,
        heads=HeadSpec(projector, predictor),
    )
    settings = {
        "views.size": SIDE,
        "encoder.width": 16,
        "train.batch_size": 8,
        "train.epochs": 2,
        "train.log_every": 1,
        "train.device": "cpu",
        "optimizer.reference_batch": 8,
        "optimizer.lr": 0.05,
        "schedule.warmup_epochs": 0,
    }
    if method == "semi":  # in so short a run its samples must be sure early
        settings |= {"loss.warmup": 3, "loss.confidence": 0.4}
    settings |= {name.replace("__", "."): value for name, value in overrides.items()}
    return built.with_set(settings)


class Notes(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint by name: weights, buffers, optimizer, pool, random state."""
    return flat(load_checkpoint(checkpoints(folder / "checkpoints")[-1]))


def flat(value: object, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {name: value}
    if isinstance(value, dict):
        return {key: item for k, v in value.items() for key, item in flat(v, f"{name}.{k}").items()}
    if isinstance(value, (list, tuple)):
        return {key: item for k, v in enumerate(value) for key, item in flat(v, f"{name}.{k}").items()}
    return {}


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different[:5]
    assert len(one) > 10  # weights, optimizer and random state are really there


def poisoned(monkeypatch, at: set[int]) -> None:
    """The views of these steps hold a NaN."""
    original = Step.__call__

    def take(self, batch=None):
        if int(self.inputs.step_tensor) not in at:
            return original(self, batch)
        branches, forward = self.model.branches, self.model.branches.forward
        branches.forward = lambda views, local=None: forward(views * float("nan"), local)
        try:
            return original(self, batch)
        finally:
            del branches.forward

    monkeypatch.setattr(Step, "__call__", take)


class NAType:
    """Stands for pandas.NA, whose class has this name: it does not say whether it equals itself."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> NAType:  # type: ignore[override]
        return self

    def __ne__(self, other: object) -> NAType:  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


# --- random batches and weights

# the same examples in every run; time is the concern of experiments/benchmarks/
property_test = settings(max_examples=50, deadline=None, derandomize=True, database=None)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(crops: Crops, n: int, sizes: Tensor, generator: torch.Generator | None = None, views: int = 1) -> Draws:
    """The parameters of n views, the first n / views of them first views."""
    return crops.draws_from(crops.draw_uniforms(n, sizes.device, generator), sizes, views)


def units(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random vectors of unit norm."""
    return F.normalize(torch.randn(*shape, generator=seeded(seed), dtype=dtype), dim=-1)


def some_labels(size: int, classes: int, seed: int = 0, unlabelled: bool = True) -> Tensor:
    """Random labels, -1 among them where `unlabelled`."""
    return torch.randint(-1 if unlabelled else 0, classes, (size,), generator=seeded(seed + 1000))


@cache
def _numbers() -> Tensor:
    return torch.randn(2**22, generator=seeded(0))


_calls = count(1)


@torch.no_grad()
def fill(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    """Random weights at the price of a copy: each call takes the numbers from another place on."""
    if not tensor.is_meta:
        scale = math.sqrt(2 / max(1, math.prod(tensor.shape[1:])))
        for part in tensor.view(-1).split(2**21):
            start = 7919 * next(_calls) % 2**21
            torch.mul(_numbers()[start : start + len(part)], scale, out=part)
    return tensor


@contextmanager
def quickly_built() -> Iterator[None]:
    """Networks get random weights without drawing them, for tests that have no concern with how they are drawn."""
    from timm.models import vision_transformer

    with pytest.MonkeyPatch.context() as patch:
        for name in ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_", "trunc_normal_"):
            patch.setattr(torch.nn.init, name, fill)
        patch.setattr(vision_transformer, "trunc_normal_", fill)
        yield
