"""Features kept on disk: found again for the same weights, pixels, view and layer, and for nothing else."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from supancl.data.splits import Split, full_split
from supancl.data.store.memory import ArrayImages
from supancl.evaluation.encoder import EvaluationOptions
from supancl.evaluation.feature_cache import FeatureCache, encoder_key
from tests.evaluation.made import SPEC, encoder, run_folder, subject
from tests.files import noise, picture

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
    return sorted(FeatureCache().folder.glob("*"))


def test_features_are_taken_once_and_come_back_bit_for_bit(counted):
    run, calls = counted
    split = split_of(ArrayImages(PIXELS))
    first, second = run.features(split), run.features(split)
    assert len(calls) == 1
    assert torch.equal(first.values, second.values)
    assert torch.equal(second.labels, split.labels)
    assert len(files()) == 1
    relabelled = run.features(split.relabelled(torch.tensor([1, 0])))  # labels are not what features depend on
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


def test_the_key_is_that_of_every_weight_and_of_what_the_encoder_expects():
    one = encoder()
    assert encoder_key(one) == encoder_key(encoder())
    keys = {encoder_key(one), encoder_key(encoder(1)), encoder_key(encoder(spec=replace(SPEC, mean=(0.4,))))}
    for tensor in one.body.state_dict().values():
        before = tensor.clone()
        tensor.view(-1)[:1] += 1
        keys.add(encoder_key(one))
        tensor.copy_(before)
    assert len(keys) == 3 + len(one.body.state_dict())


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(path.read_bytes()[:-7]),
    lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    lambda path: save_file({"values": torch.zeros(6, 12)}, path),
], ids=["truncated", "a bit", "no checksum"])  # fmt: skip
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


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(counted, cache_root, monkeypatch):
    run, calls = counted
    cache_root.mkdir(parents=True, exist_ok=True)
    (cache_root / "features").write_text("a file where the folder should be")
    split = split_of(ArrayImages(PIXELS))
    assert torch.equal(run.features(split).values, run.features(split).values)
    assert len(calls) == 2
    assert run.reporter.warnings
    (cache_root / "features").unlink()

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    run.features(split)
    assert len(calls) == 3
    assert files() == []  # no temporary file either


def test_the_longest_unused_make_room(tmp_path):
    store = FeatureCache(tmp_path, max_bytes=3000)
    paths = [store.folder / f"{i}.safetensors" for i in range(4)]
    for i, path in enumerate(paths[:3]):
        store.write(path, torch.zeros(200))  # 800 bytes and a header
        os.utime(path, (100 + i, 100 + i))
    store.write(paths[2], torch.zeros(20, 10))
    assert store.read(paths[0], 200) is None  # of the wrong shape, so not used
    assert store.read(paths[2], 20) is not None
    os.utime(paths[2], (200, 200))
    os.utime(paths[0], (300, 300))
    store.write(paths[3], torch.zeros(200))
    assert [path.exists() for path in paths] == [True, False, True, True]


# --- where pixels are -------------------------------------------------------------------------------------------------


def photographs(folder: Path, sizes=((9, 12), (10, 8), (9, 12))) -> list[Path]:
    return [picture(folder / f"{i}.png", seed=i, size=size) for i, size in enumerate(sizes)]
