"""Every kind of source against what an earlier version read from it: images in order, classes, labels, splits, digests.

`python -m tests.data.test_fingerprints FOLDER` writes fingerprints.json anew, for a version whose readings are right.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from supancl.data.opening import from_arrays, open_data
from supancl.data.spec import DataSpec
from tests.helpers import noise, png, write_tar

SAVED = Path(__file__).with_name("fingerprints.json")


def images(*names: str, size: tuple[int, int] = (8, 9)) -> None:
    """Files of noise; their names are their seeds."""
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        Image.fromarray(noise(*size, 3, seed=seed)).save(name, "PNG")


def folders(*roots: str, each: int = 5) -> None:
    images(*(f"{root}/{i}.png" for root in roots for i in range(each)))


def class_folders() -> str:
    folders("photos/cat", "photos/Dog", "photos/10", "photos/2/deep")
    images("photos/top.png", "photos/cat/x/wide.png", size=(7, 12))
    return "photos"


def split_folders() -> str:
    folders(
        "split/train/cat", "split/train/dog", "split/val/cat", "split/val/owl", "split/test/dog", "split/unlabelled"
    )
    return "split"


def nested_folders() -> str:
    folders("nested/animal/cat", "nested/animal/dog", "nested/tool/saw/big")
    return "nested"


def write(name: str, *lines: str) -> str:
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def rows(folder: str, labels: list[str]) -> list[str]:
    folders(folder, each=len(labels))
    return [f"{folder}/{i}.png,{label}" for i, label in enumerate(labels)]


def a_table() -> str:
    labels = ["cat", "dog", " cat", "", "-1", "'=1+2", "10", "9", "Été", '"a, b"', "cat", "dog", "10", "9"]
    return write("one.csv", "path,label", *rows("csv", labels))


def table_with_splits() -> str:
    body = [f"{row},{('train', 'VAL', 'test')[i % 3]}" for i, row in enumerate(rows("parts", list("abcabcabc")))]
    return write("splits.csv", "path,label,split", *body)


def table_of_several_labels() -> str:
    return write("several.csv", "path,label", *rows("some", ["cat;dog:0.5", "cat", "", "owl;cat", "dog:2;", "dog"] * 3))


def table_of_weights() -> str:
    body = [row + ("1,0,.5" if i % 3 else "0,1,0" if i % 2 else ",,") for i, row in enumerate(rows("w", [""] * 12))]
    return write("weights.csv", "path,zebra,ant,bee", *body)


def table_with_other_names() -> str:
    return write("other.csv", "file,species", *rows("named", ["x", "y"] * 6))


def archive() -> str:
    np.savez(
        "arrays.npz", train_images=noise(12, 8, 8), train_labels=np.arange(12) % 3 - 1,
        test_images=noise(5, 8, 8, seed=1), test_labels=np.arange(5) % 2,
    )  # fmt: skip
    return "arrays.npz"


def archive_of_texts() -> str:
    np.savez("texts.npz", train_images=noise(12, 8, 8, 3), train_labels=np.array(["b", "a", "10", ""] * 3))
    return "texts.npz"


def archive_of_weights() -> str:
    weights = np.eye(3)[np.arange(12) % 3] + 0.5 * np.eye(3)[np.arange(12) // 4 % 3]
    np.savez("soft.npz", train_images=noise(12, 8, 8, 3), train_labels=weights, class_names=["z", "y", "x"])
    return "soft.npz"


def shards() -> str:
    for name, count in (("train-000", 7), ("train-001", 6), ("val-000", 4)):
        members = []
        for i in range(count):
            members.append((f"{name}-{i}.png", png(len(name) + i, (8, 8 + i % 2))))
            members.append((f"{name}-{i}.cls", b"" if i == 5 else str(9 + i % 3).encode()))
        write_tar(Path(f"shards/{name}.tar"), members)
    return "shards/{train-000,train-001,val-000}.tar"


def torchvision_folder() -> str:
    folders("tv/cat", "tv/dog", "tv/owl")
    return "torchvision:ImageFolder@tv"


def hugging_face() -> str:
    import datasets

    pictures = [Image.fromarray(noise(8, 9, 3, seed=i)) for i in range(12)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["z", "a", "m"])})
    part = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1, 2, -1] * 3}, features=features)
    datasets.DatasetDict({"train": part, "validation": part.select(range(4))}).save_to_disk("hub")
    return "hf:hub"


def pascal_voc() -> str:
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        Path("voc", name).mkdir(parents=True, exist_ok=True)
    for i in range(12):
        names = [["cat"], ["cat", "dog"], [], ["dog", "dog", "owl"]][i % 4]
        objects = "".join(f"<object><name>{name}</name><difficult>0</difficult></object>" for name in names)
        write(f"voc/Annotations/{i}.xml", f"<annotation>{objects}</annotation>")
        images(f"voc/JPEGImages/{i}.jpg")
    write("voc/ImageSets/Main/train.txt", *map(str, range(9)))
    write("voc/ImageSets/Main/val.txt", *map(str, range(9, 12)))
    return "voc"


def benchmark() -> str:
    for split, count in (("trainval", 10), ("test", 3)):
        names = [f"{kind}_{i + 100 * (split == 'test')}" for kind in ("Abyssinian", "Bengal") for i in range(count)]
        Path("root/pets/annotations").mkdir(parents=True, exist_ok=True)
        write(f"root/pets/annotations/{split}.txt", *(f"{name} 1 1 1" for name in names))
        images(*(f"root/pets/images/{name}.jpg" for name in names))
    return "pets@root"


CASES: dict[str, tuple[Callable[[], str], dict[str, Any]]] = {
    "class folders": (class_folders, {}),
    "class folders, cached": (class_folders, {"cache": "always"}),
    "class folders, decoded each time": (class_folders, {"memory_gb": 1e-9, "cache": "never"}),
    "class folders, shrunk": (class_folders, {"short_side": 6, "resample": "bicubic"}),
    "class folders, balanced": (class_folders, {"balanced": True}),
    "class folders, limit": (class_folders, {"limit": 9, "labelled": 0.5, "holdout": 0.2}),
    "class folders, changed": (class_folders, {"leave_out": ("cat",), "label_noise": 0.4}),
    "split folders": (split_folders, {}),
    "nested folders": (nested_folders, {"hierarchy": "paths"}),
    "table": (a_table, {}),
    "table with splits": (table_with_splits, {}),
    "table of several labels": (table_of_several_labels, {}),
    "table of weights": (table_of_weights, {}),
    "table with other names": (table_with_other_names, {"columns": "image=file,label=species"}),
    "archive": (archive, {}),
    "archive of texts": (archive_of_texts, {}),
    "archive of weights": (archive_of_weights, {}),
    "shards": (shards, {}),
    "shards, streamed": (shards, {"stream": True, "window": 2}),
    "shards, streamed, all trained on": (shards, {"stream": True, "window": 1, "holdout": 0.3}),
    "torchvision": (torchvision_folder, {}),
    "hugging face": (hugging_face, {}),
    "pascal voc": (pascal_voc, {}),
    "digits": (lambda: "digits", {}),
    "toy": (lambda: "toy", {}),
    "joined": (class_folders, {"joined": (split_folders, archive)}),
    "joined, several labels": (table_of_several_labels, {"joined": (split_folders,)}),
}


def read(name: str) -> dict[str, Any]:
    """What the version says of a source; it is made in the working folder."""
    if name == "arrays from python":
        return described(from_arrays(noise(40, 8, 8), np.arange(40) % 3 * 10))
    if name == "benchmark":
        from supancl.data.opening import open_benchmark
        from supancl.data.preparing import prepare_data

        make = open_benchmark("pets", benchmark().partition("@")[2], 3, DataSpec(), partial=True)
        return described(prepare_data(make, DataSpec()))
    build, fields = CASES[name]
    joined = tuple(make() for make in fields.get("joined", ()))
    return described(open_data(DataSpec(source=build(), **{**fields, "joined": joined}), 3), **fields)


def described(data: Any, balanced: bool = False, **_: Any) -> dict[str, Any]:
    here = str(Path.cwd())
    splits = {"train": data.train, "held out": data.held_out, "test": data.test}
    names = {
        name: [text.replace(here, ".") for text in split.names_at(torch.arange(len(split)))]
        for name, split in splits.items()
        if split is not None
    }
    order = data.train.order(3, 2, balanced)
    summary = {key: value for key, value in data.summary.items() if key not in ("source", "joined", "levels")}
    positions = torch.cat([order.positions(step) for step in range(2 * order.steps_per_epoch)])
    batch = data.train.batch(positions[:3])
    return {
        "classes": list(data.classes),
        "images": {name: [len(listed), digest(listed), listed[:1]] for name, listed in names.items()},
        "order": digest(positions.tolist()),
        "pixels": [list(batch.pixels.shape), digest([batch.image(row).tolist() for row in range(3)])]
        if batch.pixels.dtype == torch.uint8
        else list(batch.pixels.shape),
        "content": data.content.digest[:16] if data.content is not None and batch.pixels.dtype == torch.uint8 else None,
        "summary": summary,
    }


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


NAMES = [*CASES, "arrays from python", "benchmark"]


@pytest.mark.parametrize("name", NAMES)
def test_a_source_is_read_as_before(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert json.loads(json.dumps(read(name))) == json.loads(SAVED.read_text(encoding="utf-8"))[name]


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    found = {}
    for name in NAMES:
        Path(name).mkdir()
        os.chdir(name)
        found[name] = read(name)
        os.chdir("..")
    lines = [f"{json.dumps(name)}: {json.dumps(case, ensure_ascii=False)}" for name, case in found.items()]
    SAVED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
