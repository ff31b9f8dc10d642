"""Long tests begin first: of the processes of `make test-faults`, each begins with one of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

LONG = ("survives_kills_of_any_rank", "pretraining_killed_at_file_events", "run_on_a_full_disk_says_so")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(Path(__file__).parent not in item.path.parents for item in items):
        return  # not these tests alone
    long = [item for item in items if any(words in item.name for words in LONG)]
    others = [item for item in items if item not in long]
    share = math.ceil(len(others) / max(len(long), 1))
    # xdist gives every process a contiguous part to begin with
    parts = [[first, *others[i * share : (i + 1) * share]] for i, first in enumerate(long)]
    items[:] = [item for part in parts for item in part] if long else others
