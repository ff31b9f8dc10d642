"""Commands in processes of their own, forked from one that has imported torch and the like, so that they start at once.

What is ours is imported by every command anew, as where a user starts it; only the libraries are there already.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = (
    "matplotlib.figure", "rich.table", "safetensors.torch", "sklearn.datasets", "torch._inductor.config",
    "torch.utils.tensorboard", "torchvision",
)  # fmt: skip


def ask(words: list[str]) -> int:
    """Has the process at $SUPANCL_FORKS fork for the words, with this one's streams, folder and environment."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["SUPANCL_FORKS"])
        wanted = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [len(wanted).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(wanted)
        return int(server.recv(16) or b"1")


def serve(place: str) -> None:
    """Forks for everyone who asks, one after the other; whoever is forked ends as that command does."""
    for name in LIBRARIES:
        __import__(name)
    gc.collect()
    gc.freeze()  # or a look for garbage in a child would copy all that it shares with this process
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    print("ready", flush=True)
    while listening in select.select([listening, sys.stdin], [], [])[0]:  # whoever started it is gone: stdin ends
        asking, _ = listening.accept()
        length, streams, _, _ = socket.recv_fds(asking, 8, 3)
        with asking.makefile("rb") as given:
            words, folder, environment = json.loads(given.read(int.from_bytes(length, "big")))
        child = os.fork()
        if child == 0:
            for own, stream in enumerate(streams):
                os.dup2(stream, own)
            for kept in (*streams, listening.detach(), asking.detach()):
                os.close(kept)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            end(begin, *words)
        for stream in streams:
            os.close(stream)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asking.sendall(str(code if code >= 0 else 128 - code).encode())
        asking.close()


def begin(program: str, *words: str) -> None:
    """What the console script does, or python with a file, on the streams as they now are."""
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    if program == "supancl":
        sys.argv = [program, *words]
        from supancl.cli import entry

        entry()
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")


def end(command: Callable[..., None], *words: str) -> NoReturn:
    """Runs it and ends as Python does, but frees nothing: that would copy all that this process shares."""
    code: Any = 0
    try:
        command(*words)
    except SystemExit as leaving:
        code = leaving.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def forking(folder: Path) -> Iterator[dict[str, str]]:
    """An environment in which `supancl` and `python FILE` are forked."""
    place, path = str(folder / "socket"), str(Path(__file__).resolve())
    for program in ("supancl", "python"):
        (folder / program).write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{path}" ask {program} "$@"\n')
        (folder / program).chmod(0o755)
    command, pipe = [sys.executable, "-P", path, "serve", place], subprocess.PIPE
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield {"SUPANCL_FORKS": place, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        finally:
            process.terminate()


# --- a command that runs beside the test, and can be sent signals -----------------------------------------------------

WITH_WORKERS = str(Path(__file__).with_name("forked_workers.py"))
SCRIPT = """
import os
import signal
import sys
from pathlib import Path

from supancl.cli import entry

if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "new pid").write_text(str(os.getpid()))
    (here / "new pid").rename(here / "pid")
    sys.argv[0] = "supancl"
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
    leave = os._exit  # after a signal the command ends with it

    def note_and_leave(code):
        (here / "code").write_text(str(code))
        leave(code)

    os._exit = note_and_leave
    try:
        entry()
    except SystemExit as end:
        (here / "code").write_text(str(end.code))
        raise
"""


class Started:
    """`supancl WORDS`, begun; `forks` is the fixture of that name, and one folder serves one command.

    With `workers` the two processes that the command starts are forked too, as tests/forked_workers.py does it.
    """

    def __init__(self, forks: dict[str, str], folder: Path, *words: str, workers: bool = False) -> None:
        folder.mkdir()
        self.folder, script = folder, folder / "command.py"
        script.write_text(SCRIPT)
        python = str(Path(forks["SUPANCL_FORKS"]).with_name("python"))
        command = [python, *([WITH_WORKERS, "python"] if workers else []), str(script), *words]
        environment, pipe = {**os.environ, **forks}, subprocess.PIPE
        # what is started asks for the fork, waits for it and ends as it does
        self.asking = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.wait_until((folder / "pid").exists)

    def wait_until(self, there: Callable[[], object]) -> None:
        """Until it holds, or the command has ended; asked often, for a short run may end soon after."""
        for _ in range(12000):
            if there() or not self.runs():
                return
            time.sleep(0.005)
        self.give_up("not within a minute")

    def give_up(self, why: str) -> NoReturn:
        """Fails, and leaves nothing that runs on after the tests; SIGTERM, so that it ends its workers too."""
        if (self.folder / "pid").exists():
            self.send_signal(signal.SIGTERM)
        raise AssertionError(why)

    def runs(self) -> bool:
        return self.asking.poll() is None

    def send_signal(self, number: int) -> bool:
        """Whether it still ran; a short command may have ended although who asked for it has not noticed."""
        try:
            os.kill(int((self.folder / "pid").read_text()), number)
        except ProcessLookupError:
            return False
        return True

    def end(self) -> tuple[int | None, str]:
        """The code it ended with by itself, None where it was killed; and what it wrote to stderr."""
        try:
            _, errors = self.asking.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.give_up("it does not end")
        left = self.folder / "code"
        return (int(left.read_text()) if left.exists() else None), errors


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2:]))
    serve(sys.argv[2])
