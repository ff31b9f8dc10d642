"""One transfer and one few-shot number again, by scikit-learn alone: the package computes nothing of what is expected.

As a script it reads features of real images and prints the expected numbers:

    python tests/probes/test_cross_check.py transfer FEATURES.npz [top-1 | mean-per-class]
    python tests/probes/test_cross_check.py fewshot FEATURES.npz EPISODES.npz

FEATURES.npz holds train_values, train_labels, validation_values, ... and test_values, test_labels for transfer, values
and labels for few-shot; EPISODES.npz the rows of each episode, support (E, ways, shots) and query (E, ways, queries).
"""

import sys
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.multiclass import OneVsRestClassifier

WEIGHTS = np.logspace(-6, 5, 45)
METRICS = {"top-1": accuracy_score, "mean-per-class": balanced_accuracy_score}


def with_bias(values: np.ndarray) -> np.ndarray:
    """The bias as a column, because the protocol penalises it."""
    return np.hstack([values.astype(np.float64), np.ones((len(values), 1))])


def regression(weight: float, start: np.ndarray | None, values: np.ndarray, labels: np.ndarray) -> LogisticRegression:
    """Summed cross-entropy + weight ||parameters||^2, which is scikit-learn's objective at C = 1 / (2 weight)."""
    model = LogisticRegression(C=1 / (2 * weight), fit_intercept=False, tol=1e-6, max_iter=3000, warm_start=True)
    if start is not None:
        model.coef_, model.classes_ = start.copy(), np.unique(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # tiny weights: as far as the reference goes
        return model.fit(with_bias(values), labels)


def expected_transfer(data, metric: str = "top-1", weights=WEIGHTS) -> tuple[float, float]:
    """Accuracy in percent and the chosen weight."""
    score, start, found = METRICS[metric], None, []
    for weight in weights:
        model = regression(weight, start, data["train_values"], data["train_labels"])
        start = model.coef_
        found.append(score(data["validation_labels"], model.predict(with_bias(data["validation_values"]))))
    chosen = weights[int(np.argmax(found))]  # the first of equal ones
    both = [np.concatenate([data[f"train_{kind}"], data[f"validation_{kind}"]]) for kind in ("values", "labels")]
    model = regression(chosen, start, *both)
    return 100 * score(data["test_labels"], model.predict(with_bias(data["test_values"]))), float(chosen)


def expected_few_shot(values: np.ndarray, support: np.ndarray, query: np.ndarray) -> tuple[float, float]:
    """Mean accuracy in percent and the half-width of its 95% interval."""
    ways, shots = support.shape[1:]
    found = []
    for rows, asked in zip(support, query, strict=True):
        model = OneVsRestClassifier(LogisticRegression(solver="liblinear"))
        model.fit(values[rows.ravel()], np.repeat(np.arange(ways), shots))
        known = asked.ravel() >= 0
        answers = model.predict(values[asked.ravel()[known]])
        found.append(100 * np.mean(answers == np.repeat(np.arange(ways), asked.shape[1])[known]))
    return float(np.mean(found)), float(1.96 * np.std(found) / np.sqrt(len(found)))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Random rectified features of scikit-learn's digits, and labels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    order = random.permutation(len(labels))
    lifted = np.maximum(pixels[order] / 16 @ random.normal(size=(64, 96)), 0)
    noisy = lifted + 3.0 * random.normal(size=lifted.shape)
    return noisy.astype(np.float32), labels[order].astype(np.int64)


@pytest.mark.parametrize("metric", ["top-1", "mean-per-class"])
def test_transfer_is_the_number_of_scikit_learn(metric: str) -> None:
    import torch

    from supancl.probes import Features, transfer

    values, labels = digits()
    parts = {"train": slice(0, 400), "validation": slice(400, 600), "test": slice(600, None)}
    data = {f"{name}_values": values[part] for name, part in parts.items()}
    data |= {f"{name}_labels": labels[part] for name, part in parts.items()}
    weights = WEIGHTS[12:40:3]
    splits = [Features(torch.from_numpy(values[part]), torch.from_numpy(labels[part])) for part in parts.values()]
    expected, chosen = expected_transfer(data, metric, weights)
    found = transfer(*splits, metric=metric, weights=tuple(weights.tolist()))
    assert found.weight == pytest.approx(chosen)
    assert found.accuracy == pytest.approx(expected, abs=0.2)
    assert 50 < expected < 99  # neither hopeless nor trivial


def test_few_shot_is_the_number_of_scikit_learn() -> None:
    import torch

    from supancl.probes import Features, few_shot, sample_episodes

    values, labels = digits()
    features = Features(torch.from_numpy(values), torch.from_numpy(labels))
    episodes = sample_episodes(features.labels, ways=5, shots=5, episodes=60, seed=3)
    mean, interval = expected_few_shot(values, episodes.support.numpy(), episodes.query.numpy())
    found = few_shot(features, ways=5, shots=5, episodes=60, seed=3)
    assert found.mean == pytest.approx(mean, abs=0.05)
    assert found.interval == pytest.approx(interval, abs=0.02)
    assert 30 < mean < 95


if __name__ == "__main__":
    arrays = np.load(sys.argv[2])
    if sys.argv[1] == "transfer":
        accuracy, weight = expected_transfer(arrays, *sys.argv[3:4])
        print(f"accuracy {accuracy:.4f}, weight {weight:g}")
    else:
        drawn = np.load(sys.argv[3])
        average, width = expected_few_shot(arrays["values"], drawn["support"], drawn["query"])
        print(f"mean {average:.4f}, interval {width:.4f}")
