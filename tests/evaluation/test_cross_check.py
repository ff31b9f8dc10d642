"""One transfer and one few-shot number from files to figures, again by Pillow, torchvision and scikit-learn alone.

On scikit-learn's digits, made hard by noise.
"""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.evaluation.made import episodes, transferred
from tests.evaluation.references import SIZE, few_shot_by_reference, random_cnn, transfer_by_reference


def noisy_digits(count, side):
    """Colour images of handwritten digits on noise, and their labels."""
    digits = load_digits()
    random = np.random.default_rng(0)
    images = digits.images[:count].repeat(side // 8, axis=1).repeat(side // 8, axis=2)[..., None] * 6
    noise = random.integers(0, 120, (count, side, side, 3))
    return (images + noise).clip(0, 255).astype(np.uint8), digits.target[:count].astype(np.int64)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    return random_cnn(tmp_path_factory.mktemp("cross"))


@pytest.mark.parametrize("metric", ["top-1", "mean-per-class"])
def test_transfer_is_the_number_of_scikit_learn(metric, judged, tmp_path):
    images, labels = noisy_digits(1000, SIZE)
    path = tmp_path / "digits.npz"
    np.savez(
        path, train_images=images[:400], train_labels=labels[:400], test_images=images[400:], test_labels=labels[400:]
    )
    expected, weight = transfer_by_reference(judged, path, metric)
    found = transferred(judged, str(path), metric=metric)
    assert sum(found["images"]) == 1000
    assert found["weight"] == pytest.approx(weight)
    assert found["accuracy"] == pytest.approx(expected, abs=0.2)
    assert 15 < expected < 90  # chance is 10


def test_few_shot_is_the_number_of_scikit_learn(judged, tmp_path):
    for number, (image, label) in enumerate(zip(*noisy_digits(300, 2 * SIZE), strict=True)):
        (tmp_path / "digits" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "digits" / str(label) / f"{number}.png")
    mean, interval = few_shot_by_reference(judged, tmp_path / "digits", shots=5, episodes=40, seed=4)
    found = episodes(judged, str(tmp_path / "digits"), shots=5, episodes=40, seed=4)
    assert found["images"] == 300
    assert found["accuracy"] == pytest.approx(mean, abs=0.05)
    assert found["interval"] == pytest.approx(interval, abs=0.02)
    assert 25 < mean < 90  # chance is 20
