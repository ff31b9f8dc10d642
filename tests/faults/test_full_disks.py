"""Files that can grow no further at any moment: the run says so, what was written stays, `--resume` ends with the same
bits once there is room.

A limit for the size of each file stands for a full disk; this file is a script, too, which runs under the limit.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from supancl.runs.folder import RunFolder
from tests.distributed.worker import ROOT
from tests.faults.commands import say
from tests.tiny import assert_same_bits, final_state

LIMITS = 6
PRETRAIN = ("pretrain", "digits.supsiam", "--epochs", "2", "--batch-size", "16", "--checkpoint-every", "2", "--device",
            "cpu", "--set", "data.limit=96", "--set", "encoder.width=8", "--set", "train.log_every=1",
            "--resume", "--out")  # fmt: skip


def test_a_run_on_a_full_disk_says_so_and_ends_with_the_same_bits_once_there_is_room():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.test_full_disks"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("was full") > LIMITS / 2


def set_limit(nbytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))


def try_limit(folder: Path, nbytes: int, expected: dict[str, torch.Tensor]) -> None:
    set_limit(nbytes)
    said = say(*PRETRAIN, folder)
    set_limit(resource.RLIM_INFINITY)
    assert said.code in (0, 2), (nbytes, said)
    if said.code == 2:
        line = said.err.strip().splitlines()[-1]
        assert "File too large" in line, (nbytes, said)
        assert "Traceback" not in said.err
        print(f"{nbytes} bytes: the disk was full: {line}")
        if (folder / "recipe.json").exists():
            RunFolder(folder).read_recipe()
    again = say(*PRETRAIN, folder)
    assert (again.code, again.err) == (0, ""), nbytes
    assert_same_bits(expected, final_state(folder))


if __name__ == "__main__":
    torch.set_num_threads(1)
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        assert say(*PRETRAIN, whole).code == 0
        largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        for number in range(LIMITS):  # from nearly nothing to nearly enough
            nbytes = 2000 + int((number + chance.random()) / LIMITS * largest)
            try_limit(Path(name) / f"run {number}", nbytes, final_state(whole))
