"""Duplicates by pixels: exact, nearly equal, mirrored; whatever the encoder."""

import numpy as np
import torch

from supancl.data.splits import full_split
from supancl.data.store.memory import ArrayImages
from supancl.evaluation.audit import find_duplicates, read_pixels
from tests.reports.made import smooth_images


def pairs(pixels: np.ndarray, neighbours: torch.Tensor | None = None) -> dict[tuple[int, int], str]:
    labels, names = torch.zeros(len(pixels), dtype=torch.long), list(map(str, range(len(pixels))))
    split = full_split(ArrayImages(torch.from_numpy(pixels)), labels, names)
    return {(pair.first, pair.second): pair.kind for pair in find_duplicates(*read_pixels([split]), neighbours)}


def test_copies_noise_and_mirror_images_are_found_and_nothing_else() -> None:
    pixels = smooth_images(60)
    noise = np.random.default_rng(0).integers(-10, 11, pixels[2].shape)
    pixels[41] = pixels[1]
    pixels[42] = np.clip(pixels[2].astype(int) + noise, 0, 255)
    pixels[43] = pixels[3][:, :, ::-1]
    assert pairs(pixels) == {(1, 41): "same pixels", (2, 42): "near", (3, 43): "mirrored"}


def test_each_copy_is_paired_with_the_first_one() -> None:
    pixels = smooth_images(40)
    pixels[10:30] = pixels[5]
    pixels[35] = np.clip(pixels[5].astype(int) + 3, 0, 255)
    assert pairs(pixels) == {(5, row): "same pixels" for row in range(10, 30)} | {(5, 35): "near"}


def test_features_propose_pairs_and_pixels_decide() -> None:
    """Neighbours by features that look different are no duplicates."""
    pixels = smooth_images(20)
    pixels[19] = pixels[0]
    everyone_is_near = torch.arange(20).roll(1)[:, None]
    assert pairs(pixels, everyone_is_near) == {(0, 19): "same pixels"}


def test_flat_images_are_duplicates_only_if_equal() -> None:
    pixels = np.stack([np.full((1, 8, 8), level, np.uint8) for level in (0, 0, 1, 200)])
    assert pairs(pixels) == {(0, 1): "same pixels"}
    assert pairs(pixels[:1]) == {}
