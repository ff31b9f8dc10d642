"""Who is judged: an encoder with its features, and where its results are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from supancl.core.encoders import PROJECTOR, Encoder
from supancl.data.splits import Source, Split, same_source
from supancl.data.store.stream import stream_remarks
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, counted
from supancl.evaluate.feature_cache import KeptFeatures, encoder_key
from supancl.evaluate.naming import group_of, result_name, short, source_of
from supancl.probes import Features, embed
from supancl.probes.features import View
from supancl.recipes import Recipe
from supancl.reporter import Reporter
from supancl.training.preflight import pick_device
from supancl.weights.encoder_file import load_projector
from supancl.weights.importing import open_encoder
from supancl.weights.run_folder import RunFolder


class Shelf:
    """The source opened last: the next protocol, or the next encoder, often wants the same one."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.source: Source | None = None
        self.said: set[str] = set()  # remarks that need no repeating for every protocol and encoder

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

    def described(self, view: View, **more: str) -> str:
        return json.dumps({"layer": self.layer, "normalize": self.normalize, "view": view, **more}, sort_keys=True)


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
    def projector(self) -> dict[str, str]:
        """A checksum of the projector's weights, where features go through it; else nothing."""
        if self.encoder.projector is None:
            return {}
        content = hashlib.sha256()
        for name, value in sorted(self.encoder.projector.state_dict().items()):
            content.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            content.update(value.cpu().contiguous().numpy().tobytes())
        return {"projector": content.hexdigest()[:24]}

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
        look, path = self.look, None
        if self.kept is not None and len(split):
            path = self.kept.path(self.weights, split, look.described(view, **self.projector))
        if path is not None and self.kept is not None:
            found = self.kept.read(path, len(split))
            if found is not None:
                return Features(found, split.labels.clone())
        taken = embed(
            self.encoder, split, look.device, look.batch_size, look.layer, look.normalize, view, self.reporter.reading
        )
        for remark in stream_remarks(split.store):  # what was replaced, as training says it
            self.warn_once(remark)
        self._check(taken, split)
        if path is not None and self.kept is not None:
            why = self.kept.write(path, taken.values)
            if why:
                self.warn_once(
                    f"features are not kept in {self.kept.folder} ({why}), so they are taken anew each "
                    "time; name another folder in SUPANCL_CACHE, or pass --no-cache"
                )
        return taken

    def _check(self, taken: Features, split: Split) -> None:
        """Features that are no numbers are not kept, and nothing is measured on them."""
        faulty = (~torch.isfinite(taken.values)).any(1).nonzero()[:, 0]
        if len(faulty):
            row = int(faulty[0])
            kind = "NaN" if bool(torch.isnan(taken.values[row]).any()) else "an infinite value"
            more = f", and those of {counted(len(faulty) - 1, 'more image')}," if len(faulty) > 1 else ""
            raise BadInput(
                f"{self.where}: the features of {split.named(faulty[:1])[0]}{more} hold {kind}; "
                "take weights from before the run diverged, or leave that image out"
            )

    def warn_once(self, text: str) -> None:
        """What need not be repeated for every encoder that meets the same data."""
        said = set() if self.look.shelf is None else self.look.shelf.said
        if text not in said:
            self.reporter.warn(text)
            said.add(text)

    def keep_result(self, base: str, result: dict[str, Any]) -> None:
        """In the run folder, if it is one; what another measurement, or one of other data, wrote there stays."""
        if self.run is None:
            return
        name, mine = result_name(base, result), source_of(result)
        theirs = source_of(self._kept(name))
        if mine and theirs and not same_source(mine, theirs):
            name = f"{name}-{short(mine)}"
        self.run.write_evaluation(name, result)

    def _kept(self, name: str) -> dict[str, Any]:
        assert self.run is not None
        try:
            content = json.loads((self.run.evaluations / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def plain_crops(subject: Subject, scale: tuple[float, float]) -> Crops:
    """Random crops without changes of colour; flipped unless the run's recipe says that a flip is another thing."""
    views = None if subject.recipe is None else subject.recipe.views
    flip = views.flip if isinstance(views, Crops) else 0.5
    return Crops(size=subject.encoder.size, scale=scale, flip=flip, jitter=0.0, grey=0.0, blur=0.0)


def open_subject(where: str, look: Look, reporter: Reporter, **foreign: Any) -> Subject:
    encoder = open_encoder(where, **foreign)
    if look.layer == PROJECTOR and PROJECTOR not in encoder.layers:
        encoder.projector = load_projector(where)
    subject = Subject(where, encoder, look, reporter)
    subject.encoder.check_layer(look.layer)  # before any data are read, which may take an hour
    if subject.run is not None and subject.recipe is not None and (early := subject.run.ends_early(subject.recipe)):
        reporter.warn(f"{where}: {early}; the encoder judged is the last one that it saved")
    return subject


def make_look(device: str, **options: Any) -> Look:
    return Look(pick_device(device), **options)
