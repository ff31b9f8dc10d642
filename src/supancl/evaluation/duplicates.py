"""Images that are in a source twice: the same pixels, or nearly the same picture, possibly mirrored.

Pairs are proposed by small copies of the pixels and by the encoder's features, and confirmed by the pixels. So the
search does not depend on how good the encoder is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.data.splits import Split
from supancl.data.store.memory import Batch
from supancl.probes import Features
from supancl.probes.label_scores import Progress, other_neighbours

SIDE = 16  # of the small copies that confirm a pair
SEARCH_SIDE = 8  # of those that propose pairs
PROPOSED = 4  # per image by the pixels, and as many by the features
MAX_RELATIVE = 0.25  # difference of the small copies, relative to their contrast
MAX_LEVELS = 20.0  # and at most so many of 255 levels: both root mean squares
MIN_CONTRAST = 4.0  # levels: a flatter image has nothing to compare
IMAGES_AT_A_TIME = 256
PAIRS_AT_A_TIME = 8192

Kind = Literal["same pixels", "near", "mirrored"]


class DuplicatePair(NamedTuple):
    """Rows of two images, the first one earlier; and the root mean square of their difference in levels of 255."""

    first: int
    second: int
    kind: Kind
    difference: float


@dataclass(frozen=True)
class PixelTable:
    """A small copy (N, C, 16, 16) of every image, uint8, and a digest of its full pixels."""

    small: Tensor
    digests: list[bytes]


def read_pixels(splits: Sequence[Split], progress: Progress | None = None) -> PixelTable:
    """Read the images of the splits, one split after the other."""
    small, digests, total = [], list[bytes](), sum(map(len, splits))
    for split in splits:
        for start in range(0, len(split), IMAGES_AT_A_TIME):
            batch = split.batch(torch.arange(start, min(start + IMAGES_AT_A_TIME, len(split))))
            small.append(shrink_batch(batch))
            digests += [_digest(batch.image(row)) for row in range(len(batch.pixels))]
            if progress is not None:
                progress("reading pixels", len(digests), total)
    return PixelTable(torch.cat(small), digests)


def shrink_batch(batch: Batch) -> Tensor:
    """(B, C, 16, 16) means of the pixels, rounded to uint8; images are squeezed to a square."""
    if batch.sizes is None:
        pooled = F.adaptive_avg_pool2d(batch.pixels.float(), SIDE)
    else:
        images = (batch.image(row).float() for row in range(len(batch.pixels)))
        pooled = torch.stack([F.adaptive_avg_pool2d(image, SIDE) for image in images])
    return pooled.round().to(torch.uint8).cpu()


def _digest(pixels: Tensor) -> bytes:
    array = np.ascontiguousarray(pixels.cpu().numpy())
    return hashlib.blake2b(f"{array.shape}".encode() + array.tobytes(), digest_size=16).digest()


def find_duplicates(
    pixels: PixelTable, feature_neighbours: Tensor | None = None, progress: Progress | None = None
) -> list[DuplicatePair]:
    """Pairs of equal and nearly equal images, sorted by their rows.

    Of several images with the same pixels, each is paired with the first one, and only the first one with others.
    `feature_neighbours` (N, k) are the rows of each image's nearest neighbours in the encoder's features.
    """
    first_rows: dict[bytes, int] = {}
    original = [first_rows.setdefault(digest, row) for row, digest in enumerate(pixels.digests)]
    pairs = [DuplicatePair(first, row, "same pixels", 0.0) for row, first in enumerate(original) if first != row]
    distinct = torch.tensor(sorted(first_rows.values()))
    proposed = [_propose_by_pixels(pixels.small, distinct, progress)]
    if feature_neighbours is not None:
        proposed.append(_pair_with_neighbours(torch.tensor(original), feature_neighbours[:, :PROPOSED].cpu()))
    candidates = torch.cat(proposed).sort(1).values.unique(dim=0)
    pairs += _confirm(pixels.small, candidates[candidates[:, 0] != candidates[:, 1]])
    return sorted(pairs)


def _propose_by_pixels(small: Tensor, rows: Tensor, progress: Progress | None) -> Tensor:
    """(P, 2) rows of similar images. The mirror-even part and the size of the odd part are equal in a mirror image."""
    if len(rows) < 2:
        return torch.empty(0, 2, dtype=torch.long)
    coarse = F.avg_pool2d(small[rows].float(), SIDE // SEARCH_SIDE)
    coarse -= coarse.mean((2, 3), keepdim=True)
    even, odd = coarse + coarse.flip(3), coarse - coarse.flip(3)
    half = SEARCH_SIDE // 2  # the other half repeats it
    values = torch.cat([even[..., :half].flatten(1), odd[..., :half].abs().flatten(1)], 1)
    everyone = Features(values, torch.zeros(len(values), dtype=torch.long))
    matches = other_neighbours(everyone, min(PROPOSED, len(rows) - 1), progress, "comparing pixels")
    return _pair_with_neighbours(rows, matches.rows)


def _pair_with_neighbours(rows: Tensor, neighbours: Tensor) -> Tensor:
    return torch.stack([rows[:, None].expand_as(neighbours), rows[neighbours]], 2).flatten(0, 1)


def _confirm(small: Tensor, candidates: Tensor) -> list[DuplicatePair]:
    """The candidates whose small copies agree, as they are or mirrored."""
    pairs: list[DuplicatePair] = []
    for block in candidates.split(PAIRS_AT_A_TIME):
        first, second = small[block[:, 0]].float(), small[block[:, 1]].float()
        contrast = torch.minimum(_contrast(first), _contrast(second))
        unmirrored = (first - second).square().mean((1, 2, 3)).sqrt()
        mirrored = (first - second.flip(3)).square().mean((1, 2, 3)).sqrt()
        difference = torch.minimum(unmirrored, mirrored)
        is_near = (difference <= MAX_RELATIVE * contrast) & (difference <= MAX_LEVELS) & (contrast >= MIN_CONTRAST)
        for row in is_near.nonzero()[:, 0].tolist():
            kind: Kind = "near" if unmirrored[row] <= mirrored[row] else "mirrored"
            pairs.append(DuplicatePair(int(block[row, 0]), int(block[row, 1]), kind, float(difference[row])))
    return pairs


def _contrast(images: Tensor) -> Tensor:
    """Root mean square around the mean colour: two pictures of blue water have little to compare."""
    return (images - images.mean((2, 3), keepdim=True)).square().mean((1, 2, 3)).sqrt()
