"""A finished study is its own plan: the commands in its result files make the same runs again."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.evidence.driver import Work
from experiments.evidence.numbers import read_results
from supancl.runs.folder import RunFolder

KEPT = ("plan", "stage", "method", "seed", "epochs", "identity", "settings", "commands")


@dataclass(frozen=True)
class Repeated:
    """A run that was made before, from its result."""

    result: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.result["name"])

    @property
    def commands(self) -> list[list[str]]:
        return [shlex.split(line)[1:] for line in self.result["commands"]]

    def is_ready(self, work: Work) -> bool:
        """The data are there and, for a detector, its encoder, which another run makes."""
        words = self.commands[0]
        flags = dict(pairwise(words))
        data = flags.get("--data", "digits")
        has_encoder = words[0] != "detect" or (work.results / f"{Path(words[2]).name}.json").exists()
        return has_encoder and (data == "digits" or (work.folder / data).exists())

    def measure(self, work: Work) -> dict[str, Any]:
        first, *asked = self.commands
        folder = RunFolder(Path("runs") / self.name)
        code, lines, found = work.call([*first, *["--resume"] * folder.has_run])
        values: dict[str, Any] = {key: found[key] for key in ("AP", "AP50", "AP75") if key in found}
        for words in asked if code == 0 else ():
            values |= values_of(words, work.call([*words, *["--no-baselines"] * (words[1] in WITHOUT_BASELINES)])[2])
        collapsed = code == 3 or any("collapsed" in line for line in lines)
        status = "collapsed" if collapsed else "finished" if code == 0 else "failed"
        kept = {key: self.result[key] for key in KEPT if key in self.result}
        return {**kept, "status": status, "values": values, "last": last_epoch(folder)}


WITHOUT_BASELINES = ("knn", "linear", "transfer")


def values_of(words: Sequence[str], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that an evaluation fills: `crossed` is the other CIFAR, `train_` and `projector_` say of what."""
    protocol, flags = words[1], dict(pairwise(words))
    if protocol == "fewshot":
        return {f"{each['data']}_{each['shots']}": each["accuracy"] for each in answer["results"]}
    if protocol == "transfer":
        data = flags.get("--data")
        return {Path(data).stem if data else each["data"]: each["accuracy"] for each in answer["results"]}
    if protocol == "variance":
        prefix = "projector_" if "--layer" in flags else "train_" if flags.get("--split") == "train" else ""
        return {prefix + key: answer[key] for key in ("within", "total", "ratio", "effective_rank")}
    name = "crossed" if "--data" in flags else f"{protocol}_sgd" if flags.get("--probe") == "sgd" else protocol
    return {name: answer["accuracy"]}


def last_epoch(folder: RunFolder) -> dict[str, float]:
    """Means of the losses over the last epoch, and the last effective rank of the targets."""
    rows = list(folder.metrics()) if (folder.path / "metrics.jsonl").exists() else []
    last = [row for row in rows if row["kind"] == "train" and row["epoch"] == rows[-1]["epoch"]]
    means = {key: [row[key] for row in last if row.get(key) is not None] for key in ("loss", "ssl", "sup", "std")}
    found = {key: statistics.fmean(values) for key, values in means.items() if values}
    checks = [row["effective_rank"] for row in rows if row["kind"] == "monitor" and row.get("effective_rank")]
    return found | ({"target_effective_rank": checks[-1]} if checks else {})


def cells(study: str, folder: Path) -> list[Repeated]:
    return [Repeated(result) for result in read_results(study, folder) if "commands" in result]
