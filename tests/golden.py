"""Golden losses: ten steps per method on the CPU, kept as text. `make golden` writes them anew."""

import tempfile
from pathlib import Path

import torch

from supancl import METHODS, pretrain
from tests.helpers import tiny_data, tiny_recipe

FOLDER = Path(__file__).parent / "golden"


def ten_losses(method: str) -> list[float]:
    recipe = tiny_recipe(method, train__epochs=2, train__batch_size=8, train__monitor_every=0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = pretrain(recipe, tiny_data(48, unlabelled=0.5 * (method == "semi")), Path(folder) / "run").metrics
    finally:
        torch.set_num_threads(threads)
    return [row["loss"] for row in rows if row["kind"] == "train"]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in METHODS:
        (FOLDER / f"{name}.txt").write_text("".join(f"{loss:.8f}\n" for loss in ten_losses(name)))
        print(name)
