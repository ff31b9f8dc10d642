"""Everything that knows about ranks: the same training in one process or in many, started by torchrun.

Each rank takes its rows of every batch. What a step needs of the others' rows is gathered, in the order of the batch:
targets (for the pool, and for losses that compare images), statistics of batch norm, gradients. What is drawn at
random is drawn for the whole batch on every rank, so that an image gets the same views wherever it is.
The first rank alone reads and writes the run's folder, prints, and measures; all ranks agree on how it ends.

Nothing else in this package knows how many processes there are: others ask `Ranks`, which for one alone does nothing,
or are given a `Part`, which says which rows of a batch are at hand.
"""

from typing import TYPE_CHECKING

from supancl.distributed.processes import by_one, from_environment, opened, speaks, tells
from supancl.distributed.ranks import ALONE, Ended, Part, Ranks
from supancl.distributed.traffic import Traffic, traffic
from supancl.lazy import lazy_names

if TYPE_CHECKING:
    from supancl.distributed.norms import synchronize

__all__ = [
    "ALONE", "Ended", "Part", "Ranks", "Traffic", "by_one", "from_environment", "opened", "speaks",
    "synchronize", "tells", "traffic",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {"supancl.distributed.norms": "synchronize"})
