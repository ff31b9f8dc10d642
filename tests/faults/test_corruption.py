"""Every file that a run and the cache keep, damaged: noticed, repaired or without effect.

The files are found by walking a finished and evaluated run and its cache, so a new kind of file needs a row in READERS.
Each damaged file is used by a command that reads it. It may refuse it (exit code 2, one line that names it), warn and
name it, or give the result of the undamaged file; never another result in silence or an internal error.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
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
from tests.files import Said, class_folders

TIMES = re.compile(r'"(seconds|images_per_second|step_seconds|memory|[a-z_]*seconds)": [^,}\n]*')  # differ in each run
LIVE = ("run", "cache")  # what is damaged


def flip_bit(content: bytes, chance: random.Random) -> bytes:
    position = chance.randrange(len(content))
    return content[:position] + bytes([content[position] ^ 1 << chance.randrange(8)]) + content[position + 1 :]


# name -> the damaged content; None: the file is removed
DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "a flipped bit": flip_bit,
    "a cut end": lambda content, chance: content[: chance.randrange(1, len(content))],
    "emptied": lambda content, chance: b"",
    "removed": lambda content, chance: None,
}


@cache
def base() -> Path:
    """A folder with data, run, other (of another seed) and cache."""
    root = new_folder("corruption")
    class_folders(root / "data", each=12)
    with use_cache(root / "cache"):
        for name, seed in (("run", 0), ("other", 1)):
            words = ("--data", root / "data", "--set", "data.cache=always", "--seed", seed, "--epochs", 2)
            ok("pretrain", "digits.supsiam", *TRAIN, *words, "--out", root / name)
            for protocol in ("knn", "linear", "variance"):
                ok("evaluate", protocol, root / name)
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


def evaluate(root: Path) -> Outcome:
    said = say("evaluate", "variance", root / "run", "--json", root / "result.json")
    if said.code:
        return said, None
    text = re.sub(r'"remarks": \[[^]]*\]', "", TIMES.sub("", (root / "result.json").read_text()))
    (root / "result.json").unlink()
    return said, text


def make_table(root: Path) -> Outcome:
    said = say("paper", "table", "8", root / "run")
    return said, said.out


READERS: dict[str, tuple[Callable[[Path], Outcome], ...]] = {
    "run/recipe.json": (resume, evaluate, make_table),
    "run/metrics.jsonl": (resume,),
    "run/checkpoints/*.pt": (resume,),
    "run/encoder.safetensors": (embed(), resume),
    "run/projector.safetensors": (embed("--layer", "projector"), resume),
    "run/content.npz": (resume,),
    "run/finished.json": (resume,),
    "run/evaluate/*.json": (make_table, evaluate),
    "run/tensorboard/*": (resume,),
    "run/.lock": (resume,),
    "cache/images-*/*.bin": (embed("--no-cache"), resume),
    "cache/images-*/*.npz": (embed("--no-cache"), resume),
    "cache/images-*/.lock": (embed("--no-cache"),),
    "cache/features/*.safetensors": (embed(),),
}
# what cannot be noticed
ALLOWED = {
    ("run/recipe.json", "removed"): "evaluations without a run",
    ("run/checkpoints/*.pt", "removed"): "finished.json says that the run is finished",
    ("run/metrics.jsonl", "removed"): "encoders are copied without their log",
    ("run/metrics.jsonl", "a flipped bit"): "rows have no checksum",
    ("run/metrics.jsonl", "a cut end"): "rows have no checksum",
    ("run/metrics.jsonl", "emptied"): "rows have no checksum",
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
        shutil.rmtree(root / name, ignore_errors=True)
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
    whole = (base() / "saved" / name).read_bytes()
    reader = READERS[pattern][list(DAMAGES).index(damage) % len(READERS[pattern])]
    content = DAMAGES[damage](whole, random.Random(f"{name} {damage}")) if whole else whole
    if content != whole:  # the content of a lock is a process number
        check(name, content, reader, (pattern, damage) in ALLOWED)


def test_files_of_another_run_are_noticed(monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(base() / "cache"))
    for name, reader in (
        ("encoder.safetensors", embed()),
        ("projector.safetensors", resume),
        ("finished.json", resume),
    ):
        check(f"run/{name}", (base() / "other" / name).read_bytes(), reader, False)


def check(name: str, content: bytes | None, reader: Callable[[Path], Outcome], may_differ: bool) -> None:
    """Refused, warned about, or the same result."""
    expected = expected_result(reader)
    path = restore() / name
    path.unlink() if content is None else path.write_bytes(content)
    said, result = reader(base())
    is_named = path.name in said.err or path.parent.name in said.err  # a cache is repaired as a whole
    assert not re.search("Traceback|internal error", said.err), said.err
    if said.code == 2:
        assert is_named, f"refused without its name: {said.err}"
        assert len([line for line in said.err.splitlines() if line.startswith("supancl: ")]) == 1, said.err
        return
    assert said.code == 0, said
    if not may_differ and not ("warning: " in said.err and is_named):
        assert result == expected or "damaged" in said.out, f"another result in silence; said: {said.err or 'nothing'}"


def test_every_kept_file_has_readers():
    """A new kind of file in a run or a cache fails here until READERS says who reads it."""
    assert {pattern_of(name) for name in kept_files()} == set(READERS), "no such file is kept any more"
