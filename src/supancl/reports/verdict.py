"""What a run folder says about its run, and the verdict: how good the encoder is, and whether it collapsed.

Nothing is loaded or trusted: whatever is missing or damaged is named, and torch is not needed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from supancl.errors import Collapsed, NonFinite, SupanclError, program_name
from supancl.evaluation.results import figure_text
from supancl.files import is_as_written, is_locked, read_json, reason
from supancl.recipes import Recipe
from supancl.recipes.recipe import OUR_CHOICE
from supancl.runs.folder import RunFolder
from supancl.runs.log import read_end, read_rows, read_stop
from supancl.stats import Interval, Quality, Tone, duration, quality

OWN_EVALUATIONS = {"linear": "linear", "knn": r"knn(-k\d+)?"}  # the files; k is less for few references
TITLES = {"linear": "linear", "knn": "k-NN"}
HEADLINES = {"good": "Clearly better", "unclear": "Unclear", "bad": "Not better"}
Row = Mapping[str, Any]
State = Literal["finished", "running", "stopped", "damaged", "collapsed", "not finite"]


class RunRecord(RunFolder):
    """A run folder and what was in it when it was opened. Never raises because of that; `problems` names damage."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        files = {file: read_json(file) for file in sorted(self.evaluations.glob("*.json"))}
        contents = {self.recipe_file: self.content, **files}
        damaged = {file for file, content in contents.items() if not content or not is_as_written(content)}
        self.results = {file.stem: result for file, result in files.items() if file not in damaged}
        self.rows, damage = list[dict[str, Any]](), ""
        try:
            if self.metrics_file.exists():
                self.rows, damage = read_rows(self.metrics_file)
        except OSError as error:
            damage = reason(error)
        is_recipe = isinstance(self.about("recipe").get("name"), str)
        self.problems = [f"{file.relative_to(path)} is missing, was changed or is damaged" for file in sorted(damaged)]
        self.problems += ["recipe.json holds no recipe"] * (bool(self.content) and not is_recipe)
        self.problems += [f"metrics.jsonl: {damage}"] * bool(damage)
        self.end = read_end(self)
        self.stop = None if self.end is not None else read_stop(self)
        self.is_running = self.end is None and is_locked(self.lock_file)
        failed = self.stop is not None and self.stop.exit_code == Collapsed.exit_code
        self.collapsed = failed if self.end is None else self.end.collapsed

    @cached_property
    def content(self) -> dict[str, Any]:
        return read_json(self.recipe_file)

    def about(self, name: str) -> dict[str, Any]:
        """An object of recipe.json, such as `data` or `versions`; empty if there is none."""
        return self.read(name, dict[str, Any]())

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Each dotted field of the recipe as recipe.json holds it."""
        fields = {name: value for name, value in self.about("recipe").items() if name != "sources"}
        return dict(_flatten(fields))

    def count(self, name: str) -> int | None:
        """A setting that is a positive number, else None."""
        value = self.settings.get(name)
        return value if isinstance(value, int) and value > 0 else None

    def source_of(self, name: str) -> str:
        """Where the value of a setting comes from."""
        return OUR_CHOICE if self.recipe is None else self.recipe.fields().get(name, (None, OUR_CHOICE))[1]

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe, if this version and its plugins can build it."""
        try:
            return self.read_recipe()[0]
        except (SupanclError, OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    @property
    def classes(self) -> list[str]:
        return list(map(str, self.read("classes", list[Any]())))

    @cached_property
    def train_rows(self) -> list[Row]:
        return [row for row in self.rows if row["kind"] == "train"]

    @cached_property
    def checks(self) -> list[Row]:
        return [row for row in self.rows if row["kind"] == "monitor"]

    def last(self, name: str) -> float | None:
        """The value of the last check, else of the last logged step."""
        values = [rows[-1].get(name) for rows in (self.checks, self.train_rows) if rows]
        return next((float(value) for value in values if is_number(value)), None)

    @property
    def epochs_done(self) -> int:
        """The epochs that ended; the last of an epoch is its check."""
        last: Row = self.rows[-1] if self.rows else {"epoch": 0, "kind": ""}
        return int(last["epoch"]) + (last["kind"] == "monitor" or (self.end is not None and bool(self.rows)))

    @property
    def last_step(self) -> int:
        return max((row["step"] for row in self.rows), default=0)

    @cached_property
    def steps_per_epoch(self) -> int | None:
        """By the first check, which ends an epoch; else by the number of images."""
        for row in self.checks[:1]:
            return max(1, int(row["step"]) // (int(row["epoch"]) + 1))
        images, batch = self.about("data").get("train"), self.count("train.batch_size")
        return max(1, images // batch) if isinstance(images, int) and batch else None

    @cached_property
    def seconds(self) -> float | None:
        """The time of the logged steps, without the monitor's checks; None if the log does not say."""
        batch, before, total = self.count("train.batch_size") or 0, 0, 0.0
        for row in self.train_rows:
            rate = row.get("images_per_second")
            total += (row["step"] - before) * batch / rate if is_number(rate) and rate > 0 else 0.0
            before = row["step"]
        return total or None


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of the log is a finite number; null stands for others."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def as_interval(ends: Any) -> tuple[float, float] | None:
    """Both ends of an interval in JSON; None if it is none."""
    is_pair = isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))
    return (float(ends[0]), float(ends[1])) if is_pair else None


def _flatten(values: Row, path: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


# --- the verdict ------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """How training went, how good the encoder is (red: collapsed or not better; grey: unclear), and both in words."""

    state: State
    tone: Tone
    headline: str
    detail: str

    @property
    def sentence(self) -> str:
        return f"{self.headline}: {self.detail}"


def find_verdict(record: RunRecord) -> Verdict:
    """The verdict on a run, by its evaluations, its log and its end."""
    if record.problems:
        return Verdict("damaged", "unclear", "Damaged", f"{'; '.join(record.problems)}; the rest is shown as it is.")
    stop, progress = record.stop, _describe_progress(record)
    state: State = "running" if record.is_running else "stopped" if record.end is None else "finished"
    last_loss = [row["loss"] for row in record.train_rows[-1:] if "loss" in row]
    if (stop is not None and stop.exit_code == NonFinite.exit_code) or not all(map(is_number, last_loss)):
        why = f"the loss is not finite at step {record.last_step}" if stop is None else stop.reason
        return Verdict("not finite", "bad", "Stopped", f"{why}.")
    if not record.rows:
        return Verdict(state, "unclear", state.capitalize(), f"{progress}; nothing is logged.")
    if record.collapsed:
        from supancl.training.monitor import likely_cause

        values = {"relative std": record.last("std"), "effective rank": record.last("effective_rank")}
        found = ", ".join(f"{name} {value:.2g}" for name, value in values.items() if value is not None)
        advice = f" {likely_cause(record.recipe)}." if record.recipe is not None else ""
        return Verdict("collapsed", "bad", "Collapsed", f"{found}; {progress}.{advice}")
    headline, (tone, by, _) = quality_of_run(record)
    if state == "running":
        return Verdict(state, "unclear", "Still training", f"{progress}; {by}.")
    if state == "stopped":
        resume = f"To continue it: {program_name()} pretrain --resume --out {shlex.quote(str(record.path))}"
        return Verdict(state, "bad" if tone == "bad" else "unclear", "Stopped", f"{by}; {progress}. {resume}")
    return Verdict(state, tone, headline, f"{by}; {progress}.")


def quality_of_result(result: Row) -> Quality | None:
    """How good the encoder of an evaluation is, by its own fields; None if they do not say."""
    tested = result["cross_validated"] if isinstance(result.get("cross_validated"), Mapping) else result
    key = "map" if "map" in tested else "accuracy"
    ends, value, chance = as_interval(tested.get(f"{key}_interval")), tested.get(key), tested.get("chance")
    images = tested.get("tested_images", tested.get("checked_on"))
    if ends is None or not (is_number(value) and is_number(chance) and is_number(images)):
        return None
    gaps = {}
    for row in result["baselines"] if isinstance(result.get("baselines"), list) else ():
        gap = as_interval(row.get("difference_interval")) if isinstance(row, Mapping) else None
        if gap is not None and is_number(row.get("difference")):
            gaps[str(row.get("name"))] = Interval(float(row["difference"]), *gap)
    return quality(images, Interval(float(value), *ends), float(chance), gaps)


def own_results(record: RunRecord) -> dict[str, Row]:
    """The results on the run's own data by protocol, with its usual settings: the convex linear probe and k-NN.

    k-NN is that of the last check while training if it was not evaluated.
    """
    source, found = record.settings.get("data.source"), dict[str, Row]()
    for name, pattern in OWN_EVALUATIONS.items():
        for stem, result in record.results.items():
            if re.fullmatch(pattern, stem) and result.get("source") == source:
                found.setdefault(name, result)
    check: Row = record.checks[-1] if record.checks else {}
    about = {"tested_images": check.get("knn_queries"), "is_last_check": True}
    if is_number(check.get("knn_map")):
        found.setdefault("knn", {**about, "map": check["knn_map"]})
    elif is_number(check.get("knn")):
        chance = 100 / len(record.classes) if len(record.classes) > 1 else None  # at least
        values = {"accuracy": check["knn"], "accuracy_interval": check.get("knn_interval"), "chance": chance}
        found.setdefault("knn", {**about, **values})
    return found


def quality_of_run(record: RunRecord) -> tuple[str, Quality]:
    """How good a run is in a word or two, and as its evaluation says it; without one, as the last check says it."""
    for name, result in own_results(record).items():
        if (found := quality_of_result(result)) is not None:
            is_last_check, figure = "is_last_check" in result, figure_text(result.get("cross_validated") or result)
            text = f"{'at the last check ' * is_last_check}{TITLES[name]} {figure}, {found.text}"
            return "Not evaluated" if is_last_check else HEADLINES[found.tone], found._replace(text=text)
    return "Not evaluated", Quality("unclear", "its accuracy was not measured")


def _describe_progress(record: RunRecord) -> str:
    """Where the run is, and what stopped it."""
    epochs, stop = record.count("train.epochs") or 0, record.stop
    if record.end is not None:
        return f"finished, epochs: {epochs}"
    steps = (record.steps_per_epoch or 0) * epochs
    position = f"step {record.last_step:,}" + (f" of {steps:,}" if steps else "")
    if record.is_running and steps and record.seconds and record.last_step:
        position += f", about {duration(record.seconds / record.last_step * (steps - record.last_step))} left"
    if record.is_running or record.collapsed:
        return position
    return f"{position}, {'killed or cut off' if stop is None else f'by {stop.reason}'}"


def rank_bound(record: RunRecord) -> float:
    """The effective rank below which this run counts as collapsed."""
    from supancl.training.monitor import least_healthy_rank

    supervised = record.recipe.loss.supervised if record.recipe is not None else True  # the lower bound
    distinct = record.about("data").get("distinct_labels")  # only if images have several labels
    classes = distinct if isinstance(distinct, int) else len(record.classes)
    return least_healthy_rank(classes, supervised and classes > 1, record.count("train.batch_size") or 10**9)
