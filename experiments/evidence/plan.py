"""The building blocks of a plan: runs as rows, how each is trained and evaluated, and its command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from supancl.core.losses import Align
from supancl.data.sources.arrays import BUILT_IN
from supancl.data.sources.benchmarks import find_benchmark
from supancl.errors import BadInput
from supancl.recipes import Recipe, recipe

Values = Mapping[str, float | None]  # JSON has no NaN
RUN = "{run}"  # placeholder of the run folder


class Setting(NamedTuple):
    """What a pilot tries: the learning rate at a batch of 256, the weight decay, and other fields of the recipe."""

    lr: float
    weight_decay: float
    others: tuple[tuple[str, Any], ...] = ()

    def fields(self) -> dict[str, Any]:
        return {"optimizer.lr": self.lr, "optimizer.weight_decay": self.weight_decay, **dict(self.others)}


@dataclass(frozen=True)
class Task:
    words: tuple[str, ...]
    read_values: Callable[[dict[str, Any]], Values]
    seeds: tuple[int, ...] = ()  # only runs with these seeds; empty: all
    not_for: tuple[str, ...] = ()  # methods that it cannot measure

    def is_for(self, method: str, seed: int) -> bool:
        return method not in self.not_for and (not self.seeds or seed in self.seeds)

    def of(self, run: str) -> list[str]:
        return ["evaluate", self.words[0], run, *self.words[1:]]

    def lacks(self) -> list[str]:
        """The data it needs that are missing, seen from the current folder."""
        flags = dict(pairwise(self.words))
        source, root, sets = (flags.get(flag) for flag in ("--data", "--root", "--sets"))
        missing = [] if source is None or source in BUILT_IN or Path(source).exists() else [source]
        return missing + [name for name in (sets or "").split(",") if root and name and not is_available(name, root)]


def is_available(name: str, root: str) -> bool:
    try:
        return bool(find_benchmark(name, root))
    except BadInput:
        return False


# First guesses, replaced by measured runs: images per second on one H200 from docs/performance.md (momentum methods as
# SupBYOL, the others as SupSiam). The seconds come from the first 20 runs there, two at a time.
GUESS = {
    "simsiam": 36_800.0,
    "supcon": 37_800.0,
    "simclr": 37_800.0,
    "byol": 27_300.0,
    "supbyol": 26_900.0,
    "moco2": 26_900.0,
    "supmoco": 26_900.0,
}
GUESS_OTHERS = 35_900.0
START_SECONDS = 8.0  # of a run outside its steps, with compiled kernels
EPOCH_SECONDS = 0.05  # per epoch; checkpoints are written by a thread
COMPILE_SECONDS = 50.0  # more for the first run of a kind on a machine; 16 with cached kernels
SHARERS = 1.85  # two runs on one GPU: each speed is divided by this, as a first guess
TASK_SECONDS = 12.0  # of an evaluation while other runs train


@dataclass(frozen=True)
class Speeds:
    """First guesses for one network and image size; measured runs replace them."""

    by_method: Mapping[str, float] = field(default_factory=lambda: GUESS)
    others: float = GUESS_OTHERS
    compile_seconds: float = COMPILE_SECONDS
    task_seconds: float = TASK_SECONDS
    epoch_seconds: float = EPOCH_SECONDS

    def of(self, pace: str) -> float:
        return self.by_method.get(pace, self.others)


@dataclass(frozen=True)
class Step:
    """One run: a recipe with settings. `follows` is the method whose pilots choose learning rate and weight decay.

    A step with `needs` trains a detector from the encoder of the run of that name, which must be on the same machine.
    `settings` are then the detector's, `epochs` its passes over the images of `Plan.scenes`.
    """

    name: str
    stage: str
    method: str
    epochs: int
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    follows: str | None = None
    needs: str | None = None


@dataclass(frozen=True)
class Plan:
    """Steps in their order; `tasks` are the evaluations of each stage."""

    name: str
    family: str  # of the recipes: FAMILY.METHOD
    data: str
    images: int  # per epoch, without a holdout
    steps: Sequence[Step]
    tasks: Mapping[str, Sequence[Task]]
    pilots: Mapping[str, tuple[Setting, ...]]
    always: Mapping[str, Any] = field(default_factory=dict)  # settings of every run
    picture: Sequence[str] = ()  # classes in the t-SNE maps of the alpha sweep
    suffix: str = ""  # of the recipes' names: FAMILY.METHODSUFFIX
    speeds: Speeds = field(default_factory=Speeds)
    scenes: str = "data/VOCdevkit"  # what detectors are trained and tested on
    varied: Sequence[str] = ()  # settings that also tell runs apart, next to those of `identity`

    def recipe_name(self, method: str) -> str:
        return f"{self.family}.{method}{self.suffix}"

    def tasks_of(self, stage: str, method: str, seed: int) -> list[Task]:
        """The evaluations of a run: those of its stage that apply to its method and seed."""
        return [task for task in self.tasks.get(stage, ()) if task.is_for(method, seed)]

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)


def kind_of(step: Step) -> str:
    """Steps of one kind share compiled kernels; rates, decay, seed and alpha do not matter."""
    if step.needs is not None:
        return "detector"
    if step.stage == "pool":
        return str(step.settings.get("pool.kind", "queue"))
    return step.name.replace("harsh-", "") if step.stage == "collapse" else step.method


def pace_of(method: str, settings: Mapping[str, Any]) -> str:
    """The method with the same speed: SupSiam with a momentum branch is as fast as SupBYOL."""
    return "supbyol" if method == "supsiam" and settings.get("branches.target") == "momentum" else method


# --- from a step to a command -----------------------------------------------------------------------------------------


def settings_of(step: Step, plan: Plan, setting: Setting | None) -> dict[str, Any]:
    """All overrides of the recipe, with the pilots' choice if the step follows pilots."""
    if step.needs is not None:
        return dict(step.settings)
    settings = {**plan.always, **step.settings}
    if step.follows is not None:
        assert setting is not None
        settings = {**setting.fields(), **settings}
    if "pool.size" in settings and recipe(plan.recipe_name(step.method)).pool.kind == "none":
        settings.pop("pool.size", None)
    return settings


def words_of(step: Step, plan: Plan, settings: Mapping[str, Any]) -> list[str]:
    """The command that trains it, without `supancl`."""
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    if step.needs is not None:
        root = str(PurePosixPath(plan.scenes).parent)
        begin = ["detect", "train", f"runs/{step.needs}", "--data", root, "--year", "2012"]
    else:
        begin = ["pretrain", plan.recipe_name(step.method), "--data", plan.data, "--epochs", str(step.epochs)]
    return [*begin, "--seed", str(step.seed), *overrides, "--out", f"runs/{step.name}"]


def recipe_of(family: str, method: str, epochs: int, settings: Mapping[str, Any]) -> Recipe:
    return recipe(f"{family}.{method}").with_set({**settings, "train.epochs": epochs})


SELF_SUPERVISED = {"supsiam": "simsiam", "supbyol": "byol"}


def identity(built: Recipe, method: str) -> str:
    """Equal for runs that differ only in seed and name.

    With alpha = 1 the loss does not use the pool, so SupSiam is SimSiam.
    """
    alpha, pool = (built.loss.alpha, built.pool.kind) if isinstance(built.loss, Align) else (None, built.pool.kind)
    if alpha == 1:
        method, pool = SELF_SUPERVISED.get(method, method), "none"
    facts = {
        "lr": built.optimizer.lr,
        "decay": built.optimizer.weight_decay,
        "alpha": alpha,
        "pool": pool,
        "target": built.branches.target,
        "epochs": built.train.epochs,
        "holdout": built.data.holdout,
    }
    return " ".join(
        [
            method,
            *(
                f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in facts.items()
                if value is not None
            ),
        ]
    )


# --- rehearsals -------------------------------------------------------------------------------------------------------


def rehearsal_task(task: Task) -> Task:
    """The task with few episodes, and with data sets that may be incomplete."""
    words = tuple(
        "20" if before == "--episodes" else word for before, word in zip(("", *task.words), task.words, strict=False)
    )
    return replace(task, words=(*words, "--partial") if "--root" in words else words)


def rehearsal(plan: Plan) -> Plan:
    """The whole plan with one epoch of 2048 images and few episodes, to test it quickly.

    With fewer images a class of CIFAR-100 may not have the two that a linear probe needs.
    """
    steps = [replace(step, epochs=1) for step in plan.steps]
    tasks = {stage: [rehearsal_task(task) for task in tasks] for stage, tasks in plan.tasks.items()}
    return replace(
        plan,
        name=f"{plan.name}-rehearsal",
        images=2048,
        steps=steps,
        tasks=tasks,
        always={**plan.always, "data.limit": 2048, "train.batch_size": 64, "pool.size": 512},
    )
