"""Signs of collapse, measured while training.

std and effective rank: targets of the training step (train mode). S_W, S_T, k-NN and the linear classifier: encoder
features of held-out images in eval mode. The last check of a run measures what `supancl evaluate knn RUN` measures.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.core.pools import Pool
from supancl.data.splits import Data, Split
from supancl.errors import Collapsed, NonFinite, program
from supancl.probes import Features, effective_rank, embed, knn_accuracy, variance
from supancl.probes.linear import fixed_ridge_accuracy

if TYPE_CHECKING:
    from supancl.recipes import Recipe

# Relative std is 1 for targets spread evenly over the sphere and sqrt(1 - cos) for a mean cosine similarity cos:
# 0.1 means that all targets are 0.99 alike. Healthy runs stay far above it (docs/monitor.md).
COLLAPSED_STD = 0.1
IN_A_ROW = 3  # readings: one unlucky batch is not a collapse
# Targets can stay spread out and yet use only a few directions. CIFAR-100 SimSiam at lr .7 and weight decay 5e-4 falls
# from 177 to 4 between epochs 2 and 20, k-NN with it; healthy runs of that size stay above 32 (docs/monitor.md).
COLLAPSED_RANK = 10.0
RANKS_IN_A_ROW = 2  # checks
MOST_IMAGES = 5000  # of each kind, so that an epoch's check costs little on large data; a linear fit has no more
MOST_AT_LAST = 200_000  # of each kind in the last check: 1.6 GB of features 2048 wide
PIXELS = 256 * 224**2  # embedded at a time on a GPU: small images in large batches


def relative_std(targets: Tensor) -> Tensor:
    """Standard deviation per dimension of unit-norm targets (B, D), times sqrt(D): 1 is spread out, 0 is collapsed."""
    return unit(targets).std(0, unbiased=False).square().sum().sqrt()


def unit(targets: Tensor) -> Tensor:
    return F.normalize(targets.float(), dim=-1)  # class logits (cross-entropy) come with any norm


def sample_labelled(split: Split, most: int) -> Split:
    """At most so many images of a split, the same ones every time, and labelled ones where it has any.

    A stream that is not listed gives images as they come, with or without a label.
    """
    if 0 < split.num_labelled < len(split) and split.is_materialized:
        split = split.take((split.labels >= 0).nonzero()[:, 0])
    return split.sample(most)


def sample_rows(features: Features, most: int) -> Features:
    """At most so many rows: of all features of a split, those that `Split.sample` would have taken."""
    if len(features.labels) <= most:
        return features
    order = torch.randperm(len(features.labels), generator=torch.Generator().manual_seed(0))
    rows = order[:most].sort().values.to(features.values.device)
    return Features(features.values[rows], features.labels[rows])


class Monitor:
    """Reads the signs; `alarm` says once, in plain words, when training has collapsed."""

    def __init__(self, data: Data, supervised: bool) -> None:
        self.splits, self.present = (data.train, data.held_out), data.train.class_ids()
        self.reference, self.held_out = (sample_labelled(split, MOST_IMAGES) for split in self.splits)
        # targets drawn to C class means need C - 1 directions, so of few classes fewer are expected
        self.expected_rank = (len(data.classes) - 1) / 2 if supervised else COLLAPSED_RANK
        self.low_readings = self.low_ranks = 0
        self.last_std = self.last_rank = self.least_rank = float("nan")
        self.collapsed = False
        self.alarm_raised = False

    def note(self, std: float) -> float:
        """One reading of the spread of a batch's targets; several low ones in a row are a collapse."""
        self.last_std = std
        self.low_readings = self.low_readings + 1 if self.last_std < COLLAPSED_STD else 0
        self.collapsed = self.collapsed or self.low_readings >= IN_A_ROW
        return self.last_std

    def measure(
        self,
        encoder: Encoder,
        targets: Tensor,
        pool: Pool | None,
        device: torch.device,
        half: bool = False,
        last: bool = False,
    ) -> dict[str, Any]:
        """The values of one epoch. On a GPU features are compared where they are made, in bfloat16 if `half`.

        The `last` check of a run takes all images, up to a bound, and single precision.
        """
        row: dict[str, Any] = {}
        if len(targets):
            self.last_rank = effective_rank(unit(targets))
            row |= {"std": float(relative_std(targets)), "effective_rank": self.last_rank}
            # a batch of B targets spans at most B - 1 directions
            self.least_rank = min(COLLAPSED_RANK, self.expected_rank, len(targets) / 10)
            low = self.last_rank < self.least_rank
            self.low_ranks = self.low_ranks + 1 if low else 0
            self.collapsed = self.collapsed or self.low_ranks >= RANKS_IN_A_ROW
        if len(self.held_out):
            row |= self._measure_all(encoder, device, half) if last else self._measure_sample(encoder, device, half)
        if pool is not None:
            row |= {"pool_coverage": float(pool.coverage(self.present)), "pool_staleness": float(pool.staleness())}
        return row

    def _measure_sample(self, encoder: Encoder, device: torch.device, half: bool) -> dict[str, Any]:
        return self._accuracies(encoder, self.reference, self.held_out, device, half)

    def _measure_all(self, encoder: Encoder, device: torch.device, half: bool) -> dict[str, Any]:
        """All images in single precision; where they do not fit beside what training holds, the sample."""
        reference, held_out = (sample_labelled(split, MOST_AT_LAST) for split in self.splits)
        try:
            return self._accuracies(encoder, reference, held_out, device, False)
        except (torch.OutOfMemoryError, MemoryError):  # a finished run must not fail at a look
            return self._measure_sample(encoder, device, half)

    def _accuracies(
        self, encoder: Encoder, reference: Split, held_out: Split, device: torch.device, half: bool
    ) -> dict[str, Any]:
        """What these held-out images, compared with these training images, tell of the encoder."""
        queries = self._features(encoder, held_out, device, half)
        if not bool(torch.isfinite(queries.values).all()):
            raise NonFinite(
                "features of held-out images are not finite numbers; nothing was saved over the last checkpoint",
                "try a lower --set optimizer.lr",
            )
        within, total = variance(queries)
        row = {"s_w": within, "s_t": total, "s_w/s_t": within / total if total > 0 else float("nan")}
        if not reference.num_labelled or not held_out.num_labelled:  # there is nothing to compare
            return row | {"knn": float("nan"), "linear": float("nan")}
        references = self._features(encoder, reference, device, half)
        fitted = sample_rows(references.labelled(), MOST_IMAGES)
        return row | {
            "knn": knn_accuracy(references, queries),
            "knn_references": len(references.labelled().labels),
            "knn_queries": len(queries.labelled().labels),
            "linear": fixed_ridge_accuracy(fitted, queries),
            "linear_references": len(fitted.labels),
        }

    @staticmethod
    def _features(encoder: Encoder, split: Split, device: torch.device, half: bool) -> Features:
        if device.type == "cpu":
            return embed(encoder, split)
        return embed(encoder, split, device, max(256, PIXELS // encoder.size**2), half=half, stay=True)

    def state(self) -> dict[str, Any]:
        kept = ("low_readings", "low_ranks", "collapsed")
        return {name: getattr(self, name) for name in kept} | {"told": self.alarm_raised}

    def load(self, state: dict[str, Any]) -> None:
        self.low_readings, self.low_ranks = int(state["low_readings"]), int(state["low_ranks"])
        self.collapsed, self.alarm_raised = bool(state["collapsed"]), bool(state["told"])


def alarm(recipe: Recipe, monitor: Monitor, step: int) -> str:
    """What happened, the likely cause, and what to try."""
    if monitor.low_readings >= IN_A_ROW:
        what = f"all images get nearly the same target (relative std {monitor.last_std:.3f}; healthy is 0.3 to 1)"
    else:
        what = (
            f"a batch's targets use only {monitor.last_rank:.1f} directions (effective rank; below "
            f"{monitor.least_rank:.1f} is a collapse)"
        )
    return f"the representation has collapsed by step {step}: {what}. {_cause(recipe)}"


def going_on(recipe: Recipe, step: int, run: Path) -> str:
    """What is said of a run that had collapsed when it goes on; one that is to stop at a collapse does not."""
    what = f"the representation had collapsed by step {step}"
    if recipe.train.on_collapse == "stop":
        raise Collapsed(
            f"{what} and train.on_collapse is 'stop', so {run} does not go on. {_cause(recipe)}", all_the_same(run)
        )
    return f"{what}; going on all the same"


def all_the_same(run: Path) -> str:
    """The way on for who wants the run to its end."""
    how = f"{program()} pretrain --resume --on-collapse warn --out {shlex.quote(str(run))}"
    return f"to go on with this run all the same: {how}"


def _cause(recipe: Recipe) -> str:
    align, decays = recipe.loss.kind == "align", recipe.optimizer.weight_decay * recipe.learning_rate >= 1e-4
    lower = f"--set optimizer.weight_decay={recipe.optimizer.weight_decay / 5:g}"
    if align and recipe.loss.supervised and recipe.pool.kind == "none" and recipe.branches.target != "momentum":
        also = f", at weight decay {recipe.optimizer.weight_decay:g}" * decays  # both count: docs/alpha.md
        return (
            f"Likely cause: a supervised target without a pool and without a momentum branch{also} (the paper's "
            "Table 8). Try --set pool.kind=queue" + f" or {lower}" * decays
        )
    if align and recipe.heads.predictor is None:
        return "Likely cause: no predictor. Give heads.predictor, as in the recipe"
    if decays:
        return (
            f"Likely cause: weight decay {recipe.optimizer.weight_decay:g} at learning rate "
            f"{recipe.learning_rate:g} shrinks the weights faster than the loss keeps them apart. "
            f"Try {lower}"
        )
    if recipe.schedule.warmup_epochs == 0:
        return "Likely cause: full learning rate from the first step. Try --set schedule.warmup_epochs=10"
    return f"Try a lower learning rate: --set optimizer.lr={recipe.optimizer.lr / 3:.2g}"
