"""Signs of collapse, measured while training.

std and effective rank: targets of the training step (train mode). S_W, S_T, k-NN and the linear classifier: encoder
features of held-out images in eval mode. The last check of a run gives the value of `supancl evaluate knn RUN`.
Of a hierarchy labels are the leaves. Several labels have k-NN's mean average precision instead.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.core.pools import Pool
from supancl.data.labels import with_leaf_labels
from supancl.data.splits import Data, Split
from supancl.errors import BadInput, Collapsed, NonFinite, program_name
from supancl.probes import Features, effective_rank, embed, knn_accuracy, linear_probe, variance
from supancl.probes.answers import mean_average_precision
from supancl.probes.knn import default_k, knn_answers
from supancl.probes.variance import Variance
from supancl.stats import wilson_interval

if TYPE_CHECKING:
    from supancl.recipes import Recipe

# Relative std is 1 for targets spread evenly over the sphere and sqrt(1 - cos) for a mean cosine similarity cos:
# at 0.1 the mean cosine similarity is 0.99. Healthy runs stay far above it (docs/monitor.md).
COLLAPSED_STD = 0.1
LOW_STD_IN_A_ROW = 3  # readings: one unlucky batch is not a collapse
# Targets can stay spread out and yet use only a few directions. CIFAR-100 SimSiam at lr .7 and weight decay 5e-4 falls
# from 177 to 4 between epochs 2 and 20, k-NN with it; healthy runs of that size stay above 32 (docs/monitor.md).
COLLAPSED_RANK = 10.0
LOW_RANK_IN_A_ROW = 2  # checks
MAX_IMAGES = 5000  # of each split, so that a check is cheap on large data; also the limit of a linear fit
MAX_IMAGES_LAST_CHECK = 200_000  # of each split: 1.6 GB of features 2048 wide
PIXELS_PER_BATCH = 256 * 224**2  # on a GPU: small images in large batches


def relative_std(targets: Tensor) -> Tensor:
    """Standard deviation per dimension of unit-norm targets (B, D), times sqrt(D): 1 is spread out, 0 is collapsed."""
    return normalize(targets).std(0, unbiased=False).square().sum().sqrt()


def normalize(targets: Tensor) -> Tensor:
    return F.normalize(targets.float(), dim=-1)  # class logits (cross-entropy) come with any norm


def sample_labelled(split: Split, most: int) -> Split:
    """At most `most` images of a split, always the same, and only labelled ones if it has any."""
    if 0 < split.num_labelled < len(split):
        split = split.labelled()
    return split.sample(most)


def least_healthy_rank(classes: int, supervised: bool, batch_size: int) -> float:
    """The effective rank below which a batch's targets count as collapsed."""
    # targets pulled to C class means span C - 1 directions, and a batch of B targets at most B - 1
    expected = (classes - 1) / 2 if supervised else COLLAPSED_RANK
    return min(COLLAPSED_RANK, expected, batch_size / 10)


def linear_accuracy(fit: Features, test: Features, chooses: bool = True) -> float:
    """The accuracy of `supancl evaluate linear`, by a rough solution; nan if it cannot be measured.

    Unless it `chooses`, the ridge is the usual one, in a fifth of the time.
    """
    how: Literal["halves", "nothing"] = "halves" if chooses else "nothing"
    try:
        return linear_probe(fit, test, how, tolerance=None, device=fit.values.device).accuracy
    except (BadInput, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # the monitor must not end a run
        return float("nan")


class Monitor:
    """Measures signs of collapse; `collapse_message` explains them."""

    def __init__(self, data: Data, supervised: bool) -> None:
        labelled = data if data.train.all_labels.has_one_each else with_leaf_labels(data)
        self.splits = (labelled.train, labelled.held_out)
        self.present = data.train.class_ids()
        self.reference, self.held_out = (sample_labelled(split, MAX_IMAGES) for split in self.splits)
        self.classes, self.supervised = len(data.classes), supervised
        # class means of levels that come together span no further direction
        self.directions = self.classes
        if not data.train.all_labels.has_one_each:
            self.directions = min(data.train.all_labels.count_distinct(), len(self.present))
        self.low_readings = self.low_ranks = 0
        self.last_std = self.last_rank = self.least_rank = float("nan")
        self.collapsed = False
        self.alarm_raised = False

    def note(self, std: float) -> float:
        """Record the relative std of a batch's targets; several low values in a row are a collapse."""
        self.last_std = std
        self.low_readings = self.low_readings + 1 if self.last_std < COLLAPSED_STD else 0
        self.collapsed = self.collapsed or self.low_readings >= LOW_STD_IN_A_ROW
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
        """The values of one epoch. On a GPU features stay on the device, in bfloat16 if `half`.

        The `last` check of a run uses all images, up to a limit, and single precision.
        """
        row: dict[str, Any] = {}
        if len(targets):
            self.last_rank = effective_rank(normalize(targets))
            row |= {"std": float(relative_std(targets)), "effective_rank": self.last_rank}
            self.least_rank = least_healthy_rank(self.directions, self.supervised, len(targets))
            low = self.last_rank < self.least_rank
            self.low_ranks = self.low_ranks + 1 if low else 0
            self.collapsed = self.collapsed or self.low_ranks >= LOW_RANK_IN_A_ROW
        if len(self.held_out):
            every = [sample_labelled(split, MAX_IMAGES_LAST_CHECK) for split in self.splits] if last else []
            try:
                row |= self._accuracies(encoder, every, device, half and not last, last)
            except (torch.OutOfMemoryError, MemoryError):  # a finished run must not fail here
                row |= self._accuracies(encoder, [], device, half)
        if pool is not None:
            row |= {"pool_coverage": float(pool.coverage(self.present)), "pool_staleness": float(pool.staleness())}
        return row

    def _accuracies(
        self,
        encoder: Encoder,
        splits: list[Split],
        device: torch.device,
        half: bool,
        last: bool = False,
    ) -> dict[str, Any]:
        """Variance ratios, k-NN and linear accuracy of held-out images, given training images; a sample by default."""
        reference, held_out = splits or (self.reference, self.held_out)
        queries = self._features(encoder, held_out, device, half)
        if not bool(torch.isfinite(queries.values).all()):
            raise NonFinite(
                "features of held-out images are not finite numbers; nothing was saved over the last checkpoint",
                "try a lower optimizer.lr",
            )
        is_single, unknown = held_out.all_labels.has_one_each, {"knn": float("nan"), "linear": float("nan")}
        spread = variance(queries) if is_single else Variance(float("nan"), float("nan"))
        row: dict[str, Any] = {"s_w": spread.within, "s_t": spread.total, "s_w/s_t": spread.ratio}
        if len(reference.class_ids()) < 2 or not len(queries.labelled()):  # there are no classes to tell apart
            return row | unknown
        references, queries = self._features(encoder, reference, device, half).labelled(), queries.labelled()
        k, classes = default_k(reference.all_labels.classes.flatten()), self.classes
        about = {"knn_k": k, "knn_references": len(references), "knn_queries": len(queries)}
        if not is_single:
            scores = knn_answers(references, queries, (k,), classes=classes)[k]
            return row | about | {"knn_map": mean_average_precision(scores, queries.targets(classes).cpu()), **unknown}
        fitted = references
        if len(references.labels) > MAX_IMAGES:  # those of the images that `Split.sample` takes
            order = torch.randperm(len(references.labels), generator=torch.Generator().manual_seed(0))
            fitted = references.take(order[:MAX_IMAGES].sort().values.to(references.values.device))
        row |= {"knn": knn_accuracy(references, queries, k), **about, "linear_references": len(fitted)}
        row["linear"] = linear_accuracy(fitted, queries, last)
        return row | {
            f"{name}_interval": list(wilson_interval(row[name], len(queries))[1:]) for name in ("knn", "linear")
        }

    @staticmethod
    def _features(encoder: Encoder, split: Split, device: torch.device, half: bool) -> Features:
        if device.type == "cpu":
            return embed(encoder, split)
        return embed(encoder, split, device, max(256, PIXELS_PER_BATCH // encoder.size**2), half=half, stay=True)

    def state(self) -> dict[str, Any]:
        names = ("low_readings", "low_ranks", "collapsed")
        return {name: getattr(self, name) for name in names} | {"told": self.alarm_raised}

    def load(self, state: dict[str, Any]) -> None:
        self.low_readings, self.low_ranks = int(state["low_readings"]), int(state["low_ranks"])
        self.collapsed, self.alarm_raised = bool(state["collapsed"]), bool(state["told"])


def collapse_message(recipe: Recipe, monitor: Monitor, step: int) -> str:
    """What happened, the likely cause and what to try."""
    finding = (
        f"all images get nearly the same target (relative std {monitor.last_std:.3f}; healthy is 0.3 to 1)"
        if monitor.low_readings >= LOW_STD_IN_A_ROW
        else f"a batch's targets use only {monitor.last_rank:.1f} directions (effective rank; below "
        f"{monitor.least_rank:.1f} is a collapse)"
    )
    return f"the representation has collapsed by step {step}: {finding}. {likely_cause(recipe)}"


def check_collapsed_run(recipe: Recipe, step: int, run: Path) -> str:
    """The warning when a collapsed run is resumed; raises if the run should stop at a collapse."""
    finding = f"the representation had collapsed by step {step}"
    if recipe.train.on_collapse == "stop":
        raise Collapsed(
            f"{finding} and train.on_collapse is 'stop', so {run} is not continued. {likely_cause(recipe)}",
            advice_to_continue(run),
        )
    return f"{finding}; continuing anyway"


def advice_to_continue(run: Path) -> str:
    """How to continue a collapsed run."""
    command = f"{program_name()} pretrain --resume --on-collapse warn --out {shlex.quote(str(run))}"
    return f"to continue this run anyway: {command}"


def likely_cause(recipe: Recipe) -> str:
    """The setting that most likely made this recipe collapse, and what to try."""
    decay, rate = recipe.optimizer.weight_decay, recipe.learning_rate
    is_align, decays_fast = recipe.loss.kind in ("align", "semi"), decay * rate >= 1e-4
    has_no_copy = recipe.pool.kind == "none" and recipe.branches.target != "momentum"
    lower = f"optimizer.weight_decay={decay / 5:g}"
    causes = {
        f"a supervised target without a pool and without a momentum branch, at weight decay {decay:g} (the paper's "
        f"Table 8). Try pool.kind=queue or {lower}": is_align and recipe.loss.supervised and has_no_copy,
        "no predictor. Give heads.predictor, as in the recipe": is_align and recipe.heads.predictor is None,
        f"weight decay {decay:g} at learning rate {rate:g} shrinks the weights faster than the loss keeps them apart. "
        f"Try {lower}": decays_fast,
        "full learning rate from the first step. Try schedule.warmup_epochs=10": recipe.schedule.warmup_epochs == 0,
        f"too high a learning rate. Try optimizer.lr={recipe.optimizer.lr / 3:.2g}": True,
    }
    return f"Likely cause: {next(cause for cause, applies in causes.items() if applies)}"
