"""Damaged and forged files: valid ones are changed at random and read again.

Each function of KINDS tries `count` inputs, the same ones for the same `seed`. A reader must accept an input or refuse
it with `BadInput`; anything else is a crash. From the repository:

    python -m tests.faults.fuzz --count 1000 [--seed 0] [--kind csv]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from supancl.cli import main
from supancl.config import parse_value
from supancl.core.encoders import EncoderSpec
from supancl.data.opening import open_source
from supancl.data.preparing import prepare_data
from supancl.data.splits import DataSpec
from supancl.errors import BadInput
from supancl.paper.tables.layouts import LAYOUTS
from supancl.paper.tables.pivot import fill, write
from supancl.paper.tables.results import read_entries
from supancl.recipes import recipe
from supancl.recipes.recipe import recipe_from_json
from supancl.runs.checkpoint import load_checkpoint
from supancl.runs.encoder_file import load_encoder, load_projector
from supancl.runs.folder import RunFolder
from supancl.runs.importing import open_encoder
from supancl.training.trainer import Trainer
from tests.detection.drawn import annotation
from tests.faults.changes import (
    NESTED,
    NUMBERS,
    PATHS,
    WEIGHTS,
    change_bytes,
    change_foreign,
    change_safetensors,
    change_state,
    change_text,
    changed_csv,
    changed_json_text,
    changed_npz,
    changed_tar,
    odd_value,
)
from tests.files import picture
from tests.tiny import tiny_data, tiny_recipe

Input = TypeVar("Input")


@dataclass
class Tally:
    """How many inputs were tried and accepted, and where the program failed: place -> first input."""

    tried: int = 0
    accepted: int = 0
    seconds: float = 0.0
    crashes: dict[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return 100 * self.accepted / max(self.tried, 1)

    def __str__(self) -> str:
        crashes = "".join(f"\n  {place}: {first}" for place, first in self.crashes.items())
        counts = f"{self.tried:,} tried, {self.rate:.0f}% accepted"
        return f"{counts}, {self.seconds:.0f} s, {len(self.crashes)} crashes{crashes}"


def place_of(error: BaseException) -> str:
    """The last line of the package that an error passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/supancl/" in frame.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside the package"


def try_each(count: int, make: Callable[[], Input], read: Callable[[Input], object]) -> Tally:
    """Read each input; `read` may only return, or raise BadInput with a message."""
    tally, started = Tally(), time.process_time()
    for number in range(count):
        content = make()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(content)
            tally.accepted += 1
        except BadInput as error:
            if not str(error).strip():
                tally.crashes.setdefault(place_of(error), f"input {number}: an empty message")
        except Exception as error:
            tally.crashes.setdefault(place_of(error), f"input {number}: {type(error).__name__}: {str(error)[:200]}")
        tally.tried += 1
    tally.seconds = time.process_time() - started
    return tally


# --- a valid run ------------------------------------------------------------------------------------------------------


@cache
def base_folder() -> Path:
    """A folder with a finished run and what is made from it; removed when the process ends."""
    memory = "/dev/shm"
    holder = tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    _holders.append(holder)
    return Path(holder.name)


_holders: list[tempfile.TemporaryDirectory[str]] = []
TRAIN = ("--epochs", "1", "--batch-size", "8", "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16",
         "--set", "data.limit=24", "--set", "heads.projector.hidden=[16]", "--set", "heads.projector.out=16",
         "--set", "heads.predictor.hidden=[8]")  # fmt: skip


@cache
def valid_run() -> dict[str, bytes]:
    """Every file of a finished and evaluated run by its name; tensorboard is left out."""
    run = base_folder() / "run"
    assert quiet_main("pretrain", "digits.supsiam", *TRAIN, "--out", run) == 0
    assert quiet_main("evaluate", "knn", run) == 0
    assert quiet_main("evaluate", "linear", run) == 0
    assert quiet_main("evaluate", "variance", run) == 0
    files = [path for path in run.rglob("*") if path.is_file() and "tensorboard" not in path.parts]
    # without checksums, which find every change
    contents = {str(path.relative_to(run)): path.read_bytes() for path in files if path.suffix not in ("", ".sha256")}
    return {name: without_digest(data) if name.endswith(".json") else data for name, data in contents.items()}


def without_digest(text: bytes) -> bytes:
    content = json.loads(text)
    del content["digest"]
    return json.dumps(content, indent=2).encode()


def quiet_main(*arguments: object) -> int:
    """The exit code of a command; what it prints is dropped."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            return int(leaving.code or 0)


def new_folder(name: str) -> Path:
    folder = base_folder() / name
    folder.mkdir(exist_ok=True)
    return folder


def write_run(folder: Path, **replaced: bytes | str) -> RunFolder:
    """A copy of the run in which the named files (by stem) have another content."""
    for name, content in valid_run().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = replaced.get(path.stem, content)
        path.write_bytes(new.encode("utf-8", "surrogatepass") if isinstance(new, str) else new)
    return RunFolder(folder)


# --- readers ----------------------------------------------------------------------------------------------------------


def try_recipes(seed: int, count: int) -> Tally:
    """recipe.json: recipe, classes, data and plugins."""
    random_state, folder = random.Random(seed), RunFolder(new_folder("recipes"))
    content = json.loads(valid_run()["recipe.json"])

    def read(text: str) -> None:
        folder.recipe_file.write_text(text)
        folder.read_plugins()
        read_recipe, _ = folder.read_recipe()
        folder.read_data()
        folder.read_versions()
        folder.record_setting(read_recipe, "train", "on_nan")

    return try_each(count, lambda: changed_json_text(content, random_state), read)


def try_overrides(seed: int, count: int) -> Tally:
    """--set FIELD=VALUE."""
    random_state, base = random.Random(seed), recipe("digits.supsiam")
    fields = {name: value for name, (value, _) in base.fields().items()}

    def override() -> tuple[str, str]:
        name = random_state.choice(list(fields))
        text = json.dumps(fields[name] if random_state.random() < 0.4 else odd_value(random_state))
        text = random_state.choice(NESTED) if random_state.random() < 0.05 else text
        text = change_text(text, random_state) if random_state.random() < 0.2 else text
        return change_text(name, random_state) if random_state.random() < 0.1 else name, text

    return try_each(
        count,
        lambda: dict(override() for _ in range(random_state.choice((1, 1, 2)))),
        lambda texts: base.with_set({name: parse_value(text) for name, text in texts.items()}),
    )


def log_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in valid_run()["metrics.jsonl"].splitlines()]


def try_logs(seed: int, count: int) -> Tally:
    """metrics.jsonl; a resumed run drops lines that are no rows."""
    random_state, folder = random.Random(seed), RunFolder(new_folder("logs"))
    rows = log_rows()
    trained = recipe_from_json(valid_run()["recipe.json"].decode(), "recipe.json")

    def make() -> bytes:
        lines = [
            changed_json_text(row, random_state) if random_state.random() < 0.3 else json.dumps(row) for row in rows
        ]
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
        return change_bytes(content, random_state) if random_state.random() < 0.2 else content

    def read(content: bytes) -> None:
        folder.metrics_file.write_bytes(content)
        folder.describe_early_end(trained)
        folder.keep_metrics_until(2)

    return try_each(count, make, read)


def try_evaluations(seed: int, count: int) -> Tally:
    """evaluate/*.json and metrics.jsonl in tables of the paper."""
    random_state, folder = random.Random(seed), write_run(new_folder("evaluations")).path
    results = {name: content for name, content in valid_run().items() if name.startswith("evaluate/")}
    rows = log_rows()

    def make() -> tuple[str, str, str]:
        name, line = random_state.choice(list(results)), random_state.randrange(len(rows))
        lines = [json.dumps(row) for row in rows]
        if random_state.random() < 0.3:
            lines[line] = changed_json_text(rows[line], random_state)
        log = "\n".join([*lines, ""])
        return name, changed_json_text(json.loads(results[name]), random_state), log

    def read(content: tuple[str, str, str]) -> None:
        name, text, log = content
        (folder / "metrics.jsonl").write_bytes(log.encode("utf-8", "surrogatepass"))
        (folder / name).write_text(text)
        try:
            filled = fill(random_state.choice(list(LAYOUTS.values())), read_entries([str(folder)]))
            write(filled, random_state.choice(["text", "markdown", "latex", "csv"])).encode()
        finally:
            (folder / name).write_bytes(results[name])

    return try_each(count, make, read)


def try_encoder_files(seed: int, count: int) -> Tally:
    """encoder.safetensors and projector.safetensors: header, metadata and tensors."""
    random_state, folder = random.Random(seed), new_folder("encoders")
    readers: dict[str, Callable[[Path], object]] = {
        "encoder.safetensors": load_encoder,
        "projector.safetensors": load_projector,
    }

    def make() -> tuple[str, bytes]:
        name = random_state.choice(list(readers))
        return name, change_safetensors(valid_run()[name], random_state)

    def read(content: tuple[str, bytes]) -> None:
        (folder / content[0]).write_bytes(content[1])
        readers[content[0]](folder)

    return try_each(count, make, read)


@cache
def tiny_trainer() -> Trainer:
    return Trainer(tiny_recipe(), tiny_data(), torch.device("cpu"))


def try_checkpoints(seed: int, count: int) -> Tally:
    """checkpoints/step-N.pt: the file and the state in it."""
    random_state, path = random.Random(seed), new_folder("checkpoints") / "step-000000001.pt"
    trainer = tiny_trainer()
    trainer.step = 1
    state = {"schema_version": 1, **copy.deepcopy(trainer.state())}

    def read(content: bytes) -> None:
        path.write_bytes(content)
        trainer.load(load_checkpoint(path))
        assert 0 <= trainer.step <= trainer.steps

    def make() -> bytes:
        if random_state.random() < 0.4:
            return change_bytes(as_file(state), random_state)
        return as_file(change_state(state, random_state))

    return try_each(count, make, read)


def as_file(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@cache
def foreign_states() -> list[dict[str, torch.Tensor]]:
    """A ResNet in MoCo's layout and a vision transformer; tensors share a value, so that files are small."""
    resnet = EncoderSpec("resnet18", size=32).build().body.state_dict()
    vit = EncoderSpec("timm:vit_tiny_patch16_224", size=32).build().body.state_dict()
    states = ({f"encoder_q.{name}": value for name, value in resnet.items()}, vit)
    return [{name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in state.items()}
            for state in states]  # fmt: skip


def try_imports(seed: int, count: int) -> Tally:
    """Checkpoints of other libraries: shapes, types and layouts of tensors, and their names."""
    random_state, path = random.Random(seed), new_folder("imports") / "other.pt"

    def make() -> tuple[str, Any]:
        number = random_state.randrange(2)
        name = ("resnet18@", "timm:vit_tiny_patch16_224@")[number] if random_state.random() < 0.3 else ""
        return name, change_foreign(foreign_states()[number], random_state)

    def read(content: tuple[str, Any]) -> None:
        path.write_bytes(as_file({"state_dict": content[1]}))
        open_encoder(f"{content[0]}{path}")

    return try_each(count, make, read)


# --- data -------------------------------------------------------------------------------------------------------------


@cache
def pictures() -> Path:
    folder = new_folder("pictures")
    for i in range(6):
        picture(folder / f"{i}.png", seed=i)
    return folder


@cache
def image_bytes() -> bytes:
    return (pictures() / "0.png").read_bytes()


# name of a file -> its changed content
SOURCES: dict[str, Callable[[random.Random], bytes]] = {
    "table.csv": changed_csv,
    "weights.csv": partial(changed_csv, table=WEIGHTS),
    "paths.csv": partial(changed_csv, table=PATHS),
    "data.npz": changed_npz,
    "shard.tar": lambda random_state: changed_tar(image_bytes(), random_state),
}


def try_source(name: str, seed: int, count: int, **settings: Any) -> Tally:
    """A source of this name, opened as `pretrain` does."""
    random_state, path = random.Random(seed), pictures() / name

    def read(content: bytes) -> None:
        path.write_bytes(content)
        spec = DataSpec(source=str(path), cache="never", **settings)
        prepare_data(open_source(spec, 1), spec)

    return try_each(count, lambda: SOURCES[name](random_state), read)


def try_annotations(seed: int, count: int) -> Tally:
    """A folder in VOC's layout with a changed annotation, or a changed list of images."""
    random_state, folder = random.Random(seed), new_folder("voc")
    (folder / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
    (folder / "Annotations").mkdir(exist_ok=True)
    text = annotation([("disc", 1.0, 1.0, 5.0, 5.0), ("square", 2.0, 1.0, 5.0, 5.0)], (8, 8), [1])
    for i in range(6):
        picture(folder / "JPEGImages" / f"{i}.jpg", seed=i)
        (folder / "Annotations" / f"{i}.xml").write_text(text)
    names = "".join(f"{i}\n" for i in range(6))

    def make() -> tuple[bytes, bytes]:
        """The list of images, and the annotation of the first."""
        kind = random_state.random()
        if kind < 0.15:
            return change_text(names, random_state).encode(), text.encode()
        if kind < 0.4:
            return names.encode(), change_bytes(text.encode(), random_state)
        pieces = re.split("(>[^<]+<)", text)  # what is between tags has odd numbers
        number = random_state.randrange(1, len(pieces), 2)
        pieces[number] = f">{random_state.choice((*NUMBERS, '', 'cat', 'a/b', '-1', '1', '1', 'é'))}<"
        return names.encode(), "".join(pieces).encode()

    def read(content: tuple[bytes, bytes]) -> None:
        (folder / "ImageSets" / "Main" / "train.txt").write_bytes(content[0])
        (folder / "Annotations" / "0.xml").write_bytes(content[1])
        spec = DataSpec(source=str(folder), cache="never")
        prepare_data(open_source(spec, 1), spec)

    return try_each(count, make, read)


# name -> function, and its share of the inputs: cheap ones are tried more often
KINDS: dict[str, tuple[Callable[[int, int], Tally], float]] = {
    "recipe.json": (try_recipes, 0.18),
    "--set": (try_overrides, 0.25),
    "metrics.jsonl": (try_logs, 0.13),
    "evaluations": (try_evaluations, 0.03),
    "encoder files": (try_encoder_files, 0.1),
    "checkpoints": (try_checkpoints, 0.03),
    "imports": (try_imports, 0.002),
    "csv": (partial(try_source, "table.csv"), 0.04),
    "csv of weights": (partial(try_source, "weights.csv"), 0.02),
    "csv of paths": (partial(try_source, "paths.csv", hierarchy="paths"), 0.02),
    "voc": (try_annotations, 0.02),
    "npz": (partial(try_source, "data.npz"), 0.1),
    "tar": (partial(try_source, "shard.tar"), 0.076),
}


def run_kind(kind: str, seed: int, total: int) -> Tally:
    """Try this kind's share of `total` inputs."""
    function, share = KINDS[kind]
    return function(seed, max(1, round(share * total)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # a power cut is not what is tried here
    warnings.simplefilter("ignore")
    os.environ["SUPANCL_CACHE"] = str(base_folder() / "cache")
    for kind in [args.kind] if args.kind else KINDS:
        print(f"{kind:15} ", end="", flush=True)
        print(run_kind(kind, args.seed, args.count))
