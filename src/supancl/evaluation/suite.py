"""The suite: every encoder on every data set in a folder; each result is saved immediately."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from supancl.data.decode import file_stamp
from supancl.data.sources.benchmarks import find_benchmark, find_benchmarks, official_name
from supancl.errors import BadInput, Interrupted, SupanclError, did_you_mean, plural
from supancl.evaluation.comparison import check_seeds
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.few_shot import EpisodeSettings, evaluate_few_shot
from supancl.evaluation.naming import figure_of, result_name
from supancl.evaluation.nearest import evaluate_knn
from supancl.evaluation.overlap import array_file
from supancl.evaluation.protocols import evaluate_transfer
from supancl.files import Output, is_as_written, make_folder, make_inner_folder, read_json, write_sealed_json
from supancl.reporter import Reporter

PROTOCOLS = ("knn", "transfer", "fewshot")
VERSION = 3  # results of another version are measured again

OUT_OF_MEMORY = "the GPU does not have enough memory; lower batch_size, or pass device cpu"


@dataclass(frozen=True)
class Plan:
    """What to measure for each encoder, and with which settings."""

    root: Path
    protocols: Sequence[str] = PROTOCOLS
    sets: Sequence[str] = ()  # empty: all in the root
    ways: int = 5
    shots: Sequence[int] = (1, 5)
    queries: int = 16
    episodes: int = 2000
    seed: int = 0
    k: int = 20
    fill_queries: bool = False

    def __post_init__(self) -> None:
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                raise BadInput(f"no protocol {protocol!r} in the suite{did_you_mean(protocol, PROTOCOLS)}")
        object.__setattr__(self, "sets", tuple(official_name(name) for name in self.sets))

    def tasks(self) -> list[Task]:
        """The tasks sorted by data set, so that protocols share decoded images."""
        transfer = find_benchmarks(self.root, "transfer")
        episodes = find_benchmarks(self.root, "few-shot")
        present = tuple(dict.fromkeys((*transfer, *episodes)))
        for name in self.sets:
            if name not in present:
                raise BadInput(f"{name} is not in {self.root}; see: supancl data check {name}")
        tasks: list[Task] = []
        for name in (name for name in present if not self.sets or name in self.sets):
            if name in transfer:
                tasks += [self._knn(name)] * ("knn" in self.protocols)
                tasks += [self._transfer(name)] * ("transfer" in self.protocols)
            if name in episodes and "fewshot" in self.protocols:
                tasks += [self._few_shot(name, shots) for shots in self.shots]
        if not tasks:
            requested = ", ".join(self.protocols)
            raise BadInput(
                f"no data set for {requested} is in {self.root}; supancl data check NAME explains how to set one up"
            )
        return tasks

    def _knn(self, name: str) -> Task:
        # the view of transfer, so that both share features
        return Task(
            "knn",
            name,
            f"knn-{name}",
            {"k": self.k, "view": "whole", "split": "test"},
            lambda evaluated: evaluate_knn(evaluated, f"{name}@{self.root}", ks=(self.k,), split="test", view="whole"),
        )

    def _transfer(self, name: str) -> Task:
        source = f"{name}@{self.root}"
        return Task("transfer", name, f"transfer-{name}", {}, lambda evaluated: evaluate_transfer(evaluated, source))

    def _few_shot(self, name: str, shots: int) -> Task:
        kind = f"{self.ways}w{shots}s"
        settings = EpisodeSettings(self.ways, shots, self.queries, self.episodes, self.seed, self.fill_queries)
        key = asdict(settings)
        if not self.fill_queries:
            del key["fill_queries"]  # old results have no such setting
        return Task(
            f"fewshot {kind}",
            name,
            f"fewshot-{name}-{kind}",
            key,
            lambda evaluated: evaluate_few_shot(evaluated, f"{name}@{self.root}", settings),
        )


@dataclass(frozen=True)
class Task:
    protocol: str
    data: str
    name: str
    settings: dict[str, Any]
    run: Callable[[EvaluatedEncoder], dict[str, Any]]


@dataclass
class Suite:
    """Results in the order of the tasks, and failures: (encoder, task, data, why)."""

    results: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)


def run_suite(encoders: Sequence[EvaluatedEncoder], plan: Plan, out: Path, reporter: Reporter) -> Suite:
    """Run every task on every encoder, or load results of earlier calls with the same encoder, data and settings.

    A failure is reported, and the other tasks continue.
    """
    tasks, suite = plan.tasks(), Suite()
    check_seeds(encoders)
    make_out_folder(out)
    files = cache(lambda name: data_key(name, plan.root))  # called per task, so that a broken list fails only its tasks
    done, total = 0, len(tasks) * len(encoders)
    for task in tasks:
        for evaluated in encoders:
            done += 1
            progress = f"[{done}/{total}] {evaluated.location}: {task.protocol} on {task.data}"
            try:
                result, was_saved = load_or_measure(evaluated, task, out, files(task.data))
            except Interrupted:
                raise
            except (SupanclError, torch.OutOfMemoryError) as error:
                why = str(error) if isinstance(error, SupanclError) else OUT_OF_MEMORY
                reporter.warn(f"{progress}: {why}")
                suite.failures.append(
                    {"encoder": evaluated.location, "task": task.protocol, "data": task.data, "why": why}
                )
                continue
            suite.results.append(result | {"task": task.protocol, "data": task.data, "group": evaluated.group})
            reporter.note(f"{progress}: {describe_result(result)}{' (saved earlier)' if was_saved else ''}")
    return suite


def describe_result(result: dict[str, Any]) -> str:
    """`9.21 [8.3, 10.2] of 3,669 images`, with `mAP ` before it if it is one; or of episodes `36.05 ± 0.39`."""
    figure = figure_of(result)
    assert figure is not None
    text = f"{figure.value:.2f}" if figure.name == "accuracy" else f"{figure.name} {figure.value:.2f}"
    if "interval" in result:
        return f"{text} ± {result['interval']:.2f}"
    assert figure.interval is not None
    low, high = figure.interval
    return f"{text} [{low:.1f}, {high:.1f}] of {plural(result['tested_images'], 'image')}"


def make_out_folder(out: Path) -> None:
    """Make the folder before the work, so that an unwritable one is refused early."""
    Output(out, replaces=Path.is_dir).check()
    make_folder(out)


def load_or_measure(evaluated: EvaluatedEncoder, task: Task, out: Path, files: str) -> tuple[dict[str, Any], bool]:
    """The result, and whether an earlier call measured it; `files` is the data set's key."""
    options = evaluated.options
    key = {
        "version": VERSION,
        "weights": evaluated.weights,
        "layer": options.layer,
        "normalize": options.normalize,
        "data": files,
        "partial": options.partial,
        "skip_bad_images": options.skip_bad_images,
        **evaluated.projector_key,
        **task.settings,
    }
    name = result_name(task.name, {"protocol": task.protocol.split()[0], **key})
    path = out / folder_name(evaluated) / "evaluate" / f"{name}.json"
    result = load_result(path, key)
    if result is not None:
        return result, True
    result = task.run(evaluated) | {"suite": key}
    for folder in (path.parent.parent, path.parent):
        make_inner_folder(folder)
    write_sealed_json(path, result)
    return result, False


def folder_name(evaluated: EvaluatedEncoder) -> str:
    """A unique name for every encoder: two runs may have the same last component."""
    short = hashlib.sha256(str(Path(evaluated.location).resolve()).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(evaluated.location).name)}-{short}"


def data_key(name: str, root: Path) -> str:
    """A digest of the data set's files, splits and labels: if they change, results are measured again."""
    benchmark = find_benchmark(name, root)
    array = array_file(name, root)
    if benchmark.files is not None:
        entries = sorted(
            (path, str(split), str(label)) for split, path, label in benchmark.files(benchmark.folder).entries
        )
    else:  # ROOT may hold other files too, so only this one counts
        entries = [(array, "", "")] if array is not None else []
    content = hashlib.sha256()
    for path, split, label in entries:
        stamp = file_stamp(path) if path.is_file() else None
        content.update(json.dumps([str(path.relative_to(benchmark.folder)), split, label, repr(stamp)]).encode())
    return content.hexdigest()[:16]


def load_result(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    content = read_json(path)
    is_same = content.get("suite") == key and figure_of(content) is not None
    if not is_same or not is_as_written(content):
        return None
    return {name: value for name, value in content.items() if name != "digest"}
