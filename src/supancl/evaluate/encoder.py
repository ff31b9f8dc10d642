"""The encoder that is evaluated: its features, and the run folder that its results go to."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from supancl.core.encoders import PROJECTOR, Encoder
from supancl.data.opening import is_same_source
from supancl.data.splits import Source, Split
from supancl.data.views.evaluation import View
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, plural
from supancl.evaluate.feature_cache import FeatureCache, encoder_key, weights_key
from supancl.evaluate.naming import group_of, result_name, short, source_of
from supancl.probes import Features, embed
from supancl.recipes import Recipe
from supancl.reporter import Reporter
from supancl.weights.encoder_file import load_projector
from supancl.weights.importing import open_encoder
from supancl.weights.run_folder import RunFolder


class SourceCache:
    """The source that was read last: the next protocol, or the next encoder, often wants the same one."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.source: Source | None = None
        self.warned: set[str] = set()  # warnings that need no repeating for every protocol and encoder

    def get(self, key: Hashable, read: Callable[[], Source]) -> Source:
        if self.source is None or key != self.key:
            self.source = None  # before the next one is read: two may be more than fit
            self.source, self.key = read(), key
        return self.source


@dataclass(frozen=True)
class EvaluationOptions:
    """How features are computed, and of what: skip bad images, accept data sets that are incomplete."""

    device: torch.device
    layer: str = "pooled"
    normalize: bool = False
    batch_size: int = 256
    cache_features: bool = True
    skip_bad_images: bool = False
    partial: bool = False
    sources: SourceCache | None = field(default=None, compare=False, repr=False)  # None: every source is read anew

    def described(self, view: View, **more: str) -> str:
        return json.dumps({"layer": self.layer, "normalize": self.normalize, "view": view, **more}, sort_keys=True)


class EvaluatedEncoder:
    """An encoder with the place it came from, the run it belongs to (if any) and its features, computed once."""

    def __init__(self, where: str, encoder: Encoder, options: EvaluationOptions, reporter: Reporter) -> None:
        self.where, self.encoder, self.options = where, encoder.to(options.device), options
        self.reporter = reporter
        folder = RunFolder(Path(where))
        self.run = folder if folder.holds_run else None
        self.feature_cache = FeatureCache() if options.cache_features else None

    @cached_property
    def weights(self) -> str:
        """The same for the same architecture with the same weights, wherever they lie."""
        return encoder_key(self.encoder)

    @cached_property
    def projector_key(self) -> dict[str, str]:
        """A checksum of the projector's weights, if features go through it; else empty."""
        projector = self.encoder.projector
        return {} if projector is None else {"projector": weights_key(projector.state_dict())}

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
        assert self.run is not None
        return group_of(self.recipe, str(self.run.read_data()[0].get("fingerprint") or ""))

    def features(self, split: Split, view: View = "margin") -> Features:
        """The features of every image of a split, from the cache if they are there."""
        cache, path = self.feature_cache, None
        if cache is not None and len(split):
            path = cache.path(self.weights, split, self.options.described(view, **self.projector_key))
        if cache is None or path is None:
            return self._embed(split, view)
        stored = cache.read(path, len(split))
        if stored is not None:
            return Features(stored, split.labels.clone())
        found = self._embed(split, view)
        if why := cache.write(path, found.values):
            self.warn_once(
                f"features are not kept in {cache.folder} ({why}), so they are taken anew each "
                "time; name another folder in SUPANCL_CACHE, or pass --no-cache"
            )
        return found

    def _embed(self, split: Split, view: View) -> Features:
        options, progress = self.options, self.reporter.reading
        found = embed(
            self.encoder, split, options.device, options.batch_size, options.layer, options.normalize, view, progress
        )
        for remark in split.store.new_remarks():  # what was replaced, as training says it
            self.warn_once(remark)
        self._check(found, split)
        return found

    def _check(self, found: Features, split: Split) -> None:
        """Refuse features that are not finite: they are not cached, and nothing is measured on them."""
        faulty = (~torch.isfinite(found.values)).any(1).nonzero()[:, 0]
        if len(faulty):
            row = int(faulty[0])
            kind = "NaN" if bool(torch.isnan(found.values[row]).any()) else "an infinite value"
            more = f", and those of {plural(len(faulty) - 1, 'more image')}," if len(faulty) > 1 else ""
            raise BadInput(
                f"{self.where}: the features of {split.names_at(faulty[:1])[0]}{more} hold {kind}; "
                "take weights from before the run diverged, or leave that image out"
            )

    def warn_once(self, text: str) -> None:
        """Warn, unless another encoder on the same data has."""
        warned = set() if self.options.sources is None else self.options.sources.warned
        if text not in warned:
            self.reporter.warn(text)
            warned.add(text)

    def save_result(self, base: str, result: dict[str, Any]) -> None:
        """Write it into the run folder, if there is one; results of other settings or other data stay."""
        if self.run is None:
            return
        name, mine = result_name(base, result), source_of(result)
        theirs = source_of(self._saved_result(name))
        if mine and theirs and not is_same_source(mine, theirs):
            name = f"{name}-{short(mine)}"
        self.run.write_evaluation(name, result)

    def _saved_result(self, name: str) -> dict[str, Any]:
        assert self.run is not None
        try:
            content = json.loads((self.run.evaluations / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def plain_crops(evaluated: EvaluatedEncoder, scale: tuple[float, float]) -> Crops:
    """Random crops without changes of colour; flipped unless the run's recipe says that a flip is another thing."""
    views = None if evaluated.recipe is None else evaluated.recipe.views
    flip = views.flip if isinstance(views, Crops) else 0.5
    return Crops(size=evaluated.encoder.size, scale=scale, flip=flip, jitter=0.0, grey=0.0, blur=0.0)


def open_evaluated_encoder(
    where: str, options: EvaluationOptions, reporter: Reporter, **foreign: Any
) -> EvaluatedEncoder:
    """`foreign`: what a file of another library does not say, as `open_encoder` takes it."""
    encoder = open_encoder(where, **foreign)
    if options.layer == PROJECTOR and PROJECTOR not in encoder.layers:
        encoder.projector = load_projector(where)
    encoder.check_layer(options.layer)  # before any data are read, which may take an hour
    evaluated = EvaluatedEncoder(where, encoder, options, reporter)
    run, recipe = evaluated.run, evaluated.recipe
    if run is not None and recipe is not None and (early := run.ends_early(recipe)):
        reporter.warn(f"{where}: {early}; the encoder judged is the last one that it saved")
    return evaluated
