"""Heartbeats between ranks. A wait for a rank that has fallen silent ends after minutes; one for a busy rank goes on.

A collective cannot be interrupted from Python, and its connection does not notice that a machine is gone. So a thread
of each rank counts up a number in the store and reads those of the others. If one of them stands still for too long,
the process ends. What was saved stays: files are written under another name first.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from supancl.distributed.meeting import address, name_ranks
from supancl.distributed.ranks import Ranks
from supancl.errors import program_name

BEAT_SECONDS = 5.0
CHECK_SECONDS = 1.0
SILENCE_LIMIT = 180.0  # seconds without a heartbeat after which a rank counts as lost
LEFT = b"left"  # instead of a number: the rank has finished


class Silence:
    """How long each other rank, and the store, has been silent while this process was listening."""

    def __init__(self, ranks: Ranks) -> None:
        self.seconds = {rank: 0.0 for rank in range(ranks.size) if rank != ranks.rank}
        self.store_seconds = 0.0
        self._last: dict[int, bytes] = {}

    def hear(self, beats: dict[int, bytes]) -> None:
        """Take note of the heartbeats that are in the store."""
        self.store_seconds = 0.0
        for rank, beat in beats.items():
            if beat == LEFT or beat != self._last.get(rank):
                self.seconds[rank] = 0.0
            self._last[rank] = beat

    def pass_time(self, seconds: float) -> None:
        """Count these seconds; not those in which this process itself was stopped, and so heard nothing."""
        seconds = min(seconds, 2 * CHECK_SECONDS)
        self.store_seconds += seconds
        for rank in self.seconds:
            self.seconds[rank] += seconds

    def lost_ranks(self) -> list[int]:
        return [rank for rank, seconds in self.seconds.items() if seconds > SILENCE_LIMIT]


class Heartbeat:
    """Sends this rank's heartbeat and calls `give_up` once if another rank has been silent for too long."""

    def __init__(self, ranks: Ranks, store: Any, give_up: Callable[[Ranks, Silence], None]) -> None:
        self.ranks, self.store, self.give_up = ranks, store, give_up
        self.silence = Silence(ranks)
        self._works = 0  # of this rank that others may wait for
        self._leaves_in_order = False
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._exchange, self._watch)]

    def start(self) -> None:
        self._beat(b"0")
        for thread in self._threads:
            thread.start()

    def stop(self, in_order: bool) -> None:
        """End the heartbeat. The others expect no more of a rank that leaves `in_order`."""
        self._leaves_in_order = in_order
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * CHECK_SECONDS)

    @contextmanager
    def work(self) -> Iterator[None]:
        """In this block the rank does not wait for others: it may finish a cache although another rank is lost."""
        self._works += 1
        try:
            yield
        finally:
            self._works -= 1

    def _beat(self, value: bytes) -> None:
        self.store.set(f"heartbeat/{self.ranks.rank}", value)

    def _exchange(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT_SECONDS):
            beat += 1
            try:
                self._beat(str(beat).encode())
                present = [rank for rank in self.silence.seconds if self.store.check([f"heartbeat/{rank}"])]
                self.silence.hear({rank: self.store.get(f"heartbeat/{rank}") for rank in present})
            except RuntimeError:  # the process with the store has ended: it will be missed, unless this one ends first
                return
        if self._leaves_in_order:
            try:
                self._beat(LEFT)
            except RuntimeError:
                return

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(CHECK_SECONDS):
            now = time.monotonic()
            self.silence.pass_time(now - before)
            before = now
            if self.silence.lost_ranks() and not self._works:
                self.give_up(self.ranks, self.silence)
                return


def describe_loss(ranks: Ranks, silence: Silence) -> str:
    """Who is missing, and what to do."""
    minutes = f"{SILENCE_LIMIT / 60:g} minutes"
    if silence.store_seconds > SILENCE_LIMIT:
        cause = f"rank {ranks.rank} of {ranks.size} has had no answer from {address()} for {minutes}"
    else:
        lost = silence.lost_ranks()
        cause = f"{name_ranks(lost)} of {ranks.size} has sent no heartbeat for {minutes}"
    return f"{cause}; check that machine, then start all ranks again with resume (the last checkpoint is intact)"


def end_process(ranks: Ranks, silence: Silence) -> None:
    """Say who is missing, on the lowest rank that is left, and end the process: a collective cannot be interrupted."""
    is_lowest = set(range(ranks.rank)) <= set(silence.lost_ranks())
    if is_lowest or (silence.store_seconds > SILENCE_LIMIT and ranks.local_rank == 0):
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[?25h")  # a progress bar has hidden the cursor
        print(f"{program_name()}: {describe_loss(ranks, silence)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
