"""A command in a process of its own that is forked, so that it starts at once, and that can be sent signals."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

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
