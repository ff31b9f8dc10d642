"""Which images an encoder is evaluated on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.data.labels import Level, take_each_level, with_leaf_labels
from supancl.data.opening import open_benchmark, open_source
from supancl.data.order import derive_seed
from supancl.data.preparing import SPLIT_SEED, draw_stratified, prepare_data
from supancl.data.sources import benchmarks
from supancl.data.sources.benchmark_rows import Use
from supancl.data.splits import Data, DataSpec, Source, Split
from supancl.data.views.evaluation import View, evaluation_short_side
from supancl.errors import BadInput, NoLevels, plural
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import registered_name
from supancl.evaluation.overlap import is_run_source
from supancl.probes.features import Features, name_classes
from supancl.reporter import report_to
from supancl.runs.folder import check_same_content, check_same_data

OTHER_DATA = "restore them, or name a different source with data"


def check_input_kind(encoder: Encoder, split: Split, source: str) -> None:
    """Check that a linear encoder gets vectors, and any other images with its number of channels."""
    pixels = split.batch(torch.zeros(1, dtype=torch.long)).pixels
    vectors = pixels.ndim == 2
    if vectors != (encoder.spec.name == "linear"):
        kind, expected = ("vectors", "images") if vectors else ("images", "vectors (toy)")
        raise BadInput(f"{source} holds {kind}, encoder {encoder.spec.name!r} takes {expected}; choose other data")
    if not vectors and pixels.shape[1] != encoder.spec.channels:
        raise BadInput(
            f"{source}: its images can be read in grey or RGB, but encoder {encoder.spec.name!r} takes "
            f"{plural(encoder.spec.channels, 'channel')}; give an encoder with 1 or 3, or a .npz with that "
            "many"
        )


def resolve_source(evaluated: EvaluatedEncoder, source: str | None) -> str:
    """The source, or if None the run's own."""
    return spec_for(evaluated, source).source


def spec_for(evaluated: EvaluatedEncoder, source: str | None) -> DataSpec:
    """The data settings for a source (None: the run's own), with the run's held-out images."""
    run_data = None if evaluated.recipe is None else evaluated.recipe.data
    if source is None:
        if run_data is None:
            raise BadInput(f"{evaluated.location} is not a run folder, so it has no data; name some with data")
        return run_data
    if run_data is None or not is_run_source(evaluated, source):
        columns = evaluated.options.columns if source.lower().endswith(".csv") else ""
        written = run_data or DataSpec()  # labels are probably written as in the run's own data
        return DataSpec(source=source, columns=columns, max_labels=written.max_labels, hierarchy=written.hierarchy)
    return replace(run_data.whole(), source=source)


def read_source(
    evaluated: EvaluatedEncoder,
    spec: DataSpec,
    view: View,
    use: Use | None = None,
    as_trained: bool = False,
    several_labels: bool = False,
) -> Source:
    """Read a source, or a benchmark (NAME@ROOT) with the splits for `use`.

    Photographs are decoded no larger than the view needs, or with `as_trained` as in `spec`. Several labels per image
    are refused unless the caller can use them, or unless they are a hierarchy, of which each level has one.
    """
    encoder, options = evaluated.encoder, evaluated.options
    spec = _how_to_read(evaluated, spec, None if as_trained else view)
    name, root = None if spec.joined else registered_name(spec.source), spec.source.partition("@")[2]
    use = None if name is None else use or benchmarks.BENCHMARKS[name].uses[0]

    def open_with(spec: DataSpec) -> Source:
        with report_to(evaluated.reporter):
            if name is None:
                return open_source(spec, encoder.spec.channels)
            return open_benchmark(name, root, encoder.spec.channels, spec, use, options.partial)

    def read() -> Source:
        try:
            data = open_with(spec)
        except NoLevels:
            if is_run_source(evaluated, spec.source):
                raise
            evaluated.reporter.note(f"{spec.source}: its classes have no levels, unlike those of the run")
            data = open_with(without_hierarchy(spec))
        for remark in data.remarks:
            evaluated.warn_once(remark)
        return data

    data = read() if options.sources is None else options.sources.get((spec, encoder.spec.channels, use), read)
    first = next(iter(data.splits.values()))
    check_input_kind(encoder, first, spec.source)
    if not several_labels and not data.levels:
        first.all_labels.check_single(spec.source, "this evaluation")
    return data


def _how_to_read(evaluated: EvaluatedEncoder, spec: DataSpec, view: View | None) -> DataSpec:
    """The settings that say how images are read, without those that choose among them; None: as for training."""
    short_side, resample = spec.short_side, spec.resample
    if view is not None:
        short_side = evaluation_short_side(evaluated.encoder.size, view)
        resample = "bicubic" if view == "whole" else "bilinear"
    return DataSpec(
        source=spec.source,
        joined=spec.joined,
        columns=spec.columns,
        short_side=short_side,
        cache=spec.cache,
        memory_gb=spec.memory_gb,
        stream=spec.stream,
        max_labels=spec.max_labels,
        hierarchy=spec.hierarchy,
        level_weights=spec.level_weights,
        skip_bad_images=evaluated.options.skip_bad_images or spec.skip_bad_images,
        resample=resample,
    )


def without_hierarchy(spec: DataSpec) -> DataSpec:
    """The settings for a source that has its levels already, or has none."""
    return replace(spec, hierarchy="none", level_weights=())


def data_for(
    evaluated: EvaluatedEncoder,
    source: str | None,
    view: View = "margin",
    several_labels: bool = False,
    way_out: str | None = OTHER_DATA,
) -> Data:
    """The data of a source, or if None the run's own, with the images it held out and left out.

    For the margin view, the run's own source has the same pixels as the monitor, from the same cache.
    Of a hierarchy the labels are the leaves. Other images with several labels are refused unless the caller can use
    them. So is the run's own source if it has changed, with this way out, unless that is None.
    """
    return with_leaf_labels(_read_data(evaluated, source, view, several_labels, way_out))


def _read_data(
    evaluated: EvaluatedEncoder,
    source: str | None,
    view: View,
    several_labels: bool = False,
    way_out: str | None = OTHER_DATA,
) -> Data:
    """`data_for` with the labels of all levels."""
    spec = spec_for(evaluated, source)
    as_trained = view == "margin" and is_run_source(evaluated, source)
    source_data = read_source(evaluated, spec, view, as_trained=as_trained, several_labels=several_labels)
    if way_out is not None:
        check_unchanged(evaluated, source, source_data, as_trained, way_out)
    return prepare_data(source_data, replace(without_hierarchy(spec), balanced=False))


def check_unchanged(
    evaluated: EvaluatedEncoder,
    source: str | None,
    source_data: Source,
    as_trained: bool = False,
    way_out: str = OTHER_DATA,
) -> None:
    """Refuse a run's own source if it has changed: the held-out images would be different ones. Images that were
    replaced under the same names are noticed if they were read as for training."""
    if evaluated.run is None or evaluated.recipe is None or not is_run_source(evaluated, source):
        return
    if not evaluated.run.read_data()[0]:
        return  # old runs have no description to compare
    data = prepare_data(source_data, evaluated.recipe.data)
    check_same_data(evaluated.run, data, way_out, f"{evaluated.location}: ")
    if as_trained and data.content is not None and evaluated.run.read_data()[0].get("content"):
        for remark in check_same_content(evaluated.run, data, way_out):
            evaluated.warn_once(remark)


class EvaluationData(NamedTuple):
    """The data of one evaluation, and which images are tested."""

    source: str | None  # as requested; None: the run's own
    location: str  # for messages
    data: Data
    images: Split  # tested images
    taken_from: str  # their split: train (they were held out of it), val or test
    split: str  # their name in results: held-out, test or train
    # of a hierarchy: the same images on each level, the coarsest first; None for a level that has these labels
    levels: tuple[EvaluationData | None, ...] = ()
    view: View = "margin"
    chooses: str = "train"  # the images that choose a ridge: held-out, halves (of the tested ones) or train
    drawn: tuple[Split, ...] = ()  # the split that the tested images were taken from, if it is none of data's
    tests_every: bool = False  # whether images that the run was trained on are tested too
    key: Hashable = None  # equal for the same question about the same images

    @property
    def has_several_labels(self) -> bool:
        return not self.images.all_labels.has_one_each

    @property
    def drawn_from(self) -> tuple[Split, ...]:
        """The split that the tested images were taken from: all of train if they were held out of it."""
        return self.drawn or ((self.data.train, self.images) if self.taken_from == "train" else (self.images,))

    def by_level(self) -> EvaluationData:
        """Of a hierarchy, the data with the labels of the leaves, and of each level."""
        if not self.data.levels:
            return self
        by_leaf, levels = take_each_level(self.data, self._at_level)
        return by_leaf._replace(levels=levels)

    def _at_level(self, level: Level) -> EvaluationData:
        return self._replace(data=level.take(self.data), images=level.take_labels(self.images))

    def chosen_by(self, images: str) -> EvaluationData:
        """The data whose ridge these images choose, on every level."""
        levels = tuple(None if level is None else level._replace(chooses=images) for level in self.levels)
        return self._replace(chooses=images, levels=levels)


class Parts:
    """The features of train, held-out and test images by one encoder, computed when they are needed."""

    def __init__(
        self, encoder: EvaluatedEncoder, data: EvaluationData, given: Mapping[str, Features] = MappingProxyType({})
    ) -> None:
        self.encoder, self.data, self.given = encoder, data, dict(given)
        self.classes = len(data.data.classes)

    def __getitem__(self, name: str) -> Features:
        if name not in self.given:
            splits = {"train": self.data.data.train, "held-out": self.data.data.held_out, "test": self.data.images}
            self.given[name] = self.encoder.features(splits[name], self.data.view)
        return self.given[name]


def open_evaluation_data(
    evaluated: EvaluatedEncoder, source: str | None, split: str, view: View = "margin", several_labels: bool = False
) -> EvaluationData:
    """Open the data of an evaluation; `split` is held-out, test or train.

    Of a hierarchy the labels are the leaves. Other images with several labels are refused unless the caller can use
    them.
    """
    evaluation = _select_images(evaluated, source, split, _read_data(evaluated, source, view, several_labels))
    return evaluation._replace(view=view).by_level()


def open_transfer_data(evaluated: EvaluatedEncoder, source: str, view: View) -> EvaluationData:
    """train, val (as held-out images) and test of another source."""
    spec = spec_for(evaluated, source)
    read = read_source(evaluated, spec, view, "transfer", several_labels=True)
    check_unchanged(evaluated, source, read)
    train, val, test = three_splits(read, spec)
    summary: dict[str, object] = {"held_out_from": "val"}
    data = Data(train, val, read.classes, test, None, (), read.remarks, read.skipped, summary, read.levels)
    taken_from = "test" if "test" in read.splits else "val"
    drawn = next(read.splits[name] for name in ("test", "val", "train") if name in read.splits)
    return EvaluationData(source, source, data, test, taken_from, "test", (), view, drawn=(drawn,)).by_level()


def _select_images(evaluated: EvaluatedEncoder, source: str | None, split: str, data: Data) -> EvaluationData:
    """The images to test. If the run held nothing out, held-out becomes test, with a note."""
    location, held_out_from = source or evaluated.location, str(data.summary["held_out_from"])
    if split == "held-out" and not len(data.held_out) and data.test is not None:
        evaluated.reporter.note(f"{location}: nothing is held out (data.holdout = 0), so the test split is used")
        split = "test"
    if split == "train":
        return EvaluationData(source, location, data, data.train, "train", split)
    if split == "held-out":
        return EvaluationData(source, location, data, data.held_out, held_out_from, split)
    if data.test is None:
        raise BadInput(f"{location} has no test split; leave split out to test images held out of train")
    # if the test split is the held-out one, both names mean the same images
    return EvaluationData(source, location, data, data.test, "test", "held-out" if held_out_from == "test" else "test")


def three_splits(source: Source, spec: DataSpec) -> tuple[Split, Split, Split]:
    """train, val and test. Without a test or val split, the default held-out images are the test split."""
    splits, location = dict(source.splits), spec.source
    if "test" not in splits and "val" in splits:
        splits["test"] = splits.pop("val")
    if "test" not in splits:
        data = prepare_data(source, without_hierarchy(spec))
        if not len(data.held_out):
            raise BadInput(
                f"{location}: the run was trained on all of it (data.holdout = 0), so nothing is left to test "
                "on; name other data"
            )
        splits = {"train": data.train, "test": data.held_out}
    train = splits["train"]
    if "val" not in splits:
        train, splits["val"] = hold_out_val(train, location)
    return train, splits["val"], splits["test"]


def hold_out_val(train: Split, location: str) -> tuple[Split, Split]:
    """The labelled images as train and val; val is a fifth of each class."""
    labelled = train.labelled()
    selected = draw_stratified(labelled.labels, 0.2, derive_seed(SPLIT_SEED, len("val")))
    if not len(selected):
        raise BadInput(
            f"{location}: too few labelled images to use 20% of each class as val; add images or a val/ folder"
        )
    remaining = torch.ones(len(labelled), dtype=torch.bool)
    remaining[selected] = False
    return labelled.take(remaining.nonzero()[:, 0]), labelled.take(selected)


def check_classes(
    evaluated: EvaluatedEncoder,
    data: EvaluationData,
    splits: Mapping[str, Split],
    may_lack: bool = False,
    fits_on: Sequence[str] = ("train",),
) -> None:
    """Refuse splits without two classes, and those that lack a class of the first one unless they `may_lack` some.

    Warns of test images of a class that none of `fits_on` has.
    """
    present = {name: set(split.class_ids()) for name, split in splits.items()}
    expected = present[next(iter(present))]
    if len(expected) < 2 or not all(present.values()):
        counts = ", ".join(f"{name} {len(ids)}" for name, ids in present.items())
        raise BadInput(f"{data.location}: two classes with labelled images are needed, and there are: {counts}")
    differ = next((name for name, ids in present.items() if ids != expected), "")
    if differ and not may_lack and not data.has_several_labels:
        names = [repr(data.data.classes[label]) for label in sorted(present[differ] ^ expected)]
        raise BadInput(f"{data.location}: {name_classes(names)}: not in every split; the splits need the same classes")
    numbers = data.images.all_labels.classes.flatten()
    known = torch.cat([splits[name].all_labels.classes.flatten() for name in fits_on if name in splits] or [numbers])
    unknown = numbers[(numbers >= 0) & ~torch.isin(numbers, known)]
    if len(unknown):
        names = [repr(data.data.classes[label]) for label in torch.unique(unknown).tolist()]
        effect = "are ranked by chance" if data.has_several_labels else "count as wrong"
        evaluated.reporter.warn(
            f"{data.location}: no training image of {name_classes(names)}; test images of it {effect}: {len(unknown)}"
        )


# --- what the run held out --------------------------------------------------------------------------------------------


def held_out_mask(evaluated: EvaluatedEncoder, source: str | None, source_data: Source) -> Tensor | None:
    """Mask of the train images that the run held out; None if the data are not the run's or have changed."""
    run_data = prepare_run_data(evaluated, source, source_data)
    return None if run_data is None else mask_held_out(source_data, run_data)


def prepare_run_data(evaluated: EvaluatedEncoder, source: str | None, source_data: Source) -> Data | None:
    """The source as the run was trained on it; None if it is not the run's, or, with a warning, if it has changed."""
    if evaluated.run is None or evaluated.recipe is None or not is_run_source(evaluated, source):
        return None
    try:
        run_data = prepare_data(source_data, evaluated.recipe.data)
        if evaluated.run.read_data()[0]:  # old runs have no description to compare
            check_same_data(evaluated.run, run_data, "restore them")
    except BadInput as error:
        evaluated.reporter.warn(f"which images {evaluated.location} held out is not known: {error}")
        return None
    return run_data


def mask_held_out(source_data: Source, run_data: Data) -> Tensor:
    """Mask of the train images of a source that are not among those of a run."""
    return ~torch.isin(source_data.splits["train"].index.cpu(), run_data.train.index.cpu())
