"""The labelled images that new ones are compared with: their features, kept in the run folder after the first time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from supancl.data.splits import Data, Split
from supancl.data.views.evaluation import View
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.feature_cache import CACHE_VERSION
from supancl.evaluation.overlap import shares_pixels
from supancl.evaluation.sources import data_for
from supancl.files import make_inner_folder, reason, why_unwritable
from supancl.probes import Features
from supancl.runs.encoder_file import ClassifierFile, FeatureFile, load_features, save_features

KEPT_FOLDER = "predict"  # inside a run folder
MOST_KEPT_BYTES = 2**29  # larger features are not kept in the run, only in the cache
T = TypeVar("T", ClassifierFile, FeatureFile)


class References(NamedTuple):
    """Labelled images to compare with, labelled images that pretraining held out, and the names of both's classes."""

    features: Features
    held_out: Features
    classes: tuple[str, ...]
    may_choose: bool  # whether held-out images may choose a setting: those of a test split may not
    made_from: str  # a digest of weights, data and view
    is_kept: bool = False  # whether they are what an earlier call has kept, so that no image was read now

    def with_held_out(self) -> References:
        """The held-out images as references too: an encoder that has not seen labels is cross-validated over all."""
        if not len(self.held_out.labels):
            return self
        features = self.features.and_also(self.held_out)
        return self._replace(features=features, held_out=features.take(torch.arange(0)))


def load_references(
    evaluated: EvaluatedEncoder, source: str | None, view: View, name: str, several_labels: bool = False
) -> References:  # fmt: skip
    """The labelled training images of `source`, or if None of the run, and those that it held out.

    Those of a run are kept in its folder as `name`, so that its data are read only once. They are the images and labels
    that the run was trained with; a named source is taken as it is now. Several labels per image are refused unless the
    caller can use them.
    """
    made_from = _describe(evaluated, view) if source is None else ""
    path = kept_path(evaluated, name) if made_from else None
    content = None if path is None else read_kept(evaluated, path, load_features, made_from)
    is_kept = content is not None
    if content is not None and evaluated.run is not None:
        held_out_from = evaluated.run.read_data()[0].get("held_out_from")
    else:
        way_out = "restore them, or name labelled images with references SOURCE" if source is None else None
        data = data_for(evaluated, source, view, several_labels, way_out)
        _check_labels(data, source or evaluated.location)
        if source is not None:
            _warn_trained_on(evaluated, source, data.held_out)
        held_out_from = data.summary["held_out_from"]
        splits = [split.labelled() for split in (data.train, data.held_out)]
        references, held_out = (_features(evaluated, split, view) for split in splits)
        both = references.pairs, held_out.pairs
        pairs = None if both[0] is None or both[1] is None else (both[0], both[1])
        content = made = FeatureFile(references.pair, held_out.pair, data.classes, made_from, pairs)
        if path is not None and references.values.nbytes + held_out.values.nbytes <= MOST_KEPT_BYTES:
            keep(evaluated, path, lambda file: save_features(file, made))
    features, held_out = (
        Features(*kept, None if content.pairs is None else content.pairs[number])
        for number, kept in enumerate((content.references, content.held_out))
    )
    return References(features, held_out, content.classes, held_out_from != "test", made_from, is_kept)


def _warn_trained_on(evaluated: EvaluatedEncoder, source: str, held_out: Split) -> None:
    """Warn if images that the confidence is fitted on were trained on, with their labels: it would be too high."""
    recipe = evaluated.recipe
    if recipe is not None and recipe.loss.supervised and len(held_out) and shares_pixels(evaluated, (held_out,)):
        evaluated.warn_once(
            f"{source}: the run was trained on some of the images that are held out of it here, so the confidence, and "
            "how often labels are right, are too high"
        )


def _features(evaluated: EvaluatedEncoder, split: Split, view: View) -> Features:
    if len(split):
        return evaluated.features(split, view)
    return Features(torch.empty(0, 0), split.labels, split.all_labels.pairs)


def _check_labels(data: Data, location: str) -> None:
    present = data.train.class_ids()
    if len(present) < 2:
        only = f"only class {data.classes[present[0]]!r} has labelled images" if present else "no image has a label"
        raise BadInput(
            f"{location}: {only} to compare with, and predicting needs two classes; name labelled images with "
            "references SOURCE"
        )


# --- what is kept in the run folder -----------------------------------------------------------------------------------


def _describe(evaluated: EvaluatedEncoder, view: View) -> str:
    """A digest of everything that the features of a run's images depend on; empty if the run does not say its data."""
    assert evaluated.run is not None
    data = evaluated.run.read_data()[0]
    if not data.get("fingerprint"):
        return ""
    settings = evaluated.options.describe(view, **evaluated.projector_key)
    content = [CACHE_VERSION, evaluated.weights, settings, data["fingerprint"], str(data.get("content"))]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def kept_path(evaluated: EvaluatedEncoder, name: str) -> Path | None:
    """The file of this name that a run keeps for predicting; None without a run."""
    return None if evaluated.run is None else evaluated.run.path / KEPT_FOLDER / f"{name}.safetensors"


def read_kept(evaluated: EvaluatedEncoder, path: Path, load: Callable[[Path], T], made_from: str) -> T | None:
    """What was kept, if it is intact and made from the same weights and data."""
    if not path.exists():
        return None
    try:
        content = load(path)
    except BadInput as error:
        evaluated.warn_once(f"{error} (it is made again)")
        return None
    return content if content.made_from == made_from else None


def keep(evaluated: EvaluatedEncoder, path: Path, write: Callable[[Path], None]) -> None:
    """Write a file into the run folder. A folder that cannot be written to gets a warning; a link is refused."""
    try:
        make_inner_folder(path.parent)
    except OSError as error:
        why = reason(error)
    else:
        why = why_unwritable(path.parent)
    if why:
        evaluated.warn_once(f"{path} cannot be written ({why}), so the next call computes it again")
    else:
        write(path)
