"""Valid files changed at random: each is accepted, or refused with one line; anything else is a fault.

python -m tests.long.fuzz [COUNT] [SEED]
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import struct
import sys
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

from supancl import BadInput, load_encoder
from supancl.config import parse_value
from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.runs.checkpoint import checkpoints, load_checkpoint
from supancl.runs.encoder_file import load_projector
from supancl.runs.folder import RunFolder
from tests.faults.commands import TRAIN, base_folder, new_folder, ok
from tests.helpers import picture

Reader = Callable[[random.Random], object]  # changes a file and reads it
ODD: tuple[Any, ...] = (
    0, 1, -1, 3, 0.5, 1e308, 10**30, 2**63, 5e-324, float("nan"), float("inf"), None, True, "", "x", "1", "nan", "\n",
    "\x1b[2K", "\ud800", [], {}, [[]], {"": 0}, [1, 2], ["a", None],
)  # fmt: skip


# --- changes ----------------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within nested dicts and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def change_values(content: Any, chance: random.Random) -> Any:
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
        change, value = chance.randrange(4), parent[key]
        if change == 0:
            del parent[key]
        elif change == 1:
            parent[key] = [value]
        elif change == 2 and isinstance(parent, dict):
            parent[f"{key}x"] = parent.pop(key)
        else:
            parent[key] = chance.choice(ODD)
    return content


def change_bytes(content: bytes, chance: random.Random) -> bytes:
    """A copy with a few bytes flipped, a stretch removed, repeated or overwritten, or the end cut off."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        start = chance.randrange(len(data) or 1)
        end = start + chance.choice((1, 2, 8, 64))
        data[start:end] = chance.choice((b"", bytes(data[start:end]) * 2, chance.randbytes(end - start)))
        if chance.random() < 0.2:
            del data[start:]
    return bytes(data)


# --- readers ----------------------------------------------------------------------------------------------------------


@cache
def valid_run() -> Path:
    """A finished and evaluated run."""
    run = base_folder() / "run"
    ok("pretrain", "digits.supsiam", *TRAIN, "--out", run)
    return run


def read_recipe(chance: random.Random) -> None:
    content = json.loads((valid_run() / "recipe.json").read_text())
    content.pop("digest")
    folder = RunFolder(new_folder("recipes"))
    folder.recipe_file.write_text(json.dumps(change_values(content, chance)))
    changed, _ = folder.read_recipe()
    folder.record_settings(changed, ["train.on_collapse"])


def read_log(chance: random.Random) -> None:
    folder = RunFolder(new_folder("logs"))
    rows = [json.loads(line) for line in (valid_run() / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(change_values(row, chance) if chance.random() < 0.3 else row) for row in rows]
    folder.metrics_file.write_bytes(change_bytes("\n".join(lines).encode(), chance))
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
    (new_folder("weights") / name).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    read(new_folder("weights"))


def read_checkpoint(chance: random.Random) -> None:
    path = new_folder("checkpoints") / "step-000000001.pt"
    path.write_bytes(change_bytes(checkpoints(valid_run() / "checkpoints")[-1].read_bytes(), chance))
    load_checkpoint(path)


@cache
def valid_data() -> dict[str, bytes]:
    """A table, an archive and a shard of the same pictures."""
    folder = new_folder("pictures")
    images = [picture(folder / f"{i}.png", seed=i).read_bytes() for i in range(6)]
    rows = ["path,label,split", *(f"{i}.png,{i % 2},{'train' if i < 5 else 'test'}" for i in range(6))]
    arrays, shard = io.BytesIO(), io.BytesIO()
    pixels, labels = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4), np.arange(20) % 2
    np.savez(arrays, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for name, data in [(f"{i}.{end}", each) for i in range(6) for end, each in (("png", images[i]), ("cls", b"1"))]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return {"table.csv": "\n".join(rows).encode(), "data.npz": arrays.getvalue(), "shard.tar": shard.getvalue()}


def read_data(name: str) -> Reader:
    def read(chance: random.Random) -> None:
        content = change_bytes(valid_data()[name], chance)
        path = new_folder("pictures") / name
        path.write_bytes(content)
        open_data(DataSpec(source=str(path), cache="never"), 1)

    return read


KINDS: dict[str, Reader] = {
    "recipe.json": read_recipe, "metrics.jsonl": read_log, "weights": read_weights,
    "checkpoints": read_checkpoint, **{name: read_data(name) for name in ("table.csv", "data.npz", "shard.tar")},
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
    count, seed = (int(word) for word in [*sys.argv[1:], *("2000", "0")[len(sys.argv) - 1 :]])
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # a power cut is not what is tried here
    warnings.simplefilter("ignore")
    os.environ["SUPANCL_CACHE"] = str(base_folder() / "cache")
    for kind, read in KINDS.items():
        tried = max(1, count // len(KINDS))
        accepted, faults = try_each(read, seed, tried)
        print(f"{kind:15} {tried:,} tried, {100 * accepted / tried:.0f}% accepted, faults: {dict(faults)}", flush=True)
