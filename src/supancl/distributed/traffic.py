"""What one step exchanges, in bytes: the same numbers that a test counts from the real calls (docs/distributed.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn
else:
    from supancl.lazy import nn

LOSSES, SIGNAL = 3 * 8, 8  # total, ssl and sup in double; a signal's number


class Traffic(NamedTuple):
    """Bytes that one rank hands to collectives in one step, by what they are.

    Of a sum over R ranks a ring sends 2 (R - 1) / R times as many over the wire, of a gather R - 1 times as many.
    """

    gradients: int  # summed, while backward runs
    norms: int  # summed: statistics of every view of every micro-batch, and their gradients
    targets: int  # gathered; where gradient flows to them, it is summed
    rest: int  # losses, and whether a signal came

    @property
    def total(self) -> int:
        return sum(self)


def traffic(
    branches: Any, batch_size: int, ranks: int, width: int, *, compares: bool, accumulate: int = 1, local: int = 0,
    gradients: str = "fp32", sync_norm: bool = True, value: int = 4,
) -> Traffic:  # fmt: skip
    """The exchange of one step of `Branches` whose targets are `width` wide.

    `compares`: whether the loss sees the whole batch (`loss.sees_batch`); then both views' targets are gathered, and
    their gradient flows back where the target branch is shared. Otherwise only z2 is, for the pool and the monitor.
    `value` is the size of a number: on a CPU those of the norms are 8 whatever the others are.
    """
    if ranks == 1:
        return Traffic(0, 0, 0, 0)
    parameters = sum(p.numel() for p in branches.parameters() if p.requires_grad)
    online = _channels(branches.encoder) + _channels(branches.projector) + _channels(branches.predictor)
    target = _channels(branches.target_encoder) + _channels(branches.target_projector)
    # a sum, a sum of squares and a count forward, as much backward; the momentum branch has no backward
    norms = 2 * (2 + local) * sum(2 * c + 1 for c in online) + 2 * sum(2 * c + 1 for c in target)
    rows = -(-batch_size // accumulate // ranks)  # of the rank that has the most
    views, back = (2, branches.target == "shared") if compares else (1, False)
    gathered = views * rows * width * (1 + (ranks if back else 0))
    return Traffic(
        parameters * (2 if gradients == "bf16" else value),
        norms * accumulate * value if sync_norm else 0,
        gathered * accumulate * value,
        LOSSES + SIGNAL,
    )


def _channels(module: nn.Module | None) -> list[int]:
    found = [] if module is None else list(module.modules())
    return [norm.num_features for norm in found if isinstance(norm, nn.modules.batchnorm._BatchNorm)]
