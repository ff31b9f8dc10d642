"""How a run is judged: one command line each, and what is kept of the result it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from supancl.data.sources.arrays import BUILT_IN
from supancl.data.sources.benchmarks import find_benchmark
from supancl.errors import BadInput

Kept = Mapping[str, float | None]  # JSON has no NaN
RUN = "{run}"  # stands for the run folder


@dataclass(frozen=True)
class Task:
    words: tuple[str, ...]
    keeps: Callable[[dict[str, Any]], Kept]
    seeds: tuple[int, ...] = ()  # the seeds whose runs are asked; empty: all
    not_for: tuple[str, ...] = ()  # methods that do not have what it measures

    def is_for(self, method: str, seed: int) -> bool:
        return method not in self.not_for and (not self.seeds or seed in self.seeds)

    def of(self, run: str) -> list[str]:
        return ["evaluate", self.words[0], run, *self.words[1:]]

    def lacks(self) -> list[str]:
        """The data it names that are not there, as seen from the current folder."""
        named = dict(pairwise(self.words))
        source, root, sets = (named.get(flag) for flag in ("--data", "--root", "--sets"))
        missing = [] if source is None or source in BUILT_IN or Path(source).exists() else [source]
        return missing + [name for name in (sets or "").split(",") if root and name and not is_there(name, root)]


def is_there(name: str, root: str) -> bool:
    try:
        return bool(find_benchmark(name, root))
    except BadInput:
        return False


def accuracy(name: str) -> Callable[[dict[str, Any]], Kept]:
    return lambda found: {name: found["accuracy"]}


def neighbours(found: dict[str, Any]) -> Kept:
    """k = 20 counts; k = 200 is what other libraries report."""
    others = {f"knn_{k}": value for k, value in found["by_k"].items() if int(k) != found["k"]}
    return {"knn": found["accuracy"], **others}


def spread(prefix: str = "") -> Callable[[dict[str, Any]], Kept]:
    return lambda found: {f"{prefix}{key}": found[key] for key in ("within", "total", "ratio", "effective_rank")}


def transferred(found: dict[str, Any]) -> Kept:
    return {str(result["data"]): result["accuracy"] for result in found["results"]}


def transferred_as(name: str) -> Callable[[dict[str, Any]], Kept]:
    """Of one data set that is no folder of the registry, so that its name says where it lay."""
    return lambda found: {name: found["results"][0]["accuracy"]}


def episodes(found: dict[str, Any]) -> Kept:
    """`omniglot_1` and, over its episodes, `omniglot_1_interval`."""
    kept: dict[str, float | None] = {}
    for result in found["results"]:
        name = f"{result['data']}_{result['shots']}"
        kept |= {name: result["accuracy"], f"{name}_interval": result["interval"]}
    return kept


CIFAR_PILOT = (
    Task(("linear",), accuracy("linear")),
    Task(("knn",), neighbours),
)
CIFAR_FINAL = (
    Task(("knn", "--split", "test", "--k", "20,200"), neighbours),
    Task(("linear", "--split", "test"), accuracy("linear")),
    Task(("variance", "--split", "test"), spread()),
    Task(("variance", "--split", "train"), spread("train_")),
    Task(("linear", "--data", "data/cifar10.npz", "--split", "test"), accuracy("crossed")),
    Task(("transfer", "--root", "data", "--sets", "pets"), transferred),
    Task(
        ("fewshot", "--root", "data", "--sets", "omniglot,traffic-signs", "--shots", "1,5", "--episodes", "2000"),
        episodes,
    ),
)
IMAGENET_PILOT = CIFAR_PILOT
# the projector of a classifier is that classifier: its outputs are no features
PROJECTOR = Task(
    ("variance", "--split", "train", "--layer", "projector"), spread("projector_"), not_for=("crossentropy",)
)
IMAGENET_FINAL = (
    Task(("knn", "--split", "test", "--k", "20,200"), neighbours),
    Task(("linear", "--split", "test"), accuracy("linear")),
    Task(("linear", "--split", "test", "--probe", "sgd"), accuracy("linear_sgd"), seeds=(0,)),
    Task(("variance", "--split", "test"), spread()),
    Task(("variance", "--split", "train"), spread("train_")),
    PROJECTOR,
    Task(("transfer", "--data", "data/cifar10.npz"), transferred_as("cifar10")),
    Task(("transfer", "--data", "data/cifar100.npz"), transferred_as("cifar100")),
    Task(("transfer", "--root", "data", "--sets", "pets"), transferred),
    Task(
        ("fewshot", "--root", "data", "--sets", "omniglot,traffic-signs", "--shots", "1,5", "--episodes", "2000"),
        episodes,
    ),
)
DIGITS = (
    Task(("linear",), accuracy("linear")),
    Task(("knn",), neighbours),
    Task(("variance",), spread()),
    Task(("fewshot", "--data", "digits", "--ways", "4", "--shots", "1", "--queries", "3", "--episodes", "5"), episodes),
)


def rehearsed(task: Task) -> Task:
    """With few episodes, and of data sets that need not be whole."""
    words = tuple(
        "20" if before == "--episodes" else word for before, word in zip(("", *task.words), task.words, strict=False)
    )
    return replace(task, words=(*words, "--partial") if "--root" in words else words)
