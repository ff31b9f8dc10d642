"""One transfer and one few-shot number on real images, again by Pillow, torchvision and scikit-learn alone.

Transfer is to CIFAR-10, few-shot on breeds of the Pets; tests/evaluate/test_cross_check.py does the same on digits.
"""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from tests.evaluation.made import episodes, transferred
from tests.evaluation.references import SIZE, few_shot_by_reference, random_cnn, transfer_by_reference

BREEDS = ("Abyssinian", "Bengal", "Bombay", "boxer", "pug", "samoyed")


@pytest.fixture(scope="module")
def cifar(shared, tmp_path_factory):
    """Images of the first sheet of each split, which holds 25 x 40."""
    path = tmp_path_factory.mktemp("cifar") / "cifar10.npz"
    with np.load(shared / "data" / "cifar10_jpegq88.npz") as packed:
        arrays = {}
        for split in ("train", "test"):
            sheet = Image.open(io.BytesIO(packed[f"{split}_jpeg"][: packed[f"{split}_offsets"][1]].tobytes()))
            pixels = np.asarray(sheet.convert("RGB")).reshape(25, SIZE, 40, SIZE, 3).transpose(0, 2, 1, 3, 4)
            count = 600 if split == "train" else 1000
            arrays |= {
                f"{split}_images": pixels.reshape(1000, SIZE, SIZE, 3)[:count],
                f"{split}_labels": packed[f"{split}_labels"][:count].astype(np.int64),
            }
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def pets(shared, tmp_path_factory):
    """The test photographs of six breeds, the centre 64 px.

    Squares: of other shapes decode and torchvision may disagree by a column (tests/probes/test_features.py).
    """
    root = tmp_path_factory.mktemp("pets")
    with zipfile.ZipFile(shared / "data" / "oxford_pets_s64.zip") as archive:
        for name in archive.namelist():
            split, breed, file = name.split("/")
            if breed in BREEDS and split == "test":
                path = (root / breed / file).with_suffix(".png")
                path.parent.mkdir(exist_ok=True)
                v2.CenterCrop(64)(Image.open(io.BytesIO(archive.read(name))).convert("RGB")).save(path)
    return root


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    return random_cnn(tmp_path_factory.mktemp("cross"))


def test_transfer_to_cifar_is_the_number_of_scikit_learn(judged, cifar):
    expected, weight = transfer_by_reference(judged, cifar)
    found = transferred(judged, str(cifar), metric="top-1")
    assert sum(found["images"]) == 1600
    assert found["weight"] == pytest.approx(weight)
    assert found["accuracy"] == pytest.approx(expected, abs=0.2)
    assert 15 < expected < 90  # chance is 10


def test_few_shot_on_photographs_is_the_number_of_scikit_learn(judged, pets):
    mean, interval = few_shot_by_reference(judged, pets, shots=5, episodes=80, seed=4)
    found = episodes(judged, str(pets), shots=5, episodes=80, seed=4)
    assert found["images"] > 500
    assert found["accuracy"] == pytest.approx(mean, abs=0.05)
    assert found["interval"] == pytest.approx(interval, abs=0.02)
    assert 25 < mean < 90  # chance is 20
