"""A loss, a pool and recipes of one's own: python own_method.py pretrain mine.spread --out runs/mine"""

from dataclasses import dataclass, replace

import torch

import supancl
from supancl import PoolSpec, Queue, Terms
from supancl.cli import entry


@supancl.register
@dataclass(frozen=True)
class Spread:
    """Alignment, and a price for dimensions in which the batch's anchors do not spread."""

    kind: str = "spread"
    weight: float = 10.0
    supervised = False  # needs no labels

    def sees_batch(self, pool):
        return True  # one sample's loss depends on the others: the deviation is over the batch

    def __call__(self, anchors, targets, labels, pool=None, whole=None):
        align = -(anchors * targets.flip(0)).sum(-1).mean()
        flat = torch.relu(anchors.shape[-1] ** -0.5 - anchors.std(1)).mean()
        return Terms(align + self.weight * flat, align.detach(), flat.detach())


@supancl.register
@dataclass(frozen=True)
class Halved(PoolSpec):
    """A queue that keeps half of every batch."""

    kind: str = "halved"

    def build(self, width, classes, unlabelled=False, ranks=None):
        return HalvedQueue(self.size, width, classes, unlabelled=unlabelled)


class HalvedQueue(Queue):
    def push(self, targets, labels):
        super().push(targets[::2], labels[::2])


def spread():
    return replace(supancl.recipe("digits.simsiam"), name="mine.spread", method="spread", paper="ours", loss=Spread())


def halved():
    return replace(supancl.recipe("digits.supsiam"), name="mine.halved", paper="ours", pool=Halved(size=512))


supancl.RECIPES.update({"mine.spread": spread, "mine.halved": halved})

if __name__ == "__main__":
    entry()
