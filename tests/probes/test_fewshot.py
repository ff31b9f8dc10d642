"""Episodes by their rules; the classifiers against scikit-learn's liblinear and scipy's optimum."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from supancl.probes import Features, few_shot, sample_episodes
from supancl.probes.fewshot import _fill_queries
from tests.probes.blobs import blobs


def by_scikit_learn(features: Features, episodes, strength: float = 1.0) -> tuple[list[float], list[np.ndarray]]:
    accuracies, answers = [], []
    for support, query in zip(episodes.support, episodes.query, strict=True):
        ways = len(support)
        fit = np.repeat(np.arange(ways), support.shape[1])
        asked = query.flatten().numpy()
        truth = np.repeat(np.arange(ways), query.shape[1])[asked >= 0]
        model = OneVsRestClassifier(LogisticRegression(C=strength, solver="liblinear", tol=1e-8))
        model.fit(features.values[support.flatten()].double().numpy(), fit)
        answers.append(model.predict(features.values[asked[asked >= 0]].double().numpy()))
        accuracies.append(100 * float((answers[-1] == truth).mean()))
    return accuracies, answers


@pytest.mark.parametrize(("ways", "shots"), [(5, 1), (5, 5), (2, 3), (7, 2)])
@pytest.mark.parametrize(("scale", "strength"), [(0.3, 1.0), (20.0, 0.001)])
def test_accuracies_are_those_of_liblinear(ways: int, shots: int, scale: float, strength: float) -> None:
    features = blobs(300, classes=8, width=20, noise=1.5)
    features = Features(scale * features.values, features.labels)
    found = few_shot(features, ways, shots, queries=6, episodes=12, chunk=5, strength=strength)
    expected, _ = by_scikit_learn(features, sample_episodes(features.labels, ways, shots, 6, 12), strength)
    assert list(found.accuracies) == pytest.approx(expected, abs=1e-9)
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.interval == pytest.approx(1.96 * np.std(expected) / np.sqrt(12))


def test_episodes_are_distinct_images_of_distinct_classes() -> None:
    labels = torch.randint(0, 9, (400,), generator=torch.Generator().manual_seed(3)) * 5
    drawn = sample_episodes(labels, ways=4, shots=3, queries=10, episodes=300, seed=2)
    assert drawn.support.shape == (300, 4, 3)
    assert drawn.query.shape == (300, 4, 10)
    assert torch.equal(labels[drawn.support], labels[drawn.support[..., 0]][..., None].expand(-1, -1, 3))
    assert torch.equal(labels[drawn.query], labels[drawn.support[..., 0]][..., None].expand(-1, -1, 10))
    for rows, names in zip(torch.cat([drawn.support, drawn.query], 2), labels[drawn.support[..., 0]], strict=True):
        assert rows.unique().numel() == rows.numel()
        assert names.unique().numel() == 4
    counts = torch.bincount(labels[drawn.support[..., 0]].flatten() // 5, minlength=9)
    assert counts.min() > 300 * 4 / 9 * 0.7  # every class has its turn


def test_episodes_are_a_function_of_labels_and_seed() -> None:
    labels = torch.arange(200) % 10
    first, again, other = (sample_episodes(labels, 5, 2, 4, 600, seed) for seed in (1, 1, 2))
    assert torch.equal(first.support, again.support)
    assert torch.equal(first.query, again.query)
    assert not torch.equal(first.support, other.support)
    shorter = sample_episodes(labels, 5, 2, 4, 310, 1)
    assert torch.equal(shorter.support, first.support[:310])
    assert torch.equal(shorter.query, first.query[:310])


def test_small_classes_are_dropped_or_give_fewer_queries() -> None:
    sizes = {8: 9, 0: 30, 1: 30, 2: 30, 7: 5}  # 7 has no query after 5 shots, 8 has 4
    labels = torch.cat([torch.full((count,), name) for name, count in sizes.items()] + [torch.full((3,), -1)])
    drawn = sample_episodes(labels, 4, 5, 16, 50)
    assert drawn.dropped == (7,)
    assert torch.equal((drawn.query >= 0).sum(2), torch.where(labels[drawn.support[..., 0]] == 8, 4, 16))
    features = Features(torch.randn(len(labels), 12, generator=torch.Generator().manual_seed(0)), labels)
    found = few_shot(features, 4, 5, 16, 10)
    kept = features.labelled()
    expected, _ = by_scikit_learn(kept, sample_episodes(kept.labels, 4, 5, 16, 10))
    assert list(found.accuracies) == pytest.approx(expected)
    assert found.dropped == (7,)
    assert found.queries_used == (4, 16)
    assert found.drawn != few_shot(features, 4, 5, 16, 10, fill_queries=True).drawn
    assert few_shot(features, 4, 4, 1, 10).queries_used == (1, 1)


def test_queries_are_filled_with_replacement_and_every_image_has_its_turn() -> None:
    sizes, episodes = {0: 30, 1: 21, 2: 20, 7: 5, 8: 9}, 2000  # 7 is dropped, 2 and 8 have too few images
    labels = torch.cat([torch.full((count,), name) for name, count in sizes.items()])
    filled = sample_episodes(labels, 3, 5, 16, episodes, fill_queries=True)
    plain = sample_episodes(labels, 3, 5, 16, episodes)
    assert torch.equal(filled.support, plain.support)
    assert filled.query.shape == (episodes, 3, 16)
    large = (plain.query >= 0).all(2)
    assert torch.equal(filled.query[large], plain.query[large])
    assert torch.equal(labels[filled.query], labels[filled.support[..., 0]][..., None].expand(-1, -1, 16))
    assert not bool((filled.query[..., None] == filled.support[:, :, None]).any())
    classes = labels[filled.support[..., 0]]
    for name in (0, 1, 2, 8):
        rest = sizes[name] - 5
        distinct = 16 if rest >= 16 else rest * (1 - (1 - 1 / rest) ** 16)  # of 16 drawn with replacement
        ours = [row.unique().numel() for row in filled.query[classes == name]]
        assert np.mean(ours) == pytest.approx(distinct, abs=0.15), name
        asked = torch.bincount(filled.query[classes == name].flatten(), minlength=len(labels))[labels == name]
        assert asked.min() > 0.8 * asked.max(), name  # every image has its turn
    shorter = sample_episodes(labels, 3, 5, 16, 310, fill_queries=True)
    assert torch.equal(shorter.query, filled.query[:310])
    assert sample_episodes(torch.arange(40) % 5, 3, 5, 16, 4, fill_queries=True).query.shape == (4, 3, 16)  # all small


def test_repeated_queries_hang_on_the_seed() -> None:
    query = torch.arange(24).reshape(4, 2, 3)
    assert not torch.equal(_fill_queries(query, 9, seed=0), _fill_queries(query, 9, seed=1))
