"""Open a .npz: what its arrays are is known from their headers, before any of them is read."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from supancl.errors import BadInput
from supancl.files import check_fits_memory, check_zip, open_regular

MAX_RATIO = 200  # of the bytes of an array to its bytes in the file: real images compress far less
MIN_CHECKED_BYTES = 2**28  # smaller arrays may have any ratio: labels in order compress by 1,000

Header = tuple[tuple[int, ...], "np.dtype[Any]"]  # shape and type


class NpzArchive:
    """An open .npz: `headers` has shape and type of each array; `read` reads one. Nothing is ever unpickled."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        members = {member.filename: member for member in archive.infolist()}
        self.members = {name.removesuffix(".npy"): member for name, member in members.items() if name.endswith(".npy")}
        self.headers = {name: self._read_header(member) for name, member in self.members.items()}

    def _read_header(self, member: zipfile.ZipInfo) -> Header:
        with self.archive.open(member) as file:
            shape, dtype = read_npy_header(file)
            header_bytes = file.tell()
        if dtype.hasobject:
            raise ValueError(
                f"{member.filename} holds pickled objects, which are never executed; save names as labels.astype(str)"
            )
        if math.prod(shape) * dtype.itemsize + header_bytes != member.file_size:
            raise ValueError(f"{member.filename} has {member.file_size:,} bytes, which do not fit its shape {shape}")
        return shape, dtype

    def check_sizes(self, names: Sequence[str]) -> None:
        """Refuse arrays that would not fit into memory, or that a small file blows up."""
        for name in names:
            size, stored = self.members[name].file_size, self.members[name].compress_size
            if size > MIN_CHECKED_BYTES and size > MAX_RATIO * stored:
                raise BadInput(
                    f"{self.path}: {name} has {size:,} bytes in {stored:,} of the file, more than {MAX_RATIO} times as "
                    "many; if you trust it, save it again with numpy.savez, which does not compress"
                )
        total = sum(self.members[name].file_size for name in names)
        check_fits_memory(total, f"{self.path}: {', '.join(names)}", "use a folder of images, or fewer of them")

    def read(self, name: str) -> np.ndarray:
        with self.archive.open(self.members[name]) as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            return array


def read_npy_header(file: IO[bytes]) -> Header:
    """Shape and type of an array, from the beginning of its file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[NpzArchive]:
    """Open a .npz; a file that is none raises whatever numpy and zipfile raise."""
    with open_regular(path) as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is a single array, not an archive")
        check_zip(file)
        with zipfile.ZipFile(file) as archive:
            yield NpzArchive(path, archive)
