"""Run folders, caches and files from strangers: nothing is written through a link, nothing waits for a FIFO, only the
documented image formats are opened, and what a file claims is checked before memory is taken for it.

How much memory that takes is measured in tests/faults/test_memory.py.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from supancl import BadInput, load_encoder
from supancl.cli import main
from supancl.core.encoders import Encoder, EncoderSpec, tensor_shapes
from supancl.data import decode
from supancl.data.store.cache import Cache
from supancl.detection.train import DetectFolder
from supancl.files import check_regular, open_regular, read_text
from supancl.runs.checkpoint import load_tensors
from supancl.runs.folder import RunFolder
from supancl.runs.importing import open_encoder
from tests.helpers import (
    TINY,
    assert_refused,
    class_folders,
    contents,
    mentions,
    noise,
    picture,
    png,
    supancl,
    write_tar,
)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def alarm():
    """What hangs fails, and does not hold up the other tests."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits for something that never comes")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run, and the data it was trained on beside it."""
    root = tmp_path_factory.mktemp("received")
    class_folders(root / "data")
    command = ["pretrain", "digits.supsiam", *TINY, "--data", str(root / "data"), "--out", str(root / "run"), "--quiet"]
    assert main(command) == 0
    return root / "run"


# --- links in a run folder --------------------------------------------------------------------------------------------


@pytest.fixture
def mine(place) -> Path:
    """What the user has elsewhere: a file and a folder, which nothing may change."""
    (place / "mine").mkdir()
    (place / "mine" / "thesis.tex").write_text("years of work")
    (place / "mine" / "empty").mkdir()
    return place / "mine"


TARGETS = {".lock": "thesis.tex", "metrics.jsonl": "thesis.tex", "checkpoints": "empty", "tensorboard": "empty"}
RESUME = ("pretrain", "--resume", "--out", "run", "--device", "cpu")


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_a_run_does_not_start_or_continue_through_links(name, resumes, place, mine, finished, capsys):
    class_folders(place / "data")
    shutil.copytree(finished, place / "run") if resumes else (place / "run").mkdir()
    path = place / "run" / name
    if path.exists():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(mine / TARGETS[name])
    before = contents(place)
    begin = ("pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "run")
    assert_refused(supancl(capsys, *(RESUME if resumes else begin)), f"run/{name}", "link")
    assert contents(place) == before


def test_an_evaluation_is_not_written_through_a_link(place, mine, finished, capsys):
    shutil.copytree(finished, place / "run")
    (place / "run" / "evaluate").symlink_to(mine / "empty")
    before = contents(place)
    assert_refused(supancl(capsys, "evaluate", "knn", "run", "--device", "cpu"), "run/evaluate", "link")
    assert contents(place) == before
    with pytest.raises(BadInput, match=mentions("run/evaluate", "link")):
        RunFolder(Path("run")).write_evaluation("knn", {})
    with pytest.raises(BadInput, match=mentions("run/evaluate", "link")):
        DetectFolder(Path("run")).check_free(resume=True)
    assert contents(place) == before


def test_files_may_be_read_through_links(place, finished, capsys):
    """As in a snapshot of the Hugging Face hub, where every file is a link."""
    shutil.copytree(finished, place / "there")
    for folder in ("run", "run/checkpoints"):
        (place / folder).mkdir()
    for path in sorted((place / "there").rglob("*")):
        relative = path.relative_to(place / "there")
        if path.is_file() and relative.name not in (".lock", "metrics.jsonl") and relative.parts[0] != "tensorboard":
            (place / "run" / relative).symlink_to(path)
    shutil.copy(place / "there" / "metrics.jsonl", place / "run")
    there = contents(place / "there")
    assert supancl(capsys, *RESUME, "--epochs", "2").code == 2, "a run keeps its settings"
    assert supancl(capsys, *RESUME).code == 0
    assert supancl(capsys, "evaluate", "knn", "run", "--device", "cpu").code == 0
    assert contents(place / "there") == there


# --- links in a cache -------------------------------------------------------------------------------------------------


def cached(place: Path) -> tuple[Cache, list[Path]]:
    files = [picture(place / "data" / f"{i}.png", seed=i) for i in range(3)]
    return Cache("here", 1, None), files


def test_a_cache_is_not_built_through_a_link(place, mine, cache_root):
    cache, files = cached(place)
    cache.folder.parent.mkdir(parents=True)
    cache.folder.symlink_to(mine / "empty")
    with pytest.raises(BadInput, match=mentions(cache.folder, "link")):
        cache.build(files)
    assert list((mine / "empty").iterdir()) == []


# --- what is no regular file ------------------------------------------------------------------------------------------


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(path.name)  # relative: the name of a socket is short
    bound.close()


def make_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = {"fifo": make_fifo, "socket": make_socket, "device": make_link_to_device}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(kind, place, alarm):
    KINDS[kind](place / "x")
    for read in (check_regular, open_regular, read_text):
        with pytest.raises(OSError, match="regular file"):
            read(place / "x")
    with pytest.raises(IsADirectoryError):
        open_regular(place)
    (place / "y").write_text("text")
    (place / "z").symlink_to(place / "y")
    assert read_text(place / "z") == "text"
    with pytest.raises(OSError, match="4 bytes, more than 3"):
        read_text(place / "z", limit=3)


# --- image formats ----------------------------------------------------------------------------------------------------


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def test_an_eps_by_another_name_starts_no_program(place, monkeypatch, capsys):
    from PIL import EpsImagePlugin

    program = place / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {place / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    (place / "eps.jpg").write_bytes(EPS)
    with pytest.raises(OSError, match=r"."), Image.open("eps.jpg") as image:  # Pillow itself starts it
        image.load()
    assert (place / "started").exists()
    (place / "started").unlink()
    class_folders(place / "data")
    (place / "data" / "cat" / "x.jpg").write_bytes(EPS)
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", "data", "--out", "out")
    assert_refused(said, "data/cat/x.jpg", "no known image format", "skip_bad_images")
    write_tar(place / "x.tar", [("a.jpg", EPS), ("a.cls", b"0"), ("b.png", png(0)), ("b.cls", b"1")])
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--data", "x.tar", "--out", "out")
    assert_refused(said, "x.tar::a.jpg", "no known image format", "skip_bad_images")
    assert not (place / "started").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Pillow's, of formats that we do not open
def test_only_the_formats_of_the_known_suffixes_are_opened(place):
    Image.init()
    opened = set()
    for name in sorted(Image.SAVE.keys() & Image.OPEN.keys()):
        for mode in ("L", "RGB", "1", "P", "RGBA"):
            file = io.BytesIO()
            try:
                Image.fromarray(noise(32, 32)).convert(mode).save(file, name)
                Image.open(io.BytesIO(file.getvalue())).load()
            except (OSError, ValueError, KeyError, AttributeError, NotImplementedError, SystemError):
                continue
            (place / "x.png").write_bytes(file.getvalue())
            outcome = decode.try_decode(place / "x.png", 1, None, "bilinear")
            if isinstance(outcome, str):
                assert outcome == "no known image format", name
            else:
                opened.add(name)
            break
    assert opened == set(decode.IMAGE_FORMATS)
    assert {Image.registered_extensions()[suffix] for suffix in decode.IMAGE_SUFFIXES} == set(decode.IMAGE_FORMATS)


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["L", "RGB", "RGBA", "I;16"])
def test_pictures_are_converted_in_bands_as_they_are_at_once(kind, channels, place, monkeypatch):
    path = place / "x.tif"
    if kind == "I;16":
        deep = np.random.default_rng(0).integers(0, 65536, (37, 23)).astype(np.uint16)
        Image.fromarray(deep).save(path)
        expected = (deep / 257).round().astype(np.uint8)
    else:
        Image.fromarray(noise(37, 23, 4)).convert(kind).save(path)
        expected = None
    at_once = decode.decode(path, channels)
    monkeypatch.setattr(decode, "BAND_PIXELS", 50)
    in_bands = decode.decode(path, channels)
    assert torch.equal(in_bands, at_once)
    assert in_bands.is_contiguous()
    if expected is not None:
        assert (in_bands.numpy() == expected).all()


# --- tar shards -------------------------------------------------------------------------------------------------------


def sparse_tar(path: Path) -> None:
    """A member in the old sparse form of GNU tar: one byte, and a claim of 8 GB."""
    member = tarfile.TarInfo("a.cls")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 1
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 1)
    header[483:495] = b"%011o\0" % (2**33 - 1)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(bytes(header) + b"1".ljust(512, b"\0") + bytes(1024))


# --- arrays -----------------------------------------------------------------------------------------------------------


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def npz(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


# --- weights ----------------------------------------------------------------------------------------------------------


def encoder_file(path: Path, **spec: object) -> Path:
    """An encoder.safetensors with one small tensor, which names any architecture."""
    content = {"name": "cnn", "channels": 3, "size": 32, "mean": [0.5] * 3, "std": [0.5] * 3} | spec
    save_file({"a": torch.zeros(1)}, path, metadata={"schema_version": "1", "encoder": json.dumps(content)})
    return path


GIANTS = [
    {"name": "cnn", "width": 20_000},
    {"name": "linear", "width": 100_000, "size": 10_000},
    {"name": "vit-small", "size": 16_000},
    {"name": "resnet152"},
    {"name": "torchvision:resnet152"},
]


@pytest.mark.parametrize("spec", GIANTS, ids=lambda spec: spec["name"])
def test_a_claimed_architecture_is_compared_before_it_is_built(spec, place, monkeypatch, capsys):
    encoder_file(place / "x.safetensors", **spec)
    monkeypatch.setattr(Encoder, "__init__", None)  # not even called
    for read in (load_encoder, open_encoder):
        with pytest.raises(BadInput, match=mentions("x.safetensors", spec["name"], "another architecture")):
            read(place / "x.safetensors")


@pytest.mark.parametrize(
    "name", ["cnn", "linear", "cifar-resnet18", "vit-small", "timm:resnet18", "torchvision:resnet18"]
)
def test_shapes_without_memory_are_those_of_the_encoder(name):
    spec = EncoderSpec(name, 3, 32, 16 if name in ("cnn", "linear") else None)
    state = torch.random.get_rng_state()
    shapes = tensor_shapes(spec)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert shapes == {key: value.shape for key, value in spec.build().body.state_dict().items()}


def test_a_claimed_detector_is_compared_before_it_is_built(place, monkeypatch):
    from supancl.config import to_json
    from supancl.detection import DetectSpec, model

    spec = {"name": "resnet18", "channels": 3, "size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
    metadata = {
        "schema_version": "1", "kind": "detector", "spec": json.dumps(to_json(DetectSpec())),
        "encoder": json.dumps(spec), "classes": json.dumps([str(i) for i in range(1000)]),
    }  # fmt: skip
    save_file({"a": torch.zeros(1)}, place / "detector.safetensors", metadata=metadata)
    built, really = [], model.build_detector
    monkeypatch.setattr(model, "build_detector", lambda *given: built.append(really(*given)) or built[-1])
    with pytest.raises(BadInput, match=mentions("detector.safetensors", "do not fit")):
        model.load_detector(place)
    assert [all(value.is_meta for value in module.parameters()) for module in built] == [True]


def torch_file(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def repack(path: Path, compression: int) -> None:
    with zipfile.ZipFile(path) as before:
        members = {member.filename: before.read(member) for member in before.infolist()}
    npz(path, members, compression)


def test_a_long_pickle_is_refused(place, monkeypatch):
    torch_file(place / "x.pt", {"list": list(range(1000))})
    assert load_tensors(place / "x.pt")["list"][-1] == 999
    monkeypatch.setattr("supancl.runs.checkpoint.MAX_PICKLE_BYTES", 1000)
    with pytest.raises(BadInput, match=mentions("x.pt", "claims more bytes", "save its tensors")):
        load_tensors(place / "x.pt")


def test_tensors_that_repeat_few_bytes_are_refused(place):
    torch_file(place / "x.pt", {"conv1.weight": torch.zeros(1).expand(10**5, 10**6)})
    with pytest.raises(BadInput, match=mentions("x.pt", "400,000,000,000", "contiguous")):
        open_encoder(f"resnet18@{place / 'x.pt'}")
