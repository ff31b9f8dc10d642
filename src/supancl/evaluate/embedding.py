"""`supancl embed`: write the features of every split of a source to a .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.data.splits import Source, prepare_data
from supancl.data.views.evaluation import View
from supancl.errors import BadInput
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.evaluate.sources import is_run_source, read_source, spec_for
from supancl.files import check_writable, make_folder, write_atomically
from supancl.training.preflight import check_same_data


def embed_to_file(evaluated: EvaluatedEncoder, source: str, out: Path, view: View = "margin") -> dict[str, Any]:
    """Write a .npz with class_names and, per split, SPLIT_features, SPLIT_labels and SPLIT_names; plain arrays only.

    For the run's own data there is also train_held_out, the mask of train images that pretraining held out.
    """
    if out.suffix != ".npz":
        raise BadInput(f"--out {out}: must end in .npz")
    if out.exists():
        raise BadInput(f"{out} exists; remove it or choose another --out")
    check_writable(out.parent)
    data = read_source(evaluated, spec_for(evaluated, source), view)
    held_out = _held_out_mask(evaluated, source, data)
    arrays: dict[str, Any] = {"class_names": np.array(data.classes, dtype=np.str_)}
    width = 0
    for name, split in data.splits.items():
        features = evaluated.features(split, view)
        arrays[f"{name}_features"] = features.values.numpy()
        arrays[f"{name}_labels"] = features.labels.numpy()
        arrays[f"{name}_names"] = np.array(split.names_at(torch.arange(len(split))), dtype=np.str_)
        width = features.values.shape[1]
    if held_out is not None:
        arrays["train_held_out"] = held_out.numpy()

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    make_folder(out.parent)
    write_atomically(out, write)
    sizes = {name: len(split) for name, split in data.splits.items()}
    return {
        "out": str(out),
        "encoder": evaluated.location,
        "data": source,
        "width": width,
        "splits": sizes,
        "skipped": len(data.skipped),
        "train_held_out": None if held_out is None else int(held_out.sum()),
    }


def _held_out_mask(evaluated: EvaluatedEncoder, source: str, source_data: Source) -> Tensor | None:
    """Mask of the train images that the run held out; None if the data are not the run's or have changed."""
    if evaluated.run is None or evaluated.recipe is None or not is_run_source(evaluated, source):
        return None
    try:
        split_data = prepare_data(source_data, evaluated.recipe.data)
        if evaluated.run.read_data()[0]:  # old runs have no description to compare
            check_same_data(evaluated.run, split_data, "bring them back")
    except BadInput as error:
        evaluated.reporter.warn(
            f"which images {evaluated.location} held out cannot be told, so there is no train_held_out: {error}"
        )
        return None
    return ~torch.isin(source_data.splits["train"].index.cpu(), split_data.train.index.cpu())
