"""Two coordinates per image by t-SNE: of few images by scikit-learn, of tens of thousands by openTSNE."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes import Features
from supancl.probes.knn import Neighbours, neighbours
from supancl.reporter import report_progress, track_task

MAX_IMAGES_SKLEARN = 5_000  # above, scikit-learn's t-SNE takes several times as long as openTSNE
ITERATIONS = 750  # openTSNE's: 250 of early exaggeration and 500 more
CALL_EVERY = 25


def tsne_map(features: Features, seed: int = 0) -> np.ndarray[Any, Any]:
    """Two coordinates per image, by t-SNE of the features at unit length.

    Zeros for fewer than three images, or if all features are equal (a collapsed encoder).
    """
    count = len(features.values)
    values = features.values.double().numpy()
    values = values / np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)
    if count < 3 or not (values != values[0]).any():
        return np.zeros((count, 2))
    if count > MAX_IMAGES_SKLEARN:
        return _tsne_of_many(values, seed)
    from sklearn.manifold import TSNE

    with track_task(f"t-SNE of {count:,} images"):
        return np.asarray(TSNE(perplexity=perplexity(count), init="pca", random_state=seed).fit_transform(values))


def perplexity(count: int) -> float:
    """The perplexity for `count` images: 30, or less for few images, because it must be below their number."""
    return min(30.0, max(2.0, (count - 1) / 3))


def check_tsne(count: int) -> None:
    """Refuse more images than scikit-learn can map in good time if openTSNE is not installed."""
    if count > MAX_IMAGES_SKLEARN and find_spec("openTSNE") is None:
        raise BadInput(
            f"t-SNE of {count:,} images needs openTSNE; pip install 'supancl[map]', or show at most "
            f"{MAX_IMAGES_SKLEARN:,} with limit"
        )


def nearest_images(values: Tensor, k: int, device: torch.device | str | None = None) -> Neighbours:
    """The k images with the most similar features (cosine) of each image, labelled or not, without itself."""
    everyone = Features(values, torch.zeros(len(values), dtype=torch.long))
    return neighbours(everyone, values, k, leave_one_out=True, device=device)


def _tsne_of_many(values: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """From exact neighbours of `values`, which have unit length; equal seeds and threads give equal bits."""
    check_tsne(len(values))
    from openTSNE import TSNE, initialization
    from openTSNE.affinity import PerplexityBasedNN
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    width = perplexity(len(values))
    matches = nearest_images(torch.from_numpy(values).float(), int(3 * width))
    distances = (2 - 2 * matches.similarity).clamp(min=0).sqrt()  # of unit vectors
    index = PrecomputedNeighbors(matches.rows.cpu().numpy(), distances.double().cpu().numpy())
    threads = torch.get_num_threads()
    affinities = PerplexityBasedNN(perplexity=width, knn_index=index, n_jobs=threads)
    calls = 0

    def report(*_: Any) -> None:
        nonlocal calls
        calls += 1
        report_progress("t-SNE, iterations", min(ITERATIONS, calls * CALL_EVERY), ITERATIONS)

    mapped = TSNE(random_state=seed, n_jobs=threads, callbacks=report, callbacks_every_iters=CALL_EVERY).fit(
        affinities=affinities, initialization=initialization.pca(values, random_state=seed)
    )
    return np.asarray(mapped)
