"""The verdict on a run in one sentence: is it healthy, collapsing, stopped, still running or damaged, and why?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal, NamedTuple

from supancl.errors import Collapsed, NonFinite, plural, program_name
from supancl.reports.run_record import Row, RunRecord, as_interval, is_number
from supancl.stats import duration
from supancl.training.monitor import (
    COLLAPSED_STD,
    LOW_RANK_IN_A_ROW,
    LOW_STD_IN_A_ROW,
    least_healthy_rank,
    likely_cause,
)

LOW_STD = 0.3  # healthy runs stay above it (docs/monitor.md)
NEAR_COLLAPSE = 2.0  # times the rank of a collapse; healthy runs of that size have three times as much
LARGE_FALL = 3.0  # of the rank, from its highest value; healthy runs fall too while classes move together
LOST_ACCURACY = 2 / 3  # of the best k-NN; a run that collapses loses it first, while rank and std still go up and down
State = Literal["healthy", "collapsing", "collapsed", "not finite", "stopped", "running", "damaged", "unknown"]
TONES: dict[State, Literal["good", "warn", "bad"]] = {
    "healthy": "good", "running": "good", "stopped": "warn", "unknown": "warn", "collapsing": "bad", "collapsed": "bad",
    "not finite": "bad", "damaged": "bad",
}  # fmt: skip


class Verdict(NamedTuple):
    """The state of a run, and a sentence with the reason; `is_doubtful`: healthy, but no better than its start."""

    state: State
    sentence: str
    is_doubtful: bool = False

    @property
    def tone(self) -> str:
        return "warn" if self.is_doubtful else TONES[self.state]


class Diagnosis(NamedTuple):
    """What the log says about collapse: healthy, collapsing or collapsed, with the values behind it."""

    state: State
    finding: str


def find_verdict(record: RunRecord) -> Verdict:
    """The verdict on a run, by its log, its end and what is damaged."""
    if record.problems:
        more = f" and {len(record.problems) - 1} more" if len(record.problems) > 1 else ""
        return Verdict("damaged", f"Damaged: {record.problems[0]}{more}; the rest is shown as it is.")
    if (failure := _find_nonfinite(record)) is not None:
        return Verdict("not finite", f"Stopped, because {failure}.")
    if not record.rows:
        return _verdict_without_log(record)
    state, finding = diagnose(record)
    progress = _describe_progress(record)
    start = progress[0].upper() + progress[1:]
    if state != "healthy":
        advice = f" {likely_cause(record.recipe)}." if record.recipe is not None else ""
        return Verdict(state, f"{state.capitalize()} ({progress}): {finding}.{advice}")
    if record.is_running:
        return Verdict("running", f"{start}; healthy so far: {finding}.")
    if record.end_step is None:
        command = f"{program_name()} pretrain --resume --out {shlex.quote(str(record.folder))}"
        sentence = f"{start}; healthy until then: {finding}. To continue it: {command}"
        return Verdict("stopped", sentence)
    evaluated, finding_of_it = _find_evaluation(record)
    result = f" Evaluated ({evaluated}): {finding_of_it}." if evaluated else ""
    is_doubtful = bool(evaluated) and not finding_of_it.startswith("better")
    return Verdict("healthy", f"Healthy: {progress}; {finding}.{result}", is_doubtful)


def _find_evaluation(record: RunRecord) -> tuple[str, str]:
    """Name and finding of the linear evaluation on the run's own data, else of another one; empty if there is none."""
    findings = {
        name: str(result["verdict"])
        for name, result in record.evaluations.items()
        if result.get("verdict") and result.get("source") == record.settings.get("data.source")
    }
    name = min(findings, key=lambda name: not name.startswith("linear"), default="")
    return name, findings.get(name, "")


def _verdict_without_log(record: RunRecord) -> Verdict:
    if record.is_running:
        return Verdict("running", "Still training: nothing is logged yet.")
    if record.end_step is not None:
        return Verdict("unknown", "Finished, but metrics.jsonl is missing, so nothing is known about its training.")
    return Verdict("stopped", f"Stopped before anything was logged{_describe_stop(record)}.")


def _find_nonfinite(record: RunRecord) -> str | None:
    """Why the run ended at a value that is not a number; None if it did not."""
    if record.stop is not None and record.stop.exit_code == NonFinite.exit_code:
        return record.stop.reason
    for row in record.train_rows[-1:]:
        if "loss" in row and not is_number(row["loss"]):
            return f"the loss is not a finite number at step {row['step']}"
    return None


def _describe_progress(record: RunRecord) -> str:
    """Whether the run is finished, still training or stopped, and where."""
    if record.end_step is not None:
        return "finished" + (f" after {plural(record.epochs, 'epoch')}" if record.epochs else "")
    epochs = f" of {record.epochs}" if record.epochs else ""
    steps = f" of {record.steps:,}" if record.steps else ""
    position = f"in epoch {record.rows[-1]['epoch'] + 1}{epochs}, after step {record.last_step:,}{steps}"
    if not record.is_running:
        return f"stopped {position}{_describe_stop(record)}"
    left = ""
    if record.steps and record.seconds and record.last_step:
        left = f", about {duration(record.seconds / record.last_step * (record.steps - record.last_step))} left"
    return f"still training {position}{left}"


def _describe_stop(record: RunRecord) -> str:
    """What stopped the run; empty for a collapse, which the verdict describes anyway."""
    if record.stop is None:
        return ", without a word: it was killed, or the machine went down"
    return f", by {record.stop.reason}" if record.stop.exit_code != Collapsed.exit_code else ""


# --- signs of collapse ------------------------------------------------------------------------------------------------


def rank_bound(record: RunRecord) -> float:
    """The effective rank below which this run counts as collapsed."""
    batch = record.setting("train.batch_size", int)
    supervised = record.recipe.loss.supervised if record.recipe is not None else True  # the lower bound
    distinct = record.about("data").get("distinct_labels")  # only if images have several labels
    classes = distinct if isinstance(distinct, int) else len(record.classes)
    return least_healthy_rank(classes, supervised and classes > 1, batch or 10**9)


def diagnose(record: RunRecord) -> Diagnosis:
    """Collapsed by the monitor's rules, collapsing if the values are on their way there, else healthy."""
    bound = rank_bound(record)
    ranks = _values(record.checks, "effective_rank")
    if (step := _first_run_below(record.train_rows, "std", COLLAPSED_STD, LOW_STD_IN_A_ROW)) is not None:
        finding = (
            f"by step {step:,} all images get nearly the same target (relative std below {COLLAPSED_STD:g} at "
            f"{LOW_STD_IN_A_ROW} logged steps in a row; healthy is {LOW_STD:g} to 1)"
        )
        return Diagnosis("collapsed", finding)
    if (step := _first_run_below(record.checks, "effective_rank", bound, LOW_RANK_IN_A_ROW)) is not None:
        finding = (
            f"by step {step:,} a batch's targets use few directions (effective rank {ranks[-1]:.1f} at the last check; "
            f"below {bound:.1f} twice in a row is a collapse)"
        )
        return Diagnosis("collapsed", finding)
    if record.collapsed:
        return Diagnosis("collapsed", "finished.json says that the monitor noticed it")
    signs = list(_signs_of_collapse(record, ranks, bound))
    if signs:
        return Diagnosis("collapsing", " and ".join(signs))
    return Diagnosis("healthy", _describe_health(record, ranks, bound))


def _signs_of_collapse(record: RunRecord, ranks: Sequence[float], bound: float) -> list[str]:
    signs = []
    std = record.last("std")
    if std is not None and std < LOW_STD:
        signs.append(f"relative std is {std:.3f} (healthy is {LOW_STD:g} to 1, below {COLLAPSED_STD:g} is a collapse)")
    if ranks and (ranks[-1] < bound or (ranks[-1] < NEAR_COLLAPSE * bound and ranks[-1] * LARGE_FALL < max(ranks))):
        signs.append(f"effective rank fell from {max(ranks):.1f} to {ranks[-1]:.1f} (below {bound:.1f} is a collapse)")
    has_fallen = bool(ranks) and ranks[-1] * LARGE_FALL < max(ranks)
    if fall := _accuracy_fall(record.checks, 1.0 if has_fallen else LOST_ACCURACY):
        signs.append(fall)
    return signs


def _accuracy_fall(checks: Sequence[Row], least: float) -> str:
    """`k-NN fell from 13.4% to 8.0%` if the last check is below `least` times the best one, and its interval too."""
    rows = [row for row in checks if is_number(row.get("knn")) and as_interval(row.get("knn_interval"))]
    if not rows:
        return ""
    best, last = max(rows, key=lambda row: float(row["knn"])), rows[-1]
    before, now = as_interval(best["knn_interval"]), as_interval(last["knn_interval"])
    is_lower = before is not None and now is not None and now[1] < before[0] and last["knn"] < least * best["knn"]
    return f"k-NN fell from {best['knn']:.1f}% to {last['knn']:.1f}%" if is_lower else ""


def _describe_health(record: RunRecord, ranks: Sequence[float], bound: float) -> str:
    pieces = []
    if (std := record.last("std")) is not None:
        pieces.append(f"relative std {std:.2f} (collapse: below {COLLAPSED_STD:g})")
    if ranks:
        pieces.append(f"effective rank {ranks[-1]:.1f} (collapse: below {bound:.1f})")
    for key, title in (("knn", "k-NN"), ("knn_map", "k-NN mAP")):
        figures = _values(record.checks, key)
        if len(figures) > 1:
            verb = _describe_change(record.checks, key, figures)
            pieces.append(f"{title} {verb} from {figures[0]:.1f}% to {figures[-1]:.1f}%")
        elif figures:
            pieces.append(f"{title} {figures[0]:.1f}%")
    return ", ".join(pieces) or "no sign of collapse, but neither std nor rank was measured"


def _describe_change(checks: Sequence[Row], key: str, figures: Sequence[float]) -> str:
    """How the figure went from the first check to the last; it rose or fell only if its intervals say so."""
    intervals = [as_interval(row.get(f"{key}_interval")) for row in checks if is_number(row.get(key))]
    first, last = intervals[0], intervals[-1]
    if first is None or last is None:
        return "went"
    if first[0] <= last[1] and last[0] <= first[1]:
        return "shows no clear change: it went"
    return "rose" if figures[-1] > figures[0] else "has not risen, it went"


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
