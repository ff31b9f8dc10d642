"""Valid files changed at random: each is accepted, or refused with one line; anything else is a fault.

python -m tests.long.fuzz [--count 2000] [--seed 0] [--kind KIND]
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import random
import struct
import tarfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supancl import BadInput, load_encoder, recipe
from supancl.config import parse_value
from supancl.data.opening import open_data
from supancl.data.splits import DataSpec
from supancl.runs.checkpoint import checkpoints, load_checkpoint, load_tensors
from supancl.runs.encoder_file import load_projector
from supancl.runs.folder import RunFolder
from tests.faults.commands import TRAIN, base_folder, new_folder, ok
from tests.files import picture

Reader = Callable[[random.Random], object]  # changes a file and reads it
ODD: tuple[Any, ...] = (
    0, 1, -1, 3, 0.5, 1e308, 10**30, 2**63, 5e-324, float("nan"), float("inf"), None, True, "", "x", "1", "nan", "\n",
    "\x1b[2K", "\ud800", [], {}, [[]], {"": 0}, [1, 2], ["a", None],
)  # fmt: skip
NESTED = ("[" * 5000, "[" * 900 + "]" * 900, '{"a":' * 300 + "1" + "}" * 300, "9" * 5000)


# --- changes ----------------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within nested dicts and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def change_values(content: Any, chance: random.Random, odd: Callable[[Any], Any] | None = None) -> Any:
    """A copy of nested containers with one to three values replaced, removed, wrapped or renamed."""
    content = copy.deepcopy(content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        found = [path for path in places(content) if path]
        if not found:
            break
        *above, key = chance.choice(found)
        parent = content
        for name in above:
            parent = parent[name]
        change, value = chance.randrange(5), parent[key]
        if change == 0:
            del parent[key]
        elif change == 1:
            parent[key] = [value]
        elif change == 2 and isinstance(parent, dict):
            parent[f"{key}x"] = parent.pop(key)
        elif change == 3 and type(value) in (int, float):
            parent[key] = chance.choice((-value, value * 2, value + 1, str(value), float(value)))
        else:
            parent[key] = odd(value) if odd is not None else chance.choice(ODD)
    return content


def change_text(text: str, chance: random.Random) -> str:
    position = chance.randrange(len(text) + 1)
    piece = chance.choice(("", "\0", "\n", '"', ",", "\x1b[31m", "\u202e", "=", "9" * 50, "é", "..", "/", "-1", "{}"))
    return text[:position] + piece + text[position + chance.randrange(3) :]


def change_bytes(content: bytes, chance: random.Random) -> bytes:
    """A copy with a few bytes flipped, a stretch removed, repeated or overwritten, or the end cut off."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        start = chance.randrange(len(data) or 1)
        end = start + chance.choice((1, 2, 8, 64))
        new = chance.choice((b"", bytes(data[start:end]) * 2, chance.randbytes(end - start)))
        data[start:end] = new if chance.random() < 0.9 else b""
        if chance.random() < 0.2:
            del data[start:]
    return bytes(data)


def change_json(content: Any, chance: random.Random) -> str:
    """JSON with changed values; now and then nested too deep, with a number of 5,000 digits, or damaged as text."""
    text = json.dumps(change_values(content, chance))
    if chance.random() < 0.05:
        return text.replace("0.5", chance.choice(NESTED), 1)
    return change_text(text, chance) if chance.random() < 0.05 else text


# --- a valid run ------------------------------------------------------------------------------------------------------


@cache
def valid_run() -> Path:
    """A finished and evaluated run."""
    run = base_folder() / "run"
    ok("pretrain", "digits.supsiam", *TRAIN, "--out", run)
    ok("evaluate", "variance", run)
    return run


# --- readers ----------------------------------------------------------------------------------------------------------


def read_recipe(chance: random.Random) -> None:
    content = json.loads((valid_run() / "recipe.json").read_text())
    folder = RunFolder(new_folder("recipes"))
    content.pop("digest")
    folder.recipe_file.write_text(change_json(content, chance))
    changed, _ = folder.read_recipe()
    folder.read("versions", {})
    folder.record_settings(changed, ["train.on_nan"])


def set_fields(chance: random.Random) -> None:
    base = recipe("digits.supsiam")
    fields = {name: value for name, (value, _) in base.fields().items()}
    name = chance.choice(list(fields))
    text = json.dumps(fields[name] if chance.random() < 0.4 else chance.choice(ODD))
    text = change_text(text, chance) if chance.random() < 0.2 else text
    base.with_set({change_text(name, chance) if chance.random() < 0.1 else name: parse_value(text)})


def read_log(chance: random.Random) -> None:
    folder = RunFolder(new_folder("logs"))
    rows = [json.loads(line) for line in (valid_run() / "metrics.jsonl").read_text().splitlines()]
    lines = [change_json(row, chance) if chance.random() < 0.3 else json.dumps(row) for row in rows]
    folder.metrics_file.write_bytes(change_bytes("\n".join(lines).encode("utf-8", "surrogatepass"), chance))
    folder.describe_early_end(RunFolder(valid_run()).read_recipe()[0])
    folder.keep_metrics_until(2)


def read_weights(chance: random.Random) -> None:
    """encoder.safetensors and projector.safetensors: header, metadata and tensors, without the digest."""
    name, read = chance.choice((("encoder.safetensors", load_encoder), ("projector.safetensors", load_projector)))
    content = (valid_run() / name).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"].pop("digest")
    if chance.random() < 0.6:
        metadata = {key: parse_value(value) for key, value in header["__metadata__"].items()}
        changed = change_values(metadata, chance)
        header["__metadata__"] = {k: v if isinstance(v, str) else json.dumps(v) for k, v in changed.items()}
    else:
        header = change_values(header, chance)
    text = json.dumps(header).encode()
    folder = new_folder("weights")
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    read(folder)


def odd_tensor(value: Any, chance: random.Random) -> Any:
    """The tensor with another shape, type or layout."""
    if not isinstance(value, torch.Tensor):
        return chance.choice(ODD)
    dense = value.float()
    makers: tuple[Callable[[], Any], ...] = (
        lambda: value[..., :0], lambda: value.reshape(-1), lambda: value[None], lambda: value.to("meta"),
        lambda: dense.to_sparse(), lambda: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        lambda: value.to(torch.complex64), lambda: value.to(torch.int8), lambda: value.double(), lambda: value.half(),
        lambda: torch.full_like(dense, float("nan")), lambda: torch.zeros(()), lambda: torch.zeros(1).expand(10**6),
    )  # fmt: skip
    try:
        return chance.choice(makers)()
    except (RuntimeError, IndexError):
        return value


def read_checkpoint(chance: random.Random) -> None:
    path, file = new_folder("checkpoints") / "step-000000001.pt", io.BytesIO()
    state = load_tensors(checkpoints(valid_run() / "checkpoints")[-1])
    torch.save(change_values(state, chance, lambda value: odd_tensor(value, chance)), file)
    path.write_bytes(file.getvalue() if chance.random() < 0.6 else change_bytes(file.getvalue(), chance))
    load_checkpoint(path)


def pictures() -> Path:
    folder = new_folder("pictures")
    for i in range(6):
        if not (folder / f"{i}.png").exists():
            picture(folder / f"{i}.png", seed=i)
    return folder


def open_changed(name: str, content: bytes) -> None:
    (pictures() / name).write_bytes(content)
    open_data(DataSpec(source=str(pictures() / name), cache="never"), 1)


def read_csv(chance: random.Random) -> None:
    rows = ["path,label,split", *(f"{i}.png,{i % 2},{'train' if i < 5 else 'test'}" for i in range(6))]
    row = chance.randrange(len(rows))
    cells = rows[row].split(",")
    cells[chance.randrange(3)] = change_text(str(chance.choice((*ODD, "a;b:2", "a/b", *cells))), chance)
    rows[row] = ",".join(cells)
    content = "\n".join(rows).encode("utf-8", "surrogatepass")
    open_changed("table.csv", change_bytes(content, chance) if chance.random() < 0.15 else content)


def read_npz(chance: random.Random) -> None:
    images, labels = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4), np.arange(20) % 2
    arrays: dict[str, Any] = {
        "train_images": images,
        "train_labels": labels,
        "test_images": images,
        "test_labels": labels,
    }
    name = chance.choice(list(arrays))
    array = arrays.pop(name)
    arrays[chance.choice((name, name, "notes"))] = chance.choice((
        array[:-1], array[..., None], array.astype(np.int8), array.astype(np.uint64), array.astype(np.float32),
        np.asfortranarray(array), array.astype(">i2"), array[:0], array.reshape(-1), array[0], -array,
        array.astype(np.int64) * 2**40,
    ))  # fmt: skip
    file = io.BytesIO()
    np.savez(file, **arrays)
    open_changed("data.npz", change_bytes(file.getvalue(), chance) if chance.random() < 0.15 else file.getvalue())


def read_tar(chance: random.Random) -> None:
    image = (pictures() / "0.png").read_bytes()
    members = [(f"{i}.{end}", data) for i in range(6) for end, data in (("png", image), ("cls", b"%d" % (i % 2)))]
    number = chance.randrange(len(members))
    name, data = members[number]
    label = str(chance.choice((*ODD, *NESTED))).encode("utf-8", "surrogatepass")
    members[number] = (change_text(name, chance).replace("\0", ""), label if chance.random() < 0.5 else data)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=chance.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    open_changed("shard.tar", change_bytes(file.getvalue(), chance) if chance.random() < 0.25 else file.getvalue())


# name -> reader, and its share of the inputs: cheap ones are tried more often
KINDS: dict[str, tuple[Reader, float]] = {
    "recipe.json": (read_recipe, 0.2), "--set": (set_fields, 0.28), "metrics.jsonl": (read_log, 0.12),
    "weights": (read_weights, 0.12), "checkpoints": (read_checkpoint, 0.03), "csv": (read_csv, 0.08),
    "npz": (read_npz, 0.1), "tar": (read_tar, 0.07),
}  # fmt: skip


def try_each(read: Reader, seed: int, count: int) -> tuple[int, Counter[str]]:
    """How many inputs were accepted, and where the program failed on others."""
    chance, accepted, faults = random.Random(seed), 0, Counter[str]()
    for _ in range(count):
        try:
            read(chance)
            accepted += 1
        except BadInput as error:
            faults.update([] if str(error).strip() else ["an empty message"])
        except Exception as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/supancl/" in frame.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside the package"
            faults[f"{place}: {type(error).__name__}: {str(error)[:100]}"] += 1
    return accepted, faults


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
        read, share = KINDS[kind]
        tried = max(1, round(share * args.count))
        accepted, faults = try_each(read, args.seed, tried)
        print(f"{kind:15} {tried:,} tried, {100 * accepted / tried:.0f}% accepted, faults: {dict(faults)}", flush=True)
