"""The product in three minutes on two CPU cores: `make demo`.

Pretrains SimSiam and SupSiam on handwritten digits without ever showing them the digits 3, 5, 8 and 9, then evaluates
both encoders on held-out images of the digits they saw, and on the four digits they did not.
"""

import sys
import time
from pathlib import Path

from supancl import embed, knn_accuracy, linear_accuracy, open_data, pretrain, recipe, variance
from supancl.reports import loss_curves, tsne_panels
from supancl.reports.tables import plain_table, to_text
from supancl.reports.terminal import Terminal, make_console
from supancl.runs.folder import next_folder

LEFT_OUT = ["3", "5", "8", "9"]
console = make_console(quiet=False, json_to_stdout=False)
short = {"train.epochs": int(sys.argv[1])} if len(sys.argv) > 1 else {}  # python examples/demo.py 1: one epoch

started, out = time.perf_counter(), next_folder("demo")
rows, runs, maps = [], {}, {}
for name in ("simsiam", "supsiam"):
    chosen = recipe(f"digits.{name}").with_set({"data.leave_out": LEFT_OUT, "train.monitor_every": 10, **short})
    data = open_data(chosen.data, chosen.encoder.channels)
    run = pretrain(chosen, data, out / name, reporter=Terminal(console))
    train, held_out = embed(run.encoder, data.train), embed(run.encoder, data.held_out)
    unseen_fit, unseen_test = (embed(run.encoder, split) for split in data.transfer)
    seen = f"{knn_accuracy(train, held_out):.1f}", f"{linear_accuracy(train, held_out):.1f}"
    unseen = f"{knn_accuracy(unseen_fit, unseen_test):.1f}", f"{linear_accuracy(unseen_fit, unseen_test):.1f}"
    rows.append([name, *seen, f"{variance(held_out).ratio:.3f}", *unseen])
    runs[name], maps[name] = run.metrics, held_out

loss_curves(runs, Path(out / "losses.png"))
tsne_panels(maps, data.classes, Path(out / "tsne.png"))
columns = ["method", "k-NN %", "linear %", "S_W/S_T", "k-NN % unseen", "linear % unseen"]
title = f"{len(data.held_out)} held-out images of 6 digits; {len(data.transfer[1])} of 4 digits never shown (one seed)"
console.print(to_text(plain_table(title, columns, rows)), end="")
console.print(f"runs and pictures in {out}; {time.perf_counter() - started:.0f} s")
