"""A disk that fills up at any moment: the command says so, what was written stays, --resume ends with the same bits.

The disk is a tmpfs of a few kilobytes in a namespace of its own, where every user may mount one. This file is a script,
too: it runs there.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from supancl.cli import main
from supancl.weights.run_folder import RunFolder
from tests.distributed.worker import ROOT
from tests.tiny import assert_same_bits, final_state

FULL = os.environ.get("SUPANCL_FAULTS") == "full"
SEED = int(os.environ.get("SUPANCL_FAULTS_SEED", "0"))
DISKS = 40 if FULL else 6
PRETRAIN = ("pretrain", "digits.supsiam", "--epochs", "2", "--batch-size", "16", "--checkpoint-every", "2", "--device",
            "cpu", "--set", "data.limit=96", "--set", "encoder.width=8", "--set", "train.log_every=1",
            "--resume", "--out")  # fmt: skip
MAY_MOUNT = ["unshare", "--user", "--map-root-user", "--mount"]


def may_mount() -> bool:
    try:
        mounted = subprocess.run([*MAY_MOUNT, "mount", "-t", "tmpfs", "-o", "size=64k", "disk", "/mnt"], check=False)
    except FileNotFoundError:
        return False
    return mounted.returncode == 0


@pytest.mark.skipif(
    not may_mount(), reason="needs a namespace in which a tmpfs can be mounted (unshare --user --mount)"
)
def test_a_run_on_a_full_disk_says_so_and_ends_with_the_same_bits_once_there_is_room():
    done = subprocess.run(
        [*MAY_MOUNT, sys.executable, "-m", "tests.faults.test_full_disks"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("was full") > DISKS / 2


def run_main(*words: object) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        return main([str(word) for word in words]), errors.getvalue()


def mount(place: Path, kilobytes: int, *flags: str) -> None:
    options = ",".join([f"size={kilobytes}k", *flags])
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "disk", str(place)], check=True)


def try_disk(place: Path, kilobytes: int, expected: dict[str, torch.Tensor]) -> None:
    mount(place, kilobytes)
    folder = place / "run"
    code, said = run_main(*PRETRAIN, folder)
    assert code in (0, 2), (kilobytes, code, said)
    if code == 2:
        line = said.strip().splitlines()[-1]
        assert "No space left" in line or "free" in line, (kilobytes, said)
        assert "Traceback" not in said
        print(f"{kilobytes} kB: the disk was full: {line}")
        if (folder / "recipe.json").exists():
            RunFolder(folder).read_recipe()
    mount(place, 100_000, "remount")
    assert run_main(*PRETRAIN, folder) == (0, ""), kilobytes
    assert_same_bits(expected, final_state(folder))
    subprocess.run(["umount", str(place)], check=True)


def try_disks() -> None:
    torch.set_num_threads(1)
    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name:
        place, whole = Path(name) / "disk", Path(name) / "whole"
        place.mkdir()
        assert run_main(*PRETRAIN, whole)[0] == 0
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file()) // 1024
        for number in range(DISKS):  # from nearly nothing to nearly enough
            try_disk(place, 8 + int((number + chance.random()) / DISKS * size), final_state(whole))


if __name__ == "__main__":
    try_disks()
