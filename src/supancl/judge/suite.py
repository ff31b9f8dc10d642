"""The whole suite: every encoder on every data set that is there, each result kept as soon as it is known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supancl.data.benchmarks import present_benchmarks
from supancl.errors import BadInput, nearest
from supancl.evaluate import FewShot, Ranking, paired_difference, rank_encoders
from supancl.evaluate.kept import encoder_key
from supancl.files import write_atomically
from supancl.judge.protocols import few_shot_of, knn_of, transfer_of
from supancl.judge.subject import Subject
from supancl.run import jsonable
from supancl.train import Reporter

PROTOCOLS = ("knn", "transfer", "fewshot")


@dataclass(frozen=True)
class Plan:
    """What is to be measured on each encoder: (protocol, data set, name of the result, how to get it)."""

    root: Path
    protocols: Sequence[str] = PROTOCOLS
    sets: Sequence[str] = ()  # empty: whatever is in the root
    ways: int = 5
    shots: Sequence[int] = (1, 5)
    episodes: int = 2000
    seed: int = 0
    k: int = 20

    def __post_init__(self) -> None:
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                raise BadInput(f"no protocol {protocol!r} in the suite{nearest(protocol, PROTOCOLS)}")

    def wanted(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not self.sets or name in self.sets]

    def tasks(self) -> list[Task]:
        transfer = self.wanted(present_benchmarks(self.root, "transfer"))
        episodes = self.wanted(present_benchmarks(self.root, "few-shot"))
        found: list[Task] = []
        if "knn" in self.protocols:
            found += [Task("knn", name, f"knn-{name}", self._knn(name), {"k": self.k}) for name in transfer]
        if "transfer" in self.protocols:
            found += [Task("transfer", name, f"transfer-{name}", self._transfer(name)) for name in transfer]
        if "fewshot" in self.protocols:
            for shots in self.shots:
                told = {"ways": self.ways, "shots": shots, "episodes": self.episodes, "seed": self.seed}
                found += [Task(f"fewshot {self.ways}w{shots}s", name, f"fewshot-{name}-{self.ways}w{shots}s",
                               self._fewshot(name, shots), told) for name in episodes]
        missing = [name for name in self.sets if name not in (*transfer, *episodes)]
        if missing:
            raise BadInput(f"{missing[0]} is not in {self.root}; see: supancl data where {missing[0]}")
        if not found:
            raise BadInput(f"none of the data sets is in {self.root}; supancl data where NAME says how to lay one out")
        return found

    def _knn(self, name: str) -> Callable[[Subject], dict[str, Any]]:
        return lambda subject: knn_of(subject, f"{name}@{self.root}", ks=(self.k,))

    def _transfer(self, name: str) -> Callable[[Subject], dict[str, Any]]:
        return lambda subject: transfer_of(subject, f"{name}@{self.root}")

    def _fewshot(self, name: str, shots: int) -> Callable[[Subject], dict[str, Any]]:
        return lambda subject: few_shot_of(subject, f"{name}@{self.root}", self.ways, shots, episodes=self.episodes,
                                           seed=self.seed)


@dataclass(frozen=True)
class Task:
    protocol: str
    data: str
    name: str
    run: Callable[[Subject], dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)


def suite_of(subjects: Sequence[Subject], plan: Plan, out: Path, reporter: Reporter) -> list[dict[str, Any]]:
    """Every result, measured now or in an earlier call with the same encoder and settings."""
    tasks = plan.tasks()
    results, total = [], len(tasks) * len(subjects)
    for subject in subjects:
        weights = encoder_key(subject.encoder)
        for task in tasks:
            path = out / folder_name(subject) / "evaluate" / f"{task.name}.json"
            key = {"weights": weights, "layer": subject.look.layer, "normalize": subject.look.normalize,
                   **task.settings}
            result = earlier(path, key)
            if result is None:
                result = task.run(subject) | {"suite": key}
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, lambda temporary, content=result: dump(content, temporary))  # type: ignore[misc]
            results.append(result | {"task": task.protocol, "data": task.data, "group": subject.group})
            spread = f" ± {result['interval']:.2f}" if "interval" in result else ""
            reporter.note(f"[{len(results)}/{total}] {subject.label}: {task.protocol} on {task.data}: "
                          f"{result['accuracy']:.2f}{spread}")
    return results


def folder_name(subject: Subject) -> str:
    """A name of its own for every encoder: two runs may have the same last part."""
    short = hashlib.sha256(str(Path(subject.where).resolve()).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(subject.where).name)}-{short}"


def earlier(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if content.get("suite") == key and isinstance(content.get("accuracy"), float) else None


def rankings(results: Sequence[dict[str, Any]]) -> dict[str, Ranking]:
    """One table a protocol: a row an encoder, seeds of the same settings averaged."""
    tables: dict[str, dict[str, dict[str, list[float]]]] = {}
    names = labels(results)
    for result in results:
        row = tables.setdefault(result["task"], {}).setdefault(names[result["group"]], {})
        row.setdefault(result["data"], []).append(result["accuracy"])
    return {
        protocol: rank_encoders({
            encoder: {data: values[0] if len(values) == 1 else values for data, values in row.items()}
            for encoder, row in rows.items()
        })
        for protocol, rows in tables.items()
    }


def labels(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """group -> what its row is called; two groups of one recipe are told apart by their folders."""
    first = {result["group"]: result for result in reversed(results)}
    spoken = [result["label"] for result in first.values()]
    return {group: result["label"] if spoken.count(result["label"]) == 1
            else f"{result['label']} ({Path(result['encoder']).name})" for group, result in first.items()}


def differences(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Few-shot results of two encoders on the same episodes: the difference with an interval of its own."""
    found = []
    few = [result for result in results if result.get("protocol") == "fewshot"]
    names = labels(results)
    for i, one in enumerate(few):
        for other in few[i + 1 :]:
            same = one["task"] == other["task"] and one["data"] == other["data"] and one["drawn"] == other["drawn"]
            if same and one["encoder"] != other["encoder"]:
                gap = paired_difference(as_few_shot(one), as_few_shot(other))
                found.append({"protocol": one["task"], "data": one["data"], "a": names[one["group"]],
                              "b": names[other["group"]], "encoders": [one["encoder"], other["encoder"]],
                              "difference": gap.mean, "interval": gap.interval})
    return found


def as_few_shot(result: dict[str, Any]) -> FewShot:
    return FewShot(result["mean"], result["interval"], tuple(result["accuracies"]), result["ways"], result["shots"],
                   result["queries"], result["seed"], (), result["drawn"])


def dump(content: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(jsonable(content), indent=2) + "\n")
