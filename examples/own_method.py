"""Your own loss, pool, encoder and benchmark: supancl COMMAND ... --plugin own_method.py"""

from dataclasses import dataclass, replace

import torch

import supancl


@supancl.register
@dataclass(frozen=True)
class Spread:
    kind: str = "spread"
    weight: float = 10.0
    supervised = False  # needs no labels

    def sees_batch(self, pool):
        return True  # the deviation is over the batch

    def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
        align = -(anchors * targets.flip(0)).sum(-1).mean()
        flat = torch.relu(anchors.shape[-1] ** -0.5 - anchors.std(1)).mean()
        return supancl.Terms(align + self.weight * flat, align.detach(), flat.detach())


simsiam, supsiam = map(supancl.recipe, ("digits.simsiam", "digits.supsiam"))
supancl.RECIPES["mine.spread"] = lambda: replace(simsiam, method="spread", paper="ours", loss=Spread())


class HalvedQueue(supancl.Queue):
    def push(self, targets, labels):
        super().push(targets[::2], labels[::2])


@supancl.register
@dataclass(frozen=True)
class Halved(supancl.PoolSpec):
    kind: str = "halved"

    def build(self, width, classes, unlabelled=False, ranks=None):
        return HalvedQueue(self.size, width, classes, unlabelled=unlabelled)


supancl.RECIPES["mine.halved"] = lambda: replace(supsiam, paper="ours", pool=Halved(size=512))


def build_patches(spec):
    patches = torch.nn.Conv2d(spec.channels, spec.width or 64, kernel_size=4, stride=4)
    return torch.nn.Sequential(patches, torch.nn.GELU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


supancl.register_encoder("patches", build_patches)


def read_shapes(folder):
    rows = [line.split() for line in (folder / "labels.txt").read_text().splitlines()]
    return [(split, folder / file, name) for split, file, name in rows]


files, where = {"labels.txt": read_shapes}, "shapes/labels.txt, with SPLIT FILE CLASS in each line, and the files"
shapes = supancl.Benchmark("Shapes", 2, ("shapes",), where, cite="ours", split=(40, 10, 10), files=files)
supancl.register_benchmark("shapes", shapes)

if __name__ == "__main__":
    from supancl.cli import entry

    entry()
