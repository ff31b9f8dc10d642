"""Bytes that one step exchanges between ranks; a test counts the same in the real calls (docs/distributed.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn
else:
    from supancl.lazy import nn

LOSS_BYTES, SIGNAL_BYTES = 3 * 8, 8  # total, ssl and sup in double; a signal's number


class Traffic(NamedTuple):
    """Bytes that one rank passes to collectives in one step, by kind.

    On the wire, a ring sends 2 (R - 1) / R times as many for a sum over R ranks, and R - 1 times as many for a gather.
    """

    gradients: int  # summed, while backward runs
    norms: int  # summed: statistics of every view of every micro-batch, and their gradients
    targets: int  # gathered; their gradient, if any, is summed
    other: int  # losses and signal

    @property
    def total(self) -> int:
        return sum(self)


def traffic(
    branches: Any, batch_size: int, ranks: int, width: int, *, compares: bool, accumulate: int = 1, local: int = 0,
    gradients: str = "fp32", sync_norm: bool = True, value: int = 4,
) -> Traffic:  # fmt: skip
    """What one step of `Branches` with targets of this `width` exchanges.

    `compares`: whether the loss sees the whole batch (`loss.sees_batch`). Then the targets of both views are gathered,
    and their gradient flows back if the target branch is shared. Otherwise only z2 is gathered, for the pool and the
    monitor. `value` is the bytes of a number; norms on a CPU always use 8.
    """
    if ranks == 1:
        return Traffic(0, 0, 0, 0)
    parameters = sum(p.numel() for p in branches.parameters() if p.requires_grad)
    online = _channels(branches.encoder) + _channels(branches.projector) + _channels(branches.predictor)
    target = _channels(branches.target_encoder) + _channels(branches.target_projector)
    # forward: sum, sum of squares and count; backward: as much again, except for the momentum branch
    norms = 2 * (2 + local) * sum(2 * c + 1 for c in online) + 2 * sum(2 * c + 1 for c in target)
    rows = -(-batch_size // accumulate // ranks)  # of the rank with the most rows
    views, has_gradient = (2, branches.target == "shared") if compares else (1, False)
    gathered = views * rows * width * (1 + (ranks if has_gradient else 0))
    return Traffic(
        parameters * (2 if gradients == "bf16" else value),
        norms * accumulate * value if sync_norm else 0,
        gathered * accumulate * value,
        LOSS_BYTES + SIGNAL_BYTES,
    )


def _channels(module: nn.Module | None) -> list[int]:
    modules = [] if module is None else module.modules()
    return [norm.num_features for norm in modules if isinstance(norm, nn.modules.batchnorm._BatchNorm)]
