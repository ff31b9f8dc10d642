"""Source: tar shards in WebDataset form. The files of a sample share a key; the extension says what each is.

All headers are read first, so images can be read in any order, as from any other source. What they say is the index of
a shard: offsets, labels and names of its images, in one small file in the cache folder.
"""

from __future__ import annotations

import glob
import hashlib
import io
import itertools
import json
import math
import os
import random
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from supancl.config import parse_json
from supancl.data.decode import LISTED_SUFFIXES, check_image_bytes, file_stamp, map_in_order, open_image_bytes
from supancl.data.listing import SPLITS, Listing, make_listing
from supancl.data.splits import NO_LABEL, SPLIT_NAMES
from supancl.data.store.cache import TAR_INDEX_FOLDER, cache_root
from supancl.errors import BadInput
from supancl.files import make_inner_folder, open_regular, reason, remove_left_over_files, write_atomically
from supancl.reporter import report_progress

LABEL_EXTENSIONS = ("cls", "label", "json", "txt")  # in this order of preference: a .txt may be a caption
MAX_SHARDS = 1_000_000  # that a pattern may name: the largest public sets have a quarter of that
MAX_LABEL_BYTES = 2**16  # of a class name
MAX_JSON_BYTES = 2**20  # of a sample's .json, which may hold more than its label
INDEX_VERSION = 2
ARRAYS = {"offsets": "<i8", "lengths": "<i8", "codes": "<i4"}


@dataclass(frozen=True, eq=False)
class TarIndex:
    """A shard as it was when it was indexed: where its images are, and the numbers of their labels, -1 for none."""

    tar: Path
    stamp: tuple[int, int]
    offsets: np.ndarray
    lengths: np.ndarray
    codes: np.ndarray
    classes: list[str]
    digest: bytes  # of names and labels

    def __len__(self) -> int:
        return len(self.offsets)

    def check(self) -> None:
        """Refuse a shard that has changed since it was indexed: the offsets would be wrong."""
        try:
            changed = "it has changed" if file_stamp(self.tar) != self.stamp else ""
        except OSError as error:
            changed = reason(error)
        if changed:
            raise BadInput(
                f"{self.tar}: was readable before, now it is not ({changed}); restore it, then continue with resume"
            )


@dataclass(frozen=True, slots=True, eq=False)
class TarItem:
    """An image inside a tar."""

    shard: TarIndex
    position: int

    def __str__(self) -> str:
        return f"{self.shard.tar}::{_members(self.shard.tar, self.shard.stamp)[self.position]}"

    def stamp(self) -> tuple[int, int]:
        size, change_time = self.shard.stamp
        return size * 1_000_003 + int(self.shard.offsets[self.position]), change_time

    def open(self) -> Any:
        length = int(self.shard.lengths[self.position])
        check_image_bytes(length)
        with open_regular(self.shard.tar) as file:
            file.seek(int(self.shard.offsets[self.position]))
            return open_image_bytes(file.read(length))


class TarItems(Sequence[TarItem]):
    """The images of several shards, one after another."""

    def __init__(self, shards: Sequence[TarIndex]) -> None:
        self.shards = shards
        self.ends = np.cumsum([len(shard) for shard in shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        shard = int(np.searchsorted(self.ends, index, side="right"))
        return TarItem(self.shards[shard], int(index) - (int(self.ends[shard - 1]) if shard else 0))


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
    files = sorted(find_tars(name), key=lambda path: SPLITS.index(split_from_name(path)))
    shards = index_tars(files)
    numbers: dict[str, int] = {"": 0}
    labels, splits = [np.zeros(0, np.int32)], [np.zeros(0, np.uint8)]
    for path, shard in zip(files, shards, strict=True):
        table = [numbers.setdefault(label, len(numbers)) for label in shard.classes]
        labels.append(np.array([*table, 0], np.int32)[shard.codes])  # -1 is the last
        splits.append(np.full(len(shard), SPLITS.index(split_from_name(path)), np.uint8))
    items, split_numbers = TarItems([shard for shard in shards if len(shard)]), np.concatenate(splits)
    if not len(split_numbers):
        raise BadInput(f"{name}: no image in tar shards: {len(files)}; a sample is KEY.jpg and KEY.cls")
    if SPLITS.index("train") not in split_numbers:
        raise BadInput(f"{name}: all shards are held out (val-, test-); add shards to train on")
    return make_listing(items, split_numbers, np.concatenate(labels), list(numbers), name, by_number=True)


def split_from_name(path: Path) -> str:
    """The split that a shard's name says by its last such word; train if none."""
    splits = [SPLIT_NAMES[word] for word in re.findall("[a-z]+", path.stem.lower()) if word in SPLIT_NAMES]
    return splits[-1] if splits else "train"


# --- indexes ----------------------------------------------------------------------------------------------------------


def index_tars(files: Sequence[Path]) -> list[TarIndex]:
    """The index of each shard; missing or outdated ones are built."""
    tars = [path.resolve() for path in files]
    indexes: dict[Path, TarIndex | None] = dict(zip(tars, map_in_order(_read_index, tars), strict=True))

    def index(tar: Path) -> tuple[Path, TarIndex]:
        return tar, _read_index(tar) or _build_index(tar)  # another process may have built it meanwhile

    missing = [tar for tar in tars if indexes[tar] is None]
    shuffled = random.Random().sample(missing, len(missing))  # not seeded with the process id, which containers share
    for done, (tar, built) in enumerate(map_in_order(index, shuffled), start=1):
        indexes[tar] = built
        report_progress("indexing tar shards", done, len(missing))
    return [shard for tar in tars if (shard := indexes[tar]) is not None]


def index_path(tar: Path, stamp: tuple[int, int] | None = None) -> Path:
    """The name includes the shard's stamp: machines that share a cache may have different copies of the shard."""
    content = os.fsencode(f"{tar} {stamp or file_stamp(tar)}")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", tar.stem)[:40].strip("-") or "shard"
    return cache_root() / TAR_INDEX_FOLDER / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.zip"


def _read_index(tar: Path) -> TarIndex | None:
    """The index of a shard; None if it is missing, damaged or outdated."""
    with suppress(Exception):  # zipfile, zlib and json each raise something else
        stamp = file_stamp(tar)
        about, classes, *arrays = _read_fields(index_path(tar, stamp), "about", "classes", *ARRAYS)
        facts = parse_json(about)
        offsets, lengths, codes = (np.frombuffer(*array) for array in zip(arrays, ARRAYS.values(), strict=True))
        if facts["version"] == INDEX_VERSION and facts["stamp"] == list(stamp):
            return TarIndex(tar, stamp, offsets, lengths, codes, parse_json(classes), bytes.fromhex(facts["digest"]))
    return None


def _read_fields(path: Path, *names: str) -> list[bytes]:
    """Fields of an index file, each with its checksum verified.

    Not np.load: it parses a header for every array, which is not thread-safe in Python 3.11 (occasional "SystemError:
    AST constructor recursion depth mismatch").
    """
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        return [archive.read(name) for name in names]


@lru_cache(maxsize=8)
def _members(tar: Path, stamp: tuple[int, int]) -> list[str]:
    """The names of the images in a shard, from its index, or from the shard where that was deleted."""
    with suppress(Exception):
        return _read_fields(index_path(tar, stamp), "members")[0].decode("utf-8", "surrogateescape").split("\0")
    return [member.name for member, _ in iter_samples(tar)]


def _build_index(tar: Path) -> TarIndex:
    """The index of a shard, from its headers and labels; it is kept where the cache can be written."""
    stamp, samples = file_stamp(tar), list(iter_samples(tar))
    labels = [label for _, label in samples]
    classes = sorted(set(labels) - {""})
    codes = {label: i for i, label in enumerate(classes)} | {"": -1}
    names = [member.name for member, _ in samples]
    base_names = "\n".join(os.path.basename(name) for name in names).encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(json.dumps(labels).encode() + base_names).digest()
    offsets = np.array([member.offset for member, _ in samples], "<i8")
    lengths = np.array([member.length for member, _ in samples], "<i8")
    numbers = np.array([codes[label] for label in labels], "<i4")
    about = {"version": INDEX_VERSION, "tar": str(tar), "stamp": stamp, "digest": digest.hex()}
    fields = {"about": json.dumps(about).encode(), "classes": json.dumps(classes).encode()}
    fields["members"] = "\0".join(names).encode("utf-8", "surrogateescape")
    fields |= {"offsets": offsets.tobytes(), "lengths": lengths.tobytes(), "codes": numbers.tobytes()}

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, field in fields.items():
                archive.writestr(name, field)

    path = index_path(tar, stamp)
    with suppress(OSError):
        make_inner_folder(path.parent)
        remove_left_over_files(path.parent)
        with suppress(BadInput):
            write_atomically(path, write)
    return TarIndex(tar, stamp, offsets, lengths, numbers, classes, digest)


# --- samples ----------------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """An image in a tar: its name there, and where its bytes are."""

    name: str
    offset: int
    length: int


def iter_samples(path: Path) -> Iterator[tuple[Member, str]]:
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
) -> tuple[Member | None, str]:
    image: Member | None = None
    labels: dict[str, str] = {}
    for _, extension, member in members:
        if f".{extension.rpartition('.')[2]}" in LISTED_SUFFIXES:
            if image is not None:
                raise BadInput(
                    f"{path}: sample {key!r} has two images, {image.name} and {member.name}; keep one of them"
                )
            image = Member(member.name, member.offset_data, member.size)
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
