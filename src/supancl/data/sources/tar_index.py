"""The index of a tar shard: offsets, labels and names of its images, in one small file in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from supancl.config import parse_json
from supancl.data.decode import file_stamp, image_problem, map_in_order
from supancl.data.sources.tars import iter_samples
from supancl.data.store.cache import TAR_INDEX_FOLDER, cache_root
from supancl.errors import BadInput
from supancl.files import make_inner_folder, open_regular, reason, remove_left_over_files, write_atomically
from supancl.reporter import report_progress

INDEX_VERSION = 2
ARRAY_DTYPES = {"offsets": "<i8", "lengths": "<i8", "codes": "<i4"}
# raised by zipfile and json for a missing, truncated or altered file
READ_ERRORS = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
FREE_SPACE_ADVICE = "make room, or set SUPANCL_CACHE to another folder"
REBUILD_LOCK = threading.Lock()  # two threads would write to the same temporary file


@dataclass(frozen=True)
class TarIndex:
    """The state of a shard when it was indexed; the arrays of the index stay on disk."""

    tar: Path
    path: Path
    stamp: tuple[int, int]
    images: int
    labelled: int
    digest: bytes  # of names and labels

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """Offsets, lengths, class numbers (-1: unlabelled), and the class names of the numbers."""
        self.check()
        *arrays, classes = self._read_fields(*ARRAY_DTYPES, "classes")
        offsets, lengths, codes = (np.frombuffer(*array) for array in zip(arrays, ARRAY_DTYPES.values(), strict=True))
        return offsets, lengths, codes, parse_json(classes)

    def members(self) -> list[str]:
        """The names of the images in the shard."""
        return self._read_fields("members")[0].decode("utf-8", "surrogateescape").split("\0")

    def _read_fields(self, *names: str) -> list[bytes]:
        """Fields of the index file; a missing or damaged file is rebuilt from the shard."""
        with suppress(*READ_ERRORS):
            return _read_fields(self.path, *names)
        with REBUILD_LOCK:
            try:
                return _read_fields(self.path, *names)  # another thread may have rebuilt it
            except READ_ERRORS:
                self.check()
                _write_index(self.tar)
            try:
                return _read_fields(self.path, *names)
            except READ_ERRORS as error:
                raise BadInput(
                    f"{self.path}: the index of {self.tar} cannot be stored ({reason(error)}); continue with resume"
                ) from None

    def check(self) -> None:
        """Refuse a shard that has changed since it was indexed: the offsets would be wrong."""
        try:
            changed = "it has changed" if file_stamp(self.tar) != self.stamp else ""
        except OSError as error:
            changed = image_problem(error)
        if changed:
            raise BadInput(
                f"{self.tar}: was readable before, now it is not ({changed}); restore it, then continue with resume"
            )


def index_tars(files: Sequence[Path], on_classes: Callable[[int, list[str]], None]) -> list[TarIndex]:
    """The index of each shard; missing or outdated ones are built.

    Calls `on_classes` with each shard's number and class names; together they may be too many to hold.
    """
    tars = [path.resolve() for path in files]
    with suppress(OSError):
        os.utime(cache_root() / TAR_INDEX_FOLDER)  # last used: what eviction goes by
    indexes: dict[int, TarIndex] = {}

    def read_indexes(numbers: Iterable[int]) -> list[int]:
        """Read these indexes; returns the numbers of the shards that have no current one."""
        outdated = []
        for number, current in map_in_order(lambda number: (number, _read_current(tars[number])), numbers):
            if current is None:
                outdated.append(number)
            else:
                indexes[number] = current[0]
                on_classes(number, current[1])
        return outdated

    missing = read_indexes(range(len(tars)))
    if missing:
        _index_all([tars[number] for number in missing])
        for number in read_indexes(missing):
            raise BadInput(f"{tars[number]}: changes while it is being read; start when it is complete")
    return [indexes[number] for number in range(len(tars))]


def _index_all(tars: Sequence[Path]) -> None:
    """Index shards in a random order, so that processes share the work; two that do the same one write the same."""

    def index(tar: Path) -> None:
        if _read_current(tar) is None:  # another process may have built it meanwhile
            _write_index(tar)

    shuffled = random.Random().sample(tars, len(tars))  # not seeded with the process id, which containers share
    for done, _ in enumerate(map_in_order(index, shuffled), start=1):
        report_progress("indexing tar shards", done, len(tars))


def index_path(tar: Path, stamp: tuple[int, int] | None = None) -> Path:
    """The name includes the shard's stamp: machines that share a cache may have different copies of the shard."""
    content = os.fsencode(f"{tar} {stamp or file_stamp(tar)}")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", tar.stem)[:40].strip("-") or "shard"
    return cache_root() / TAR_INDEX_FOLDER / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.zip"


def _read_current(tar: Path) -> tuple[TarIndex, list[str]] | None:
    """The index of a shard and its class names; None if it is missing or outdated."""
    try:
        stamp = file_stamp(tar)
        path = index_path(tar, stamp)
        about, classes = (parse_json(field) for field in _read_fields(path, "about", "classes"))
        if about["version"] != INDEX_VERSION or about["stamp"] != list(stamp):
            return None
        digest = bytes.fromhex(about["digest"])
        return TarIndex(tar, path, stamp, int(about["images"]), int(about["labelled"]), digest), classes
    except (*READ_ERRORS, TypeError):
        return None


def _read_fields(path: Path, *names: str) -> list[bytes]:
    """Fields of an index file, each with its checksum verified.

    Not np.load: it parses a header for every array, which is not thread-safe in Python 3.11 (occasional "SystemError:
    AST constructor recursion depth mismatch").
    """
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        return [archive.read(name) for name in names]


def _write_index(tar: Path) -> None:
    """Write the index of a shard, from its headers and labels."""
    stamp = file_stamp(tar)
    path = index_path(tar, stamp)
    found_samples = list(iter_samples(tar))
    labels = [label for _, label in found_samples]
    classes = sorted(set(labels) - {""})
    codes = {label: i for i, label in enumerate(classes)} | {"": -1}
    members = "\0".join(item.member for item, _ in found_samples).encode("utf-8", "surrogateescape")
    names = "\n".join(Path(item.member).name for item, _ in found_samples).encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(json.dumps(labels).encode() + names).digest()
    labelled = sum(label != "" for label in labels)
    about = {
        "version": INDEX_VERSION,
        "tar": str(tar),
        "stamp": stamp,
        "images": len(found_samples),
        "labelled": labelled,
        "digest": digest.hex(),
    }
    columns = (
        [item.offset for item, _ in found_samples],
        [item.length for item, _ in found_samples],
        [codes[label] for label in labels],
    )
    fields = {"about": json.dumps(about).encode(), "classes": json.dumps(classes).encode(), "members": members}
    fields |= {
        name: np.array(column, ARRAY_DTYPES[name]).tobytes() for name, column in zip(ARRAY_DTYPES, columns, strict=True)
    }

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, field in fields.items():
                archive.writestr(name, field)

    try:
        make_inner_folder(path.parent)
    except OSError as error:
        raise BadInput(f"the cache {path.parent} cannot be written ({reason(error)}); {FREE_SPACE_ADVICE}") from None
    remove_left_over_files(path.parent)
    write_atomically(path, write, FREE_SPACE_ADVICE)
