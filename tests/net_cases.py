"""The cases of net.py in one tree: `python net_cases.py TEXT` writes found.json for those whose name contains TEXT.

Only public names, the command line and a run's files are used, each in the spellings of the first section. Where a
later tree calls something otherwise, or writes it to another place, a row is added in front of the others.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

Outcome = dict[str, Any]

# --- spellings: the first of a list that the tree knows is used, so a new one comes in front --------------------------


def read_torch(path: Path) -> Any:
    import torch

    return torch.load(path, weights_only=True)


def read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def read_lines(path: Path) -> Any:
    return [json.loads(line) for line in path.read_text().splitlines()]


PYTHON = {
    "pretrain": ["supancl.pretrain"],
    "Reporter": ["supancl.Reporter"],
    "Interrupted": ["supancl.Interrupted"],
}
# what a run leaves: the pattern, whose last file is taken, and what opens it
FILES: dict[str, list[tuple[str, Callable[[Path], Any]]]] = {
    "checkpoint": [("checkpoints/step-*.pt", read_torch)],
    "log": [("metrics.jsonl", read_lines)],
    "encoder file": [("encoder.safetensors", read_safetensors)],
    "detector file": [("detector.safetensors", read_safetensors)],
}
# the role of a part of a checkpoint, by its dotted name: the first that fits; "" is not compared
ROLES = [
    ("", r"(settings|recipe|kind|schema_version|digest|log_rows|interval|monitor|bad_steps)\b"),
    ("step", r"step$"),
    ("random numbers", r"rng\b"),
    ("optimizer", r"optimizer\b"),
    ("pool", r"pool\b"),
    ("target branch", r".*\btarget_(encoder|projector)\b"),
    ("projector", r".*\bprojector\b"),
    ("predictor", r".*\bpredictor\b"),
    ("encoder", r".*\bencoder\b"),
    ("detector", r"detector\b"),
]
# fields of results, logs and pools: the old name -> the new one
RENAMED: dict[str, str] = {"validation": "held_out", "spread": "interval", "runs": "n"}
# fields that tell where and when a result was made, not what it is
CIRCUMSTANCES = {"seconds", "commit", "versions", "hardware", "images_per_second", "time", "out", "encoder", "pictures"}
CIRCUMSTANCES |= {"row", "crc"}  # of the log: the checksum covers the speed
CIRCUMSTANCES |= {"with_label_noise"}  # of an audit, which does not repeat a run's wrong labels any more
CIRCUMSTANCES |= {"key"}  # of an evaluation: by it a study finds a result again
CIRCUMSTANCES |= {"iterations"}  # of a solver


class Row(NamedTuple):
    """The words of a command, and what to compare beside its JSON."""

    words: str
    read: Callable[[], Outcome] = dict


SWEEP = "--data digits --epochs 1 --set data.limit=400 --seeds 1 --jobs 1"
SMALL = "--data data/photos --epochs 1 --batch-size 8 --device cpu --set encoder.width=16 --set pool.size=20 "
SMALL += "--set data.holdout=0.1"  # below 1,000 labels, trees before November 2026 hold out a tenth by themselves
PHOTOS = "--data data/photos --all"
DETECT = (
    "--data data/train.json --test data/test.json --iters 2 --batch-size 2 --device cpu "
    "--set min_sizes=[64] --set test_size=64 --set max_size=128 --set anchor_sizes=[24,40] --set anchor_ratios=[1.0] "
    "--set rpn_train=[100,10] --set rpn_test=[100,10] --set rpn_batch=16 --set roi_batch=8 --set pool=4 "
    "--set precise_bn=1 --set workers=0 --set log_every=1 --set warmup=1"
)


def commands() -> dict[str, list[Row]]:
    """What is measured by commands; the names of RUNS among their words are trained first."""
    return {
        "knn": [Row("evaluate knn trained --k 20,5")],
        "linear": [Row("evaluate linear trained")],
        "linear sgd": [Row("evaluate linear trained --probe sgd --epochs 5")],
        "linear augmented": [Row("evaluate linear trained --probe sgd --augmented --epochs 2")],
        "variance": [Row("evaluate variance trained")],
        "transfer": [Row("evaluate transfer trained --data digits")],
        "fewshot": [Row("evaluate fewshot trained --data digits --shots 1,5 --episodes 50")],
        "finetune": [Row("evaluate finetune trained --epochs 1 --lr 0.1")],
        "several labels, knn": [Row("evaluate knn on-several")],
        "several labels, linear": [Row("evaluate linear on-several")],
        "nested labels, knn": [Row("evaluate knn on-nested")],
        "nested labels, linear": [Row("evaluate linear on-nested")],
        "import": [Row("import trained --out again.safetensors", lambda: weights("again.safetensors"))],
        "study": [Row(f"paper study positives digits.supsiam {SWEEP} --rows M-1,M-all --out study")],
        "collapse": [Row(f"paper collapse digits.supsiam {SWEEP} --out collapse")],
        "alpha": [
            Row(f"compare digits.supsiam {SWEEP} --set loss.alpha=0,.5,1 --leave-out .3 --out alpha"),
            Row(f"alpha digits.supsiam {SWEEP} --alphas 0,.5,1 --out alpha"),
        ],
        "compare": [Row(f"compare digits.supsiam digits.simsiam {SWEEP} --seeds 2 --out compared")],
        "theory": [Row("paper theory")],
        "toy": [Row("paper toy --quick --seeds 1 --out toy")],
        "table": [Row("paper table F.2 study")],
        "recipes": [Row("recipes imagenet100.supbyol")],
        "pretrain": [Row(f"pretrain digits.supsiam {SMALL} --out run", lambda: left_by("run"))],
        "predict": [Row(f"predict on-photos {PHOTOS} --out one.csv", lambda: tables("one.csv"))],
        "predict knn": [
            Row(f"predict on-photos {PHOTOS} --{flag} knn --out knn.csv", lambda: tables("knn.csv"))
            for flag in ("classifier", "with")
        ],
        "predict several": [Row(f"predict on-several {PHOTOS} --out several.csv", lambda: tables("several.csv"))],
        "predict nested": [Row(f"predict on-nested {PHOTOS} --out nested.csv", lambda: tables("nested.csv"))],
        "embed": [Row("embed on-photos --data data/photos --out photos.npz", lambda: arrays("photos.npz"))],
        "audit": [Row("audit trained --data digits --out audit", lambda: tables("audit/*.csv"))],
        "detect": [Row(f"detect train random:resnet18 {DETECT} --out box", lambda: left_by("box", "detector file"))],
    }


def spelled(name: str) -> Any:
    """What the tree offers in one of the spellings of a name in PYTHON."""
    for path in PYTHON[name]:
        module, _, attribute = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"none of these exists: {', '.join(PYTHON[name])}")


def opened(folder: Path, kind: str) -> Any:
    """A file of a run, of the kinds in FILES."""
    for pattern, read in FILES[kind]:
        if found := sorted(folder.glob(pattern)):
            return read(found[-1])
    raise LookupError(f"{folder} holds none of these: {', '.join(pattern for pattern, _ in FILES[kind])}")


def run_command(rows: list[Row]) -> Outcome:
    refused = []
    for row in rows:
        for name in RUNS.keys() & set(row.words.split()):
            if not Path(name).exists():
                train(Path(name), **RUNS[name])
        words = [sys.executable, "-m", "supancl", *row.words.split(), "--quiet", "--json", "result.json"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode == 0:
            return {"result": comparable(json.loads(Path("result.json").read_text())), **row.read()}
        refused.append(f"supancl {row.words} ended with {done.returncode}: {done.stderr[-300:]}")
        if done.returncode != 2:  # 2: the tree does not know these words
            break
    raise RuntimeError("; ".join(refused))


# --- what is compared -------------------------------------------------------------------------------------------------


def comparable(value: Any) -> Any:
    """Without circumstances and sentences; what is empty is as good as missing."""
    if isinstance(value, Mapping):
        kept = {RENAMED.get(key, key): comparable(item) for key, item in value.items() if key not in CIRCUMSTANCES}
        return {key: item for key, item in kept.items() if item is not None} or None
    if isinstance(value, list):
        return [comparable(item) for item in value if not is_sentence(item)] or None
    if isinstance(value, str):
        return None if is_sentence(value) else value.replace(str(Path.cwd()), ".")
    return value


def is_sentence(value: Any) -> bool:
    return isinstance(value, str) and len(value.split()) > 3


def digest(tensor: Any) -> str:
    """Dtype, shape, and a hash of the bytes of a tensor or array."""
    import numpy as np

    array = np.ascontiguousarray(tensor)
    return f"{array.dtype} {tuple(tensor.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def summary(parts: list[str]) -> str:
    """One line for many parts, in whatever order they come."""
    return f"{len(parts)} parts, {hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()[:16]}"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Whatever is in nested containers, with its dotted name."""
    if isinstance(value, (Mapping, list, tuple)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def roles(checkpoint: Any) -> dict[str, str]:
    """A summary of what a checkpoint holds for each role."""
    import torch

    parts, pool = defaultdict(list), {}
    for name, value in leaves(checkpoint):
        role = next((role for role, pattern in ROLES if re.match(pattern, name)), "other")
        setting = re.search(r"\.(lr|momentum|weight_decay|nesterov|betas|eps)(\.\d)?$", name)
        if role == "pool":
            pool[RENAMED.get(key := name.rpartition(".")[2], key)] = value
        elif isinstance(value, torch.Tensor):
            parts[role].append(digest(value))
        elif role == "step" or (role == "optimizer" and setting):
            parts[role].append(f"{setting and setting[1]} {value}")
    if any(value is not None for value in pool.values()):
        parts["pool"] = pool_entries(pool)
    return {role: summary(entries) for role, entries in parts.items() if role}


def pool_entries(pool: dict[str, Any]) -> list[str]:
    """Each target of a pool with its classes, their weights and its age; of each class the number, weight and sum."""
    import torch

    if "prototypes" in pool:  # slot c is of class c
        seen = pool["seen"]
        pool = {**pool, "targets": pool["prototypes"], "labels": torch.where(seen, torch.arange(len(seen)), -2)}
    labels = pool["labels"].reshape(len(pool["targets"]), -1)  # -1: no label, -2: no target
    shares = pool.get("weights", torch.ones(labels.shape)).reshape(labels.shape)
    entries = [f"{int(pool['clock'])} pushes"]
    for target, classes, weights, born in zip(pool["targets"], labels, shares, pool["born"], strict=True):
        if classes[0] != -2:
            pairs = sorted((int(c), float(w)) for c, w in zip(classes, weights, strict=True) if c >= 0)
            entries.append(f"{digest(target)} {pairs} {int(pool['clock'] - born)}")
    for label, number in enumerate(pool.get("tally", ())):
        if number:
            weight = pool.get("mass", pool["tally"])[label]
            entries.append(f"class {label}: {int(number)}, {float(weight)}, {digest(pool['sums'][label])}")
    return entries


def left_by(folder: Path | str, exported: str = "encoder file") -> Outcome:
    """What a run left: its last checkpoint, the weights for users, and its log."""
    folder = Path(folder)
    state = roles(opened(folder, "checkpoint"))
    state[exported] = summary([digest(tensor) for tensor in opened(folder, exported).values()])
    return {"state": state, "logged": comparable(opened(folder, "log"))}


def weights(path: str) -> Outcome:
    return {"state": {"encoder file": summary([digest(tensor) for tensor in read_safetensors(Path(path)).values()])}}


def tables(pattern: str) -> Outcome:
    """The rows of .csv files, those of predicted labels in the order of their images."""
    found = {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in sorted(Path().glob(pattern))}
    for rows in (rows for rows in found.values() if rows and "unlike" in rows[0]):
        rows.sort(key=lambda row: row["path"])
    if not any(found.values()):
        raise LookupError(f"{pattern} has no rows")
    return {"tables": comparable(found)}


def arrays(path: str) -> Outcome:
    import numpy as np

    with np.load(path) as content:
        return {"arrays": {RENAMED.get(name, name): digest(content[name]) for name in content.files}}


# --- data -------------------------------------------------------------------------------------------------------------


def draw_data(folder: Path, images: int = 48) -> None:
    """Grey images of four shades with noise, in every kind of source and with every kind of label."""
    import numpy as np
    from PIL import Image

    random, labels = np.random.default_rng(0), np.arange(images) % 4
    pixels = (60 * labels[:, None, None] + random.integers(0, 60, (images, 8, 8))).astype(np.uint8)
    colours = random.integers(0, 256, (images, 8, 8, 3), dtype=np.uint8)
    half = np.where(random.random(images) < 0.5, -1, labels)
    shades = [("black", "grey", "silver", "white")[label] for label in labels]
    groups = [("dark", "light")[label // 2] for label in labels]
    for i in range(images):
        for path in (f"photos/{shades[i]}/{i}.png", f"nested/{groups[i]}/{shades[i]}/{i}.png"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[i]).save(folder / path)
    for name, content, numbers in (("one", pixels, labels), ("half", pixels, half), ("colours", colours, labels)):
        np.savez(folder / f"{name}.npz", train_images=content, train_labels=numbers)
    for name, form in {"one": "{}", "several": "{};{}", "soft": "{}:0.7;{}:0.3"}.items():
        texts = [form.format(shade, group) for shade, group in zip(shades, groups, strict=True)]
        rows = [f"photos/{shades[i]}/{i}.png,{text}" for i, text in enumerate(texts)]
        (folder / f"{name}.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    (folder / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(folder / "shards" / f"train-{shard:03d}.tar", "w") as tar:
            for i in range(shard, images, 2):
                image = (folder / "photos" / shades[i] / f"{i}.png").read_bytes()
                for name, member in ((f"{i:04d}.png", image), (f"{i:04d}.cls", str(labels[i]).encode())):
                    header = tarfile.TarInfo(name)
                    header.size = len(member)
                    tar.addfile(header, io.BytesIO(member))


def draw_scenes(file: Path, images: int, seed: int) -> None:
    """Pictures with a square each, as COCO describes them."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    names = [f"{file.stem}-{i}.png" for i in range(images)]
    boxes = [[*random.integers(0, 32, 2).tolist(), 30, 30] for _ in names]
    for name, (x, y, width, height) in zip(names, boxes, strict=True):
        scene = random.integers(90, 130, (64, 64, 3), dtype=np.uint8)
        scene[y : y + height, x : x + width] = (40, 90, 230)
        Image.fromarray(scene).save(file.with_name(name))
    content = {
        "images": [{"id": i, "file_name": name, "width": 64, "height": 64} for i, name in enumerate(names)],
        "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": box} for i, box in enumerate(boxes)],
        "categories": [{"id": 1, "name": "square"}],
    }
    file.write_text(json.dumps(content))


# --- trainings --------------------------------------------------------------------------------------------------------

TINY = {
    "views.size": 8, "encoder.width": 16, "pool.size": 12, "train.batch_size": 8, "train.epochs": 2,
    "train.log_every": 1, "train.device": "cpu", "optimizer.reference_batch": 8, "optimizer.lr": 0.05,
    "schedule.warmup_epochs": 1, "data.holdout": 0.1,
}  # fmt: skip
NESTED = {"data.source": "data/nested", "data.hierarchy": "paths"}
RUNS: dict[str, dict[str, Any]] = {
    "trained": {"train.epochs": 2},
    "on-photos": TINY | {"data.source": "data/photos"},
    "on-several": TINY | {"data.source": "data/several.csv"},
    "on-nested": TINY | NESTED,
}


def train(folder: Path, recipe: str = "digits.supsiam", stop: int | None = None, **settings: Any) -> Outcome:
    """A run, which with `stop` is stopped after that step and continued."""

    class Stop(spelled("Reporter")):  # type: ignore[misc]
        def on_step(self, step: int, row: object) -> None:
            if step == stop:
                os.kill(os.getpid(), signal.SIGTERM)

    pretrain, stopped = spelled("pretrain"), False
    try:
        pretrain(recipe, out=folder, reporter=Stop(), **settings)
    except spelled("Interrupted"):
        stopped = True
        pretrain(out=folder, resume=True)
    if stopped != (stop is not None):
        raise RuntimeError("the run was not stopped" if stop else "the run was stopped")
    return left_by(folder)


def trainings() -> dict[str, dict[str, Any]]:
    """By name what `train` is called with."""
    cases: dict[str, dict[str, Any]] = {}

    def add(name: str, method: str = "supsiam", source: str = "one.npz", **changes: Any) -> None:
        # in so short a run the samples of semi must be sure early
        early = {"loss.warmup": 3, "loss.confidence": 0.4} if method == "semi" else {}
        cases[name] = TINY | early | {"recipe": f"digits.{method}", "data.source": f"data/{source}"} | changes

    for method in (
        "simclr", "supcon", "moco2", "supmoco", "moco3", "simsiam", "supsiam", "byol", "supbyol", "crossentropy", "semi"
    ):  # fmt: skip
        add(method, method)
        add(f"{method}, accumulated", method, **{"train.accumulate": 2})
        add(f"{method}, half labelled", method, "half.npz")
        add(f"{method}, compat", method, compat="released-code")
        add(f"{method}, resumed", method, stop=5)
    for kind in ("queue", "class-queues", "prototypes", "none"):
        pool = {"pool.kind": kind, "pool.size": 4}
        add(f"supsiam, {kind}", **pool)
        add(f"supbyol, {kind}, resumed", "supbyol", stop=6, **pool)
    for labels, source in {"several": "several.csv", "soft": "soft.csv", "nested": "nested"}.items():
        changes = NESTED if labels == "nested" else {}
        for method in ("supcon", "supmoco", "crossentropy"):
            add(f"{labels} labels, {method}", method, source, **changes)
        for kind in ("queue", "class-queues", "prototypes"):
            add(f"{labels} labels, {kind}", source=source, **changes, **{"pool.kind": kind})
        add(f"{labels} labels, M = 2, resumed", source=source, stop=5, **changes, **{"loss.samples": 2})
    add("folder", source="photos")
    add("folder, packed", source="photos", **{"data.cache": "always"})
    add("csv", source="one.csv")
    add("tar", source="shards")
    add("tar, streamed", source="shards", **{"data.stream": True, "data.holdout": 0})
    add("two sources", source="photos", **{"data.joined": ["data/one.csv"]})
    for samples in (1, 4):
        add(f"supsiam, M = {samples}", stop=6, **{"loss.samples": samples})
    add("supsiam, local views", **{"views.local": {"count": 2, "size": 4, "scale": [0.2, 0.5]}})
    add("supsiam, balanced", **{"data.balanced": True})
    add("supsiam, squared", **{"loss.form": "squared"})
    colours = {"encoder.channels": 3, "encoder.mean": [0.5] * 3, "encoder.std": [0.5] * 3}
    blurred = {"views.blur": 0.5, "views.grey": 0.2, "views.hue": 0.1}
    add("supsiam, colours and blur", source="colours.npz", **colours, **blurred)
    adamw = {"optimizer.name": "adamw", "optimizer.lr": 1e-3, "schedule.predictor": "follows"}
    add("byol, adamw", "byol", **adamw)
    return cases


def two_ranks(settings: dict[str, Any]) -> Outcome:
    """One run by two processes that exchange through gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = (
        "import json, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import net_cases; "
        "net_cases.train(Path('ranks'), **json.loads(sys.argv[2]))"
    )
    words = [sys.executable, "-c", script, str(Path(__file__).parent), json.dumps(settings)]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(words, env={**os.environ, **world, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")
    ]
    codes = [rank.wait(300) for rank in ranks]
    if any(codes):
        raise RuntimeError(f"the ranks ended with {codes}")
    return left_by("ranks")


def run_cases(only: str) -> dict[str, Outcome]:
    """Every case in the working folder, by name; one that fails says how."""
    import torch

    torch.set_num_threads(1)
    draw_data(Path("data"))
    draw_scenes(Path("data/train.json"), 4, seed=0)
    draw_scenes(Path("data/test.json"), 2, seed=1)
    cases: dict[str, Callable[[], Outcome]] = {}
    for number, (name, settings) in enumerate(trainings().items()):
        cases[f"train: {name}"] = partial(train, Path(f"run-{number}"), **settings)
    cases["train: supbyol, two ranks"] = partial(two_ranks, trainings()["supbyol"])
    for name, rows in commands().items():
        cases[f"command: {name}"] = partial(run_command, rows)
    found: dict[str, Outcome] = {}
    for name, case in cases.items():
        if only in name:
            try:
                found[name] = case()
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
    return found


if __name__ == "__main__":
    Path("found.json").write_text(json.dumps(run_cases(sys.argv[1])))
