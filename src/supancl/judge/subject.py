"""Who is judged and on what: an encoder with its features, a source with its splits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from supancl.config import flattened
from supancl.data import benchmarks
from supancl.data.benchmark_rows import ALIASES, Use
from supancl.data.order import seeded
from supancl.data.sources import SPLIT_SEED, Data, DataSpec, Source, Split, open_data, open_source, stratified
from supancl.encoders import Encoder
from supancl.errors import BadInput
from supancl.evaluate import Features, embed
from supancl.evaluate.features import View
from supancl.evaluate.kept import KeptFeatures
from supancl.importing import open_encoder
from supancl.run import RunFolder
from supancl.start import pick_device
from supancl.train import Reporter


@dataclass(frozen=True)
class Look:
    """How features are taken."""

    device: torch.device
    layer: str = "pooled"
    normalize: bool = False
    batch_size: int = 256
    keep: bool = True
    skip_bad_images: bool = False

    def described(self, view: View) -> str:
        return json.dumps({"layer": self.layer, "normalize": self.normalize, "view": view}, sort_keys=True)


class Subject:
    """An encoder that is judged: where it came from, and its features, taken once and kept."""

    def __init__(self, where: str, encoder: Encoder, look: Look, reporter: Reporter) -> None:
        self.where, self.encoder, self.look, self.reporter = where, encoder.to(look.device), look, reporter
        folder = RunFolder(Path(where))
        self.run = folder if folder.holds_run else None
        self.kept = KeptFeatures() if look.keep else None

    @property
    def label(self) -> str:
        """What a table calls it: its recipe, or its file."""
        return self.run.read_recipe()[0].name if self.run else Path(self.where.rpartition("@")[2]).name

    @property
    def group(self) -> str:
        """The same for runs that differ in their seed alone."""
        if self.run is None:
            return self.where
        settings = flattened(replace(self.run.read_recipe()[0], sources={}))
        settings.pop("train.seed", None)
        text = json.dumps({key: str(value) for key, value in settings.items()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def features(self, split: Split, view: View = "margin") -> Features:
        look, path = self.look, None
        if self.kept is not None and len(split):
            path = self.kept.path(self.encoder, split, look.described(view))
        if path is not None and self.kept is not None:
            found = self.kept.read(path, len(split))
            if found is not None:
                return Features(found, split.labels.clone())
        taken = embed(self.encoder, split, look.device, look.batch_size, look.layer, look.normalize, view,
                      self.reporter.reading)
        if path is not None and self.kept is not None:
            self.kept.write(path, taken.values)
        return taken

    def keep_result(self, name: str, result: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.write_evaluation(name, result)


def open_subject(where: str, look: Look, reporter: Reporter, **foreign: Any) -> Subject:
    return Subject(where, open_encoder(where, **foreign), look, reporter)


def make_look(device: str, **options: Any) -> Look:
    return Look(pick_device(device), **options)


# --- data -------------------------------------------------------------------------------------------------------------


def evaluation_short_side(encoder: Encoder, view: View = "margin") -> int:
    """Images need not be decoded larger than what the crop is cut from: 256 for an input of 224 with a margin."""
    return round(encoder.size * 8 / 7) if view == "margin" else encoder.size


def check_kind(encoder: Encoder, split: Split, source: str) -> None:
    """Vectors are for a linear encoder, images for any other."""
    vectors = split.batch(torch.zeros(1, dtype=torch.long)).pixels.ndim == 2
    if vectors != (encoder.spec.name == "linear"):
        kind, wants = ("vectors", "images") if vectors else ("images", "vectors (toy)")
        raise BadInput(f"{source} holds {kind}, encoder {encoder.spec.name!r} takes {wants}; name other --data")


def own_source(subject: Subject, source: str | None) -> str:
    """The named source, or the one of the run itself."""
    if source is not None:
        return source
    if subject.run is None:
        raise BadInput(f"{subject.where} is no run folder, so it brings no data; name some with --data")
    return subject.run.read_recipe()[0].data.source


def data_for(subject: Subject, source: str | None) -> Data:
    """The named source, or that of the run with what the run held out and left out."""
    spec = DataSpec(source=own_source(subject, source))
    if source is None and subject.run is not None:
        spec = subject.run.read_recipe()[0].data
    spec = replace(spec, short_side=evaluation_short_side(subject.encoder), balanced=False,
                   skip_bad_images=subject.look.skip_bad_images or spec.skip_bad_images)
    data = open_data(spec, subject.encoder.spec.channels, subject.reporter.reading)
    check_kind(subject.encoder, data.train, spec.source)
    for remark in data.remarks:
        subject.reporter.warn(remark)
    return data


def source_for(subject: Subject, source: str, view: View, use: Use | None = None) -> Source:
    """A source as it is; a data set of the registry (NAME@ROOT) with the splits of that use."""
    encoder, look = subject.encoder, subject.look
    spec = DataSpec(source=source, short_side=evaluation_short_side(encoder, view),
                    skip_bad_images=look.skip_bad_images, resample="bicubic" if view == "whole" else "bilinear")
    name, at, root = source.partition("@")
    if at and use is not None and ALIASES.get(name, name) in benchmarks.BENCHMARKS:
        found = benchmarks.open_benchmark(name, root, encoder.spec.channels, spec, subject.reporter.reading, use)
    else:
        found = open_source(spec, encoder.spec.channels, subject.reporter.reading)
    check_kind(encoder, next(iter(found.splits.values())), source)
    for remark in found.remarks:
        subject.reporter.warn(remark)
    return found


def data_name(source: str) -> str:
    """What a result file is called after: the registry's name, or the last part of a path."""
    name, at, _ = source.partition("@")
    if at:
        return name.rpartition(":")[2].lower()
    return Path(source.rpartition(":")[2]).stem or "data"


def three_splits(source: Source, where: str) -> tuple[Split, Split, Split]:
    """train, val and test; what a source does not have is a fixed stratified part of its training images."""
    splits = dict(source.splits)
    train = splits["train"]
    if "test" not in splits and "val" in splits:
        splits["test"] = splits.pop("val")
    for name in ("test", "val"):
        if name not in splits:
            train, splits[name] = divided(train, 0.2, name, where)
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


def few_shot_split(source: Source) -> tuple[str, Split]:
    """The images that episodes are drawn from: those not trained on, where the source has such."""
    name = next(name for name in ("test", "val", "train") if name in source.splits)
    return name, source.splits[name]
