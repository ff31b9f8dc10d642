"""A small copy of a data set of photographs, from the git repository that has it at full resolution.

    python -m experiments.starts.data pets REPOSITORY OUT [CLASSES [TRAIN [TEST]]]

Writes OUT/NAME/CLASS/N.jpg (short side 224 px, JPEG quality 85), source.json with the commit and the blob of each
image, and tables with `path,label,split`: LABELS-SEED.csv, in which only some training images have a label, and
LABELS-choose.csv, in which a quarter of the labels of seed 0 is held out and no test image occurs.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

from experiments.evidence.numbers import LABELS

CLASS_OF = {  # where an image's path has its class
    "pets": r"([^/]+)_\d+\.jpg$",
    "cub": r"(?:train|test)/\d+\.([^/]+)/[^/]+\.jpg$",
    "cars": r"(?:train|test)/([^/]+)/[^/]+\.jpg$",
    "plantvillage": r"^(?!x_)([^/]+)/[^/]+\.(?i:jpg)$",
    "dtd": r"^images/([^/]+)/[^/]+\.jpg$",
}
SIDE, QUALITY, SEEDS = 224, 85, (0, 1, 2)


def digests_by_class(name: str, repository: Path) -> dict[str, list[str]]:
    """Every stored image once (a partial copy lacks files); the order of the digests is as good as random."""
    listing = git(repository, "ls-tree", "-r", "-z", "HEAD").decode().rstrip("\0").split("\0")
    rows = (line.partition("\t") for line in listing)
    stored = set(git(repository, "cat-file", "--batch-check", "--batch-all-objects").decode().split()[::3])
    names = {facts.split()[2]: match[1] for facts, _, path in rows if (match := re.search(CLASS_OF[name], path))}
    classes: dict[str, list[str]] = {}
    for digest in sorted(names.keys() & stored):
        classes.setdefault(names[digest], []).append(digest)
    return classes


def git(repository: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True).stdout


def shrink(content: bytes, path: Path) -> None:
    with Image.open(io.BytesIO(content)) as opened:
        image = opened.convert("RGB")
    scale = SIDE / min(image.size)
    if scale < 1:
        image = image.resize([max(SIDE, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=QUALITY)


Row = tuple[str, str, str]  # path, label ("": none), split


def label_tables(images: dict[str, tuple[list[str], list[str]]]) -> dict[str, list[Row]]:
    """Name -> rows. `images` has the training and the test images of each class."""
    tables: dict[str, list[Row]] = {}
    for labels in LABELS:
        for seed in SEEDS:
            table, chosen_on = tables.setdefault(f"{labels}-{seed}", []), list[Row]()
            for class_name, (train, test) in images.items():
                order = random.Random(f"{class_name} {seed}").sample(train, len(train))
                count = len(train) if labels == "all" else int(labels)
                shown = set(order[:count])
                rows = [(path, class_name if path in shown else "", "train") for path in train]
                table += [*rows, *((path, class_name, "test") for path in test)]
                held_out = set(order[: max(1, count // 4)])
                chosen_on += [(*row[:2], "test" if row[0] in held_out else "train") for row in rows]
            if seed == SEEDS[0]:
                tables[f"{labels}-choose"] = chosen_on
    return tables


def prepare(name: str, repository: Path, out: Path, classes: int = 50, train: int = 24, test: int = 26) -> None:
    by_class = digests_by_class(name, repository)
    complete = sorted(class_name for class_name, blobs in by_class.items() if len(blobs) >= train + min(test, 10))
    images, sources = dict[str, tuple[list[str], list[str]]](), dict[str, str]()
    for class_name in sorted(random.Random(name).sample(complete, min(classes, len(complete)))):
        paths = list[str]()
        for number, digest in enumerate(by_class[class_name][: train + test]):
            paths.append(f"{class_name}/{number:03d}.jpg")
            sources[paths[-1]] = digest
            shrink(git(repository, "cat-file", "blob", digest), out / name / paths[-1])
        images[class_name] = paths[:train], paths[train:]
    commit = git(repository, "rev-parse", "HEAD").decode().strip()
    (out / name / "source.json").write_text(json.dumps({"commit": commit, "images": sources}, indent=1))
    for table, rows in label_tables(images).items():
        with open(out / name / f"{table}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("path", "label", "split"), *rows])
    print(f"{name}: {len(images)} classes, {len(sources)} images")


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
