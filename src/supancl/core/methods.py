"""Every method of the paper, and `semi`, as a row: source of the targets, pool, loss, predictor.

A method is a row, not a class. To make another one, replace what differs:

    MINE = replace(METHODS["byol"], loss=Align(alpha=0.3), pool=PoolSpec("class-queues", 20))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supancl.core.losses import Align, Contrast, CrossEntropy, Loss, SemiAlign
from supancl.core.specs import BranchSpec, EncoderSpec, HeadSpec, PoolSpec
from supancl.distributed import SINGLE_PROCESS, Ranks

if TYPE_CHECKING:
    from supancl.core.branches import Branches
    from supancl.core.pools import Pool


@dataclass(frozen=True)
class Method:
    """One row of the table: branches, predictor, pool, loss."""

    branches: BranchSpec
    loss: Loss
    pool: PoolSpec = PoolSpec()
    predictor: bool = False


_SHARED = BranchSpec(target="shared")
_STOPPED = BranchSpec(target="stop-gradient")
_QUEUE = PoolSpec("queue", size=8192)  # Sec. 5.1
_MOCO = BranchSpec(target="momentum", momentum=0.999, momentum_end=0.999)  # App. C
_MOCO3 = BranchSpec(target="momentum", momentum=0.99)  # App. G

_BYOL = BranchSpec(target="momentum", momentum=0.996)

METHODS: dict[str, Method] = {
    "simclr": Method(_SHARED, Contrast(temperature=0.1)),
    "supcon": Method(_SHARED, Contrast(positives="own-class", temperature=0.1)),
    "moco2": Method(_MOCO, Contrast(against="pool", temperature=0.2), _QUEUE),
    "supmoco": Method(_MOCO, Contrast(positives="own-class", against="other-view+pool", temperature=0.07), _QUEUE),
    "moco3": Method(_MOCO3, Contrast(against="other-view", temperature=0.2), predictor=True),
    "simsiam": Method(_STOPPED, Align(alpha=1.0), predictor=True),
    "supsiam": Method(_STOPPED, Align(alpha=0.5), _QUEUE, predictor=True),
    "byol": Method(_BYOL, Align(alpha=1.0), predictor=True),
    "supbyol": Method(_BYOL, Align(alpha=0.5), _QUEUE, predictor=True),
    "crossentropy": Method(_SHARED, CrossEntropy()),
    # not in the paper: SupSiam for few labels
    "semi": Method(_STOPPED, SemiAlign(alpha=0.5), _QUEUE, predictor=True),
    # Table 8: without a pool the class mean is taken over the batch
    "supsiam-nopool": Method(_STOPPED, Align(alpha=0.5), predictor=True),
    "supbyol-nopool": Method(_BYOL, Align(alpha=0.5), predictor=True),
}


def assemble(
    encoder: EncoderSpec, heads: HeadSpec, branches: BranchSpec, pool: PoolSpec, loss: Loss, classes: int,
    ranks: Ranks = SINGLE_PROCESS, pairs: int = 0,
) -> tuple[Branches, Pool | None]:  # fmt: skip
    """Build the branches and the pool, for `pairs` labels per sample (0: one of weight 1)."""
    from supancl.core.branches import Branches

    body = encoder.build()
    projector = heads.projector if heads.projector.out is not None else replace(heads.projector, out=classes)
    width, predictor = projector.out or classes, None
    if heads.predictor is not None:
        predictor = replace(heads.predictor, out=width).build(width)  # a prediction is compared with a projection
    built_branches = Branches(body, projector.build(body.width), predictor, branches.target, normalize=loss.normalizes)
    several = {"pairs": pairs} if pairs else {}  # a plugin's pool need not know of several labels
    return built_branches, pool.build(width, classes, unlabelled=loss.stores_unlabelled, ranks=ranks, **several)
