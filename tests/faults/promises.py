"""Promises that are new since 0.1.0, tried by commands alone, so that the same file tries any version.

    python -m tests.faults.promises [SRC]        # SRC: the src folder of another version

Each scenario makes its own mess in a folder with a small finished run, and answers whether the promise was kept. 0.1.0
is commit 8552e40 (`git worktree add DIR 8552e40`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

SRC = Path(__file__).parents[2] / "src"
TRAIN = ["--epochs", "2", "--batch-size", "4", "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16",
         "--set", "train.monitor_every=0"]  # fmt: skip
LONGEST = 120.0  # seconds of a command; a hang is a broken promise


class Said(NamedTuple):
    code: int | None  # None: it hung
    text: str

    @property
    def is_refusal(self) -> bool:
        return self.code == 2 and "Traceback" not in self.text


class Place:
    """A folder with data/, and run/ trained on it by the version in `src`."""

    def __init__(self, folder: Path, src: Path) -> None:
        self.folder, self.src = folder, src
        self.run, self.data = folder / "run", folder / "data"
        for number in range(24):
            self.picture(self.data / ("cat", "dog")[number % 2] / f"{number:02}.png", number)

    def picture(self, path: Path, seed: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8), np.uint8)).save(path)

    def start(self, *words: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.src), "OMP_NUM_THREADS": "1",
                       "SUPANCL_CACHE": str(self.folder / "cache")}  # fmt: skip
        # under nohup SIGHUP would be ignored
        code = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); from supancl.cli import main"
        command = [sys.executable, "-c", f"{code}; sys.exit(main())"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *map(str, words)], cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True
        )

    def call(self, *words: object) -> Said:
        process = self.start(*words)
        try:
            out, error = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Said(None, "")
        return Said(process.returncode, out + error)

    def train(self, *words: object) -> Said:
        """Train with both checkpoints kept, as 0.1.0 does."""
        keep = ("--set", "train.keep=all") if (self.src / "supancl" / "weights" / "run_end.py").exists() else ()
        return self.call("pretrain", "digits.supsiam", *TRAIN, *keep, "--data", "data", "--out", "run", *words)

    def stop_half_way(self) -> None:
        """Pretend that the run ended at its first epoch: only its first checkpoint is left."""
        stored = sorted((self.run / "checkpoints").glob("step-*.pt"))
        for path in (*stored[1:], self.run / "finished.json"):
            path.unlink(missing_ok=True)
            path.with_suffix(".pt.sha256").unlink(missing_ok=True)

    def resume(self) -> Said:
        return self.call("pretrain", "--resume", "--out", "run")


# --- scenarios: does the promise hold? --------------------------------------------------------------------------------


def replaced_image(place: Place) -> bool:
    place.train()
    place.stop_half_way()
    for path in (place.data / "cat").iterdir():
        place.picture(path, 1000)
    return place.resume().is_refusal


def changed_setting(place: Place) -> bool:
    place.train()
    place.stop_half_way()
    content = json.loads((place.run / "recipe.json").read_text())
    content["recipe"]["optimizer"]["lr"] *= 3
    content.pop("digest", None)
    (place.run / "recipe.json").write_text(json.dumps(content))
    return place.resume().is_refusal


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def flipped_weight(place: Place) -> bool:
    place.train()
    flip(place.run / "encoder.safetensors", -3)
    said = place.call("embed", "run", "--data", "data", "--out", "f.npz")
    return said.is_refusal


def flipped_checkpoint(place: Place) -> bool:
    """A bit at each of seven places, most of them in weights or the optimizer's state."""
    place.train()
    place.stop_half_way()
    newest = sorted((place.run / "checkpoints").glob("step-*.pt"))[-1]
    newest.with_suffix(".pt.sha256").unlink(missing_ok=True)
    saved = shutil.copytree(place.run, place.folder / "saved")
    noticed = []
    for eighth in range(1, 8):
        shutil.rmtree(place.run)
        shutil.copytree(saved, place.run)
        flip(newest, newest.stat().st_size * eighth // 8)
        said = place.resume()
        noticed.append(said.is_refusal or "damaged" in said.text)
    return all(noticed)


def lost_rows(place: Place) -> bool:
    place.train("--set", "train.log_every=1")
    place.stop_half_way()
    log = place.run / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:1], *lines[3:]]))
    return "metrics.jsonl" in place.resume().text


def link_to_a_file_of_mine(place: Place) -> bool:
    mine = place.folder / "thesis.tex"
    mine.write_text("years of work")
    place.train()
    (place.run / ".lock").unlink(missing_ok=True)
    (place.run / ".lock").symlink_to(mine)
    place.resume()
    return mine.read_text() == "years of work"


def link_out_of_the_folder(place: Place) -> bool:
    place.train()
    place.stop_half_way()
    outside = place.folder / "outside.txt"
    (place.run / "metrics.jsonl").unlink()
    (place.run / "metrics.jsonl").symlink_to(outside)
    place.resume()
    return not outside.exists()


def fifo(place: Place) -> bool:
    os.mkfifo(place.folder / "x.csv")
    return place.call("pretrain", "digits.supsiam", "--data", "x.csv", "--out", "run").is_refusal


def other_format(place: Place) -> bool:
    """A file of a format that is not documented, under another name."""
    Image.new("RGB", (8, 8)).save(place.folder / "x.tga")
    (place.folder / "x.tga").rename(place.data / "cat" / "00.png")
    return place.train().is_refusal


def escapes(place: Place) -> bool:
    os.rename(place.data / "cat", place.data / "\x1b[2Kall is well")
    (place.data / "empty\x1b[31m").mkdir()
    said = place.train()
    return "\x1b" not in said.text


def deep_json(place: Place) -> bool:
    place.train()
    (place.run / "recipe.json").write_text("[" * 100_000)
    return place.resume().is_refusal


def many_brackets(place: Place) -> bool:
    return place.train("--set", f"loss.alpha={'[' * 5000}").is_refusal


def unpickled_cache(place: Place) -> bool:
    return place.call("pretrain", "cifar10.supsiam", "--data", "torchvision:LSUN@.", "--out", "run").is_refusal


def hang_up(place: Place) -> bool:
    process = place.start("pretrain", "digits.supsiam", *TRAIN, "--epochs", "5000", "--data", "data", "--out", "run")
    until = time.monotonic() + LONGEST
    while not list(place.run.glob("checkpoints/step-*.pt")) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=LONGEST)
    return process.returncode == 129


SCENARIOS: dict[str, Callable[[Place], bool]] = {
    "images replaced under the same names": replaced_image,
    "a changed setting in recipe.json": changed_setting,
    "a flipped weight of the encoder": flipped_weight,
    "a flipped bit of a checkpoint without its .sha256": flipped_checkpoint,
    "rows lost from metrics.jsonl": lost_rows,
    "a link .lock to a file of mine": link_to_a_file_of_mine,
    "a link metrics.jsonl to nowhere": link_out_of_the_folder,
    "a FIFO in place of a table": fifo,
    "an image of another format": other_format,
    "escape sequences in class names": escapes,
    "recipe.json nested too deep": deep_json,
    "--set with 5,000 brackets": many_brackets,
    "a source that unpickles a file": unpickled_cache,
    "SIGHUP": hang_up,
}


def try_promise(name: str, src: Path = SRC) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return SCENARIOS[name](Place(Path(folder), src))


if __name__ == "__main__":
    source = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SRC
    for scenario in SCENARIOS:
        print(f"{'kept' if try_promise(scenario, source) else 'BROKEN':6} {scenario}", flush=True)
