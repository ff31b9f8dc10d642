"""Tar shards in WebDataset form: the files of a sample share a key, and the parts after it say what each is.

The headers are read once, so every image can be reached by itself: order and resuming are those of any other source.
"""

from __future__ import annotations

import glob
import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from supancl.data.decode import SUFFIXES, file_stamp
from supancl.data.splits import NO_LABEL, SPLIT_NAMES, Entry, Listing
from supancl.data.store.memory import Progress
from supancl.errors import BadInput, plural

LABEL_PARTS = ("cls", "label", "json", "txt")  # of several, the first that says something: a .txt may be a caption
FEW = 20  # labelled images of which nobody can say that they have too many classes


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
        size, changed = file_stamp(self.tar)
        return size * 1_000_003 + self.offset, changed

    def open(self) -> Any:
        with open(self.tar, "rb") as file:
            file.seek(self.offset)
            return Image.open(io.BytesIO(file.read(self.length)))


def is_tar(name: str) -> bool:
    """`shards/train-000.tar`, `shards/train-{000..009}.tar`, `shards/*.tar`, or a folder of tars without images."""
    if name.endswith((".tar", ".tar.gz", ".tgz")):
        return True
    folder = Path(name)
    if not folder.is_dir():
        return False
    suffixes = {"/" if path.is_dir() else path.suffix.lower() for path in folder.iterdir() if path.name[0] != "."}
    return ".tar" in suffixes and not suffixes & {"/", *SUFFIXES}


def tar_files(name: str) -> list[Path]:
    """The tars that a name stands for, sorted; {000..009} and {a,b} as a shell expands them."""
    if name.endswith((".gz", ".tgz")):
        raise BadInput(f"{name}: a compressed tar cannot be read in any order; unpack it to .tar first (gunzip)")
    folder = Path(name)
    if folder.is_dir():
        return sorted(path for path in folder.glob("*.tar") if path.name[0] != ".")
    names = _braces(name)
    found = sorted({Path(path) for each in names for path in (glob.glob(each) if set(each) & set("*?") else [each])})
    for path in found:
        if not path.is_file():
            raise BadInput(f"no tar shard {path}; check the pattern {name!r}")
    if not found:
        raise BadInput(f"no tar shard matches {name!r}; check the path")
    return found


def list_tars(name: str, progress: Progress | None = None) -> Listing:
    """Splits by a word of a shard's file name (train-000, imagenet-val-000, test_0); others are train.

    Labels that are all numbers keep their order as numbers: .cls holds a class number to begin with.
    """
    entries: list[Entry] = []
    files = tar_files(name)
    for done, path in enumerate(files, start=1):
        split = split_of(path)
        entries += [(split, item, label) for item, label in samples(path.resolve())]
        if progress is not None:
            progress("reading tar shards", done, len(files))
    check_splits(name, len(files), {split for split, _, _ in entries})
    labels = [label for _, _, label in entries if label]
    remarks = remarks_on_captions(name, len(set(labels)), len(labels))
    return Listing(entries, files[0].parent, tuple(remarks), by_number=True)


def check_splits(name: str, shards: int, splits: set[str]) -> None:
    """Refuse shards without images to train on; `splits` are those that have an image."""
    if not splits:
        raise BadInput(f"{name}: no image in {plural(shards, 'tar shard')}; a sample is KEY.jpg with KEY.cls beside it")
    if "train" not in splits:
        raise BadInput(f"{name}: the shards are all held out (val-, test-); name those to train on too")


def remarks_on_captions(name: str, classes: int, labelled: int) -> list[str]:
    """A remark where labels can hardly be classes: shards of images with captions have those in .txt."""
    if labelled < FEW or 10 * classes <= 9 * labelled:
        return []
    return [
        f"{name}: {classes:,} classes for {labelled:,} labelled images; a .txt is read as a label, and where it is "
        "a caption every image is a class of its own"
    ]


def split_of(path: Path) -> str:
    """The last word of a shard's name that names a split."""
    named = [SPLIT_NAMES[word] for word in re.findall("[a-z]+", path.stem.lower()) if word in SPLIT_NAMES]
    return named[-1] if named else "train"


def samples(path: Path) -> Iterator[tuple[TarItem, str]]:
    """(image, class name) of every sample of a tar, in its order; '' where there is no label."""
    seen: set[str] = set()
    try:
        with tarfile.open(path, "r:") as tar:
            for key, members in itertools.groupby(_members(tar), key=lambda found: found[0]):
                if key in seen:
                    raise BadInput(
                        f"{path}: the files of sample {key!r} do not follow one another, or are there "
                        "twice; write the shard anew with each sample in one piece"
                    )
                seen.add(key)
                image, label = _sample(path, tar, key, members)
                if image is not None:
                    yield image, label
            _check_end(path, tar.offset)
    except tarfile.TarError as error:
        raise BadInput(f"{path}: cannot be read as a tar ({error}); copy it again") from None


def _sample(
    path: Path, tar: tarfile.TarFile, key: str, members: Iterable[tuple[str, str, tarfile.TarInfo]]
) -> tuple[TarItem | None, str]:
    image: TarItem | None = None
    labels: dict[str, str] = {}
    for _, part, member in members:
        if f".{part.rpartition('.')[2]}" in SUFFIXES:
            if image is not None:
                raise BadInput(
                    f"{path}: sample {key!r} has two images, {image.member} and {member.name}; keep one of them"
                )
            image = TarItem(path, member.name, member.offset_data, member.size)
        elif part in LABEL_PARTS:
            opened = tar.extractfile(member)
            label = _label(opened.read() if opened else b"", part, f"{path}::{member.name}")
            if label is not None:
                labels[part] = label
    return image, next((labels[part] for part in LABEL_PARTS if part in labels), "")


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """(key, what comes after the first dot, member); like webdataset, hidden and undotted names are passed over."""
    for member in tar:
        folder, slash, base = member.name.rpartition("/")
        stem, dot, part = base.partition(".")
        if member.isreg() and stem and dot:
            yield folder + slash + stem, part.lower(), member


def _check_end(path: Path, at: int) -> None:
    """tarfile takes a broken header, or none, for the end: without the empty block that ends a tar images are lost."""
    with open(path, "rb") as file:
        file.seek(at)
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE or any(block):
        raise BadInput(f"{path}: cannot be read as a tar (cut short or damaged at byte {at}); copy it again")


def _label(content: bytes, part: str, where: str) -> str | None:
    """A class name, '' for an image marked as unlabelled, None where a .json is about something else."""
    try:
        text = content.decode("utf-8").strip()
        if part == "json":
            value = json.loads(text)
            if isinstance(value, dict):
                named = [value[key] for key in ("label", "cls", "class") if key in value]
                if not named:
                    return None
                value = named[0]
            text = str(value).strip()
    except (UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{where}: cannot be read as a label ({error}); wanted a class number or name") from None
    return "" if text in (*NO_LABEL, "None") else text


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
