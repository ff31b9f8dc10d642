"""Images that are decoded each time they are read: files, or tar shards that are read while training.

The order of a stream is shuffled one window of shards at a time (order.py), so that a disk reads few shards at once.
What is in memory is the index and the order: about 40 bytes per image.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.decode import Item, Resample, decode_threads, try_decode
from supancl.data.sources.tars import TarItems
from supancl.data.store.memory import Batch, ImageStore, UnreadableRows, pad_images
from supancl.data.threads import ReadingThreads
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

MAX_ASPECT = 2  # longer images are cut to their middle, so that one canvas fits every image


class FileImages(ImageStore):
    """Images that several threads decode each time they are read."""

    def __init__(
        self,
        items: Sequence[Item | Path],
        channels: int,
        short_side: int | None,
        resample: Resample = "bilinear",
        checksums: np.ndarray | None = None,
    ) -> None:
        self.items, self.settings = items, (channels, short_side, resample)
        self.checksums = checksums  # of the pixels, as they were when all images were decoded once
        self.executor = ReadingThreads(decode_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1))), "decode")

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor) -> Batch:
        return pad_images(self._decode(indices.tolist()))

    def _decode(self, rows: Sequence[int]) -> list[Tensor]:
        images = list(self.executor.map(self.decode_row, rows))
        unreadable = {row: image for row, image in zip(rows, images, strict=True) if isinstance(image, str)}
        if unreadable:
            self.refuse(unreadable)
        return [image for image in images if not isinstance(image, str)]

    def decode_row(self, row: int) -> Tensor | str:
        """The pixels, or the reason why the image cannot be read."""
        return try_decode(self.items[row], *self.settings)

    def refuse(self, unreadable: dict[int, str]) -> None:
        """Raise an error for rows that cannot be read."""
        row, why = next(iter(unreadable.items()))
        raise BadInput(unreadable_image(self.items[row], why))

    def pixel_checksums(self, rows: Tensor) -> np.ndarray | None:
        return None if self.checksums is None else self.checksums[rows.numpy()]


class StreamImages(FileImages):
    """The images of tar shards. Unreadable ones are refused, or others take their places (`Split`)."""

    items: TarItems

    def __init__(
        self,
        items: TarItems,
        channels: int,
        short_side: int | None,
        resample: Resample = "bilinear",
        skip_bad: bool = False,
        window: int = 16,
    ) -> None:
        super().__init__(items, channels, short_side, resample)
        self.skip_bad, self.window = skip_bad, window
        self.shards = [shard.tar for shard in items.shards]
        self.shard_ends = torch.from_numpy(items.ends)
        self.shard_digests = [shard.digest for shard in items.shards]
        self.canvas = None if short_side is None else (MAX_ASPECT * short_side, MAX_ASPECT * short_side)
        self.reported: set[str] = set()

    def batch(self, indices: Tensor) -> Batch:
        self._check_shards(indices)
        return super().batch(indices)

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        self._check_shards(indices)
        return pad_images(self._decode(indices.tolist()), self.canvas)

    def _check_shards(self, indices: Tensor) -> None:
        """A tar that is missing or has changed is not a bad image."""
        for shard in torch.unique(torch.searchsorted(self.shard_ends, indices, right=True)).tolist():
            self.items.shards[shard].check()

    def decode_row(self, row: int) -> Tensor | str:
        """The pixels, cut to at most `MAX_ASPECT` times the short side; or why the image cannot be read."""
        image = super().decode_row(row)
        for axis, limit in enumerate(self.canvas or (), start=1):
            if not isinstance(image, str) and image.shape[axis] > limit:
                image = image.narrow(axis, (image.shape[axis] - limit) // 2, limit)
        return image

    def refuse(self, unreadable: dict[int, str]) -> None:
        if not self.skip_bad:
            super().refuse(unreadable)
        self.unreadable.update({row: str(self.items[row]) for row in unreadable})
        row, why = next(iter(unreadable.items()))
        raise UnreadableRows(unreadable_image(self.items[row], why))

    def has_one_shape(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.canvas is not None

    def new_remarks(self) -> list[str]:
        replaced = sorted({*self.unreadable.values()} - self.reported)
        self.reported.update(replaced)
        remark = "unreadable images that were replaced by others of their class and shard: "
        return [remark + ", ".join(replaced)] if replaced else []


def unreadable_image(item: object, why: str) -> str:
    return f"{item}: cannot be read as an image ({why}); repair or remove it, or skip it with skip_bad_images"
