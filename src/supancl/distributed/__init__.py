"""Training in several processes (ranks) started by torchrun, with the same result as in one process.

Each rank takes its rows of every batch. What a step needs from the other ranks is gathered in batch order: targets (for
the pool, and for losses that compare images), batch norm statistics, gradients. Random numbers are drawn for the whole
batch on every rank, so an image gets the same views on any rank. Rank 0 alone reads and writes the run folder, prints
and measures. All ranks end together.

The rest of the package does not know how many processes there are. It asks `Ranks`, which does nothing in a single
process, or gets a `RowRange`: the rows of a batch that this process has.
"""

from supancl.distributed.processes import from_environment as from_environment
from supancl.distributed.processes import join_ranks as join_ranks
from supancl.distributed.processes import require_single_process as require_single_process
from supancl.distributed.processes import should_report_failure as should_report_failure
from supancl.distributed.ranks import SINGLE_PROCESS as SINGLE_PROCESS
from supancl.distributed.ranks import RankFailed as RankFailed
from supancl.distributed.ranks import Ranks as Ranks
from supancl.distributed.ranks import RowRange as RowRange
