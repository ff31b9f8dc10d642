"""The scores of a table: read from folders as rows, chosen for a column, grouped over the seeds of one recipe."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from supancl.data.opening import is_same_source
from supancl.data.sources.benchmarks import BENCHMARKS
from supancl.errors import BadInput
from supancl.evaluation.feature_cache import encoder_key
from supancl.evaluation.naming import group_of, registered_name
from supancl.evaluation.overlap import data_set_of
from supancl.evaluation.rows import Row, average, grouped, read_rows, rows_of_log
from supancl.evaluation.settings import TRAINED_IMAGES
from supancl.paper.tables.layouts import changed_fields
from supancl.paper.toy_study import PAPER as TOY_NAMES
from supancl.paper.toy_study import conditions
from supancl.recipes import Recipe, recipe
from supancl.runs.encoder_file import check_same_run, load_encoder, read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.sweeps.runner import read_failure
from supancl.training.run import read_result

PROBES = {"lbfgs": "convex probe", "sgd": "SGD probe"}
# column -> protocol and metric; others are accuracies
COLUMNS = {
    "within": ("variance", "within"),
    "ratio": ("variance", "ratio"),
    "ap": ("detect", "AP"),
    "ap50": ("detect", "AP50"),
}
# features of S_W and S_T, (layer, split); the paper's, as we read it, come first
VARIANCES = (("projector", "train"), ("pooled", "held-out"), ("pooled", "test"))
# settings that may differ from the protocol's usual ones, because `Way` has them
FREE_SETTINGS = {"linear": {"split", "probe"}, "knn": {"split"}, "variance": {"split", "layer"}}
TOY_MEASURES = {"l_ssl": "ssl", "l_sup": "sup", "S_W": "within", "S_W/S_T": "ratio", "k-NN": "knn"}


class Way(NamedTuple):
    """How a number was measured; numbers of different ways are neither averaged nor ranked together."""

    probe: str = ""  # of linear accuracy: lbfgs or sgd
    on_trained: bool = False  # its ridge was chosen on images that the run was trained on
    layer: str = ""  # of variance
    images: str = ""  # test, val, held-out or train
    detector: str = ""
    by: str = ""  # monitor: its last check

    def __str__(self) -> str:
        if self.by:
            return "the monitor's last check"
        features = {"": "", "projector": "projector features of "}.get(self.layer, "encoder features of ")
        ridge = f" (ridge chosen on {TRAINED_IMAGES})" if self.on_trained else ""
        probe = f"{PROBES.get(self.probe, self.probe)}{ridge}, " if self.probe else ""
        images = f"{'training' if self.images == 'train' else self.images} images" if self.images else ""
        return self.detector or f"{probe}{features}{images}"


class Score(NamedTuple):
    """A number of one run, or a mean over n runs with its standard deviation; nan: none.

    `interval` is that of a single run. The smallest `order` is the way closest to the paper's.
    """

    mean: float
    sd: float = math.nan
    interval: float = math.nan
    n: int = 1
    way: Way = Way()
    order: tuple[int, ...] = ()


@dataclass
class Entry:
    """One run; or one encoder with nothing but evaluations, and then without a recipe."""

    path: Path
    recipe: Recipe | None = None
    rows: list[Row] = field(default_factory=list)
    conditions: str = ""  # of a toy study: its reading, and sizes that differ from the paper
    fingerprint: str = ""  # of the data, independent of their path
    unfinished: str = ""  # how far the log goes, if the run was not trained to its end
    excluded: set[str] = field(default_factory=set)  # what is not in the table, and why

    @property
    def is_toy(self) -> bool:
        return any(row.protocol == "toy" for row in self.rows)

    def find(self, measure: str, probe: str = "lbfgs") -> list[Score]:
        """The measure by each way used, the preferred one first; empty if it was not measured.

        Test images come before held-out ones; linear accuracy by `probe` comes before the other probe's.
        """
        if self.unfinished:
            self.excluded.add(f"{self.path}: not counted, {self.unfinished}")
            return []
        kind, _, data_set = measure.partition(":")
        protocol, metric = COLUMNS.get(kind, (kind, "accuracy"))
        if self.is_toy:
            found = [Score(row.value) for row in self.rows if row.metric == measure]
        elif protocol == "detect":
            found = self._from_detectors(metric)
        else:
            rows = [row for row in self.rows if row.metric == metric and self._is_of(row, protocol, data_set)]
            reasons = {id(row): self._why_excluded(row, protocol, data_set.partition(":")[0]) for row in rows}
            self.excluded |= {f"{self.path}: {row.name} {reasons[id(row)]}" for row in rows if reasons[id(row)]}
            scores = [score_of(row, protocol, probe) for row in rows if not reasons[id(row)]]
            found = sorted(scores, key=lambda score: score.order) or self._from_log(measure)
        by_way: dict[Way, Score] = {}
        for score in found:
            by_way.setdefault(score.way, score)
        return list(by_way.values())

    def _is_of(self, row: Row, protocol: str, data_set: str) -> bool:
        """Whether a row belongs to a cell: by its name or, on other data, by the data set."""
        if protocol not in FREE_SETTINGS:
            return row.name == f"{protocol}-{data_set.replace(':', '-')}"
        base, _, on_data = row.name.partition("-")
        known = data_set_of(row.data) if row.data else None
        if data_set in ("", self.pretrained_on):  # another copy of the same data set is the same data
            return base == protocol and (not on_data or bool(known and known == self.pretrained_on))
        return base == protocol and bool(on_data) and (known if row.data else on_data) == data_set

    def _why_excluded(self, row: Row, protocol: str, data_set: str) -> str:
        """Why a row does not belong in a table of the paper; empty if it does."""
        free, settings = FREE_SETTINGS.get(protocol, set()), row.settings
        features = settings.get("layer", "pooled"), settings.get("split", "held-out")
        if row.data and free and data_set in ("", self.pretrained_on) and self.recipe is not None:
            trained_on, name = self.recipe.data.source, data_set_of(row.data)
            if not is_same_source(row.data, trained_on) and (name is None or name != data_set_of(trained_on)):
                return f"was measured on {row.data}, not on the data of the run"
        if not free and data_set in BENCHMARKS and row.data and data_set not in (row.data, registered_name(row.data)):
            return f"was measured on {row.data}, not on {data_set}@ROOT, the data set of the table"
        if row.digest and self.encoder_checksum not in ("", row.digest):
            return "was measured with other weights than the run has now (before its last epoch?); measure it again"
        if settings.get("overlaps_training"):
            return "was measured on images that the run was trained on"
        if settings.get("partial"):
            return "was measured on an incomplete data set"
        if row.changed.keys() - free or (protocol == "variance" and features not in VARIANCES):
            return f"has other settings ({', '.join(f'{key} {value}' for key, value in row.changed.items())})"
        return ""

    def _from_detectors(self, metric: str) -> list[Score]:
        """The mean over this encoder's detectors, per setting; the setting with most seeds first."""
        values: dict[str, dict[int | None, float]] = {}
        for row in (row for row in self.rows if (row.protocol, row.metric) == ("detect", metric)):
            seeds = values.setdefault(row.settings["detector"], {})
            if row.digest and self.encoder_checksum and row.digest != self.encoder_checksum:
                self.excluded.add(f"{row.name}: has other weights than {self.path} now; train it again")
            elif row.seed in seeds:
                self.excluded.add(f"{row.name}: not counted, it has seed {row.seed} of another detector")
            else:
                seeds[row.seed] = row.value
        averages = [(detector, average(list(seeds.values()))) for detector, seeds in values.items() if seeds]
        averages.sort(key=lambda item: -item[1].n)
        return [Score(mean, sd, way=Way(detector=detector)) for detector, (mean, sd, _) in averages]

    def _from_log(self, measure: str) -> list[Score]:
        """Losses of the last epoch; k-NN, variance and collapse by the monitor."""
        recipe = self.recipe
        if recipe is None or (measure == "sup" and not recipe.loss.supervised and recipe.pool.kind == "none"):
            return []  # the log repeats l_ssl there
        way = Way(by="monitor") if measure in ("knn", "within", "ratio") else Way()
        scale = 100 if measure == "ratio" else 1
        return [Score(scale * row.value, way=way) for row in rows_of_log(self.path) if row.metric == measure]

    @cached_property
    def encoder_checksum(self) -> str:
        """The checksum of the run's current encoder; empty if it cannot be read (copied evaluations have none)."""
        try:
            return "" if self.recipe is None else encoder_key(load_encoder(self.path))
        except BadInput:
            return ""

    @cached_property
    def pretrained_on(self) -> str:
        """The benchmark that the run was trained on, else the family of its recipe (`digits`)."""
        if self.recipe is None:
            return ""
        data_set = data_set_of(self.recipe.data.source) if self.recipe.data.source else None
        return data_set if data_set in ("cifar10", "cifar100") else self.recipe.name.split(".")[0]


def score_of(row: Row, protocol: str, probe: str) -> Score:
    """The number of a row with the way in which it was measured, and how that compares with the paper's."""
    settings = row.settings
    split, judged = str(settings.get("split", "held-out")), str(settings.get("judged", ""))
    images = judged if judged in ("test", "val") else split
    way, order, is_held_out = Way(), (0, 0), int(images != "test")
    if protocol == "variance":
        layer = str(settings.get("layer", "pooled"))
        way, order = Way(layer=layer, images=split), (int((layer, split) != VARIANCES[0]), 0)
    elif protocol == "knn":
        way, order = Way(images=images), (is_held_out, 0)
    elif protocol == "linear":
        used = str(settings.get("probe", "lbfgs"))
        way = Way(used, used == "lbfgs" and settings.get("chosen_on") == TRAINED_IMAGES, images=images)
        # Table 4: the paper's probe comes first
        order = (int(used != probe), is_held_out) if probe == "sgd" else (is_held_out, int(used != probe))
        order = order if used in PROBES else (2, 2)
    return Score((100 if row.metric == "ratio" else 1) * row.value, math.nan, row.interval, 1, way, order)


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """Runs that differ only in their seed; `copies` says which runs are not counted, and why."""

    entries: list[Entry]
    copies: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Add a run, unless it is a copy of another one or was trained again with the same seed."""
        digests = {row.digest for row in entry.rows if row.digest and row.protocol != "detect"}
        for other in self.entries:
            if entry.recipe is None or other.recipe is None or entry.is_toy:
                continue
            is_copy = any(row.digest in digests for row in other.rows)
            if is_copy or entry.recipe.train.seed == other.recipe.train.seed:
                shared = "the weights" if is_copy else f"seed {entry.recipe.train.seed}"
                self.copies.append(f"{entry.path}: not counted, it has {shared} of {other.path}")
                return
        self.entries.append(entry)

    @property
    def recipe(self) -> Recipe | None:
        return self.entries[0].recipe

    @property
    def description(self) -> str:
        """The recipe, what differs from it, and the seeds, in words."""
        first = self.entries[0]
        if first.recipe is None:
            return f"results in {first.path}"
        changed = changed_fields(first.recipe).items()
        changes = ", ".join(f"{key} = {json.dumps(value, default=str)}" for key, value in changed)
        seeds = sorted(entry.recipe.train.seed for entry in self.entries if entry.recipe is not None)
        study = f"the toy study {first.path}{f' ({first.conditions})' if first.conditions else ''}"
        name = study if first.is_toy else first.recipe.name
        return f"{name}{f' with {changes}' if changes else ''}; n = {len(seeds)} (seeds: {', '.join(map(str, seeds))})"

    def score(self, measure: str, probe: str = "lbfgs") -> Score | None:
        """The mean over runs measured in one way: the most frequent, or the preferred one if equal."""
        by_way: dict[Way, list[Score]] = {}
        for score in (score for entry in self.entries for score in entry.find(measure, probe)):
            by_way.setdefault(score.way, []).append(score)
        if not by_way:
            return None
        first, *others = min(by_way.values(), key=lambda scores: (-len(scores), min(one.order for one in scores)))
        mean, sd, n = average([score.mean for score in (first, *others)])
        return first if not others else Score(mean, sd, n=n, way=first.way)

    def mean_of(self, measures: Sequence[str]) -> Score | None:
        """The mean over these measures, averaged over the runs that have all of them."""
        found = [[entry.find(measure)[:1] for measure in measures] for entry in self.entries]
        means = [statistics.fmean(one.mean for (one,) in scores) for scores in found if all(scores)]
        return Score(*average(means)[:2], n=len(means)) if means else None


def group_entries(entries: Iterable[Entry]) -> list[Group]:
    """Group runs of equal settings and data, in the order of the arguments."""
    groups: dict[Any, Group] = {}
    for entry in entries:
        key: Any = str(entry.path)
        if entry.recipe is not None:
            key = (group_of(entry.recipe, entry.fingerprint), str(entry.path) if entry.is_toy else "")
        groups.setdefault(key, Group([])).add(entry)
    return list(groups.values())


# --- folders ----------------------------------------------------------------------------------------------------------


def read_entries(paths: Sequence[str]) -> list[Entry]:
    """Read every run and every set of evaluations in these folders once; a study's folder means its runs.

    Detectors are added to the run whose encoder they use; detectors next to the runs are found too.
    """
    entries: dict[Any, Entry] = {}
    detectors: list[Row] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise BadInput(f"{path}: no such folder; give run folders, studies, detectors, or folders of evaluations")
        found = list(_entries_in(path)) or [entry for child in _folders_in(path) for entry in _entries_in(child)]
        here = _detectors_in(path) or [row for child in _folders_in(path) for row in _detectors_in(child)]
        if not found and not here:
            raise BadInput(f"{path}: no run, no evaluate/*.json, no toy.json and no detector here or one folder below")
        detectors += here
        for entry in found:
            recipe = entry.recipe
            key = (entry.path.resolve(), recipe and (getattr(recipe.loss, "alpha", None), recipe.train.seed))
            known = entries.setdefault(key, entry)
            known.rows += [row for row in entry.rows if known is not entry and row not in known.rows]
    _add_detectors(entries, detectors)
    return list(entries.values())


def _folders_in(path: Path) -> list[Path]:
    return [child for child in sorted(path.iterdir()) if os.path.isdir(child)]


def _entries_in(path: Path) -> Iterator[Entry]:
    """The run, evaluations or toy study in this very folder."""
    if RunFolder(path).has_run or any(RunFolder(path).evaluations.glob("*.json")):
        if not (path / "detect.json").is_file():
            yield _read_entry(path)
    elif (path / "toy.json").exists():
        yield from _toy_entries(path)


def _read_entry(path: Path) -> Entry:
    """A run with its evaluations; those in a suite's folder name their run as encoder."""
    rows = read_rows(path)
    for candidate in (path, *(Path(row.encoder) for row in rows if row.encoder)):
        folder = RunFolder(folder_of_encoder(candidate))
        if not folder.has_run:
            continue
        rows += [] if folder.path == path else read_rows(folder.path)
        trained, _ = folder.read_recipe()  # raises BadInput if the file is broken
        folder.check_recipe_file()
        if folder.encoder.exists():
            check_same_run(folder.encoder, read_header(folder.encoder)[0])
        stopped_at, failed = folder.describe_early_end(trained), read_failure(folder.path)
        unfinished = f"{stopped_at} ({failed.reason})" if stopped_at and failed else stopped_at
        fingerprint = str(folder.read_data()[0].get("fingerprint") or "")
        return Entry(folder.path, trained, rows, fingerprint=fingerprint, unfinished=unfinished)
    return Entry(path, None, rows)


def _toy_entries(path: Path) -> Iterator[Entry]:
    content, base = read_result(path / "toy.json"), recipe("toy.supsiam")
    try:
        said = conditions(content) if "reading" in content else ""
        for numbers in content["rows"]:
            fields = {"loss.alpha": numbers["alpha"], "train.seed": numbers["seed"]}
            rows = [
                Row(str(path), "toy", "toy", TOY_MEASURES.get(name, name), float(numbers[name]))
                for name in TOY_NAMES[0.0]
                if numbers.get(name) is not None
            ]
            yield Entry(path, base.with_set(fields, because="toy study"), rows, said)
    except (KeyError, TypeError, ValueError, AttributeError, BadInput):
        raise BadInput(f"{path / 'toy.json'}: not a result of supancl paper toy; run that again") from None


def _detectors_in(path: Path) -> list[Row]:
    if not os.path.isfile(path / "detect.json") and not any(path.glob("seed-*/detect.json")):
        return []
    from supancl.detection.saving import detector_rows  # slow to import

    return detector_rows(path)


def _add_detectors(entries: dict[Any, Entry], named: Sequence[Row]) -> None:
    """Add each detector to the run of its encoder, known by path or, if folders have moved, by the checksum.

    A detector that was named but matches no run gets the run of its encoder, or an entry without a recipe; those next
    to the runs and in them are found as well.
    """
    runs = [entry for entry in entries.values() if entry.recipe is not None and not entry.is_toy]
    by_path = grouped(named, lambda row: Path(row.name).resolve())
    nearby = dict.fromkeys(parent for run in runs for parent in (run.path, run.path.parent) if parent.is_dir())
    for folder in (child for parent in nearby for child in _folders_in(parent)):
        try:
            found = grouped(_detectors_in(folder), lambda row: Path(row.name).resolve())
        except BadInput:
            continue  # not finished
        by_path = {**found, **by_path}
    for rows in by_path.values():
        first = rows[0]
        origin = folder_of_encoder(Path(first.encoder))
        match = next((run for run in runs if run.path.resolve() == origin.resolve()), None)
        match = match or next((run for run in runs if first.digest and first.digest == run.encoder_checksum), None)
        if match is None and first in named:
            match = entries.setdefault(origin, _read_entry(origin) if RunFolder(origin).has_run else Entry(origin))
        if match is not None:
            match.rows += rows
