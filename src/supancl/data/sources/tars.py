"""Source: tar shards in WebDataset form. The files of a sample share a key; the extension says what each is.

All headers are read first, so images can be read in any order, as from any other source.
"""

from __future__ import annotations

import glob
import io
import itertools
import math
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supancl.config import parse_json
from supancl.data.decode import LISTED_SUFFIXES, check_image_bytes, file_stamp, open_image_bytes
from supancl.data.splits import NO_LABEL, SPLIT_NAMES, Entry, Listing, check_label
from supancl.errors import BadInput, plural
from supancl.files import open_regular, reason
from supancl.reporter import report_progress

LABEL_EXTENSIONS = ("cls", "label", "json", "txt")  # in this order of preference: a .txt may be a caption
MAX_SHARDS = 1_000_000  # that a pattern may name: the largest public sets have a quarter of that
MAX_LABEL_BYTES = 2**16  # of a class name
MAX_JSON_BYTES = 2**20  # of a sample's .json, which may hold more than its label
MIN_LABELLED = 20  # with fewer, many classes are no reason for a remark


@dataclass(frozen=True, slots=True)
class TarItem:
    """An image inside a tar, located by the offset and length of its bytes."""

    tar: Path
    member: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.tar}::{self.member}"

    def stamp(self) -> tuple[int, int]:
        size, change_time = file_stamp(self.tar)
        return size * 1_000_003 + self.offset, change_time

    def open(self) -> Any:
        check_image_bytes(self.length)
        with open_regular(self.tar) as file:
            file.seek(self.offset)
            return open_image_bytes(file.read(self.length))


def is_tar(name: str) -> bool:
    """Whether the name is a tar, a pattern (train-{000..009}.tar, *.tar) or a folder of tars without images."""
    if name.endswith((".tar", ".tar.gz", ".tgz")):
        return True
    folder = Path(name)
    if not folder.is_dir():
        return False
    suffixes = {"/" if path.is_dir() else path.suffix.lower() for path in folder.iterdir() if path.name[0] != "."}
    return ".tar" in suffixes and not suffixes & {"/", *LISTED_SUFFIXES}


def find_tars(name: str) -> list[Path]:
    """The tars that a name matches, sorted; {000..009} and {a,b} are expanded as in a shell."""
    if name.endswith((".gz", ".tgz")):
        raise BadInput(f"{name}: a compressed tar has no random access; unpack it to .tar first (gunzip)")
    folder = Path(name)
    if folder.is_dir():
        return sorted(path for path in folder.glob("*.tar") if path.name[0] != ".")
    count = math.prod(len(choices) for choices in _parse_braces(name))
    if count > MAX_SHARDS:
        raise BadInput(f"{name}: the pattern names {count:,} tar shards, it may name {MAX_SHARDS:,}; check its {{..}}")
    paths: set[Path] = set()
    for pattern in map("".join, itertools.product(*_parse_braces(name))):
        for path in glob.glob(pattern) if set(pattern) & set("*?") else [pattern]:
            if not os.path.isfile(path):
                raise BadInput(f"no tar shard {path}; check the pattern {name!r}")
            paths.add(Path(path))
    if not paths:
        raise BadInput(f"no tar shard matches {name!r}; check the path")
    return sorted(paths)


def list_tars(name: str) -> Listing:
    """List the images of the shards; a word of the file name gives the split (imagenet-val-000), else it is train.

    If all labels are numbers they are sorted as numbers: .cls holds class numbers.
    """
    entries: list[Entry] = []
    files = find_tars(name)
    for done, path in enumerate(files, start=1):
        split = split_from_name(path)
        entries += [(split, item, label) for item, label in iter_samples(path.resolve())]
        report_progress("reading tar shards", done, len(files))
    check_splits(name, len(files), {split for split, _, _ in entries})
    labels = [label for _, _, label in entries if label]
    remarks = caption_remarks(name, len(set(labels)), len(labels))
    return Listing(entries, files[0].parent, tuple(remarks), by_number=True)


def check_splits(name: str, shards: int, splits: set[str]) -> None:
    """Refuse shards without training images; `splits` are those with at least one image."""
    if not splits:
        raise BadInput(f"{name}: no image in {plural(shards, 'tar shard')}; a sample is KEY.jpg and KEY.cls")
    if "train" not in splits:
        raise BadInput(f"{name}: all shards are held out (val-, test-); add shards to train on")


def caption_remarks(name: str, classes: int, labelled: int) -> list[str]:
    """A remark if almost every label is different: a .txt may be a caption, not a class."""
    if labelled < MIN_LABELLED or 10 * classes <= 9 * labelled:
        return []
    return [
        f"{name}: {classes:,} classes for {labelled:,} labelled images; a .txt is read as a label; "
        "if it is a caption, almost every image becomes a class"
    ]


def split_from_name(path: Path) -> str:
    """The split that a shard's name says by its last such word; train if none."""
    splits = [SPLIT_NAMES[word] for word in re.findall("[a-z]+", path.stem.lower()) if word in SPLIT_NAMES]
    return splits[-1] if splits else "train"


def iter_samples(path: Path) -> Iterator[tuple[TarItem, str]]:
    """(image, class name) of every sample of a tar, in order; '' if unlabelled."""
    keys: set[str] = set()
    try:
        with HeaderReader(open_regular(path)) as file, tarfile.open(path, "r:", file) as tar:
            for key, members in itertools.groupby(_iter_members(path, tar), key=lambda member: member[0]):
                if key in keys:
                    raise BadInput(
                        f"{path}: the files of sample {key!r} are not next to each other, or are there "
                        "twice; write the shard again with the files of a sample together"
                    )
                keys.add(key)
                image, label = _read_sample(path, tar, key, members)
                if image is not None:
                    yield image, label
            _check_end(path, tar.offset)
    except tarfile.TarError as error:
        raise BadInput(f"{path}: cannot be read as a tar ({error}); copy it again") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({reason(error)}); name a tar that you can read") from None


class HeaderReader(io.BufferedReader):
    """A tar of which only headers and labels are read. A header that claims to be long would fill the memory."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file.detach())

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_JSON_BYTES:
            raise tarfile.ReadError(f"a header claims {size:,} bytes" if size else "a header has no length")
        return super().read(size)


def _read_sample(
    path: Path, tar: tarfile.TarFile, key: str, members: Iterable[tuple[str, str, tarfile.TarInfo]]
) -> tuple[TarItem | None, str]:
    image: TarItem | None = None
    labels: dict[str, str] = {}
    for _, extension, member in members:
        if f".{extension.rpartition('.')[2]}" in LISTED_SUFFIXES:
            if image is not None:
                raise BadInput(
                    f"{path}: sample {key!r} has two images, {image.member} and {member.name}; keep one of them"
                )
            image = TarItem(path, member.name, member.offset_data, member.size)
        elif extension in LABEL_EXTENSIONS:
            location, limit = f"{path}::{member.name}", MAX_JSON_BYTES if extension == "json" else MAX_LABEL_BYTES
            if member.size > limit:
                raise BadInput(
                    f"{location} has {member.size:,} bytes, a label may have {limit:,}; write a class number or name"
                )
            file = tar.extractfile(member)
            label = _read_label(file.read() if file else b"", extension, location)
            if label is not None:
                labels[extension] = label
    return image, next((labels[extension] for extension in LABEL_EXTENSIONS if extension in labels), "")


def _iter_members(path: Path, tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """(key, everything after the first dot, member); skips hidden names and names without a dot, as webdataset does."""
    for member in tar:
        folder, slash, base = member.name.rpartition("/")
        stem, dot, extensions = base.partition(".")
        if member.issparse():
            raise BadInput(f"{path}::{member.name} is stored sparse; write the tar without sparse")
        if member.isreg() and stem and dot:
            yield folder + slash + stem, extensions.lower(), member


def _check_end(path: Path, offset: int) -> None:
    """Refuse a tar without its empty last block: tarfile ends at a broken header, so images would be lost."""
    with open_regular(path) as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE or any(block):
        raise BadInput(f"{path}: cannot be read as a tar (cut short or damaged at byte {offset}); copy it again")


def _read_label(content: bytes, extension: str, location: str) -> str | None:
    """The class name, '' if marked as unlabelled, None if a .json holds no label."""
    try:
        text = content.decode("utf-8").strip()
        if extension == "json":
            value = parse_json(text)
            if isinstance(value, dict):
                candidates = [value[key] for key in ("label", "cls", "class") if key in value]
                if not candidates:
                    return None
                value = candidates[0]
            text = str(value).strip()
    except (UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{location}: cannot be read as a label ({error}); it must be a class number or name") from None
    check_label(text, location)
    return "" if text in (*NO_LABEL, "None") else text


class NumberRange(Sequence[str]):
    """The numbers of a {000..009}, as long as the first one; none is held in memory."""

    def __init__(self, first: str, last: str) -> None:
        self.numbers, self.digits = range(int(first), int(last) + 1), len(first)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        return str(self.numbers[index]).zfill(self.digits)


def _parse_braces(name: str) -> list[Sequence[str]]:
    """The segments of a pattern in order, each with its choices: one for plain text, more for {000..009} and {a,b}."""
    segments: list[Sequence[str]] = []
    while name:
        before, open_brace, remainder = name.partition("{")
        content, close_brace, after = remainder.partition("}")
        if not open_brace or not close_brace:
            return [*segments, [name]]
        match = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", content)
        segments += [[before], NumberRange(*match.groups()) if match else content.split(",")]
        name = after
    return segments
