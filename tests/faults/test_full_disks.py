"""A disk that fills up at any moment: the command says so, what was written stays, --resume ends with the same bits.

The disk is a tmpfs of a few kilobytes in a namespace of its own, where most systems let every user mount one; elsewhere
the size of files is limited. This file is a script, too: it runs there.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from supancl.cli import main
from supancl.runs.folder import RunFolder
from tests.distributed.worker import ROOT
from tests.tiny import assert_same_bits, final_state

DISKS = 6
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


def test_a_run_on_a_full_disk_says_so_and_ends_with_the_same_bits_once_there_is_room():
    prefix = MAY_MOUNT if may_mount() else []
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.faults.test_full_disks", *["limit"][: not prefix]], cwd=ROOT,
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("was full") > DISKS / 2


def run_main(*words: object) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        return main([str(word) for word in words]), errors.getvalue()


class Disk:
    """A tmpfs of some kilobytes."""

    def __init__(self, place: Path, kilobytes: int) -> None:
        self.place, self.kilobytes = place, kilobytes

    def __enter__(self) -> Disk:
        self.mount(f"size={self.kilobytes}k")
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", str(self.place)], check=True)

    def mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "disk", str(self.place)], check=True)

    def make_room(self) -> None:
        self.mount("size=100000k,remount")


class Limit(Disk):
    """A limit for each file, where no disk can be mounted."""

    def __enter__(self) -> Limit:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        self.set_limit(self.kilobytes * 1024 // 3)  # a run has three large files
        return self

    def __exit__(self, *error: object) -> None:
        self.make_room()

    def make_room(self) -> None:
        self.set_limit(resource.RLIM_INFINITY)

    def set_limit(self, nbytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))


def try_disk(disk: Disk, expected: dict[str, torch.Tensor]) -> None:
    with disk:
        folder = disk.place / "run"
        code, said = run_main(*PRETRAIN, folder)
        assert code in (0, 2), (disk.kilobytes, code, said)
        if code == 2:
            line = said.strip().splitlines()[-1]
            assert "No space left" in line or "File too large" in line, (disk.kilobytes, said)
            assert "Traceback" not in said
            print(f"{disk.kilobytes} kB: the disk was full: {line}")
            if (folder / "recipe.json").exists():
                RunFolder(folder).read_recipe()
        disk.make_room()
        assert run_main(*PRETRAIN, folder) == (0, ""), disk.kilobytes
        assert_same_bits(expected, final_state(folder))


def try_disks(kind: type[Disk]) -> None:
    torch.set_num_threads(1)
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        place, whole = Path(name) / "disk", Path(name) / "whole"
        place.mkdir()
        assert run_main(*PRETRAIN, whole)[0] == 0
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file()) // 1024
        for number in range(DISKS):  # from nearly nothing to nearly enough
            kilobytes = 8 + int((number + chance.random()) / DISKS * size)
            try_disk(kind(place, kilobytes), final_state(whole))


if __name__ == "__main__":
    try_disks(Limit if sys.argv[1:] == ["limit"] else Disk)
