"""The processes that train together: how they connect, which of them prints, and how they end together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from supancl.distributed.meeting import address, connect_to_store, meet
from supancl.distributed.ranks import RankFailed, Ranks
from supancl.errors import BadInput, SupanclError
from supancl.files import reason

if TYPE_CHECKING:
    import torch.distributed as dist
else:
    from supancl.lazy import dist

CONNECT_TIMEOUT = timedelta(minutes=10)  # until all ranks have started
COLLECTIVE_TIMEOUT = timedelta(hours=4)  # one rank may build a cache or measure while the others wait
HEAD_START = 0.5  # seconds that rank 0 has, to report what all ranks fail of
REASON_WAIT = 3.0  # seconds that a rank waits for the one that knows why all end
LEAVE_WAIT = 5.0  # seconds that a failed rank waits for the process group to close
FAILURES = "supancl/failures"


def from_environment() -> Ranks:
    """The ranks according to torchrun's environment variables; a single process without them."""
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    if not all(name in os.environ for name in (*names, "MASTER_ADDR", "MASTER_PORT")):
        return Ranks()
    try:
        size, rank, local_rank = (int(os.environ[name]) for name in names)
    except ValueError:
        values = ", ".join(f"{name}={os.environ[name]}" for name in names)
        raise BadInput(f"{values} in the environment are not numbers; start the ranks with torchrun") from None
    return Ranks(size, rank, local_rank)


def require_single_process(task: str) -> None:
    """Refuse several ranks for a task of one process: each rank would do all of it, in the same folder."""
    ranks = from_environment()
    if ranks.size > 1:
        raise BadInput(
            f"{task} runs in one process and was started as {ranks.size} ranks; start it without torchrun (only "
            "pretrain uses several ranks)"
        )


_reports_failure: list[bool] = []  # whether this process reports why the run failed, once the ranks have decided that
_connected: list[bool] = []  # not empty once the ranks are connected and can agree on who reports


def should_print() -> bool:
    """Whether this process prints: rank 0 does, unless another rank has a failure to report."""
    if _reports_failure:
        return _reports_failure[-1]
    ranks = _ranks_or_single_process()
    return ranks.is_rank0 or ranks.size == 1


def should_report_failure() -> bool:
    """Whether this process reports why it ends.

    Before the ranks are connected they cannot agree on one. The first rank of each machine then reports, and the others
    wait for it: torchrun ends all of them as soon as one has ended.
    """
    ranks = _ranks_or_single_process()
    if _reports_failure or _connected or ranks.size == 1:
        return should_print()
    if ranks.local_rank:
        time.sleep(REASON_WAIT)
    return ranks.local_rank == 0


def _ranks_or_single_process() -> Ranks:
    """As `from_environment`, but a single process if the environment is invalid: enough for printing."""
    try:
        return from_environment()
    except BadInput:
        return Ranks()


@contextmanager
def join_ranks(cuda: bool) -> Iterator[Ranks]:
    """The ranks of this run, connected while the block runs. An existing process group is used and not closed."""
    ranks = from_environment()
    if ranks.size == 1 or dist.is_initialized():
        yield ranks
        return
    store = _connect(ranks)
    _connected.append(True)
    try:
        _join_process_group(ranks, store, cuda)
        yield ranks
        ranks.wait_for_signal()
    except BaseException as error:
        cause = _failure_to_raise(ranks, store, error)
        _disconnect(timeout=LEAVE_WAIT if cuda else None)
        if cause is error:
            raise
        raise cause from error  # --debug shows both
    _disconnect()


def _connect(ranks: Ranks) -> Any:
    """Meet the other ranks and return the key-value store that only they use."""
    try:
        store = connect_to_store(ranks, CONNECT_TIMEOUT)
        untyped: Any = dist
        return untyped.PrefixStore(meet(ranks, store, CONNECT_TIMEOUT), store)
    except (RuntimeError, ValueError) as error:
        _reports_failure.append(True)  # the others cannot
        raise _cannot_connect(ranks, error) from error


def _join_process_group(ranks: Ranks, store: Any, cuda: bool) -> None:
    store.set_timeout(COLLECTIVE_TIMEOUT)
    # gloo next to nccl: settings, signals and failures are on the host
    backends = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    try:
        dist.init_process_group(
            backends, store=store, rank=ranks.rank, world_size=ranks.size, timeout=COLLECTIVE_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise _cannot_connect(ranks, error) from error


def _cannot_connect(ranks: Ranks, error: Exception) -> BadInput:
    return BadInput(
        f"rank {ranks.rank} of {ranks.size} could not connect to the others at {address()} ({reason(error)}); "
        "check that every machine can reach the address and that the port is free"
    )


def _disconnect(timeout: float | None = None) -> None:
    """Leave the process group. NCCL waits for the other ranks, which may wait for this one: hence a timeout."""
    if not dist.is_initialized():
        return
    if timeout is None:
        dist.destroy_process_group()
        return
    leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
    leaving.start()
    leaving.join(timeout)


def _failure_to_raise(ranks: Ranks, store: Any, error: BaseException) -> BaseException:
    """The error to end with. The first rank to fail reports it; a rank that lost the others waits for their reason."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all once one of them has ended
    code = getattr(error, "exit_code", 1)
    message = str(error) if isinstance(error, SupanclError) else f"{type(error).__name__}: {error}"
    if connection_lost := _is_connection_error(error):
        error = RankFailed(
            "another rank ended without a message (killed, or out of memory); the last checkpoint is intact, "
            "continue with resume"
        )
    elif not ranks.is_rank0 and not isinstance(error, RankFailed):
        error = RankFailed(f"rank {ranks.rank} of {ranks.size}: {message}", code)
    time.sleep(REASON_WAIT if connection_lost else 0 if ranks.is_rank0 else HEAD_START)
    try:
        is_first = store.add(FAILURES, 1) == 1
    except RuntimeError:  # the process with the store has ended
        is_first = connection_lost
    _reports_failure.append(is_first)
    return error


def _is_connection_error(error: BaseException) -> bool:
    """Whether the connection to another rank failed."""
    signs = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    matches = isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    return matches or isinstance(error, dist.DistError)
