"""Who is judged and on what: an encoder with its features, a source with its splits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from supancl.config import flattened
from supancl.data import benchmarks
from supancl.data.benchmark_rows import ALIASES, Use
from supancl.data.order import seeded
from supancl.data.sources import (
    SPLIT_SEED,
    Data,
    DataSpec,
    Source,
    Split,
    open_source,
    prepared,
    same_source,
    stratified,
)
from supancl.data.views import Crops
from supancl.encoders import Encoder
from supancl.errors import BadInput
from supancl.evaluate import Features, embed
from supancl.evaluate.features import View
from supancl.evaluate.kept import KeptFeatures, encoder_key
from supancl.importing import open_encoder
from supancl.recipes import Recipe
from supancl.run import RunFolder
from supancl.start import pick_device
from supancl.train import Reporter


class Shelf:
    """The source opened last: the next protocol, or the next encoder, often wants the same one."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.source: Source | None = None

    def get(self, key: Hashable, read: Callable[[], Source]) -> Source:
        if self.source is None or key != self.key:
            self.source = None  # before the next one is read: two may be more than fit
            self.source, self.key = read(), key
        return self.source


@dataclass(frozen=True)
class Look:
    """How features are taken, and of what: bad images skipped or not, data sets that are not whole taken or not."""

    device: torch.device
    layer: str = "pooled"
    normalize: bool = False
    batch_size: int = 256
    keep: bool = True
    skip_bad_images: bool = False
    partial: bool = False
    shelf: Shelf | None = field(default=None, compare=False, repr=False)  # None: every source is read anew

    def described(self, view: View) -> str:
        return json.dumps({"layer": self.layer, "normalize": self.normalize, "view": view}, sort_keys=True)


class Subject:
    """An encoder that is judged: where it came from, and its features, taken once and kept."""

    def __init__(self, where: str, encoder: Encoder, look: Look, reporter: Reporter) -> None:
        self.where, self.encoder, self.look, self.reporter = where, encoder.to(look.device), look, reporter
        folder = RunFolder(Path(where))
        self.run = folder if folder.holds_run else None
        self.kept = KeptFeatures() if look.keep else None

    @cached_property
    def weights(self) -> str:
        """The same for the same architecture with the same weights, wherever they lie."""
        return encoder_key(self.encoder)

    @cached_property
    def recipe(self) -> Recipe | None:
        return None if self.run is None else self.run.read_recipe()[0]

    @property
    def label(self) -> str:
        """What a table calls it: its recipe, or its file, or that file's folder where the file has the usual name."""
        if self.recipe is not None:
            return self.recipe.name
        path = Path(self.where if Path(self.where).exists() else self.where.rpartition("@")[2])
        folder = path.resolve().parent.name if path.name == "encoder.safetensors" else ""
        return folder or path.name

    @property
    def group(self) -> str:
        """The same for runs that differ in their seed alone."""
        if self.recipe is None:
            return self.where
        settings = flattened(replace(self.recipe, sources={}))
        settings.pop("train.seed", None)
        text = json.dumps({key: str(value) for key, value in settings.items()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def features(self, split: Split, view: View = "margin") -> Features:
        look, path = self.look, None
        if self.kept is not None and len(split):
            path = self.kept.path(self.weights, split, look.described(view))
        if path is not None and self.kept is not None:
            found = self.kept.read(path, len(split))
            if found is not None:
                return Features(found, split.labels.clone())
        taken = embed(self.encoder, split, look.device, look.batch_size, look.layer, look.normalize, view,
                      self.reporter.reading)
        self._check(taken, split)
        if path is not None and self.kept is not None:
            self.kept.write(path, taken.values)
        return taken

    def _check(self, taken: Features, split: Split) -> None:
        """Features that are no numbers are not kept, and nothing is measured on them."""
        faulty = (~torch.isfinite(taken.values)).any(1).nonzero()[:, 0]
        if len(faulty):
            row = int(faulty[0])
            kind = "NaN" if bool(torch.isnan(taken.values[row]).any()) else "an infinite value"
            more = f", and those of {len(faulty) - 1} more images," if len(faulty) > 1 else ""
            raise BadInput(f"{self.where}: the features of {split.named(faulty[:1])[0]}{more} hold {kind}; "
                           "take weights from before the run diverged, or leave that image out")

    def keep_result(self, name: str, result: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.write_evaluation(name, result)


def plain_crops(subject: Subject, scale: tuple[float, float]) -> Crops:
    """Random crops without changes of colour; flipped unless the run's recipe says that a flip is another thing."""
    views = None if subject.recipe is None else subject.recipe.views
    flip = views.flip if isinstance(views, Crops) else 0.5
    return Crops(size=subject.encoder.size, scale=scale, flip=flip, jitter=0.0, grey=0.0, blur=0.0)


def open_subject(where: str, look: Look, reporter: Reporter, **foreign: Any) -> Subject:
    return Subject(where, open_encoder(where, **foreign), look, reporter)


def make_look(device: str, **options: Any) -> Look:
    return Look(pick_device(device), **options)


# --- data -------------------------------------------------------------------------------------------------------------


def evaluation_short_side(encoder: Encoder, view: View = "margin") -> int:
    """Images need not be decoded larger than what the crop is cut from: 256 for an input of 224 with a margin."""
    return round(encoder.size * 8 / 7) if view == "margin" else encoder.size


def check_kind(encoder: Encoder, split: Split, source: str) -> None:
    """Vectors are for a linear encoder, images of as many channels as it takes for any other."""
    pixels = split.batch(torch.zeros(1, dtype=torch.long)).pixels
    vectors = pixels.ndim == 2
    if vectors != (encoder.spec.name == "linear"):
        kind, wants = ("vectors", "images") if vectors else ("images", "vectors (toy)")
        raise BadInput(f"{source} holds {kind}, encoder {encoder.spec.name!r} takes {wants}; name other --data")
    if not vectors and pixels.shape[1] != encoder.spec.channels:
        raise BadInput(f"{source}: its images can be had in grey or in RGB, encoder {encoder.spec.name!r} takes "
                       f"{encoder.spec.channels} channels; give an encoder of 1 or 3, or a .npz of that many")


def is_own(subject: Subject, source: str | None) -> bool:
    """Whether the run was trained on this source."""
    return source is None or (subject.recipe is not None and same_source(source, subject.recipe.data.source))


def own_source(subject: Subject, source: str | None) -> str:
    """The named source, or the one of the run itself."""
    return spec_for(subject, source).source


def spec_for(subject: Subject, source: str | None) -> DataSpec:
    """What to take of a source: the run's own settings without one; what a run held out of it stays held out."""
    own = None if subject.recipe is None else subject.recipe.data
    if source is None:
        if own is None:
            raise BadInput(f"{subject.where} is no run folder, so it brings no data; name some with --data")
        return own
    return DataSpec(source=source, holdout=own.holdout if own is not None and is_own(subject, source) else None)


def registered(source: str) -> str | None:
    """The registry's name of NAME@ROOT; None for any other source."""
    name, at, _ = source.partition("@")
    name = ALIASES.get(name, name)
    return name if at and name in benchmarks.BENCHMARKS else None


def opened(subject: Subject, spec: DataSpec, view: View, use: Use | None = None) -> Source:
    """What `spec` names: a source as it is, a data set of the registry (NAME@ROOT) with the splits of that use."""
    encoder, look, tell = subject.encoder, subject.look, subject.reporter.reading
    spec = DataSpec(source=spec.source, short_side=evaluation_short_side(encoder, view), cache=spec.cache,
                    memory_gb=spec.memory_gb, skip_bad_images=look.skip_bad_images or spec.skip_bad_images,
                    resample="bicubic" if view == "whole" else "bilinear")
    name, root = registered(spec.source), spec.source.partition("@")[2]
    use = None if name is None else use or benchmarks.BENCHMARKS[name].uses[0]

    def read() -> Source:
        found = (open_source(spec, encoder.spec.channels, tell) if name is None else
                 benchmarks.open_benchmark(name, root, encoder.spec.channels, spec, tell, use, look.partial))
        for remark in found.remarks:
            subject.reporter.warn(remark)
        return found

    found = read() if look.shelf is None else look.shelf.get((spec, encoder.spec.channels, use), read)
    check_kind(encoder, next(iter(found.splits.values())), spec.source)
    return found


def data_for(subject: Subject, source: str | None, view: View = "margin") -> Data:
    """The named source, or that of the run with what the run held out and left out."""
    spec = spec_for(subject, source)
    return prepared(opened(subject, spec, view), replace(spec, balanced=False))


def judged(data: Data, split: str, where: str) -> tuple[str, Split]:
    """Which images are judged, and from which split they are: those held out, or the test split."""
    if split == "held-out":
        return str(data.described["held_out_from"]), data.held_out
    if data.test is None:
        raise BadInput(f"{where} has no test split; leave --split out: a part held out of train is judged then")
    return "test", data.test


def data_name(source: str) -> str:
    """What a result file is called after: the registry's name, or the last part of a path."""
    name, at, _ = source.partition("@")
    if at and not Path(source).exists():
        found = name.rpartition(":")[2].lower()
        return ALIASES.get(found, found)
    path = Path(source.rpartition(":")[2])
    stem = path.stem if path.suffix.lower() in (".npz", ".csv", ".tar") else path.name
    return re.sub(r"[^A-Za-z0-9._]+", "-", stem).strip("-.") or "data"


def data_names(sources: Sequence[str]) -> list[str]:
    """A name of its own for each source: two folders may have the same last part."""
    names = [data_name(source) for source in sources]
    told = [name if names.count(name) == 1 else f"{data_name(str(Path(source).parent))}-{name}"
            for name, source in zip(names, sources, strict=True)]
    return [name if told.count(name) == 1 else f"{name}-{i + 1}" for i, name in enumerate(told)]


def three_splits(source: Source, spec: DataSpec) -> tuple[Split, Split, Split]:
    """train, val and test. A source without test or val is tested on the images that every run on it holds out."""
    splits, where = dict(source.splits), spec.source
    if "test" not in splits and "val" in splits:
        splits["test"] = splits.pop("val")
    if "test" not in splits:
        data = prepared(source, spec)
        if not len(data.held_out):
            raise BadInput(f"{where}: the run was trained on all of it (data.holdout = 0), so nothing is left to test "
                           "on; name other data")
        splits = {"train": data.train, "test": data.held_out}
    train = splits["train"]
    if "val" not in splits:
        train, splits["val"] = divided(train, 0.2, "val", where)
    return train, splits["val"], splits["test"]


def divided(train: Split, share: float, name: str, where: str) -> tuple[Split, Split]:
    known = train.take((train.labels >= 0).nonzero()[:, 0])
    chosen = stratified(known.labels, share, seeded(SPLIT_SEED, len(name)))
    if not len(chosen):
        raise BadInput(f"{where}: too few labelled images to take {share:.0%} of each class out as {name}; add images "
                       f"or a {name}/ folder")
    rest = torch.ones(len(known), dtype=torch.bool)
    rest[chosen] = False
    return known.take(rest.nonzero()[:, 0]), known.take(chosen)


def few_shot_split(subject: Subject, source: Source, spec: DataSpec) -> tuple[str, Split]:
    """The images that episodes are drawn from: those not trained on, where the source has such."""
    name = next(name for name in ("test", "val", "train") if name in source.splits)
    if name == "train" and is_own(subject, spec.source):
        if registered(spec.source) is None:
            return "held out of train", prepared(source, spec).held_out
        subject.reporter.warn(f"{spec.source}: the run was trained on some of these images")
    return name, source.splits[name]
