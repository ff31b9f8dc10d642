"""The processes that train together: how they find each other, who speaks, and how they end together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from supancl.distributed.ranks import Ended, Ranks
from supancl.errors import BadInput, SupanclError

PATIENCE = timedelta(hours=4)  # for a rank that builds a cache or measures while the others wait
TO_BE_TOLD = 5.0  # seconds that a rank waits for a lower one to say why the run ended
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


def speaks() -> bool:
    """Whether this process is the one that prints: the first, unless it has gone without a word."""
    return _SPEAKS.is_set() or os.environ.get("RANK", "0") == "0" or from_environment().size == 1


_SPEAKS = threading.Event()


@contextmanager
def opened(cuda: bool) -> Iterator[Ranks]:
    """The ranks of this run, joined for as long as the block runs. A group that is already there is used, and stays."""
    ranks = from_environment()
    if ranks.size == 1 or dist.is_initialized():
        yield ranks
        return
    store, _, _ = next(rendezvous("env://", ranks.rank, ranks.size, timeout=PATIENCE))
    # beside the GPUs' own, one for what lies on the host: settings, signals, reasons
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=ranks.rank, world_size=ranks.size, timeout=PATIENCE
    )
    try:
        yield ranks
        ranks.answered()
    except BaseException as error:
        cause = _ending(ranks, store, error)
        if cause is error:
            raise
        raise cause from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _ending(ranks: Ranks, store: Any, error: BaseException) -> BaseException:
    """The reason to end with, told by one rank: the lowest that knows it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all once one of them has ended
    if _lost(error):
        error = _cause(ranks, store) or Ended("another rank has gone without a word (killed, or out of memory); what "
                                              "was saved last is sound, continue with --resume")
    with suppress(RuntimeError):
        code = getattr(error, "exit_code", 1)
        store.set(f"{OWN_WORDS}/{ranks.rank}", f"{code} {type(error).__name__}: {error}"
                  if not isinstance(error, SupanclError) else f"{code} {error}")
    with suppress(RuntimeError):
        dist.destroy_process_group()  # who waits for this rank now fails instead
    until = time.monotonic() + TO_BE_TOLD
    while not ranks.leads and time.monotonic() < until:
        if _told_below(ranks.rank, store):
            return error
        time.sleep(0.05)
    _SPEAKS.set()
    if ranks.leads or isinstance(error, Ended) or not isinstance(error, SupanclError):
        return error
    return Ended(f"rank {ranks.rank} of {ranks.size}: {error}", error.exit_code)


def _lost(error: BaseException) -> bool:
    """Whether what failed is the connection to another rank."""
    said = str(error)
    signs = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(sign in said for sign in signs)
    )


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


def _told_below(rank: int, store: Any) -> bool:
    with suppress(RuntimeError):
        return any(store.check([f"{OWN_WORDS}/{lower}"]) for lower in range(rank))
    return False
