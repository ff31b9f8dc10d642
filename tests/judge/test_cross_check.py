"""One transfer and one few-shot number on real images, again by Pillow, torchvision and scikit-learn alone.

Transfer is to CIFAR-10, few-shot on breeds of the Pets, both from ../shared/data; the encoder is a fixed random CNN:
what is compared is the protocol, from files to figures, not how good the features are. The scikit-learn part is the
script in tests/evaluate/test_cross_check.py, which knows nothing of this package.
"""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from supancl.encoders import IMAGENET_MEAN, IMAGENET_STD, EncoderSpec
from supancl.evaluate import sample_episodes
from supancl.judge import few_shot_of, transfer_of
from supancl.judge.sources import few_shot_split, opened, spec_for, three_splits
from tests.evaluate.test_cross_check import expected_few_shot, expected_transfer
from tests.judge.made import run_folder, subject

SHARED = Path(__file__).parents[3] / "shared" / "data"
BREEDS = ("Abyssinian", "Bengal", "Bombay", "boxer", "pug", "samoyed")
SIZE = 32


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Images of the first sheet of each split, which holds 25 x 40."""
    path = tmp_path_factory.mktemp("cifar") / "cifar10.npz"
    with np.load(SHARED / "cifar10_jpegq88.npz") as packed:
        arrays = {}
        for split in ("train", "test"):
            sheet = Image.open(io.BytesIO(packed[f"{split}_jpeg"][: packed[f"{split}_offsets"][1]].tobytes()))
            pixels = np.asarray(sheet.convert("RGB")).reshape(25, SIZE, 40, SIZE, 3).transpose(0, 2, 1, 3, 4)
            count = 600 if split == "train" else 1000
            arrays |= {f"{split}_images": pixels.reshape(1000, SIZE, SIZE, 3)[:count],
                       f"{split}_labels": packed[f"{split}_labels"][:count].astype(np.int64)}
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """The test photographs of six breeds, the centre 64 px.

    Squares: of other shapes decode and torchvision may disagree by a column (tests/evaluate/test_features.py).
    """
    root = tmp_path_factory.mktemp("pets")
    with zipfile.ZipFile(SHARED / "oxford_pets_s64.zip") as archive:
        for name in archive.namelist():
            split, breed, file = name.split("/")
            if breed in BREEDS and split == "test":
                path = (root / breed / file).with_suffix(".png")
                path.parent.mkdir(exist_ok=True)
                v2.CenterCrop(64)(Image.open(io.BytesIO(archive.read(name))).convert("RGB")).save(path)
    return root


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    spec = EncoderSpec("cnn", channels=3, size=SIZE, width=24, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    found = subject(run_folder(tmp_path_factory.mktemp("cross") / "run", 11, spec=spec))
    with torch.no_grad():
        found.encoder.body[7].weight.mul_(30)  # features of the size of one, as those of trained encoders are
    return found


def by_torchvision(judged, images) -> np.ndarray:
    """Features by the protocol's own words: resize bicubic, centre crop, normalise."""
    view = v2.Compose([
        v2.Resize(SIZE, v2.InterpolationMode.BICUBIC), v2.CenterCrop(SIZE), v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ])  # fmt: skip
    with torch.no_grad():
        return judged.encoder.body(torch.stack([view(image.convert("RGB")) for image in images])).numpy()


def test_transfer_to_cifar_is_the_number_of_scikit_learn(judged, cifar):
    spec = spec_for(judged, str(cifar))
    splits = dict(zip(("train", "validation", "test"), three_splits(opened(judged, spec, "whole"), spec), strict=True))
    data = {f"{name}_labels": split.labels.numpy() for name, split in splits.items()}
    with np.load(cifar) as arrays:
        for name, split in splits.items():
            pixels = arrays["test_images" if name == "test" else "train_images"][split.index.numpy()]
            assert np.array_equal(arrays["test_labels" if name == "test" else "train_labels"][split.index.numpy()],
                                  data[f"{name}_labels"])
            data[f"{name}_values"] = by_torchvision(judged, map(Image.fromarray, pixels))
    expected, weight = expected_transfer(data, "top-1", np.logspace(-6, 5, 45))
    found = transfer_of(judged, str(cifar), "top-1")
    assert sum(found["images"]) == 1600
    assert found["weight"] == pytest.approx(weight)
    assert found["accuracy"] == pytest.approx(expected, abs=0.2)
    assert 15 < expected < 90  # chance is 10


def test_few_shot_on_photographs_is_the_number_of_scikit_learn(judged, pets):
    spec = spec_for(judged, str(pets))
    _, split = few_shot_split(judged, opened(judged, spec, "whole"), spec)
    values = by_torchvision(judged, map(Image.open, split.named(torch.arange(len(split)))))
    episodes = sample_episodes(split.labels, ways=5, shots=5, episodes=80, seed=4)
    mean, interval = expected_few_shot(values, episodes.support.numpy(), episodes.query.numpy())
    found = few_shot_of(judged, str(pets), shots=5, episodes=80, seed=4)
    assert found["images"] == len(values) > 500
    assert found["accuracy"] == pytest.approx(mean, abs=0.05)
    assert found["interval"] == pytest.approx(interval, abs=0.02)
    assert 25 < mean < 90  # chance is 20
