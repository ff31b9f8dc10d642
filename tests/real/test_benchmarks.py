"""Benchmarks as published: the class list, whole data sets, and what the registry makes of them."""

import hashlib
import importlib.util
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
import torch

from supancl.data.opening import open_benchmark
from supancl.data.sources import folder as layouts
from supancl.data.sources.arrays import FC100_TEST_CLASSES
from supancl.data.sources.benchmarks import BENCHMARKS, check_benchmark
from supancl.data.spec import DataSpec
from tests.data.test_benchmarks import every
from tests.facts import CLASS_LIST


def test_the_imagenet100_list_is_the_published_one(shared):
    published = (shared / "data" / "imagenet100_classes.txt").read_bytes()
    assert hashlib.sha256(published).hexdigest() == CLASS_LIST.read_text().split()[0]
    assert list(layouts.imagenet100_classes()) == published.decode().split()


@pytest.fixture(scope="module")
def real(shared):
    """The shared data as their own script unpacks them."""
    spec = importlib.util.spec_from_file_location("unpack", shared / "data" / "unpack.py")
    unpack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpack)
    memory = "/dev/shm"  # fifty thousand small files take a busy disk minutes
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4e9
    with tempfile.TemporaryDirectory(dir=memory if roomy else None) as folder:
        root = Path(folder)
        for name in ("cifar10", "cifar100", "pets", "gtsrb"):
            unpack.SETS[name](root)
        with tarfile.open(shared / "data" / "omniglot.tar.xz") as packed:  # extractall takes three times as long
            for member in packed:
                path = root / "omniglot" / member.name
                if member.isfile():
                    path.write_bytes(packed.extractfile(member).read())
                else:
                    path.mkdir(parents=True, exist_ok=True)
        yield root


@pytest.mark.parametrize("name", ["cifar100", "pets", "traffic-signs", "omniglot"])
def test_the_real_data_are_whole(real, name):
    check = check_benchmark(name, real)
    assert check.ok, check.lines
    row = BENCHMARKS[name]
    wanted = dict(zip(("train images", "val images", "test images"), row.split or (), strict=False))
    wanted |= {"few-shot images": row.images} if row.images else {}
    assert {what: found for what, (found, _, _) in check.counts.items()} == wanted | {"classes": row.classes}


@pytest.mark.parametrize("name", ["cifar10", "pets"])
def test_real_transfer_data_open_with_disjoint_stratified_splits(real, name):
    source = open_benchmark(name, real, spec=DataSpec(short_side=16))
    row = BENCHMARKS[name]
    assert tuple(len(source.splits[split]) for split in ("train", "val", "test")) == row.split
    assert source.classes == tuple(sorted(source.classes))
    names = [split.names_at(every(split)) for split in source.splits.values()]
    assert len(set().union(*names)) == sum(map(len, names)) == sum(row.split)
    share = row.split[1] / (row.split[0] + row.split[1])
    train, val = (torch.bincount(source.splits[split].labels, minlength=row.classes) for split in ("train", "val"))
    assert bool(((val - share * (train + val)).abs() < 1).all())
    pixels = source.splits["test"].batch(torch.tensor([0])).pixels
    assert pixels.shape[1] == 3
    assert len(pixels.unique()) > 10
    assert source.remarks == ()


def test_real_fc100_has_the_seals_of_cifar100(real):
    cifar100, fc100 = open_benchmark("cifar100", real).splits["test"], open_benchmark("fc100", real)
    part = fc100.splits["train"]
    assert torch.bincount(part.labels).tolist() == [600] * 20
    seals = part.batch((part.labels == FC100_TEST_CLASSES.index("seal")).nonzero()[:, 0]).pixels
    theirs = cifar100.batch((cifar100.labels == 72).nonzero()[:, 0]).pixels  # 72 of 100 in the published list
    assert len(theirs) == 100
    assert torch.equal(theirs, seals[-100:])
