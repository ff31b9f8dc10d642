"""The two losses of the paper, and the cross-entropy users compare them with.

Anchors and targets are (2, B, D): both views in one tensor, so that the symmetric term is
`targets.flip(0)` and cannot be computed twice by mistake. They come with unit norm from the branches.
Every loss is the mean over both views' anchors, that is each of the two symmetric terms has weight 1/2.
Local views add anchors (2 + L, B, D), never targets: `Align` and `CrossEntropy` take them, `Contrast` does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from supancl.config import FREE_IN_A_SHARED_STEP, Count, Fraction, Positive, marked
from supancl.distributed import Part

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from supancl.core.pools import Pool
else:
    from supancl.lazy import F, torch


class Terms(NamedTuple):
    """What a loss gives: the total to differentiate, and its two terms for the log."""

    total: Tensor
    ssl: Tensor
    sup: Tensor


class Whole(NamedTuple):
    """The targets (2, N, D) and labels (N,) of a whole batch, where anchors are of a part of its rows."""

    targets: Tensor
    labels: Tensor
    part: Part

    @classmethod
    def of(cls, targets: Tensor, labels: Tensor) -> Whole:
        """The batch itself, where all of it is here."""
        return cls(targets, labels, Part(0, len(labels), len(labels)))

    def themselves(self) -> Tensor:
        """(B, N): which of all the samples each row is."""
        return self.part.of(torch.eye(len(self.labels), dtype=torch.bool, device=self.labels.device))


class LossTraits:
    """What the rest of the package asks about a loss, beside `supervised`, `sees_batch(pool)` and the call itself.

    A loss of one's own has these answers unless it gives others (docs/extending.md).
    """

    normalizes: ClassVar[bool] = True  # anchors and targets have unit norm; otherwise anchors are class logits
    has_two_terms: ClassVar[bool] = True  # `ssl` and `sup` are worth logging
    takes_local_views: ClassVar[bool] = True
    stores_unlabelled: ClassVar[bool] = False  # the pool keeps targets without a label too

    @property
    def needs_pool(self) -> bool:
        """Whether it cannot be computed without a pool."""
        return False

    @property
    def takes_alpha(self) -> bool:
        """Whether a tensor `alpha` may be passed to each call instead of the loss's own number."""
        return False

    def batch_weight(self, labels: Tensor, of: Tensor) -> Tensor | float:
        """Weight of the samples with these labels in the mean over the batch with the labels `of`."""
        return len(labels) / len(of)


@dataclass(frozen=True)
class Align(LossTraits):
    """alpha * l_ssl + (1 - alpha) * l_sup (Eqs. 1-3): SimSiam, BYOL (alpha = 1), SupSiam, SupBYOL.

    `form="cosine"` is -p.z, half of the squared distance up to a term constant in p: the scale that the
    learning rates of App. C belong to. `form="squared"` is Eqs. 1-3 to the letter.

    With L local views every local anchor is compared with both targets, and the loss is the mean over all
    pairs of an anchor and a target that is not of its own view:
        1 / (2 + 2L) * sum over (v, t) of alpha * d(p_v, z_t) + (1 - alpha) * d(p_v, z_sup),
    with (v, t) = (1, 2), (2, 1), and (v, 1), (v, 2) for each local v; z_sup is z_t where the class has no target.
    """

    kind: Literal["align"] = "align"
    alpha: Fraction = marked(1.0, FREE_IN_A_SHARED_STEP)
    form: Literal["cosine", "squared"] = "cosine"
    samples: Count | None = None  # M of Eq. 2; None draws all positives of the pool

    @property
    def supervised(self) -> bool:
        return self.alpha < 1.0

    @property
    def takes_alpha(self) -> bool:
        return type(self) is Align  # a class made from it may have another call, or read its own alpha

    def sees_batch(self, pool: Pool | None) -> bool:
        """Whether one sample's loss depends on the others of its (micro-)batch."""
        return self.supervised and pool is None

    def __call__(
        self,
        anchors: Tensor,
        targets: Tensor,
        labels: Tensor,
        pool: Pool | None = None,
        alpha: Tensor | None = None,
        whole: Whole | None = None,
    ) -> Terms:
        """`alpha`, one value per sample (B,), takes the place of the run's single value.

        `whole` is the batch of which these anchors are a part; the loss is the mean over these.
        """
        if len(anchors) > 2:
            anchors = torch.cat([anchors[:2], anchors[2:].repeat_interleave(2, dim=0)])
        own = _facing(targets, anchors)
        ssl = self.distance(anchors, own)
        if alpha is None and not self.supervised and pool is None:
            return Terms(ssl.mean(), ssl.mean().detach(), ssl.mean().detach())
        sup = self.distance(anchors, self.supervised_target(own, labels, pool, whole))
        weight = self.alpha if alpha is None else alpha.to(anchors.dtype)
        total = weight * ssl + (1 - weight) * sup
        return Terms(total.mean(), ssl.mean().detach(), sup.mean().detach())

    def distance(self, anchors: Tensor, targets: Tensor) -> Tensor:
        if self.form == "squared":
            return (anchors - targets).square().sum(-1)
        return -(anchors * targets).sum(-1)

    def supervised_target(self, own: Tensor, labels: Tensor, pool: Pool | None, whole: Whole | None = None) -> Tensor:
        """z_sup: the mean of same-class targets, not re-normalised (Eq. 2); the own target where there are none."""
        if pool is not None:
            return pool.class_mean(labels, own, self.samples, None if whole is None else whole.part)
        # without a pool (Table 8): the batch's other-view targets of the class, the own one included
        candidates = own if whole is None else _facing(whole.targets, own)
        whole = whole or Whole.of(own, labels)
        weight = (same_class(labels, whole.labels) | whole.themselves()).to(own.dtype)
        return (weight / weight.sum(1, keepdim=True)) @ candidates


@dataclass(frozen=True)
class Contrast(LossTraits):
    """The four equations of App. C and MoCo-v3's: -log softmax of the positives, averaged over the positives.

    positives  own-view: the sample's other view alone; own-class: every candidate of the same class too
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
        self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None, whole: Whole | None = None
    ) -> Terms:
        """The mean over these anchors, which are compared with the targets of the `whole` batch they are a part of."""
        # bf16 has 8 bits: at temperature 0.07 a similarity off by 0.004 moves a logit by 0.06
        with torch.autocast(anchors.device.type, enabled=False):
            if whole is None or self.against == "pool":  # there an anchor needs no target of the batch but its own
                whole = Whole.of(targets, labels)
            total = self._mean_over_anchors(anchors, labels, pool, whole)
        return Terms(total, total.detach(), total.detach())

    def _mean_over_anchors(self, anchors: Tensor, labels: Tensor, pool: Pool | None, whole: Whole) -> Tensor:
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        anchors, whole = anchors.to(dtype), whole._replace(targets=whole.targets.to(dtype))
        logits, positive = self._batch_candidates(anchors, labels, whole)
        if self.needs_pool:
            if pool is None:
                raise ValueError(f"Contrast against {self.against!r} needs a pool")
            pool_logits, pool_positive = self._pool_candidates(anchors, labels, pool)
            logits = torch.cat([logits, pool_logits], dim=-1)
            positive = torch.cat([positive, pool_positive], dim=-1)
        log_probability = F.log_softmax(logits, dim=-1)
        # -inf marks what is no candidate; `where` keeps it out of the sum and of the gradient
        matched = torch.where(positive, log_probability, torch.zeros_like(log_probability)).sum(-1)
        return -(matched / positive.sum(-1)).mean()

    def _batch_candidates(self, anchors: Tensor, labels: Tensor, whole: Whole) -> tuple[Tensor, Tensor]:
        targets, itself = whole.targets, whole.themselves()
        same = (itself | same_class(labels, whole.labels)) if self.supervised else itself
        other = anchors @ targets.flip(0).mT / self.temperature  # (2, B, N): the other view's targets
        if self.against == "pool":
            return other.diagonal(dim1=1, dim2=2).unsqueeze(-1), torch.ones_like(anchors[..., :1], dtype=torch.bool)
        if not self.against.startswith("both-views"):
            return other, same.expand_as(other)
        own = (anchors @ targets.mT / self.temperature).masked_fill(itself, -torch.inf)  # without the anchor itself
        positive = torch.cat([same, same & ~itself], dim=-1)
        return torch.cat([other, own], dim=-1), positive.expand(2, *positive.shape)

    def _pool_candidates(self, anchors: Tensor, labels: Tensor, pool: Pool) -> tuple[Tensor, Tensor]:
        stored = pool.stored()
        logits = anchors @ stored.targets.to(anchors.dtype).mT / self.temperature
        logits = logits.masked_fill(~stored.valid, -torch.inf)
        if self.supervised:
            positive = same_class(labels, stored.labels) & stored.valid
        else:
            positive = torch.zeros(len(labels), len(stored.labels), dtype=torch.bool, device=labels.device)
        return logits, positive.expand_as(logits)


@dataclass(frozen=True)
class CrossEntropy(LossTraits):
    """Plain supervised training, the baseline: anchors are class logits; unlabelled samples are left out."""

    kind: Literal["crossentropy"] = "crossentropy"
    smoothing: Fraction = 0.0

    normalizes: ClassVar[bool] = False
    has_two_terms: ClassVar[bool] = False

    @property
    def supervised(self) -> bool:
        return True

    def sees_batch(self, pool: Pool | None) -> bool:
        return False

    def __call__(
        self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None, whole: Whole | None = None
    ) -> Terms:
        logits = anchors.flatten(0, 1).to(torch.promote_types(anchors.dtype, torch.float32))
        summed = F.cross_entropy(
            logits, labels.repeat(len(anchors)), ignore_index=-1, reduction="sum", label_smoothing=self.smoothing
        )
        # a batch without any label gives 0, not 0/0
        total = summed / (len(anchors) * (labels >= 0).sum()).clamp(min=1)
        return Terms(total, torch.zeros_like(total).detach(), total.detach())

    def batch_weight(self, labels: Tensor, of: Tensor) -> Tensor | float:
        return (labels >= 0).sum() / (of >= 0).sum().clamp(min=1)  # its mean runs over samples with a label


Loss = Align | Contrast | CrossEntropy


def _facing(targets: Tensor, anchors: Tensor) -> Tensor:
    """(2, N, D) -> (A, N, D), for A anchors of a sample: z2 for those of view 1, z1 for those of view 2, and so on."""
    own = targets.flip(0).to(anchors.dtype)
    return own if len(anchors) == 2 else own.repeat(len(anchors) // 2, 1, 1)


def same_class(labels: Tensor, others: Tensor) -> Tensor:
    """(len(labels), len(others)): equal and known; -1 matches nothing, not even another -1."""
    return (labels[:, None] == others[None, :]) & (labels >= 0)[:, None]
