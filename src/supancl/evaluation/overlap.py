"""Whether images of a source were trained on: the same source, or images of the same content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from supancl.data.opening import is_same_source
from supancl.data.sources import benchmarks
from supancl.data.splits import Split
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import data_name, registered_name

EQUAL_BY_CHANCE = 0.01  # fraction of images whose checksums of 32 bits may be equal though their pixels are not
LIBRARY_NAMES = {"fgvcaircraft": "aircraft"}  # names in libraries -> names of benchmarks, where they differ


def is_run_source(evaluated: EvaluatedEncoder, source: str | None) -> bool:
    """Whether the run was trained on this source."""
    data = None if evaluated.recipe is None else evaluated.recipe.data
    # one of several joined sources is not all of the run's data
    return source is None or (data is not None and not data.joined and is_same_source(source, data.source))


def shares_images(evaluated: EvaluatedEncoder, source: str | None, images: Sequence[Split]) -> bool:
    """Whether the run was trained on this source, on a folder around or within it, or on images of this content."""
    if evaluated.recipe is None:
        return False
    if source is None or is_run_source(evaluated, source):
        return True
    own_paths = [Path(own).resolve() for own in evaluated.recipe.data.all_sources if own and Path(own).exists()]
    path = Path(source).resolve()
    is_nested = any(path == own or path in own.parents or own in path.parents for own in own_paths)
    return (Path(source).exists() and is_nested) or shares_pixels(evaluated, images)


def shares_pixels(evaluated: EvaluatedEncoder, images: Sequence[Split]) -> bool:
    """Whether some of these images have the pixels of training images of the run, wherever they lie now."""
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
    is_own = source is None or is_run_source(evaluated, source)
    overlaps = every if is_own else shares_images(evaluated, source, drawn_from)
    if overlaps:
        run_source = evaluated.recipe.data.source
        evaluated.reporter.warn(
            f"{source or run_source}: the run was trained on some of these images ({run_source}); the result is "
            "marked, and tables leave it out"
        )
    return overlaps


def data_set_of(source: str) -> str | None:
    """The benchmark that a source is, by its name: NAME@ROOT, or the name of a library's data set, a file or folder.

    Case and punctuation do not matter.

    >>> [data_set_of(source) for source in ("cifar10@data", "torchvision:CIFAR100@data", "photos/cifar-10.npz")]
    ['cifar10', 'cifar100', 'cifar10']
    >>> [data_set_of(source) for source in ("OxfordIIITPet", "cub_200_2011", "mnist")]
    ['pets', 'cub200', None]
    """
    target = _letters_and_digits(data_name(source))
    for benchmark, row in benchmarks.BENCHMARKS.items():
        # ImageNet-100 only by its name: a folder `imagenet` has other classes too
        folders = () if row.pretraining else tuple(Path(folder).name for folder in row.folders)
        if target in {_letters_and_digits(candidate) for candidate in (benchmark, *folders)}:
            return benchmark
    return registered_name(source) or LIBRARY_NAMES.get(target)


def _letters_and_digits(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_incomplete(source: str, remarks: Sequence[str], skipped: Mapping[str, str]) -> bool:
    """Whether a benchmark lacks images, so that results do not compare with published ones."""
    has_remark = any(isinstance(remark, benchmarks.Incomplete) for remark in remarks)
    return registered_name(source) is not None and (bool(skipped) or has_remark)
