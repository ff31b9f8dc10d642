"""The encoder to evaluate: its features, which are cached on disk, the run it is of, and what that was trained on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from supancl.config import to_json
from supancl.core.encoders import PROJECTOR, Encoder, EncoderSpec
from supancl.data.content import read_content
from supancl.data.opening import is_same_source
from supancl.data.splits import Source, Split
from supancl.data.store.cache import FEATURES_FOLDER, cache_root
from supancl.data.views.render import View
from supancl.distributed.ranks import pick_device
from supancl.errors import BadInput
from supancl.evaluation.results import group_of, result_name, short_digest, source_of
from supancl.files import (
    check_regular,
    make_inner_folder,
    read_json,
    reason,
    remove_left_over_files,
    write_atomically,
)
from supancl.probes.answers import Measured
from supancl.probes.features import Features, embed
from supancl.recipes import Recipe
from supancl.reporter import Reporter, current_reporter
from supancl.runs.encoder_file import load_projector
from supancl.runs.folder import RunFolder
from supancl.runs.importing import open_encoder

if TYPE_CHECKING:
    from supancl.evaluation.data import EvaluationData

CACHE_VERSION = 4  # of features that are kept: 4 since images are known by their checksums
MOST_BYTES = 20e9  # of cached features; above it the least recently used are removed
EQUAL_BY_CHANCE = 0.01  # fraction of images whose checksums of 32 bits may be equal though their pixels are not


@dataclass
class SourceCache:
    """Keeps the source that was read last: the next protocol or encoder often needs the same one."""

    keeps: bool = True
    key: Hashable = None
    source: Source | None = None
    warned: set[str] = field(default_factory=set)  # warnings that are not repeated
    answers: dict[Hashable, Measured] = field(default_factory=dict)  # of baselines that several encoders share

    def get(self, key: Hashable, read: Callable[[], Source]) -> Source:
        if self.source is None or key != self.key or not self.keeps:
            self.source = None  # free it before reading the next: two may not fit in memory
            self.source, self.key = read(), key
        return self.source


@dataclass(frozen=True)
class EvaluationOptions:
    """How to compute features, and whether to skip bad images and accept incomplete data sets."""

    device: torch.device
    layer: str = "pooled"
    normalize: bool = False
    batch_size: int = 256
    cache_features: bool = True
    skip_bad_images: bool = False
    partial: bool = False
    columns: str = ""  # of a .csv that is not the run's
    baselines: bool = False  # compare with random weights and the run's start; cross-validate if few are held out
    sources: SourceCache = field(default_factory=lambda: SourceCache(keeps=False), compare=False, repr=False)

    def describe(self, view: View, **more: str) -> str:
        return json.dumps({"layer": self.layer, "normalize": self.normalize, "view": view, **more}, sort_keys=True)


class EvaluatedEncoder:
    """An encoder with its location, its run (if any) and its features, which are cached."""

    def __init__(self, location: str, encoder: Encoder, options: EvaluationOptions, reporter: Reporter) -> None:
        self.location, self.encoder, self.options = location, encoder.to(options.device), options
        self.reporter = reporter
        folder = RunFolder(Path(location))
        self.run = folder if folder.has_run else None

    @cached_property
    def weights(self) -> str:
        """Checksum of architecture and weights."""
        return encoder_key(self.encoder)

    @cached_property
    def projector_key(self) -> dict[str, str]:
        """A checksum of the projector's weights if features use it, else empty."""
        projector = self.encoder.projector
        return {} if projector is None else {"projector": weights_key(projector.state_dict())}

    @cached_property
    def recipe(self) -> Recipe | None:
        return None if self.run is None else self.run.read_recipe()[0]

    @cached_property
    def trained_checksums(self) -> np.ndarray:
        """Checksums of the training images as the run decoded them, ascending; empty if it has none."""
        content = None if self.run is None else read_content(self.run.content_file)
        if self.run is None or content is None:
            return np.zeros(0, np.uint64)
        # those of images are followed by the held-out ones'; those of shards have stamps
        count = None if content.kind == "shards" else self.run.read_data()[0].get("train")
        return np.unique(content.values[:count])

    @property
    def label(self) -> str:
        """Its name in tables: recipe, or file name, or the folder of an encoder.safetensors."""
        if self.recipe is not None:
            return self.recipe.name
        path = Path(self.location if Path(self.location).exists() else self.location.rpartition("@")[2])
        folder = path.resolve().parent.name if path.name == "encoder.safetensors" else ""
        return folder or path.name

    @property
    def group(self) -> str:
        """Equal for runs that differ only in their seed."""
        if self.recipe is None:
            return self.location
        assert self.run is not None
        return group_of(self.recipe, str(self.run.read_data()[0].get("fingerprint") or ""))

    def features(self, split: Split, view: View = "margin") -> Features:
        """The features of every image of a split, from the cache if possible."""
        options, path = self.options, None
        if options.cache_features and len(split):
            path = cached_file(self.weights, split, options.describe(view, **self.projector_key))
        values = None if path is None else read_cached(path, len(split))
        if values is None:
            how = (options.device, options.batch_size, options.layer, options.normalize, view)
            values = embed(self.encoder, split, *how, self.reporter.on_progress).values
            for remark in split.store.new_remarks():  # bad images that were replaced, as in training
                self.warn_once(remark)
            faulty = (~torch.isfinite(values)).any(1).nonzero()[:, 0]
            if len(faulty):
                raise BadInput(
                    f"{self.location}: features that are not finite numbers: {len(faulty)}, such as of "
                    f"{split.names_at(faulty[:1])[0]}; use weights from before the run diverged"
                )
            if path is not None:
                try:
                    write_cached(path, values)
                except (OSError, BadInput) as error:  # evaluation works without a cache
                    self.warn_once(f"features cannot be cached ({reason(error)}); set SUPANCL_CACHE to another folder")
        return Features(values, split.labels.clone(), split.all_labels.pairs)

    def warn_once(self, text: str) -> None:
        """Warn, unless the same warning was given before."""
        if text not in self.options.sources.warned:
            self.reporter.warn(text)
            self.options.sources.warned.add(text)

    def save_result(self, base: str, result: dict[str, Any]) -> None:
        """Write a result to the run folder, if there is one; results of other settings or data are kept."""
        if self.run is None:
            return
        name, source = result_name(base, result), source_of(result)
        saved_source = source_of(read_json(self.run.evaluations / f"{name}.json"))
        if source and saved_source and not is_same_source(source, saved_source):
            name = f"{name}-{short_digest(source)}"
        self.run.write_evaluation(name, result)


class Parts:
    """The features of train, held-out and test images by one encoder, computed when they are needed."""

    def __init__(
        self, encoder: EvaluatedEncoder, data: EvaluationData, given: Mapping[str, Features] | None = None
    ) -> None:
        self.encoder, self.data, self.given = encoder, data, given or {}
        self.values: dict[str, Tensor] = {}
        self.classes = len(data.classes)

    def __getitem__(self, name: str) -> Features:
        if name in self.given:
            return self.given[name]
        split = self.data.splits[name]
        if name not in self.values:
            self.values[name] = self.encoder.features(split, self.data.view).values
        return Features(self.values[name], split.labels.clone(), split.all_labels.pairs)

    def at(self, level: tuple[str, ...]) -> Parts:
        """The same features with the labels of a level."""
        parts = Parts(self.encoder, self.data.at(level))
        parts.values = self.values
        return parts


# --- what it was trained on ------------------------------------------------------------------------------------------


def is_run_source(evaluated: EvaluatedEncoder, source: str | None) -> bool:
    """Whether the run was trained on this source; one of several joined sources is not all of its data."""
    data = None if evaluated.recipe is None else evaluated.recipe.data
    return source is None or (data is not None and not data.joined and is_same_source(source, data.source))


def shares_images(evaluated: EvaluatedEncoder, source: str | None, images: Sequence[Split]) -> bool:
    """Whether the run was trained on this source, or on images of this content, wherever they lie now."""
    return evaluated.recipe is not None and (is_run_source(evaluated, source) or shares_pixels(evaluated, images))


def shares_pixels(evaluated: EvaluatedEncoder, images: Sequence[Split]) -> bool:
    """Whether some of these images have the content of training images of the run."""
    trained = evaluated.trained_checksums
    contents = [content.values for split in images if len(split) and (content := split.content()) is not None]
    if not len(trained) or not contents:
        return False
    values = np.concatenate(contents)
    nearest = np.searchsorted(trained, values).clip(max=len(trained) - 1)
    return float((trained[nearest] == values).mean()) > EQUAL_BY_CHANCE


def warn_if_trained_on(
    evaluated: EvaluatedEncoder, source: str | None, drawn_from: Sequence[Split], every: bool = False
) -> bool:
    """Whether tested images may be among the run's training images; warns if so.

    `drawn_from` are all images of the split that the tested ones were taken from. Images that a run held out of its own
    source are not, unless `every` image is tested.
    """
    if evaluated.recipe is None:
        return False
    overlaps = every if is_run_source(evaluated, source) else shares_pixels(evaluated, drawn_from)
    if overlaps:
        where = source or evaluated.recipe.data.source
        evaluated.reporter.warn(f"{where}: the run was trained on some of these images; tables leave the result out")
    return overlaps


# --- opening ----------------------------------------------------------------------------------------------------------


def open_evaluated_encoders(
    encoders: Sequence[Any], given: Mapping[str, Any], baselines: bool = False, saves_results: bool = True
) -> list[EvaluatedEncoder]:
    """Open encoders for evaluation: runs, modules, or what `open_encoder` takes; `given` are the user's options."""
    foreign = {name: given[name] for name in ("size", "mean", "std", "branch", "prefix") if name in given}
    own = {name: given[name] for name in given.keys() - foreign.keys() - {"device", "no_cache"}}
    device, caches = pick_device(given.get("device", "auto")), not given.get("no_cache", False)
    options = EvaluationOptions(device, cache_features=caches, baselines=baselines, sources=SourceCache(), **own)
    opened = [open_evaluated_encoder(encoder, options, **foreign) for encoder in encoders]
    for run in (encoder.run for encoder in opened if saves_results and encoder.run is not None):
        run.check_evaluations_writable()
    return opened


def open_evaluated_encoder(source: Any, options: EvaluationOptions, **overrides: Any) -> EvaluatedEncoder:
    """Open an encoder for evaluation; `overrides` go to `open_encoder`."""
    reporter = current_reporter()
    if isinstance(source, Encoder):
        return EvaluatedEncoder(f"{source.spec.name} in memory", source, options, reporter)
    location = str(getattr(source, "folder", source))
    encoder = open_encoder(location, **overrides)
    if options.layer == PROJECTOR:
        encoder.projector = load_projector(location)
    evaluated = EvaluatedEncoder(location, encoder, options, reporter)
    run, recipe = evaluated.run, evaluated.recipe
    if run is not None and recipe is not None:
        run.check_recipe_file()
        if better_start := run.compare_with_start():
            reporter.warn(better_start)
        if early := run.describe_early_end(recipe):
            reporter.warn(f"{location}: {early}; the evaluated encoder is the last one that it saved")
    return evaluated


# --- features on disk -------------------------------------------------------------------------------------------------


def encoder_key(encoder: Encoder) -> str:
    """A checksum of the architecture and every weight.

    Settings with default values are left out, so that a new setting does not change the keys of existing encoders.
    """
    usual = to_json(EncoderSpec())
    spec = {key: value for key, value in to_json(encoder.spec).items() if key == "name" or value != usual[key]}
    return weights_key(encoder.body.state_dict(), json.dumps(spec, sort_keys=True))


def weights_key(tensors: Mapping[str, Tensor], architecture: str = "") -> str:
    """A checksum of named tensors and a description of their architecture."""
    content = hashlib.sha256(architecture.encode())
    for name, value in sorted(tensors.items()):
        content.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        content.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:24]


def pixels_key(split: Split) -> str | None:
    """A checksum of the images in order; None if changes cannot be detected."""
    checksums = split.store.pixel_checksums(split.index.cpu())
    return None if checksums is None else hashlib.sha256(checksums.tobytes()).hexdigest()[:24]


def _checksum(path: Path, values: Tensor) -> str:
    """Of the values and of the file's name, which is their key."""
    return str(zlib.crc32(values.numpy().data, zlib.crc32(path.name.encode())))


def cached_file(weights: str, split: Split, settings: str) -> Path | None:
    """The file for the features of a split; its name covers weights, pixels, view and layer, so it is never stale."""
    pixels = pixels_key(split)
    if pixels is None:
        return None
    key = hashlib.sha256(json.dumps([CACHE_VERSION, weights, pixels, settings]).encode()).hexdigest()[:24]
    return cache_root() / FEATURES_FOLDER / f"{key}.safetensors"


def read_cached(path: Path, rows: int) -> Tensor | None:
    """The features, or None if they are missing or damaged."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as handle:
            values: Tensor = handle.get_tensor("values")
            checksum = (handle.metadata() or {}).get("crc32")
    except (OSError, SafetensorError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # last used
    return values if values.ndim == 2 and len(values) == rows and checksum == _checksum(path, values) else None


def write_cached(path: Path, values: Tensor) -> None:
    """Store features, and remove the least recently used ones above a limit."""
    values = values.contiguous()
    metadata = {"crc32": _checksum(path, values)}
    make_inner_folder(path.parent)
    write_atomically(path, lambda temporary: save_file({"values": values}, temporary, metadata=metadata))
    remove_left_over_files(path.parent)
    with contextlib.suppress(OSError):
        files = [(file.stat(), file) for file in path.parent.glob("[!.]*") if file != path]
        total = values.nbytes + sum(status.st_size for status, _ in files)
        for status, file in sorted(files, key=lambda item: item[0].st_mtime):
            if total > MOST_BYTES:
                file.unlink(missing_ok=True)
                total -= status.st_size
