"""The processes that train together: how they connect, which of them prints, and how they end together.

torchrun starts the ranks, ends all of them when one has ended, and starts them again (`--max-restarts`); a rank that
hangs is missed after the timeout of the process group. The run then continues from its last checkpoint (`--resume`).
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from supancl.distributed.ranks import RankFailed, Ranks
from supancl.errors import BadInput, SupanclError
from supancl.files import reason

if TYPE_CHECKING:
    import torch.distributed as dist
else:
    from supancl.lazy import dist

CONNECT_TIMEOUT = timedelta(minutes=10)  # until all ranks have started
COLLECTIVE_TIMEOUT = timedelta(hours=4)  # one rank may build a cache or measure while the others wait
POLL_SECONDS = 0.05
HEAD_START = 0.5  # seconds that rank 0 has, to report what all ranks fail of
REASON_WAIT = 3.0  # seconds that a rank waits for the one that knows why all end
LEAVE_WAIT = 5.0  # seconds that a failed rank waits for the process group to close
KEYS = "supancl"  # prefix of our keys in the store

_reports_failure: list[bool] = []  # whether this process reports why the run failed, once the ranks have decided that


def from_environment() -> Ranks:
    """The ranks according to torchrun's environment variables; a single process without them."""
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    if not all(name in os.environ for name in (*names, "MASTER_ADDR", "MASTER_PORT")):
        return Ranks()
    return Ranks(*(int(os.environ[name]) for name in names))


def require_single_process(task: str) -> None:
    """Refuse several ranks for a task of one process: each rank would do all of it, in the same folder."""
    ranks = from_environment()
    if ranks.size > 1:
        raise BadInput(f"{task} runs in one process, not in {ranks.size} ranks; start it without torchrun")


def should_report_failure() -> bool:
    """Whether this process reports why it ends: before the ranks are connected each does, then the first to fail."""
    return not _reports_failure or _reports_failure[-1]


@contextmanager
def join_ranks(cuda: bool) -> Iterator[Ranks]:
    """The ranks of this run, connected while the block runs. An existing process group is used and not closed."""
    ranks = from_environment()
    if ranks.size == 1 or dist.is_initialized():
        yield ranks
        return
    store = _connect(ranks, cuda)
    try:
        yield ranks
        ranks.wait_for_signal()
    except BaseException as error:
        cause = _failure_to_raise(ranks, store, error)
        _disconnect(timeout=LEAVE_WAIT if cuda else None)
        if cause is error:
            raise
        raise cause from error  # --debug shows both
    _disconnect()


def _connect(ranks: Ranks, cuda: bool) -> Any:
    """Join the process group; returns the key-value store that only the ranks of this start use."""
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    hosts_store = ranks.is_rank0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    untyped: Any = dist
    try:
        options = {"timeout": CONNECT_TIMEOUT, "wait_for_workers": False, "multi_tenant": True}  # `meet` waits
        store = untyped.TCPStore(address, int(port), ranks.size, is_master=hosts_store, **options)
        store = untyped.PrefixStore(f"{KEYS}/{meet(ranks, store, CONNECT_TIMEOUT)}", store)
        store.set_timeout(COLLECTIVE_TIMEOUT)
        # gloo next to nccl: settings, signals and failures are on the host
        backends = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(
            backends, store=store, rank=ranks.rank, world_size=ranks.size, timeout=COLLECTIVE_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise BadInput(
            f"rank {ranks.rank} of {ranks.size} could not connect to the others at {address}:{port} ({reason(error)}); "
            "check that all ranks were started and that every machine can reach the address, and start them again"
        ) from error
    return store


def meet(ranks: Ranks, store: Any, timeout: timedelta) -> str:
    """Wait until all ranks are here; returns a prefix for their keys that is new for every start of all ranks.

    torchrun keeps one store when it starts the ranks again, with the addresses of the ranks before, and its restart
    count differs between machines. So each rank leaves a new token, and rank 0 answers it with its new prefix.
    """
    if not ranks.is_rank0:
        token = secrets.token_hex(8)
        store.set(f"{KEYS}/token/{ranks.rank}", token)
        store.wait([f"{KEYS}/prefix/{token}"], timeout)
        prefix = str(store.get(f"{KEYS}/prefix/{token}").decode())
        store.set(f"{KEYS}/here/{prefix}/{ranks.rank}", "")
        return prefix
    prefix, deadline = secrets.token_hex(8), time.monotonic() + timeout.total_seconds()
    while absent := [rank for rank in range(1, ranks.size) if not store.check([f"{KEYS}/here/{prefix}/{rank}"])]:
        for rank in absent:
            if store.check([f"{KEYS}/token/{rank}"]):  # of an earlier start, it is answered in vain
                store.set(f"{KEYS}/prefix/{store.get(f'{KEYS}/token/{rank}').decode()}", prefix)
        if time.monotonic() > deadline:
            raise RuntimeError(f"these ranks did not come: {absent[:8]}")
        time.sleep(POLL_SECONDS)
    return prefix


def _disconnect(timeout: float | None = None) -> None:
    """Leave the process group. NCCL waits for the other ranks, which may wait for this one: hence a timeout."""
    leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
    leaving.start()
    leaving.join(timeout)


def _failure_to_raise(ranks: Ranks, store: Any, error: BaseException) -> BaseException:
    """The error to end with. The first rank to fail reports it; a rank that lost the others waits for their reason."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all once one of them has ended
    signs = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    lost = isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    lost, code = lost or isinstance(error, dist.DistError), getattr(error, "exit_code", 1)
    message = str(error) if isinstance(error, SupanclError) else f"{type(error).__name__}: {error}"
    if lost:
        message = "another rank ended without a message (killed, or out of memory); the last checkpoint is intact, "
        message += "continue with resume"
    elif not ranks.is_rank0:
        message = f"rank {ranks.rank} of {ranks.size}: {message}"
    time.sleep(REASON_WAIT if lost else 0 if ranks.is_rank0 else HEAD_START)
    failure = f"{ranks.rank} {code}"
    try:
        first = store.compare_set("failure", "", failure).decode()
    except RuntimeError:  # the process with the store has ended
        first = failure if lost else f"0 {code}"
    _reports_failure.append(first == failure)
    return RankFailed(message, int(first.split()[1])) if lost or not ranks.is_rank0 else error
