"""What a plan is made of: runs as rows, how each is trained and judged, and the command it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from supancl.core.losses import Align
from supancl.data.sources.arrays import BUILT_IN
from supancl.data.sources.benchmarks import find_benchmark
from supancl.errors import BadInput
from supancl.recipes import Recipe, recipe

Setting = tuple[float, float]  # learning rate at a batch of 256, weight decay
Values = Mapping[str, float | None]  # JSON has no NaN
RUN = "{run}"  # stands for the run folder


@dataclass(frozen=True)
class Task:
    words: tuple[str, ...]
    read_values: Callable[[dict[str, Any]], Values]
    seeds: tuple[int, ...] = ()  # the seeds whose runs are asked; empty: all
    not_for: tuple[str, ...] = ()  # methods that do not have what it measures

    def is_for(self, method: str, seed: int) -> bool:
        return method not in self.not_for and (not self.seeds or seed in self.seeds)

    def of(self, run: str) -> list[str]:
        return ["evaluate", self.words[0], run, *self.words[1:]]

    def lacks(self) -> list[str]:
        """The data it names that are not there, as seen from the current folder."""
        flags = dict(pairwise(self.words))
        source, root, sets = (flags.get(flag) for flag in ("--data", "--root", "--sets"))
        missing = [] if source is None or source in BUILT_IN or Path(source).exists() else [source]
        return missing + [name for name in (sets or "").split(",") if root and name and not is_available(name, root)]


def is_available(name: str, root: str) -> bool:
    try:
        return bool(find_benchmark(name, root))
    except BadInput:
        return False


# First guesses that measured runs replace: images a second on one H200 as docs/performance.md has them (the momentum
# methods as SupBYOL, the rest as SupSiam). The seconds are those of the first 20 runs there, two side by side.
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
START_SECONDS = 8.0  # of a run around its steps, with kernels compiled before
EPOCH_SECONDS = 0.05  # what closing an epoch takes: checkpoints are written by a thread
COMPILE_SECONDS = 50.0  # on top, for the first run of its kind on a machine; 16 where its kernels are in a cache
SHARERS = 1.85  # side by side on one GPU each has its speed divided by this, as a first guess
TASK_SECONDS = 12.0  # of an evaluation beside the next runs


@dataclass(frozen=True)
class Speeds:
    """First guesses for one kind of network and image, in images a second and seconds; measured runs replace them."""

    by_method: Mapping[str, float] = field(default_factory=lambda: GUESS)
    others: float = GUESS_OTHERS
    compile_seconds: float = COMPILE_SECONDS
    task_seconds: float = TASK_SECONDS
    epoch_seconds: float = EPOCH_SECONDS

    def of(self, pace: str) -> float:
        return self.by_method.get(pace, self.others)


@dataclass(frozen=True)
class Step:
    """One run: a recipe with settings. `follows` names the method whose pilots say learning rate and weight decay.

    A step with `needs` trains no encoder: it trains a detector from the encoder of the run of that name, which must lie
    on the same machine. `settings` are then the detector's, `epochs` its passes over the images of `Plan.scenes`.
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
    """Steps in the order they are made; `tasks` says how a stage's runs are judged."""

    name: str
    family: str  # of the recipes: FAMILY.METHOD
    data: str
    images: int  # that an epoch has without a holdout
    steps: Sequence[Step]
    tasks: Mapping[str, Sequence[Task]]
    pilots: Mapping[str, tuple[Setting, ...]]
    always: Mapping[str, Any] = field(default_factory=dict)  # settings of every run
    picture: Sequence[str] = ()  # classes whose test images are mapped by t-SNE, of runs of the alpha sweep
    suffix: str = ""  # of the recipes' names: FAMILY.METHODSUFFIX
    speeds: Speeds = field(default_factory=Speeds)
    scenes: str = "data/VOCdevkit"  # what detectors are trained and tested on

    def recipe_name(self, method: str) -> str:
        return f"{self.family}.{method}{self.suffix}"

    def tasks_of(self, stage: str, method: str, seed: int) -> list[Task]:
        """The evaluations of a run: those of its stage, less the ones that are not for its method or seed."""
        return [task for task in self.tasks.get(stage, ()) if task.is_for(method, seed)]

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)


def kind_of(step: Step) -> str:
    """The same for steps whose kernels are the same to the compiler; rates, decay, seed and alpha are not in them."""
    if step.needs is not None:
        return "detector"
    return step.name.replace("harsh-", "") if step.stage == "collapse" else step.method


def pace_of(method: str, settings: Mapping[str, Any]) -> str:
    """The method whose speed it has: with a momentum branch a step of SupSiam has SupBYOL's passes."""
    return "supbyol" if method == "supsiam" and settings.get("branches.target") == "momentum" else method


# --- what a step becomes ----------------------------------------------------------------------------------------------


def settings_of(step: Step, plan: Plan, setting: Setting | None) -> dict[str, Any]:
    """Every override of the recipe; of a step that follows pilots, with what they chose."""
    if step.needs is not None:
        return dict(step.settings)
    settings = {**plan.always, **step.settings}
    if step.follows is not None:
        assert setting is not None
        settings = {"optimizer.lr": setting[0], "optimizer.weight_decay": setting[1], **settings}
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
    """The same for runs that differ in nothing but their seed, whatever they are called.

    With alpha = 1 the pool has no part in the loss, so SupSiam is SimSiam.
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
    """With few episodes, and of data sets that need not be whole."""
    words = tuple(
        "20" if before == "--episodes" else word for before, word in zip(("", *task.words), task.words, strict=False)
    )
    return replace(task, words=(*words, "--partial") if "--root" in words else words)


def rehearsal(plan: Plan) -> Plan:
    """One epoch of 2048 images and few episodes: the whole chain before the time is spent.

    Fewer images would leave a class of CIFAR-100 without the two that a linear probe needs, and nothing to choose by.
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
