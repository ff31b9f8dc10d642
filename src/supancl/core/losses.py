"""The two losses of the paper, and the cross-entropy users compare them with.

Anchors and targets are (2, B, D): both views in one tensor, so that the symmetric term is
`targets.flip(0)` and cannot be computed twice by mistake. They come with unit norm from the branches.
Every loss is the mean over both views' anchors, that is each of the two symmetric terms has weight 1/2.
Local views add anchors (2 + L, B, D), never targets: `Align` and `CrossEntropy` take them, `Contrast` does not.
Labels are (B,), or pairs of class and weight (B, L, 2) for several or soft labels (labels.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from supancl.config import Count, Fraction, Natural, Positive, check_fields
from supancl.core.labels import Labels, mean_weights, positive_weights
from supancl.distributed import RowRange

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from supancl.core.pools import Pool
else:
    from supancl.lazy import F, torch


class Terms(NamedTuple):
    """What a loss returns: the total to differentiate, and its two terms for the log."""

    total: Tensor
    ssl: Tensor
    sup: Tensor


class GlobalBatch(NamedTuple):
    """Targets (2, N, D) and labels of all ranks; anchors exist for the rows of `row_range` only."""

    targets: Tensor
    labels: Tensor
    row_range: RowRange

    @classmethod
    def from_all_rows(cls, targets: Tensor, labels: Tensor) -> GlobalBatch:
        """The batch of a single process."""
        return cls(targets, labels, RowRange(0, len(labels), len(labels)))

    def self_mask(self) -> Tensor:
        """(B, N): True where an anchor and a target are of the same sample."""
        return self.row_range.select(torch.eye(len(self.labels), dtype=torch.bool, device=self.labels.device))


class LossTraits:
    """What the package reads of a loss, next to `supervised` and `sees_batch(pool)`; a plugin may set others."""

    def __post_init__(self) -> None:
        check_fields(self)

    normalizes: ClassVar[bool] = True  # anchors and targets have unit norm; if False, anchors are class logits
    has_two_terms: ClassVar[bool] = True  # `ssl` and `sup` are worth logging
    takes_local_views: ClassVar[bool] = True
    stores_unlabelled: ClassVar[bool] = False  # the pool also stores targets without a label
    learns_unlabelled: ClassVar[bool] = True  # if not, batches have labelled images only

    @property
    def needs_pool(self) -> bool:
        """Whether the loss requires a pool."""
        return False

    @property
    def takes_pairs(self) -> bool:
        """Whether labels may be pairs (B, L, 2) of class and weight, for several or soft labels."""
        return type(self) in (Align, SemiAlign, Contrast, CrossEntropy)

    def batch_weight(self, labels: Tensor, batch_labels: Tensor) -> Tensor | float:
        """Weight of a micro-batch with these labels in the mean over the batch."""
        return len(labels) / len(batch_labels)


@dataclass(frozen=True)
class Align(LossTraits):
    """alpha * l_ssl + (1 - alpha) * l_sup (Eqs. 1-3): SimSiam, BYOL (alpha = 1), SupSiam, SupBYOL.

    `form="cosine"` is -p.z, half of the squared distance up to a term constant in p: the scale that the
    learning rates of App. C assume. `form="squared"` is Eqs. 1-3 to the letter.

    With L local views every local anchor is compared with both targets, and the loss is the mean over all
    pairs of an anchor and a target of another view:
        1 / (2 + 2L) * sum over (v, t) of alpha * d(p_v, z_t) + (1 - alpha) * d(p_v, z_sup),
    with (v, t) = (1, 2), (2, 1), and (v, 1), (v, 2) for each local v; z_sup is z_t where the class has no target.
    """

    kind: Literal["align"] = "align"
    alpha: Fraction = 1.0
    form: Literal["cosine", "squared"] = "cosine"
    samples: Count | None = None  # M of Eq. 2; None: all positives of the pool

    @property
    def supervised(self) -> bool:
        return self.alpha < 1.0

    def sees_batch(self, pool: Pool | None) -> bool:
        """Whether one sample's loss depends on the others of its (micro-)batch."""
        return self.supervised and pool is None

    def __call__(
        self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None,
        alpha: Tensor | None = None, global_batch: GlobalBatch | None = None,
    ) -> Terms:  # fmt: skip
        """`alpha`, one value per sample (B,), replaces the single value of the run.

        `global_batch` is the batch of all ranks; the loss is the mean over the anchors of this rank.
        """
        if len(anchors) > 2:
            anchors = torch.cat([anchors[:2], anchors[2:].repeat_interleave(2, dim=0)])
        cross_view = _cross_view(targets, anchors)
        ssl = self.distance(anchors, cross_view)
        if alpha is None and not self.supervised and pool is None:
            return Terms(ssl.mean(), ssl.mean().detach(), ssl.mean().detach())
        sup = self.distance(anchors, self.supervised_target(cross_view, labels, pool, global_batch))
        weight = self.alpha if alpha is None else alpha.to(anchors.dtype)
        total = weight * ssl + (1 - weight) * sup
        return Terms(total.mean(), ssl.mean().detach(), sup.mean().detach())

    def distance(self, anchors: Tensor, targets: Tensor) -> Tensor:
        if self.form == "squared":
            return (anchors - targets).square().sum(-1)
        return -(anchors * targets).sum(-1)

    def supervised_target(
        self, cross_view: Tensor, labels: Tensor, pool: Pool | None, global_batch: GlobalBatch | None = None
    ) -> Tensor:
        """z_sup: the mean of same-class targets, not re-normalised (Eq. 2); the cross-view target if there are none."""
        if pool is not None:
            row_range = None if global_batch is None else global_batch.row_range
            return pool.class_mean(labels, cross_view, self.samples, row_range)
        # without a pool (Table 8): the mean over the batch's cross-view targets of the class, including this sample's
        candidates = cross_view if global_batch is None else _cross_view(global_batch.targets, cross_view)
        global_batch = global_batch or GlobalBatch.from_all_rows(cross_view, labels)
        own, others = Labels.of(labels), Labels.of(global_batch.labels)
        return mean_weights(own, others, global_batch.self_mask(), cross_view.dtype) @ candidates


@dataclass(frozen=True)
class SemiAlign(Align):
    """`Align` that also gives samples without a label a supervised target: that of the classes they look like.

        z_sup = sum_c w_c mean_c,    w = softmax_c(z . mean_c / (|mean_c| temperature)) over the classes in the pool

    for the own cross-view target z, without gradient. Sharpening as in PAWS, w^(1/T) / sum w^(1/T), is the same as a
    temperature T times as high. Where the largest weight is below `confidence`, and until `warmup` batches were pushed,
    z_sup is z, as in `Align`. `samples` is for samples with a label.
    """

    kind: Literal["semi"] = "semi"  # type: ignore[assignment]
    temperature: Positive = 0.025
    confidence: Positive = 0.5
    warmup: Natural = 1000  # pushes to the pool, one per step

    @property
    def needs_pool(self) -> bool:
        return True

    def supervised_target(
        self, cross_view: Tensor, labels: Tensor, pool: Pool | None, global_batch: GlobalBatch | None = None
    ) -> Tensor:
        assert pool is not None
        target = super().supervised_target(cross_view, labels, pool, global_batch)
        means, is_held = pool.all_means()
        own = cross_view.detach().to(means.dtype)
        logits = own @ F.normalize(means, dim=1).mT / self.temperature
        # the weights of absent classes are zero, of all classes if the pool is empty
        weights = logits.masked_fill(~is_held, torch.finfo(logits.dtype).min).softmax(-1) * is_held
        is_sure = (weights.amax(-1) >= self.confidence) & (pool.clock >= self.warmup) & ~Labels.of(labels).is_labelled
        return torch.where(is_sure[..., None], (weights @ means).to(target.dtype), target)


@dataclass(frozen=True)
class Contrast(LossTraits):
    """The four equations of App. C and MoCo-v3's: -log softmax of the positives, averaged over the positives.

    positives  own-view: only the sample's other view; own-class: also every candidate of the same class. With several
               or soft labels a candidate counts by the overlap of its labels with the sample's, the other view by 1
    against    both-views (SimCLR, SupCon): all other targets of the batch; pool (MoCo-v2): the other view
               and the pool; other-view (MoCo-v3): the batch's targets of the other view; other-view+pool
               (SupMoCo); both-views+pool (SupCon with a memory bank)
    """

    kind: Literal["contrast"] = "contrast"
    positives: Literal["own-view", "own-class"] = "own-view"
    against: Literal["both-views", "pool", "other-view", "other-view+pool", "both-views+pool"] = "both-views"
    temperature: Positive = 0.1

    has_two_terms: ClassVar[bool] = False
    takes_local_views: ClassVar[bool] = False
    stores_unlabelled: ClassVar[bool] = True  # without a label a target is still a negative

    @property
    def needs_pool(self) -> bool:
        return self.against.endswith("pool")

    @property
    def supervised(self) -> bool:
        return self.positives == "own-class"

    def sees_batch(self, pool: Pool | None) -> bool:
        return self.against != "pool"

    def __call__(
        self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None,
        global_batch: GlobalBatch | None = None,
    ) -> Terms:  # fmt: skip
        """The mean over these anchors; they are compared with the targets of the `global_batch`."""
        # bf16 has 8 bits: at temperature 0.07 a similarity off by 0.004 moves a logit by 0.06
        with torch.autocast(anchors.device.type, enabled=False):
            if global_batch is None or self.against == "pool":  # an anchor then needs only its own target of the batch
                global_batch = GlobalBatch.from_all_rows(targets, labels)
            dtype = torch.promote_types(anchors.dtype, torch.float32)
            anchors, global_batch = anchors.to(dtype), global_batch._replace(targets=global_batch.targets.to(dtype))
            logits, positive = self._batch_candidates(anchors, labels, global_batch)
            if self.needs_pool:
                assert pool is not None
                pool_logits, pool_positive = self._pool_candidates(anchors, labels, pool)
                logits = torch.cat([logits, pool_logits], dim=-1)
                positive = torch.cat([positive, pool_positive], dim=-1)
            log_probability = F.log_softmax(logits, dim=-1)
            # logits of non-candidates are -inf; `where` keeps them out of the sum and the gradient
            chosen = torch.where(positive > 0, log_probability, torch.zeros_like(log_probability))
            log_likelihood = (chosen if positive.dtype == torch.bool else positive * chosen).sum(-1)
            total = -(log_likelihood / positive.sum(-1)).mean()
        return Terms(total, total.detach(), total.detach())

    def _batch_candidates(self, anchors: Tensor, labels: Tensor, global_batch: GlobalBatch) -> tuple[Tensor, Tensor]:
        targets, self_mask = global_batch.targets, global_batch.self_mask()
        same = self_mask
        if self.supervised:
            same = positive_weights(Labels.of(labels), Labels.of(global_batch.labels), anchors.dtype)
            same = same.masked_fill(self_mask, 1)  # each sample's own other view is a positive
        other_view = anchors @ targets.flip(0).mT / self.temperature  # (2, B, N): the other view's targets
        if self.against == "pool":
            own = other_view.diagonal(dim1=1, dim2=2).unsqueeze(-1)
            return own, torch.ones_like(own, dtype=torch.bool)
        if not self.against.startswith("both-views"):
            return other_view, same.expand_as(other_view)
        same_view = (anchors @ targets.mT / self.temperature).masked_fill(self_mask, -torch.inf)
        positive = torch.cat([same, same.masked_fill(self_mask, 0)], dim=-1)
        return torch.cat([other_view, same_view], dim=-1), positive.expand(2, *positive.shape)

    def _pool_candidates(self, anchors: Tensor, labels: Tensor, pool: Pool) -> tuple[Tensor, Tensor]:
        stored = pool.stored()
        logits = anchors @ stored.targets.to(anchors.dtype).mT / self.temperature
        logits = logits.masked_fill(~stored.valid, -torch.inf)
        if self.supervised:
            positive = positive_weights(Labels.of(labels), Labels.of(stored.labels), anchors.dtype)
            positive = positive.masked_fill(~stored.valid, 0)
        else:
            positive = torch.zeros(len(labels), len(stored.labels), dtype=torch.bool, device=labels.device)
        return logits, positive.expand_as(logits)


@dataclass(frozen=True)
class CrossEntropy(LossTraits):
    """The supervised baseline: anchors are class logits; batches are drawn from the labelled images.

    form  softmax: classes exclude one another; with several labels the probabilities should be their weights, divided
          by their sum. binary: each class by itself, its probability should be its weight; the mean over the classes
    """

    kind: Literal["crossentropy"] = "crossentropy"
    smoothing: Fraction = 0.0
    form: Literal["softmax", "binary"] = "softmax"

    normalizes: ClassVar[bool] = False
    has_two_terms: ClassVar[bool] = False
    learns_unlabelled: ClassVar[bool] = False

    @property
    def supervised(self) -> bool:
        return True

    def sees_batch(self, pool: Pool | None) -> bool:
        return False

    def __call__(
        self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None,
        global_batch: GlobalBatch | None = None,
    ) -> Terms:  # fmt: skip
        logits = anchors.flatten(0, 1).to(torch.promote_types(anchors.dtype, torch.float32))
        read, views = Labels.of(labels), len(anchors)
        if self.form == "softmax" and read.has_one_each:
            loss_sum = F.cross_entropy(
                logits, labels.repeat(views), ignore_index=-1, reduction="sum", label_smoothing=self.smoothing
            )
        else:
            loss_sum = self._sum_over_samples(logits, read, views)
        # a batch without any label gives 0, not 0/0
        total = loss_sum / (views * read.is_labelled.sum()).clamp(min=1)
        return Terms(total, torch.zeros_like(total).detach(), total.detach())

    def _sum_over_samples(self, logits: Tensor, labels: Labels, views: int) -> Tensor:
        """The sum over labelled samples of the cross-entropy with their class weights."""
        classes = logits.shape[1]
        probability = labels.dense(classes, logits.dtype)
        if self.form == "binary":
            probability = probability * (1 - self.smoothing) + self.smoothing / 2
            losses = F.binary_cross_entropy_with_logits(logits, probability.repeat(views, 1), reduction="none").mean(1)
        else:
            probability = probability / probability.sum(1, keepdim=True).clamp(min=torch.finfo(probability.dtype).tiny)
            probability = probability * (1 - self.smoothing) + self.smoothing / classes
            losses = F.cross_entropy(logits, probability.repeat(views, 1), reduction="none")
        return torch.where(labels.is_labelled.repeat(views), losses, 0.0).sum()

    def batch_weight(self, labels: Tensor, batch_labels: Tensor) -> Tensor | float:
        """The mean is over labelled samples."""
        return Labels.of(labels).is_labelled.sum() / Labels.of(batch_labels).is_labelled.sum().clamp(min=1)


Loss = Align | Contrast | CrossEntropy | SemiAlign


def _cross_view(targets: Tensor, anchors: Tensor) -> Tensor:
    """Targets (2, N, D) -> (A, N, D) for A anchors per sample: z2 for anchors of view 1, z1 for view 2, and so on."""
    flipped = targets.flip(0).to(anchors.dtype)
    return flipped if len(anchors) == 2 else flipped.repeat(len(anchors) // 2, 1, 1)
