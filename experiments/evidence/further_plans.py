"""Plans that follow the first ones: SupBYOL one change at a time, CIFAR-10, pools; and all plans by name.

They answer what the first page leaves open. Every run holds out 10% of the training images: pilots are evaluated on
them, and the ridge of the linear probe is chosen on them. Test images are used once, by final runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.evidence.plan import Plan, Setting, Step, Task, rehearsal
from experiments.evidence.plans import (
    CIFAR_FINAL,
    FEW_SHOT,
    HELD_OUT,
    ON_TEST,
    PETS,
    PILOT,
    PROJECTOR,
    accuracy,
    cifar_plan,
    digits_plan,
    imagenet_plan,
    imagenet_rehearsal,
    pilots,
)
from supancl.errors import BadInput, did_you_mean

# learning rate and weight decay that the pilots on CIFAR-100 chose (RESULTS.md); a test compares them
CHOSEN = {
    "supsiam": Setting(0.7, 1e-4),
    "simsiam": Setting(0.35, 3e-4),
    "supbyol": Setting(0.25, 3e-4),
    "byol": Setting(0.3, 3e-4),
    "supcon": Setting(0.6, 1e-4),
    "simclr": Setting(0.35, 5e-4),
    "crossentropy": Setting(0.2, 5e-4),
}
EPOCHS = 100


def fixed(method: str, seed: int) -> Step:
    """A final run with the settings that were chosen on CIFAR-100."""
    return Step(f"final-{method}-{seed}", "final", method, EPOCHS, seed, {**CHOSEN[method].fields(), **HELD_OUT})


# --- SupBYOL ----------------------------------------------------------------------------------------------------------


def changed(lr: float | None = None, **others: Any) -> Setting:
    """SupBYOL's chosen setting with one change; `__` stands for the dot of a field."""
    base = CHOSEN["supbyol"]
    fields = tuple((name.replace("__", "."), value) for name, value in others.items())
    return Setting(lr or base.lr, base.weight_decay, fields)


# title -> setting; the first one is the main table's SupBYOL
CHANGES = {
    "as in the main table": changed(),
    "alpha 0.5": changed(loss__alpha=0.5),
    "momentum from 0.99": changed(branches__momentum=0.99),
    "constant momentum 0.996": changed(branches__momentum_end=0.996),
    "lr 0.5, as in App. H": changed(lr=0.5),
    "no warm-up": changed(schedule__warmup_epochs=0),
}


def supbyol_plan() -> Plan:
    """Why is SupBYOL behind SupSiam on CIFAR-100? Pilots of full length, one change each; then three seeds of the best,
    of BYOL, and of SupSiam on the same images."""
    grid = tuple(CHANGES.values())
    steps = pilots("supbyol", grid, EPOCHS)
    for seed in (0, 1, 2):
        best = Step(f"final-supbyol-{seed}", "final", "supbyol", EPOCHS, seed, HELD_OUT, follows="supbyol")
        steps += [best, fixed("byol", seed)]
    steps += [fixed("supsiam", seed) for seed in (0, 1, 2)]
    tasks = {"pilot": PILOT, "final": (*CIFAR_FINAL, PROJECTOR)}
    varied = ("branches.momentum", "branches.momentum_end", "schedule.warmup_epochs")
    return Plan("supbyol", "cifar100", "data/cifar100.npz", 50_000, steps, tasks, {"supbyol": grid}, varied=varied)


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------

CIFAR10_FINAL = (
    *ON_TEST,
    Task(("linear", "--data", "data/cifar100.npz", "--split", "test"), accuracy("crossed")),
    PETS,
    FEW_SHOT,
    PROJECTOR,
)


def cifar10_plan() -> Plan:
    """The other half of Table H.1: pretrained on CIFAR-10, crossed to CIFAR-100. Nothing was tuned on CIFAR-10."""
    steps = [fixed(method, 0) for method in CHOSEN]
    steps += [fixed(method, seed) for seed in (1, 2) for method in ("supsiam", "simsiam")]
    return Plan("cifar10", "cifar10", "data/cifar10.npz", 50_000, steps, {"final": CIFAR10_FINAL}, {})


# --- pools ------------------------------------------------------------------------------------------------------------

# title -> name of the run and its settings: Table 7, then M of Eq. 2
POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "queue of 4096": ("pool-queue-0", {}),
    "40 per class": ("pool-40-0", {"pool.kind": "class-queues", "pool.size": 40}),
    "20 per class": ("pool-20-0", {"pool.kind": "class-queues", "pool.size": 20}),
    "5 per class": ("pool-5-0", {"pool.kind": "class-queues", "pool.size": 5}),
    "1 per class": ("pool-1-0", {"pool.kind": "class-queues", "pool.size": 1}),
    "prototypes": ("pool-prototypes-0", {"pool.kind": "prototypes"}),
    "queue of 4096, M = 1": ("pool-samples-1-0", {"loss.samples": 1}),
    "queue of 4096, M = 4": ("pool-samples-4-0", {"loss.samples": 4}),
    "queue of 4096, M = 16": ("pool-samples-16-0", {"loss.samples": 16}),
}


def pools_plan() -> Plan:
    """Table 7 on CIFAR-100: which pool, how large, and how many of its targets (M) make the supervised target."""
    rates = CHOSEN["supsiam"].fields()
    steps = [
        Step(name, "pool", "supsiam", EPOCHS, 0, {**rates, **HELD_OUT, **settings}) for name, settings in POOLS.values()
    ]
    varied = ("pool.size", "loss.samples")
    return Plan("pools", "cifar100", "data/cifar100.npz", 50_000, steps, {"pool": CIFAR_FINAL}, {}, varied=varied)


# --- all by name ------------------------------------------------------------------------------------------------------

PLANS: dict[str, Callable[[], Plan]] = {
    "cifar100": cifar_plan,
    "digits": digits_plan,
    "imagenet": imagenet_plan,
    "supbyol": supbyol_plan,
    "cifar10": cifar10_plan,
    "pools": pools_plan,
}


def named_plan(name: str) -> Plan:
    """The plan of that name, which may end in -rehearsal."""
    base = name.removesuffix("-rehearsal")
    if base not in PLANS:
        raise BadInput(f"--plan {name}: no such plan{did_you_mean(base, PLANS)}")
    if base == name:
        return PLANS[base]()
    return imagenet_rehearsal() if base == "imagenet" else rehearsal(PLANS[base]())
