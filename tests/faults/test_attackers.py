"""Hostile things in place of every file that a command opens: each is refused within seconds, and nothing else happens.

ENTRIES lists the files that a user names or that lie in a folder from a stranger, with a command that opens each.
HOSTILE lists what may lie there instead. Every pair must end within seconds, with exit code 2 and one line, or with 0
where the file is not needed; without control characters. No code of the file runs, and nothing outside the command's
own folders changes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from supancl.recipes.plugins import LOADED_FILES
from supancl.runs.checkpoint import checkpoints
from tests.detection.drawn import narrow_resnet18, write_coco, write_place
from tests.detection.test_command import TINY as TINY_DETECTOR
from tests.faults.commands import TRAIN, new_folder, ok, say
from tests.files import Said, archive, class_folders, contents, picture, table
from tests.test_received import EPS, make_fifo, make_link_to_device, png, shard, sparse_tar
from tests.test_safety import WRAPPINGS, Payload

SECONDS = 20  # a command that takes longer hangs
FORGED = "x\x1b[2K\nsupancl: all is well\u202e"  # a name that erases our line and writes its own
OWN_FOLDERS = ("run", "detector", "out", "cache")  # where commands may write

# --- what lies there --------------------------------------------------------------------------------------------------


def _content(make: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(make())


def bomb() -> bytes:
    """A zip of 20 KB with the names that our readers ask for, each of 4 MB that claim to be 10 GB."""
    file = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**10,)})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name in ("train_images.npy", "train_labels.npy", "values.npy", "stamps.npy", "archive/data.pkl"):
            made.writestr(name, header.getvalue() + bytes(2**22))
    return file.getvalue()


def link_to_mine(path: Path) -> None:
    path.symlink_to(base() / "mine" / "thesis.tex")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a FIFO": make_fifo,
    "a device": make_link_to_device,
    "a folder": lambda path: path.mkdir(),
    "a link to nowhere": lambda path: path.symlink_to(base() / "mine" / "new"),
    "a link to the user's file": link_to_mine,
    "a pickle": _content(lambda: WRAPPINGS["pickle 2"](Payload(base() / "mine" / "executed"))),
    "a pickle in a zip": _content(lambda: WRAPPINGS["zip"](Payload(base() / "mine" / "executed"))),
    "an EPS": _content(lambda: EPS),
    "deep JSON": _content(lambda: b'{"recipe":' + b"[" * 100_000),
    "a long number": _content(lambda: b"9" * 5_000),
    "an empty file": _content(lambda: b""),
    "a sparse tar": sparse_tar,
    "a bomb": _content(bomb),
    "control characters": _content(lambda: f"path,label\n{FORGED}.png,cat\n\x1b]0;x\x07,dog\n".encode()),
    "a safetensors header of control characters": _content(
        lambda: (64).to_bytes(8, "little") + b'{"__metadata__":{"kind":"\\u001b[2K\\n"}}'.ljust(64)
    ),
}


# --- where ------------------------------------------------------------------------------------------------------------

PRETRAIN = " ".join(("pretrain digits.supsiam", *TRAIN, "--out out"))
RESUME = "pretrain --resume --out run"
TABLE = "paper table 1 run"
KNN = "evaluate knn run --no-cache"
VOC = "voc/VOCdevkit/VOC2012"
SETTINGS = " ".join(("--iters 2 --batch-size 2 --device cpu", *TINY_DETECTOR, "--out"))
DETECT = f"--year 2012 {SETTINGS} out"
TRAIN_DETECTOR = f"detect train voc/encoder.safetensors --data voc {DETECT}"
CHECKPOINT = "run/checkpoints/step-000000001.pt"

# what is opened, and commands that open it
ENTRIES: dict[str, list[str]] = {
    "x.npz": [f"{PRETRAIN} --data x.npz", f"{KNN} --data x.npz", "embed run --data x.npz --out out.npz",
              "data show x.npz --out out"],
    "x.csv": [f"{PRETRAIN} --data x.csv", "data show x.csv --out out"],
    "x.tar": [f"{PRETRAIN} --data x.tar", f"{PRETRAIN} --data x.tar --set data.stream=true"],
    "pictures": [f"{PRETRAIN} --data pictures"],
    "data/cat/x.png": [f"{PRETRAIN} --data data", f"{KNN} --data data"],
    "table/x.png": [f"{PRETRAIN} --data table/x.csv"],
    "x.pt": [f"{PRETRAIN} --data data --init x.pt", "evaluate knn resnet18@x.pt --data data",
             "import x.pt --out out.safetensors"],
    "x.safetensors": [f"{PRETRAIN} --data data --init x.safetensors", "evaluate knn x.safetensors --data data",
                      "import x.safetensors --out out.safetensors", "detect eval x.safetensors --data voc"],
    "mine.py": ["recipes --plugin mine.py"],
    "run": [RESUME, KNN, TABLE, f"{PRETRAIN} --data data --init run"],
    "run/recipe.json": [RESUME, KNN, TABLE],
    "run/metrics.jsonl": [RESUME, KNN],
    "run/content.npz": [RESUME],
    "run/.lock": [RESUME],
    "run/tensorboard": [RESUME],
    "run/checkpoints": [RESUME],
    CHECKPOINT: [RESUME, "paper table 8 run"],
    "run/encoder.safetensors": [KNN, RESUME, TABLE],
    "run/projector.safetensors": [f"{KNN} --layer projector", RESUME],
    "run/evaluate": [KNN, TABLE],
    "run/evaluate/variance.json": [TABLE, "evaluate variance run --no-cache"],
    "coco.json": [f"detect train random:resnet18 --data coco.json --test coco.json {SETTINGS} out"],
    f"{VOC}/ImageSets/Main/train.txt": [TRAIN_DETECTOR],
    f"{VOC}/Annotations/000000.xml": [TRAIN_DETECTOR],
    f"{VOC}/JPEGImages/000000.jpg": [TRAIN_DETECTOR],
    "detector/detect.json": ["detect eval detector", "detect train --resume --out detector"],
    "detector/detector.safetensors": ["detect eval detector"],
    "detector/evaluate/detect.json": ["paper table 4 detector"],
}  # fmt: skip


@cache
def base() -> Path:
    """A folder with valid files under all these names, and the user's own in mine/."""
    root = new_folder("attackers")
    (root / "mine").mkdir()
    (root / "mine" / "thesis.tex").write_text("years of work")
    class_folders(root / "data", each=12)
    class_folders(root / "pictures")
    archive(root / "x.npz")
    picture(root / "table" / "0.png")
    table(root / "table" / "x.csv", "path,label", *["0.png,a", "0.png,b"] * 8, "x.png,a")
    table(root / "x.csv", "path,label", *["table/0.png,a", "table/0.png,b"] * 8)
    picture(root / "table" / "x.png")
    samples = [(("png", png(seed=i)), ("cls", b"%d" % (i % 2))) for i in range(20)]
    shard(root / "x.tar", {f"{i}.{end}": data for i, sample in enumerate(samples) for end, data in sample})
    torch.save({"a": torch.zeros(1)}, root / "x.pt")
    for name in ("mine.py", "x.safetensors"):
        (root / name).touch()
    write_coco(root / "coco.json", range(2))
    drawings = {"draw_detection_curves": lambda rows, path: None, "draw_detection_sheet": lambda *more: None}
    with narrow_resnet18(), contextlib.chdir(root), mock.patch.multiple("supancl.reports.pictures", **drawings):
        (root / "voc").mkdir()
        write_place(root / "voc", 4, 2)
        ok(*f"detect train voc/encoder.safetensors --data voc --year 2012 {SETTINGS} detector".split())
        ok("pretrain", "digits.supsiam", *TRAIN, "--data", "data", "--out", "run", "--set", "data.limit=null")
        ok("evaluate", "variance", "run")
    (newest,) = checkpoints(root / "run" / "checkpoints")
    newest.rename(root / CHECKPOINT)
    (root / "run" / "finished.json").unlink()  # or a resumed run would not look at its checkpoints
    for name in ("run", "detector"):
        shutil.copytree(root / name, root / "saved" / name)
    return root


class Hangs(BaseException):
    """Not an Exception: no handler of ours may take it for an unreadable file."""


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    except Hangs:
        raise AssertionError("it waits for something that never comes") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def placed(entry: str, hostile: str) -> Iterator[Path]:
    """The base with a hostile thing under this name; afterwards everything is as before."""
    root = base()
    path, aside = root / entry, root / "aside"
    for name in OWN_FOLDERS:
        for left in (root / name, *root.glob(f"{name}.*")):
            remove(left)
        if (root / "saved" / name).exists():
            shutil.copytree(root / "saved" / name, root / name)
    had_file = os.path.lexists(path)
    if had_file:
        path.rename(aside)
    HOSTILE[hostile](path)
    LOADED_FILES.clear()  # plugins, which are loaded once
    try:
        yield root
    finally:
        remove(path)
        if had_file:
            aside.rename(path)


def outside(root: Path) -> dict[str, bytes | None]:
    """Everything but the folders that the commands write to and the hostile thing; of the user's files the content."""
    own = {*OWN_FOLDERS, "__pycache__"}  # Python writes the latter next to a plugin
    names = {str(path): None for path in root.iterdir() if path.name.split(".")[0] not in own}
    return {**names, **contents(root / "mine")}


def check_line(said: Said) -> None:
    """Nothing moves the cursor, and what is refused is refused in one line."""
    hidden = {char for char in said.err + said.out if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")} - {"\n"}
    assert not hidden, repr(said.err)
    if said.code == 0:
        return
    lines = [line for line in said.err.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1 and lines[0].startswith("supancl: "), said.err  # noqa: PT018
    assert not re.search("internal error|Traceback", said.err), said.err
    assert said.code == 2, said.err


def pairs(entry: str) -> list[tuple[str, str]]:
    """Every fifth hostile thing, with the commands of the entry in turn."""
    number, commands = list(ENTRIES).index(entry), ENTRIES[entry]
    turns = range(number % 5, len(HOSTILE), 5)
    return [(list(HOSTILE)[turn], commands[(number + turn) % len(commands)]) for turn in turns]


@pytest.fixture
def place(monkeypatch) -> Iterator[Path]:
    monkeypatch.setenv("SUPANCL_CACHE", str(base() / "cache"))
    monkeypatch.chdir(base())
    with narrow_resnet18():
        yield base()


@pytest.mark.parametrize("entry", ENTRIES)
def test_hostile_things_are_refused(entry, place):
    failures = []
    for hostile, words in pairs(entry):
        with placed(entry, hostile) as root:
            before = outside(root)
            try:
                with alarm():
                    said = say(*words.split())
                check_line(said)
                assert outside(root) == before, "something outside was written"
            except AssertionError as error:
                failures.append(f"{hostile}: {words[-120:]}: {str(error)[:300]}")
    assert not failures, "\n".join(failures)
