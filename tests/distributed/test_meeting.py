"""Ranks that meet: never with the keys of ranks before them, and not for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from supancl.distributed import Ranks, processes

SOON, NOW = timedelta(seconds=60), timedelta(milliseconds=1)


def meet_all(store: HashStore) -> set[str]:
    with ThreadPoolExecutor(3) as threads:
        return set(threads.map(lambda rank: processes.meet(Ranks(3, rank, rank), store, SOON), range(3)))


def test_each_start_of_all_ranks_meets_under_a_prefix_of_its_own() -> None:
    store = HashStore()
    store.set("supancl/token/2", "left by a rank that was killed while it waited")
    prefixes = [meet_all(store) for _ in range(3)]
    assert [len(found) for found in prefixes] == [1, 1, 1]
    assert len(set.union(*prefixes)) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(rank: int) -> None:
    store = HashStore()
    meet_all(store)  # an earlier meeting, whose keys are still there
    with pytest.raises(RuntimeError):
        processes.meet(Ranks(3, rank, rank), store, NOW)
