"""The suite: every encoder on every data set in a folder; each result is saved immediately."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from supancl.config import to_json
from supancl.data.decode import file_stamp
from supancl.data.sources.benchmarks import benchmark as benchmark_row
from supancl.data.sources.benchmarks import find_benchmark, find_benchmarks, official_name
from supancl.errors import BadInput, Interrupted, SupanclError, did_you_mean, plural
from supancl.evaluation.comparison import check_seeds
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import figure_of, result_name
from supancl.evaluation.protocols import evaluate
from supancl.evaluation.settings import FewShot, Knn, Settings, Transfer
from supancl.files import Output, is_as_written, make_folder, make_inner_folder, read_json, write_sealed_json
from supancl.reporter import Reporter

PROTOCOLS = ("knn", "transfer", "fewshot")
VERSION = 4  # results of another version are measured again

OUT_OF_MEMORY = "the GPU does not have enough memory; lower batch_size, or pass device cpu"


@dataclass(frozen=True)
class Task:
    """One protocol with its settings, on one data set."""

    data: str
    settings: Settings

    @property
    def title(self) -> str:
        """The name of its table."""
        if isinstance(self.settings, FewShot):
            return f"fewshot {self.settings.ways}w{self.settings.shots[0]}s"
        return self.settings.name

    def run(self, evaluated: EvaluatedEncoder, root: Path) -> dict[str, Any]:
        name = self.data if self.settings.needs_data else None
        return evaluate(evaluated, self.settings, f"{self.data}@{root}", name)


@dataclass(frozen=True)
class Plan:
    """What to measure for each encoder, and with which settings; without `sets`, on all data sets in the root."""

    root: Path
    protocols: Sequence[str] = PROTOCOLS
    sets: Sequence[str] = ()
    k: int = 20
    episodes: FewShot = FewShot()

    def __post_init__(self) -> None:
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                raise BadInput(f"no protocol {protocol!r} in the suite{did_you_mean(protocol, PROTOCOLS)}")
        object.__setattr__(self, "sets", tuple(official_name(name) for name in self.sets))

    def tasks(self) -> list[Task]:
        """The tasks sorted by data set, so that protocols share decoded images."""
        transfer, episodes = find_benchmarks(self.root, "transfer"), find_benchmarks(self.root, "few-shot")
        present = tuple(dict.fromkeys((*transfer, *episodes)))
        for name in self.sets:
            if name not in present:
                raise BadInput(f"{name} is not in {self.root}; see: supancl data check {name}")
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
            if (not self.sets or name in self.sets)
            and protocol in self.protocols
            and name in (episodes if protocol == "fewshot" else transfer)
        ]
        if not tasks:
            requested = ", ".join(self.protocols)
            raise BadInput(
                f"no data set for {requested} is in {self.root}; supancl data check NAME explains the layout"
            )
        return tasks


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
            progress = f"[{done}/{total}] {evaluated.location}: {task.title} on {task.data}"
            try:
                result, was_saved = load_or_measure(evaluated, task, plan.root, out, files(task.data))
            except Interrupted:
                raise
            except (SupanclError, torch.OutOfMemoryError) as error:
                why = str(error) if isinstance(error, SupanclError) else OUT_OF_MEMORY
                reporter.warn(f"{progress}: {why}")
                suite.failures.append(
                    {"encoder": evaluated.location, "task": task.title, "data": task.data, "why": why}
                )
                continue
            suite.results.append(result | {"task": task.title, "data": task.data, "group": evaluated.group})
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


def load_or_measure(
    evaluated: EvaluatedEncoder, task: Task, root: Path, out: Path, files: str
) -> tuple[dict[str, Any], bool]:
    """The result, and whether an earlier call measured it; `files` is the data set's key."""
    options = evaluated.options
    key = {
        "version": VERSION,
        "protocol": task.settings.name,
        "weights": evaluated.weights,
        "layer": options.layer,
        "normalize": options.normalize,
        "data": files,
        "partial": options.partial,
        "skip_bad_images": options.skip_bad_images,
        **evaluated.projector_key,
        **to_json(task.settings),
    }
    kind = task.title.partition(" ")[2]
    base = f"{task.settings.name}-{task.data}" + f"-{kind}" * bool(kind)
    shown = {name: value for name, value in key.items() if value is not None}
    name = result_name(
        base, shown | ({"k": task.settings.k[0]} if isinstance(task.settings, Knn) and task.settings.k else {})
    )
    path = out / folder_name(evaluated) / "evaluate" / f"{name}.json"
    result = load_result(path, key)
    if result is not None:
        return result, True
    result = task.run(evaluated, root) | {"suite": key}
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
    if benchmark.files is not None:
        entries = sorted((path, str(split), str(label)) for split, path, label in benchmark.files(benchmark.folder))
    else:  # ROOT may hold other files too, so only the first of its own counts
        arrays = [benchmark.folder / file for file in benchmark_row(name).arrays]
        entries = [(array, "", "") for array in arrays if array.is_file()][:1]
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
