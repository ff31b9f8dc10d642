"""Training in several processes (ranks) started by torchrun, with the same result as in one process.

Each rank takes its rows of every batch. What a step needs from the other ranks is gathered in batch order: targets (for
the pool, and for losses that compare images), batch norm statistics, gradients. Random numbers are drawn for the whole
batch on every rank, so an image gets the same views on any rank. Rank 0 alone reads and writes the run folder, prints
and measures. All ranks end together.

The rest of the package does not know how many processes there are. It asks `Ranks`, which does nothing in a single
process, or gets a `RowRange`: the rows of a batch that this process has.
"""

from typing import TYPE_CHECKING

from supancl.distributed.processes import (
    from_environment,
    join_ranks,
    require_single_process,
    should_print,
    should_report_failure,
)
from supancl.distributed.ranks import SINGLE_PROCESS, RankFailed, Ranks, RowRange
from supancl.lazy import lazy_names

if TYPE_CHECKING:
    from supancl.distributed.norms import synchronize_norms

__all__ = [
    "SINGLE_PROCESS", "RankFailed", "Ranks", "RowRange", "from_environment", "join_ranks",
    "require_single_process", "should_print", "should_report_failure", "synchronize_norms",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, {"supancl.distributed.norms": "synchronize_norms"})
