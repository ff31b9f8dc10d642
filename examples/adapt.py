"""Train on from trained weights with few labels; is it worth it? python examples/adapt.py PHOTOS START [EPOCHS]"""

import sys

import supancl

photos, start, *epochs = sys.argv[1:]
chosen = {"epochs": int(epochs[0])} if epochs else {}  # else from the number of images
run = supancl.pretrain("semi", photos, "runs/adapted", init=start, size=96, verbose=True, **chosen)
print(run.evaluate("linear")["accuracy"])
run.report()
