"""Tar shards: the samples that webdataset gives, in its order, and nothing lost without a word."""

from __future__ import annotations

import gc
import tarfile
import warnings

import numpy as np
import pytest
import torch
import webdataset

from supancl.data.opening import open_source
from supancl.data.sources.tars import iter_samples
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from tests.helpers import mentions, png, write_tar


def refused(source: object, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        open_source(DataSpec(source=str(source)), 3)


@pytest.mark.parametrize("cache", ["never", "always"])
def test_keys_order_labels_and_pixels_are_those_webdataset_gives(tmp_path, cache):
    with webdataset.ShardWriter(str(tmp_path / "photos-%03d.tar"), maxcount=5, verbose=0) as writer:
        for i in range(13):
            writer.write({"__key__": f"{i:04d}", "png": png(i, (6 + i % 3, 7)), "cls": i % 11})
    files = sorted(tmp_path.glob("*.tar"))
    assert len(files) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files to the garbage collector
        theirs = list(webdataset.WebDataset([str(file) for file in files], shardshuffle=False).decode("rgb8"))
        gc.collect()
    found = open_source(DataSpec(source=str(tmp_path), cache=cache), 3)
    split = found.splits["train"]
    assert [name.rpartition("::")[2] for name in map(str, split.items)] == [f"{each['__key__']}.png" for each in theirs]
    assert [int(found.classes[label]) for label in split.labels.tolist()] == [each["cls"] for each in theirs]
    for position, each in enumerate(theirs):
        assert np.array_equal(split.batch(torch.tensor([position])).pixels[0].permute(1, 2, 0).numpy(), each["png"])


@pytest.mark.parametrize(
    ("parts", "label"),
    [
        ({"cls": "2"}, "2"),
        ({"json": '{"label": "cow", "width": 3}'}, "cow"),
        ({"txt": "a caption"}, ""),
        ({"cls": "-1"}, ""),
        ({"json": '{"label": null}'}, ""),
        ({"cls": "cat", "json": '{"label": "cow"}', "txt": "a photo of a cat"}, "cat"),
    ],
)
def test_labels_of_every_form(tmp_path, parts, label):
    members = [("a.png", png(0)), *((f"a.{part}", text.encode()) for part, text in parts.items())]
    path = write_tar(tmp_path / "a.tar", members)
    assert [found for _, found in iter_samples(path)] == [label]


def test_a_sample_in_pieces_is_refused_not_left_without_its_label(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.png", png(0)), ("b.png", png(1)), ("a.cls", b"1"), ("b.cls", b"2")])
    refused(path, mentions("a.tar", "sample 'a'", "twice"))


def test_a_tar_cut_short_anywhere_is_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", [(f"{i}.png", png(i)) for i in range(4)])
    content = path.read_bytes()
    with tarfile.open(path) as tar:
        ends = [member.offset_data + -(-member.size // 512) * 512 for member in tar]
    assert len(content) > ends[-1]
    for length in (0, ends[0] - 5, ends[3], ends[-1]):
        path.write_bytes(content[:length])
        refused(path, mentions("a.tar", "copy"))
