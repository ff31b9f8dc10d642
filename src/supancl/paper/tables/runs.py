"""Read scores from folders (runs, evaluations, toy studies, detectors) and group the seeds of equal settings."""

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
from supancl.evaluation.naming import group_of
from supancl.paper.tables.entries import Entry, MeasuredValue, ScoredDetector
from supancl.paper.toy_study import tables as toy_tables
from supancl.recipes import RECIPES, Recipe, as_released_code, recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.runs.encoder_file import check_same_run, read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.stats import seed_stats
from supancl.sweeps.runner import read_failure
from supancl.training.run import read_result, read_results

# the toy study's names of measures -> the names used for runs
# settings in which detectors may differ and still be averaged and ranked together, or that `ScoredDetector.how` names
DETECTOR_FIELDS_FREE = {
    *("seed", "device", "workers", "memory_gb", "log_every", "checkpoint_every", "eval_every"),
    *("precision", "iters", "batch_size"),
}
TOY_NAMES = {"l_ssl": "ssl", "l_sup": "sup", "S_W": "within", "S_W/S_T": "ratio", "k-NN": "knn"}


class Score(NamedTuple):
    """A mean over n runs with its standard deviation; `interval` is that of a single run. nan: none.

    `how` says how it was measured, if there is more than one way.
    """

    mean: float
    sd: float = math.nan
    interval: float = math.nan
    n: int = 1
    how: str = ""


@dataclass
class Group:
    """Runs that differ only in their seed; `copies` says which runs are not counted, and why."""

    entries: list[Entry]
    copies: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Add a run, unless it is a copy of another one or was trained again with the same seed."""
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
        """The recipe, what differs from it, and the seeds, in words."""
        first = self.entries[0]
        if first.recipe is None:
            return f"{'detectors of' if first.detectors else 'evaluations in'} {first.path}"
        changed = ", ".join(
            f"{key} = {json.dumps(value, default=str)}" for key, value in changed_fields(first.recipe).items()
        )
        seeds = sorted(entry.recipe.train.seed for entry in self.entries if entry.recipe is not None)
        toy_text = f"the toy study {first.path}{f' ({first.conditions})' if first.conditions else ''}"
        subject_text = toy_text if first.values else first.recipe.name
        seeds_text = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        return f"{subject_text}{f' with {changed}' if changed else ''}; n = {len(seeds)} ({seeds_text})"

    def score(self, measure: str, probe: str = "lbfgs") -> Score | None:
        """The mean over runs measured by one procedure: the most frequent, or the preferred one if equal."""
        procedures: dict[str, list[MeasuredValue]] = {}
        for entry in self.entries:
            for value in entry.find(measure, probe):
                procedures.setdefault(value.how, []).append(value)
        if not procedures:
            return None
        return mean_score(
            min(procedures.values(), key=lambda value: (-len(value), min(single.order for single in value)))
        )

    def average(self, measures: Sequence[str]) -> Score | None:
        """The mean over these measures, averaged over the runs that have all of them."""
        averages = []
        for entry in self.entries:
            values = [value for measure in measures if (value := entry.value(measure)) is not None]
            if values and len(values) == len(measures):
                averages.append(MeasuredValue(statistics.fmean(values)))
        return mean_score(averages) if averages else None


def mean_score(measured: Sequence[MeasuredValue]) -> Score:
    """The mean over runs; a single run keeps its own deviation and interval."""
    values, (first, *others) = [single.value for single in measured], measured
    mean, sd = seed_stats(values)
    return Score(mean, sd if others else first.sd, math.nan if others else first.interval, len(values), first.how)


def package_recipe(trained: Recipe) -> Recipe | None:
    """The package's recipe of this name; None if there is none."""
    if trained.name not in RECIPES:
        return None
    original = recipe(trained.name)
    return as_released_code(original) if trained.compat == "released-code" else original


def changed_fields(trained: Recipe) -> dict[str, Any]:
    """The fields in which a recipe differs from the package's recipe of that name."""
    original = package_recipe(trained)
    if original is None:
        return {}
    # the epochs may shorten the warm-up
    with_same_epochs = resolve_warmup(original.with_set({"train.epochs": trained.train.epochs}))
    original_fields = {**flattened(with_same_epochs), "train.epochs": original.train.epochs}
    # encoder.size determines the views' size and the short side
    ignored = {*fields_marked(trained, INCIDENTAL), "views.size", "data.short_side"}
    return {
        key: value
        for key, value in flattened(trained).items()
        if key not in ignored
        and original_fields.get(key) != value
        and (original_fields.get(key), value) != ("auto", "fp32")
    }


def group_entries(entries: Iterable[Entry]) -> list[Group]:
    """Group runs of equal settings and data, in the order of the arguments."""
    groups: dict[Any, Group] = {}
    for entry in entries:
        key: Any = str(entry.path)
        if entry.recipe is not None:
            key = (group_of(entry.recipe, entry.fingerprint), str(entry.path) if entry.values else "")
        groups.setdefault(key, Group([])).add(entry)
    return list(groups.values())


# --- runs and evaluations ---------------------------------------------------------------------------------------------


def read_entries(paths: Sequence[str]) -> list[Entry]:
    """Read every run and every set of evaluations in these folders once; a study's folder means its runs.

    Detectors are added to the run whose encoder they use; detectors next to the runs are found too.
    """
    by_key: dict[tuple[Path, float, int], Entry] = {}
    detectors: list[ScoredDetector] = []
    for text in paths:
        path = Path(text)
        if not path.is_dir():
            raise BadInput(
                f"{text}: no such folder; give run folders, studies, detectors, or folders with evaluate/*.json"
            )
        entries, detectors_here = _entries_in(path)
        detectors += detectors_here
        for entry in entries:
            alpha, seed = (entry.values.get("alpha", 0.0), entry.recipe.train.seed if entry.recipe else 0)
            key = (entry.path.resolve(), alpha, seed)
            if key in by_key:
                by_key[key].evaluations |= entry.evaluations
            else:
                by_key[key] = entry
    return _with_detectors(list(by_key.values()), detectors)


def _with_detectors(entries: list[Entry], named_detectors: Sequence[ScoredDetector]) -> list[Entry]:
    """The entries with their detectors, matched by path or, if folders have moved, by the encoder's checksum.

    A detector that was named but matches no run gets the run of its encoder, or an entry without a recipe.
    """
    runs = [entry for entry in entries if entry.recipe is not None and not entry.values]
    named_paths = {detector.path.resolve() for detector in named_detectors}
    detectors_nearby = [
        detector
        for detector in detectors_near(entry.path for entry in runs)
        if detector.path.resolve() not in named_paths
    ]
    new_entries: dict[str, Entry] = {}
    for detector in {detector.path.resolve(): detector for detector in (*named_detectors, *detectors_nearby)}.values():
        match = next((run for run in runs if detector.began_from(run.path)), None) or next(
            (run for run in runs if detector.weights and detector.weights == run.encoder_checksum), None
        )
        if match is None and detector in detectors_nearby:
            continue
        if match is None:
            folder = folder_of_encoder(Path(detector.encoder))
            match = new_entries.setdefault(
                detector.encoder, _read_entry(folder) if RunFolder(folder).has_run else Entry(folder)
            )
        match.detectors.append(detector)
    return [*entries, *new_entries.values()]


def _entries_in(path: Path) -> tuple[list[Entry], list[ScoredDetector]]:
    """The entries and detectors of a folder: itself, or what is one folder below it."""
    if holds_detectors(path):
        return [], read_detectors(path)
    if _is_entry(path):
        return [_read_entry(path)], []
    if (path / "toy.json").exists():
        return _toy_entries(path), []
    children = [child for child in sorted(path.iterdir()) if child.is_dir()]
    detectors = [detector for child in children if holds_detectors(child) for detector in read_detectors(child)]
    children = [child for child in children if not holds_detectors(child)]
    entries = [_read_entry(child) for child in children if _is_entry(child)]
    entries += [
        entry
        for child in children
        if not _is_entry(child) and (child / "toy.json").exists()
        for entry in _toy_entries(child)
    ]
    if not entries and not detectors:
        raise BadInput(
            f"{path}: no run (recipe.json), no evaluate/*.json, no toy.json and no detector (detect.json) "
            "here or one folder below; give run folders, studies, or folders with evaluate/*.json"
        )
    return entries, detectors


def _is_entry(path: Path) -> bool:
    return RunFolder(path).has_run or any(RunFolder(path).evaluations.glob("*.json"))


def _read_entry(path: Path) -> Entry:
    evaluations = read_results(path)
    # the evaluations in a suite's folder name their run as encoder
    candidates = [
        path,
        *(Path(str(evaluation["encoder"])) for evaluation in evaluations.values() if evaluation.get("encoder")),
    ]
    for candidate in candidates:
        folder = RunFolder(folder_of_encoder(candidate))
        if folder.has_run:
            all_evaluations = evaluations if folder.path == path else read_results(folder.path) | evaluations
            trained, _ = folder.read_recipe()  # raises BadInput if the file is broken
            folder.check_recipe_file()
            if folder.encoder.exists():
                check_same_run(folder.encoder, read_header(folder.encoder)[0])
            data, _ = folder.read_data()
            return Entry(
                folder.path,
                trained,
                all_evaluations,
                fingerprint=str(data.get("fingerprint") or ""),
                unfinished=_describe_unfinished(folder, trained),
            )
    return Entry(path, None, evaluations)


def _describe_unfinished(folder: RunFolder, trained: Recipe) -> str:
    stopped_at, failed = folder.describe_early_end(trained), read_failure(folder.path)
    return f"{stopped_at} ({failed.reason})" if stopped_at and failed else stopped_at


def _toy_entries(path: Path) -> list[Entry]:
    content = read_result(path / "toy.json")
    base, entries = recipe("toy.supsiam"), []
    column_names = {
        name: TOY_NAMES.get(name, name) for name in (*toy_tables.TABLE_1_COLUMNS, *toy_tables.TABLE_2_COLUMNS)
    }
    try:
        conditions = toy_tables.conditions(content) if "reading" in content else ""
        for row in content["rows"]:
            values = {
                column_names[name]: float(value)
                for name, value in row.items()
                if name in column_names and value is not None
            }
            trained = base.with_set({"loss.alpha": row["alpha"], "train.seed": row["seed"]}, because="toy study")
            entries.append(Entry(path, trained, values=values | {"alpha": float(row["alpha"])}, conditions=conditions))
    except (KeyError, TypeError, ValueError, AttributeError, BadInput):
        raise BadInput(
            f"{path / 'toy.json'}: not a result of supancl paper toy; run that again with another --out"
        ) from None
    return entries


# --- detectors --------------------------------------------------------------------------------------------------------


def holds_detectors(path: Path) -> bool:
    """Whether a folder holds a detector, or detectors of several seeds."""
    return os.path.isfile(path / "detect.json") or any(path.glob("seed-*/detect.json"))  # False if it may not be read


def read_detectors(path: Path) -> list[ScoredDetector]:
    """Read the detectors of a folder of `supancl detect train`: one, or one per seed."""
    from supancl.detection.saving import read_finished_runs  # slow to import
    from supancl.detection.spec import detect_spec

    detectors = []
    for run in read_finished_runs(path):
        defaults = flattened(detect_spec(run.spec.arch))
        changed = {
            name: value
            for name, value in flattened(run.spec).items()
            if name not in DETECTOR_FIELDS_FREE and value != defaults[name]
        }
        identity = [changed, run.settings.get("fingerprint"), run.settings.get("test_fingerprint")]
        identity_hash = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:6]
        data_name = Path(str(run.scores.get("data", ""))).name
        how = (
            f"{run.spec.arch} detector, {run.spec.iters} iterations of {run.spec.batch_size} images, tested on "
            f"{run.scores.get('images')} images of {data_name} (settings {identity_hash}"
            f"{f': {len(changed)} not the usual ones' if changed else ''})"
        )
        detectors.append(
            ScoredDetector(
                run.path, run.encoder, str(run.settings.get("weights") or ""), run.spec.seed, how, run.scores
            )
        )
    return detectors


def detectors_near(runs: Iterable[Path]) -> Iterator[ScoredDetector]:
    """Find tested detectors in the runs' folders and their parent folders; unfinished ones are skipped."""
    folders = dict.fromkeys(parent for run in runs for parent in (run, run.parent) if parent.is_dir())
    for parent in folders:
        for folder in (path for path in sorted(parent.iterdir()) if os.path.isdir(path) and holds_detectors(path)):
            try:
                yield from read_detectors(folder)
            except BadInput:
                continue
