"""Train with a loss of your own from trained weights: python examples/own_loss.py PHOTOS START EPOCHS"""

import sys
from dataclasses import dataclass, replace

import supancl


@supancl.register
@dataclass(frozen=True)
class Power:
    kind: str = "power"
    power: float = 2.0
    supervised = False  # needs no labels

    def sees_batch(self, pool):
        return False  # the loss of an image depends on its own views alone

    def __call__(self, anchors, targets, labels, pool=None, global_batch=None):  # (2, B, D), unit length
        total = (1 - (anchors * targets.flip(0)).sum(-1)).pow(self.power).mean()
        return supancl.Terms(total, total.detach(), total.detach())


photos, start, epochs = sys.argv[1:]
mine = replace(supancl.recipe("auto.simsiam"), method="power", paper="ours", loss=Power())
run = supancl.pretrain(mine, photos, "runs/power", init=start, size=96, epochs=int(epochs))
print(run.evaluate("linear")["accuracy"])
run.report()
