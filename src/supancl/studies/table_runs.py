"""Folders become scores: runs, folders of evaluations and toy studies, with seeds of equal settings put together."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from supancl.checkpoint import load_encoder, load_newest
from supancl.config import flattened
from supancl.data.benchmarks import BENCHMARKS
from supancl.data.sources import same_source
from supancl.errors import BadInput
from supancl.evaluate.kept import encoder_key
from supancl.judge.groups import INCIDENTAL, group_of
from supancl.judge.naming import registered, source_of, unusual
from supancl.recipes import RECIPES, Recipe, recipe, released
from supancl.recipes.recipe import resolve_warmup
from supancl.run import RunFolder
from supancl.studies import toy_tables
from supancl.studies.many import failure_of, spread

# measures of the toy study under the names that runs have for them
TOY_NAMES = {"l_ssl": "ssl", "l_sup": "sup", "S_W": "within", "S_W/S_T": "ratio", "k-NN": "knn"}


class Score(NamedTuple):
    """A mean over n runs with its standard deviation; `interval` is a single run's own. nan where there is none."""

    mean: float
    sd: float = math.nan
    interval: float = math.nan
    n: int = 1


@dataclass
class Entry:
    """One run, or one encoder of which only evaluations are known (then without a recipe)."""

    path: Path
    recipe: Recipe | None = None
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)  # of a toy study, which keeps no run folders
    conditions: str = ""  # of a toy study: its reading, and a size that is not the paper's
    fingerprint: str = ""  # of the data, wherever they lie
    unfinished: str = ""  # how far its log goes, of a run that was not trained to its end
    passed_over: set[str] = field(default_factory=set)  # what does not belong in the table, and why

    def value(self, measure: str) -> tuple[float, float] | None:
        """The number and its interval (nan: none); None where it was not measured, or before the run's end."""
        if self.unfinished:
            self.passed_over.add(f"{self.path}: not counted, {self.unfinished}")
            return None
        if measure in self.values:
            return self.values[measure], math.nan
        found = self._evaluated(measure)
        if found is None and self.recipe is not None and not self.values:
            told = self._logged(measure)
            found = None if told is None else (told, math.nan)
        return found if found is not None and math.isfinite(found[0]) else None

    def _evaluated(self, measure: str) -> tuple[float, float] | None:
        kind, _, rest = measure.partition(":")
        if kind in ("within", "ratio"):
            return self._number("variance", kind, own=True, scale=100 if kind == "ratio" else 1)
        if kind in ("ap", "ap50"):
            return self._number("detect-voc", kind)
        if kind == "linear" and rest and self.family != rest:
            return self._number(f"linear-{rest}", "accuracy", of=rest, but="split")
        if kind in ("knn", "linear"):
            return self._number(kind, "accuracy", own=True)
        return self._number(f"{kind}-{rest.replace(':', '-')}", "accuracy", of=rest.partition(":")[0])

    def _number(
        self, base: str, key: str, own: bool = False, of: str = "", but: str = "", scale: float = 1
    ) -> tuple[float, float] | None:
        """`own`: only if measured on the data that the run was trained on; `of`: on that data set of the registry.

        Only with the protocol's own settings; `but` names one that may be another, and is then preferred.
        """
        fitting = []
        for name, kept in self.evaluations.items():
            if kept.get("base", name) != base or not isinstance(kept.get(key), (int, float)):
                continue
            fault = self._fault(kept, own, of, but)
            if fault:
                self.passed_over.add(f"{self.path}: {name}.json {fault}")
            else:
                fitting.append(kept)
        if not fitting:
            return None
        kept = max(fitting, key=lambda kept: len(unusual(kept)))
        interval = kept.get("interval")
        return scale * float(kept[key]), float(interval) if isinstance(interval, (int, float)) else math.nan

    def _fault(self, kept: Mapping[str, Any], own: bool, of: str, but: str) -> str:
        """Why an evaluation does not belong in a table of the paper; empty where it does."""
        source, other = source_of(kept), {key: value for key, value in unusual(kept).items() if key != but}
        if own and self.recipe is not None and source and not same_source(source, self.recipe.data.source):
            return f"is of {source}, not of the data it was trained on"
        if of in BENCHMARKS and source and of not in (source, registered(source)):
            return f"is of {source}, not of {of}@ROOT, the data set that the table means"
        if isinstance(kept.get("weights"), str) and self.present not in ("", kept["weights"]):
            return ("is of other weights than the run's encoder has now (judged before its last epoch?); measure it "
                    "again")
        if kept.get("overlaps_training"):
            return "was measured on images that the run was trained on"
        if kept.get("partial"):
            return "is of a data set that was not whole"
        if other:
            return f"has other settings ({', '.join(f'{key} {value}' for key, value in other.items())})"
        return ""

    def _logged(self, measure: str) -> float | None:
        """From metrics.jsonl: losses over the last epoch; k-NN and variance of the monitor's last check."""
        folder = RunFolder(self.path)
        if measure == "collapsed":
            state, _ = load_newest(folder.checkpoints)
            return None if state is None else float(state["monitor"]["collapsed"])
        rows = folder.metrics()
        if measure == "sup" and self.recipe is not None and not self._has_supervised_target(self.recipe):
            return None  # what is logged there is l_ssl once more
        if measure in ("ssl", "sup"):
            train = [row for row in rows if row["kind"] == "train"]
            last = [row[measure] for row in train if row["epoch"] == train[-1]["epoch"] and row[measure] is not None]
            return statistics.fmean(last) if last else None
        key = {"knn": "knn", "within": "s_w", "ratio": "s_w/s_t"}.get(measure, "")
        checks = [row[key] for row in rows if row["kind"] == "monitor" and row.get(key) is not None]
        return (100 if measure == "ratio" else 1) * checks[-1] if checks else None

    @staticmethod
    def _has_supervised_target(chosen: Recipe) -> bool:
        return chosen.loss.supervised or chosen.pool.kind != "none"

    @cached_property
    def present(self) -> str:
        """Of the run's encoder as it is now; empty where none can be read: evaluations travel without."""
        try:
            return "" if self.recipe is None else encoder_key(load_encoder(self.path))
        except BadInput:
            return ""

    @property
    def weights(self) -> set[str]:
        """Of the encoders that the evaluations were made of."""
        return {kept["weights"] for kept in self.evaluations.values() if isinstance(kept.get("weights"), str)}

    @property
    def family(self) -> str:
        """cifar10 of cifar10.supsiam: the setting its recipe belongs to."""
        return self.recipe.name.split(".")[0] if self.recipe is not None else ""


@dataclass
class Group:
    """Runs that differ in their seed alone; of `copies` it is said that they are not counted."""

    entries: list[Entry]
    copies: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """A run that is there already, copied or trained again with the same seed, is no further seed."""
        for other in self.entries:
            if entry.recipe is not None and other.recipe is not None and not entry.values:
                alike = f"seed {entry.recipe.train.seed}" if entry.recipe.train.seed == other.recipe.train.seed else ""
                alike = "the weights" if entry.weights & other.weights else alike
                if alike:
                    self.copies.append(f"{entry.path}: not counted, it has {alike} of {other.path}")
                    return
        self.entries.append(entry)

    @property
    def recipe(self) -> Recipe | None:
        return self.entries[0].recipe

    @property
    def told(self) -> str:
        """What it is, in words: the recipe, what differs from it, and the seeds."""
        first = self.entries[0]
        if first.recipe is None:
            return f"evaluations in {first.path}"
        changed = ", ".join(f"{key} = {json.dumps(value, default=str)}" for key, value in changes(first.recipe).items())
        seeds = sorted(entry.recipe.train.seed for entry in self.entries if entry.recipe is not None)
        toy = f"the toy study {first.path}{f' ({first.conditions})' if first.conditions else ''}"
        what = toy if first.values else first.recipe.name
        listed = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        return f"{what}{f' with {changed}' if changed else ''}; n = {len(seeds)} ({listed})"

    def score(self, measure: str) -> Score | None:
        found = [value for entry in self.entries if (value := entry.value(measure)) is not None]
        return combined(found)

    def average(self, measures: Sequence[str]) -> Score | None:
        """The mean over these measures, run by run; of the runs that have them all."""
        found = []
        for entry in self.entries:
            values = [value[0] for measure in measures if (value := entry.value(measure)) is not None]
            if values and len(values) == len(measures):
                found.append((statistics.fmean(values), math.nan))
        return combined(found)


def combined(found: Sequence[tuple[float, float]]) -> Score | None:
    if not found:
        return None
    values = [value for value, _ in found]
    return Score(statistics.fmean(values), spread(values), found[0][1] if len(found) == 1 else math.nan, len(found))


def published(built: Recipe) -> Recipe | None:
    """The package's own recipe of that name; None where there is none."""
    if built.name not in RECIPES:
        return None
    own = recipe(built.name)
    return released(own) if built.compat == "released-code" else own


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
    kept = {**flattened(as_long), "train.epochs": own.train.epochs}
    told = (*INCIDENTAL, "views.size")  # encoder.size says that one too
    return {key: value for key, value in flattened(built).items()
            if key not in told and kept.get(key) != value and (kept.get(key), value) != ("auto", "fp32")}


def grouped(entries: Iterable[Entry]) -> list[Group]:
    """Runs of equal settings and data together, in the order in which they were given."""
    groups: dict[Any, Group] = {}
    for entry in entries:
        key: Any = str(entry.path)
        if entry.recipe is not None:
            key = (group_of(entry.recipe, entry.fingerprint), str(entry.path) if entry.values else "")
        groups.setdefault(key, Group([])).add(entry)
    return list(groups.values())


def read_entries(paths: Sequence[str]) -> list[Entry]:
    """Every run and every set of evaluations in these folders, each once; a study's folder stands for its runs."""
    found: dict[tuple[Path, float, int], Entry] = {}
    for text in paths:
        path = Path(text)
        if not path.is_dir():
            raise BadInput(f"{text}: no such folder; name run folders, studies, or folders with evaluate/*.json")
        for entry in _entries_in(path):
            alpha, seed = (entry.values.get("alpha", 0.0), entry.recipe.train.seed if entry.recipe else 0)
            key = (entry.path.resolve(), alpha, seed)
            if key in found:
                found[key].evaluations |= entry.evaluations
            else:
                found[key] = entry
    return list(found.values())


def _entries_in(path: Path) -> list[Entry]:
    if _is_entry(path):
        return [_entry(path)]
    if (path / "toy.json").exists():
        return _toy(path)
    below = [child for child in sorted(path.iterdir()) if child.is_dir()]
    inner = [_entry(child) for child in below if _is_entry(child)]
    inner += [entry for child in below if not _is_entry(child) and (child / "toy.json").exists()
              for entry in _toy(child)]
    if not inner:
        raise BadInput(f"{path}: no run (recipe.json), no evaluate/*.json and no toy.json here or one folder below; "
                       "name run folders, studies, or folders with evaluate/*.json")
    return inner


def _is_entry(path: Path) -> bool:
    return RunFolder(path).holds_run or any(RunFolder(path).evaluations.glob("*.json"))


def _entry(path: Path) -> Entry:
    evaluations = {file.stem: _json(file) for file in sorted(RunFolder(path).evaluations.glob("*.json"))}
    # a suite's folder is of a run when its evaluations name one as their encoder
    homes = [path, *(Path(str(kept["encoder"])) for kept in evaluations.values() if kept.get("encoder"))]
    for home in homes:
        folder = RunFolder(home.parent if home.name == "encoder.safetensors" else home)
        if folder.holds_run:
            own = evaluations if folder.path == path else {
                file.stem: _json(file) for file in sorted(folder.evaluations.glob("*.json"))} | evaluations
            chosen, _ = folder.read_recipe()  # says what is wrong with the file
            data, _ = folder.read_data()
            return Entry(folder.path, chosen, own, fingerprint=str(data.get("fingerprint") or ""),
                         unfinished=_unfinished(folder, chosen))
    return Entry(path, None, evaluations)


def _unfinished(folder: RunFolder, chosen: Recipe) -> str:
    early, failed = folder.ends_early(chosen), failure_of(folder.path)
    return f"{early} ({failed.reason})" if early and failed else early


def _toy(path: Path) -> list[Entry]:
    content = _json(path / "toy.json")
    base, entries = recipe("toy.supsiam"), []
    known = {name: TOY_NAMES.get(name, name) for name in (*toy_tables.ONE, *toy_tables.TWO)}
    try:
        told = toy_tables.conditions(content) if "reading" in content else ""
        for row in content["rows"]:
            values = {known[name]: float(value) for name, value in row.items() if name in known and value is not None}
            chosen = base.with_set({"loss.alpha": row["alpha"], "train.seed": row["seed"]}, because="toy study")
            entries.append(Entry(path, chosen, values=values | {"alpha": float(row["alpha"])}, conditions=told))
    except (KeyError, TypeError, ValueError, AttributeError, BadInput):
        raise BadInput(f"{path / 'toy.json'}: not what supancl toy writes; run it again with another --out") from None
    return entries


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise BadInput(f"{file}: cannot be read ({reason}); evaluate the run again, or remove the file") from None
    if not isinstance(content, Mapping):
        raise BadInput(f"{file}: not an object with results; evaluate the run again, or remove the file")
    return dict(content)
