"""How much memory files from strangers take: under 1 GB if they are refused, else three times the decoded data.

Each case runs in a process of its own, which reports the peak of its memory (VmHWM). The files are small or have
holes: they claim gigabytes, and on HEAD before these bounds they took them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from supancl import BadInput
from supancl.core.encoders import EncoderSpec
from supancl.data.decode import decode
from supancl.data.opening import open_source
from supancl.data.spec import DataSpec
from supancl.runs.checkpoint import load_checkpoint
from supancl.runs.encoder_file import load_projector
from supancl.runs.folder import RunFolder
from supancl.runs.importing import open_encoder
from tests.forked import LIBRARIES
from tests.helpers import noise, picture
from tests.test_received import npy, npy_header, repack, sparse_tar

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")

REFUSED_MB = 1000
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload([*LIBRARIES, __name__])


def peak() -> float:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def read(source: str, channels: int = 3) -> object:
    return open_source(DataSpec(source=source), channels)


def decode_all(name: str, channels: int, height: int) -> None:
    assert decode(Path(name), channels).shape[1] == height


def run_reader(place: str, reader: Callable[..., object], arguments: tuple[object, ...], results: Connection) -> None:
    """In a process of its own: read a file; send the error, the peak in MB and how much of it came by reading."""
    os.chdir(place)
    torch.set_num_threads(1)
    before, error = peak(), ""
    try:
        reader(*arguments)
    except (BadInput, OSError, ValueError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    results.send((error, peak(), peak() - before))


def measure(place: Path, reader: Callable[..., object], *arguments: object) -> tuple[str, float, float]:
    """The error of a reader in a process of its own, its peak in MB, and how much of that came by reading."""
    receiver, sender = forks.Pipe(duplex=False)
    process = forks.Process(target=run_reader, args=(str(place), reader, arguments, sender))
    process.start()
    sender.close()
    try:
        error, peak_mb, taken = receiver.recv()
    finally:
        process.join(60)
    return error, peak_mb, taken


def bomb(path: Path, name: str = "train_images") -> None:
    """Half a GB of zeros in half a MB, without ever having them in memory."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        count = 2**9 if name == "train_images" else 8
        archive.writestr("train_labels.npy", npy(np.arange(count) % 2))
        if name != "train_images":
            archive.writestr("train_images.npy", npy(noise(8, 8, 8)))
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            member.write(npy_header((2**9, 2**10, 2**10)))
            for _ in range(2**5):
                member.write(bytes(2**24))


def hole(path: Path, start: bytes, nbytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(start)
    os.truncate(path, nbytes)


def webp_with_hole(place: Path) -> None:
    hole(place / "data" / "cat" / "x.webp", b"RIFF\xff\xff\xff\x7fWEBPVP8 ", 2**33)
    picture(place / "data" / "dog" / "x.png")


def compressed_checkpoint(place: Path) -> None:
    torch.save({"schema_version": 1, "a": torch.zeros(2**29 // 4)}, place / "x.pt")
    repack(place / "x.pt", zipfile.ZIP_DEFLATED)


def long_label(place: Path) -> None:
    """A label of 4 GB, none of them on the disk."""
    member = tarfile.TarInfo("a.cls")
    member.size = 2**32
    hole(place / "x.tar", member.tobuf(tarfile.GNU_FORMAT), 2**32 + 2048)


def projector_that_claims(place: Path) -> None:
    head = {"hidden": [40_000], "out": 40_000}
    metadata = {"schema_version": "1", "head": json.dumps(head), "input_width": "40000"}
    save_file({"0.weight": torch.zeros(1, 1)}, place / "projector.safetensors", metadata=metadata)


REFUSED = {
    "a sparse member": (lambda place: sparse_tar(place / "x.tar"), (read, "x.tar")),
    "a label of 4 GB": (long_label, (read, "x.tar")),
    "half a GB of images in half a MB": (lambda place: bomb(place / "x.npz"), (read, "x.npz")),
    "a compressed checkpoint": (compressed_checkpoint, (load_checkpoint, Path("x.pt"))),
    "a wide projector": (
        projector_that_claims,
        (load_projector, "."),
    ),
    "an image of 8 GB": (webp_with_hole, (read, "data")),
    "a line without end": (lambda place: hole(place / "x.csv", b"path,label\n0.png,", 10**10), (read, "x.csv")),
    "a recipe of 8 GB": (
        lambda place: hole(place / "recipe.json", b"{", 2**33),
        (RunFolder.read_recipe, RunFolder(Path("."))),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_takes_less_than_a_gigabyte(case, tmp_path):
    make, command = REFUSED[case]
    make(tmp_path)
    error, peak, _ = measure(tmp_path, *command)
    assert error
    assert peak < REFUSED_MB


def png_of_zeros(path: Path, size: tuple[int, int], bits: int, colours: bool = False) -> None:
    """A black PNG, without ever having its pixels in memory."""
    width, height = size
    packer = zlib.compressobj(1)
    row = bytes(1 + width * bits // 8 * (3 if colours else 1))
    content = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, 2 if colours else 0, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in {b"IHDR": header, b"IDAT": content, b"IEND": b""}.items():
            file.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))


@pytest.mark.parametrize(("bits", "colours", "channels"), [(16, True, 3), (16, False, 1)])
def test_a_large_picture_takes_three_times_its_pixels(bits, colours, channels, tmp_path):
    """170 million pixels, close to what Pillow accepts; its own copy has 2 bytes each in deep grey and 4 in colour."""
    size = (10_000, 17_000)
    png_of_zeros(tmp_path / "x.png", size, bits, colours)
    error, _, taken = measure(tmp_path, decode_all, "x.png", channels, size[1])
    assert not error
    pillow_bytes = 4 if colours or channels == 3 else bits // 8
    assert taken < 3 * max(channels, pillow_bytes) * size[0] * size[1] / 2**20


def test_what_nobody_asked_for_takes_nothing(tmp_path):
    bomb(tmp_path / "x.npz", "notes")
    error, _, taken = measure(tmp_path, read, "x.npz", 1)
    assert not error
    assert taken < 100
    state = EncoderSpec("resnet18").build().body.state_dict()
    torch.save({"state_dict": state, "optimizer": torch.zeros(2**28)}, tmp_path / "x.pt")
    error, _, taken = measure(tmp_path, open_encoder, "x.pt")
    assert not error
    assert taken < 300  # of 1 GB; the weights have 45 MB
