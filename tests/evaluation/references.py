"""Transfer and few-shot from files to a figure by Pillow, torchvision and scikit-learn alone.

The encoder is a fixed random CNN: what is compared is the protocol, not how good the features are. The scikit-learn
part is the script in tests/probes/test_cross_check.py, which knows nothing of this package.
"""

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from supancl.core.specs import IMAGENET_MEAN, IMAGENET_STD, EncoderSpec
from supancl.evaluation.data import few_shot_split, read_source, spec_for, three_splits
from supancl.probes import sample_episodes
from tests.evaluation.made import run_folder, subject
from tests.probes.test_cross_check import expected_few_shot, expected_transfer

SIZE = 32


def random_cnn(folder):
    """A run of a random CNN for colour images of 32 px, whose features are about as large as those of trained ones."""
    spec = EncoderSpec("cnn", channels=3, size=SIZE, width=24, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    found = subject(run_folder(folder / "run", 11, spec=spec))
    with torch.no_grad():
        found.encoder.body[7].weight.mul_(30)
    return found


def by_torchvision(judged, images) -> np.ndarray:
    """Features by the protocol's own words: resize bicubic, centre crop, normalise."""
    view = v2.Compose([
        v2.Resize(SIZE, v2.InterpolationMode.BICUBIC), v2.CenterCrop(SIZE), v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ])  # fmt: skip
    with torch.no_grad():
        return judged.encoder.body(torch.stack([view(image.convert("RGB")) for image in images])).numpy()


def transfer_by_reference(judged, path) -> tuple[float, float]:
    """Accuracy and chosen weight on a .npz, on the package's splits of it."""
    spec = spec_for(judged, str(path))
    splits = dict(
        zip(("train", "validation", "test"), three_splits(read_source(judged, spec, "whole"), spec), strict=True)
    )
    data = {f"{name}_labels": split.labels.numpy() for name, split in splits.items()}
    with np.load(path) as arrays:
        for name, split in splits.items():
            file = "test" if name == "test" else "train"
            rows = split.index.numpy() - (len(arrays["train_labels"]) if file == "test" else 0)  # of one store
            assert np.array_equal(arrays[f"{file}_labels"][rows], data[f"{name}_labels"])
            pixels = arrays[f"{file}_images"][rows]
            data[f"{name}_values"] = by_torchvision(judged, map(Image.fromarray, pixels))
    return expected_transfer(data, "top-1", np.logspace(-6, 5, 45))


def few_shot_by_reference(judged, root, shots, episodes, seed) -> tuple[float, float]:
    """Mean accuracy and half-width of its interval on a folder of images, on the package's episodes."""
    spec = spec_for(judged, str(root))
    _, split = few_shot_split(judged, read_source(judged, spec, "whole"), spec)
    values = by_torchvision(judged, map(Image.open, split.names_at(torch.arange(len(split)))))
    drawn = sample_episodes(split.labels, ways=5, shots=shots, episodes=episodes, seed=seed)
    return expected_few_shot(values, drawn.support.numpy(), drawn.query.numpy())
