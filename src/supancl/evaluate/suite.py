"""The suite: every encoder on every data set in a folder; each result is saved as soon as it is known."""

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
from supancl.errors import BadInput, Interrupted, SupanclError, did_you_mean
from supancl.evaluate.compared import check_seeds
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.evaluate.few_shot import EpisodeSettings, evaluate_few_shot
from supancl.evaluate.naming import result_name
from supancl.evaluate.protocols import evaluate_knn, evaluate_transfer
from supancl.evaluate.sources import array_mark
from supancl.files import check_writable, make_folder, write_json
from supancl.reporter import Reporter

PROTOCOLS = ("knn", "transfer", "fewshot")
VERSION = 3  # of what is measured; results of another number are measured again

OUT_OF_MEMORY = "the GPU has not enough memory for it; lower --batch-size, or give --device cpu"


@dataclass(frozen=True)
class Plan:
    """What is to be measured on each encoder, and with which settings."""

    root: Path
    protocols: Sequence[str] = PROTOCOLS
    sets: Sequence[str] = ()  # empty: whatever is in the root
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
        """Data set by data set, so that what is decoded for one protocol serves the next."""
        transfer = find_benchmarks(self.root, "transfer")
        episodes = find_benchmarks(self.root, "few-shot")
        there = tuple(dict.fromkeys((*transfer, *episodes)))
        for name in self.sets:
            if name not in there:
                raise BadInput(f"{name} is not in {self.root}; see: supancl data where {name}")
        found: list[Task] = []
        for name in (name for name in there if not self.sets or name in self.sets):
            if name in transfer:
                found += [self._knn(name)] * ("knn" in self.protocols)
                found += [self._transfer(name)] * ("transfer" in self.protocols)
            if name in episodes and "fewshot" in self.protocols:
                found += [self._few_shot(name, shots) for shots in self.shots]
        if not found:
            wanted = ", ".join(self.protocols)
            raise BadInput(
                f"no data set for {wanted} is in {self.root}; supancl data where NAME says how to lay one out"
            )
        return found

    def _knn(self, name: str) -> Task:
        # of the same view as transfer, so that its features serve for both
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
        kind, settings = f"{self.ways}w{shots}s", self.episode_settings(shots)
        key = asdict(settings)
        if not self.fill_queries:
            del key["fill_queries"]  # results from before have no such setting
        return Task(
            f"fewshot {kind}",
            name,
            f"fewshot-{name}-{kind}",
            key,
            lambda evaluated: evaluate_few_shot(evaluated, f"{name}@{self.root}", settings),
        )

    def episode_settings(self, shots: int) -> EpisodeSettings:
        return EpisodeSettings(self.ways, shots, self.queries, self.episodes, self.seed, self.fill_queries)


@dataclass(frozen=True)
class Task:
    protocol: str
    data: str
    name: str
    settings: dict[str, Any]
    run: Callable[[EvaluatedEncoder], dict[str, Any]]


@dataclass
class Suite:
    """Results in the order of the tasks, and what could not be measured: (encoder, task, data, why)."""

    results: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)


def run_suite(encoders: Sequence[EvaluatedEncoder], plan: Plan, out: Path, reporter: Reporter) -> Suite:
    """Every result, measured now or in an earlier call with the same encoder, data and settings.

    What cannot be measured is reported and left out; the others go on.
    """
    tasks, suite = plan.tasks(), Suite()
    check_seeds(encoders)
    make_out(out)
    files = cache(lambda name: data_key(name, plan.root))  # asked for below: a list that is broken spoils its own tasks
    done, total = 0, len(tasks) * len(encoders)
    for task in tasks:
        for evaluated in encoders:
            done += 1
            where = f"[{done}/{total}] {evaluated.where}: {task.protocol} on {task.data}"
            try:
                result, before = load_or_measure(evaluated, task, out, files(task.data))
            except Interrupted:
                raise
            except (SupanclError, torch.OutOfMemoryError) as error:
                why = str(error) if isinstance(error, SupanclError) else OUT_OF_MEMORY
                reporter.warn(f"{where}: {why}")
                suite.failures.append(
                    {"encoder": evaluated.where, "task": task.protocol, "data": task.data, "why": why}
                )
                continue
            suite.results.append(result | {"task": task.protocol, "data": task.data, "group": evaluated.group})
            spread = f" ± {result['interval']:.2f}" if "interval" in result else ""
            reporter.note(f"{where}: {result['accuracy']:.2f}{spread}{' (from before)' if before else ''}")
    return suite


def make_out(out: Path) -> None:
    """Make the folder before the work, so that a place that cannot be written in is refused early."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; name a folder")
    check_writable(out)
    make_folder(out)


def load_or_measure(evaluated: EvaluatedEncoder, task: Task, out: Path, files: str) -> tuple[dict[str, Any], bool]:
    """The result, and whether it is of an earlier call; `files` is the data set's key."""
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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    return result, False


def folder_name(evaluated: EvaluatedEncoder) -> str:
    """A name of its own for every encoder: two runs may have the same last part."""
    short = hashlib.sha256(str(Path(evaluated.where).resolve()).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(evaluated.where).name)}-{short}"


def data_key(name: str, root: Path) -> str:
    """Of the data set's files and of what its lists say of them: other ones, or changed ones, give other results."""
    place = find_benchmark(name, root)
    mark = array_mark(name, root)
    if place.files is not None:
        entries = sorted((path, str(split), str(label)) for split, path, label in place.files(place.folder).entries)
    else:  # beside it there may be anything; of pickles none is opened that is not the published one
        entries = [(mark, "", "")] if mark is not None else []
    content = hashlib.sha256()
    for path, split, label in entries:
        stamp = file_stamp(path) if path.is_file() else None
        content.update(json.dumps([str(path.relative_to(place.folder)), split, label, repr(stamp)]).encode())
    return content.hexdigest()[:16]


def load_result(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_same = isinstance(content, dict) and content.get("suite") == key and isinstance(content.get("accuracy"), float)
    return content if is_same else None
