"""PAWS's mean-entropy term added to `semi`: the batch should be spread over all classes. Tried, and not kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.losses import GlobalBatch, SemiAlign, Terms
from supancl.core.pools import Pool
from supancl.recipes import register


@register
@dataclass(frozen=True)
class SemiWithMeanEntropy(SemiAlign):
    """`semi` minus `weight` times the entropy of the batch's mean class weights (Assran et al. 2021).

    The class weights are those of the anchors, with gradient. The term begins after the warm-up.
    """

    kind: str = "semi-mean-entropy"  # type: ignore[assignment]
    weight: float = 1.0

    def sees_batch(self, pool: Pool | None) -> bool:
        return True

    def __call__(  # type: ignore[override]
        self,
        anchors: Tensor,
        targets: Tensor,
        labels: Tensor,
        pool: Pool | None = None,
        global_batch: GlobalBatch | None = None,
    ) -> Terms:
        terms: Terms = super().__call__(anchors, targets, labels, pool, global_batch=global_batch)
        assert pool is not None
        means, is_held = pool.all_means()
        logits = anchors.to(means.dtype) @ F.normalize(means, dim=1).mT / self.temperature
        weights = logits.masked_fill(~is_held, torch.finfo(logits.dtype).min).softmax(-1).flatten(0, 1).mean(0)
        entropy = -(weights * weights.clamp(min=1e-12).log()).sum()
        return terms._replace(total=terms.total - self.weight * entropy * (pool.clock >= self.warmup))
