"""A second plan: the paper's Tables 4 to 6 in small, on ImageNet photographs of 64 px with a ResNet-50.

Data: 100 classes, 300 training and 50 test images each. Of the training images 10% are held out of every run: the ridge
of the linear probe is chosen on them, and monitor and pilots look at them. Test images are used once, by final runs.

Order, by what a further run adds:

1. One run of each of the nine methods, the two pairs of the paper's claim first.
2. Pilots of SupSiam and SimSiam. They do not come first, and no final run follows them: every method has the paper's
   learning rate (App. C at batch 256, cross-entropy the usual 0.1), and tuning two of nine would favour these two. The
   pilots tell how much hangs on it: the recipe's rate and half of it, 20 epochs each, judged on held-out images. They
   are short, so the driver also makes them where the time left is too short for a final run.
3. Seeds 1 and 2 of the four asymmetric methods.
4. Detectors on VOC2012 from SimSiam and SupSiam, one for each of the three seeds. An encoder of 90 MB stays on the
   machine that trained it, so the driver makes a detector only where it finds the encoder, and where VOC is there.

Expected seconds on one H200 (16,000 images a second were seen at 84 px for SupSiam; 64 px have 0.53 of the pixels that
the network computes on, and small kernels are less efficient, hence 22,000; the momentum methods at 0.74 of it, as on
CIFAR). 5.4 million images a final run, 0.54 million a pilot:

    method                                     alone     one of two side by side
    SupSiam, SimSiam, SupCon, SimCLR, CE       283 s     492 s
    SupBYOL, BYOL, SupMoCo, MoCo-v2            365 s     643 s
    a pilot                                     36 s      56 s
    a detector                                  53 s      91 s

0.15 s an epoch of it are for its checkpoint of 300 to 440 MB. The first run of a method on a machine takes up to 115 s
more for compiling, later ones with other heads 20 to 60 s. Judging a final run should take a minute, beside the next.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.evidence.plan import Plan, Setting, Speeds, Step
from experiments.evidence.tasks import IMAGENET_FINAL, IMAGENET_PILOT, rehearsed

METHODS = ("supsiam", "simsiam", "supbyol", "byol", "supcon", "simclr", "crossentropy", "supmoco", "moco2")
ASYMMETRIC = METHODS[:4]
DETECTED = ("simsiam", "supsiam")
SEEDS = (0, 1, 2)
WARMED_UP = ("supsiam", "simsiam")  # 40 epochs in the recipe
# the recipe's learning rate (at batch 128, which reference_batch scales) and weight decay, then the alternative
PILOTS: dict[str, tuple[Setting, ...]] = dict.fromkeys(WARMED_UP, ((0.2, 1e-4), (0.1, 1e-4)))

SPEEDS = Speeds(
    dict.fromkeys(("supbyol", "byol", "supmoco", "moco2"), 16500.0),
    22_000.0,
    compile_seconds=60.0,
    task_seconds=7.0,
    epoch_seconds=0.15,
)
SMALL = {"views.size": 64, "encoder.size": 64, "data.holdout": 0.1, "train.log_every": 50}
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


def final(method: str, seed: int) -> Step:
    warm = {"schedule.warmup_epochs": 10} if method in WARMED_UP else {}
    return Step(f"final-{method}-{seed}", "final", method, 200, seed, {**SMALL, "train.monitor_every": 25, **warm})


def pilot(method: str, number: int) -> Step:
    """The warm-up is the same share of the run as in a final one."""
    lr, decay = PILOTS[method][number]
    return Step(
        f"pilot-{method}-{number}",
        "pilot",
        method,
        20,
        0,
        {
            **SMALL,
            "train.monitor_every": 5,
            "schedule.warmup_epochs": 1,
            "optimizer.lr": lr,
            "optimizer.weight_decay": decay,
        },
    )


def detector(method: str, seed: int) -> Step:
    name = f"detect-{method}-{seed}"
    return Step(name, "detect", method, PASSES, seed, DETECTOR, needs=f"final-{method}-{seed}")


def imagenet_steps() -> list[Step]:
    return [
        *(final(method, 0) for method in METHODS),
        *(pilot(method, number) for method in PILOTS for number in range(len(PILOTS[method]))),
        *(final(method, seed) for seed in SEEDS[1:] for method in ASYMMETRIC),
        *(detector(method, seed) for seed in SEEDS for method in DETECTED),
    ]


def imagenet_plan() -> Plan:
    tasks = {"pilot": IMAGENET_PILOT, "final": IMAGENET_FINAL}
    return Plan(
        "imagenet",
        "imagenet100",
        "data/mini_imagenet.npz",
        30_000,
        imagenet_steps(),
        tasks,
        PILOTS,
        suffix="-256",
        speeds=SPEEDS,
    )


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
    tasks = {stage: [rehearsed(task) for task in each] for stage, each in plan.tasks.items()}
    return replace(plan, name="imagenet-rehearsal", images=1000, steps=steps, tasks=tasks)
