"""Damaged and forged files: valid ones are changed at random and read again.

Each function of KINDS tries `count` inputs, the same ones for the same `seed`. A reader must accept an input or refuse
it with `BadInput`; anything else is raised with the number of the input. From the repository:

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
import struct
import tarfile
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supancl.cli import main
from supancl.config import parse_value
from supancl.core.encoders import EncoderSpec
from supancl.data.opening import open_source
from supancl.data.splits import DataSpec, prepare_data
from supancl.errors import BadInput
from supancl.paper.tables.cells import fill
from supancl.paper.tables.formats import FORMATS
from supancl.paper.tables.layouts import LAYOUTS
from supancl.paper.tables.runs import read_entries
from supancl.recipes import recipe
from supancl.recipes.recipe import recipe_from_json
from supancl.training.trainer import Trainer
from supancl.weights.checkpoint import load_checkpoint
from supancl.weights.encoder_file import load_encoder, load_projector
from supancl.weights.importing import open_encoder
from supancl.weights.run_folder import RunFolder
from tests.files import picture
from tests.tiny import tiny_data, tiny_recipe


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
        counts = f"{self.tried:,} tried, {self.rate:.0f}% accepted, {self.seconds:.0f} s"
        return f"{counts}, {len(self.crashes)} crashes{crashes}"


def place_of(error: BaseException) -> str:
    """The last line of the package that an error passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/supancl/" in frame.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside the package"


def try_each(inputs: Iterator[Callable[[], object]], count: int) -> Tally:
    """Read each input; a reader may only return or raise BadInput with one line."""
    tally, started = Tally(), time.process_time()
    for number in range(count):
        read = next(inputs)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read()
            tally.accepted += 1
        except BadInput as error:
            if not str(error).strip():
                tally.crashes.setdefault("an empty message", f"input {number}")
        except Exception as error:
            tally.crashes.setdefault(place_of(error), f"input {number}: {type(error).__name__}: {str(error)[:200]}")
        tally.tried += 1
    tally.seconds = time.process_time() - started
    return tally


# --- changes ----------------------------------------------------------------------------------------------------------

NUMBERS = (
    0,
    1,
    -1,
    -5,
    2,
    3,
    0.5,
    -0.5,
    1e30,
    1e308,
    10**30,
    2**31,
    2**63,
    10**300,
    5e-324,
    float("nan"),
    float("inf"),
)
ODD = (
    None,
    True,
    False,
    "",
    "x",
    "1",
    "nan",
    "-1",
    "\n",
    "\x1b[2K",
    "\ud800",
    [],
    {},
    [[]],
    {"": 0},
    [1, 2],
    ["a", None],
)
NESTED = (
    "[" * 5000,
    "[" * 900 + "]" * 900,
    '{"a":' * 3000,
    '{"a":' * 300 + "1" + "}" * 300,
    "9" * 5000,
    "-" * 50,
    "[1" * 200,
)


def odd_value(random_state: random.Random) -> Any:
    return copy.deepcopy(random_state.choice(NUMBERS if random_state.random() < 0.5 else ODD))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within nested dicts and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def change_json(content: Any, random_state: random.Random) -> Any:
    """A copy with one to three values replaced, removed, repeated, renamed or wrapped."""
    content = copy.deepcopy(content)
    for _ in range(random_state.choice((1, 1, 1, 2, 3))):
        path = random_state.choice(places(content))
        if not path:
            if random_state.random() < 0.05:
                return odd_value(random_state)
            continue
        parent = content
        for key in path[:-1]:
            parent = parent[key]
        _change_item(parent, path[-1], random_state)
    return content


def _change_item(parent: Any, key: Any, random_state: random.Random) -> None:
    change, value = random_state.randrange(6), parent[key]
    if change == 0:
        del parent[key]
    elif change == 1:
        parent[key] = [value]
    elif change == 2 and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    elif change == 3 and isinstance(value, (int, float)) and not isinstance(value, bool):
        parent[key] = random_state.choice((-value, value * 2, value + 1, str(value), float(value)))
    elif change == 4 and isinstance(value, str):
        parent[key] = change_text(value, random_state)
    else:
        parent[key] = odd_value(random_state)


def change_text(text: str, random_state: random.Random) -> str:
    position = random_state.randrange(len(text) + 1)
    piece = random_state.choice(("", "\0", "\n", '"', ",", "\x1b[31m", "\u202e", "=", "9" * 50, "é", "..", "/", "{}"))
    return text[:position] + piece + text[position + random_state.randrange(3) :]


def change_bytes(content: bytes, random_state: random.Random) -> bytes:
    """A copy with a few bytes flipped, a stretch removed, repeated or overwritten, or the end cut off."""
    data = bytearray(content)
    for _ in range(random_state.choice((1, 1, 2, 4))):
        if not data:
            break
        start = random_state.randrange(len(data))
        end = min(len(data), start + random_state.choice((1, 2, 8, 64)))
        change = random_state.randrange(5)
        if change == 0:
            data[start] ^= 1 << random_state.randrange(8)
        elif change == 1:
            del data[start:end]
        elif change == 2:
            data[start:start] = data[start:end]
        elif change == 3:
            data[start:end] = random_state.randbytes(end - start)
        else:
            del data[start:]
    return bytes(data)


def changed_json_text(content: Any, random_state: random.Random) -> str:
    """JSON with a changed value; now and then nested too deep, with a number of 5,000 digits, or damaged as text."""
    kind = random_state.random()
    if kind < 0.9:
        return json.dumps(change_json(content, random_state))
    text = json.dumps(content)
    if kind < 0.95:
        path = random_state.choice([path for path in places(content) if path])
        mark = "a mark to be replaced"
        marked = copy.deepcopy(content)
        parent = marked
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = mark
        return json.dumps(marked).replace(f'"{mark}"', random_state.choice(NESTED))
    return change_bytes(text.encode(), random_state).decode("utf-8", "replace")


# --- a valid run ------------------------------------------------------------------------------------------------------


@cache
def base_folder() -> Path:
    """A folder with a finished run and what is made from it; removed when the process ends."""
    holder = tempfile.TemporaryDirectory(prefix="fuzz-")
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
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.name != ".lock"}


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

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            text = changed_json_text(content, random_state)

            def read(text: str = text) -> None:
                folder.recipe_file.write_text(text)
                folder.read_plugins()
                read_recipe, _ = folder.read_recipe()
                folder.read_data()
                folder.record_setting(read_recipe, "train", "on_nan")

            yield read

    return try_each(inputs(), count)


def try_overrides(seed: int, count: int) -> Tally:
    """--set FIELD=VALUE."""
    random_state, base = random.Random(seed), recipe("digits.supsiam")
    fields = {name: value for name, (value, _) in base.fields().items()}

    def one() -> tuple[str, str]:
        name = random_state.choice(list(fields))
        text = json.dumps(fields[name]) if random_state.random() < 0.4 else json.dumps(odd_value(random_state))
        text = random_state.choice(NESTED) if random_state.random() < 0.05 else text
        if random_state.random() < 0.2:
            text = change_text(text, random_state)
        return (change_text(name, random_state) if random_state.random() < 0.1 else name), text

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            overrides = dict(one() for _ in range(random_state.choice((1, 1, 2))))
            yield lambda overrides=overrides: base.with_set(
                {name: parse_value(text) for name, text in overrides.items()}
            )

    return try_each(inputs(), count)


def try_logs(seed: int, count: int) -> Tally:
    """metrics.jsonl; broken lines are skipped, so every input is accepted."""
    random_state, folder = random.Random(seed), RunFolder(new_folder("logs"))
    rows = [json.loads(line) for line in valid_run()["metrics.jsonl"].splitlines()]
    trained = recipe_from_json(valid_run()["recipe.json"].decode(), "recipe.json")

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            lines = [
                changed_json_text(row, random_state) if random_state.random() < 0.3 else json.dumps(row) for row in rows
            ]
            content = "\n".join(lines).encode("utf-8", "surrogatepass")
            content = change_bytes(content, random_state) if random_state.random() < 0.2 else content

            def read(content: bytes = content) -> None:
                folder.metrics_file.write_bytes(content)
                folder.describe_early_end(trained)
                folder.keep_metrics_until(2)

            yield read

    return try_each(inputs(), count)


def try_evaluations(seed: int, count: int) -> Tally:
    """evaluate/*.json and metrics.jsonl in tables of the paper."""
    random_state = random.Random(seed)
    folder = write_run(new_folder("evaluations")).path
    results = {name: content for name, content in valid_run().items() if name.startswith("evaluate/")}
    rows = valid_run()["metrics.jsonl"].decode().splitlines()
    layouts = list(LAYOUTS.values())

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            name = random_state.choice(list(results))
            text = changed_json_text(json.loads(results[name]), random_state)
            line = random_state.randrange(len(rows))
            row = changed_json_text(json.loads(rows[line]), random_state) if random_state.random() < 0.3 else rows[line]
            layout, form = random_state.choice(layouts), random_state.choice(list(FORMATS))

            def read(name=name, text=text, row=row, line=line, layout=layout, form=form) -> None:  # type: ignore[no-untyped-def]
                log = "\n".join([*rows[:line], row, *rows[line + 1 :]])
                (folder / "metrics.jsonl").write_bytes(log.encode("utf-8", "surrogatepass"))
                (folder / name).write_text(text)
                try:
                    FORMATS[form](fill(layout, read_entries([str(folder)]))).encode()
                finally:
                    (folder / name).write_bytes(results[name])

            yield read

    return try_each(inputs(), count)


def try_encoder_files(seed: int, count: int) -> Tally:
    """encoder.safetensors and projector.safetensors: header, metadata and tensors."""
    random_state, folder = random.Random(seed), new_folder("encoders")
    names = {"encoder.safetensors": load_encoder, "projector.safetensors": load_projector}

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            name = random_state.choice(list(names))
            content = change_safetensors(valid_run()[name], random_state)

            def read(name: str = name, content: bytes = content) -> None:
                (folder / name).write_bytes(content)
                names[name](folder)

            yield read

    return try_each(inputs(), count)


def change_safetensors(content: bytes, random_state: random.Random) -> bytes:
    """A file with changed metadata, a changed header, or changed bytes."""
    length = struct.unpack("<Q", content[:8])[0]
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    kind = random_state.random()
    if kind < 0.6:
        metadata = {key: _decode(value) for key, value in header["__metadata__"].items()}
        changed = change_json(metadata, random_state)
        if isinstance(changed, dict):
            if random_state.random() < 0.05:
                changed[random_state.choice(list(metadata))] = random_state.choice(NESTED)
            header["__metadata__"] = {str(k): v if isinstance(v, str) else json.dumps(v) for k, v in changed.items()}
    elif kind < 0.85:
        header = change_json(header, random_state)
    else:
        return change_bytes(content, random_state)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@cache
def tiny_trainer() -> Trainer:
    return Trainer(tiny_recipe(), tiny_data(), torch.device("cpu"))


def try_checkpoints(seed: int, count: int) -> Tally:
    """checkpoints/step-N.pt: the file and the state in it."""
    random_state, path = random.Random(seed), new_folder("checkpoints") / "step-000000001.pt"
    trainer = tiny_trainer()
    trainer.step = 1
    state = {"schema_version": 1, **copy.deepcopy(trainer.state())}
    content = io.BytesIO()
    torch.save(state, content)

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            if random_state.random() < 0.4:
                data = change_bytes(content.getvalue(), random_state)
            else:
                buffer = io.BytesIO()
                torch.save(change_state(state, random_state), buffer)
                data = buffer.getvalue()

            def read(data: bytes = data) -> None:
                path.write_bytes(data)
                trainer.load(load_checkpoint(path))
                assert 0 <= trainer.step <= trainer.steps

            yield read

    return try_each(inputs(), count)


def odd_tensor(value: torch.Tensor, random_state: random.Random) -> Any:
    """The tensor with another shape, type or layout."""
    dense = value if value.is_floating_point() else value.float()
    makers: tuple[Callable[[], Any], ...] = (
        lambda: value[..., :0], lambda: value.reshape(-1), lambda: value[None], lambda: value.to("meta"),
        lambda: dense.to_sparse(), lambda: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        lambda: value.to(torch.complex64), lambda: value.to(torch.int8), lambda: value.double(),
        lambda: torch.full_like(value, 1) * float("nan"), lambda: value.to(torch.bool), lambda: value.half(),
        lambda: torch.zeros(()), lambda: torch.zeros(0), lambda: value.expand(2, *value.shape), lambda: "a text",
        lambda: dense.bfloat16(), lambda: torch.zeros(1).expand(10**6),
    )  # fmt: skip
    try:
        return random_state.choice(makers)()
    except (RuntimeError, IndexError):
        return value


def change_state(state: dict[str, Any], random_state: random.Random) -> Any:
    """A copy of nested dicts of tensors with one to three values replaced or removed."""
    state = _copy_containers(state)
    for _ in range(random_state.choice((1, 1, 2, 3))):
        path = random_state.choice([path for path in places(state) if path] or [()])
        if not path:
            return {}
        parent: Any = state
        for key in path[:-1]:
            parent = parent[key]
        value = parent[path[-1]]
        if random_state.random() < 0.15:
            del parent[path[-1]]
        elif isinstance(value, torch.Tensor) and random_state.random() < 0.8:
            parent[path[-1]] = odd_tensor(value, random_state)
        else:
            parent[path[-1]] = odd_value(random_state)
    return state


def _copy_containers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy_containers(item) for key, item in value.items()}
    return [_copy_containers(item) for item in value] if isinstance(value, list) else value


@cache
def foreign_states() -> list[dict[str, torch.Tensor]]:
    """Small stand-ins for other libraries' checkpoints; most tensors of the large ones have no elements to store."""
    resnet = {
        f"encoder_q.{name}": value for name, value in EncoderSpec("resnet18", size=32).build().body.state_dict().items()
    }
    vit = EncoderSpec("timm:vit_tiny_patch16_224", size=32).build().body.state_dict()
    return [{name: value.half()[..., :1].expand(value.shape) if value.ndim else value for name, value in state.items()}
            for state in (resnet, dict(vit))]  # fmt: skip


def try_imports(seed: int, count: int) -> Tally:
    """Checkpoints of other libraries: shapes, types and layouts of tensors, and their names."""
    random_state, path = random.Random(seed), new_folder("imports") / "other.pt"

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            number = random_state.randrange(2)
            state = change_foreign(foreign_states()[number], random_state)
            name = ("resnet18@", "timm:vit_tiny_patch16_224@")[number] if random_state.random() < 0.3 else ""

            def read(state: Any = state, name: str = name) -> None:
                torch.save({"state_dict": state}, path)
                open_encoder(f"{name}{path}")

            yield read

    return try_each(inputs(), count)


def change_foreign(state: dict[str, torch.Tensor], random_state: random.Random) -> dict[str, Any]:
    """The state with a few changed tensors, of which those that decide the architecture are likely."""
    changed: dict[str, Any] = dict(state)
    endings = "conv1.weight", "patch_embed.proj.weight", "pos_embed", "cls_token", "norm.weight", "running_mean"
    telling = [name for name in state if name.endswith(endings)]
    for _ in range(random_state.choice((1, 1, 2))):
        name = random_state.choice(telling if random_state.random() < 0.7 else list(state))
        if random_state.random() < 0.15:
            changed.pop(name, None)
        elif random_state.random() < 0.5:
            shape = [random_state.choice((0, 1, 2, 3, 5, 16, 64, 192, 384)) for _ in range(random_state.randrange(6))]
            changed[name] = torch.zeros(()).expand(shape)
        else:
            changed[name] = odd_tensor(state[name], random_state)
    return changed


# --- data -------------------------------------------------------------------------------------------------------------


def read_data(path: Path) -> None:
    """Open a source as `pretrain` does."""
    spec = DataSpec(source=str(path), cache="never")
    prepare_data(open_source(spec, 1), spec)


@cache
def pictures() -> Path:
    folder = new_folder("pictures")
    for i in range(6):
        picture(folder / f"{i}.png", seed=i)
    return folder


def try_csv(seed: int, count: int) -> Tally:
    """Tables of paths, labels and splits."""
    random_state, path = random.Random(seed), pictures() / "table.csv"
    valid = [["path", "label", "split"], *([f"{i}.png", str(i % 2), "train" if i < 5 else "test"] for i in range(6))]

    def text() -> bytes:
        cells = copy.deepcopy(valid)
        for _ in range(random_state.choice((1, 1, 2))):
            row = random_state.choice(cells[random_state.random() < 0.9 :])
            column = random_state.choice((1, 1, 1, 2, 0))
            kind = random_state.random()
            if kind < 0.35:
                row[column] = str(random_state.choice((*NUMBERS, "", "cat", "9" * 5000, "é", "-1", "-1.0", "a b")))
            elif kind < 0.7:
                row[column] = change_text(row[column], random_state)
            elif kind < 0.8:
                row.append("")
            elif kind < 0.9:
                cells.append(list(random_state.choice(cells)))
            else:
                row[column] = random_state.choice((row[column].upper(), f" {row[column]} ", f'"{row[column]}"'))
        content = "\n".join(",".join(row) for row in cells).encode("utf-8", "surrogatepass")
        return change_bytes(content, random_state) if random_state.random() < 0.15 else content

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            content = text()

            def read(content: bytes = content) -> None:
                path.write_bytes(content)
                read_data(path)

            yield read

    return try_each(inputs(), count)


def try_npz(seed: int, count: int) -> Tally:
    """Archives of arrays: types, shapes, values and the file itself."""
    random_state, path = random.Random(seed), new_folder("npz") / "data.npz"
    images, labels = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4), np.arange(20) % 2
    valid = {"train_images": images, "train_labels": labels, "test_images": images[:4], "test_labels": labels[:4],
             "class_names": np.array(["cat", "dog"])}  # fmt: skip

    def change_array(array: np.ndarray) -> np.ndarray:
        kinds: tuple[Callable[[], np.ndarray], ...] = (
            lambda: array[:-1], lambda: array[::-1], lambda: array[..., None], lambda: array.astype(np.int8),
            lambda: array.astype(np.uint64), lambda: array.astype(np.float32), lambda: np.asfortranarray(array),
            lambda: array.astype(">i2"), lambda: array[:0], lambda: array.reshape(-1), lambda: array[0],
            lambda: np.roll(array, 1, 0), lambda: array.astype("S"), lambda: array.astype(bool),
        )  # fmt: skip
        try:
            return random_state.choice(kinds)()
        except (ValueError, TypeError):
            return array

    def content() -> bytes:
        arrays = dict(valid)
        for name in random_state.sample(list(arrays), random_state.choice((1, 1, 2))):
            kind = random_state.random()
            if kind < 0.15:
                del arrays[name]
            elif kind < 0.5 and name.endswith("labels"):
                arrays[name] = arrays[name].copy()
                arrays[name][random_state.randrange(len(arrays[name]))] = random_state.choice((-2, -1, 0, 1, 2, 2**62))
            else:
                arrays[name] = change_array(arrays[name])
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return change_bytes(buffer.getvalue(), random_state) if random_state.random() < 0.3 else buffer.getvalue()

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            data = content()

            def read(data: bytes = data) -> None:
                path.write_bytes(data)
                read_data(path)

            yield read

    return try_each(inputs(), count)


def try_tars(seed: int, count: int) -> Tally:
    """Tar shards: names, labels, headers and images."""
    random_state, path = random.Random(seed), new_folder("tars") / "shard.tar"
    image = (pictures() / "0.png").read_bytes()

    def content() -> bytes:
        members = [
            (f"{i}.{end}", data) for i in range(6) for end, data in (("png", image), ("cls", str(i % 2).encode()))
        ]
        for _ in range(random_state.choice((1, 1, 2))):
            number = random_state.randrange(len(members))
            name, data = members[number]
            kind = random_state.random()
            if kind < 0.2:
                del members[number]
            elif kind < 0.6 and name.endswith("cls"):
                label = random_state.choice(
                    (*NUMBERS, *NESTED, "cat", "", "-1", "\udc80", '{"label": 3}', '{"cls": [1]}', "null")
                )
                members[number] = (name.replace("cls", random_state.choice(("cls", "json", "txt", "label"))),
                                   str(label).encode("utf-8", "surrogateescape"))  # fmt: skip
            elif kind < 0.75:
                members[number] = (change_text(name, random_state).replace("\0", ""), data)
            else:
                members[number] = (name, change_bytes(data, random_state))
        buffer = io.BytesIO()
        with tarfile.open(
            fileobj=buffer, mode="w", format=random_state.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
        ) as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return change_bytes(buffer.getvalue(), random_state) if random_state.random() < 0.25 else buffer.getvalue()

    def inputs() -> Iterator[Callable[[], object]]:
        while True:
            data = content()

            def read(data: bytes = data) -> None:
                path.write_bytes(data)
                read_data(path)

            yield read

    return try_each(inputs(), count)


# --- commands ---------------------------------------------------------------------------------------------------------


def try_commands(seed: int, count: int) -> Tally:
    """Whole commands on a run with one changed file: the exit code is that of success or of bad input, never 1."""
    random_state, tally, started = random.Random(seed), Tally(), time.process_time()
    folder = new_folder("command")
    commands = (
        ("pretrain", "--resume", "--out", folder),
        ("evaluate", "knn", folder, "--no-cache"),
        ("embed", folder, "--out", base_folder() / "embedded.npz", "--no-cache"),
        ("paper", "table", "3", folder),
        ("recipes", "digits.supsiam"),
    )
    names = [
        "recipe.json",
        "metrics.jsonl",
        "encoder.safetensors",
        "checkpoint",
        *(n for n in valid_run() if n[:4] == "eval"),
    ]
    for number in range(count):
        command, name = random_state.choice(commands), random_state.choice(names)
        changed = _changed_file(name, random_state)
        run = write_run(folder, **changed)
        if "step" in str(changed):
            for checksum in run.checkpoints.glob("*.sha256"):
                checksum.unlink()
        if command[0] == "recipes":
            command = (*command, "--set", f"loss.alpha={random_state.choice((*NESTED, *NUMBERS, *map(str, ODD)))}")
        if command[0] == "embed":
            (base_folder() / "embedded.npz").unlink(missing_ok=True)
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                code = main([str(argument) for argument in command])
            except SystemExit as leaving:
                code = int(leaving.code or 0)
        if code not in (0, 2, 3, 4) or "Traceback" in errors.getvalue():
            place = errors.getvalue().strip()[-300:]
            tally.crashes.setdefault(place, f"input {number}: {command[:3]} with another {name}: exit code {code}")
        tally.tried, tally.accepted = tally.tried + 1, tally.accepted + (code == 0)
    tally.seconds = time.process_time() - started
    return tally


def _changed_file(name: str, random_state: random.Random) -> dict[str, bytes | str]:
    if name == "metrics.jsonl":
        return {"metrics": change_bytes(valid_run()[name], random_state)}
    if name == "encoder.safetensors":
        return {"encoder": change_safetensors(valid_run()[name], random_state)}
    if name == "checkpoint":
        last = max(file for file in valid_run() if file.endswith(".pt"))
        state = torch.load(io.BytesIO(valid_run()[last]), weights_only=True)
        buffer = io.BytesIO()
        torch.save(change_state(state, random_state), buffer)
        return {Path(last).stem: buffer.getvalue()}
    return {Path(name).stem: changed_json_text(json.loads(valid_run()[name]), random_state)}


# name -> function, and its share of the inputs: cheap ones are tried more often
KINDS: dict[str, tuple[Callable[[int, int], Tally], float]] = {
    "recipe.json": (try_recipes, 0.2),
    "--set": (try_overrides, 0.2),
    "metrics.jsonl": (try_logs, 0.1),
    "evaluations": (try_evaluations, 0.1),
    "encoder files": (try_encoder_files, 0.1),
    "checkpoints": (try_checkpoints, 0.05),
    "imports": (try_imports, 0.01),
    "csv": (try_csv, 0.08),
    "npz": (try_npz, 0.08),
    "tar": (try_tars, 0.07),
    "commands": (try_commands, 0.002),
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
