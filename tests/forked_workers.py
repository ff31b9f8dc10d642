"""A command whose workers are forked before anything of ours is imported, so that they too start at once.

    python tests/forked_workers.py supancl WORDS, or python FILE WORDS, where `python` is that of tests/forked.py

They are processes that multiprocessing spawns, but for the libraries: what is ours they import anew, as where a user
starts it, and they can be sent signals and end with codes of their own.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing.process
import multiprocessing.util
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

WORKERS = 2


def fork_worker(end: Callable[..., NoReturn]) -> tuple[int, socket.socket]:
    """A process that waits to become a worker: its id, and where to send it what it is to run."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        become_worker(there, end)
    there.close()
    return pid, here


def become_worker(there: socket.socket, end: Callable[..., NoReturn]) -> NoReturn:
    """Waits for the code to run, and for the files that it needs open under the numbers it knows."""
    given, files, _, _ = socket.recv_fds(there, 65536, 64)
    there.close()
    if not given:  # it was not needed
        os._exit(0)
    code, words, numbers = json.loads(given)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 512) for file in files]  # out of the way of the numbers
    for file in files:
        os.close(file)
    for number, file in zip(numbers, high, strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["-c", *words]
    end(exec, code, {"__name__": "__main__"})


def main(program: str, *words: str) -> None:
    from forked import begin, end

    del sys.path[0]  # this folder
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # the process that forked this one imported it elsewhere
    waiting, spawn = [fork_worker(end) for _ in range(WORKERS)], multiprocessing.util.spawnv_passfds

    def hand_over(path: Any, args: list[Any], passed: tuple[int, ...]) -> int:
        texts = [os.fsdecode(arg) for arg in args]
        if texts[-1] != "--multiprocessing-fork":  # multiprocessing's own helper
            return spawn(path, args, passed)
        pid, way = waiting.pop()
        code = texts.index("-c") + 1
        numbers = sorted(set(passed))
        socket.send_fds(way, [json.dumps([texts[code], texts[code + 1 :], numbers]).encode()], numbers)
        way.close()
        return pid

    multiprocessing.util.spawnv_passfds = hand_over
    begin(program, *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
