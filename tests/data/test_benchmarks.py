"""The benchmark registry: rows against the paper, official layouts in small, and data that are not whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import datasets

from supancl.data.opening import open_benchmark
from supancl.data.sources import folder as layouts
from supancl.data.sources.arrays import FC100_TEST_CLASSES
from supancl.data.sources.benchmarks import BENCHMARKS, check_benchmark, draw_exactly
from supancl.errors import BadInput
from tests.data.benchmark_trees import BUILDERS, cifar
from tests.facts import read_tables
from tests.helpers import mentions, property_test


def every(split):
    return torch.arange(len(split))


def filed(source):
    """{file: (split, class)}"""
    return {
        name: (split, source.classes[label])
        for split, part in source.splits.items()
        for name, label in zip(part.names_at(every(part)), part.labels.tolist(), strict=True)
    }


def shrunk(monkeypatch, name, **fields):
    """The row with other sizes, so that a miniature is whole."""
    monkeypatch.setitem(BENCHMARKS, name, replace(BENCHMARKS[name], **fields))


# --- the table --------------------------------------------------------------------------------------------------------


def paper_table():
    """(use, first word of the data set's name) -> (classes, sizes, metric), as the paper prints them."""
    rows, use = {}, "transfer"
    for category, name, classes, *sizes, metric in read_tables()["sizes"].rows:
        use = "few-shot" if "Few-shot" in category else use
        rows[use, name.split(" (")[0]] = (int(classes), tuple(int(size) for size in sizes if size), metric)
    return rows


def test_sizes_and_metrics_are_the_papers_but_for_cub200_whose_published_ones_differ():
    paper = paper_table()
    assert len(paper) == 19
    named = {("transfer", row.title.split(" (")[0]): name for name, row in BENCHMARKS.items() if "transfer" in row.uses}
    named |= {("few-shot", row.title.split(" (")[0]): name for name, row in BENCHMARKS.items() if row.images}
    named[("transfer", "Food")] = named.pop(("transfer", "Food101"))
    assert set(named) == set(paper)
    for key, (classes, sizes, metric) in paper.items():
        row = BENCHMARKS[named[key]]
        assert row.classes == classes, key
        if key[1] == "CUB200":
            for size in sizes:  # the paper's figures stand in the remark
                assert f"{size:,}" in row.remarks[0]
            continue
        assert sizes == (row.split if key[0] == "transfer" else (row.images,)), key
        if key[0] == "transfer":
            assert (metric == "Mean per-class accuracy") == (row.metric == "per_class"), key
    assert BENCHMARKS["cub200"].split == (4994, 1000, 5794)
    assert BENCHMARKS["cub200"].images == 5994 + 5794
    assert BENCHMARKS["cub200"].metric == "per_class"


# --- official layouts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_a_miniature_in_the_official_layout_has_its_files_classes_and_splits(name, tmp_path):
    root, expected = tmp_path, BUILDERS[name](tmp_path)
    for use in BENCHMARKS[name].uses:
        source = open_benchmark(name, root, use=use, partial=True)
        found = {str(Path(path).relative_to(root)): entry for path, entry in filed(source).items()}
        assert set(found) == set(expected)
        for path, (official, label) in expected.items():
            assert found[path][1] == label
            allowed = {"trainval": {"train", "val"}, "all": {"train", "val", "test"}}.get(official, {official})
            assert found[path][0] in ({"train"} if use == "few-shot" else allowed), path
        assert len(source.classes) == len(set(source.classes)) == len({label for _, label in expected.values()})
        in_order = layouts.imagenet100_classes() if name == "imagenet100" else tuple(sorted(source.classes))
        assert source.classes == in_order
        assert any("incomplete" in remark for remark in source.remarks)


# how torchvision's class for the same layout is made
TORCHVISION = {
    "dtd": ("DTD", [{"split": split} for split in ("train", "val", "test")]),
    "food101": ("Food101", [{"split": "train"}, {"split": "test"}]),
    "caltech101": ("Caltech101", [{}]),
    "flowers102": ("Flowers102", [{"split": split} for split in ("train", "val", "test")]),
    "pets": ("OxfordIIITPet", [{"split": "trainval"}, {"split": "test"}]),
    "aircraft": ("FGVCAircraft", [{"split": split} for split in ("train", "val", "test")]),
    "omniglot": ("Omniglot", [{"background": True}, {"background": False}]),
    "traffic-signs": ("GTSRB", [{"split": "test"}]),
    "sun397": ("SUN397", [{}]),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_images_and_classes_are_torchvisions(name, tmp_path, monkeypatch):
    BUILDERS[name](tmp_path / "ours")
    kind, variants = TORCHVISION[name]
    for module in ("flowers102", "omniglot"):  # they check sums of the whole files
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *_: True)
    root = tmp_path / "ours"
    if name == "dtd":  # torchvision has the archive's folder inside another
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / "dtd").symlink_to(root)
        root = tmp_path / "theirs"
    theirs = {}
    for index, variant in enumerate(variants):
        for image, label in getattr(datasets, kind)(root, **variant):
            pixels = np.asarray(image.convert("RGB")).tobytes()
            theirs[pixels] = (index if name == "omniglot" else 0, label)  # omniglot counts each part from 0
    source = open_benchmark(name, root, partial=True)
    ours = {}
    for split in source.splits.values():
        pixels = split.batch(every(split)).pixels.permute(0, 2, 3, 1).numpy()
        ours |= {image.tobytes(): label for image, label in zip(pixels, split.labels.tolist(), strict=True)}
    assert set(ours) == set(theirs)
    pairs = {(ours[key], theirs[key]) for key in ours}
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs}) == len(source.classes)


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def test_published_cifar_files(tmp_path, monkeypatch):
    classes = ("airplane", "bird", "cat")
    written = cifar(tmp_path, datasets.CIFAR10, classes, 4, monkeypatch)
    shrunk(monkeypatch, "cifar10", classes=3, split=(54, 6, 12))
    source = open_benchmark("cifar10", tmp_path)
    assert source.classes == classes
    assert {name: len(split) for name, split in source.splits.items()} == {"train": 54, "val": 6, "test": 12}
    assert np.array_equal(source.splits["test"].batch(torch.arange(12)).pixels.numpy(), written["test_batch"])
    assert source.splits["test"].labels.tolist() == [0, 1, 2] * 4
    both = [image.numpy().tobytes() for name in ("train", "val")
            for image in source.splits[name].batch(every(source.splits[name])).pixels]  # fmt: skip
    assert sorted(both) == sorted(image.tobytes() for i in range(1, 6) for image in written[f"data_batch_{i}"])
    assert check_benchmark("cifar10", tmp_path / "cifar-10-batches-py").ok


def test_a_pickle_that_is_not_the_published_one_is_never_opened(tmp_path, monkeypatch):
    cifar(tmp_path, datasets.CIFAR10, ("a", "b"), 2, monkeypatch)
    folder = tmp_path / "cifar-10-batches-py"
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("opened a pickle"))
    (folder / "data_batch_3").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(BadInput, match=mentions(folder, "MD5")):
        open_benchmark("cifar10", tmp_path)


def test_fc100_is_the_test_classes_of_cifar100_with_all_their_images(tmp_path, monkeypatch):
    classes = tuple(sorted((*FC100_TEST_CLASSES, "apple", "train", "worm")))
    written = cifar(tmp_path, datasets.CIFAR100, classes, 2, monkeypatch)
    shrunk(monkeypatch, "fc100", images=80)
    source = open_benchmark("fc100", tmp_path)
    assert source.classes == FC100_TEST_CLASSES == tuple(sorted(FC100_TEST_CLASSES))
    assert set(source.splits) == {"train"}
    part = source.splits["train"]
    files = [
        (image.tobytes(), classes[i % 23]) for split in ("train", "test") for i, image in enumerate(written[split])
    ]
    images = [image.tobytes() for image in part.batch(every(part)).pixels.numpy()]
    labels = [source.classes[label] for label in part.labels.tolist()]
    assert list(zip(images, labels, strict=True)) == [file for file in files if file[1] in FC100_TEST_CLASSES]


# --- dividing ---------------------------------------------------------------------------------------------------------


@property_test
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.floats(0, 1), st.integers(0, 5))
def test_a_drawn_split_has_exactly_its_size_and_each_class_its_share(sizes, share, seed):
    count = round(share * sum(sizes))
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    drawn = draw_exactly(labels, count, seed)
    assert len(drawn) == len(set(drawn.tolist())) == count
    got = torch.bincount(labels[drawn], minlength=len(sizes)).tolist()
    assert all(mine <= size for mine, size in zip(got, sizes, strict=True))
    # in whole numbers: each class its share rounded down, and one more for those with the largest remainders
    total = sum(sizes)
    more = [mine - size * count // total for mine, size in zip(got, sizes, strict=True)]
    remainders = [size * count % total for size in sizes]
    assert set(more) <= {0, 1}
    given_one = [remainder for remainder, one in zip(remainders, more, strict=True) if one]
    given_none = [remainder for remainder, one in zip(remainders, more, strict=True) if not one]
    assert min(given_one, default=total) >= max(given_none, default=0)
    assert torch.equal(drawn, draw_exactly(labels, count, seed))


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_a_missing_image_is_named_and_left_out_of_partial_data(tmp_path, monkeypatch):
    expected = BUILDERS["pets"](tmp_path)
    shrunk(monkeypatch, "pets", classes=3, split=(24, 6, 9))
    for number in (23, 27):
        (tmp_path / f"oxford-iiit-pet/images/Bengal_{number}.jpg").unlink()
    with pytest.raises(BadInput, match="supancl data check pets"):
        open_benchmark("pets", tmp_path)
    check = check_benchmark("pets", tmp_path)
    assert check.missing == ("images/Bengal_23.jpg", "images/Bengal_27.jpg")
    assert check.counts["train images"][0] + check.counts["val images"][0] == 28
    assert not check.ok
    source = open_benchmark("pets", tmp_path, partial=True)
    assert sum(map(len, source.splits.values())) == len(expected) - 2


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("dtd", "dtd/labels/val1.txt", None),
        ("food101", "food-101/meta/test.json", b'["waffles"]'),
        ("dogs", "StanfordDogs/test_list.mat", b"not a mat file"),
        ("traffic-signs", "gtsrb/GT-final_test.csv", b"a;b\n1;2\n"),
    ],
)
def test_a_split_file_that_is_absent_or_garbled(name, file, content, tmp_path):
    BUILDERS[name](tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(BadInput, match=mentions(tmp_path, "official")):
        open_benchmark(name, tmp_path)
