"""The numbers of a table: read from folders as rows, each with the way it was measured, grouped over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import to_json
from supancl.data.opening import is_same_source
from supancl.data.sources.benchmark_rows import BENCHMARKS
from supancl.errors import BadInput
from supancl.evaluation import TRAINED_IMAGES
from supancl.evaluation.encoder import encoder_key
from supancl.evaluation.results import Row, average, data_set_of, group_of, read_rows, registered_name, rows_of_log
from supancl.paper.layouts import changed_fields
from supancl.paper.toy_study import FULL
from supancl.paper.toy_study import PAPER as TOY_NAMES
from supancl.recipes import Recipe, recipe
from supancl.runs.encoder_file import check_same_run, load_encoder, read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.training.run import read_result

PROBES = {"lbfgs": "convex probe", "sgd": "SGD probe"}
CELLS = {"AP": "ap", "AP50": "ap50", "within": "within", "ratio": "ratio"}  # metric -> column; else the protocol's name
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
        ridge = f" (ridge chosen on {TRAINED_IMAGES})" * self.on_trained
        features = f"{'projector' if self.layer == 'projector' else 'encoder'} features of " * bool(self.layer)
        probe = f"{PROBES.get(self.probe, self.probe)}{ridge}, " * bool(self.probe)
        images = f"{'training' if self.images == 'train' else self.images} images" * bool(self.images)
        return self.detector or f"{probe}{features}{images}"

    def order(self, probe: str) -> tuple[Any, ...]:
        """The smallest is the closest to the paper's: its features, its probe (Table 4: first), test images."""
        pair = (self.probe != probe, self.images != "test")
        known = self.probe in ("", *PROBES)
        return self.by, not known, self.layer != "projector", *(pair if probe == "sgd" else reversed(pair))


class Score(NamedTuple):
    """A number of one run, or a mean over n runs; nan: none. `interval` is half a 95% interval."""

    mean: float
    sd: float = math.nan
    interval: float = math.nan
    n: int = 1
    way: Way = Way()


@dataclass
class Entry:
    """One run; or one encoder with nothing but evaluations, and then without a recipe."""

    path: Path
    recipe: Recipe | None = None
    rows: list[Row] = field(default_factory=list)
    conditions: str = ""  # of a toy study: its reading, and sizes that differ from the paper
    fingerprint: str = ""  # of the data, independent of their path
    is_finished: bool = True  # a run that was not trained to its end has no numbers
    notes: list[str] = field(default_factory=list)  # what is not in the table, and why

    @cached_property
    def scores(self) -> dict[str, list[Score]]:
        """The numbers of each cell by every way of measuring."""
        found: dict[str, dict[Way, Score]] = {}
        detected: dict[tuple[str, Way], dict[int | None, float]] = {}
        known = [row for row in self.rows if row.protocol == "toy" or row.metric in ("accuracy", *CELLS)]
        for row in known if self.is_finished else ():
            cell, why = self._cell(row), self._why_excluded(row)
            if why:
                self.notes.append(f"{self.path}: {row.name} {why}")
            elif row.protocol == "detect":  # the mean over an encoder's detectors, per setting
                way = Way(detector=str(row.settings["detector"]))
                detected.setdefault((cell, way), {}).setdefault(row.seed, row.value)
            else:
                percent = row.metric == "ratio" and row.protocol != "toy"  # the toy study has it in percent already
                value, way = row.value * (100 if percent else 1), way_of(row)
                found.setdefault(cell, {}).setdefault(way, Score(value, interval=row.interval, way=way))
        for (cell, way), seeds in sorted(detected.items(), key=lambda item: -len(item[1])):
            found.setdefault(cell, {})[way] = mean_score(list(seeds.values()), way)._replace(n=1)
        for row in self._rows_of_log() if self.recipe is not None and self.is_finished and not self.conditions else ():
            by = Way(by="monitor" * (row.metric in ("knn", "within", "ratio")))
            if row.metric not in found:
                found[row.metric] = {by: Score(row.value * (100 if row.metric == "ratio" else 1), way=by)}
        return {cell: list(scores.values()) for cell, scores in found.items()}

    def find(self, measure: str, probe: str = "lbfgs") -> list[Score]:
        """The numbers of a column such as `transfer:pets`, the preferred way first; empty if it was not measured."""
        kind, _, data = measure.partition(":")
        cell = kind if kind == "linear" and data == self.pretrained_on else measure.replace(":", "-")
        return sorted(self.scores.get(cell, ()), key=lambda score: score.way.order(probe))

    def _rows_of_log(self) -> list[Row]:
        """Losses of the last epoch; k-NN, variance and collapse by the monitor."""
        assert self.recipe is not None
        # without a pool the log repeats l_ssl as l_sup
        has_sup = self.recipe.loss.supervised or self.recipe.pool.kind != "none"
        return [row for row in rows_of_log(self.path) if has_sup or row.metric != "sup"]

    def _cell(self, row: Row) -> str:
        """The cell that a row belongs to: the column, and on other data than the run's the data set."""
        name = CELLS.get(row.metric, row.protocol)
        if row.protocol not in FREE_SETTINGS:
            return row.metric if row.protocol == "toy" else name if row.protocol == "detect" else row.name
        on_data, known = row.name.partition("-")[2], data_set_of(row.data) if row.data else None
        other = (known if row.data else on_data) if on_data else ""  # another copy of the run's data set is its data
        return name if on_data and known and known == self.pretrained_on else f"{name}-{other}" if on_data else name

    def _why_excluded(self, row: Row) -> str:
        """Why a row does not belong in a table of the paper; empty if it does."""
        free, settings = FREE_SETTINGS.get(row.protocol, set()), row.settings
        if row.protocol == "toy":
            return ""
        if row.digest and self.encoder_checksum not in ("", row.digest):
            return "has other weights than the run now; measure it again"
        if row.protocol == "detect":
            return ""
        if settings.get("overlaps_training") or settings.get("partial"):
            return "was measured on images that the run was trained on, or on an incomplete data set"
        features = settings.get("layer", "pooled"), settings.get("split", "held-out")
        if row.changed.keys() - free or (row.protocol == "variance" and features not in VARIANCES):
            return f"has other settings ({', '.join(f'{key} {value}' for key, value in row.changed.items())})"
        if free and row.data and self.recipe is not None and "-" not in self._cell(row):
            trained_on, name = self.recipe.data.source, data_set_of(row.data)
            if not is_same_source(row.data, trained_on) and (name is None or name != data_set_of(trained_on)):
                return f"was measured on {row.data}, not on the data of the run"
        data_set = row.name.partition("-")[2]
        named = next((name for name in sorted(BENCHMARKS, key=len)[::-1] if f"{data_set}-".startswith(f"{name}-")), "")
        if not free and row.data and named and named not in (row.data, registered_name(row.data)):
            return f"was measured on {row.data}, not on {named}@ROOT, the data set of the table"
        return ""

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


def way_of(row: Row) -> Way:
    """How a row of an evaluation was measured."""
    settings = row.settings
    split, judged = str(settings.get("split", "held-out")), str(settings.get("judged", ""))
    images = judged if judged in ("test", "val") else split
    if row.protocol == "variance":
        return Way(layer=str(settings.get("layer", "pooled")), images=split)
    if row.protocol == "linear":
        used = str(settings.get("probe", "lbfgs"))
        return Way(used, used == "lbfgs" and settings.get("chosen_on") == TRAINED_IMAGES, images=images)
    return Way(images=images) if row.protocol == "knn" else Way()


def mean_score(values: Sequence[float], way: Way) -> Score:
    return Score(*average(values), way)


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """Runs that differ only in their seed."""

    entries: list[Entry]

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
        name = f"toy study {first.path} ({first.conditions})" if first.conditions else first.recipe.name
        return f"{name}{f' with {changes}' if changes else ''}; seeds: {', '.join(map(str, seeds))}"

    def score(self, measure: str, probe: str = "lbfgs") -> Score | None:
        """The mean over runs measured in one way: the most frequent, or the preferred one if equal."""
        by_way: dict[Way, list[Score]] = {}
        for score in (score for entry in self.entries for score in entry.find(measure, probe)):
            by_way.setdefault(score.way, []).append(score)
        if not by_way:
            return None
        way = min(by_way, key=lambda way: (-len(by_way[way]), way.order(probe)))
        first, *others = by_way[way]
        return mean_score([score.mean for score in by_way[way]], way) if others else first


def group_entries(entries: Iterable[Entry]) -> list[Group]:
    """Group runs of equal settings and data; a copy of a run, or its seed trained again, counts once."""
    groups: dict[Any, Group] = {}
    for entry in entries:
        toy = str(entry.path) if entry.conditions else ""
        key = toy or str(entry.path) if entry.recipe is None else (group_of(entry.recipe, entry.fingerprint), toy)
        group = groups.setdefault(key, Group([]))
        same = next((other for other in group.entries if not toy and is_copy(entry, other)), None)
        if same is None:
            group.entries.append(entry)
        else:
            same.notes.append(f"{entry.path}: not counted, it has the seed or the weights of {same.path}")
    return list(groups.values())


def is_copy(entry: Entry, other: Entry) -> bool:
    digests = [{row.digest for row in one.rows if row.digest and row.protocol != "detect"} for one in (entry, other)]
    seeds = [one.recipe.train.seed for one in (entry, other) if one.recipe is not None]
    return bool(digests[0] & digests[1]) or len(set(seeds)) == 1


# --- folders ----------------------------------------------------------------------------------------------------------


def read_entries(paths: Sequence[str]) -> list[Entry]:
    """Read every run and every set of evaluations in these folders once; a study's folder means its runs.

    Detectors are added to the run whose encoder they use; detectors next to the runs are found too.
    """
    entries: dict[Any, Entry] = {}
    detectors: dict[Path, list[Row]] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise BadInput(f"{path}: no such folder; give run folders, studies, detectors, or folders of evaluations")
        for folder in (path, *_folders_in(path)):
            found, here = list(_entries_in(folder)), _detectors_in(folder)
            detectors |= here
            for entry in found:
                recipe = entry.recipe
                key = (entry.path.resolve(), recipe and (getattr(recipe.loss, "alpha", None), recipe.train.seed))
                known = entries.setdefault(key, entry)
                known.rows += [row for row in entry.rows if known is not entry and row not in known.rows]
            if folder == path and (found or here):
                break
    if paths and not entries and not detectors:
        raise BadInput(f"{paths[0]}: no run, no evaluate/*.json, no toy.json, no detector here or one folder below")
    _add_detectors(entries, detectors)
    return list(entries.values())


def _folders_in(path: Path) -> list[Path]:
    return [child for child in sorted(path.iterdir()) if child.is_dir()]


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
        early = folder.describe_early_end(trained)
        notes = [f"{folder.path}: not counted, {early}"] * bool(early)
        fingerprint = str(folder.read_data()[0].get("fingerprint") or "")
        return Entry(folder.path, trained, rows, "", fingerprint, not early, notes)
    return Entry(path, None, rows)


def _toy_entries(path: Path) -> Iterator[Entry]:
    content, base = read_result(path / "toy.json"), recipe("toy.supsiam")
    try:
        said = conditions(content) if "reading" in content else "an earlier reading"
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


def conditions(result: Mapping[str, Any]) -> str:
    """The reading, and the sizes that differ from App. B, of the content of toy.json.

    >>> conditions({"reading": {"name": "near"}, "size": {"epochs": 100, "batch": 256}})
    "reading 'near', not in App. B's size: epochs 100"
    """
    full, size = to_json(FULL), result.get("size", {})
    changed = ", ".join(f"{name} {value}" for name, value in size.items() if value != full.get(name))
    return f"reading {result['reading']['name']!r}" + (f", not in App. B's size: {changed}" if changed else "")


def _detectors_in(path: Path) -> dict[Path, list[Row]]:
    """The rows of the detectors in this very folder, by the detector."""
    if not (path / "detect.json").is_file() and not any(path.glob("seed-*/detect.json")):
        return {}
    from supancl.detection.train import detector_rows  # slow to import

    by_path: dict[Path, list[Row]] = {}
    for row in detector_rows(path):
        by_path.setdefault(Path(row.name).resolve(), []).append(row)
    return by_path


def _add_detectors(entries: dict[Any, Entry], named: dict[Path, list[Row]]) -> None:
    """Add each detector to the run of its encoder, known by path or, if folders have moved, by the checksum.

    A named detector that matches no run gets the run of its encoder, or an entry without a recipe.
    """
    runs = [entry for entry in entries.values() if entry.recipe is not None and not entry.conditions]
    nearby = dict.fromkeys(parent for run in runs for parent in (run.path, run.path.parent) if parent.is_dir())
    found: dict[Path, list[Row]] = {}
    for folder in (child for parent in nearby for child in _folders_in(parent)):
        try:
            found |= _detectors_in(folder)
        except BadInput:
            continue  # not finished
    for path, rows in (found | named).items():
        first, origin = rows[0], folder_of_encoder(Path(rows[0].encoder))
        match = next((run for run in runs if run.path.resolve() == origin.resolve()), None)
        match = match or next((run for run in runs if first.digest and first.digest == run.encoder_checksum), None)
        if match is None and path in named:
            match = entries.setdefault(origin, _read_entry(origin) if RunFolder(origin).has_run else Entry(origin))
        if match is not None:
            match.rows += rows
