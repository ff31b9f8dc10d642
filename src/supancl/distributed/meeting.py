"""How the ranks find each other: through a key-value store, under a prefix that is new for every start of all ranks.

torchrun keeps one store when it starts the ranks again. Addresses and failures of the ranks before are still in it, so
nothing is read from it before all ranks have agreed on a prefix. The restart count alone is not enough: if one machine
fails, torchrun counts a restart there and none on the others.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from supancl.distributed.ranks import Ranks
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch.distributed as dist
else:
    from supancl.lazy import dist

POLL_SECONDS = 0.05
KEYS = "supancl/meeting"


def address() -> str:
    """Where the store is."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def connect_to_store(ranks: Ranks, timeout: timedelta, can_host: bool = True) -> Any:
    """A connection to the store at MASTER_ADDR:MASTER_PORT. torchrun has started it; without torchrun, rank 0 does."""
    started_by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    untyped: Any = dist
    return untyped.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        ranks.size,
        is_master=can_host and ranks.is_rank0 and not started_by_torchrun,
        timeout=timeout,
        wait_for_workers=False,  # `meet` waits, and knows who is missing
        multi_tenant=True,
    )


def meet(ranks: Ranks, store: Any, timeout: timedelta) -> str:
    """Wait until all ranks are here and return the prefix under which they exchange keys from now on."""
    deadline = time.monotonic() + timeout.total_seconds()
    prefix = _invite(ranks, store, deadline) if ranks.is_rank0 else _answer(ranks, store, deadline)
    return f"supancl/{prefix}"


def _invite(ranks: Ranks, store: Any, deadline: float) -> str:
    """Rank 0: announce a prefix, to the ranks whose tokens are in the store, until all have answered under it."""
    prefix = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{secrets.token_hex(8)}"
    announced: dict[str, str] = {}

    def absent_ranks() -> list[int]:
        nonlocal announced
        absent = [rank for rank in range(1, ranks.size) if not store.check([f"{KEYS}/{prefix}/{rank}"])]
        waiting = [rank for rank in absent if store.check([f"{KEYS}/token/{rank}"])]
        # a token may be that of an earlier start: then its owner's new one will replace it
        tokens = announced | {str(rank): store.get(f"{KEYS}/token/{rank}").decode() for rank in waiting}
        if tokens != announced:
            store.set(f"{KEYS}/prefix", json.dumps([prefix, tokens]))
            announced = tokens
        return absent

    _wait_for(ranks, absent_ranks, deadline)
    store.set(f"{KEYS}/{prefix}/complete", "")
    return prefix


def _answer(ranks: Ranks, store: Any, deadline: float) -> str:
    """Other ranks: leave a token, wait for a prefix announced to it, and answer under this prefix."""
    token = secrets.token_hex(8)
    store.set(f"{KEYS}/token/{ranks.rank}", token)
    prefix = ""

    def rank0_if_absent() -> list[int]:
        nonlocal prefix
        if store.check([f"{KEYS}/prefix"]):
            announced, tokens = json.loads(store.get(f"{KEYS}/prefix"))
            prefix = announced if tokens.get(str(ranks.rank)) == token else ""
        return [] if prefix else [0]

    _wait_for(ranks, rank0_if_absent, deadline)
    store.set(f"{KEYS}/{prefix}/{ranks.rank}", "")

    def absent_ranks() -> list[int]:
        if store.check([f"{KEYS}/{prefix}/complete"]):
            return []
        others = [rank for rank in range(1, ranks.size) if rank != ranks.rank]
        return [rank for rank in others if not store.check([f"{KEYS}/{prefix}/{rank}"])] or [0]

    _wait_for(ranks, absent_ranks, deadline)
    return prefix


def _wait_for(ranks: Ranks, absent_ranks: Callable[[], list[int]], deadline: float) -> None:
    while absent := absent_ranks():
        if time.monotonic() > deadline:
            raise BadInput(
                f"{name_ranks(absent)} of {ranks.size} did not come to {address()}; check that this many ranks were "
                "started and that their machines can reach the address, then start all of them again with resume"
            )
        time.sleep(POLL_SECONDS)


def name_ranks(numbers: list[int]) -> str:
    """The ranks in words.

    >>> name_ranks([1]), name_ranks([0, 2, 5])
    ('rank 1', 'ranks 0, 2, 5')
    """
    listed = ", ".join(str(number) for number in numbers[:8]) + (" and others" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {listed}"
