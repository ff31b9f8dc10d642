"""What several ranks exchange within a step: the targets, so that every rank compares its anchors with the whole batch.

The rows, labels and views of a rank's share come from `Ranks.micros` and `in_part`; gradients from torch's DDP.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from supancl.core.losses import GlobalBatch
from supancl.core.pools import Pool
from supancl.distributed import Ranks, RowRange
from supancl.recipes import Recipe


class TargetExchange:
    """(targets of this rank, labels of the batch, its rows) -> the targets of all rows, and the loss's context."""

    def __init__(self, recipe: Recipe, pool: Pool | None, ranks: Ranks) -> None:
        self.ranks, self.sees_batch = ranks, recipe.loss.sees_batch(pool)
        self.first_pushed = 0 if recipe.compat == "released-code" else 1  # z1 travels only where it is pushed

    def __call__(self, targets: Tensor, labels: Tensor, row_range: RowRange) -> tuple[Tensor, dict[str, Any]]:
        """A loss that compares samples gets all targets, with their gradients; another one its own, and z2 travels."""
        if self.sees_batch:
            everyones = self.ranks.gather(targets, row_range.total, 1)
            return everyones, {"global_batch": GlobalBatch(everyones, labels, row_range)}
        everyones = self.ranks.gather(targets.detach()[self.first_pushed :], row_range.total, 1)
        return everyones, {"global_batch": GlobalBatch(targets, labels, row_range)}
