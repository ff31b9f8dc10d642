"""Folders become scores: runs, folders of evaluations and toy studies, with seeds of equal settings put together."""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import INCIDENTAL, fields_marked, flattened
from supancl.errors import BadInput
from supancl.evaluate.naming import group_of
from supancl.paper.tables.entries import Entry, Found, ScoredDetector
from supancl.paper.toy import tables as toy_tables
from supancl.recipes import RECIPES, Recipe, as_released_code, recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.stats import seed_stats
from supancl.sweeps.measures import read_result
from supancl.sweeps.runs import read_failure
from supancl.weights.run_folder import RunFolder

# measures of the toy study under the names that runs have for them
TOY_NAMES = {"l_ssl": "ssl", "l_sup": "sup", "S_W": "within", "S_W/S_T": "ratio", "k-NN": "knn"}


class Score(NamedTuple):
    """A mean over n runs with its standard deviation; `interval` is a single run's own. nan where there is none.

    `how` says how it was measured, where there is more than one way.
    """

    mean: float
    sd: float = math.nan
    interval: float = math.nan
    n: int = 1
    how: str = ""


@dataclass
class Group:
    """Runs that differ in their seed alone; `copies` says which runs are not counted, and why."""

    entries: list[Entry]
    copies: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """A run that is there already, copied or trained again with the same seed, is no further seed."""
        for other in self.entries:
            if entry.recipe is not None and other.recipe is not None and not entry.values:
                shared = f"seed {entry.recipe.train.seed}" if entry.recipe.train.seed == other.recipe.train.seed else ""
                shared = "the weights" if entry.weights & other.weights else shared
                if shared:
                    self.copies.append(f"{entry.path}: not counted, it has {shared} of {other.path}")
                    return
        self.entries.append(entry)

    @property
    def recipe(self) -> Recipe | None:
        return self.entries[0].recipe

    @property
    def description(self) -> str:
        """In words: the recipe, what differs from it, and the seeds."""
        first = self.entries[0]
        if first.recipe is None:
            return f"{'detectors of' if first.detectors else 'evaluations in'} {first.path}"
        changed = ", ".join(f"{key} = {json.dumps(value, default=str)}" for key, value in changes(first.recipe).items())
        seeds = sorted(entry.recipe.train.seed for entry in self.entries if entry.recipe is not None)
        toy = f"the toy study {first.path}{f' ({first.conditions})' if first.conditions else ''}"
        what = toy if first.values else first.recipe.name
        listed = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        return f"{what}{f' with {changed}' if changed else ''}; n = {len(seeds)} ({listed})"

    def score(self, measure: str, probe: str = "lbfgs") -> Score | None:
        """The mean over the runs that were measured in one way: that of most runs, of equally many the preferred."""
        ways: dict[str, list[Found]] = {}
        for entry in self.entries:
            for found in entry.find(measure, probe):
                ways.setdefault(found.how, []).append(found)
        if not ways:
            return None
        return mean_score(min(ways.values(), key=lambda found: (-len(found), min(each.order for each in found))))

    def average(self, measures: Sequence[str]) -> Score | None:
        """The mean over these measures, run by run; of the runs that have them all."""
        found = []
        for entry in self.entries:
            values = [value for measure in measures if (value := entry.value(measure)) is not None]
            if values and len(values) == len(measures):
                found.append(Found(statistics.fmean(values)))
        return mean_score(found) if found else None


def mean_score(found: Sequence[Found]) -> Score:
    """The mean of numbers measured in one way, one of each run; a single one brings its own spread."""
    values, (first, *more) = [each.value for each in found], found
    mean, sd = seed_stats(values)
    return Score(mean, sd if more else first.sd, math.nan if more else first.interval, len(values), first.how)


def published(built: Recipe) -> Recipe | None:
    """The package's own recipe of that name; None where there is none."""
    if built.name not in RECIPES:
        return None
    own = recipe(built.name)
    return as_released_code(own) if built.compat == "released-code" else own


def published_forms(built: Recipe) -> list[Recipe]:
    """Every form of the package's own recipe that a run of it may have; none where there is no such recipe.

    A run of 0.1.0 with compat="released-code" has the pool and the branches of the paper's form.
    """
    own = published(built)
    return [] if own is None else [own] if own.compat == "paper" else [own, recipe(built.name)]


def changes(built: Recipe) -> dict[str, Any]:
    """The fields in which a recipe differs from the package's own of that name."""
    own = published(built)
    if own is None:
        return {}
    as_long = resolve_warmup(own.with_set({"train.epochs": built.train.epochs}))  # a cut warm-up follows from them
    own_fields = {**flattened(as_long), "train.epochs": own.train.epochs}
    # encoder.size says the views' size too, and the short side follows from it
    ignored = {*fields_marked(built, INCIDENTAL), "views.size", "data.short_side"}
    return {
        key: value
        for key, value in flattened(built).items()
        if key not in ignored and own_fields.get(key) != value and (own_fields.get(key), value) != ("auto", "fp32")
    }


def group_entries(entries: Iterable[Entry]) -> list[Group]:
    """Runs of equal settings and data together, in the order in which they were given."""
    groups: dict[Any, Group] = {}
    for entry in entries:
        key: Any = str(entry.path)
        if entry.recipe is not None:
            key = (group_of(entry.recipe, entry.fingerprint), str(entry.path) if entry.values else "")
        groups.setdefault(key, Group([])).add(entry)
    return list(groups.values())


# --- runs and evaluations ---------------------------------------------------------------------------------------------


def read_entries(paths: Sequence[str]) -> list[Entry]:
    """Every run and every set of evaluations in these folders, each once; a study's folder stands for its runs.

    Detectors join the run that they began from; those that lie beside the runs are found.
    """
    found: dict[tuple[Path, float, int], Entry] = {}
    detectors: list[ScoredDetector] = []
    for text in paths:
        path = Path(text)
        if not path.is_dir():
            raise BadInput(
                f"{text}: no such folder; name run folders, studies, detectors, or folders with evaluate/*.json"
            )
        entries, more = _entries_in(path)
        detectors += more
        for entry in entries:
            alpha, seed = (entry.values.get("alpha", 0.0), entry.recipe.train.seed if entry.recipe else 0)
            key = (entry.path.resolve(), alpha, seed)
            if key in found:
                found[key].evaluations |= entry.evaluations
            else:
                found[key] = entry
    return _with_detectors(list(found.values()), detectors)


def _with_detectors(entries: list[Entry], given: Sequence[ScoredDetector]) -> list[Entry]:
    """The entries with their detectors, by path or, where folders have moved, by the encoder's checksum.

    A detector that was given and is of none of them gets the run that it names, or an entry without a recipe.
    """
    runs = [entry for entry in entries if entry.recipe is not None and not entry.values]
    known = {detector.path.resolve() for detector in given}
    beside = [
        detector for detector in detectors_beside(entry.path for entry in runs) if detector.path.resolve() not in known
    ]
    others: dict[str, Entry] = {}
    for detector in {each.path.resolve(): each for each in (*given, *beside)}.values():
        match = next((run for run in runs if detector.began_from(run.path)), None) or next(
            (run for run in runs if detector.weights and detector.weights == run.present), None
        )
        if match is None and detector in beside:
            continue
        if match is None:
            named = Path(detector.encoder)
            home = named.parent if named.name == "encoder.safetensors" else named
            match = others.setdefault(detector.encoder, _read_entry(home) if RunFolder(home).has_run else Entry(home))
        match.detectors.append(detector)
    return [*entries, *others.values()]


def _entries_in(path: Path) -> tuple[list[Entry], list[ScoredDetector]]:
    """What a folder stands for: itself, or what lies one folder below it."""
    if holds_detectors(path):
        return [], read_detectors(path)
    if _is_entry(path):
        return [_read_entry(path)], []
    if (path / "toy.json").exists():
        return _toy_entries(path), []
    below = [child for child in sorted(path.iterdir()) if child.is_dir()]
    detectors = [detector for child in below if holds_detectors(child) for detector in read_detectors(child)]
    below = [child for child in below if not holds_detectors(child)]
    inner = [_read_entry(child) for child in below if _is_entry(child)]
    inner += [
        entry
        for child in below
        if not _is_entry(child) and (child / "toy.json").exists()
        for entry in _toy_entries(child)
    ]
    if not inner and not detectors:
        raise BadInput(
            f"{path}: no run (recipe.json), no evaluate/*.json, no toy.json and no detector (detect.json) "
            "here or one folder below; name run folders, studies, or folders with evaluate/*.json"
        )
    return inner, detectors


def _is_entry(path: Path) -> bool:
    return RunFolder(path).has_run or any(RunFolder(path).evaluations.glob("*.json"))


def _read_entry(path: Path) -> Entry:
    evaluations = read_evaluations(path)
    # a suite's folder is of a run when its evaluations name one as their encoder
    homes = [
        path,
        *(Path(str(evaluation["encoder"])) for evaluation in evaluations.values() if evaluation.get("encoder")),
    ]
    for home in homes:
        folder = RunFolder(home.parent if home.name == "encoder.safetensors" else home)
        if folder.has_run:
            own = evaluations if folder.path == path else read_evaluations(folder.path) | evaluations
            chosen, _ = folder.read_recipe()  # says what is wrong with the file
            data, _ = folder.read_data()
            return Entry(
                folder.path,
                chosen,
                own,
                fingerprint=str(data.get("fingerprint") or ""),
                unfinished=_unfinished(folder, chosen),
            )
    return Entry(path, None, evaluations)


def read_evaluations(run: Path) -> dict[str, dict[str, Any]]:
    """The evaluations in a run folder by the names of their files."""
    return {file.stem: read_result(file) for file in sorted(RunFolder(run).evaluations.glob("*.json"))}


def _unfinished(folder: RunFolder, chosen: Recipe) -> str:
    early, failed = folder.describe_early_end(chosen), read_failure(folder.path)
    return f"{early} ({failed.reason})" if early and failed else early


def _toy_entries(path: Path) -> list[Entry]:
    content = read_result(path / "toy.json")
    base, entries = recipe("toy.supsiam"), []
    known = {name: TOY_NAMES.get(name, name) for name in (*toy_tables.ONE, *toy_tables.TWO)}
    try:
        conditions = toy_tables.conditions(content) if "reading" in content else ""
        for row in content["rows"]:
            values = {known[name]: float(value) for name, value in row.items() if name in known and value is not None}
            chosen = base.with_set({"loss.alpha": row["alpha"], "train.seed": row["seed"]}, because="toy study")
            entries.append(Entry(path, chosen, values=values | {"alpha": float(row["alpha"])}, conditions=conditions))
    except (KeyError, TypeError, ValueError, AttributeError, BadInput):
        raise BadInput(
            f"{path / 'toy.json'}: not what supancl paper toy writes; run it again with another --out"
        ) from None
    return entries


# --- detectors --------------------------------------------------------------------------------------------------------


def holds_detectors(path: Path) -> bool:
    """Whether a folder is a detector's, or one of several seeds."""
    return os.path.isfile(path / "detect.json") or any(path.glob("seed-*/detect.json"))  # False where we may not look


def read_detectors(path: Path) -> list[ScoredDetector]:
    """The detectors of a folder of `supancl detect train`: one, or one a seed."""
    from supancl.detect.comparing import (  # torchvision's detectors take time to import
        FIELDS_NOT_COMPARED,
        open_finished_runs,
    )
    from supancl.detect.spec import detect_spec

    found = []
    for run in open_finished_runs(str(path)):
        usual = flattened(detect_spec(run.spec.arch))
        changed = {
            name: value
            for name, value in flattened(run.spec).items()
            if name not in {*FIELDS_NOT_COMPARED, "precision", "iters", "batch_size"} and value != usual[name]
        }
        marks = [changed, run.settings.get("fingerprint"), run.settings.get("test_fingerprint")]
        short = hashlib.sha256(json.dumps(marks, sort_keys=True, default=str).encode()).hexdigest()[:6]
        where = Path(str(run.scores.get("data", ""))).name
        how = (
            f"{run.spec.arch} detector, {run.spec.iters} iterations of {run.spec.batch_size} images, tested on "
            f"{run.scores.get('images')} images of {where} (settings {short}"
            f"{f': {len(changed)} not the usual ones' if changed else ''})"
        )
        found.append(
            ScoredDetector(
                run.path, run.encoder, str(run.settings.get("weights") or ""), run.spec.seed, how, run.scores
            )
        )
    return found


def detectors_beside(runs: Iterable[Path]) -> Iterator[ScoredDetector]:
    """Tested detectors in the runs' folders and in the folders that these lie in; unfinished ones are left out."""
    places = dict.fromkeys(place for run in runs for place in (run, run.parent) if place.is_dir())
    for place in places:
        for folder in (path for path in sorted(place.iterdir()) if os.path.isdir(path) and holds_detectors(path)):
            try:
                yield from read_detectors(folder)
            except BadInput:
                continue
