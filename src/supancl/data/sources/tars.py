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
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from supancl.config import parse_json
from supancl.data.decode import LISTED_SUFFIXES, MadeItem, check_image_bytes, file_stamp, map_in_order, open_image_bytes
from supancl.data.labels import NO_LABEL
from supancl.data.splits import SPLIT_NAMES, SPLITS, Source, make_source
from supancl.data.store.cache import TAR_INDEX_FOLDER, cache_root
from supancl.data.store.memory import LazyItems
from supancl.errors import BadInput
from supancl.files import make_inner_folder, open_regular, reason, remove_left_over_files, write_bytes
from supancl.reporter import track

LABEL_EXTENSIONS = ("cls", "json")  # in this order of preference
MAX_SHARDS = 1_000_000  # that a pattern may name: the largest public sets have a quarter of that
MAX_LABEL_BYTES = 2**20  # a .json may hold more than its label
INDEX_VERSION = 5
FIELDS = ("offsets", "lengths", "codes", "texts", "members", "digest")


@dataclass(frozen=True, eq=False)
class TarIndex:
    """A shard as it was when it was indexed: where its images are, and the numbers of their labels, -1 for none."""

    tar: Path
    stamp: tuple[int, int]
    offsets: np.ndarray
    lengths: np.ndarray
    codes: np.ndarray
    texts: np.ndarray  # bytes, as the next two: JSON of the class names
    members: np.ndarray  # of the names of the images
    digest: np.ndarray  # of names and labels

    @cached_property
    def names(self) -> list[str]:
        return self.members.tobytes().decode("utf-8", "surrogateescape").split("\0")

    def check(self) -> None:
        """Refuse a shard that has changed since it was indexed: the offsets would be wrong."""
        if not self.tar.exists() or file_stamp(self.tar) != self.stamp:
            raise BadInput(f"{self.tar}: it has changed or is gone; restore it, then continue with resume")

    def open(self, position: int) -> Any:
        length = int(self.lengths[position])
        check_image_bytes(length)
        with open_regular(self.tar) as file:
            file.seek(int(self.offsets[position]))
            return open_image_bytes(file.read(length))


class TarItems(LazyItems):
    """The images of several shards, one after another."""

    def __init__(self, shards: Sequence[TarIndex]) -> None:
        self.shards = shards
        self.ends = np.cumsum([len(shard.offsets) for shard in shards], dtype=np.int64)
        super().__init__(int(self.ends[-1]) if shards else 0, self._item)

    def _item(self, index: int) -> MadeItem:
        number = int(np.searchsorted(self.ends, index, side="right"))
        shard, position = self.shards[number], index - (int(self.ends[number - 1]) if number else 0)
        (size, change_time), offset = shard.stamp, int(shard.offsets[position])
        name = f"{shard.tar}::{shard.names[position]}"
        return MadeItem(name, partial(shard.open, position), lambda: (size * 1_000_003 + offset, change_time))


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
    if Path(name).is_dir():
        return sorted(path for path in Path(name).glob("*.tar") if path.name[0] != ".")
    choices: list[Sequence[str]] = []
    for number, text in enumerate(re.split(r"\{([^{}]*)\}", name)):
        ends = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", text) if number % 2 else None  # those in braces
        numbers = range(int(ends[1]), min(int(ends[2]) + 1, int(ends[1]) + MAX_SHARDS)) if ends else ()
        width = len(ends[1]) if ends else 0
        choices.append([str(n).zfill(width) for n in numbers] or (text.split(",") if number % 2 else [text]))
    patterns = map("".join, itertools.islice(itertools.product(*choices), MAX_SHARDS))
    paths = {path for each in patterns for path in (glob.glob(each) if set(each) & set("*?") else [each])}
    missing = sorted(path for path in paths if not os.path.isfile(path))
    if missing or not paths or name.endswith((".gz", ".tgz")):
        raise BadInput(f"no tar shard {missing[0] if missing else name}; check the pattern, and unpack .tar.gz to .tar")
    return sorted(map(Path, paths))


def list_tars(name: str) -> Source:
    """List the images of the shards; a word of the file name gives the split (imagenet-val-000), else it is train.

    If all labels are numbers they are sorted as numbers: .cls holds class numbers.
    """
    files = sorted(find_tars(name), key=lambda path: SPLITS.index(split_from_name(path)))
    shards = index_tars(files)
    numbers: dict[str, int] = {"": 0}
    labels, splits = [np.zeros(0, np.int32)], [np.zeros(0, np.uint8)]
    for path, shard in zip(files, shards, strict=True):
        table = [numbers.setdefault(label, len(numbers)) for label in parse_json(shard.texts.tobytes())]
        labels.append(np.array([*table, 0], np.int32)[shard.codes])  # -1 is the last
        splits.append(np.full(len(shard.offsets), SPLITS.index(split_from_name(path)), np.uint8))
    items, split_numbers = TarItems([shard for shard in shards if len(shard.offsets)]), np.concatenate(splits)
    if SPLITS.index("train") not in split_numbers:
        raise BadInput(f"{name}: no image to train on; a sample is KEY.jpg and KEY.cls, val- and test- are held out")
    sets = [{label: 1.0} if label else {} for label in numbers]
    return make_source(items, split_numbers, np.concatenate(labels), sets, name, by_number=True)


def split_from_name(path: Path) -> str:
    """The split that a shard's name says by its last such word; train if none."""
    splits = [SPLIT_NAMES[word] for word in re.findall("[a-z]+", path.stem.lower()) if word in SPLIT_NAMES]
    return splits[-1] if splits else "train"


# --- indexes ----------------------------------------------------------------------------------------------------------


def index_tars(files: Sequence[Path]) -> list[TarIndex]:
    """The index of each shard; missing or outdated ones are built."""
    indexes = {path.resolve(): _read_index(path.resolve()) for path in files}  # np.load is not safe in threads (3.11)
    missing = [tar for tar, index in indexes.items() if index is None]
    for index in track(map_in_order(_build_index, missing), "indexing tar shards", len(missing)):
        indexes[index.tar] = index
    return [index for index in indexes.values() if index is not None]


def index_path(tar: Path) -> Path:
    """The name includes the shard's stamp: machines that share a cache may have different copies of the shard."""
    key = hashlib.sha256(os.fsencode(f"{tar} {file_stamp(tar)} {INDEX_VERSION}")).hexdigest()[:16]
    return cache_root() / TAR_INDEX_FOLDER / f"{key}.npz"


def _read_index(tar: Path) -> TarIndex | None:
    """The index of a shard; None if it is missing or damaged."""
    # zipfile and zlib each raise something else
    with suppress(Exception), open_regular(index_path(tar)) as file, np.load(file, allow_pickle=False) as saved:
        return TarIndex(tar, file_stamp(tar), **{name: saved[name] for name in FIELDS})
    return None


def _build_index(tar: Path) -> TarIndex:
    """The index of a shard, from its headers and labels; it is kept where the cache can be written."""
    stamp, path, samples = file_stamp(tar), index_path(tar), list(iter_samples(tar))
    labels, names = [label for _, label in samples], [image.name for image, _ in samples]
    classes = sorted(set(labels) - {""})
    number_of = {label: i for i, label in enumerate(classes)} | {"": -1}
    base_names = "\n".join(os.path.basename(name) for name in names).encode("utf-8", "surrogateescape")
    texts = {
        "texts": json.dumps(classes).encode(),
        "members": "\0".join(names).encode("utf-8", "surrogateescape"),
        "digest": hashlib.sha256(json.dumps(labels).encode() + base_names).digest(),
    }
    fields: dict[str, Any] = {
        "offsets": np.array([image.offset_data for image, _ in samples], np.int64),
        "lengths": np.array([image.size for image, _ in samples], np.int64),
        "codes": np.array([number_of[label] for label in labels], np.int32),
        **{name: np.frombuffer(text, np.uint8) for name, text in texts.items()},
    }
    with suppress(OSError, BadInput):
        make_inner_folder(path.parent)
        remove_left_over_files(path.parent)
        np.savez(content := io.BytesIO(), **fields)
        write_bytes(path, content.getvalue())
    return TarIndex(tar, stamp, **fields)


# --- samples ----------------------------------------------------------------------------------------------------------


def iter_samples(path: Path) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """(image, class name) of every sample of a tar, in order; '' if unlabelled."""
    keys: set[str] = set()
    try:
        with HeaderReader(open_regular(path)) as file, tarfile.open(path, "r:", file) as tar:
            for key, members in itertools.groupby(_iter_members(tar), key=lambda member: member[0]):
                image, label = _read_sample(tar, members)
                if key in keys:
                    raise ValueError(f"the files of sample {key!r} are not next to each other, or are there twice")
                keys.add(key)
                if image is not None:
                    yield image, label
            file.seek(tar.offset)  # tarfile ends at a broken header, so images would be lost
            block = file.read(tarfile.BLOCKSIZE)
            if len(block) < tarfile.BLOCKSIZE or any(block):
                raise ValueError(f"cut short or damaged at byte {tar.offset}")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise BadInput(f"{path}: not a tar of samples ({reason(error)}); write or copy it again") from None


class HeaderReader(io.BufferedReader):
    """A tar of which only headers and labels are read. A header that claims to be long would fill the memory."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file.detach())

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_LABEL_BYTES:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return super().read(size)


def _iter_members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """(key, everything after the first dot, member); skips hidden names and names without a dot, as webdataset does."""
    for member in tar:
        folder, slash, base = member.name.rpartition("/")
        stem, dot, extensions = base.partition(".")
        if member.issparse():
            raise ValueError(f"{member.name} is stored sparse")
        if member.isreg() and stem and dot:
            yield folder + slash + stem, extensions.lower(), member


def _read_sample(
    tar: tarfile.TarFile, members: Iterable[tuple[str, str, tarfile.TarInfo]]
) -> tuple[tarfile.TarInfo | None, str]:
    image: tarfile.TarInfo | None = None
    labels: dict[str, str] = {}
    for _, extension, member in members:
        if f".{extension.rpartition('.')[2]}" in LISTED_SUFFIXES:
            if image is not None:
                raise ValueError(f"{image.name} and {member.name} are two images of one sample")
            image = member
        elif extension in LABEL_EXTENSIONS:
            try:
                labels[extension] = _read_label(tar, member, extension)
            except ValueError as error:
                raise ValueError(f"{member.name}: {error}") from None
    return image, labels.get("cls", labels.get("json", ""))


def _read_label(tar: tarfile.TarFile, member: tarfile.TarInfo, extension: str) -> str:
    """The class name, '' if there is none."""
    if member.size > MAX_LABEL_BYTES or (file := tar.extractfile(member)) is None:
        raise ValueError(f"{member.size:,} bytes, a label may have {MAX_LABEL_BYTES:,}")
    text = file.read().decode("utf-8").strip()
    if extension == "json":
        value = parse_json(text)
        text = str(value.get("label", value.get("cls", "")) if isinstance(value, dict) else value).strip()
    return "" if text in (*NO_LABEL, "None") else text
