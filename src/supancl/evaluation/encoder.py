"""The encoder to evaluate: its features, and the run folder for its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supancl.core.encoders import PROJECTOR, Encoder
from supancl.core.precision import pick_device
from supancl.data.opening import is_same_source
from supancl.data.splits import Source, Split, read_content
from supancl.data.views.evaluation import View
from supancl.data.views.specs import Crops
from supancl.errors import BadInput
from supancl.evaluation.feature_cache import FeatureCache, encoder_key, weights_key
from supancl.evaluation.naming import group_of, result_name, short_digest, source_of
from supancl.files import read_json
from supancl.probes import Features, embed
from supancl.probes.certainty import Judgement
from supancl.recipes import Recipe
from supancl.reporter import Reporter, current_reporter
from supancl.runs.encoder_file import load_projector
from supancl.runs.folder import RunFolder
from supancl.runs.importing import open_encoder


class SourceCache:
    """Keeps the source that was read last: the next protocol or encoder often needs the same one."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.source: Source | None = None
        self.warned: set[str] = set()  # warnings that are not repeated
        self.answers: dict[Hashable, Judgement] = {}  # of baselines that several encoders share

    def get(self, key: Hashable, read: Callable[[], Source]) -> Source:
        if self.source is None or key != self.key:
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
    baselines: bool = False  # compare with random weights and with the run's start
    cross_validate: bool = False  # if few images are held out
    sources: SourceCache | None = field(default=None, compare=False, repr=False)  # None: sources are not cached

    def describe(self, view: View, **more: str) -> str:
        return json.dumps({"layer": self.layer, "normalize": self.normalize, "view": view, **more}, sort_keys=True)


class EvaluatedEncoder:
    """An encoder with its location, its run (if any) and its features, which are cached."""

    def __init__(self, location: str, encoder: Encoder, options: EvaluationOptions, reporter: Reporter) -> None:
        self.location, self.encoder, self.options = location, encoder.to(options.device), options
        self.reporter = reporter
        folder = RunFolder(Path(location))
        self.run = folder if folder.has_run else None
        self.feature_cache = FeatureCache() if options.cache_features else None

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
        count = None if len(content.stamps) else self.run.read_data()[0].get("train")
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
        cache, path = self.feature_cache, None
        if cache is not None and len(split):
            path = cache.path(self.weights, split, self.options.describe(view, **self.projector_key))
        if cache is None or path is None:
            return self._embed(split, view)
        stored = cache.read(path, len(split))
        if stored is not None:
            return Features(stored, split.labels.clone(), split.all_labels.pairs)
        features = self._embed(split, view)
        if why := cache.write(path, features.values):
            self.warn_once(
                f"features cannot be cached in {cache.folder} ({why}), so they are computed each "
                "time; set SUPANCL_CACHE to another folder, or pass no_cache"
            )
        return features

    def _embed(self, split: Split, view: View) -> Features:
        options, progress = self.options, self.reporter.on_progress
        features = embed(
            self.encoder, split, options.device, options.batch_size, options.layer, options.normalize, view, progress
        )
        for remark in split.store.new_remarks():  # bad images that were replaced, as in training
            self.warn_once(remark)
        self._check(features, split)
        return features

    def _check(self, features: Features, split: Split) -> None:
        """Refuse features that are not finite: they are neither cached nor measured."""
        faulty = (~torch.isfinite(features.values)).any(1).nonzero()[:, 0]
        if len(faulty):
            raise BadInput(
                f"{self.location}: features that are not finite numbers: {len(faulty)}, such as of "
                f"{split.names_at(faulty[:1])[0]}; use weights from before the run diverged, or leave them out"
            )

    def warn_once(self, text: str) -> None:
        """Warn, unless the same warning was given before."""
        warned = set() if self.options.sources is None else self.options.sources.warned
        if text not in warned:
            self.reporter.warn(text)
            warned.add(text)

    def save_result(self, base: str, result: dict[str, Any]) -> None:
        """Write a result to the run folder, if there is one; results of other settings or data are kept."""
        if self.run is None:
            return
        name, source = result_name(base, result), source_of(result)
        saved_source = source_of(read_json(self.run.evaluations / f"{name}.json"))
        if source and saved_source and not is_same_source(source, saved_source):
            name = f"{name}-{short_digest(source)}"
        self.run.write_evaluation(name, result)


def plain_crops(evaluated: EvaluatedEncoder, scale: tuple[float, float]) -> Crops:
    """Random crops without colour changes; the flip probability is that of the run's recipe."""
    views = None if evaluated.recipe is None else evaluated.recipe.views
    flip = views.flip if isinstance(views, Crops) else 0.5
    return Crops(size=evaluated.encoder.size, scale=scale, flip=flip, jitter=0.0, grey=0.0, blur=0.0)


def open_evaluated_encoders(
    encoders: Sequence[Any], given: Mapping[str, Any], baselines: bool = False, saves_results: bool = True
) -> list[EvaluatedEncoder]:
    """Open encoders for evaluation: runs, modules, or what `open_encoder` takes; `given` are the user's options."""
    options = EvaluationOptions(
        pick_device(given.get("device", "auto")),
        layer=given.get("layer", "pooled"),
        normalize=given.get("normalize", False),
        batch_size=given.get("batch_size", 256),
        cache_features=not given.get("no_cache", False),
        skip_bad_images=given.get("skip_bad_images", False),
        partial=given.get("partial", False),
        baselines=baselines,
        cross_validate=baselines,
        sources=SourceCache(),
        columns=given.get("columns", ""),
    )
    foreign = {name: given[name] for name in ("size", "mean", "std", "branch", "prefix") if name in given}
    names = [Path(str(getattr(encoder, "folder", encoder))).resolve() for encoder in encoders]
    for encoder, name in zip(encoders, names, strict=True):
        if names.count(name) > 1:
            raise BadInput(f"{encoder} is named twice; name each encoder once: a second one would count as a seed")
    opened = [open_evaluated_encoder(encoder, options, **foreign) for encoder in encoders]
    for run in (encoder.run for encoder in opened if saves_results and encoder.run is not None):
        run.check_evaluations_writable()
    return opened


def open_evaluated_encoder(source: Any, options: EvaluationOptions, **overrides: Any) -> EvaluatedEncoder:
    """Open an encoder for evaluation; `overrides` go to `open_encoder`."""
    reporter = current_reporter()
    if isinstance(source, Encoder):
        source.check_layer(options.layer)
        return EvaluatedEncoder(f"{source.spec.name} in memory", source, options, reporter)
    location = str(getattr(source, "folder", source))
    encoder = open_encoder(location, **overrides)
    if options.layer == PROJECTOR and PROJECTOR not in encoder.layers:
        encoder.projector = load_projector(location)
    encoder.check_layer(options.layer)  # before reading data, which may take an hour
    evaluated = EvaluatedEncoder(location, encoder, options, reporter)
    run, recipe = evaluated.run, evaluated.recipe
    if run is not None:
        run.check_recipe_file()
    elif RunFolder(Path(location)).leftover_files[1:]:  # more than the encoder
        reporter.warn(f"{location} has no recipe.json, so nothing is known of the run's data and held-out images")
    if run is not None and (better_start := run.compare_with_start()):
        reporter.warn(better_start)
    if run is not None and recipe is not None and (early := run.describe_early_end(recipe)):
        reporter.warn(f"{location}: {early}; the evaluated encoder is the last one that it saved")
    return evaluated
