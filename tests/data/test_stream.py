"""Streamed tar shards: every image once, the same sequence for any number of readers, and nothing held."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supancl import pretrain
from supancl.data.opening import open_data
from supancl.data.order import Order, derive_seed
from supancl.data.sources import tars
from supancl.data.sources.tars import index_path
from supancl.data.spec import DataSpec
from supancl.data.store.cache import StreamImages
from supancl.errors import BadInput
from tests.helpers import (
    assert_mentions,
    assert_same_bits,
    final_state,
    mentions,
    noise,
    png,
    property_test,
    tiny_recipe,
    write_tar,
)
from tests.test_resume import Crash, CrashAt

SIDE = 8


def shard(path: Path, seeds: range, classes: int = 3, bad: tuple[int, ...] = (), sizes: bool = False) -> Path:
    """Images whose pixels tell their seed; class seed % classes."""
    members = []
    for seed in seeds:
        image = b"broken" if seed in bad else png(seed, (SIDE + seed % 3, SIDE) if sizes else (SIDE, SIDE))
        members += [(f"{seed:05d}.png", image), (f"{seed:05d}.cls", str(seed % classes).encode())]
    return write_tar(path, members)


def shards(
    root: Path, counts: tuple[int, ...] = (7, 12, 3, 9, 10, 8), name: str = "train", first: int = 0, **how
) -> Path:
    for number, count in enumerate(counts):
        shard(root / f"{name}-{number:03d}.tar", range(first, first + count), **how)
        first += count
    return root


def spec(source: object, **options) -> DataSpec:
    return DataSpec(source=str(source), **{"stream": True, "holdout": 0, "window": 2, **options})


def keys(names: list[str]) -> list[int]:
    return [int(name.rpartition("::")[2].partition(".")[0]) for name in names]


# --- order ------------------------------------------------------------------------------------------------------------


def by_definition(counts: list[int], seed: int, epoch: int, window: int) -> list[int]:
    """The order of a whole epoch, written out."""
    shard_order = torch.randperm(
        len(counts), generator=torch.Generator().manual_seed(derive_seed(seed, epoch, 0))
    ).tolist()
    result = []
    for number, at in enumerate(range(0, len(counts), window)):
        there = [sum(counts[:s]) + i for s in shard_order[at : at + window] for i in range(counts[s])]
        generator = torch.Generator().manual_seed(derive_seed(seed, epoch, number + 1))
        result += [there[i] for i in torch.randperm(len(there), generator=generator).tolist()]
    return result


@property_test
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    window=st.integers(1, 14),
    batch=st.integers(1, 20),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_every_image_comes_once_in_the_order_of_the_definition(counts, window, batch, seed, epoch):
    labels = torch.zeros(sum(counts), dtype=torch.long)

    def make() -> Order:
        return Order(labels, seed, batch, counts=torch.tensor(counts), window=window)

    order = make()
    wanted = by_definition(counts, seed, epoch, window)
    assert sorted(wanted) == list(range(sum(counts)))
    steps = order.steps_per_epoch
    assert steps == sum(counts) // batch
    found = [order.positions(epoch * steps + at).tolist() for at in range(steps)]
    assert found == [wanted[at * batch : (at + 1) * batch] for at in range(steps)]
    if steps:  # asked for in the middle, by one who has seen nothing before
        later = epoch * steps + steps // 2
        assert make().positions(later).tolist() == found[steps // 2]


# --- what comes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 5])
def test_ranks_and_threads_share_an_epoch_without_overlap_or_loss(tmp_path, monkeypatch, threads):
    monkeypatch.setattr("supancl.data.store.cache.decode_threads", lambda *_: threads)
    source = shards(tmp_path, sizes=True)
    sequences = {}
    for ranks in (1, 2, 4):
        found: list[list[int]] = []
        readers = [open_data(spec(source), 3).train for _ in range(ranks)]  # each rank opens the shards itself
        orders = [reader.order(3, 7) for reader in readers]
        for step in range(orders[0].steps_per_epoch):
            batch = []
            for reader, order, rows in zip(readers, orders, torch.arange(7).tensor_split(ranks), strict=True):
                mine = order.positions(step)[rows]
                seen = reader.batch(mine)
                for row, key in enumerate(keys(reader.names_at(mine))):
                    wanted = torch.from_numpy(noise(SIDE + key % 3, SIDE, 3, seed=key)).permute(2, 0, 1)
                    assert torch.equal(seen.image(row), wanted)
                    assert reader.labels[mine[row]] == key % 3
                    batch.append(key)
            found.append(batch)
        sequences[ranks] = found
    assert sequences[1] == sequences[2] == sequences[4]
    every = [key for batch in sequences[1] for key in batch]
    assert len(every) == len(set(every)) == 49


@pytest.mark.parametrize(
    "options", [{"holdout": None}, {"holdout": 0.3, "limit": 20}, {"leave_out": ("1",)}, {"labelled": 0.5}]
)
@pytest.mark.parametrize("held", [False, True])
def test_a_stream_is_what_the_same_shards_are_when_they_are_read_at_once(tmp_path, options, held):
    shards(tmp_path)
    if held:
        shards(tmp_path, (5, 6), "val", 100)
        shards(tmp_path, (4,), "test", 200)
    streamed, plain = (open_data(spec(tmp_path, stream=stream, **options), 3) for stream in (True, False))
    assert streamed.classes == plain.classes
    pairs = [(streamed.train, plain.train), (streamed.held_out, plain.held_out)]
    if held:
        pairs.append((streamed.test, plain.test))
    if "leave_out" in options:
        pairs += list(zip(streamed.transfer, plain.transfer, strict=True))
    for one, other in pairs:
        positions = torch.arange(len(other))
        assert len(one) == len(other)
        assert torch.equal(one.labels, other.labels)
        if len(other):
            assert one.names_at(positions) == other.names_at(positions)
            assert torch.equal(one.batch(positions).pixels, other.batch(positions).pixels)
    for key in ("train", "labelled", "held_out", "held_out_from", "classes"):
        assert streamed.summary[key] == plain.summary[key]
    assert streamed.train.is_streamed


def test_long_images_are_cut_to_their_middle_and_every_batch_fits_one_canvas(tmp_path):
    wide = noise(10, 70, 3, seed=5)
    write_tar(tmp_path / "a.tar", [("a.png", png(5, (10, 70))), ("b.png", png(1, (6, 6)))])
    train = open_data(spec(tmp_path, short_side=10), 3).train
    batch = train.batch(torch.tensor([0, 1]))
    assert batch.sizes.tolist() == [[10, 20], [6, 6]]
    assert torch.equal(batch.pixels[0], torch.from_numpy(wide[:, 25:45]).permute(2, 0, 1))
    assert train.labels.tolist() == [-1, -1]
    assert not train.store.has_one_shape(torch.device("cpu"))
    assert train.store.has_one_shape(torch.device("cuda"))
    for position in (0, 1):
        fitted = train.store.batch_on_canvas(torch.tensor([position]))
        assert fitted.pixels.shape == (1, 3, 20, 20)
        assert fitted.sizes.tolist() == [batch.sizes[position].tolist()]


# --- the index kept beside --------------------------------------------------------------------------------------------


def test_shards_are_looked_through_once_and_again_when_they_change(tmp_path, monkeypatch):
    source = shards(tmp_path)
    looked: Counter[str] = Counter()
    real = tars.iter_samples
    monkeypatch.setattr(tars, "iter_samples", lambda path: looked.update([path.name]) or real(path))
    first = open_data(spec(source), 3)
    assert looked == {f"train-{i:03d}.tar": 1 for i in range(6)}
    again = open_data(spec(source), 3)
    assert looked.total() == 6
    assert again.summary == first.summary
    changed = tmp_path / "train-001.tar"
    times = changed.stat()
    shard(changed, range(500, 512))  # as long as before, and as old
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    now = open_data(spec(source), 3)
    assert looked.total() == 7
    assert keys(now.train.names_at(torch.arange(7, 19))) == list(range(500, 512))
    assert now.summary["fingerprint"] != first.summary["fingerprint"]
    index_path(changed.resolve()).write_bytes(b"damaged")
    assert open_data(spec(source), 3).summary == now.summary
    assert looked.total() == 8


@pytest.mark.parametrize("gone", [True, False])
def test_a_shard_that_goes_or_changes_while_training_is_named(tmp_path, gone):
    train = open_data(spec(shards(tmp_path)), 3).train
    (tmp_path / "train-000.tar").unlink() if gone else shard(tmp_path / "train-000.tar", range(3))
    with pytest.raises(BadInput, match=mentions("train-000.tar", "it has changed")):
        train.batch(torch.tensor([0]))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_skipped_image_is_black_and_named_once(tmp_path):
    shard(tmp_path / "a.tar", range(12), bad=(4, 7))
    train = open_data(spec(tmp_path, skip_bad_images=True, short_side=SIDE), 3).train
    for _ in range(2):
        seen = train.batch(torch.arange(12))
    assert [row for row in range(12) if not seen.pixels[row].any()] == [4, 7]
    (remark,) = train.store.new_remarks()
    assert_mentions(remark, "a.tar::00004.png", "a.tar::00007.png")
    assert train.store.new_remarks() == []


# --- training ---------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_in_the_middle_of_an_epoch_with_the_same_bits_and_reads_nothing_twice(tmp_path, monkeypatch):
    shards(tmp_path / "s", sizes=True)
    shards(tmp_path / "s", (6,), "val", 100)
    recipe = tiny_recipe(
        "supsiam", encoder__channels=3, encoder__mean=[0.5] * 3, encoder__std=[0.2] * 3, train__checkpoint_every=2,
        data__source=str(tmp_path / "s"), data__stream=True, data__window=2, data__holdout=None, train__monitor_every=0,
    )  # fmt: skip
    pretrain(recipe, None, tmp_path / "whole")
    with pytest.raises(Crash):
        pretrain(recipe, None, tmp_path / "stopped", reporter=CrashAt(4))
    real, read = StreamImages.decode_row, []
    monkeypatch.setattr(StreamImages, "decode_row", lambda store, row: read.append(row) or real(store, row))
    pretrain(None, None, tmp_path / "stopped", resume=True)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))
    train = open_data(spec(tmp_path / "s", holdout=None), 3).train
    order = train.order(recipe.train.seed, 8)
    assert order.steps_per_epoch == 6
    left = torch.cat([order.positions(step) for step in range(2, 12)]).tolist()
    left.append(0)  # the first image is looked at before a run begins: does its kind suit the encoder?
    assert Counter(read) == Counter(left)  # the last checkpoint was of step 2
