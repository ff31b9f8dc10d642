"""Make this folder's encoder again: `python examples/digits-encoder/make.py` prints the figures of README.md."""

import shutil
from pathlib import Path

import torch

import supancl

torch.set_num_threads(1)  # on the same machine and versions the weights are then the same bit for bit
digits = supancl.recipe("digits.supsiam", device="cpu", monitor_every=0)
run = supancl.pretrain(digits, out="runs/digits-encoder")
shutil.copyfile(run.folder / "encoder.safetensors", Path(__file__).parent / "encoder.safetensors")
data = supancl.open_data(digits.data, digits.encoder.channels)
train, held_out = supancl.embed(run, data.train), supancl.embed(run, data.held_out)
print(f"held-out images: {len(data.held_out)}, k-NN: {supancl.knn_accuracy(train, held_out):.2f} %,")
print(f"linear: {supancl.linear_accuracy(train, held_out):.2f} %, S_W/S_T: {supancl.variance(held_out).ratio:.3f}")
