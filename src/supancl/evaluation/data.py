"""Which images an encoder is evaluated on, and the one check that something can be measured on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.data.labels import find_leaves, keep_classes, list_levels, with_leaf_labels
from supancl.data.opening import open_benchmark, open_source
from supancl.data.order import derive_seed
from supancl.data.preparing import SPLIT_SEED, draw_stratified, prepare_data
from supancl.data.sources.benchmark_rows import BENCHMARKS, Use
from supancl.data.sources.libraries import local_caches
from supancl.data.spec import DataSpec
from supancl.data.splits import Data, Source, Split
from supancl.data.views.render import View, evaluation_short_side
from supancl.errors import BadInput, NoLevels
from supancl.evaluation import TRAINED_IMAGES, FewShot, Settings, Transfer, Variance
from supancl.evaluation.encoder import EvaluatedEncoder, is_run_source, shares_images
from supancl.evaluation.results import registered_name
from supancl.reporter import report_to
from supancl.runs.folder import check_same_content, check_same_data

OTHER_DATA = "restore them, or name a different source with data"
HELD_OUT = "held out of train"  # where episodes come from if there is no other split
USES: dict[type[Settings], Use] = {Transfer: "transfer", FewShot: "few-shot"}  # of a benchmark


# --- reading ----------------------------------------------------------------------------------------------------------


def check_input_kind(encoder: Encoder, split: Split, source: str) -> None:
    """Check that a linear encoder gets vectors, and any other images with its number of channels."""
    pixels = split.batch(torch.zeros(1, dtype=torch.long)).pixels
    kind = "vectors" if pixels.ndim == 2 else f"images with {pixels.shape[1]} channels"
    expected = "vectors" if encoder.spec.name == "linear" else f"images with {encoder.spec.channels} channels"
    if kind != expected:
        raise BadInput(f"{source} holds {kind}, and encoder {encoder.spec.name!r} takes {expected}; choose other data")


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
) -> Source:
    """Read a source, or a benchmark (NAME@ROOT) with the splits for `use`.

    Photographs are decoded no larger than the view needs, or with `as_trained` as in `spec`.
    """
    encoder, options = evaluated.encoder, evaluated.options
    name, root = None if spec.joined else registered_name(spec.source), spec.source.partition("@")[2]
    use = None if name is None else use or BENCHMARKS[name].uses[0]
    # without the settings that choose among the images
    spec = replace(spec.whole(), holdout=None, skip_bad_images=options.skip_bad_images or spec.skip_bad_images)
    if not as_trained:
        short_side = evaluation_short_side(encoder.size, view)
        spec = replace(spec, short_side=short_side, resample="bicubic" if view == "whole" else "bilinear")

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
            data = open_with(without_hierarchy(spec))  # unlike those of the run, its classes have no levels
        for remark in data.remarks:
            evaluated.warn_once(remark)
        return data

    data = options.sources.get((spec, encoder.spec.channels, use), read)
    check_input_kind(encoder, next(iter(data.splits.values())), spec.source)
    return data


def is_read_as_trained(evaluated: EvaluatedEncoder, source: str | None, view: View) -> bool:
    """Whether the images are the run's own, in a view for which the pixels of its training do, from the same cache."""
    return view == "margin" and is_run_source(evaluated, source)


def without_hierarchy(spec: DataSpec) -> DataSpec:
    """The settings for a source that has its levels already, or has none."""
    return replace(spec, hierarchy="none", level_weights=())


def data_for(
    evaluated: EvaluatedEncoder,
    source: str | None,
    view: View = "margin",
    way_out: str | None = OTHER_DATA,
    all_levels: bool = False,
) -> Data:
    """The data of a source, or if None the run's own, with the images it held out and left out.

    For the margin view, the run's own source has the same pixels as the monitor, from the same cache. Of a hierarchy
    the labels are the leaves, or those of all levels. The run's own source is refused if it has changed, with this
    advice, unless that is None.
    """
    spec = spec_for(evaluated, source)
    as_trained = is_read_as_trained(evaluated, source, view)
    with local_caches(spec.all_sources if source is None else ()):  # what a run names is not looked up
        source_data = read_source(evaluated, spec, view, as_trained=as_trained)
    if way_out is not None:
        check_unchanged(evaluated, source, source_data, as_trained, way_out)
    data = prepare_data(source_data, replace(without_hierarchy(spec), balanced=False))
    return data if all_levels else with_leaf_labels(data)


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
        return  # nothing to compare with
    data = prepare_data(source_data, evaluated.recipe.data)
    check_same_data(evaluated.run, data, way_out, f"{evaluated.location}: ")
    if as_trained and data.content is not None and evaluated.run.read_data()[0].get("content"):
        for remark in check_same_content(evaluated.run, data, way_out):
            evaluated.warn_once(remark)


# --- the images of one evaluation -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EvaluationData:
    """The images of one evaluation: `splits` has train, held-out and test (the tested ones)."""

    source: str | None  # as requested; None: the run's own
    location: str  # for messages
    splits: Mapping[str, Split]
    data: Data  # what they were taken from
    classes: tuple[str, ...]
    taken_from: str  # the split of the tested images: train (they were held out of it), val or test
    split: str  # their name in results: held-out, test or train
    drawn_from: tuple[Split, ...]  # all images of that split, those that are not tested too
    view: View = "margin"
    chooses: str = "train"  # the images that choose a ridge: held-out, halves (of the tested ones) or train
    tests_every: bool = False  # whether images that the run was trained on are tested too
    levels: tuple[tuple[str, ...], ...] = ()  # of a hierarchy, the coarsest first

    @property
    def images(self) -> Split:
        return self.splits["test"]

    @property
    def has_several_labels(self) -> bool:
        return not self.images.all_labels.has_one_each

    def by_leaf(self) -> EvaluationData:
        """The same images; of a hierarchy with the labels of the leaves."""
        return self.at(find_leaves(self.data)) if self.levels else self

    def at(self, level: tuple[str, ...]) -> EvaluationData:
        """The same images with the labels of a level."""
        splits = {name: keep_classes(split, self.data.classes, level) for name, split in self.splits.items()}
        return replace(self, splits=splits, classes=level, levels=())


def open_data(evaluated: EvaluatedEncoder, source: str | None, settings: Settings) -> EvaluationData:
    """The images that a protocol needs. Of a hierarchy the labels are those of all levels."""
    view: View = getattr(settings, "view", "margin")
    if isinstance(settings, (Transfer, FewShot)):
        assert source is not None
        return open_other_data(evaluated, source, settings)
    return open_evaluation_data(evaluated, source, getattr(settings, "split", "held-out"), view)


def open_evaluation_data(
    evaluated: EvaluatedEncoder, source: str | None, split: str, view: View = "margin"
) -> EvaluationData:
    """The images to test of the run's own data, or of a source that is split like them.

    If the run held nothing out, held-out becomes test, with a note. Some of the images choose the ridge of a linear
    classifier: those that pretraining held out; if these are also tested, each half chooses for the other. A test split
    never chooses. For other data, or if nothing was held out, a part of train chooses.
    """
    data = data_for(evaluated, source, view, all_levels=True)
    location, held_out_from = source or evaluated.location, str(data.summary["held_out_from"])
    if split == "held-out" and not len(data.held_out) and data.test is not None:
        evaluated.reporter.note(f"{location}: nothing is held out (data.holdout = 0), so the test split is used")
        split = "test"
    if split == "test" and data.test is None:
        raise BadInput(f"{location} has no test split; leave split out to test images held out of train")
    images = {"train": data.train, "held-out": data.held_out}.get(split, data.test)
    assert images is not None
    taken_from = {"train": "train", "held-out": held_out_from}.get(split, "test")
    # if the test split is the held-out one, both names mean the same images
    split = "held-out" if split == "test" and held_out_from == "test" else split
    chooses = "train"
    if shares_images(evaluated, source, (data.train,)):
        chooses = TRAINED_IMAGES
        if data.held_out.num_labelled and held_out_from != "test" and is_run_source(evaluated, source):
            chooses = "held-out" if taken_from == "test" else "halves"
    splits = {"train": data.train, "held-out": data.held_out, "test": images}
    drawn_from = (data.train, images) if taken_from == "train" else (images,)
    about = (data.classes, taken_from, split, drawn_from, view, chooses)
    return EvaluationData(source, location, splits, data, *about, levels=tuple(list_levels(data)))


def open_other_data(evaluated: EvaluatedEncoder, source: str, settings: Transfer | FewShot) -> EvaluationData:
    """Another source: train, val (as held-out images) and test; or one split that episodes are sampled from."""
    is_transfer = isinstance(settings, Transfer)
    spec, use = spec_for(evaluated, source), USES[type(settings)]
    read = read_source(evaluated, spec, settings.view, use)
    if is_transfer or registered_name(source) is None:  # a benchmark has one split for few-shot, with every image
        check_unchanged(evaluated, source, read)
    taken_from = "test" if "test" in read.splits else "val"
    if is_transfer:
        parts, split, held_out_from = three_splits(read, spec), "test", "val"
    else:
        taken_from, images = few_shot_split(evaluated, read, spec)
        parts, split, held_out_from = (images, images, images), taken_from, "test"
    names = ("train", "held-out", "test")
    summary: dict[str, object] = {"held_out_from": held_out_from}
    data = Data(*parts[:2], read.classes, parts[2], None, (), read.remarks, read.skipped, summary, read.levels)
    data = replace(data, incomplete=read.incomplete)
    drawn = next(read.splits[name] for name in ("test", "val", "train") if name in read.splits)
    about = (read.classes, taken_from, split, (drawn,), settings.view)
    every, levels = not is_transfer and taken_from == "train", tuple(list_levels(data))
    splits = dict(zip(names, parts, strict=True))
    return EvaluationData(source, source, splits, data, *about, tests_every=every, levels=levels)


def three_splits(source: Source, spec: DataSpec) -> tuple[Split, Split, Split]:
    """train, val and test. Without a test or val split, the default held-out images are the test split.

    Without a val split it is a fifth of each class of the labelled training images.
    """
    splits = dict(source.splits)
    if "test" not in splits and "val" in splits:
        splits["test"] = splits.pop("val")
    if "test" not in splits:
        data = prepare_data(source, without_hierarchy(spec))
        splits = {"train": data.train, "test": data.held_out}
    train = splits["train"]
    if "val" not in splits:
        train = train.labelled()
        is_val = torch.zeros(len(train), dtype=torch.bool)
        is_val[draw_stratified(train.labels, 0.2, derive_seed(SPLIT_SEED, len("val")))] = True
        train, splits["val"] = train.take((~is_val).nonzero()[:, 0]), train.take(is_val.nonzero()[:, 0])
    return train, splits["val"], splits["test"]


def few_shot_split(evaluated: EvaluatedEncoder, source: Source, spec: DataSpec) -> tuple[str, Split]:
    """The images that episodes are sampled from: images not trained on, if the source has any."""
    name = next(name for name in ("test", "val", "train") if name in source.splits)
    if name == "train" and is_run_source(evaluated, spec.source) and registered_name(spec.source) is None:
        return HELD_OUT, prepare_data(source, without_hierarchy(spec)).held_out
    return name, source.splits[name]


def check_measurable(evaluated: EvaluatedEncoder, data: EvaluationData, settings: Settings) -> None:
    """Refuse data without labels of two classes to fit on, or without a labelled image to test.

    Warns of test images of a class that no image to fit on has.
    """
    if not settings.several:
        data.images.all_labels.check_single(data.location, "this evaluation")
    fitted = {Variance: ["test"], FewShot: ["test"], Transfer: ["train", "held-out"]}.get(type(settings), ["train"])
    fitted = ["test"] if getattr(settings, "leave_one_out", False) else fitted
    for name in dict.fromkeys((*fitted, "test")):
        found, needed = len(data.splits[name].class_ids()), 2 if name in fitted else 1
        if found < needed:
            split = {"held-out": "val", "test": data.split}.get(name, name)
            raise BadInput(
                f"{data.location}: classes with labelled images in {split}: {found}, and {needed} are needed"
            )
    numbers = data.images.all_labels.classes.flatten()
    known = torch.cat([data.splits[name].all_labels.classes.flatten() for name in fitted])
    unknown = numbers[(numbers >= 0) & ~torch.isin(numbers, known)]
    if len(unknown):
        names = [data.classes[label] for label in torch.unique(unknown)[:5].tolist()]
        effect = "are ranked by chance" if data.has_several_labels else "count as wrong"
        evaluated.reporter.warn(
            f"{data.location}: tested images of classes without a training image {effect}: {len(unknown)} of {names}"
        )


# --- what the run held out --------------------------------------------------------------------------------------------


def held_out_mask(evaluated: EvaluatedEncoder, source: str | None, source_data: Source) -> Tensor | None:
    """Mask of the train images that the run held out; None if it is not the run's source, or has changed (it warns)."""
    if evaluated.run is None or evaluated.recipe is None or not is_run_source(evaluated, source):
        return None
    try:
        run_data = prepare_data(source_data, evaluated.recipe.data)
        if evaluated.run.read_data()[0]:
            check_same_data(evaluated.run, run_data, "restore them")
    except BadInput as error:
        evaluated.reporter.warn(f"which images {evaluated.location} held out is not known: {error}")
        return None
    return ~torch.isin(source_data.splits["train"].index.cpu(), run_data.train.index.cpu())
