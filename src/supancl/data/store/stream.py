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
from supancl.data.store.memory import Batch, ImageStore, pad_images
from supancl.data.threads import ReadingThreads
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from supancl.data.sources.tars import TarItems
else:
    from supancl.lazy import torch

MAX_ASPECT = 2  # longer images are cut to their middle, so that one canvas fits every image


class FileImages(ImageStore):
    """Images that several threads decode each time they are read."""

    def __init__(
        self, items: Sequence[Item | Path], channels: int, short_side: int | None, resample: Resample = "bilinear",
        checksums: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.items, self.settings = items, (channels, short_side, resample)
        self.checksums = checksums  # of the pixels, as they were when all images were decoded once
        self.executor = ReadingThreads(decode_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1))), "decode")

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor) -> Batch:
        return pad_images(list(self.executor.map(self.decode_row, indices.tolist())))

    def decode_row(self, row: int) -> Tensor:
        image = try_decode(self.items[row], *self.settings)
        if isinstance(image, str):
            raise BadInput(unreadable_image(self.items[row], image))
        return image

    def pixel_checksums(self, rows: Tensor) -> np.ndarray | None:
        return None if self.checksums is None else self.checksums[rows.numpy()]


class StreamImages(FileImages):
    """The images of tar shards. Unreadable ones are refused, or black and named in a remark."""

    items: TarItems

    def __init__(
        self, items: TarItems, channels: int, short_side: int | None, resample: Resample = "bilinear",
        skip_bad: bool = False, window: int = 16,
    ) -> None:  # fmt: skip
        super().__init__(items, channels, short_side, resample)
        self.skip_bad, self.window = skip_bad, window
        self.shards = [shard.tar for shard in items.shards]
        self.shard_ends = torch.from_numpy(items.ends)
        self.shard_digests = [shard.digest for shard in items.shards]
        self.canvas = None if short_side is None else (MAX_ASPECT * short_side, MAX_ASPECT * short_side)
        self.black: dict[str, bool] = {}  # names of unreadable images; whether they were reported

    def batch(self, indices: Tensor, canvas: tuple[int, int] | None = None) -> Batch:
        for shard in torch.unique(torch.searchsorted(self.shard_ends, indices, right=True)).tolist():
            self.items.shards[shard].check()  # a tar that is missing or has changed is not a bad image
        return pad_images(list(self.executor.map(self.decode_row, indices.tolist())), canvas)

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        return self.batch(indices, self.canvas)

    def decode_row(self, row: int) -> Tensor:
        """The pixels, cut to at most `MAX_ASPECT` times the short side."""
        try:
            image = super().decode_row(row)
        except BadInput:
            if not self.skip_bad:
                raise
            self.black.setdefault(str(self.items[row]), False)
            channels, short_side, _ = self.settings
            return torch.zeros(channels, short_side or 1, short_side or 1, dtype=torch.uint8)
        for axis, limit in enumerate(self.canvas or (), start=1):
            if image.shape[axis] > limit:
                image = image.narrow(axis, (image.shape[axis] - limit) // 2, limit)
        return image

    def has_one_shape(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.canvas is not None

    def new_remarks(self) -> list[str]:
        found = sorted(name for name, is_reported in self.black.items() if not is_reported)
        self.black.update(dict.fromkeys(found, True))
        return [f"unreadable images of the stream, black instead: {', '.join(found)}"] if found else []


def unreadable_image(item: object, why: str) -> str:
    return f"{item}: cannot be read as an image ({why}); repair or remove it, or skip it with skip_bad_images"
