"""Ctrl-C while decoding threads are blocked, as by a disk that hangs: the process ends nevertheless, and has saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.distributed.worker import ROOT
from tests.helpers import assert_mentions, class_folders

# the disk hangs from the Nth image on; BLOCKED is printed once it does
SCRIPT = """
import signal, sys, threading
from supancl import cli
from supancl.data import decode, opening
from supancl.data.store import memory
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
original, count, lock = decode.decode, [0], threading.Lock()

def hang(*args, **named):
    with lock:
        count[0] += 1
        hangs = count[0] > {after}
    if hangs:
        print("BLOCKED", flush=True)
        threading.Event().wait()
    return original(*args, **named)

for module in (decode, opening, memory):
    if hasattr(module, "decode"):
        module.decode = hang
sys.argv = ["supancl", *sys.argv[1:]]
cli.entry()
"""
IMAGES = 40
WORDS = [
    "--epochs", "20", "--batch-size", "8", "--device", "cpu", "--set", "encoder.name=cnn", "--set", "encoder.width=8",
    "--set", "pool.size=16", "--set", "views.size=8", "--set", "data.memory_gb=0.0000001", "--set", "data.cache=never",
    "--set", "train.monitor_every=0",
]  # fmt: skip


def test_a_blocked_read_does_not_hold_up_ctrl_c(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images", each=IMAGES // 2)
    script = tmp_path / "slow.py"
    script.write_text(SCRIPT.format(after=3 * IMAGES))
    command = [sys.executable, str(script), "pretrain", "cifar100.supsiam", "--data", str(folder), *WORDS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipe, run = subprocess.PIPE, tmp_path / "run"
    with subprocess.Popen([*command, "--out", str(run)], env=environment, cwd=ROOT, stdout=pipe, stderr=pipe,
                          text=True) as process:  # fmt: skip
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "BLOCKED" in line:
                break
        time.sleep(1.0)  # until all prefetching threads are blocked and the main thread waits
        process.send_signal(signal.SIGINT)
        at = time.monotonic()
        try:
            out, errors = process.communicate(timeout=30)
        finally:
            process.kill()
        seconds = time.monotonic() - at
    assert process.returncode == 130, (said, out, errors)
    assert seconds < 10  # 2 on a machine that does nothing else
    assert_mentions(out, "SIGINT", "second")
    assert_mentions(errors, "SIGINT", "saved", "--resume")
    assert list((run / "checkpoints").iterdir())
