"""The benchmark's contenders agree where it compares them; its times mean nothing at this size."""

import importlib.util
import mmap
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from supancl.probes.transfer import WEIGHTS
from tests.probes.blobs import blobs

PATH = Path(__file__).parents[2] / "experiments" / "benchmarks" / "evaluate.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_evaluate", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PATH.parent))
        patch.setenv("OMP_WAIT_POLICY", "active")  # the script's own setting stays out of the test's process
        spec.loader.exec_module(module)
    return module


def test_transfer_row(bench: ModuleType) -> None:
    row = bench.bench_transfer("pets", (blobs(100, noise=1.2), blobs(60, noise=1.2, seed=1)), WEIGHTS[20:36:5])
    assert row["ours"] == pytest.approx(row["reference"], abs=1.7)  # one image of 60
    assert row["ours_weight"] == row["reference_weight"]
    assert len(row["ours_all_s"]) == 4


def test_few_shot_row(bench: ModuleType) -> None:
    row = bench.bench_few_shot(blobs(240, classes=8, width=16, noise=1.5), 20, 6)
    assert row["equal_predictions_percent"] >= 99
    assert row["ours"] == pytest.approx(row["reference"], abs=0.5)


def test_knn_row_and_table(bench: ModuleType) -> None:
    row = bench.bench_knn(300, 50, 8)
    assert row["ours"] > 5  # chance is 1
    found: dict[str, float] = {}
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # pages that nobody has used and freed before
    with bench.peak_memory(found), mmap.mmap(-1, 80_000_000, flags=private) as fresh:
        fresh.write(b"x" * len(fresh))
        time.sleep(0.05)  # longer than the watcher's interval
    assert found["peak_mib"] > 40
    text = bench.table([row, {"what": "growth", "ours_s": 1.0, **found}])
    assert text.splitlines()[1].startswith("k-NN, k = 20")
    assert "MiB at most" in text


def test_patch_features_are_four_pooled_quadrants_per_filter(bench: ModuleType) -> None:
    images = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    train, test = bench.patch_features(images, images[:5], 6)
    assert train.shape == (12, 24)
    torch.testing.assert_close(test, train[:5])
