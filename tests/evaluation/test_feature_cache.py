"""Features kept on disk: found again for the same weights, pixels, view and layer, and for nothing else."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from supancl.data.labels import keep_classes
from supancl.data.splits import Split, full_split
from supancl.data.store.cache import FEATURES_FOLDER, cache_root
from supancl.data.store.memory import ArrayImages
from supancl.evaluation.encoder import EvaluationOptions, read_cached, write_cached
from tests.evaluation.made import run_folder, subject
from tests.helpers import noise

CPU = torch.device("cpu")
PIXELS = torch.from_numpy(noise(6, 1, 8, 8, seed=2))


def split_of(store) -> Split:
    return full_split(store, torch.arange(len(store)) % 2, [f"image {i}" for i in range(len(store))])


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A subject, and how often its encoder has been asked."""
    run = subject(run_folder(tmp_path / "run"))
    calls = []
    monkeypatch.setattr("supancl.evaluation.encoder.embed", counting(calls))
    return run, calls


def counting(calls):
    from supancl.probes import embed

    def embed_and_count(*arguments):
        calls.append(arguments[1])
        return embed(*arguments)

    return embed_and_count


def files() -> list[Path]:
    return sorted((cache_root() / FEATURES_FOLDER).glob("*"))


def test_features_are_taken_once_and_come_back_bit_for_bit(counted):
    run, calls = counted
    split = split_of(ArrayImages(PIXELS))
    first, second = run.features(split), run.features(split)
    assert len(calls) == 1
    assert torch.equal(first.values, second.values)
    assert torch.equal(second.labels, split.labels)
    assert len(files()) == 1
    relabelled = run.features(keep_classes(split, ("a", "b"), ("b", "a")))  # labels are not what features depend on
    assert len(calls) == 1
    assert torch.equal(relabelled.labels, 1 - split.labels)


def test_another_view_layer_length_image_or_order_is_taken_anew(counted):
    run, calls = counted
    split = split_of(ArrayImages(PIXELS))
    run.features(split)
    run.features(split, "whole")
    run.features(split.take(torch.tensor([1, 0, 2, 3, 4, 5])))
    run.features(split.take(torch.arange(5)))
    other = PIXELS.clone()
    other[3, 0, 2, 2] ^= 1
    run.features(split_of(ArrayImages(other)))
    for options in (EvaluationOptions(CPU, layer="2"), EvaluationOptions(CPU, normalize=True)):
        run.options = options
        run.features(split)
    assert len(calls) == len(files()) == 7


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    lambda path: save_file({"values": torch.zeros(6, 12)}, path),
], ids=["a bit", "no checksum"])  # fmt: skip
def test_a_damaged_file_is_taken_anew_and_replaced(damage, counted):
    run, calls = counted
    split = split_of(ArrayImages(PIXELS))
    first = run.features(split)
    (path,) = files()
    sound = path.read_bytes()
    damage(path)
    assert torch.equal(run.features(split).values, first.values)
    assert len(calls) == 2
    assert path.read_bytes() == sound


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(counted, cache_root):
    run, calls = counted
    cache_root.mkdir(parents=True, exist_ok=True)
    (cache_root / "features").write_text("a file where the folder should be")
    split = split_of(ArrayImages(PIXELS))
    assert torch.equal(run.features(split).values, run.features(split).values)
    assert len(calls) == 2
    assert run.reporter.warnings


def test_the_longest_unused_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr("supancl.evaluation.encoder.MOST_BYTES", 3000)
    paths = [tmp_path / "features" / f"{i}.safetensors" for i in range(4)]
    for i, path in enumerate(paths[:3]):
        write_cached(path, torch.zeros(20, 10))  # 800 bytes and a header
        os.utime(path, (100 + i, 100 + i))
    assert read_cached(paths[0], 200) is None  # of the wrong shape, so not used
    assert read_cached(paths[2], 20) is not None
    os.utime(paths[2], (200, 200))
    os.utime(paths[0], (300, 300))
    write_cached(paths[3], torch.zeros(20, 10))
    assert [path.exists() for path in paths] == [True, False, True, True]
