"""Tar shards that are read while training, without a cache of pixels.

The order is shuffled one window of shards at a time (order.py), so that a disk reads few shards at once. What is in
memory is the index and the order: about 40 bytes per image.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from supancl.data.decode import Resample, decode, image_problem, large_image_remarks
from supancl.data.sources.tars import TarItems
from supancl.data.store.memory import Batch, FileImages, UnreadableRows, pad_images
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

MAX_ASPECT = 2  # longer images are cut to their middle, so that one canvas fits every image


class StreamImages(FileImages):
    """The images of shards, decoded each time they are read. Unreadable ones are refused, or replaced (`Split`)."""

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
        self.lock = threading.Lock()
        self.large: set[str] = set()
        self.reported: set[str] = set()

    def batch(self, indices: Tensor) -> Batch:
        for shard in torch.unique(torch.searchsorted(self.shard_ends, indices, right=True)).tolist():
            self.items.shards[shard].check()  # a missing tar is not a bad image
        decoded = dict(zip(indices.tolist(), self.executor.map(self.decode_row, indices.tolist()), strict=False))
        unreadable = {row: image for row, image in decoded.items() if isinstance(image, str)}
        for row, why in unreadable.items():
            item = self.items[row]
            message = (
                f"{item}: cannot be read as an image ({why}); repair or remove it, or skip it with skip_bad_images"
            )
            if not self.skip_bad:
                raise BadInput(message)
            with self.lock:
                self.unreadable[row] = str(item)
        if unreadable:
            raise UnreadableRows(message)
        return pad_images([decoded[row] for row in indices.tolist()])

    def decode_row(self, row: int) -> Tensor | str:
        """Pixels, cut to at most `MAX_ASPECT` times the short side; or why the image cannot be read."""
        large: list[str] = []
        try:
            image = decode(self.items[row], self.channels, self.short_side, self.resample, large)
        except (OSError, ValueError) as error:
            return image_problem(error)
        if large:
            with self.lock:
                self.large.update(large)
        for axis, limit in enumerate(self.canvas or (), start=1):
            if image.shape[axis] > limit:
                image = image.narrow(axis, (image.shape[axis] - limit) // 2, limit)
        return image

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        batch = self.batch(indices)
        return batch if self.canvas is None else batch.pad_to(self.canvas)

    def has_one_shape(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.canvas is not None

    def iter_content(self, rows: Tensor) -> None:  # type: ignore[override]
        return None

    def new_remarks(self) -> list[str]:
        with self.lock:
            replaced, large = (sorted({*names} - self.reported) for names in (self.unreadable.values(), self.large))
            self.reported.update(replaced, large)
        remark = "unreadable images that were replaced by others of their class and shard: "
        return [*large_image_remarks(large), *([remark + ", ".join(replaced)] if replaced else [])]
