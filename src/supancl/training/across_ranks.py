"""The exchange of targets between ranks within a step, so that anchors are compared with the whole batch.

A rank's rows and views come from `Ranks.micro_batches` and `in_part`; DDP averages the gradients.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from supancl.core.losses import GlobalBatch
from supancl.core.pools import Pool
from supancl.distributed import Ranks, RowRange
from supancl.recipes import Recipe


class TargetExchange:
    """(local targets, labels of the batch, local rows) -> targets of all rows, and keyword arguments of the loss."""

    def __init__(self, recipe: Recipe, pool: Pool | None, ranks: Ranks) -> None:
        self.ranks, self.sees_batch = ranks, recipe.loss.sees_batch(pool)
        self.first_view = 0 if recipe.compat == "released-code" else 1  # z1 is gathered only if it is pushed

    def __call__(self, targets: Tensor, labels: Tensor, row_range: RowRange) -> tuple[Tensor, dict[str, Any]]:
        """Gather all targets with gradients for a loss that compares samples; otherwise only z2, for the pool."""
        if self.sees_batch:
            all_targets = self.ranks.gather(targets, row_range.total, 1)
            return all_targets, {"global_batch": GlobalBatch(all_targets, labels, row_range)}
        all_targets = self.ranks.gather(targets.detach()[self.first_view :], row_range.total, 1)
        return all_targets, {"global_batch": GlobalBatch(targets, labels, row_range)}
