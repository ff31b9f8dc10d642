"""The packed cache: the pixels of the files and never others, whatever happens to either of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from supancl.data import decode as decode_module
from supancl.data.decode import decode
from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.data.store import cache as cache_module
from supancl.data.store.cache import Cache
from supancl.data.store.memory import PackedImages
from supancl.errors import BadInput
from supancl.reporter import ProgressFunction, report_to
from tests.helpers import mentions, picture, supancl


def photos(folder: Path, count: int = 12, uniform: bool = False, first: int = 0) -> list[Path]:
    sizes = [(9, 7)] * count if uniform else [(8 + i % 4, 6 + i % 5) for i in range(count)]
    return [
        picture(folder / f"{first + i:03d}.png", seed=first + i, size=size, mode="RGB") for i, size in enumerate(sizes)
    ]


def assert_pixels(images: PackedImages, files: list[Path], short_side: int | None = None) -> None:
    assert len(images) == len(files)
    for image, file in zip(images.images(torch.arange(len(files))), files, strict=True):
        assert torch.equal(image, decode(file, images.channels, short_side)), file


@pytest.fixture
def decodes(monkeypatch):
    """The names of the files that are decoded into a cache."""
    seen: list[str] = []

    def counted(item, *rest):
        seen.append(Path(str(item)).name)
        return decode(item, *rest)

    monkeypatch.setattr(decode_module, "decode", counted)
    return seen


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(cache_module, "SHARD_IMAGES", 1)


def bins(cache: Cache) -> list[Path]:
    return sorted(cache.folder.glob("*.bin"))


def caches(cache_root: Path) -> list[Path]:
    return [lock.parent for lock in cache_root.glob("*/.lock")]


# --- what it holds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize(("channels", "short_side"), [(3, None), (3, 6), (1, 7)])
def test_cached_pixels_are_the_decoded_ones(tmp_path, small_shards, uniform, channels, short_side):
    files = photos(tmp_path / "data", uniform=uniform)
    images, broken = Cache("here", channels, short_side).build(files)
    assert broken == []
    assert_pixels(images, files, short_side)
    chosen = torch.tensor([3, 11, 3, 0])
    batch = images.batch(chosen)
    wanted = [decode(files[i], channels, short_side) for i in chosen.tolist()]
    assert (batch.sizes is None) == (len({image.shape for image in wanted}) == 1)
    for row, image in zip(batch.pixels, wanted, strict=True):
        assert torch.equal(row[:, : image.shape[1], : image.shape[2]], image)


def test_a_second_build_decodes_nothing(tmp_path, small_shards, decodes):
    files = photos(tmp_path / "data")
    Cache("here", 3, None).build(files)
    assert sorted(decodes) == [file.name for file in files]
    decodes.clear()
    images, _ = Cache("here", 3, None).build(files)
    assert decodes == []
    assert_pixels(images, files)


def test_images_beyond_memory_go_into_the_cache_by_themselves(tmp_path, cache_root, monkeypatch):
    photos(tmp_path / "data" / "cat", 6)
    photos(tmp_path / "data" / "dog", 6, first=6)
    spec = DataSpec(source=str(tmp_path / "data"))
    open_data(spec, 3)
    assert not caches(cache_root)
    monkeypatch.setattr("supancl.data.store.cache.AUTO_CACHE_BYTES", 1000)
    data = open_data(spec, 3)
    assert len(caches(cache_root)) == 1
    for position, name in enumerate(data.train.names_at(torch.arange(len(data.train)))):
        batch = data.train.batch(torch.tensor([position]))
        assert torch.equal(batch.pixels[0], decode(Path(name)))


# --- builds that stop, and builds at once -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_build_goes_on_where_it_was(tmp_path, small_shards, decodes):
    files, cache = photos(tmp_path / "data"), Cache("here", 3, None)
    child = os.fork()
    if not child:
        with report_to(ProgressFunction(lambda _, done, total: done == 5 and os.kill(os.getpid(), signal.SIGKILL))):
            cache.build(files)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    finished = sum(len(np.load(index)["checksums"]) for index in cache.folder.glob("*.npz"))
    images, broken = cache.build(files)
    assert broken == []
    assert len(decodes) == len(files) - finished < len(files)
    assert_pixels(images, files)
    assert not list(cache.folder.glob(".*.tmp"))


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5] ^= 255
    path.write_bytes(content)


def other_index(path: Path) -> None:
    arrays = dict(np.load(path))
    arrays["sizes"] = arrays["sizes"] + 1
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("suffix", "harm"),
    [
        (".npz", lambda path: path.write_bytes(b"not an index")),
        (".npz", other_index),
        (".bin", lambda path: path.unlink()),
        (".bin", flip),
    ],
)
def test_a_damaged_shard_is_decoded_again(tmp_path, small_shards, decodes, suffix, harm):
    files, cache = photos(tmp_path / "data"), Cache("here", 3, None)
    cache.build(files)
    lost = len(np.load(bins(cache)[1].with_suffix(".npz"))["checksums"])
    harm(bins(cache)[1].with_suffix(suffix))
    decodes.clear()
    images, broken = cache.build(files)
    assert len(decodes) == lost < len(files)
    assert broken == []
    assert_pixels(images, files)


# --- files that change under it ---------------------------------------------------------------------------------------


def test_a_changed_file_gives_its_new_pixels(tmp_path, small_shards, decodes):
    files, cache = photos(tmp_path / "data"), Cache("here", 3, None)
    cache.build(files)
    picture(files[4], seed=77, size=(8, 6), mode="RGB")
    decodes.clear()
    images, _ = cache.build(files)
    assert files[4].name in decodes
    assert len(decodes) < len(files)
    assert_pixels(images, files)


# --- all caches -------------------------------------------------------------------------------------------------------


def test_the_longest_unused_caches_go_until_the_rest_fits(tmp_path, cache_root, monkeypatch):
    made = {}
    for used, name in ((100, "old"), (300, "new"), (200, "middle")):
        made[name] = Cache(f"/data/{name}", 3, None)
        images, _ = made[name].build(photos(tmp_path / name, 4, uniform=True))
        os.utime(made[name].folder / ".lock", (used, used))
    (cache_root / "others").mkdir()
    (cache_root / "others" / ".lock").write_text("{}")  # somebody else's
    nbytes = sum(path.stat().st_size for path in made["old"].folder.iterdir())
    monkeypatch.setenv("SUPANCL_CACHE_GB", f"{1.5 * nbytes / 1e9:.9f}")
    made["old"].build(photos(tmp_path / "old", 4, uniform=True))  # used now, so it stays
    assert set(caches(cache_root)) == {made["old"].folder, cache_root / "others"}
    assert_pixels(images, photos(tmp_path / "middle", 4, uniform=True))  # what was mapped stays readable
    monkeypatch.setenv("SUPANCL_CACHE_GB", "much")
    with pytest.raises(BadInput, match=mentions("SUPANCL_CACHE_GB", "much")):
        made["old"].build(photos(tmp_path / "old", 4, uniform=True))


def test_commands_share_the_decoded_photographs(tmp_path, cache_root, decodes, capsys, monkeypatch):
    """The side of a run's images is more than its views need: the same pixels, of the same cache, are evaluated."""
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        for i in range(12):
            picture(tmp_path / "photos" / name / f"{i}.png", seed=i, size=(40, 30), mode="L")
    shared = ("--set", "data.cache=always", "--set", "data.short_side=24", "--set", "encoder.width=8")
    words = ("--epochs", "1", "--batch-size", "8", "--device", "cpu", *shared, "--out", "run")
    assert supancl(capsys, "pretrain", "digits.supsiam", "--data", "photos", *words).code == 0
    assert len(decodes) == 24
    for command in (
        ("evaluate", "knn", "run"),
        ("predict", "run", "--data", "photos", "--all", "--out", "predicted.csv"),
        ("map", "run", "--data", "photos", "--out", "map.html"),
        ("audit", "run", "--out", "audit"),
    ):
        said = supancl(capsys, *command)
        assert said.code == 0, said.err
    assert len(caches(cache_root)) == 1
    assert len(decodes) == 24
