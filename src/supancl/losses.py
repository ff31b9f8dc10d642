"""The two losses of the paper, and the cross-entropy users compare them with.

Anchors and targets are (2, B, D): both views in one tensor, so that the symmetric term is
`targets.flip(0)` and cannot be computed twice by mistake. They come with unit norm from the branches.
Every loss is the mean over both views' anchors, that is each of the two symmetric terms has weight 1/2.
Local views add anchors (2 + L, B, D), never targets: `Align` and `CrossEntropy` take them, `Contrast` does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.config import Count, Fraction, Positive
from supancl.pools import Pool


class Terms(NamedTuple):
    """What a loss gives: the total to differentiate, and its two terms for the log."""

    total: Tensor
    ssl: Tensor
    sup: Tensor


@dataclass(frozen=True)
class Align:
    """alpha * l_ssl + (1 - alpha) * l_sup (Eqs. 1-3): SimSiam, BYOL (alpha = 1), SupSiam, SupBYOL.

    `form="cosine"` is -p.z, half of the squared distance up to a term constant in p: the scale that the
    learning rates of App. C belong to. `form="squared"` is Eqs. 1-3 to the letter.

    With L local views every local anchor is compared with both targets, and the loss is the mean over all
    pairs of an anchor and a target that is not of its own view:
        1 / (2 + 2L) * sum over (v, t) of alpha * d(p_v, z_t) + (1 - alpha) * d(p_v, z_sup),
    with (v, t) = (1, 2), (2, 1), and (v, 1), (v, 2) for each local v; z_sup is z_t where the class has no target.
    """

    kind: Literal["align"] = "align"
    alpha: Fraction = 1.0
    form: Literal["cosine", "squared"] = "cosine"
    samples: Count | None = None  # M of Eq. 2; None draws all positives of the pool

    @property
    def supervised(self) -> bool:
        return self.alpha < 1.0

    def sees_batch(self, pool: Pool | None) -> bool:
        """Whether one sample's loss depends on the others of its (micro-)batch."""
        return self.supervised and pool is None

    def __call__(
        self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None, alpha: Tensor | None = None
    ) -> Terms:
        """`alpha`, one value per sample (B,), takes the place of the run's single value."""
        own = targets.flip(0).to(anchors.dtype)  # z2 for the anchors of view 1, z1 for those of view 2
        if len(anchors) > 2:
            local = len(anchors) - 2
            anchors = torch.cat([anchors[:2], anchors[2:].repeat_interleave(2, dim=0)])
            own = torch.cat([own, own.repeat(local, 1, 1)])
        ssl = self.distance(anchors, own)
        if alpha is None and not self.supervised and pool is None:
            return Terms(ssl.mean(), ssl.mean().detach(), ssl.mean().detach())
        sup = self.distance(anchors, self.supervised_target(own, labels, pool))
        weight = self.alpha if alpha is None else alpha.to(anchors.dtype)
        total = weight * ssl + (1 - weight) * sup
        return Terms(total.mean(), ssl.mean().detach(), sup.mean().detach())

    def distance(self, anchors: Tensor, targets: Tensor) -> Tensor:
        if self.form == "squared":
            return (anchors - targets).square().sum(-1)
        return -(anchors * targets).sum(-1)

    def supervised_target(self, own: Tensor, labels: Tensor, pool: Pool | None) -> Tensor:
        """z_sup: the mean of same-class targets, not re-normalised (Eq. 2); the own target where there are none."""
        if pool is not None:
            return pool.class_mean(labels, fallback=own, samples=self.samples)
        # without a pool (Table 8): the batch's other-view targets of the class, the own one included
        same = same_class(labels, labels) | torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        weight = same.to(own.dtype)
        return (weight / weight.sum(1, keepdim=True)) @ own


@dataclass(frozen=True)
class Contrast:
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

    @property
    def supervised(self) -> bool:
        return self.positives == "own-class"

    def sees_batch(self, pool: Pool | None) -> bool:
        return self.against != "pool"

    def __call__(self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None) -> Terms:
        # bf16 has 8 bits: at temperature 0.07 a similarity off by 0.004 moves a logit by 0.06
        with torch.autocast(anchors.device.type, enabled=False):
            total = self._mean_over_anchors(anchors, targets, labels, pool)
        return Terms(total, total.detach(), total.detach())

    def _mean_over_anchors(self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None) -> Tensor:
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        anchors, targets = anchors.to(dtype), targets.to(dtype)
        logits, positive = self._batch_candidates(anchors, targets, labels)
        if self.against.endswith("pool"):
            if pool is None:
                raise ValueError(f"Contrast against {self.against!r} needs a pool")
            pool_logits, pool_positive = self._pool_candidates(anchors, labels, pool)
            logits = torch.cat([logits, pool_logits], dim=-1)
            positive = torch.cat([positive, pool_positive], dim=-1)
        log_probability = F.log_softmax(logits, dim=-1)
        # -inf marks what is no candidate; `where` keeps it out of the sum and of the gradient
        matched = torch.where(positive, log_probability, torch.zeros_like(log_probability)).sum(-1)
        return -(matched / positive.sum(-1)).mean()

    def _batch_candidates(self, anchors: Tensor, targets: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        size = len(labels)
        itself = torch.eye(size, dtype=torch.bool, device=labels.device)
        same = (itself | same_class(labels, labels)) if self.supervised else itself
        other = anchors @ targets.flip(0).mT / self.temperature  # (2, B, B): the other view's targets
        if self.against == "pool":
            return other.diagonal(dim1=1, dim2=2).unsqueeze(-1), torch.ones_like(anchors[..., :1], dtype=torch.bool)
        if not self.against.startswith("both-views"):
            return other, same.expand_as(other)
        own = (anchors @ targets.mT / self.temperature).masked_fill(itself, -torch.inf)  # without the anchor itself
        positive = torch.cat([same, same & ~itself], dim=-1)
        return torch.cat([other, own], dim=-1), positive.expand(2, size, 2 * size)

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
class CrossEntropy:
    """Plain supervised training, the baseline: anchors are class logits; unlabelled samples are left out."""

    kind: Literal["crossentropy"] = "crossentropy"
    smoothing: Fraction = 0.0

    @property
    def supervised(self) -> bool:
        return True

    def sees_batch(self, pool: Pool | None) -> bool:
        return False

    def __call__(self, anchors: Tensor, targets: Tensor, labels: Tensor, pool: Pool | None = None) -> Terms:
        logits = anchors.flatten(0, 1).float()
        summed = F.cross_entropy(
            logits, labels.repeat(len(anchors)), ignore_index=-1, reduction="sum", label_smoothing=self.smoothing
        )
        # a batch without any label gives 0, not 0/0
        total = summed / (len(anchors) * (labels >= 0).sum()).clamp(min=1)
        return Terms(total, torch.zeros_like(total).detach(), total.detach())


Loss = Align | Contrast | CrossEntropy


def same_class(labels: Tensor, others: Tensor) -> Tensor:
    """(len(labels), len(others)): equal and known; -1 matches nothing, not even another -1."""
    return (labels[:, None] == others[None, :]) & (labels >= 0)[:, None]
