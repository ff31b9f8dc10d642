"""Which images an encoder is evaluated on, and whether it was trained on any of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.data.opening import is_same_source, open_benchmark, open_source
from supancl.data.order import derive_seed
from supancl.data.sources import benchmarks
from supancl.data.sources.benchmark_rows import Use
from supancl.data.sources.libraries import READERS
from supancl.data.splits import SPLIT_SEED, Data, DataSpec, Source, Split, draw_stratified, prepare_data
from supancl.data.views.evaluation import View, evaluation_short_side
from supancl.errors import BadInput, plural
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.evaluate.naming import data_name, registered
from supancl.probes.features import name_classes
from supancl.training.preflight import check_same_data

CUT_FROM = {"fc100": "cifar100"}  # data sets that are made of another one's images
LIBRARY_NAMES = {"fgvcaircraft": "aircraft"}  # what libraries call them, where the registry has no such name


def check_kind(encoder: Encoder, split: Split, source: str) -> None:
    """Vectors are for a linear encoder, images of as many channels as it takes for any other."""
    pixels = split.batch(torch.zeros(1, dtype=torch.long)).pixels
    vectors = pixels.ndim == 2
    if vectors != (encoder.spec.name == "linear"):
        kind, wants = ("vectors", "images") if vectors else ("images", "vectors (toy)")
        raise BadInput(f"{source} holds {kind}, encoder {encoder.spec.name!r} takes {wants}; name other --data")
    if not vectors and pixels.shape[1] != encoder.spec.channels:
        raise BadInput(
            f"{source}: its images can be had in grey or in RGB, encoder {encoder.spec.name!r} takes "
            f"{plural(encoder.spec.channels, 'channel')}; give an encoder of 1 or 3, or a .npz of that "
            "many"
        )


def is_own(evaluated: EvaluatedEncoder, source: str | None) -> bool:
    """Whether the run was trained on this source."""
    return source is None or (evaluated.recipe is not None and is_same_source(source, evaluated.recipe.data.source))


def own_source(evaluated: EvaluatedEncoder, source: str | None) -> str:
    """The named source, or the one of the run itself."""
    return spec_for(evaluated, source).source


def spec_for(evaluated: EvaluatedEncoder, source: str | None) -> DataSpec:
    """The data settings for a source (None: the run's own); what the run held out of it stays held out."""
    own = None if evaluated.recipe is None else evaluated.recipe.data
    if source is None:
        if own is None:
            raise BadInput(f"{evaluated.where} is no run folder, so it brings no data; name some with --data")
        return own
    if own is None or not is_own(evaluated, source):
        return DataSpec(source=source)
    return replace(own, source=source, limit=None, leave_out=(), labelled=1.0, balanced=False)


def read_source(
    evaluated: EvaluatedEncoder, spec: DataSpec, view: View, use: Use | None = None, as_trained: bool = False
) -> Source:
    """Read a source as it is, or a data set of the registry (NAME@ROOT) with the splits of that use.

    Photographs are decoded no larger than the view needs, or with `as_trained` as `spec` says.
    """
    encoder, options, tell = evaluated.encoder, evaluated.options, evaluated.reporter.reading
    if not as_trained:
        spec = replace(
            spec,
            short_side=evaluation_short_side(encoder.size, view),
            resample="bicubic" if view == "whole" else "bilinear",
        )
    spec = DataSpec(
        source=spec.source,
        short_side=spec.short_side,
        cache=spec.cache,
        memory_gb=spec.memory_gb,
        stream=spec.stream,
        skip_bad_images=options.skip_bad_images or spec.skip_bad_images,
        resample=spec.resample,
    )
    name, root = registered(spec.source), spec.source.partition("@")[2]
    use = None if name is None else use or benchmarks.BENCHMARKS[name].uses[0]

    def read() -> Source:
        found = (
            open_source(spec, encoder.spec.channels, tell)
            if name is None
            else open_benchmark(name, root, encoder.spec.channels, spec, tell, use, options.partial)
        )
        for remark in found.remarks:
            evaluated.warn_once(remark)
        return found

    found = read() if options.sources is None else options.sources.get((spec, encoder.spec.channels, use), read)
    check_kind(encoder, next(iter(found.splits.values())), spec.source)
    return found


def data_for(evaluated: EvaluatedEncoder, source: str | None, view: View = "margin") -> Data:
    """The data of the named source, or of the run's own with what it held out and left out.

    For the margin view, the run's own source has the pixels that the run's monitor saw, from the same cache.
    Where the run was trained on another copy of the same data set, the test split is held out: val was trained on.
    """
    spec = spec_for(evaluated, source)
    found = read_source(evaluated, spec, view, as_trained=view == "margin" and is_own(evaluated, spec.source))
    check_unchanged(evaluated, spec.source, found)
    data = prepare_data(found, replace(spec, balanced=False))
    if data.test is not None and data.summary["held_out_from"] != "test" and test_is_apart(evaluated, spec.source):
        summary = data.summary | {"held_out": len(data.test), "held_out_from": "test"}
        data = replace(data, held_out=data.test, summary=summary)
    return data


def check_unchanged(evaluated: EvaluatedEncoder, source: str, found: Source) -> None:
    """Refuse a run's own source if it has changed: what the run held out is drawn again, and would be other images."""
    if evaluated.run is None or evaluated.recipe is None or not is_own(evaluated, source):
        return
    if not evaluated.run.read_data()[0]:
        return  # nobody wrote down what they were
    data = prepare_data(found, evaluated.recipe.data)
    check_same_data(
        evaluated.run, data, "bring them back, or name a source apart from it with --data", f"{evaluated.where}: "
    )


class EvaluationData(NamedTuple):
    """The data of one evaluation: what there is, and which images are tested."""

    source: str | None  # as it was named; None: the run's own
    where: str  # what messages call it
    data: Data
    images: Split  # those that are tested
    taken_from: str  # the split that they are from: train (they were held out of it), val or test
    split: str  # what a result calls them: held-out, test or train


def open_evaluation_data(
    evaluated: EvaluatedEncoder, source: str | None, split: str, view: View = "margin"
) -> EvaluationData:
    """`split` is held-out, test or train; it becomes test where a run held nothing out, which is noted."""
    data, where = data_for(evaluated, source, view), source or evaluated.where
    held_out_from = str(data.summary["held_out_from"])
    if split == "held-out" and not len(data.held_out) and data.test is not None:
        evaluated.reporter.note(f"{where}: nothing is held out (data.holdout = 0), so the test split is judged")
        split = "test"
    if split == "train":
        return EvaluationData(source, where, data, data.train, "train", split)
    if split == "held-out":
        return EvaluationData(source, where, data, data.held_out, held_out_from, split)
    if data.test is None:
        raise BadInput(f"{where} has no test split; leave --split out: a part held out of train is judged then")
    # where the test split is what is held out, `test` is no other choice than `held-out`
    return EvaluationData(source, where, data, data.test, "test", "held-out" if held_out_from == "test" else "test")


def three_splits(source: Source, spec: DataSpec) -> tuple[Split, Split, Split]:
    """train, val and test. A source without test or val is tested on the images that every run on it holds out."""
    splits, where = dict(source.splits), spec.source
    if "test" not in splits and "val" in splits:
        splits["test"] = splits.pop("val")
    if "test" not in splits:
        data = prepare_data(source, spec)
        if not len(data.held_out):
            raise BadInput(
                f"{where}: the run was trained on all of it (data.holdout = 0), so nothing is left to test "
                "on; name other data"
            )
        splits = {"train": data.train, "test": data.held_out}
    train = splits["train"]
    if "val" not in splits:
        train, splits["val"] = split_off(train, 0.2, "val", where)
    return train, splits["val"], splits["test"]


def split_off(train: Split, share: float, name: str, where: str) -> tuple[Split, Split]:
    known = train.take((train.labels >= 0).nonzero()[:, 0])
    chosen = draw_stratified(known.labels, share, derive_seed(SPLIT_SEED, len(name)))
    if not len(chosen):
        raise BadInput(
            f"{where}: too few labelled images to take {share:.0%} of each class out as {name}; add images "
            f"or a {name}/ folder"
        )
    rest = torch.ones(len(known), dtype=torch.bool)
    rest[chosen] = False
    return known.take(rest.nonzero()[:, 0]), known.take(chosen)


# --- the classes of a source ------------------------------------------------------------------------------------------


def check_same(classes: Sequence[str], where: str, splits: Mapping[str, Tensor], may_lack: bool = False) -> None:
    """All splits hold the classes of the first one, two at least; with `may_lack` some of them are enough."""
    sets = {name: set(labels[labels >= 0].tolist()) for name, labels in splits.items()}
    first, known = next(iter(sets.items()))
    for name, found in sets.items():
        if not found:
            raise BadInput(f"{where}: no labelled image in {name}, so there is nothing to compare; label some of them")
    if len(known) < 2:
        raise BadInput(
            f"{where}: only class {classes[next(iter(known))]!r} in {first}; a classifier needs at least two classes"
        )
    for name, found in sets.items():
        if known - found and not may_lack:
            raise BadInput(
                f"{where}: no image of {named(classes, known - found)} in {name}, which {first} has; add "
                "images of it, or leave the class out of every split"
            )
        if found - known:
            raise BadInput(
                f"{where}: {named(classes, found - known)} in {name} has no image in {first}; the label "
                "sets of the splits must be equal"
            )


def warn_unknown(evaluated: EvaluatedEncoder, classes: Sequence[str], where: str, known: Tensor, asked: Tensor) -> None:
    """Warn of images whose class has no training image: they count as wrong."""
    strange = asked[~torch.isin(asked, known)]
    if len(strange):
        evaluated.reporter.warn(
            f"{where}: {named(classes, set(strange.tolist()))} has no training image; its "
            f"{plural(len(strange), 'image to judge counts', 'images to judge count')} as wrong"
        )


def named(classes: Sequence[str], labels: set[int]) -> str:
    """'class 'cat'', or 'classes 'cat', 'dog' and 3 more'."""
    return name_classes([repr(classes[label]) for label in sorted(labels)])


# --- images that were trained on --------------------------------------------------------------------------------------


class SourceIdentity(NamedTuple):
    """The file or folder that a source reads, and the data set of the registry that it is, as far as known."""

    place: Path | None = None
    data_set: str | None = None


def identify_source(source: str) -> SourceIdentity:
    """By its path, and by its name where that is the registry's: copies of a data set lie in several places."""
    name, root = registered(source), source.partition("@")[2]
    if name is not None:
        try:
            return SourceIdentity(benchmark_place(name, root).resolve(), CUT_FROM.get(name, name))
        except BadInput:
            return SourceIdentity(None, CUT_FROM.get(name, name))
    path = Path(source)
    if source.partition(":")[0] in READERS and not path.exists():
        return SourceIdentity(None, benchmark_called(data_name(source)))
    known = [name for name, row in benchmarks.BENCHMARKS.items() if path.suffix and path.name in row.arrays]
    return SourceIdentity(path.resolve() if source and path.exists() else None, known[0] if known else None)


def data_set_of(source: str) -> str | None:
    """The data set of the registry that a source is by its name: NAME@ROOT, a library's name, a file's or a folder's.

    >>> [data_set_of(source) for source in ("cifar10@data", "torchvision:CIFAR100@data", "photos/cifar-10.npz")]
    ['cifar10', 'cifar100', 'cifar10']
    """
    return registered(source) or identify_source(source).data_set or benchmark_called(data_name(source))


def benchmark_called(name: str) -> str | None:
    """The data set of the registry that a library calls so, by its name or that of its folder, however it is spelled.

    >>> benchmark_called("OxfordIIITPet"), benchmark_called("cub_200_2011"), benchmark_called("mnist")
    ('pets', 'cub200', None)
    """
    spelled = _bare(name)
    for known, row in benchmarks.BENCHMARKS.items():
        # of ImageNet-100 by its name alone: what lies in a folder `imagenet` has other classes too
        folders = () if row.pretraining else tuple(Path(folder).name for folder in row.folders)
        if spelled in {_bare(each) for each in (known, *folders)}:
            return known
    return LIBRARY_NAMES.get(spelled)


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def benchmark_place(name: str, root: Path | str) -> Path:
    """Its folder, or, where ROOT itself may hold other things, the one file with its arrays."""
    place = benchmarks.find_benchmark(name, root)
    mark = array_mark(name, root)
    return place.folder if mark is None or mark.suffix != ".npz" else mark


def array_mark(name: str, root: Path | str) -> Path | None:
    """The file by which a data set of arrays is known; None for one of image files."""
    place = benchmarks.find_benchmark(name, root)
    if place.arrays is None:
        return None
    return next(place.folder / mark for mark in benchmarks.benchmark(name).arrays if (place.folder / mark).is_file())


def test_is_apart(evaluated: EvaluatedEncoder, source: str) -> bool:
    """Whether run and source are the same data set with the same test split, which no run is trained on."""
    if evaluated.recipe is None or is_own(evaluated, source):
        return False
    own = evaluated.recipe.data.source
    mine, theirs = identify_source(own).data_set, identify_source(source).data_set
    if mine is None or mine != theirs:
        return False
    if registered(own) is None and _undivided(evaluated, mine):
        return False
    drawn = benchmarks.BENCHMARKS[mine].per_class is not None  # by the registry, so only it has that test split
    return not drawn or (registered(own) is not None and registered(source) is not None)


def _undivided(evaluated: EvaluatedEncoder, data_set: str) -> bool:
    """Whether the run's source has one split, in which the test images may be; torchvision's SUN397 is such a one."""
    assert evaluated.recipe is not None
    assert evaluated.run is not None
    own = evaluated.recipe.data
    one_split = own.holdout is None and evaluated.run.read_data()[0].get("held_out_from") == "train"
    return one_split or (data_set == "sun397" and own.source.startswith("torchvision:"))


def shares_images(evaluated: EvaluatedEncoder, source: str | None) -> bool:
    """Whether the run was trained on this source, a copy of it, or a part of it, as far as known."""
    if evaluated.recipe is None:
        return False
    if source is None or is_own(evaluated, source):
        return True
    mine, theirs = identify_source(evaluated.recipe.data.source), identify_source(source)
    return (mine.data_set is not None and mine.data_set == theirs.data_set) or _overlap(mine.place, theirs.place)


def was_trained_on(evaluated: EvaluatedEncoder, source: str, taken_from: str, every: bool = False) -> bool:
    """Whether images judged may be among those the run was trained on; it is said where they are.

    What a run held out of its own source was not, unless `every` image of it is judged; those of the same files under
    another name, or of FC100 after CIFAR100, may be.
    """
    if evaluated.recipe is None:
        return False
    own = evaluated.recipe.data.source
    if is_own(evaluated, source):
        found = every
    else:
        found = shares_images(evaluated, source) and not (taken_from == "test" and test_is_apart(evaluated, source))
    if found:
        evaluated.reporter.warn(
            f"{source}: the run was trained on some of these images ({own}); the result is marked, "
            "and tables pass it over"
        )
    return found


def _overlap(one: Path | None, other: Path | None) -> bool:
    """The same file or folder, or a folder within the other."""
    if one is None or other is None:
        return False
    return one == other or (one.is_dir() and other.is_dir() and (one in other.parents or other in one.parents))


def is_incomplete(source: str, remarks: Sequence[str], skipped: Sequence[str]) -> bool:
    """Whether a data set of the registry lacks images, so that figures on it compare with no published ones."""
    return registered(source) is not None and (bool(skipped) or any(" is not whole" in text for text in remarks))
