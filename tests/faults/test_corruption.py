"""Every file that a run and the cache keep, damaged or replaced by something hostile: noticed or without effect.

The files are found by walking a finished and evaluated run and its cache, so a new kind of file needs a row in READERS.
Each one is used by a command that reads it, which may refuse it (exit code 2, one line that names it), warn and name
it, or give the result of the whole file; never another result in silence, an internal error, or a change elsewhere.
What is no such file at all must be refused by each reader for which READERS has no reason to accept it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supancl.runs.checkpoint import checkpoints, load_checkpoint
from supancl.runs.encoder_file import read_safetensors
from supancl.runs.provenance import content_digest
from tests.faults.commands import TRAIN, new_folder, ok, say
from tests.helpers import Said, assert_refused, class_folders, contents
from tests.test_safety import WRAPPINGS, Payload

TIMES = re.compile(r'"(seconds|images_per_second|step_seconds|memory|[a-z_]*seconds)": [^,}\n]*')  # differ in each run
LIVE = ("run", "cache")  # what is damaged


def flip_bit(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def link_to_mine(path: Path) -> None:
    path.unlink()
    path.symlink_to(base() / "mine" / "thesis.tex")


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


# name -> what damages the file
DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "a flipped bit": flip_bit,
    "a cut end": lambda path, chance: os.truncate(path, chance.randrange(1, path.stat().st_size)),
    "emptied": lambda path, chance: path.write_bytes(b""),
    "removed": lambda path, chance: path.unlink(),
    "a folder": lambda path, chance: make_folder(path),
    "a FIFO": lambda path, chance: make_fifo(path),
    "a link to the user's file": lambda path, chance: link_to_mine(path),
    "a pickle": lambda path, chance: path.write_bytes(WRAPPINGS["pickle 5"](Payload(base() / "mine" / "executed"))),
    "deep JSON": lambda path, chance: path.write_bytes(b'{"recipe":' + b"[" * 100_000),
    "control characters": lambda path, chance: path.write_text("x\x1b[2K\nsupancl: all is well\u202e,dog\n"),
}
HOSTILE = list(DAMAGES)[4:]  # no such file at all
SECONDS = 60  # a command that takes longer waits for something that never comes


@cache
def base() -> Path:
    """A folder with data, run, other (of another seed) and cache."""
    root = new_folder("corruption")
    class_folders(root / "data", each=12)
    (root / "mine").mkdir()
    (root / "mine" / "thesis.tex").write_text("years of work")
    with use_cache(root / "cache"):
        for name, seed in (("run", 0), ("other", 1)):
            words = ("--data", root / "data", "--set", "data.cache=always", "--seed", seed, "--epochs", 2)
            ok("pretrain", "digits.supsiam", *TRAIN, *words, "--out", root / name)
            for protocol in ("knn", "linear", "variance"):
                ok("evaluate", protocol, root / name)
            ok("predict", root / name, "--data", root / "data", "--all", "--out", root / f"{name}.csv", "--no-cache")
    for name in LIVE:
        shutil.copytree(root / name, root / "saved" / name)
    return root


@contextlib.contextmanager
def use_cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("SUPANCL_CACHE")
    os.environ["SUPANCL_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("SUPANCL_CACHE") if before is None else os.environ.update(SUPANCL_CACHE=before)


def kept_files() -> list[str]:
    root = base() / "saved"
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]


# --- readers ----------------------------------------------------------------------------------------------------------

Outcome = tuple[Said, Any]  # what a command said, and the result to compare


def resume(root: Path) -> Outcome:
    """The last state, the weights and the log of a run that is resumed."""
    said = say("pretrain", "--resume", "--out", root / "run")
    if said.code:
        return said, None
    run = root / "run"
    states = [content_digest(load_checkpoint(path)) for path in checkpoints(run / "checkpoints")[-1:]]
    weights = [read_safetensors(run / f"{name}.safetensors")[1]["digest"] for name in ("encoder", "projector")]
    return said, (states, weights, TIMES.sub("", (run / "metrics.jsonl").read_text()))


def embed(*options: str) -> Callable[[Path], Outcome]:
    def read(root: Path) -> Outcome:
        out = root / "features.npz"
        said = say("embed", root / "run", "--data", root / "data", "--out", out, *options)
        if said.code:
            return said, None
        with np.load(out) as arrays:
            result = {name: arrays[name].tolist() for name in arrays.files}
        out.unlink()
        return said, result

    return read


def make_table(root: Path) -> Outcome:
    said = say("paper", "table", "8", root / "run")
    return said, said.out


def knn(root: Path) -> Outcome:
    said = say("evaluate", "knn", root / "run", "--no-cache")
    return said, said.out


def predict(root: Path) -> Outcome:
    out = root / "predicted.csv"
    said = say("predict", root / "run", "--data", root / "data", "--all", "--out", out, "--no-cache")
    if said.code:
        return said, None
    result = out.read_text()
    out.unlink()
    return said, result


Reader = Callable[[Path], Outcome]
WRITTEN_AGAIN, NOT_READ = "it is made again", "its content is not read"
# the files -> who reads them, and why he may accept what is no such file; "": he must refuse it
READERS: dict[str, dict[Reader, str]] = {
    "run/recipe.json": {resume: "", make_table: "", knn: ""},
    "run/metrics.jsonl": {resume: "lines that are no rows are left out, with a warning"},
    "run/checkpoints/*.pt": {resume: ""},
    "run/encoder.safetensors": {embed(): "", knn: "", resume: WRITTEN_AGAIN},
    "run/projector.safetensors": {embed("--layer", "projector"): "", resume: WRITTEN_AGAIN},
    "run/content.npz": {resume: "recipe.json has the digest; changed images would have no names"},
    "run/finished.json": {resume: "the checkpoint says the same"},
    "run/evaluate/*.json": {make_table: ""},
    "run/predict/*": {predict: WRITTEN_AGAIN},
    "run/tensorboard/*": {resume: NOT_READ},
    "run/.lock": {resume: NOT_READ},
    "cache/images-*/*.bin": {knn: WRITTEN_AGAIN, resume: WRITTEN_AGAIN},
    "cache/images-*/*.npz": {knn: WRITTEN_AGAIN, resume: WRITTEN_AGAIN},
    "cache/images-*/.lock": {knn: NOT_READ},
    "cache/features/*.safetensors": {embed(): WRITTEN_AGAIN},
}
# what cannot be noticed
ALLOWED = {
    ("run/recipe.json", "removed"): "evaluations without a run",
    ("run/checkpoints/*.pt", "removed"): "finished.json says that the run is finished",
    ("run/evaluate/*.json", "removed"): "a table has an empty cell",
}


def pattern_of(name: str) -> str:
    found = [pattern for pattern in READERS if fnmatch(name, pattern)]
    assert len(found) == 1, f"{name}: tell in READERS which commands read it"
    return found[0]


def restore() -> Path:
    """The root with the files as they were."""
    root = base()
    for name in LIVE:
        (root / name).unlink() if (root / name).is_symlink() or not (root / name).is_dir() else shutil.rmtree(
            root / name
        )
        shutil.copytree(root / "saved" / name, root / name)
    return root


@cache
def expected_result(reader: Callable[[Path], Outcome]) -> Any:
    said, result = reader(restore())
    assert said.code == 0, said
    return result


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", READERS)
def test_damage_is_noticed_or_without_effect(pattern, damage, monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(base() / "cache"))
    name = next(name for name in kept_files() if pattern_of(name) == pattern)
    may_differ = pattern == "run/metrics.jsonl" or (pattern, damage) in ALLOWED  # the rows of a log have no checksum
    for number, (reader, accepted_because) in enumerate(READERS[pattern].items()):
        must_refuse = damage in HOSTILE and not accepted_because
        if must_refuse or number == list(DAMAGES).index(damage) % len(READERS[pattern]):
            code = check(
                name, lambda path: DAMAGES[damage](path, random.Random(f"{name} {damage}")), reader, may_differ
            )
            assert code == 2 or not must_refuse, reader
    assert contents(base() / "mine") == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize(
    ("name", "reader"),
    [("", resume), ("", knn), ("/checkpoints", resume), ("/tensorboard", resume), ("/evaluate", knn)],
)
def test_what_is_no_folder_is_refused(name, reader, monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(base() / "cache"))
    expected_result(reader)
    for damage in ("a FIFO", "a link to the user's file", "a pickle"):
        path = restore() / f"run{name}"
        (base() / "run" / "finished.json").unlink()  # or a resumed run would not look at its checkpoints
        shutil.rmtree(path)
        path.touch()
        DAMAGES[damage](path, random.Random(0))
        assert_refused(reader(base())[0])
        assert contents(base() / "mine") == {"thesis.tex": b"years of work"}


def test_files_of_another_run_are_noticed(monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(base() / "cache"))
    for name, reader in (
        ("encoder.safetensors", embed()),
        ("projector.safetensors", resume),
        ("finished.json", resume),
    ):
        check(f"run/{name}", lambda path: shutil.copy(base() / "other" / path.name, path), reader, False)


def check(name: str, damage: Callable[[Path], object], reader: Callable[[Path], Outcome], may_differ: bool) -> int:
    """Refused, warned about, or the same result; the exit code."""
    expected = expected_result(reader)
    path = restore() / name
    damage(path)
    signal.alarm(SECONDS)  # ends this process
    said, result = reader(base())
    signal.alarm(0)
    assert "\x1b" not in said.err + said.out
    is_named = path.name in said.err or path.parent.name in said.err  # a cache is repaired as a whole
    assert not re.search("Traceback|internal error", said.err), said.err
    if said.code == 2:
        assert is_named, f"refused without its name: {said.err}"
        assert len([line for line in said.err.splitlines() if line.startswith("supancl: ")]) == 1, said.err
        return 2
    assert said.code == 0, said
    if not may_differ and not ("warning: " in said.err and is_named):
        assert result == expected or "damaged" in said.out, f"another result in silence; said: {said.err or 'nothing'}"
    return 0


def test_every_kept_file_has_readers():
    """A new kind of file in a run or a cache fails here until READERS says who reads it."""
    assert {pattern_of(name) for name in kept_files()} == set(READERS), "no such file is kept any more"
