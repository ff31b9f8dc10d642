"""Batches made ready ahead: the same ones as without, whatever is asked for in which order."""

from __future__ import annotations

import pytest
import torch

from supancl.data.order import Order
from supancl.data.splits import Split, full_split
from supancl.data.store.memory import Batch, Feed, ImageStore, PackedImages
from supancl.errors import BadInput
from tests.helpers import mentions, noise

CPU = torch.device("cpu")


def ragged(count: int = 24) -> list[torch.Tensor]:
    return [torch.from_numpy(noise(3, 4 + i % 5, 6 + i % 4, seed=i)) for i in range(count)]


class Torn(ImageStore):
    """A store of which `bad` positions cannot be read."""

    def __init__(self, store: PackedImages, bad: frozenset[int] = frozenset()) -> None:
        self.store, self.bad = store, bad

    def __len__(self) -> int:
        return len(self.store)

    def batch(self, indices: torch.Tensor) -> Batch:
        if self.bad & set(indices.tolist()):
            raise BadInput("cat.jpg: was readable before, now it is not; restore it")
        return self.store.batch(indices)


LABELS = torch.arange(24) % 3
ORDER = Order(LABELS, 0, 4)


def split_of(bad: frozenset[int] = frozenset()) -> Split:
    return full_split(Torn(PackedImages.from_images(ragged()), bad), LABELS, [f"{i}.jpg" for i in range(24)])


def equal(one: Batch, other: Batch) -> bool:
    sizes = one.sizes is other.sizes is None or torch.equal(one.sizes, other.sizes)
    return sizes and torch.equal(one.pixels, other.pixels)


@pytest.mark.parametrize("steps", [[0, 1, 2, 3, 4, 5], [3, 3, 3], [0, 5, 1, 4], [7, 8, 2, 3, 11], [4, 5, 6, 0, 1]])
def test_a_feed_gives_what_the_split_gives_in_any_order(steps):
    split = split_of()
    feed = Feed(split, ORDER.positions, CPU, steps=12)
    for step in steps:
        assert equal(feed.batch(step), split.store.store.batch(ORDER.positions(step)))
    feed.close()


def test_what_goes_wrong_in_the_thread_reaches_who_asks_for_that_step():
    split = split_of(bad=frozenset(ORDER.positions(2).tolist()))
    feed = Feed(split, ORDER.positions, CPU, steps=6)
    feed.batch(0)  # step 2 is being made already: the error waits for its turn
    feed.batch(1)
    with pytest.raises(BadInput, match=mentions("cat.jpg", "before")):
        feed.batch(2)
    with pytest.raises(BadInput):  # and again, when asked for again
        feed.batch(2)
    assert equal(feed.batch(3), split.store.store.batch(ORDER.positions(3)))
    feed.close()


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_gpu_way_of_cutting_images_out_gives_the_same_pixels(uniform, channels):
    images = [image[:channels, :4, :6] if uniform else image[:channels] for image in ragged()]
    packed = PackedImages.from_images(images).to(CPU)  # one flat run, with room behind it, as on a GPU
    for chosen in ([0], [23], [23, 22, 21], list(range(24)), [4, 4, 19]):
        indices = torch.tensor(chosen)
        found = packed._gather(indices)
        assert tuple(found.pixels.shape) == (len(chosen), channels, *packed.canvas), "one shape, whatever is chosen"
        assert (found.sizes is None) == uniform
        for row, position in zip(found.pixels, chosen, strict=True):
            image = images[position]
            assert torch.equal(row[:, : image.shape[1], : image.shape[2]], image)
        if uniform:
            assert torch.equal(found.pixels, packed.batch(indices).pixels)
        else:
            assert torch.equal(found.sizes, packed.sizes[indices])
