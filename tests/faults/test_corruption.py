"""Every file that a run and the cache keep, damaged in every way: noticed, repaired or without effect.

The files are found by walking a finished and evaluated run and its cache, so a new kind of file needs a row in READERS.
Each damaged file is used by the commands that read it. A command may refuse it (exit code 2, one line that names it),
warn and name it, or give the result of the undamaged file. It never gives another result in silence, never ends with an
internal error, and never removes another file.
"""

from __future__ import annotations

import contextlib
import io
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

from supancl.cli import main
from supancl.runs.checkpoint import checkpoints, load_checkpoint
from supancl.runs.encoder_file import read_safetensors
from supancl.runs.provenance import content_digest
from tests.faults.fuzz import TRAIN, new_folder
from tests.files import Said, class_folders, contents
from tests.test_received import shard

BLOCK = 4096  # bytes: what a disk loses at once
TIMES = re.compile(r'"(seconds|images_per_second|step_seconds|memory|[a-z_]*seconds)": [^,}\n]*')  # differ in each run

REMARK = re.compile(
    r"^.*run: .*\b(not counted|was measured|damaged).*$", re.MULTILINE
)  # of a table, on what it leaves out

# --- damage -----------------------------------------------------------------------------------------------------------


def flip_bit(content: bytes, random_state: random.Random) -> bytes:
    position = random_state.randrange(len(content))
    return content[:position] + bytes([content[position] ^ 1 << random_state.randrange(8)]) + content[position + 1 :]


def cut_end(content: bytes, random_state: random.Random) -> bytes:
    return content[: random_state.randrange(1, len(content))]


def clear_block(content: bytes, random_state: random.Random) -> bytes:
    start = random_state.randrange(0, len(content), BLOCK)
    return content[:start] + bytes(min(BLOCK, len(content) - start)) + content[start + BLOCK :]


# name -> the damaged content; None: the file is removed. `swapped` takes the file of another run instead
DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "a flipped bit": flip_bit,
    "a cut end": cut_end,
    "emptied": lambda content, random_state: b"",
    "a cleared block": clear_block,
    "removed": lambda content, random_state: None,
}

LIVE = ("run", "cache")  # what is damaged

# --- a run, another one and their cache -------------------------------------------------------------------------------


@cache
def base() -> Path:
    """A folder with data, x.tar, run (seed 0), other (seed 1), streamed (a run of x.tar) and cache."""
    root = new_folder("corruption")
    class_folders(root / "data", each=12)
    images = sorted((root / "data").rglob("*.png"))
    files = [(("png", path.read_bytes()), ("cls", path.parent.name.encode())) for path in images]
    shard(root / "x.tar", {f"{i}.{end}": data for i, sample in enumerate(files) for end, data in sample})
    with use_cache(root / "cache"):
        for name, seed, source in (("run", 0, "data"), ("other", 1, "data"), ("streamed", 0, "x.tar")):
            storage = "data.stream=true" if source == "x.tar" else "data.cache=always"
            words = ("--data", root / source, "--set", storage, "--seed", seed, "--epochs", 2, "--out", root / name)
            ok("pretrain", "digits.supsiam", *TRAIN, *words)
            for protocol in ("knn", "linear", "variance"):
                ok("evaluate", protocol, root / name)
            ok("embed", root / name, "--data", root / source, "--out", root / f"{name}.npz")
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


def say(*words: object) -> Said:
    """A command's exit code and what it printed."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main([str(word) for word in words])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Said(code, out.getvalue(), errors.getvalue())


def ok(*words: object) -> str:
    said = say(*words)
    assert said.code == 0, said
    return said.out


def kept_files() -> list[str]:
    """Every file of the run and of the cache, and the digests, as names below the root."""
    root = base() / "saved"
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]


# --- readers ----------------------------------------------------------------------------------------------------------
# Each takes the folder with a damaged file, runs a command, and returns what it said and the result to compare.

Outcome = tuple[Said, Any]


def resume(root: Path) -> Outcome:
    """The last state, the weights and the log of a run that is resumed."""
    said = say("pretrain", "--resume", "--out", root / "run")
    if said.code:
        return said, None
    run = root / "run"
    newest = [load_checkpoint(path) for path in checkpoints(run / "checkpoints")[-1:]]
    state = {k: v for content in newest for k, v in content.items()}
    weights = [read_safetensors(run / f"{name}.safetensors")[1]["digest"] for name in ("encoder", "projector")]
    rows = TIMES.sub("", (run / "metrics.jsonl").read_text())
    return said, (content_digest(state), weights, rows)


def embed_run(*options: str, run: str = "run", source: str = "data") -> Callable[[Path], Outcome]:
    """Features of the run, as numbers."""

    def read(root: Path) -> Outcome:
        out = root / "features.npz"
        said = say("embed", root / run, "--data", root / source, "--out", out, *options)
        if said.code:
            return said, None
        with np.load(out) as arrays:
            result = {name: arrays[name].tolist() for name in arrays.files}
        out.unlink()
        return said, result

    return read


def evaluate(protocol: str, run: str = "run") -> Callable[[Path], Outcome]:
    """The result of an evaluation."""

    def read(root: Path) -> Outcome:
        said = say("evaluate", protocol, root / run, "--json", root / "result.json")
        if said.code:
            return said, None
        text = TIMES.sub("", (root / "result.json").read_text())
        text = re.sub(r'"remarks": \[[^]]*\]', "", text)  # repeat the warnings
        (root / "result.json").unlink()
        return said, text

    return read


def make_table(name: str) -> Callable[[Path], Outcome]:
    def read(root: Path) -> Outcome:
        said = say("paper", "table", name, root / "run")
        return said, said.out

    return read


def init_run(root: Path) -> Outcome:
    """The first state of a run that begins with the weights of this one."""
    new = root / "new"
    said = say("pretrain", "digits.supsiam", *TRAIN, "--data", root / "data", "--init", root / "run", "--out", new)
    if said.code:
        assert not new.exists()
        return said, None
    result = read_safetensors(new / "encoder.safetensors")[1]["digest"]
    shutil.rmtree(new)
    return said, result


# pattern of file names -> the readers
READERS: dict[str, tuple[Callable[[Path], Outcome], ...]] = {
    "run/recipe.json": (resume, embed_run(), evaluate("variance"), make_table("1"), make_table("8")),
    "run/metrics.jsonl": (resume, evaluate("knn"), make_table("1")),
    "run/checkpoints/*.pt": (resume, make_table("8")),
    "run/encoder.safetensors": (embed_run(), evaluate("variance"), init_run, resume),
    "run/projector.safetensors": (embed_run("--layer", "projector"), resume),
    "run/content.npz": (resume,),
    "run/finished.json": (resume, make_table("8")),
    "run/evaluate/*.json": (make_table("1"), make_table("8"), evaluate("knn"), evaluate("variance")),
    "run/tensorboard/*": (resume,),
    "run/.lock": (resume,),
    "cache/*px-*/*.bin": (embed_run("--no-cache"), evaluate("variance"), resume),
    "cache/*px-*/*.npz": (embed_run("--no-cache"), evaluate("variance"), resume),
    "cache/*px-*/.lock": (embed_run("--no-cache"),),
    "cache/features/*.safetensors": (embed_run(), evaluate("variance")),
    "cache/tars/*.zip": (embed_run(run="streamed", source="x.tar"), evaluate("knn", run="streamed")),
}


def pattern_of(name: str) -> str:
    found = [pattern for pattern in READERS if fnmatch(name, pattern)]
    assert len(found) == 1, f"{name}: tell in READERS which commands read it"
    return found[0]


def twin(name: str) -> bytes | None:
    """The same file of another run, source or encoder; None if there is none."""
    path = base() / "saved" / name
    others: list[Path] = []
    if name.startswith("run/tensorboard"):
        others = sorted((base() / "other" / "tensorboard").iterdir())
    elif name.startswith("run/"):
        others = [base() / "other" / name.removeprefix("run/")]
    else:
        group = path.parent if path.parent.name in ("features", "tars") else path.parent.parent
        others = [other for other in sorted(group.rglob(f"*{path.suffix}"))
                  if other != path and (path.parent == group or other.name == path.name)]  # fmt: skip
    whole = path.read_bytes()
    found = [content for other in others if other.exists() and (content := other.read_bytes()) != whole]
    return min(found, key=lambda content: abs(len(content) - len(whole)), default=None)


def restore() -> Path:
    """The root with the files as they were."""
    root = base()
    for name in LIVE:
        shutil.rmtree(root / name, ignore_errors=True)
        shutil.copytree(root / "saved" / name, root / name)
    return root


# --- the test ---------------------------------------------------------------------------------------------------------

# what cannot be noticed, or says so in its own way
ALLOWED = {
    ("run/recipe.json", "removed"): "a table has a row of its own, evaluations without a run, and says so",
    ("run/metrics.jsonl", "removed"): "encoders are often copied without their log; a table has no losses then",
    ("run/checkpoints/*.pt", "removed"): "finished.json says that the run is finished, and --resume that it keeps none",
    ("run/metrics.jsonl", "swapped"): "rows do not say of which run they are",
    ("run/metrics.jsonl", "a flipped bit"): "rows have no checksum",
    ("run/metrics.jsonl", "a cut end"): "rows have no checksum",
    ("run/metrics.jsonl", "a cleared block"): "rows have no checksum",
    ("run/metrics.jsonl", "emptied"): "a run whose log is empty is left out of tables",
    ("run/evaluate/*.json", "removed"): "a table has an empty cell, or names the other procedure that it took",
}


def damaged_contents(name: str, damage: str) -> list[bytes | None]:
    """The damaged form of a file; none if it equals the file."""
    whole = (base() / "saved" / name).read_bytes()
    if damage == "swapped":
        other = twin(name)
        return [] if other is None else [other]
    content = DAMAGES[damage](whole, random.Random(f"{name} {damage} 0")) if whole else whole
    return [] if content == whole else [content]


def trials(pattern: str, damage: str) -> Iterator[tuple[str, bytes | None, Callable[[Path], Outcome]]]:
    """Two files, their damaged content and a reader; the readers take turns."""
    turn, readers = list(DAMAGES).index(damage) if damage in DAMAGES else 0, READERS[pattern]
    for name in [name for name in kept_files() if pattern_of(name) == pattern][:2]:
        for content in damaged_contents(name, damage):
            yield name, content, readers[turn % len(readers)]
            turn += 1


@pytest.fixture
def run_cache(monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(base() / "cache"))


@pytest.mark.parametrize("damage", [*DAMAGES, "swapped"])
@pytest.mark.parametrize("pattern", READERS)
def test_damage_is_noticed_or_without_effect(pattern, damage, run_cache):
    failures, tried = [], 0
    for name, content, reader in trials(pattern, damage):
        tried += 1
        try:
            try_damage(name, content, reader, pattern, damage)
        except AssertionError as error:
            failures.append(f"{name}, {reader.__qualname__}: {str(error)[:400]}")
    assert not failures, "\n".join(failures)
    is_empty = pattern.endswith(".lock")  # its content is a process number
    assert tried or damage == "swapped" or is_empty, "no file was damaged"


def try_damage(name: str, content: bytes | None, reader: Callable[[Path], Outcome], pattern: str, damage: str) -> None:
    expected = expected_result(reader)
    root = restore()
    path = root / name
    path.unlink() if content is None else path.write_bytes(content)
    before = names_in(root)
    said, result = reader(root)
    check_outcome(said, result, expected, name, damage)
    lost = {file for file in before - names_in(root) if Path(file).with_suffix("") != Path(name).with_suffix("")}
    assert not lost, f"lost: {sorted(lost)}"


@cache
def expected_result(reader: Callable[[Path], Outcome]) -> Any:
    """The result with undamaged files."""
    said, result = reader(restore())
    assert said.code == 0, said
    assert "warning" not in said.err, said
    return result


def names_in(root: Path) -> set[str]:
    return {f"{name}/{file}" for name in LIVE for file in contents(root / name)}


def check_outcome(said: Said, result: Any, expected: Any, name: str, damage: str) -> None:
    """Refused, warned about, or the same result. Anything else fails."""
    file = Path(name).name
    folder = Path(name).parent.name if name.startswith("cache/") else file  # a cache is repaired as a whole
    names = (file, folder, *(["run/recipe.json"] if damage == "swapped" else []))
    is_named = any(word in said.err for word in names)
    assert "Traceback" not in said.err, said.err
    assert "internal error" not in said.err, said.err
    if said.code == 2:
        assert is_named, f"refused without its name: {said.err}"
        refusals = [line for line in said.err.splitlines() if line.startswith("supancl: ")]
        assert len(refusals) == 1, said.err
        return
    assert said.code == 0, said
    has_warned = ("warning: " in said.err and is_named) or REMARK.search(said.out)
    if not has_warned and (pattern_of(name), damage) not in ALLOWED:
        assert result == expected, f"another result in silence; said: {said.err or 'nothing'}"


def test_every_kept_file_has_readers(run_cache):
    """A new kind of file in a run or a cache fails here until READERS says who reads it."""
    found = {pattern_of(name) for name in kept_files()}
    assert found == set(READERS), "no such file is kept any more"
