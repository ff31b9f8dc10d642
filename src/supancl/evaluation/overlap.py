"""Whether images of a source were trained on: the same source, data set, folder, files or pixels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from supancl.data.listing import hash_files
from supancl.data.opening import is_same_source
from supancl.data.sources import benchmarks
from supancl.data.sources.libraries import READERS
from supancl.data.splits import Split
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import data_name, registered_name

CUT_FROM = {"fc100": "cifar100"}  # data sets that consist of images of another one
EQUAL_BY_CHANCE = 0.01  # fraction of images whose checksums of 32 bits may be equal though their pixels are not
LIBRARY_NAMES = {"fgvcaircraft": "aircraft"}  # names in libraries -> names of benchmarks, where they differ


def is_run_source(evaluated: EvaluatedEncoder, source: str | None) -> bool:
    """Whether the run was trained on this source."""
    data = None if evaluated.recipe is None else evaluated.recipe.data
    # one of several joined sources is not all of the run's data
    return source is None or (data is not None and not data.joined and is_same_source(source, data.source))


class SourceIdentity(NamedTuple):
    """The file or folder of a source, and its benchmark's name, as far as known."""

    path: Path | None = None
    data_set: str | None = None


def identify_source(source: str) -> SourceIdentity:
    """Identify a source by path, and by benchmark name: there may be several copies of a data set."""
    name, root = registered_name(source), source.partition("@")[2]
    if name is not None:
        try:
            return SourceIdentity(benchmark_path(name, root).resolve(), CUT_FROM.get(name, name))
        except BadInput:
            return SourceIdentity(None, CUT_FROM.get(name, name))
    path = Path(source)
    if source.partition(":")[0] in READERS and not path.exists():
        return SourceIdentity(None, find_benchmark_by_name(data_name(source)))
    benchmark_names = [name for name, row in benchmarks.BENCHMARKS.items() if path.suffix and path.name in row.arrays]
    return SourceIdentity(
        path.resolve() if source and path.exists() else None, benchmark_names[0] if benchmark_names else None
    )


def data_set_of(source: str) -> str | None:
    """The benchmark that a source is, by its name: NAME@ROOT, or the name of a library's data set, a file or folder.

    >>> [data_set_of(source) for source in ("cifar10@data", "torchvision:CIFAR100@data", "photos/cifar-10.npz")]
    ['cifar10', 'cifar100', 'cifar10']
    """
    return registered_name(source) or identify_source(source).data_set or find_benchmark_by_name(data_name(source))


def find_benchmark_by_name(name: str) -> str | None:
    """The benchmark with this name, folder or library name; case and punctuation do not matter.

    >>> [find_benchmark_by_name(name) for name in ("OxfordIIITPet", "cub_200_2011", "mnist")]
    ['pets', 'cub200', None]
    """
    target = _letters_and_digits(name)
    for benchmark, row in benchmarks.BENCHMARKS.items():
        # ImageNet-100 only by its name: a folder `imagenet` has other classes too
        folders = () if row.pretraining else tuple(Path(folder).name for folder in row.folders)
        if target in {_letters_and_digits(candidate) for candidate in (benchmark, *folders)}:
            return benchmark
    return LIBRARY_NAMES.get(target)


def _letters_and_digits(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def benchmark_path(name: str, root: Path | str) -> Path:
    """The folder of a benchmark, or the .npz file with its arrays: ROOT may hold other things."""
    benchmark = benchmarks.find_benchmark(name, root)
    array = array_file(name, root)
    return benchmark.folder if array is None or array.suffix != ".npz" else array


def array_file(name: str, root: Path | str) -> Path | None:
    """The file that identifies a benchmark of arrays; None for one of image files."""
    benchmark = benchmarks.find_benchmark(name, root)
    if benchmark.arrays is None:
        return None
    return next(
        benchmark.folder / file_name
        for file_name in benchmarks.benchmark(name).arrays
        if (benchmark.folder / file_name).is_file()
    )


def has_separate_test(evaluated: EvaluatedEncoder, source: str) -> bool:
    """Whether run and source are copies of a data set with the same test split, on which no run is trained."""
    if evaluated.recipe is None or is_run_source(evaluated, source):
        return False
    run_source = evaluated.recipe.data.source
    data_set, other_data_set = identify_source(run_source).data_set, identify_source(source).data_set
    if data_set is None or data_set != other_data_set:
        return False
    if registered_name(run_source) is None and _has_one_split(evaluated, data_set):
        return False
    # the paper draws some test splits itself, so other copies of the data do not have them
    is_drawn_split = benchmarks.BENCHMARKS[data_set].per_class is not None
    return not is_drawn_split or (registered_name(run_source) is not None and registered_name(source) is not None)


def _has_one_split(evaluated: EvaluatedEncoder, data_set: str) -> bool:
    """Whether the run's source has one split, which may contain the test images, like torchvision's SUN397."""
    assert evaluated.recipe is not None
    assert evaluated.run is not None
    run_data = evaluated.recipe.data
    one_split = run_data.holdout is None and evaluated.run.read_data()[0].get("held_out_from") == "train"
    return one_split or (data_set == "sun397" and run_data.source.startswith("torchvision:"))


def shares_images(evaluated: EvaluatedEncoder, source: str | None, images: Sequence[Split]) -> bool:
    """Whether the run was trained on this source, a copy or a subset of it, or on some of these images of it."""
    if evaluated.recipe is None:
        return False
    if source is None or is_run_source(evaluated, source):
        return True
    identity = identify_source(source)
    run_identities = map(identify_source, evaluated.recipe.data.all_sources)
    return (
        any(
            (own.data_set is not None and own.data_set == identity.data_set) or _paths_overlap(own.path, identity.path)
            for own in run_identities
        )
        or shares_pixels(evaluated, images)
        or _shares_files(evaluated, source, images)
    )


def shares_pixels(evaluated: EvaluatedEncoder, images: Sequence[Split]) -> bool:
    """Whether some of these images have the pixels of training images of the run, wherever they lie now."""
    trained = evaluated.trained_checksums
    if not len(trained):
        return False
    contents = [content.values for split in images if len(split) and (content := split.content()) is not None]
    return bool(contents) and float(_is_among(trained, np.concatenate(contents)).mean()) > EQUAL_BY_CHANCE


def _shares_files(evaluated: EvaluatedEncoder, source: str, images: Sequence[Split]) -> bool:
    """Whether some of these images are files that the run was trained on: it may have decoded them at another size."""
    assert evaluated.recipe is not None
    folder = _folder_of_files(source)
    if not any(_paths_overlap(folder, _folder_of_files(own)) for own in evaluated.recipe.data.all_sources):
        return False  # listing the run's files takes long if they are millions
    names = [name for split in images for name in split.names_at(torch.arange(len(split)))]
    return bool(_is_among(evaluated.trained_files, hash_files(names)).any())


def _is_among(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Whether each value is one of the ascending ones; `np.isin` would sort millions of them again."""
    if not len(ascending):
        return np.zeros(len(values), bool)
    nearest = np.searchsorted(ascending, values).clip(max=len(ascending) - 1)
    is_equal: np.ndarray = ascending[nearest] == values
    return is_equal


def _folder_of_files(source: str) -> Path | None:
    """The folder that all image files of a source are in or below; None if it has no such files, as arrays.

    The files of a table may be anywhere.
    """
    path = identify_source(source).path
    if path is None:
        return Path(source.partition("@")[2]).resolve() if source.startswith("torchvision:") else None
    if path.is_dir():
        return path
    return Path(path.anchor) if path.suffix.lower() == ".csv" else None


def warn_if_trained_on(
    evaluated: EvaluatedEncoder, source: str | None, taken_from: str, drawn_from: Sequence[Split], every: bool = False
) -> bool:
    """Whether tested images may be among the run's training images; warns if so.

    `drawn_from` are all images of the split that the tested ones were taken from.

    Images that a run held out of its own source are not, unless `every` image is tested. Images of the same files under
    another name, or of FC100 after CIFAR100, may be.
    """
    if evaluated.recipe is None:
        return False
    run_source = evaluated.recipe.data.source
    if is_run_source(evaluated, source) or source is None:
        overlaps = every
    else:
        overlaps = shares_images(evaluated, source, drawn_from) and not (
            taken_from == "test" and has_separate_test(evaluated, source)
        )
    if overlaps:
        evaluated.reporter.warn(
            f"{source or run_source}: the run was trained on some of these images ({run_source}); the result is "
            "marked, and tables leave it out"
        )
    return overlaps


def _paths_overlap(first: Path | None, second: Path | None) -> bool:
    """Whether two paths are equal, or one is a folder within the other."""
    if first is None or second is None:
        return False
    return first == second or (
        first.is_dir() and second.is_dir() and (first in second.parents or second in first.parents)
    )


def is_incomplete(source: str, remarks: Sequence[str], skipped: Mapping[str, str]) -> bool:
    """Whether a benchmark lacks images, so that results do not compare with published ones."""
    has_remark = any(benchmarks.INCOMPLETE in remark for remark in remarks)
    return registered_name(source) is not None and (bool(skipped) or has_remark)
