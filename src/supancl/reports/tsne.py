"""t-SNE of tens of thousands of images with openTSNE, from exact neighbours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes import Features
from supancl.probes.knn import Neighbours, neighbours

MAX_IMAGES_SKLEARN = 5_000  # above, scikit-learn's t-SNE takes several times as long as openTSNE
PHASES = {"early exaggeration": 250, "optimisation": 500}  # openTSNE's iterations
CALL_EVERY = 25
SKLEARN_ITERATIONS = 1000  # its default

ITERATIONS = "t-SNE, iterations"
Progress = Callable[[str, int, int], None]  # (activity, done, total)


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


def tsne_of_few(
    values: np.ndarray[Any, Any], perplexity: float, seed: int, progress: Progress | None = None
) -> np.ndarray[Any, Any]:
    """Two coordinates per row of `values` by scikit-learn."""
    from sklearn.manifold import TSNE

    verbose = 0 if progress is None else 2
    mapper = TSNE(perplexity=perplexity, init="pca", random_state=seed, max_iter=SKLEARN_ITERATIONS, verbose=verbose)
    if progress is None:
        return np.asarray(mapper.fit_transform(values))
    with redirect_stdout(PrintedIterations(SKLEARN_ITERATIONS, progress)):
        mapped = np.asarray(mapper.fit_transform(values))
    progress(ITERATIONS, SKLEARN_ITERATIONS, SKLEARN_ITERATIONS)
    return mapped


class PrintedIterations(io.TextIOBase):
    """Reports the iterations that scikit-learn's t-SNE prints; it has no other way to say how far it is."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total, self.progress = total, progress

    def write(self, text: str) -> int:
        for number in re.findall(r"Iteration (\d+)", text):
            if int(number) < self.total:
                self.progress(ITERATIONS, int(number), self.total)
        return len(text)


def tsne_of_many(
    values: np.ndarray[Any, Any], perplexity: float, seed: int, progress: Progress | None = None
) -> np.ndarray[Any, Any]:
    """Two coordinates per row of `values`, which have unit length; equal seeds and threads give equal bits."""
    check_tsne(len(values))
    from openTSNE import TSNE, initialization
    from openTSNE.affinity import PerplexityBasedNN
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    matches = nearest_images(torch.from_numpy(values).float(), int(3 * perplexity))
    distances = (2 - 2 * matches.similarity).clamp(min=0).sqrt()  # of unit vectors
    index = PrecomputedNeighbors(matches.rows.cpu().numpy(), distances.double().cpu().numpy())
    threads = torch.get_num_threads()
    affinities = PerplexityBasedNN(perplexity=perplexity, knn_index=index, n_jobs=threads)
    calls = 0

    def report(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if progress is not None:
            total = sum(PHASES.values())
            progress(ITERATIONS, min(total, calls * CALL_EVERY), total)

    mapped = TSNE(random_state=seed, n_jobs=threads, callbacks=report, callbacks_every_iters=CALL_EVERY).fit(
        affinities=affinities, initialization=initialization.pca(values, random_state=seed)
    )
    return np.asarray(mapped)
