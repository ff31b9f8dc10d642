"""The verdict on a run: how good it is by its evaluations, or why nothing can be said, and whether it collapses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from supancl.errors import Collapsed, NonFinite, program_name
from supancl.reports.run_record import Row, RunRecord, as_interval, is_number
from supancl.stats import Interval, Quality, Tone, duration, quality

LOW_STD = 0.3  # healthy runs stay above it (docs/monitor.md)
NEAR_COLLAPSE = 2.0  # times the rank of a collapse; healthy runs of that size have three times as much
LARGE_FALL = 3.0  # of the rank, from its highest value; healthy runs fall too while classes move together
LOST_ACCURACY = 2 / 3  # of the best k-NN; a run that collapses loses it first, while rank and std still go up and down
State = Literal["finished", "running", "stopped", "damaged", "collapsing", "collapsed", "not finite"]
OWN_EVALUATIONS = {"linear": "linear", "knn": r"knn(-k\d+)?"}  # the files; k is less for few references
HEADLINES = {"good": "Clearly better", "unclear": "Unclear", "bad": "Not better"}


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
        more = f" (and {len(record.problems) - 1} more)" if len(record.problems) > 1 else ""
        return Verdict("damaged", "unclear", "Damaged", f"{record.problems[0]}{more}; the rest is shown as it is.")
    if failure := _find_nonfinite(record):
        return Verdict("not finite", "bad", "Stopped", f"{failure}.")
    state: State = "running" if record.is_running else "finished" if record.end_step is not None else "stopped"
    progress = _describe_progress(record)
    if not record.rows:
        return Verdict(state, "unclear", state.capitalize(), f"{progress}; nothing is logged.")
    collapse = diagnose(record)
    if collapse.state:
        from supancl.training.monitor import likely_cause

        advice = f" {likely_cause(record.recipe)}." if record.recipe is not None else ""
        title = collapse.state.capitalize()
        return Verdict(collapse.state, "bad", title, f"{progress}; {collapse.finding}.{advice}")
    if state == "running":
        return Verdict(state, "unclear", "Still training", f"{progress}; {collapse.finding}.")
    name, found = judge_record(record)
    title = headline(record)
    if state == "stopped":
        found = found._replace(tone="bad" if found.tone == "bad" else "unclear")
        title = "Stopped"
    resume = f" To continue it: {program_name()} pretrain --resume --out {shlex.quote(str(record.folder))}"
    by = f"{found.text} ({name})" if name else found.text
    return Verdict(state, found.tone, title, f"{by}; {progress}.{resume if state == 'stopped' else ''}")


# --- how good the encoder is ------------------------------------------------------------------------------------------


def judge_result(result: Mapping[str, Any]) -> Quality | None:
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


def own_evaluations(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    """The evaluations on the run's own data by protocol, with its usual settings: the convex linear probe and k-NN."""
    source, found = record.settings.get("data.source"), dict[str, Mapping[str, Any]]()
    for name in OWN_EVALUATIONS:
        for stem, result in record.evaluations.items():
            if re.fullmatch(OWN_EVALUATIONS[name], stem) and result.get("source") == source:
                found.setdefault(name, result)
    return found


def headline(record: RunRecord) -> str:
    """How good a run is, in a word or two; torch is not needed for it."""
    name, found = judge_record(record)
    return HEADLINES[found.tone] if name else "Not evaluated"


def judge_record(record: RunRecord) -> tuple[str, Quality]:
    """Which evaluation says how good a run is, and what it says; without one the last check while training."""
    for name, result in own_evaluations(record).items():
        if (found := judge_result(result)) is not None:
            return name, found
    check: Row = record.checks[-1] if record.checks else {}
    key = next((key for key in ("knn", "knn_map") if is_number(check.get(key))), "")
    ends = as_interval(check.get(f"{key}_interval")) if key else None
    if not key:
        return "", Quality("unclear", "its accuracy was not measured")
    text = f"at the last check {'k-NN' if key == 'knn' else 'k-NN mAP'} {check[key]:.1f}%"
    if ends is not None:
        text += f" [{ends[0]:.1f}, {ends[1]:.1f}]"
    even = 100 / max(1, len(record.classes))  # chance is at least that
    if key == "knn" and len(record.classes) > 1 and check["knn"] <= even:
        return "", Quality("bad", f"{text}, not above chance ({even:.1f}%)")
    return "", Quality("unclear", text)


# --- where the run is -------------------------------------------------------------------------------------------------


def _find_nonfinite(record: RunRecord) -> str:
    """Why the run ended at a value that is not a number; empty if it did not."""
    if record.stop is not None and record.stop.exit_code == NonFinite.exit_code:
        return record.stop.reason
    for row in record.train_rows[-1:]:
        if "loss" in row and not is_number(row["loss"]):
            return f"the loss is not a finite number at step {row['step']}"
    return ""


def _describe_progress(record: RunRecord) -> str:
    """Where the run is, and what stopped it."""
    if record.end_step is not None:
        return f"finished, epochs: {record.epochs}" if record.epochs else "finished"
    of = f" of {record.steps:,}" if record.steps else ""
    position = f"step {record.last_step:,}{of}"
    if not record.is_running:
        if record.stop is None:
            return f"{position}, killed or cut off"
        return position if record.stop.exit_code == Collapsed.exit_code else f"{position}, by {record.stop.reason}"
    if record.steps and record.seconds and record.last_step:
        left = record.seconds / record.last_step * (record.steps - record.last_step)
        return f"{position}, about {duration(left)} left"
    return position


# --- signs of collapse ------------------------------------------------------------------------------------------------


def rank_bound(record: RunRecord) -> float:
    """The effective rank below which this run counts as collapsed."""
    from supancl.training.monitor import least_healthy_rank

    batch = record.settings.get("train.batch_size")
    supervised = record.recipe.loss.supervised if record.recipe is not None else True  # the lower bound
    distinct = record.about("data").get("distinct_labels")  # only if images have several labels
    classes = distinct if isinstance(distinct, int) else len(record.classes)
    size = batch if isinstance(batch, int) and batch > 0 else 10**9
    return least_healthy_rank(classes, supervised and classes > 1, size)


def diagnose(record: RunRecord) -> Diagnosis:
    """Collapsed by the monitor's rules, collapsing if the values are on their way there, else neither."""
    from supancl.training.monitor import COLLAPSED_STD, LOW_RANK_IN_A_ROW, LOW_STD_IN_A_ROW

    bound = rank_bound(record)
    ranks = _values(record.checks, "effective_rank")
    if (step := _first_run_below(record.train_rows, "std", COLLAPSED_STD, LOW_STD_IN_A_ROW)) is not None:
        finding = f"by step {step:,} all images get nearly the same target (relative std below {COLLAPSED_STD:g})"
        return Diagnosis("collapsed", finding)
    if (step := _first_run_below(record.checks, "effective_rank", bound, LOW_RANK_IN_A_ROW)) is not None:
        finding = f"by step {step:,} targets use few directions (effective rank {ranks[-1]:.1f}, below {bound:.1f})"
        return Diagnosis("collapsed", finding)
    if record.collapsed:
        return Diagnosis("collapsed", "the monitor noticed it")
    signs, std = [], record.last("std")
    has_fallen = bool(ranks) and ranks[-1] * LARGE_FALL < max(ranks)
    if std is not None and std < LOW_STD:
        signs.append(f"relative std is {std:.3f} (below {COLLAPSED_STD:g} is a collapse)")
    if ranks and (ranks[-1] < bound or (ranks[-1] < NEAR_COLLAPSE * bound and has_fallen)):
        signs.append(f"effective rank fell from {max(ranks):.1f} to {ranks[-1]:.1f} (below {bound:.1f} is a collapse)")
    if fall := _accuracy_fall(record.checks, 1.0 if has_fallen else LOST_ACCURACY):
        signs.append(fall)
    if signs:
        return Diagnosis("collapsing", " and ".join(signs))
    seen = [f"relative std {std:.2f}"] if std is not None else []
    return Diagnosis("", ", ".join([*seen, *(f"effective rank {rank:.1f}" for rank in ranks[-1:])]) or "no collapse")


def _accuracy_fall(checks: Sequence[Row], least: float) -> str:
    """`k-NN fell from 13.4% to 8.0%` if the last check is below `least` times the best one, and its interval too."""
    rows = [row for row in checks if is_number(row.get("knn")) and as_interval(row.get("knn_interval"))]
    if not rows:
        return ""
    best, last = max(rows, key=lambda row: float(row["knn"])), rows[-1]
    is_lower = last["knn_interval"][1] < best["knn_interval"][0] and last["knn"] < least * best["knn"]
    return f"k-NN fell from {best['knn']:.1f}% to {last['knn']:.1f}%" if is_lower else ""


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if is_number(row.get(name))]


def _first_run_below(rows: Sequence[Row], name: str, bound: float, length: int) -> int | None:
    """The step at which a value has been below the bound this many times in a row; None if it never was."""
    in_a_row = 0
    for row in rows:
        if is_number(row.get(name)):
            in_a_row = in_a_row + 1 if row[name] < bound else 0
            if in_a_row >= length:
                return int(row["step"])
    return None
