"""Changes to valid files, at random; `random_state` decides which."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

# --- JSON, text and bytes ---------------------------------------------------------------------------------------------

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


# --- weights ----------------------------------------------------------------------------------------------------------


def change_safetensors(content: bytes, random_state: random.Random) -> bytes:
    """A file with changed metadata, a changed header, or changed bytes."""
    length = struct.unpack("<Q", content[:8])[0]
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    kind = random_state.random()
    if random_state.random() < 0.9:  # a forger can compute it
        header["__metadata__"].pop("digest", None)
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


def change_foreign(state: dict[str, torch.Tensor], random_state: random.Random) -> dict[str, Any]:
    """The state with a few changed tensors, of which those that decide the architecture are likely."""
    changed: dict[str, Any] = dict(state)
    ends = ("conv1.weight", "patch_embed.proj.weight", "pos_embed", "cls_token", "norm.weight", "running_mean")
    telling = [name for name in state if name.endswith(ends)]
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

TABLE = [["path", "label", "split"], *([f"{i}.png", str(i % 2), "train" if i < 5 else "test"] for i in range(6))]


WEIGHTS = [["path", "cat", "dog"], *([f"{i}.png", str(i % 2), "0.5"] for i in range(6))]
PATHS = [TABLE[0], *([path, ("animal/cat", "plant")[int(label)], split] for path, label, split in TABLE[1:])]


def changed_csv(random_state: random.Random, table: list[list[str]] = TABLE) -> bytes:
    """A table of 0.png to 5.png with changed cells."""
    cells = copy.deepcopy(table)
    for _ in range(random_state.choice((1, 1, 2))):
        row = random_state.choice(cells[random_state.random() < 0.9 :])
        column, kind = random_state.choice((1, 1, 1, 2, 0)), random_state.random()
        if kind < 0.35:
            row[column] = str(
                random_state.choice(
                    (*NUMBERS, "", "cat", "9" * 5000, "é", "-1", "-1.0", "a b", "a/b", "a;b:2", "0", "0.5", "3")
                )
            )
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


def changed_npz(random_state: random.Random) -> bytes:
    """An archive of 20 images with changed arrays."""
    images, labels = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4), np.arange(20) % 2
    arrays = {"train_images": images, "train_labels": labels, "test_images": images[:4], "test_labels": labels[:4],
              "class_names": np.array(["cat", "dog"])}  # fmt: skip
    for name in random_state.sample(list(arrays), random_state.choice((1, 1, 2))):
        kind = random_state.random()
        if kind < 0.1:
            del arrays[name]
        elif kind < 0.6:  # the same type with another value
            arrays[name] = arrays[name].copy()
            values = (-2, -1, -1, 0, 1, 1, 2, 2**62) if name.endswith("labels") else (0, 7, 255)
            arrays[name][random_state.randrange(len(arrays[name]))] = random_state.choice(values)
        else:
            arrays[name] = _change_array(arrays[name], random_state)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return change_bytes(buffer.getvalue(), random_state) if random_state.random() < 0.15 else buffer.getvalue()


def _change_array(array: np.ndarray, random_state: random.Random) -> np.ndarray:
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


def changed_tar(image: bytes, random_state: random.Random) -> bytes:
    """A shard of six labelled copies of an image with changed names, labels, headers or pixels."""
    members = [(f"{i}.{end}", data) for i in range(6) for end, data in (("png", image), ("cls", b"%d" % (i % 2)))]
    for _ in range(random_state.choice((1, 1, 2))):
        number = random_state.randrange(len(members))
        (name, data), kind = members[number], random_state.random()
        if kind < 0.2:
            del members[number]
        elif kind < 0.6 and name.endswith("cls"):
            odd_labels = ("cat", "", "-1", "\udc80", '{"label": 3}', '{"cls": [1]}', "null")
            label = str(random_state.choice((*NUMBERS, *NESTED, *odd_labels))).encode("utf-8", "surrogateescape")
            members[number] = (name.replace("cls", random_state.choice(("cls", "json", "txt", "label"))), label)
        elif kind < 0.75:
            members[number] = (change_text(name, random_state).replace("\0", ""), data)
        else:
            members[number] = (name, change_bytes(data, random_state))
    buffer, form = io.BytesIO(), random_state.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return change_bytes(buffer.getvalue(), random_state) if random_state.random() < 0.25 else buffer.getvalue()
