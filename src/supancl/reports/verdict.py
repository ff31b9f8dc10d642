"""What a run folder says about its run, and the verdict: how good the encoder is, and whether it collapses.

Nothing is loaded or trusted: whatever is missing or damaged is named, and torch is not needed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from supancl.config import parse_json
from supancl.errors import Collapsed, NonFinite, SupanclError, program_name
from supancl.files import is_as_written, is_locked, read_text, reason
from supancl.recipes import Recipe
from supancl.recipes.recipe import OUR_CHOICE
from supancl.runs.folder import RunFolder
from supancl.runs.log import StopCause, read_end, read_rows, read_stop
from supancl.stats import Interval, Quality, Tone, duration, quality

LOW_STD = 0.3  # healthy runs stay above it (docs/monitor.md)
NEAR_COLLAPSE = 2.0  # times the rank of a collapse; healthy runs of that size have three times as much
LARGE_FALL = 3.0  # of the rank, from its highest value; healthy runs fall too while classes move together
LOST_ACCURACY = 2 / 3  # of the best k-NN; a run that collapses loses it first, while rank and std still go up and down
OWN_EVALUATIONS = {"linear": "linear", "knn": r"knn(-k\d+)?"}  # the files; k is less for few references
HEADLINES = {"good": "Clearly better", "unclear": "Unclear", "bad": "Not better"}
Row = Mapping[str, Any]
State = Literal["finished", "running", "stopped", "damaged", "collapsing", "collapsed", "not finite"]


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder describes it; what is not known is None or empty."""

    folder: Path
    content: Mapping[str, Any] = field(default_factory=dict)  # of recipe.json
    rows: Sequence[Row] = ()  # of metrics.jsonl
    problems: Sequence[str] = ()
    end_step: int | None = None  # of a finished run
    collapsed: bool = False  # by finished.json
    stop: StopCause | None = None
    is_running: bool = False
    evaluations: Mapping[str, Row] = field(default_factory=dict)  # by file name

    def about(self, name: str) -> dict[str, Any]:
        """An object of recipe.json, such as `data` or `versions`; empty if there is none."""
        value = self.content.get(name)
        return dict(value) if isinstance(value, Mapping) else {}

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
        """Where the value of a setting comes from; a section may have one source for all of its fields."""
        sources, words = self.about("recipe").get("sources"), name.split(".")
        names = [".".join(words[:length]) for length in range(len(words), 0, -1)]
        found = [sources[name] for name in names if name in sources] if isinstance(sources, Mapping) else []
        return str(found[0]) if found else OUR_CHOICE

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe, if this version and its plugins can build it."""
        try:
            return RunFolder(self.folder).read_recipe()[0]
        except (SupanclError, OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    @property
    def classes(self) -> list[str]:
        names = self.content.get("classes")
        return [str(name) for name in names] if isinstance(names, list) else []

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
    def last_step(self) -> int:
        return max((row["step"] for row in self.rows), default=0)

    @cached_property
    def steps_per_epoch(self) -> int | None:
        """By the last step of an epoch, which is always logged; else by the number of images."""
        for row, following in zip_longest(self.rows, self.rows[1:]):
            ends_epoch = row["kind"] == "monitor" or (following is not None and following["epoch"] > row["epoch"])
            if ends_epoch and row["step"] > 0 and row["epoch"] >= 0:
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


def format_interval(ends: Any) -> str:
    """`[77.5, 84.7]`; empty if it is none."""
    interval = as_interval(ends)
    return "" if interval is None else f"[{interval[0]:.1f}, {interval[1]:.1f}]"


def read_record(path: Path) -> RunRecord:
    """Read a run folder. Never raises because of what is in it."""
    folder, problems = RunFolder(path), list[str]()

    def read(file: Path, is_sound: Callable[[Any], bool]) -> dict[str, Any]:
        try:
            parsed = parse_json(read_text(file))
            if not isinstance(parsed, dict) or not is_sound(parsed):
                raise ValueError("it is none of supancl's")
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{file.relative_to(path)}: {reason(error)}")
            return {}
        if not is_as_written(parsed):
            problems.append(f"{file.relative_to(path)} was changed or is damaged")
        return parsed

    content = read(folder.recipe_file, lambda parsed: isinstance(parsed.get("recipe"), dict))
    rows: list[dict[str, Any]] = []
    try:
        rows, damage = read_rows(folder.metrics_file) if folder.metrics_file.exists() else ([], "")
    except OSError as error:
        damage = reason(error)
    problems += [f"metrics.jsonl: {damage}"] * bool(damage)
    evaluations = {file.stem: read(file, is_as_written) for file in sorted(folder.evaluations.glob("*.json"))}
    end = read_end(folder)
    return RunRecord(
        path,
        content,
        rows,
        problems,
        None if end is None else end.step,
        end is not None and end.collapsed,
        None if end is not None else read_stop(folder),
        end is None and is_locked(folder.lock_file),
        {name: result for name, result in evaluations.items() if result},
    )


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


class Diagnosis(NamedTuple):
    """What the log says about collapse, with the values behind it; the state is empty without a sign of it."""

    state: Literal["", "collapsing", "collapsed"]
    finding: str


def find_verdict(record: RunRecord) -> Verdict:
    """The verdict on a run, by its evaluations, its log and its end."""
    if record.problems:
        return Verdict("damaged", "unclear", "Damaged", f"{'; '.join(record.problems)}; the rest is shown as it is.")
    last_loss = [row["loss"] for row in record.train_rows[-1:] if "loss" in row]
    by_nan = record.stop is not None and record.stop.exit_code == NonFinite.exit_code
    if by_nan or not all(map(is_number, last_loss)):
        why = record.stop.reason if by_nan and record.stop else f"the loss is not finite at step {record.last_step}"
        return Verdict("not finite", "bad", "Stopped", f"{why}.")
    state: State = "running" if record.is_running else "finished" if record.end_step is not None else "stopped"
    progress = _describe_progress(record)
    if not record.rows:
        return Verdict(state, "unclear", state.capitalize(), f"{progress}; nothing is logged.")
    collapse = diagnose(record)
    if collapse.state:
        from supancl.training.monitor import likely_cause

        advice = f" {likely_cause(record.recipe)}." if record.recipe is not None else ""
        return Verdict(collapse.state, "bad", collapse.state.capitalize(), f"{progress}; {collapse.finding}.{advice}")
    if state == "running":
        return Verdict(state, "unclear", "Still training", f"{progress}; {collapse.finding}.")
    name, found = quality_of_run(record)
    by = f"{found.text} ({name})" if name else found.text
    if state == "stopped":
        tone: Tone = "bad" if found.tone == "bad" else "unclear"
        resume = f"To continue it: {program_name()} pretrain --resume --out {shlex.quote(str(record.folder))}"
        return Verdict(state, tone, "Stopped", f"{by}; {progress}. {resume}")
    return Verdict(state, found.tone, headline(record), f"{by}; {progress}.")


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


def own_evaluations(record: RunRecord) -> dict[str, Row]:
    """The evaluations on the run's own data by protocol, with its usual settings: the convex linear probe and k-NN."""
    source, found = record.settings.get("data.source"), dict[str, Row]()
    for name, pattern in OWN_EVALUATIONS.items():
        for stem, result in record.evaluations.items():
            if re.fullmatch(pattern, stem) and result.get("source") == source:
                found.setdefault(name, result)
    return found


def headline(record: RunRecord) -> str:
    """How good a run is, in a word or two."""
    name, found = quality_of_run(record)
    return HEADLINES[found.tone] if name else "Not evaluated"


def quality_of_run(record: RunRecord) -> tuple[str, Quality]:
    """Which evaluation says how good a run is, and what it says; without one the last check while training."""
    for name, result in own_evaluations(record).items():
        if (found := quality_of_result(result)) is not None:
            return name, found
    check: Row = record.checks[-1] if record.checks else {}
    key = next((key for key in ("knn", "knn_map") if is_number(check.get(key))), "")
    if not key:
        return "", Quality("unclear", "its accuracy was not measured")
    title = "k-NN" if key == "knn" else "k-NN mAP"
    text = f"at the last check {title} {check[key]:.1f}% {format_interval(check.get(f'{key}_interval'))}".rstrip()
    even = 100 / max(1, len(record.classes))  # chance is at least that
    if key == "knn" and len(record.classes) > 1 and check["knn"] <= even:
        return "", Quality("bad", f"{text}, not above chance ({even:.1f}%)")
    return "", Quality("unclear", text)


def _describe_progress(record: RunRecord) -> str:
    """Where the run is, and what stopped it."""
    epochs = record.count("train.epochs") or 0
    if record.end_step is not None:
        return f"finished, epochs: {epochs}" if epochs else "finished"
    steps = (record.steps_per_epoch or 0) * epochs
    position = f"step {record.last_step:,}" + (f" of {steps:,}" if steps else "")
    if not record.is_running:
        if record.stop is None:
            return f"{position}, killed or cut off"
        return position if record.stop.exit_code == Collapsed.exit_code else f"{position}, by {record.stop.reason}"
    if steps and record.seconds and record.last_step:
        position += f", about {duration(record.seconds / record.last_step * (steps - record.last_step))} left"
    return position


# --- signs of collapse ------------------------------------------------------------------------------------------------


def rank_bound(record: RunRecord) -> float:
    """The effective rank below which this run counts as collapsed."""
    from supancl.training.monitor import least_healthy_rank

    supervised = record.recipe.loss.supervised if record.recipe is not None else True  # the lower bound
    distinct = record.about("data").get("distinct_labels")  # only if images have several labels
    classes = distinct if isinstance(distinct, int) else len(record.classes)
    return least_healthy_rank(classes, supervised and classes > 1, record.count("train.batch_size") or 10**9)


def diagnose(record: RunRecord) -> Diagnosis:
    """Collapsed by the monitor's rules, collapsing if the values are on their way there, else neither."""
    from supancl.training.monitor import COLLAPSED_STD, LOW_RANK_IN_A_ROW, LOW_STD_IN_A_ROW

    bound, std = rank_bound(record), record.last("std")
    ranks = [float(row["effective_rank"]) for row in record.checks if is_number(row.get("effective_rank"))]
    if (step := _first_run_below(record.train_rows, "std", COLLAPSED_STD, LOW_STD_IN_A_ROW)) is not None:
        finding = f"by step {step:,} all images get nearly the same target (relative std below {COLLAPSED_STD:g})"
        return Diagnosis("collapsed", finding)
    if (step := _first_run_below(record.checks, "effective_rank", bound, LOW_RANK_IN_A_ROW)) is not None:
        finding = f"by step {step:,} targets use few directions (effective rank {ranks[-1]:.1f}, below {bound:.1f})"
        return Diagnosis("collapsed", finding)
    if record.collapsed:
        return Diagnosis("collapsed", "the monitor noticed it")
    signs = []
    has_fallen = bool(ranks) and ranks[-1] * LARGE_FALL < max(ranks)
    if std is not None and std < LOW_STD:
        signs.append(f"relative std is {std:.3f} (below {COLLAPSED_STD:g} is a collapse)")
    if ranks and (ranks[-1] < bound or (ranks[-1] < NEAR_COLLAPSE * bound and has_fallen)):
        signs.append(f"effective rank fell from {max(ranks):.1f} to {ranks[-1]:.1f} (below {bound:.1f} is a collapse)")
    checks = [row for row in record.checks if is_number(row.get("knn")) and as_interval(row.get("knn_interval"))]
    best, last = max(checks, key=lambda row: float(row["knn"]), default={}), checks[-1] if checks else {}
    least = 1.0 if has_fallen else LOST_ACCURACY
    if last and last["knn_interval"][1] < best["knn_interval"][0] and last["knn"] < least * best["knn"]:
        signs.append(f"k-NN fell from {best['knn']:.1f}% to {last['knn']:.1f}%")
    if signs:
        return Diagnosis("collapsing", " and ".join(signs))
    seen = [f"relative std {std:.2f}"] if std is not None else []
    return Diagnosis("", ", ".join([*seen, *(f"effective rank {rank:.1f}" for rank in ranks[-1:])]) or "no collapse")


def _first_run_below(rows: Sequence[Row], name: str, bound: float, length: int) -> int | None:
    """The step at which a value has been below the bound this many times in a row; None if it never was."""
    in_a_row = 0
    for row in rows:
        if is_number(row.get(name)):
            in_a_row = in_a_row + 1 if row[name] < bound else 0
            if in_a_row >= length:
                return int(row["step"])
    return None
