"""On a GPU the protocols give the numbers of the CPU."""

import pytest
import torch

from supancl.probes import Features, collapse, few_shot, knn_accuracy, knn_leave_one_out, linear_probe, transfer
from tests.probes.blobs import blobs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture
def splits() -> list[Features]:
    return [blobs(200, noise=1.5, seed=seed) for seed in range(3)]


def on_gpu(features: Features) -> Features:
    return Features(features.values.cuda(), features.labels.cuda())


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_knn(splits: list[Features], metric: str) -> None:
    train, test, _ = splits
    for device, features in ((None, [on_gpu(train), on_gpu(test)]), ("cuda", [train, test])):
        assert knn_accuracy(*features, 9, metric=metric, device=device) == pytest.approx(
            knn_accuracy(train, test, 9, metric=metric), abs=1.1
        )  # two images of 200
    assert knn_leave_one_out(on_gpu(train), 5) == pytest.approx(knn_leave_one_out(train, 5), abs=1.1)


def test_transfer_and_linear_probe(splits: list[Features]) -> None:
    transferred = transfer(*splits)
    for features in (splits, [on_gpu(split) for split in splits]):
        assert transfer(*features, device="cuda").accuracy == pytest.approx(transferred.accuracy, abs=1.1)
        for choose in (None, "halves", splits[2]):
            found = linear_probe(*features[:2], choose, weights=(1.0,), device="cuda")
            expected = linear_probe(*splits[:2], choose, weights=(1.0,))
            assert found.accuracy == pytest.approx(expected.accuracy, abs=0.6)  # both are the optimum: one image of 200
            assert (found.chosen_on, found.images, found.cut_off) == (expected.chosen_on, expected.images, False)


def test_few_shot_and_variance(splits: list[Features]) -> None:
    expected = few_shot(splits[0], 3, 4, episodes=30)
    for features, device in ((on_gpu(splits[0]), None), (splits[0], "cuda")):
        found = few_shot(features, 3, 4, episodes=30, device=device)
        assert found.drawn == expected.drawn
        assert found.mean == pytest.approx(expected.mean, abs=0.2)
    for measures in (collapse(on_gpu(splits[0])), collapse(splits[0], device="cuda")):
        assert (measures.nc1, measures.effective_rank) == pytest.approx(
            (collapse(splits[0]).nc1, collapse(splits[0]).effective_rank)
        )
