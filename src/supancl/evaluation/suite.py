"""The suite: every encoder on every data set in a folder; and tables of results: means over seeds, ranks, differences.

Each result is saved immediately, so a second call continues.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from supancl.data.decode import file_stamp
from supancl.data.sources.benchmarks import benchmark as benchmark_row
from supancl.data.sources.benchmarks import choose_benchmarks, find_benchmark, find_benchmarks
from supancl.errors import BadInput, Interrupted, SupanclError, did_you_mean
from supancl.evaluation import FewShot, Knn, Settings, Transfer
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.protocols import evaluate
from supancl.evaluation.results import Average, average, figure_of, figure_text, grouped, short_digest
from supancl.files import Output, is_as_written, jsonable, make_folder, make_inner_folder, read_json, write_sealed_json
from supancl.reporter import Reporter
from supancl.stats import episode_half_width

PROTOCOLS = ("knn", "transfer", "fewshot")
OUT_OF_MEMORY = "the GPU does not have enough memory; lower batch_size, or pass device cpu"
DIGITS = 2  # of a score as it is printed and ranked
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


def suite_tasks(
    root: Path,
    protocols: Sequence[str] = PROTOCOLS,
    sets: Sequence[str] = (),
    k: int = 20,
    episodes: FewShot | None = None,
) -> list[Task]:
    """What to measure on these data sets in a folder, or on all, sorted by data set: protocols share decoded images."""
    episodes = episodes or FewShot()
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise BadInput(f"no protocol {protocol!r} in the suite{did_you_mean(protocol, PROTOCOLS)}")
    transfer, few_shot = find_benchmarks(root, "transfer"), find_benchmarks(root, "few-shot")
    present = tuple(dict.fromkeys((*transfer, *few_shot)))
    chosen = choose_benchmarks(root, sets, present)
    # the view of transfer for k-NN, so that both share features
    rows: dict[str, tuple[list[Settings], Sequence[str]]] = {
        "knn": ([Knn(k=(k,), split="test", view="whole")], transfer),
        "transfer": ([Transfer()], transfer),
        "fewshot": ([replace(episodes, shots=(shots,)) for shots in episodes.shots], few_shot),
    }
    tasks = [
        Task(name, settings)
        for name in present
        for protocol, (of_protocol, names) in rows.items()
        for settings in of_protocol
        if name in chosen and name in names and protocol in protocols
    ]
    if not tasks:
        raise BadInput(f"no data set for {list(protocols)} is in {root}; see: supancl data check NAME")
    return tasks


class Suite(NamedTuple):
    """Results in the order of the tasks, and failures: (encoder, task, data, why)."""

    results: list[dict[str, Any]]
    failures: list[dict[str, str]]


def run_suite(
    encoders: Sequence[EvaluatedEncoder], tasks: Sequence[Task], root: Path, out: Path, reporter: Reporter
) -> Suite:
    """Run every task on every encoder, or load results of earlier calls with the same encoder, data and settings.

    A failure is reported, and the other tasks continue.
    """
    suite = Suite([], [])
    check_seeds(encoders)
    make_out_folder(out)
    files = cache(lambda name: data_key(name, root))  # called per task, so that a broken list fails only its tasks
    todo = [(task, evaluated) for task in tasks for evaluated in encoders]
    for number, (task, evaluated) in enumerate(todo, start=1):
        progress = f"[{number}/{len(todo)}] {evaluated.location}: {task.title} on {task.data}"
        try:
            result, was_saved = load_or_measure(evaluated, task, root, out, files(task.data))
        except Interrupted:
            raise
        except (SupanclError, torch.OutOfMemoryError) as error:
            why = str(error) if isinstance(error, SupanclError) else OUT_OF_MEMORY
            reporter.warn(f"{progress}: {why}")
            suite.failures.append({"encoder": evaluated.location, "task": task.title, "data": task.data, "why": why})
            continue
        suite.results.append(result | {"task": task.title, "data": task.data, "group": evaluated.group})
        reporter.note(f"{progress}: {figure_text(result)}{' (saved earlier)' if was_saved else ''}")
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


def make_out_folder(out: Path) -> None:
    """Make the folder before the work, so that an unwritable one is refused early."""
    Output(out, replaces=Path.is_dir).check()
    make_folder(out)


def load_or_measure(
    evaluated: EvaluatedEncoder, task: Task, root: Path, out: Path, files: str
) -> tuple[dict[str, Any], bool]:
    """The result, and whether an earlier call measured it; `files` is the data set's key."""
    # unique for every encoder: two runs may have the same last component
    folder = out / f"{Path(evaluated.location).name}-{short_digest(evaluated.location)}" / "evaluate"
    path = folder / f"{task.title.replace(' ', '-')}-{task.data}.json"
    saved = read_json(path)
    is_usable = saved.get("files") == files and figure_of(saved) is not None and is_as_written(saved)
    name = task.data if task.settings.needs_data else None
    result = evaluate(evaluated, task.settings, f"{task.data}@{root}", name, saved=[saved] if is_usable else ())
    if result is saved:
        return {key: value for key, value in saved.items() if key != "digest"}, True
    result |= {"files": files}
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
    stamps = [(str(path), *rest, repr(file_stamp(path) if path.is_file() else None)) for path, *rest in entries]
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]


# --- tables -----------------------------------------------------------------------------------------------------------


class Ranking(NamedTuple):
    """`scores[encoder][data set]`, averages and average ranks, in the order of the input.

    Averages and ranks are over `ranked`, the data sets that count and that every encoder has; NaN if there is none.
    """

    scores: dict[str, dict[str, Average]]
    datasets: tuple[str, ...]
    unranked: frozenset[str]
    ranked: tuple[str, ...]
    averages: tuple[float, ...]
    average_ranks: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        rows = []
        for (encoder, scores), *means in zip(self.scores.items(), self.averages, self.average_ranks, strict=True):
            cells = {data: scores[data]._asdict() if data in scores else None for data in self.datasets}
            rank = means[1] if len(self.scores) > 1 else None
            rows.append({"encoder": encoder, "scores": cells, "average": means[0], "average_rank": rank})
        content: dict[str, Any] = jsonable({"datasets": self.datasets, "ranked": self.ranked, "rows": rows})
        return content


def rank_encoders(results: Mapping[str, Mapping[str, Average]], unranked: Collection[str] = ()) -> Ranking:
    """Rank `results[encoder][data set]`: 1 is the highest score, and ties share the mean of their ranks.

    Scores are ranked as printed, so that a table never contradicts itself. `unranked` data sets count in no average.

    >>> scores = {"a": {"pets": 80, "dtd": 60}, "b": {"pets": 80, "dtd": 50}, "c": {"pets": 70, "dtd": 55}}
    >>> rank_encoders({a: {d: Average(v) for d, v in row.items()} for a, row in scores.items()}).average_ranks
    (1.25, 2.25, 2.5)
    """
    scores = {encoder: dict(row) for encoder, row in results.items()}
    columns = tuple(dict.fromkeys(data for row in scores.values() for data in row))
    ranked = tuple(data for data in columns if data not in unranked and all(data in row for row in scores.values()))
    table = np.array([[row[data].mean for data in ranked] for row in scores.values()], dtype=np.float64)
    averages = ranks = np.full(len(scores), math.nan)
    if ranked:
        averages, ranks = table.mean(1), shared_ranks(np.vectorize(round)(table, DIGITS)).mean(1)
    return Ranking(scores, columns, frozenset(unranked), ranked, tuple(averages.tolist()), tuple(ranks.tolist()))


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
    names, tables = row_labels(results), {}

    def score(seeds: Results) -> Average:
        """The mean over seeds, or the figure of a single run with its interval over episodes if it has one."""
        found = average([figure.value for result in seeds if (figure := figure_of(result))])
        return found if found.n > 1 else found._replace(interval=seeds[0].get("interval", math.nan))

    def column(result: Mapping[str, Any]) -> str:
        figure, data = figure_of(result), str(result["data"])
        return data if figure is None or figure.name == "accuracy" else f"{data} ({figure.name})"

    for task, of_task in grouped(results, lambda result: str(result["task"])).items():
        rows = {
            names[group]: {data: score(seeds) for data, seeds in grouped(row, column).items()}
            for group, row in grouped(of_task, lambda result: str(result["group"])).items()
        }
        tables[task] = rank_encoders(rows, {column(result) for result in of_task if result.get("overlaps_training")})
    return tables


def row_labels(results: Results) -> dict[str, str]:
    """group -> label of its row, with the encoder's path where two have the same."""
    first = {result["group"]: result for result in reversed(results)}
    labels = [result["label"] for result in first.values()]
    return {
        group: label if labels.count(label := result["label"]) == 1 else f"{label} ({result['encoder']})"
        for group, result in first.items()
    }


def table_warnings(results: Results) -> list[str]:
    """A warning for each column whose encoders were tested on different images, or on their training images."""
    lines = []
    for (task, data), cells in grouped(results, lambda result: (result["task"], result["data"])).items():
        if len({result.get("tested_on", "") for result in cells}) > 1:
            lines.append(f"{data}: the encoders were tested on different images for {task}; it does not compare them")
        if any(result.get("overlaps_training") for result in cells):
            lines.append(f"{data}: images of {task} were trained on, so it counts in no average rank")
    return lines


def differences(results: Results) -> list[dict[str, Any]]:
    """Paired differences of few-shot results on the same episodes, with intervals over episodes.

    Seeds of one recipe are first averaged per episode. Encoders are not compared on images that one of them was trained
    on.
    """
    names, gaps = row_labels(results), []
    episodes = [result for result in results if "accuracies" in result]
    for (task, data, _), cell in grouped(episodes, lambda each: (each["task"], each["data"], each["drawn"])).items():
        if any(result.get("overlaps_training") for result in cell):
            continue
        seeds = grouped(cell, lambda result: str(result["group"]))
        means = {group: np.mean([result["accuracies"] for result in rows], 0) for group, rows in seeds.items()}
        for a, b in combinations(means, 2):
            gap, runs = torch.from_numpy(means[a] - means[b]), [len(seeds[a]), len(seeds[b])]
            about = {"protocol": task, "data": data, "a": names[a], "b": names[b], "runs": runs}
            gaps.append({**about, "difference": float(gap.mean()), "interval": episode_half_width(gap)})
    return gaps
