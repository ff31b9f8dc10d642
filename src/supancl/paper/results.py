"""The numbers of a table: read from folders as rows, each with the way it was measured, grouped over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import to_json
from supancl.data.opening import is_same_source
from supancl.errors import BadInput
from supancl.evaluation import TRAINED_IMAGES
from supancl.evaluation.encoder import encoder_key
from supancl.evaluation.results import (
    Row,
    average,
    data_set_of,
    group_of,
    grouped,
    read_rows,
    registered_name,
    rows_of_log,
)
from supancl.paper.layouts import changed_fields, pretrained_on
from supancl.paper.toy_study import FULL, TABLE_1_COLUMNS, TABLE_2_COLUMNS
from supancl.recipes import Recipe, recipe
from supancl.runs.encoder_file import load_encoder
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.training.run import read_result

# In words: the probe, the features, the images. Numbers of different ways are neither averaged nor ranked together.
Way = tuple[str, ...]
CONVEX, SGD, PROJECTOR, ON_TEST = "convex probe", "SGD probe", "projector features", "test images"
MONITOR: Way = ("the monitor's last check",)
COLUMNS = {"AP": "ap", "AP50": "ap50", "within": "within", "ratio": "ratio"}  # metric -> column; else the protocol's
# settings that may differ from the protocol's usual ones, because the way of measuring has them
FREE_SETTINGS: dict[str, set[str]] = {"linear": {"split", "probe"}, "knn": {"split"}, "variance": {"split", "layer"}}
LOGGED = ("monitor", "training")  # protocols of rows that a run's log has
TOY_COLUMNS = dict(zip(TABLE_1_COLUMNS, ("ssl", "sup", "within", "ratio", "knn", "linear"), strict=True))


class Score(NamedTuple):
    """A number of one run, or a mean over n runs; nan: none. `interval` is half a 95% interval."""

    mean: float
    sd: float = math.nan
    interval: float = math.nan
    n: int = 1
    way: Way = ()


def way_of(row: Row) -> Way:
    settings = row.settings
    split, judged = str(settings.get("split", "held-out")), str(settings.get("judged", ""))
    images = f"{judged if judged in ('test', 'val') else split} images"
    if row.protocol == "linear":
        ridge = (f"ridge chosen on {TRAINED_IMAGES}",) * (settings.get("chosen_on") == TRAINED_IMAGES)
        return (CONVEX, *ridge, images) if settings.get("probe", "lbfgs") == "lbfgs" else (SGD, images)
    if row.protocol == "variance":
        return PROJECTOR if settings.get("layer") == "projector" else "encoder features", f"{split} images"
    if row.protocol == "detect":
        return (str(settings["detector"]),)
    is_check = row.protocol == "monitor" and row.metric != "collapsed"
    return MONITOR if is_check else (images,) if row.protocol == "knn" else ()


def distance_from_the_papers(way: Way, probe: str) -> tuple[bool, ...]:
    """The smallest is the closest: projector features, test images, and of Table 4 the SGD probe before that."""
    wanted = (PROJECTOR, SGD, ON_TEST) if probe == "sgd" else (PROJECTOR, ON_TEST, CONVEX)
    return way == MONITOR, *(word not in way for word in wanted)


@dataclass
class Entry:
    """One run; or one encoder with nothing but evaluations, and then without a recipe."""

    path: Path
    recipe: Recipe | None = None
    rows: list[Row] = field(default_factory=list)
    toy: str = ""  # of a toy study: its reading, and sizes that differ from the paper
    fingerprint: str = ""  # of the data, independent of their path
    notes: list[str] = field(default_factory=list)  # what is not in the table, and why

    @cached_property
    def scores(self) -> dict[str, list[Score]]:
        """The numbers of each cell by every way of measuring; the mean over an encoder's detectors is one number."""
        fitting = []
        for row in self.rows:
            if row.protocol in (*FREE_SETTINGS, "transfer", "fewshot", "detect") and (why := self._why_excluded(row)):
                self.notes.append(f"{self.path}: {row.name} {why}")
            elif row.protocol == "toy" or (row.protocol not in LOGGED and row.metric in ("accuracy", *COLUMNS)):
                fitting.append(row)
        known = {self._cell(row) for row in fitting}
        fitting += [row for row in self.rows if row.protocol in LOGGED and row.metric not in known]
        found: dict[str, list[Score]] = {}
        by_way = grouped(fitting, lambda row: (self._cell(row), way_of(row)))
        for (cell, way), rows in sorted(by_way.items(), key=lambda item: -len(item[1])):
            is_fraction = rows[0].metric == "ratio" and not self.toy  # the toy study has it in percent
            values = {row.seed: row.value * (100 if is_fraction else 1) for row in reversed(rows)}
            score = Score(values[rows[0].seed], interval=rows[0].interval, way=way)
            of_seeds = Score(*average(list(reversed(values.values()))), way)._replace(n=1)
            found.setdefault(cell, []).append(of_seeds if len(values) > 1 else score)
        return found

    def find(self, column: str, probe: str = "lbfgs") -> list[Score]:
        """The numbers of a column such as `transfer:pets`, the preferred way first; empty if it was not measured."""
        kind, _, data = column.partition(":")
        cell = kind if kind == "linear" and data == self.pretrained_on else column.replace(":", "-")
        return sorted(self.scores.get(cell, ()), key=lambda score: distance_from_the_papers(score.way, probe))

    def _cell(self, row: Row) -> str:
        """The column that a row belongs to, with the data set if that is not the run's own."""
        if row.protocol not in FREE_SETTINGS:
            return row.name if row.protocol in ("transfer", "fewshot") else COLUMNS.get(row.metric, row.metric)
        name, named = COLUMNS.get(row.metric, row.protocol), row.name.partition("-")[2]
        other = named and (data_set_of(row.data) if row.data else named)
        return name if not named or (row.data and other == self.pretrained_on) else f"{name}-{other}"

    def _why_excluded(self, row: Row) -> str:
        """Why a row does not belong in a table of the paper; empty if it does."""
        settings, changed = row.settings, row.changed
        if row.digest and self.encoder_checksum not in ("", row.digest):
            return "has other weights than the run now; measure it again"
        if row.protocol == "detect":
            return ""
        if settings.get("overlaps_training") or settings.get("partial"):
            return "was measured on images that the run was trained on, or on an incomplete data set"
        is_other_layer = row.protocol == "variance" and settings.get("layer", "pooled") not in ("projector", "pooled")
        if changed.keys() - FREE_SETTINGS.get(row.protocol, set()) or is_other_layer:
            return f"has other settings ({', '.join(f'{key} {value}' for key, value in changed.items())})"
        return "" if not row.data or self._has_the_columns_data(row) else f"was measured on {row.data}"

    def _has_the_columns_data(self, row: Row) -> bool:
        if row.protocol not in FREE_SETTINGS:
            return f"{row.name}-".startswith(f"{row.protocol}-{registered_name(row.data) or row.data}-")
        if self.recipe is None or "-" in self._cell(row):
            return True
        trained_on, name = self.recipe.data.source, data_set_of(row.data)
        return is_same_source(row.data, trained_on) or (name is not None and name == data_set_of(trained_on))

    @cached_property
    def encoder_checksum(self) -> str:
        """The checksum of the run's current encoder; empty if it cannot be read (copied evaluations have none)."""
        try:
            return "" if self.recipe is None else encoder_key(load_encoder(self.path))
        except BadInput:
            return ""

    @property
    def pretrained_on(self) -> str:
        return pretrained_on(self.recipe)


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
        name = f"toy study {first.path} ({first.toy})" if first.toy else first.recipe.name
        return f"{name}{f' with {changes}' if changes else ''}; seeds: {', '.join(map(str, seeds))}"

    def score(self, column: str, probe: str = "lbfgs") -> Score | None:
        """The mean over runs measured in one way: the most frequent, or the preferred one if equal."""
        by_way = grouped(
            (score for entry in self.entries for score in entry.find(column, probe)), lambda score: score.way
        )
        if not by_way:
            return None
        way = min(by_way, key=lambda way: (-len(by_way[way]), distance_from_the_papers(way, probe)))
        first, *others = by_way[way]
        return Score(*average([score.mean for score in by_way[way]]), way) if others else first


def group_entries(entries: Iterable[Entry]) -> list[Group]:
    """Group runs of equal settings and data; a copy of a run, or its seed trained again, counts once."""
    groups: dict[Any, Group] = {}
    for entry in entries:
        place = str(entry.path)
        key = place if entry.recipe is None else (group_of(entry.recipe, entry.fingerprint), place * bool(entry.toy))
        group = groups.setdefault(key, Group([]))
        same = next((other for other in group.entries if not entry.toy and is_copy(entry, other)), None)
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

    Detectors in these folders and in the runs are added to the run whose encoder they use.
    """
    entries: dict[Any, Entry] = {}
    detectors: list[Row] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise BadInput(f"{path}: no such folder; give run folders, studies, detectors, or folders of evaluations")
        for folder in (path, *_folders_in(path)):
            here = _detectors_in(folder)
            origins = {folder_of_encoder(Path(row.encoder)) for row in here}
            for entry in (entry for place in (folder, *sorted(origins)) for entry in _entries_in(place)):
                known = entries.setdefault((entry.path.resolve(), entry.toy and id(entry)), entry)
                known.rows += [row for row in entry.rows if known is not entry and row not in known.rows]
            detectors += here
            if folder == path and here:
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
        if folder.has_run:
            rows += [] if folder.path == path else read_rows(folder.path)
            trained, _ = folder.read_recipe()  # raises BadInput if the file is broken
            folder.check_recipe_file()
            if early := folder.describe_early_end(trained):
                return Entry(folder.path, trained, notes=[f"{folder.path}: not counted, {early}"])
            # without a pool the log repeats l_ssl as l_sup
            has_sup = trained.loss.supervised or trained.pool.kind != "none"
            rows += [row for row in rows_of_log(folder.path) if row.metric != "sup" or has_sup]
            return Entry(folder.path, trained, rows, "", str(folder.read_data()[0].get("fingerprint") or ""))
    return Entry(path, None, rows)


def _toy_entries(path: Path) -> Iterator[Entry]:
    content, base = read_result(path / "toy.json"), recipe("toy.supsiam")
    try:
        full = to_json(FULL)
        changed = [f"{name} {value}" for name, value in content["size"].items() if value != full.get(name)]
        toy = f"reading {content['reading']['name']!r}" + f", not in App. B's size: {', '.join(changed)}" * bool(
            changed
        )
        for numbers in content["rows"]:
            fields = {"loss.alpha": numbers["alpha"], "train.seed": numbers["seed"]}
            rows = [
                Row(str(path), "toy", "toy", TOY_COLUMNS.get(name, name), float(numbers[name]))
                for name in (*TABLE_1_COLUMNS, *TABLE_2_COLUMNS)
            ]
            yield Entry(path, base.with_set(fields, because="toy study"), rows, toy)
    except (KeyError, TypeError, ValueError, AttributeError, BadInput):
        raise BadInput(f"{path / 'toy.json'}: not a result of supancl paper toy; run that again") from None


def _detectors_in(path: Path) -> list[Row]:
    """The rows of the detectors in this very folder."""
    if not (path / "detect.json").is_file() and not any(path.glob("seed-*/detect.json")):
        return []
    from supancl.detection.train import detector_rows  # slow to import

    return detector_rows(path)


def _add_detectors(entries: dict[Any, Entry], detectors: Sequence[Row]) -> None:
    """Add each detector to the run of its encoder, known by path or, if folders have moved, by the checksum."""
    runs = [entry for entry in entries.values() if entry.recipe is not None and not entry.toy]
    for row in {(Path(row.name).resolve(), row.metric): row for row in detectors}.values():
        origin = folder_of_encoder(Path(row.encoder))
        match = next((run for run in runs if run.path.resolve() == origin.resolve()), None)
        match = match or next((run for run in runs if row.digest and row.digest == run.encoder_checksum), None)
        (match or entries.setdefault(origin, Entry(origin))).rows.append(row)
