"""What a run folder says about its run. Nothing is loaded or trusted: whatever is missing or damaged is said."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard

from supancl.config import parse_json
from supancl.errors import SupanclError
from supancl.files import is_as_written, is_locked, read_text, reason
from supancl.recipes import Recipe
from supancl.recipes.recipe import OUR_CHOICE
from supancl.runs.folder import RunFolder
from supancl.runs.log import StopCause, read_end, read_rows, read_stop

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder describes it; what is not known is None or empty."""

    folder: Path
    content: Mapping[str, Any] = field(default_factory=dict)  # of recipe.json
    rows: Sequence[Row] = ()  # of metrics.jsonl, without gaps
    problems: Sequence[str] = ()
    end_step: int | None = None  # of a finished run
    collapsed: bool = False  # by finished.json
    stop: StopCause | None = None
    is_running: bool = False
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by file name

    # --- recipe -------------------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Each dotted field of the recipe as recipe.json holds it."""
        stored = self.content.get("recipe")
        values = dict(_flatten(stored)) if isinstance(stored, Mapping) else {}
        return {name: value for name, value in values.items() if not name.startswith("sources.")}

    def _count(self, name: str) -> int | None:
        """A setting that is a positive number, else None."""
        value = self.settings.get(name)
        return value if isinstance(value, int) and value > 0 else None

    def source_of(self, name: str) -> str:
        """Where the value of a setting comes from; a section may have one source for all of its fields."""
        stored = self.content.get("recipe")
        sources = stored.get("sources") if isinstance(stored, Mapping) else None
        words = name.split(".")
        for length in range(len(words), 0, -1):
            source = sources.get(".".join(words[:length])) if isinstance(sources, Mapping) else None
            if isinstance(source, str):
                return source
        return OUR_CHOICE

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe, if this version and its plugins can build it."""
        try:
            return RunFolder(self.folder).read_recipe()[0]
        except (SupanclError, OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def about(self, name: str) -> dict[str, Any]:
        """An object of recipe.json, such as `data` or `versions`; empty if there is none."""
        value = self.content.get(name)
        return dict(value) if isinstance(value, Mapping) else {}

    @property
    def classes(self) -> list[str]:
        names = self.content.get("classes")
        return [str(name) for name in names] if isinstance(names, list) else []

    @property
    def epochs(self) -> int | None:
        return self._count("train.epochs")

    # --- log ----------------------------------------------------------------------------------------------------------

    @cached_property
    def train_rows(self) -> list[Row]:
        return [row for row in self.rows if row["kind"] == "train"]

    @cached_property
    def checks(self) -> list[Row]:
        return [row for row in self.rows if row["kind"] == "monitor"]

    def last(self, name: str) -> float | None:
        """The value of the last check, else of the last logged step."""
        for rows in (self.checks, self.train_rows):
            if rows and is_number(rows[-1].get(name)):
                return float(rows[-1][name])
        return None

    @property
    def last_step(self) -> int:
        return max((row["step"] for row in self.rows), default=0)

    @cached_property
    def steps_per_epoch(self) -> int | None:
        """By the last step of an epoch, which is always logged; else by the number of images."""
        for row, following in zip_longest(self.rows, self.rows[1:]):
            ends_epoch = row["kind"] == "monitor" or (following is not None and following["epoch"] > row["epoch"])
            if ends_epoch and row["step"] > 0 and row["epoch"] >= 0:
                return max(1, int(row["step"]) // (int(row["epoch"]) + 1))
        images, batch = self.about("data").get("train"), self._count("train.batch_size")
        return max(1, images // batch) if isinstance(images, int) and batch else None

    @property
    def steps(self) -> int | None:
        """The number of steps of the whole run."""
        if self.end_step is not None:
            return self.end_step
        return self.steps_per_epoch * self.epochs if self.steps_per_epoch and self.epochs else None

    @property
    def epochs_done(self) -> int:
        return self.last_step // self.steps_per_epoch if self.steps_per_epoch else 0

    @cached_property
    def seconds(self) -> float | None:
        """The time of the logged steps, without the monitor's checks; None if the log does not say."""
        batch, before, total = self._count("train.batch_size"), 0, 0.0
        for row in self.train_rows:
            rate = row.get("images_per_second")
            if batch and is_number(rate) and rate > 0:
                total += (row["step"] - before) * batch / rate
            before = row["step"]
        return total or None

    @property
    def images_per_second(self) -> float | None:
        batch = self._count("train.batch_size")
        return self.last_step * batch / self.seconds if batch and self.seconds else None


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of the log is a finite number; null stands for others."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def as_interval(ends: Any) -> tuple[float, float] | None:
    """Both ends of an interval in JSON; None if it is none."""
    is_pair = isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))
    return (float(ends[0]), float(ends[1])) if is_pair else None


def format_interval(ends: Any) -> str:
    """`[77.5, 84.7]`; empty if it is none."""
    interval = as_interval(ends)
    return "" if interval is None else f"[{interval[0]:.1f}, {interval[1]:.1f}]"


def read_record(path: Path, is_running: bool | None = None) -> RunRecord:
    """Read a run folder. Never raises because of what is in it.

    `is_running`: for the process that trains the run and knows; else the lock says.
    """
    folder, problems = RunFolder(path), []
    content: Mapping[str, Any] = {}
    try:
        parsed = parse_json(read_text(folder.recipe_file))
        if not isinstance(parsed, dict) or not isinstance(parsed.get("recipe"), dict):
            raise ValueError("it is no recipe.json of supancl")
        content = parsed
        if not is_as_written(content):
            problems.append("recipe.json was changed or is damaged")
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"recipe.json: {reason(error)}")
    rows, damage = _read_log(folder)
    evaluations, failed = _read_evaluations(folder)
    end = read_end(folder)
    end_step = None if end is None else end.step
    return RunRecord(
        path,
        content,
        rows,
        [*problems, *damage, *failed],
        end_step,
        end is not None and end.collapsed,
        None if end_step is not None else read_stop(folder),
        end_step is None and (is_locked(folder.lock_file) if is_running is None else is_running),
        evaluations,
    )


def _read_log(folder: RunFolder) -> tuple[list[dict[str, Any]], list[str]]:
    if not folder.metrics_file.exists():
        return [], []
    try:
        rows, damage = read_rows(folder.metrics_file)
    except OSError as error:
        return [], [f"metrics.jsonl: {reason(error)}"]
    return rows, [f"metrics.jsonl: {damage}"] if damage else []


def _read_evaluations(folder: RunFolder) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    results: dict[str, Mapping[str, Any]] = {}
    problems = []
    for path in sorted(folder.evaluations.glob("*.json")):
        try:
            result = parse_json(read_text(path))
            if not isinstance(result, dict) or not is_as_written(result):
                raise ValueError("changed or damaged")
            results[path.stem] = result
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"evaluate/{path.name}: {reason(error)}")
    return results, problems


def _flatten(values: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        dotted = f"{path}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{dotted}.")
        else:
            yield dotted, value
