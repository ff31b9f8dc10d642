"""`supancl embed`: write the features of every split of a source to a .npz, .csv or .parquet file."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.data.label_pairs import label_cells, weight_matrix
from supancl.data.levels import with_given_labels
from supancl.data.preparing import prepare_data
from supancl.data.splits import Data, Source
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, make_visible
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.overlap import is_run_source
from supancl.evaluation.sources import read_source, spec_for
from supancl.files import (
    check_feature_file,
    escape_formula,
    make_writable,
    path_in_table,
)
from supancl.probes import Features
from supancl.reporter import track_task
from supancl.runs.folder import check_same_data

ROWS_AT_A_TIME = 8192


def embed_to_file(evaluated: EvaluatedEncoder, source: str, out: Path, view: View = "margin") -> Features:
    """Write the features of every image of a source, in the format that the suffix of `out` says; returns them too.

    For the run's own data the file also says which train images pretraining held out.
    """
    output = check_feature_file(out)
    data = read_source(evaluated, spec_for(evaluated, source), view, several_labels=True)
    held_out = held_out_mask(evaluated, source, data)
    features = {name: evaluated.features(split, view) for name, split in data.splits.items()}
    mask, folder = None if held_out is None else held_out.numpy(), os.path.join(out.parent.resolve(), "")
    embedding = Embedding(with_given_labels(data), features, mask, folder)
    with track_task(f"writing {out.name}"):
        output.write(lambda path: WRITERS[out.suffix.lower()](embedding, path))
    values, labels = (torch.cat(parts) for parts in zip(*features.values(), strict=True))
    written = Features(values, labels, paths=[name for split in data.splits for name in embedding.names(split)])
    written.about = {
        "out": str(out),
        "encoder": evaluated.location,
        "data": source,
        "width": max(values.values.shape[1] for values in features.values()),
        "splits": {name: len(split) for name, split in data.splits.items()},
        "skipped": len(data.skipped),
        "train_held_out": None if held_out is None else int(held_out.sum()),
    }
    return written


@dataclass(frozen=True)
class Embedding:
    """The features of every split of a source; `held_out` is the mask of train images that pretraining held out.

    `folder` is that of the table, with its slash.
    """

    data: Source
    features: dict[str, Features]
    held_out: np.ndarray | None
    folder: str

    def names(self, split: str) -> list[str]:
        images = self.data.splits[split]
        return images.names_at(torch.arange(len(images)))

    def chunks(self) -> Iterator[tuple[dict[str, Sequence[Any]], np.ndarray]]:
        """Columns (path, label, split and, if known, held_out) and features of a part of a split at a time."""
        for split, (values, _) in self.features.items():
            names, labels = self.names(split), self.data.splits[split].image_labels
            for start in range(0, len(names), ROWS_AT_A_TIME):
                rows = slice(start, start + ROWS_AT_A_TIME)
                texts = label_cells(labels, torch.arange(len(names))[rows], self.data.classes)
                paths = [path_in_table(n, self.folder) if self.data.has_files else n for n in names[rows]]
                columns: dict[str, Sequence[Any]] = {"path": paths, "label": texts, "split": [split] * len(texts)}
                if self.held_out is not None:
                    columns["held_out"] = self.held_out[rows].tolist() if split == "train" else [True] * len(texts)
                yield columns, values[rows].numpy()


def write_npz(embedding: Embedding, path: Path) -> None:
    """class_names and, per split, SPLIT_features, SPLIT_labels and SPLIT_names; plain arrays only.

    Several or soft labels are weights (N, C), as a .npz source has them. Of a hierarchy there is one label, a path.
    """
    arrays: dict[str, Any] = {"class_names": np.array(embedding.data.classes, dtype=np.str_)}
    for name, features in embedding.features.items():
        arrays[f"{name}_features"] = features.values.numpy()
        labels = embedding.data.splits[name].image_labels
        arrays[f"{name}_labels"] = (
            labels.labels.numpy() if labels.pairs is None else weight_matrix(labels.pairs, len(embedding.data.classes))
        )
        arrays[f"{name}_names"] = np.array(embedding.names(name), dtype=np.str_)
    if embedding.held_out is not None:
        arrays["train_held_out"] = embedding.held_out
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def write_csv(embedding: Embedding, path: Path) -> None:
    """A row per image: path, label, split, held_out if known, f0, f1, ..."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        has_header = False
        for columns, values in embedding.chunks():
            if not has_header:
                writer.writerow([*columns, *_feature_names(values)])
                has_header = True
            for texts, row in zip(zip(*columns.values(), strict=True), values, strict=True):
                # str of a float32: the shortest text that reads back as the same number
                writer.writerow([*(escape_formula(make_writable(str(text))) for text in texts), *map(str, row)])


def write_parquet(embedding: Embedding, path: Path) -> None:
    """The columns of `write_csv`, with numbers as float32."""
    import pyarrow
    from pyarrow import parquet

    writer = None
    try:
        for columns, values in embedding.chunks():
            for name in ("path", "label"):
                columns[name] = [text if _is_utf8(text) else make_visible(text) for text in columns[name]]
            numbers = dict(zip(_feature_names(values), values.T, strict=True))
            table = pyarrow.table({**columns, **numbers})
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _feature_names(values: np.ndarray) -> list[str]:
    return [f"f{i}" for i in range(values.shape[1])]


def _is_utf8(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


WRITERS: dict[str, Callable[[Embedding, Path], None]] = {
    ".npz": write_npz,
    ".csv": write_csv,
    ".parquet": write_parquet,
}


def held_out_mask(evaluated: EvaluatedEncoder, source: str | None, source_data: Source) -> Tensor | None:
    """Mask of the train images that the run held out; None if the data are not the run's or have changed."""
    run_data = prepare_run_data(evaluated, source, source_data)
    return None if run_data is None else mask_held_out(source_data, run_data)


def prepare_run_data(evaluated: EvaluatedEncoder, source: str | None, source_data: Source) -> Data | None:
    """The source as the run was trained on it; None if it is not the run's, or, with a warning, if it has changed."""
    if evaluated.run is None or evaluated.recipe is None or not is_run_source(evaluated, source):
        return None
    try:
        run_data = prepare_data(source_data, evaluated.recipe.data)
        if evaluated.run.read_data()[0]:  # old runs have no description to compare
            check_same_data(evaluated.run, run_data, "restore them")
    except BadInput as error:
        evaluated.reporter.warn(f"which images {evaluated.location} held out is not known: {error}")
        return None
    return run_data


def mask_held_out(source_data: Source, run_data: Data) -> Tensor:
    """Mask of the train images of a source that are not among those of a run."""
    return ~torch.isin(source_data.splits["train"].index.cpu(), run_data.train.index.cpu())
