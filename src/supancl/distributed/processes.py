"""The processes that train together: how they find each other, who speaks, and how they end together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from supancl.distributed.ranks import Ended, Ranks
from supancl.errors import BadInput, SupanclError
from supancl.files import reason

if TYPE_CHECKING:
    import torch.distributed as dist
else:
    from supancl.lazy import dist

MEETING = timedelta(minutes=10)  # for all of them to begin
PATIENCE = timedelta(hours=4)  # for a rank that builds a cache or measures while the others wait
TO_BE_TOLD = 3.0  # seconds that a rank waits for a lower one to say why all end
FAREWELL = 5.0  # seconds for a rank that has failed to part from the others; then it ends without
OWN_WORDS = "supancl/ended"


def from_environment() -> Ranks:
    """The ranks that torchrun's environment tells of; alone where there is none."""
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    if not all(name in os.environ for name in (*names, "MASTER_ADDR", "MASTER_PORT")):
        return Ranks()
    try:
        size, rank, local = (int(os.environ[name]) for name in names)
    except ValueError:
        told = ", ".join(f"{name}={os.environ[name]}" for name in names)
        raise BadInput(f"{told} in the environment are not numbers; start the ranks with torchrun") from None
    return Ranks(size, rank, local)


def by_one(what: str) -> None:
    """Refuse several ranks for what one process does: each would do all of it, in the same folder."""
    ranks = from_environment()
    if ranks.size > 1:
        raise BadInput(
            f"{what} takes one process and was started as {ranks.size} ranks; start it without torchrun (of "
            "several ranks pretrain alone makes one run)"
        )


_TELLS: list[bool] = []  # whether this process tells why a run has ended, where that is not for the first one to do
_MET: list[bool] = []  # once ranks have met, they agree on who tells it


def speaks() -> bool:
    """Whether this process is the one that prints: the first, unless another one has the reason to tell."""
    if _TELLS:
        return _TELLS[-1]
    ranks = _supposed()
    return ranks.leads or ranks.size == 1


def tells() -> bool:
    """Whether this process says why it ends.

    Ranks that have not met yet cannot agree on that. The first one of each machine does, and the others stay until it
    has: torchrun ends all as soon as one of them has ended.
    """
    ranks = _supposed()
    if _TELLS or _MET or ranks.size == 1:
        return speaks()
    if ranks.local:
        time.sleep(TO_BE_TOLD)
    return ranks.local == 0


def _supposed() -> Ranks:
    """As `from_environment`, for whoever only prints; one alone where the environment makes no sense."""
    try:
        return from_environment()
    except BadInput:
        return Ranks()


@contextmanager
def opened(cuda: bool) -> Iterator[Ranks]:
    """The ranks of this run, joined for as long as the block runs. A group that is already there is used, and stays."""
    ranks = from_environment()
    if ranks.size == 1 or dist.is_initialized():
        yield ranks
        return
    store = _met(ranks, cuda)
    _MET.append(True)
    try:
        yield ranks
        ranks.answered()
    except BaseException as error:
        cause = _ending(ranks, store, error)
        _part(until=FAREWELL if cuda else None)
        if cause is error:
            raise
        raise cause from error  # --debug shows both
    _part()


def _met(ranks: Ranks, cuda: bool) -> Any:
    """Join the others; what comes back is where words can be left for them."""
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", ranks.rank, ranks.size, timeout=MEETING))
        store.set_timeout(PATIENCE)
        # beside the GPUs' own, one for what lies on the host: settings, signals, reasons
        backends = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backends, store=store, rank=ranks.rank, world_size=ranks.size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        _TELLS.append(True)  # the others cannot
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise BadInput(
            f"rank {ranks.rank} of {ranks.size} could not meet the others at {where} ({reason(error)}); see "
            "that the address can be reached from every machine and the port is free"
        ) from error
    return store


def _part(until: float | None = None) -> None:
    """Leave the others. Where only this rank has failed, NCCL waits for them while they wait for it: not for long."""
    if not dist.is_initialized():
        return
    if until is None:
        dist.destroy_process_group()
        return
    leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
    leaving.start()
    leaving.join(until)


def _ending(ranks: Ranks, store: Any, error: BaseException) -> BaseException:
    """The reason to end with. One rank tells it: the lowest of those that have it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all once one of them has ended
    lost = _lost(error)
    if lost:
        cause = _cause(ranks, store)
        if cause is not None:
            _TELLS.append(False)  # its own rank did, before it ended
            return cause
        error = Ended(
            "another rank has gone without a word (killed, or out of memory); what was saved last is sound, "
            "continue with --resume"
        )
    said = str(error) if isinstance(error, SupanclError) else f"{type(error).__name__}: {error}"
    code = getattr(error, "exit_code", 1)
    with suppress(RuntimeError):
        store.set(f"{OWN_WORDS}/{ranks.rank}", f"{code} {said}")
    if ranks.leads or _told_below(ranks.rank, store, if_gone=not lost):
        return error
    _TELLS.append(True)
    return error if lost else Ended(f"rank {ranks.rank} of {ranks.size}: {said}", code)


def _told_below(rank: int, store: Any, if_gone: bool) -> bool:
    """Whether a lower rank tells a reason: all have it at about the same time, or this one alone has it."""
    until = time.monotonic() + TO_BE_TOLD
    while time.monotonic() < until:
        try:
            if any(store.check([f"{OWN_WORDS}/{lower}"]) for lower in range(rank)):
                return True
        except RuntimeError:  # who kept the store has ended
            return if_gone
        time.sleep(0.05)
    return False


def _lost(error: BaseException) -> bool:
    """Whether what failed is the connection to another rank."""
    signs = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    told = isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    return told or isinstance(error, dist.DistError)


def _cause(ranks: Ranks, store: Any) -> Ended | None:
    """What the rank said that ended first; it is given a moment to say it."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        for rank in range(ranks.size):
            with suppress(RuntimeError):
                if rank != ranks.rank and store.check([f"{OWN_WORDS}/{rank}"]):
                    code, _, text = store.get(f"{OWN_WORDS}/{rank}").decode().partition(" ")
                    known = text.startswith("rank ")
                    return Ended(text if known else f"rank {rank} of {ranks.size}: {text}", int(code))
        time.sleep(0.05)
    return None
