"""Transfer and few-shot from files to a figure by Pillow, torchvision and scikit-learn alone.

The encoder is a fixed random CNN: what is compared is the protocol, not how good the features are.
"""

import warnings

import numpy as np
import torch
from PIL import Image
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.multiclass import OneVsRestClassifier
from torchvision.transforms import v2

from supancl.core.specs import IMAGENET_MEAN, IMAGENET_STD, EncoderSpec
from supancl.evaluation.data import few_shot_split, read_source, spec_for, three_splits
from supancl.probes import sample_episodes
from tests.evaluation.made import run_folder, subject

SIZE = 32
WEIGHTS = np.logspace(-6, 5, 45)
METRICS = {"top-1": accuracy_score, "mean-per-class": balanced_accuracy_score}


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


def transfer_by_reference(judged, path, metric="top-1") -> tuple[float, float]:
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
    return expected_transfer(data, metric)


def few_shot_by_reference(judged, root, shots, episodes, seed) -> tuple[float, float]:
    """Mean accuracy and half-width of its interval on a folder of images, on the package's episodes."""
    spec = spec_for(judged, str(root))
    _, split = few_shot_split(judged, read_source(judged, spec, "whole"), spec)
    values = by_torchvision(judged, map(Image.open, split.names_at(torch.arange(len(split)))))
    drawn = sample_episodes(split.labels, ways=5, shots=shots, episodes=episodes, seed=seed)
    return expected_few_shot(values, drawn.support.numpy(), drawn.query.numpy())
