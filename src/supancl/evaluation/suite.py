"""The suite: every encoder on every data set in a folder; and tables of results: means over seeds, ranks, differences.

Each result is saved immediately, so a second call continues.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from supancl.config import to_json
from supancl.data.decode import file_stamp
from supancl.data.sources.benchmarks import benchmark as benchmark_row
from supancl.data.sources.benchmarks import find_benchmark, find_benchmarks, official_name
from supancl.errors import BadInput, Interrupted, SupanclError, did_you_mean
from supancl.evaluation import FewShot, Knn, Settings, Transfer
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.protocols import evaluate
from supancl.evaluation.results import figure_of, grouped, result_name
from supancl.files import Output, is_as_written, jsonable, make_folder, make_inner_folder, read_json, write_sealed_json
from supancl.reporter import Reporter
from supancl.stats import episode_half_width, seed_stats_numpy

PROTOCOLS = ("knn", "transfer", "fewshot")
VERSION = 4  # results of another version are measured again
OUT_OF_MEMORY = "the GPU does not have enough memory; lower batch_size, or pass device cpu"
DIGITS = 2  # of a score as it is printed, ranked and marked
Mark = Literal["", "best", "second"]
Results = Sequence[dict[str, Any]]  # results of protocols, with their task, data and group


class Task(NamedTuple):
    """One protocol with its settings, on one data set."""

    data: str
    settings: Settings

    @property
    def title(self) -> str:
        """The name of its table."""
        few = self.settings
        return f"fewshot {few.ways}w{few.shots[0]}s" if isinstance(few, FewShot) else few.name


@dataclass(frozen=True)
class Plan:
    """What to measure for each encoder, and with which settings; without `sets`, on all data sets in the root."""

    root: Path
    protocols: Sequence[str] = PROTOCOLS
    sets: Sequence[str] = ()
    k: int = 20
    episodes: FewShot = FewShot()

    def tasks(self) -> list[Task]:
        """The tasks sorted by data set, so that protocols share decoded images."""
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                raise BadInput(f"no protocol {protocol!r} in the suite{did_you_mean(protocol, PROTOCOLS)}")
        transfer, episodes = find_benchmarks(self.root, "transfer"), find_benchmarks(self.root, "few-shot")
        present = tuple(dict.fromkeys((*transfer, *episodes)))
        sets = tuple(official_name(name) for name in self.sets) or present
        if missing := set(sets) - set(present):
            raise BadInput(f"{sorted(missing)} not in {self.root}; see: supancl data check {sorted(missing)[0]}")
        # the view of transfer for k-NN, so that both share features
        rows: dict[str, list[Settings]] = {
            "knn": [Knn(k=(self.k,), split="test", view="whole")],
            "transfer": [Transfer()],
            "fewshot": [replace(self.episodes, shots=(shots,)) for shots in self.episodes.shots],
        }
        tasks = [
            Task(name, settings)
            for name in present
            for protocol in PROTOCOLS
            for settings in rows[protocol]
            if name in sets and protocol in self.protocols and name in (episodes if protocol == "fewshot" else transfer)
        ]
        if not tasks:
            raise BadInput(f"no data set for {list(self.protocols)} is in {self.root}; see: supancl data check NAME")
        return tasks


class Suite(NamedTuple):
    """Results in the order of the tasks, and failures: (encoder, task, data, why)."""

    results: list[dict[str, Any]]
    failures: list[dict[str, str]]


def run_suite(encoders: Sequence[EvaluatedEncoder], plan: Plan, out: Path, reporter: Reporter) -> Suite:
    """Run every task on every encoder, or load results of earlier calls with the same encoder, data and settings.

    A failure is reported, and the other tasks continue.
    """
    tasks, suite = plan.tasks(), Suite([], [])
    check_seeds(encoders)
    make_out_folder(out)
    files = cache(lambda name: data_key(name, plan.root))  # called per task, so that a broken list fails only its tasks
    todo = [(task, evaluated) for task in tasks for evaluated in encoders]
    for number, (task, evaluated) in enumerate(todo, start=1):
        progress = f"[{number}/{len(todo)}] {evaluated.location}: {task.title} on {task.data}"
        try:
            result, was_saved = load_or_measure(evaluated, task, plan.root, out, files(task.data))
        except Interrupted:
            raise
        except (SupanclError, torch.OutOfMemoryError) as error:
            why = str(error) if isinstance(error, SupanclError) else OUT_OF_MEMORY
            reporter.warn(f"{progress}: {why}")
            suite.failures.append({"encoder": evaluated.location, "task": task.title, "data": task.data, "why": why})
            continue
        suite.results.append(result | {"task": task.title, "data": task.data, "group": evaluated.group})
        reporter.note(f"{progress}: {describe_result(result)}{' (saved earlier)' if was_saved else ''}")
    return suite


def check_seeds(encoders: Sequence[EvaluatedEncoder]) -> None:
    """Refuse two encoders of one recipe with equal weights or seeds: a row is a mean over different seeds."""
    seen: set[tuple[str, Any]] = set()
    for each in encoders:
        keys: set[tuple[str, Any]] = {(each.location, "named twice")}
        if each.recipe is not None:
            keys |= {(each.group, each.recipe.train.seed), (each.group, each.weights)}
        if keys & seen:
            raise BadInput(
                f"{each.location} has the weights or the seed of another encoder of {each.label}; leave it out"
            )
        seen |= keys


def describe_result(result: dict[str, Any]) -> str:
    """`9.21 [8.3, 10.2], images: 3,669`, with `mAP ` before it if it is one; or of episodes `36.05 ± 0.39`."""
    figure = figure_of(result)
    assert figure is not None
    text = f"{figure.value:.2f}" if figure.name == "accuracy" else f"{figure.name} {figure.value:.2f}"
    if "interval" in result:
        return f"{text} ± {result['interval']:.2f}"
    low, high = figure.interval or (math.nan, math.nan)
    return f"{text} [{low:.1f}, {high:.1f}], images: {result['tested_images']:,}"


def make_out_folder(out: Path) -> None:
    """Make the folder before the work, so that an unwritable one is refused early."""
    Output(out, replaces=Path.is_dir).check()
    make_folder(out)


def load_or_measure(
    evaluated: EvaluatedEncoder, task: Task, root: Path, out: Path, files: str
) -> tuple[dict[str, Any], bool]:
    """The result, and whether an earlier call measured it; `files` is the data set's key."""
    options, settings = evaluated.options, task.settings
    key = {
        "version": VERSION,
        "protocol": settings.name,
        "weights": evaluated.weights,
        "layer": options.layer,
        "normalize": options.normalize,
        "data": files,
        "partial": options.partial,
        "skip_bad_images": options.skip_bad_images,
        **evaluated.projector_key,
        **to_json(settings),
    }
    kind = task.title.partition(" ")[2]
    shown = {name: value for name, value in key.items() if value is not None}
    shown |= {"k": settings.k[0]} if isinstance(settings, Knn) and settings.k else {}
    name = result_name(f"{settings.name}-{task.data}" + f"-{kind}" * bool(kind), shown)
    # unique for every encoder: two runs may have the same last component
    location = Path(evaluated.location)
    short = hashlib.sha256(str(location.resolve()).encode()).hexdigest()[:6]
    folder = out / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', location.name)}-{short}" / "evaluate"
    path = folder / f"{name}.json"
    saved = read_json(path)
    if saved.get("suite") == key and figure_of(saved) is not None and is_as_written(saved):
        return {name: value for name, value in saved.items() if name != "digest"}, True
    source = task.data if settings.needs_data else None
    result = evaluate(evaluated, settings, f"{task.data}@{root}", source) | {"suite": key}
    for made in (folder.parent, folder):
        make_inner_folder(made)
    write_sealed_json(path, result)
    return result, False


def data_key(name: str, root: Path) -> str:
    """A digest of the data set's files, splits and labels: if they change, results are measured again."""
    (folder, marker), row = find_benchmark(name, root), benchmark_row(name)
    entries = [(folder / marker, "", "")]
    if marker in row.files:
        entries = sorted((path, str(split), str(label)) for split, path, label in row.files[marker](folder))
    content = hashlib.sha256()
    for path, split, label in entries:
        stamp = file_stamp(path) if path.is_file() else None
        content.update(json.dumps([str(path.relative_to(folder)), split, label, repr(stamp)]).encode())
    return content.hexdigest()[:16]


# --- tables -----------------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """A mean in percent over `runs`; `uncertainty` is the deviation over seeds, half a 95% interval, or None."""

    mean: float
    uncertainty: float | None = None
    runs: int = 1


class Ranking(NamedTuple):
    """Rows are encoders, columns data sets, in the order of the input; a cell is None where there is no result.

    Averages and average ranks are over `ranked`, the data sets that count and have a result of every encoder; NaN if
    there is none. A single encoder has no marks, and tables omit its rank.
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    cells: tuple[tuple[Score | None, ...], ...]
    marks: tuple[tuple[Mark, ...], ...]
    ranked: tuple[str, ...]
    averages: tuple[float, ...]
    average_ranks: tuple[float, ...]

    @property
    def compares(self) -> bool:
        return len(self.encoders) > 1

    @property
    def has_ranks(self) -> bool:
        return self.compares and bool(self.ranked)

    def seeds(self, row: int) -> str:
        """` (n = 3)` after the name of a mean over seeds, ` (n = 1 to 3)` if some data sets have fewer, else empty."""
        runs = sorted({cell.runs for cell in self.cells[row] if cell is not None})
        return (
            "" if not runs or runs[-1] == 1 else f" (n = {' to '.join(map(str, dict.fromkeys((runs[0], runs[-1]))))})"
        )

    def to_json(self) -> dict[str, Any]:
        rows = []
        for encoder, cells, *means in zip(self.encoders, self.cells, self.averages, self.average_ranks, strict=True):
            scores = [None if cell is None else {"mean": cell[0], "spread": cell[1], "runs": cell[2]} for cell in cells]
            average, rank = jsonable(means)
            about = {"average": average, "average_rank": rank if self.compares else None}
            rows.append({"encoder": encoder, "scores": dict(zip(self.datasets, scores, strict=True)), **about})
        return {"datasets": list(self.datasets), "ranked": list(self.ranked), "rows": rows}


def rank_encoders(
    results: Mapping[str, Mapping[str, float | Score | Sequence[float]]], unranked: Collection[str] = ()
) -> Ranking:
    """Rank `results[encoder][data set]`: 1 is the highest score, and ties share the mean of their ranks.

    Several numbers are those of seeds. Scores are ranked and marked as printed, so that a table never contradicts
    itself. `unranked` data sets have columns, but no marks, and count in no average.

    >>> scores = {"a": {"pets": 80, "dtd": 60}, "b": {"pets": 80, "dtd": 50}, "c": {"pets": 70, "dtd": 55}}
    >>> rank_encoders(scores).average_ranks
    (1.25, 2.25, 2.5)
    """
    columns = tuple(dict.fromkeys(data for row in results.values() for data in row))
    cells = tuple(tuple(_score(row[data]) if data in row else None for data in columns) for row in results.values())
    exact = np.array([[math.nan if cell is None else cell.mean for cell in row] for row in cells])
    table = np.array([[round(value, DIGITS) for value in row] for row in exact.tolist()])
    table[:, [data in unranked for data in columns]] = math.nan
    counts = ~np.isnan(table).any(0)
    averages = ranks = np.full(len(cells), math.nan)
    if counts.any():
        averages, ranks = exact[:, counts].mean(1), shared_ranks(table[:, counts]).mean(1)
    marks = [["" for _ in row] for row in cells]
    for column in range(len(columns)) if len(cells) > 1 else ():
        best = sorted({value for value in table[:, column].tolist() if not math.isnan(value)}, reverse=True)
        for value, mark in zip(best, ("best", "second"), strict=False):
            for row in np.flatnonzero(table[:, column] == value):
                marks[row][column] = mark
    ranked = tuple(data for data, is_ranked in zip(columns, counts, strict=True) if is_ranked)
    shown: Any = tuple(map(tuple, marks))
    return Ranking(tuple(results), columns, cells, shown, ranked, tuple(averages.tolist()), tuple(ranks.tolist()))


def _score(values: float | Score | Sequence[float]) -> Score:
    """The Score of one number, or of several seeds: their mean and sample deviation."""
    if isinstance(values, Score):
        return values
    numbers = np.atleast_1d(np.asarray(values, dtype=np.float64))
    mean, sd = seed_stats_numpy(numbers.tolist())
    return Score(mean, None if len(numbers) == 1 else sd, len(numbers))


def shared_ranks(table: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ranks within each column; 1 is the highest, and ties share their mean rank."""
    higher = (table[None] > table[:, None]).sum(1)
    equal = (table[None] == table[:, None]).sum(1)
    ranks: np.ndarray[Any, np.dtype[np.float64]] = higher + (equal + 1) / 2
    return ranks


def rankings(results: Results) -> dict[str, Ranking]:
    """One table per protocol, with a row per encoder; seeds of the same settings are averaged.

    A data set on which an encoder was trained has a column, but does not count in ranks. Figures other than accuracies
    are named in the column.
    """
    names, overlapping, tables = row_labels(results), _overlapping_groups(results), {}

    def score_seeds(seeds: Results) -> Score | list[float]:
        """The figures of several seeds, or of a single run with its interval over episodes if it has one."""
        values = [figure.value for result in seeds if (figure := figure_of(result))]
        return Score(values[0], seeds[0].get("interval")) if len(values) == 1 else values

    def column(result: Mapping[str, Any]) -> str:
        figure, data = figure_of(result), str(result["data"])
        return data if figure is None or figure.name == "accuracy" else f"{data} ({figure.name})"

    for task, of_task in grouped(results, lambda result: str(result["task"])).items():
        rows = {
            names[group]: {data: score_seeds(seeds) for data, seeds in grouped(row, column).items()}
            for group, row in grouped(of_task, lambda result: str(result["group"])).items()
        }
        unranked = {column(result) for result in of_task if (task, result["data"]) in overlapping}
        tables[task] = rank_encoders(rows, unranked=unranked)
    return tables


def row_labels(results: Results) -> dict[str, str]:
    """group -> label of its row; equal labels are distinguished by folder, else by path."""
    first = {group: of_group[0] for group, of_group in grouped(results, lambda result: result["group"]).items()}
    names = {group: result["label"] for group, result in first.items()}
    for shorten in (lambda path: Path(path).name, str):
        taken = list(names.values())
        names = {
            group: name if taken.count(name) == 1 else f"{first[group]['label']} ({shorten(first[group]['encoder'])})"
            for group, name in names.items()
        }
    return names


def table_warnings(results: Results) -> list[str]:
    """A warning for each column whose encoders were tested on different images, or on their training images."""
    names, lines = row_labels(results), []
    for (task, data), cells in grouped(results, lambda result: (result["task"], result["data"])).items():
        if len({result.get("tested_on", "") for result in cells}) > 1:
            lines.append(f"{data}: the encoders were tested on different images for {task}; it does not compare them")
    for (task, data), groups in _overlapping_groups(results).items():
        trained = ", ".join(names[group] for group in groups)
        lines.append(f"{data}: images of {task} were trained on ({trained}), so it counts in no average rank")
    return lines


def _overlapping_groups(results: Results) -> dict[tuple[str, str], dict[str, None]]:
    """(protocol, data) -> the groups whose training used some of its images."""
    overlapping = [result for result in results if result.get("overlaps_training")]
    cells = grouped(overlapping, lambda result: (result["task"], result["data"]))
    return {cell: dict.fromkeys(result["group"] for result in of_cell) for cell, of_cell in cells.items()}


def differences(results: Results) -> list[dict[str, Any]]:
    """Paired differences of few-shot results on the same episodes, with intervals over episodes.

    Seeds of one recipe are first averaged per episode. Encoders are not compared on images that one of them was trained
    on.
    """
    overlapping, names, gaps = _overlapping_groups(results), row_labels(results), []
    episodes = [
        result
        for result in results
        if result.get("protocol") == "fewshot" and (result["task"], result["data"]) not in overlapping
    ]
    for (task, data, _), cell in grouped(episodes, lambda each: (each["task"], each["data"], each["drawn"])).items():
        seeds = grouped(cell, lambda result: str(result["group"]))
        means = {
            group: torch.tensor([result["accuracies"] for result in of_group], dtype=torch.float64).mean(0)
            for group, of_group in seeds.items()
        }
        for a, b in combinations(means, 2):
            gap = means[a] - means[b]
            gaps.append(
                {
                    "protocol": task,
                    "data": data,
                    "a": names[a],
                    "b": names[b],
                    "runs": [len(seeds[a]), len(seeds[b])],
                    "difference": float(gap.mean()),
                    "interval": episode_half_width(gap),
                }
            )
    return gaps
