"""Tar shards in WebDataset form: the files of a sample share a key, and the parts after it say what each is.

The headers are read once, so every image can be reached by itself: order and resuming are those of any other source.
"""

from __future__ import annotations

import glob
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from supancl.data.decoding import Entry, from_items
from supancl.data.images import SUFFIXES
from supancl.data.sources import DataSpec, Progress, Source
from supancl.errors import BadInput

LABEL_PARTS = ("cls", "json", "txt", "label")
SPLIT_STARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True, slots=True)
class TarItem:
    """An image inside a tar: where its bytes lie."""

    tar: Path
    member: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.tar}::{self.member}"

    def stamp(self) -> tuple[int, int]:
        status = self.tar.stat()
        return status.st_size * 1_000_003 + self.offset, status.st_mtime_ns

    def open(self) -> Any:
        with open(self.tar, "rb") as file:
            file.seek(self.offset)
            return Image.open(io.BytesIO(file.read(self.length)))


def is_tar(name: str) -> bool:
    """`shards/train-000.tar`, `shards/train-{000..009}.tar`, `shards/*.tar`, or a folder that holds tars alone."""
    if name.endswith((".tar", ".tar.gz", ".tgz")):
        return True
    folder = Path(name)
    if not folder.is_dir():
        return False
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    return any(path.suffix == ".tar" for path in files) and not any(path.is_dir() for path in folder.iterdir())


def tar_files(name: str) -> list[Path]:
    """The tars that a name stands for, sorted; {000..009} and {a,b} as a shell expands them."""
    if name.endswith((".gz", ".tgz")):
        raise BadInput(f"{name}: a compressed tar cannot be read in any order; unpack it to .tar first (gunzip)")
    folder = Path(name)
    if folder.is_dir():
        return sorted(folder.glob("*.tar"))
    names = _braces(name)
    found = sorted({Path(path) for each in names for path in (glob.glob(each) if set(each) & set("*?") else [each])})
    for path in found:
        if not path.is_file():
            raise BadInput(f"no tar shard {path}; check the pattern {name!r}")
    if not found:
        raise BadInput(f"no tar shard matches {name!r}; check the path")
    return found


def read_tars(name: str, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """Splits by the start of a shard's file name (train-, val-, test-); others are train."""
    entries: list[Entry] = []
    files = tar_files(name)
    for done, path in enumerate(files, start=1):
        split = SPLIT_STARTS.get(path.stem.lower().replace("_", "-").partition("-")[0], "train")
        entries += [(split, item, label) for item, label in samples(path)]
        if progress is not None:
            progress("reading tar shards", done, len(files))
    if not entries:
        raise BadInput(f"{name}: no image in {len(files)} tar shards; a sample is KEY.jpg with KEY.cls beside it")
    if not any(split == "train" for split, _, _ in entries):
        raise BadInput(f"{name}: the shards are all held out (val-, test-); name those to train on too")
    return from_items(entries, files[0].parent, channels, spec, progress, [])


def samples(path: Path) -> Iterator[tuple[TarItem, str]]:
    """(image, class name) of every sample of a tar, in its order; '' where there is no label."""
    key, image, label = "", None, ""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, part = base.partition(".")
                own = f"{folder}/{stem}"
                if own != key:
                    if image is not None:
                        yield image, label
                    key, image, label = own, None, ""
                part = part.lower()
                if f".{part.rpartition('.')[2]}" in SUFFIXES:
                    if image is not None:
                        raise BadInput(f"{path}: sample {key.strip('/')!r} has two images, {image.member} and "
                                       f"{member.name}; keep one of them")
                    image = TarItem(path, member.name, member.offset_data, member.size)
                elif part in LABEL_PARTS:
                    opened = tar.extractfile(member)
                    label = _label(opened.read() if opened else b"", part, f"{path}::{member.name}")
        if image is not None:
            yield image, label
    except tarfile.TarError as error:
        raise BadInput(f"{path}: cannot be read as a tar ({error}); copy it again") from None


def _label(content: bytes, part: str, where: str) -> str:
    try:
        text = content.decode("utf-8").strip()
        if part == "json":
            value = json.loads(text)
            value = next((value[key] for key in ("label", "cls", "class") if key in value), "") \
                if isinstance(value, dict) else value
            text = str(value).strip()
    except (UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{where}: cannot be read as a label ({error}); wanted a class number or name") from None
    return "" if text in ("-1", "None", "null") else text


def _braces(name: str) -> list[str]:
    before, opened, rest = name.partition("{")
    inside, closed, after = rest.partition("}")
    if not opened or not closed:
        return [name]
    first, dots, last = inside.partition("..")
    if dots and first.isdigit() and last.isdigit():
        parts = [str(i).zfill(len(first)) for i in range(int(first), int(last) + 1)]
    else:
        parts = inside.split(",")
    return [before + part + tail for part in parts for tail in _braces(after)]
