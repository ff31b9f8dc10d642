"""The first plans as tables of rows: CIFAR-100 with a ResNet-18, ImageNet photographs with a ResNet-50, the digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.evidence.plan import Plan, Setting, Speeds, Step, Task, Values, rehearsal_task

# --- evaluations ------------------------------------------------------------------------------------------------------


def accuracy(name: str) -> Callable[[dict[str, Any]], Values]:
    return lambda answer: {name: answer["accuracy"]}


def neighbours(answer: dict[str, Any]) -> Values:
    """k = 20 is used; other libraries report k = 200."""
    others = {f"knn_{k}": value for k, value in answer["by_k"].items() if int(k) != answer["k"]}
    return {"knn": answer["accuracy"], **others}


def variance_values(prefix: str = "") -> Callable[[dict[str, Any]], Values]:
    return lambda answer: {f"{prefix}{key}": answer[key] for key in ("within", "total", "ratio", "effective_rank")}


def transfer_values(answer: dict[str, Any]) -> Values:
    return {str(result["data"]): result["accuracy"] for result in answer["results"]}


def transfer_value(name: str) -> Callable[[dict[str, Any]], Values]:
    """The accuracy on one data set outside the registry, whose own name would be a path."""
    return lambda answer: {name: answer["results"][0]["accuracy"]}


def episodes(answer: dict[str, Any]) -> Values:
    """`omniglot_1` and, over its episodes, `omniglot_1_interval`."""
    values: dict[str, float | None] = {}
    for result in answer["results"]:
        name = f"{result['data']}_{result['shots']}"
        values |= {name: result["accuracy"], f"{name}_interval": result["interval"]}
    return values


PILOT = (Task(("linear",), accuracy("linear")), Task(("knn",), neighbours))
ON_TEST = (
    Task(("knn", "--split", "test", "--k", "20,200"), neighbours),
    Task(("linear", "--split", "test"), accuracy("linear")),
    Task(("variance", "--split", "test"), variance_values()),
    Task(("variance", "--split", "train"), variance_values("train_")),
)
# cross-entropy's projector is its classifier, so its outputs are no features
PROJECTOR = Task(
    ("variance", "--split", "train", "--layer", "projector"), variance_values("projector_"), not_for=("crossentropy",)
)
PETS = Task(("transfer", "--root", "data", "--sets", "pets"), transfer_values)
FEW_SHOT = Task(
    ("fewshot", "--root", "data", "--sets", "omniglot,traffic-signs", "--shots", "1,5", "--episodes", "2000"), episodes
)
CIFAR_FINAL = (
    *ON_TEST,
    Task(("linear", "--data", "data/cifar10.npz", "--split", "test"), accuracy("crossed")),
    PETS,
    FEW_SHOT,
)
IMAGENET_FINAL = (
    *ON_TEST[:2],
    Task(("linear", "--split", "test", "--probe", "sgd"), accuracy("linear_sgd"), seeds=(0,)),
    *ON_TEST[2:],
    PROJECTOR,
    Task(("transfer", "--data", "data/cifar10.npz"), transfer_value("cifar10")),
    Task(("transfer", "--data", "data/cifar100.npz"), transfer_value("cifar100")),
    PETS,
    FEW_SHOT,
)
DIGITS = (
    *PILOT,
    Task(("variance",), variance_values()),
    Task(("fewshot", "--data", "digits", "--ways", "4", "--shots", "1", "--queries", "3", "--episodes", "5"), episodes),
)


# --- CIFAR-100 --------------------------------------------------------------------------------------------------------


def grids(rates: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, tuple[Setting, ...]]:
    """Settings from learning rates and weight decays."""
    return {method: tuple(Setting(*pair) for pair in pairs) for method, pairs in rates.items()}


# The first setting is what the recipe had before there were pilots. SimSiam collapses at lr .7 and weight decay 5e-4 (a
# prototype's finding), so the asymmetric methods are tried around 1e-4; the others at 5e-4, which is usual on CIFAR.
PILOTS: dict[str, tuple[Setting, ...]] = grids({
    "supsiam": ((0.7, 1e-4), (0.7, 5e-5), (0.35, 3e-4)),
    "simsiam": ((0.7, 1e-4), (0.7, 5e-5), (0.35, 3e-4)),
    "supcon": ((0.6, 1e-4), (0.6, 5e-4), (0.3, 5e-4)),
    "crossentropy": ((0.1, 1e-4), (0.1, 5e-4), (0.2, 5e-4)),
    "simclr": ((0.7, 1e-4), (0.7, 5e-4), (0.35, 5e-4)),
    "supbyol": ((0.5, 1e-4), (0.5, 5e-5), (0.25, 3e-4)),
    "byol": ((0.6, 1e-4), (0.6, 5e-5), (0.3, 3e-4)),
    "supmoco": ((0.2, 1e-4), (0.2, 5e-4), (0.5, 1e-4)),
    "moco2": ((0.06, 1e-4), (0.06, 5e-4), (0.3, 1e-4)),
})  # fmt: skip
ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
HARSH = 5e-4  # weight decay: what makes SimSiam collapse at lr .7
CELLS = {(False, False): "neither", (True, False): "pool", (False, True): "ema", (True, True): "pool+ema"}

HELD_OUT = {"data.holdout": 0.1, "train.monitor_every": 10}


def pilots(method: str, settings: Sequence[Setting], epochs: int = 30, **others: Any) -> list[Step]:
    """Pilots of a method; a tenth of each training class is held out to evaluate them.

    Sorted by weight decay: pilots with the same one share a captured step (supancl.training.cuda.reuse), because only
    the learning rate is read from the device.
    """
    steps = [
        Step(f"pilot-{method}-{number}", "pilot", method, epochs, 0, {**setting.fields(), **HELD_OUT, **others})
        for number, setting in enumerate(settings)
    ]
    decays = [setting.weight_decay for setting in settings]
    return sorted(steps, key=lambda step: decays.index(step.settings["optimizer.weight_decay"]))


# train on every image, nothing held out for the monitor; the test set is used once, at the end
WHOLE = {"data.holdout": 0, "train.monitor_every": 5}


def final(method: str, seed: int, epochs: int = 100) -> Step:
    return Step(f"final-{method}-{seed}", "final", method, epochs, seed, WHOLE, follows=method)


def sweep(seed: int, epochs: int = 100) -> list[Step]:
    """SupSiam at each alpha with the settings of its pilots; the final runs are alpha .5."""
    return [
        Step(f"alpha-{alpha:g}-{seed}", "alpha", "supsiam", epochs, seed, {**WHOLE, "loss.alpha": alpha}, "supsiam")
        for alpha in ALPHAS
        if alpha != 0.5
    ]


def cell_name(pool: bool, ema: bool, harsh: bool = False) -> str:
    return f"collapse-{'harsh-' * harsh}{CELLS[pool, ema]}-0"


def cell(pool: bool, ema: bool, epochs: int = 50, harsh: bool = False) -> Step:
    """Table 8: SupSiam with or without a pool, with or without a momentum branch; nothing else changes.

    Harsh cells have a weight decay at which SimSiam collapses; if nothing collapses, nothing can be prevented.
    """
    changed = {
        **({} if pool else {"pool.kind": "none"}),
        **({"branches.target": "momentum"} if ema else {}),
        **({"optimizer.weight_decay": HARSH} if harsh else {}),
    }
    settings = {**WHOLE, "train.monitor_every": 1, **changed}
    return Step(cell_name(pool, ema, harsh), "collapse", "supsiam", epochs, 0, settings, "supsiam")


def trained(method: str) -> list[Step]:
    """The pilots of a method and its first final run."""
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
    "bear", "leopard", "lion", "tiger", "wolf", "camel", "cattle", "chimpanzee", "elephant", "kangaroo", "fox",
    "porcupine", "possum", "raccoon", "skunk", "aquarium_fish", "flatfish", "ray", "shark", "trout",
)  # fmt: skip


def cifar_plan() -> Plan:
    tasks = {"pilot": PILOT, "final": CIFAR_FINAL, "alpha": CIFAR_FINAL, "collapse": CIFAR_FINAL[:3]}
    return Plan("cifar100", "cifar100", "data/cifar100.npz", 50_000, cifar_steps(), tasks, PILOTS, picture=RELATED)


# --- ImageNet ---------------------------------------------------------------------------------------------------------

IMAGENET_METHODS = ("supsiam", "simsiam", "supbyol", "byol", "supcon", "simclr", "crossentropy", "supmoco", "moco2")
WARMED_UP = ("supsiam", "simsiam")  # 40 epochs in the recipe
TUNED = ("simsiam", "byol")  # collapsed at the recipe's learning rate
# the recipe's learning rate (at batch 128, which reference_batch scales) and weight decay, then alternatives; BYOL's
# final run has shown what the recipe's does
IMAGENET_PILOTS = grids(
    {
        "supsiam": ((0.2, 1e-4), (0.1, 1e-4)),
        "simsiam": ((0.2, 1e-4), (0.1, 1e-4), (0.05, 1e-4)),
        "byol": ((0.1, 1e-4), (0.05, 1e-4)),
    }
)
# runs whose encoder gets a detector: three seeds of each method, trained on the machine that trains the detector
DETECTED = {"simsiam": [f"tuned-simsiam-{seed}" for seed in (1, 2, 3)],
            "supsiam": [f"final-supsiam-{seed}" for seed in (2, 4, 5)]}  # fmt: skip

# On one H200 SupSiam was seen at 16,000 images a second at 84 px; 64 px have 0.53 of the pixels, and small kernels are
# less efficient, hence 22,000; the momentum methods at 0.74 of it, as on CIFAR. A final run (5.4 million images) then
# takes 283 s alone and 492 s beside another, with a momentum branch 365 and 643 s; a pilot 36 and 56 s, a detector 53
# and 91 s. 0.15 s an epoch are for its checkpoint of 300 to 440 MB. The first run of a method on a machine takes up to
# 115 s more for compiling, later ones with other heads 20 to 60 s.
IMAGENET_SPEEDS = Speeds(
    by_method=dict.fromkeys(("supbyol", "byol", "supmoco", "moco2"), 16_500.0),
    others=22_000.0,
    compile_seconds=60.0,
    task_seconds=7.0,
    epoch_seconds=0.15,
)
IMAGENET_SETTINGS = {"views.size": 64, "encoder.size": 64, "data.holdout": 0.1, "train.log_every": 50}
# docs/detection.md, with a ResNet-50: images of 192 px, so sides and anchors are smaller than the protocol's
DETECTOR = {
    "iters": 720,
    "min_sizes": "[160,176,192,208,224,240,256]",
    "test_size": 256,
    "max_size": 448,
    "anchor_sizes": "[16,32,64,128,256]",
    "rpn_train": "[2000,500]",
    "rpn_test": "[1000,300]",
    "rpn_batch": 128,
    "roi_batch": 128,
    "precise_bn": 30,
    "test_batch": 16,
}
PASSES = 14  # of its 720 steps of 16 images through the 800


def imagenet_final(method: str, seed: int) -> Step:
    # with a checkpoint of 300 to 440 MB after every epoch a run spent 131 s outside of its steps, now 72 s
    rarely = {"train.monitor_every": 25, "train.checkpoint_epochs": 25}
    settings = {**IMAGENET_SETTINGS, **rarely, **warmup(method, 10)}
    return Step(f"final-{method}-{seed}", "final", method, 200, seed, settings)


def imagenet_tuned(method: str, seed: int) -> Step:
    """A final run at the rate of the best pilot."""
    return replace(imagenet_final(method, seed), name=f"tuned-{method}-{seed}", follows=method)


def imagenet_pilots(method: str) -> list[Step]:
    """The warm-up is the same fraction of the run as in a final one."""
    settings = {**IMAGENET_SETTINGS, "train.monitor_every": 5, **warmup(method, 1)}
    return [
        Step(f"pilot-{method}-{number}", "pilot", method, 20, 0, {**settings, **rates.fields()})
        for number, rates in enumerate(IMAGENET_PILOTS[method])
    ]


def warmup(method: str, epochs: int) -> dict[str, int]:
    return {"schedule.warmup_epochs": epochs} if method in WARMED_UP else {}


def detector(method: str, encoder: str) -> Step:
    seed = encoder.rpartition("-")[2]
    return Step(f"detect-{method}-{seed}", "detect", method, PASSES, int(seed), DETECTOR, needs=encoder)


def imagenet_steps() -> list[Step]:
    """By what a further run adds.

    1. One run of each of the nine methods, the two pairs of the paper's claim first.
    2. Pilots: the recipe's rate and lower ones, 20 epochs each, evaluated on held-out images. The runs above do not
       follow them: every method has the paper's learning rate (App. C at batch 256, cross-entropy the usual 0.1), and
       tuning some of nine would favour these. But SimSiam and BYOL collapse at it, and a difference to a collapsed run
       does not say how much labels help, so both are trained again at the best rate that does not collapse.
    3. Further seeds of SupSiam and SimSiam; BYOL at a lower rate, so that the second pair has a difference that means
       something, and a second seed of SupBYOL.
    4. Detectors on VOC2012 from SupSiam and SimSiam. An encoder of 90 MB stays on the machine that trained it, so the
       driver makes a detector only where it finds the encoder, and where VOC is there. Machines were gone before some
       encoders were evaluated on all data or had a detector, hence more seeds of SupSiam.
    5. The third seeds: of SupBYOL and BYOL, then the encoders of the third detectors.
    """
    detectors = [detector(method, encoders[number]) for number in range(3) for method, encoders in DETECTED.items()]
    return [
        *(imagenet_final(method, 0) for method in IMAGENET_METHODS),
        *(pilot for method in ("supsiam", "simsiam") for pilot in imagenet_pilots(method)),
        imagenet_tuned("simsiam", 0),
        *(imagenet_final("supsiam", seed) for seed in (1, 2, 3)),
        imagenet_tuned("simsiam", 1),
        imagenet_final("supsiam", 4),
        *imagenet_pilots("byol"),
        imagenet_tuned("byol", 0),
        imagenet_tuned("simsiam", 2),
        imagenet_final("supbyol", 1),
        *detectors[:4],
        imagenet_tuned("byol", 1),
        imagenet_final("supbyol", 2),
        imagenet_tuned("byol", 2),
        imagenet_tuned("simsiam", 3),
        imagenet_final("supsiam", 5),
        *detectors[4:],
    ]


def imagenet_plan() -> Plan:
    """The paper's Tables 4 to 6 in small: 100 classes, 300 training and 50 test images each, of 64 px.

    Of the training images 10% are held out of every run: the ridge of the linear probe is chosen on them, and monitor
    and pilots look at them. Test images are used once, by final runs.
    """
    images, steps, tasks = 30_000, imagenet_steps(), {"pilot": PILOT, "final": IMAGENET_FINAL}
    data, speeds = "data/mini_imagenet.npz", IMAGENET_SPEEDS
    return Plan("imagenet", "imagenet100", data, images, steps, tasks, IMAGENET_PILOTS, suffix="-256", speeds=speeds)


def imagenet_rehearsal() -> Plan:
    """The whole chain on a CPU: one epoch of 1,000 images of 32 px, a ResNet-18 with narrow heads, few episodes."""
    plan = imagenet_plan()
    tiny = {
        "views.size": 32,
        "encoder.size": 32,
        "encoder.name": "resnet18",
        "data.limit": 1000,
        "train.batch_size": 64,
        "pool.size": 512,
        "schedule.warmup_epochs": 0,
        "train.log_every": 5,
    }
    steps = [
        replace(
            step,
            epochs=1,
            settings={**step.settings, "iters": 2, "batch_size": 2, "precise_bn": 1}
            if step.needs
            else {**step.settings, **tiny, "train.monitor_every": 1},
        )
        for step in plan.steps
    ]
    tasks = {stage: [rehearsal_task(task) for task in stage_tasks] for stage, stage_tasks in plan.tasks.items()}
    return replace(plan, name="imagenet-rehearsal", images=1000, steps=steps, tasks=tasks)


# --- the digits -------------------------------------------------------------------------------------------------------


def digits_plan() -> Plan:
    """A plan for a minute on a CPU: two methods, two pilots each, one alpha, one cell, one epoch each."""
    grid = grids(dict.fromkeys(("supsiam", "simsiam"), ((0.1, 5e-4), (0.05, 1e-4))))
    steps = [step for method in grid for step in pilots(method, grid[method], epochs=1)]
    steps += [final(method, 0, epochs=1) for method in grid] + sweep(0, epochs=1)[:1] + [cell(False, True, epochs=1)]
    without_holdout = [
        replace(step, settings={key: value for key, value in step.settings.items() if key != "data.holdout"})
        for step in steps
    ]  # digits have no test split: all are evaluated on the recipe's held-out images
    tasks = dict.fromkeys(("pilot", "final", "alpha", "collapse"), DIGITS)
    return Plan(
        "digits",
        "digits",
        "digits",
        256,
        without_holdout,
        tasks,
        grid,
        {"encoder.width": 16, "data.limit": 256},
        ("3", "5", "8"),
    )
