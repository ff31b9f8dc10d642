"""The plan as data: pilots, final runs, the alpha sweep and the collapse cells, in the order they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from experiments.evidence.tasks import CIFAR_FINAL, CIFAR_PILOT, DIGITS, Task, rehearsed
from supancl.core.losses import Align
from supancl.recipes import Recipe, recipe

Setting = tuple[float, float]  # learning rate at a batch of 256, weight decay

# The first setting is what the recipe had before there were pilots. SimSiam collapses at lr .7 and weight decay 5e-4 (a
# prototype's finding), so the asymmetric methods are tried around 1e-4; the others at 5e-4, which is usual on CIFAR.
PILOTS: dict[str, tuple[Setting, ...]] = {
    "supsiam": ((0.7, 1e-4), (0.7, 5e-5), (0.35, 3e-4)),
    "simsiam": ((0.7, 1e-4), (0.7, 5e-5), (0.35, 3e-4)),
    "supcon": ((0.6, 1e-4), (0.6, 5e-4), (0.3, 5e-4)),
    "crossentropy": ((0.1, 1e-4), (0.1, 5e-4), (0.2, 5e-4)),
    "simclr": ((0.7, 1e-4), (0.7, 5e-4), (0.35, 5e-4)),
    "supbyol": ((0.5, 1e-4), (0.5, 5e-5), (0.25, 3e-4)),
    "byol": ((0.6, 1e-4), (0.6, 5e-5), (0.3, 3e-4)),
    "supmoco": ((0.2, 1e-4), (0.2, 5e-4), (0.5, 1e-4)),
    "moco2": ((0.06, 1e-4), (0.06, 5e-4), (0.3, 1e-4)),
}
ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
HARSH = 5e-4  # weight decay: what makes SimSiam collapse at lr .7
CELLS = {(False, False): "neither", (True, False): "pool", (False, True): "ema", (True, True): "pool+ema"}

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
GUESSED = 35_900.0
START_SECONDS = 8.0  # of a run around its steps, with kernels compiled before
EPOCH_SECONDS = 0.05  # what closing an epoch takes: checkpoints are written by a thread
COMPILE_SECONDS = 50.0  # on top, for the first run of its kind on a machine; 16 where its kernels are in a cache
SHARERS = 1.85  # side by side on one GPU each has its speed divided by this, as a first guess
TASK_SECONDS = 12.0  # of an evaluation beside the next runs


@dataclass(frozen=True)
class Speeds:
    """First guesses for one kind of network and image, in images a second and seconds; measured runs replace them."""

    by_method: Mapping[str, float] = field(default_factory=lambda: GUESS)
    others: float = GUESSED
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


def pilots(method: str, settings: Sequence[Setting], epochs: int = 30, **others: Any) -> list[Step]:
    """A tenth of each training class is held out, and is what they are judged on.

    Those of one weight decay come one after another: a learning rate is read from the device, so they share a captured
    step (supancl.training.cuda.reuse), which a weight decay is part of.
    """
    made = [
        Step(
            f"pilot-{method}-{number}",
            "pilot",
            method,
            epochs,
            0,
            {
                "optimizer.lr": lr,
                "optimizer.weight_decay": decay,
                "data.holdout": 0.1,
                "train.monitor_every": 10,
                **others,
            },
        )
        for number, (lr, decay) in enumerate(settings)
    ]
    decays = [decay for _, decay in settings]
    return sorted(made, key=lambda step: decays.index(step.settings["optimizer.weight_decay"]))


# every image is trained on and nothing is held out for the monitor: the test set is looked at once, at the end
WHOLE = {"data.holdout": 0, "train.monitor_every": 5}


def final(method: str, seed: int, epochs: int = 100) -> Step:
    return Step(f"final-{method}-{seed}", "final", method, epochs, seed, WHOLE, follows=method)


def sweep(seed: int, epochs: int = 100) -> list[Step]:
    """SupSiam at each alpha, with what SupSiam's own pilots chose; the final runs are alpha .5."""
    return [
        Step(f"alpha-{alpha:g}-{seed}", "alpha", "supsiam", epochs, seed, {**WHOLE, "loss.alpha": alpha}, "supsiam")
        for alpha in ALPHAS
        if alpha != 0.5
    ]


def cell_name(pool: bool, ema: bool, harsh: bool = False) -> str:
    return f"collapse-{'harsh-' * harsh}{CELLS[pool, ema]}-0"


def cell(pool: bool, ema: bool, epochs: int = 50, harsh: bool = False) -> Step:
    """Table 8: SupSiam with or without a pool, with or without a momentum branch, and nothing else changed.

    Harsh cells have a weight decay that SimSiam does not survive: without one that collapses nothing can be prevented.
    """
    changed = {
        **({} if pool else {"pool.kind": "none"}),
        **({"branches.target": "momentum"} if ema else {}),
        **({"optimizer.weight_decay": HARSH} if harsh else {}),
    }
    settings = {**WHOLE, "train.monitor_every": 1, **changed}
    return Step(cell_name(pool, ema, harsh), "collapse", "supsiam", epochs, 0, settings, "supsiam")


def trained(method: str) -> list[Step]:
    """Its pilots, and the run with its first seed."""
    return [*pilots(method, PILOTS[method]), final(method, 0)]


def cifar_steps() -> list[Step]:
    """By what a further run adds to the answers: GPU time may end after twenty minutes as well as after two hours.

    1. SupSiam against SimSiam is the paper's claim, and SupSiam's three seeds come at once: with two degrees of freedom
       known, every later difference of single seeds has an interval, and without them none has. The alphas share a
       captured step and need no pilots, so theirs is the cheapest of the other questions.
    2. SupCon, cross-entropy and SimCLR, of which SupCon alone serves two questions; SupBYOL and BYOL; then collapse, as
       cells of half the length fit where the time left is too short for a final run. After these every question has an
       answer, of one seed.
    3. The MoCo pair, a second witness for a question that SupCon and SimCLR answer, and further seeds where differences
       may be small, in turn: SupCon, cross-entropy, SimSiam.
    4. The collapse cells once more, harsher, and the alphas' further seeds.
    """
    first = [step for method in ("supsiam", "simsiam") for step in pilots(method, PILOTS[method])]
    first += [*(final("supsiam", seed) for seed in (0, 1, 2)), final("simsiam", 0), *sweep(0)]
    standing = [*trained("supcon"), *pilots("simclr", PILOTS["simclr"]), *trained("crossentropy"), final("simclr", 0)]
    others = [*trained("supbyol"), *trained("byol"), *(cell(*key) for key in CELLS)]
    seeds = [
        final("supcon", 1),
        *pilots("supmoco", PILOTS["supmoco"]),
        final("crossentropy", 1),
        *pilots("moco2", PILOTS["moco2"]),
        final("simsiam", 1),
        final("supmoco", 0),
        final("moco2", 0),
        *(final(method, 2) for method in ("supcon", "crossentropy", "simsiam")),
    ]
    harsh = [cell(*key, harsh=True) for key in CELLS]
    return [*first, *standing, *others, *seeds, *harsh, *sweep(1), *sweep(2)]


# as the paper's figure has 15 dogs and 5 birds: three superclasses of land mammals, and the fish
RELATED = (
    "bear",
    "leopard",
    "lion",
    "tiger",
    "wolf",
    "camel",
    "cattle",
    "chimpanzee",
    "elephant",
    "kangaroo",
    "fox",
    "porcupine",
    "possum",
    "raccoon",
    "skunk",
    "aquarium_fish",
    "flatfish",
    "ray",
    "shark",
    "trout",
)


def cifar_plan() -> Plan:
    tasks = {"pilot": CIFAR_PILOT, "final": CIFAR_FINAL, "alpha": CIFAR_FINAL, "collapse": CIFAR_FINAL[:3]}
    return Plan("cifar100", "cifar100", "data/cifar100.npz", 50_000, cifar_steps(), tasks, PILOTS, picture=RELATED)


def digits_plan() -> Plan:
    """The same machinery in a minute on a CPU: two methods, two pilots each, one alpha, one cell, all of one epoch."""
    grid = dict.fromkeys(("supsiam", "simsiam"), ((0.1, 5e-4), (0.05, 1e-4)))
    steps = [step for method in grid for step in pilots(method, grid[method], epochs=1)]
    steps += [final(method, 0, epochs=1) for method in grid] + sweep(0, epochs=1)[:1] + [cell(False, True, epochs=1)]
    kept = [
        replace(step, settings={key: value for key, value in step.settings.items() if key != "data.holdout"})
        for step in steps
    ]  # the digits have no test split: what the recipe holds out judges all of them
    tasks = dict.fromkeys(("pilot", "final", "alpha", "collapse"), DIGITS)
    return Plan(
        "digits", "digits", "digits", 256, kept, tasks, grid, {"encoder.width": 16, "data.limit": 256}, ("3", "5", "8")
    )


def rehearsal(plan: Plan) -> Plan:
    """One epoch of 2048 images and few episodes: the whole chain before the time is spent.

    Fewer images would leave a class of CIFAR-100 without the two that a linear probe needs, and nothing to choose by.
    """
    steps = [replace(step, epochs=1) for step in plan.steps]
    tasks = {stage: [rehearsed(task) for task in tasks] for stage, tasks in plan.tasks.items()}
    return replace(
        plan,
        name=f"{plan.name}-rehearsal",
        images=2048,
        steps=steps,
        tasks=tasks,
        always={**plan.always, "data.limit": 2048, "train.batch_size": 64, "pool.size": 512},
    )


PLANS = {"cifar100": cifar_plan, "digits": digits_plan}


def kind_of(step: Step) -> str:
    """The same for steps whose kernels are the same to the compiler; rates, decay, seed and alpha are not in them."""
    if step.needs is not None:
        return "detector"
    return step.name.replace("harsh-", "") if step.stage == "collapse" else step.method


def pace_of(method: str, settings: Mapping[str, Any]) -> str:
    """The method whose speed it has: with a momentum branch a step of SupSiam has SupBYOL's passes."""
    return "supbyol" if method == "supsiam" and settings.get("branches.target") == "momentum" else method


# --- what a step becomes ----------------------------------------------------------------------------------------------


def settings_of(step: Step, plan: Plan, chosen: Setting | None) -> dict[str, Any]:
    """Every override of the recipe; of a step that follows pilots, with what they chose."""
    if step.needs is not None:
        return dict(step.settings)
    wanted = {**plan.always, **step.settings}
    if step.follows is not None:
        assert chosen is not None
        wanted = {"optimizer.lr": chosen[0], "optimizer.weight_decay": chosen[1], **wanted}
    if "pool.size" in wanted and recipe(plan.recipe_name(step.method)).pool.kind == "none":
        wanted.pop("pool.size", None)
    return wanted


def words_of(step: Step, plan: Plan, settings: Mapping[str, Any]) -> list[str]:
    """The command that trains it, without `supancl`."""
    wanted = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    if step.needs is not None:
        root = str(PurePosixPath(plan.scenes).parent)
        return [
            "detect",
            "train",
            f"runs/{step.needs}",
            "--data",
            root,
            "--year",
            "2012",
            "--seed",
            str(step.seed),
            *wanted,
            "--out",
            f"runs/{step.name}",
        ]
    return [
        "pretrain",
        plan.recipe_name(step.method),
        "--data",
        plan.data,
        "--epochs",
        str(step.epochs),
        "--seed",
        str(step.seed),
        *wanted,
        "--out",
        f"runs/{step.name}",
    ]


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
