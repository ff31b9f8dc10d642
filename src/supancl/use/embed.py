"""`embed`: the features of whatever images there are, as an object or as a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from PIL import Image
from typing_extensions import Unpack

from supancl.config import FLAG, checked
from supancl.core.labels import Labels
from supancl.data.from_python import Images, is_image_file, label_numbers, list_images, split_labels
from supancl.data.labels import label_texts, weight_matrix, with_given_labels
from supancl.data.opening import load
from supancl.data.spec import DataSpec
from supancl.data.splits import Data, Source, Split, full_split
from supancl.data.store.memory import ArrayImages
from supancl.data.views.render import View, evaluation_short_side
from supancl.errors import BadInput
from supancl.files import Output, escape_formula, make_writable, path_in_table
from supancl.reporter import say, track_task
from supancl.use import EncoderArgument, EncoderOptions, check_named_source, open_encoders

if TYPE_CHECKING:
    import torch

    from supancl.core.encoders import Encoder
    from supancl.probes.features import Features
else:
    from supancl.lazy import torch

ROWS_AT_A_TIME = 8192


def embed(
    encoder: EncoderArgument,
    data: Annotated[str | Path | Split | Source | Image.Image | Images, FLAG],
    *,
    out: str | Path | None = None,
    view: View = "margin",
    **options: Unpack[EncoderOptions],
) -> Features:
    """Compute the features of images, and write them to a file if one is named.

    Parameters
    ----------
    encoder
        a run folder, an encoder.safetensors, timm:NAME, NAME@FILE, or a checkpoint of another library; in Python also
        a run or an encoder
    data
        any source, such as a folder; in Python also an array (N, H, W[, C]) or a tensor (N, C, H, W) of uint8, a list
        of Pillow images or paths, (images, labels), or a split of `open_data`
    out
        the .npz, .csv or .parquet to write
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer

    Returns
    -------
    Features
        `.values` (N, width), `.labels` (-1 where there is none or several) and `.paths`; converts to an array

    Examples
    --------
    $ supancl embed runs/photos --data photos --out features.npz
    $ supancl embed timm:resnet18 --data photos --out features.csv

    >>> from supancl import EncoderSpec
    >>> encoder = EncoderSpec("cnn", size=8).build()
    >>> np.asarray(embed(encoder, np.zeros((5, 40, 40, 3), np.uint8))).shape
    (5, 128)
    """
    checked(view, View, "view")
    is_source = isinstance(data, (str, Path)) and not is_image_file(data)
    if is_source:
        check_named_source(str(data))
    elif out is not None:
        raise BadInput(f"out {out}: only for the images of a source; leave it out")
    output = None if out is None else Output(Path(out), tuple(WRITERS)).check()
    usual: dict[str, Any] = {} if output else {"no_cache": True}
    (evaluated,) = open_encoders(encoder, {**usual, **options}, saves_results=False)
    from supancl.evaluation.data import held_out_mask, read_source, spec_for
    from supancl.probes.features import Features

    source = data if isinstance(data, Source) else None
    if is_source:
        source = read_source(evaluated, spec_for(evaluated, str(data)), view)  # as `encoder.transform` and timm do
    images = None if source is None else with_given_labels(source)
    splits = {"images": split_in_python(evaluated.encoder, data, view)} if images is None else images.splits
    values = {name: evaluated.features(split, view).values for name, split in splits.items()}
    labels = torch.cat([split.labels.cpu() for split in splits.values()])
    paths = [name for split in splits.values() for name in names_of(split)]
    features = Features(torch.cat(list(values.values())), labels, paths=paths)
    if output is None or source is None or images is None:
        return features
    mask = held_out_mask(evaluated, str(data), source)  # of the run's own data: what pretraining held out
    held_out, folder = None if mask is None else mask.numpy(), os.path.join(output.path.parent.resolve(), "")
    with track_task(f"writing {output.path.name}"):
        output.write(lambda path: WRITERS[output.path.suffix.lower()](path, images, values, held_out, folder))
    width = features.values.shape[1]
    features.about = {
        "out": str(out),
        "encoder": evaluated.location,
        "data": str(data),
        "width": width,
        "splits": {name: len(split) for name, split in splits.items()},
        "skipped": len(images.skipped),
        "train_held_out": None if mask is None else int(mask.sum()),
    }
    sizes = ", ".join(f"{name} {len(split)} x {width}" for name, split in splits.items())
    say(f"{out}: {sizes}" + ("" if mask is None else f"; the run held {int(mask.sum())} of train out"))
    return features


def names_of(split: Split) -> list[str]:
    return split.names_at(torch.arange(len(split)))


def split_in_python(encoder: Encoder, images: Any, view: View) -> Split:
    """Images of Python, decoded no larger than the view needs."""
    if isinstance(images, Split):
        return images
    if isinstance(images, Data):
        raise BadInput("data have several splits; embed data.train or data.held_out")
    channels, short_side = encoder.spec.channels, evaluation_short_side(encoder.size, view)
    spec = DataSpec(short_side=short_side, resample="bicubic" if view == "whole" else "bilinear")
    if isinstance(images, np.ndarray) and images.ndim == 2 and encoder.spec.name == "linear":
        store = ArrayImages(torch.from_numpy(np.ascontiguousarray(images, np.float32)))
        return full_split(store, torch.full((len(store),), -1), [f"images[{i}]" for i in range(len(store))])
    one_image = isinstance(images, (str, Path, Image.Image))
    listed, labels = ([images], None) if one_image else split_labels(images, spec, channels)
    split = load(list_images(listed, None, spec, channels), channels, spec).splits["train"]
    return split if labels is None else replace(split, all_labels=Labels.of(label_numbers(labels, len(split))))


# --- files ------------------------------------------------------------------------------------------------------------


def write_npz(path: Path, images: Source, features: Tensors, held_out: np.ndarray | None, folder: str) -> None:
    """class_names and, per split, SPLIT_features, SPLIT_labels and SPLIT_names; plain arrays only.

    Several or soft labels are weights (N, C), as a .npz source has them. Of a hierarchy there is one label, a path.
    """
    arrays: dict[str, Any] = {"class_names": np.array(images.classes, dtype=np.str_)}
    for name, values in features.items():
        split, labels = images.splits[name], images.splits[name].all_labels
        arrays[f"{name}_features"] = values.numpy()
        single = labels.has_one_each
        arrays[f"{name}_labels"] = labels.single.numpy() if single else weight_matrix(labels, len(images.classes))
        arrays[f"{name}_names"] = np.array(names_of(split), dtype=np.str_)
    if held_out is not None:
        arrays["train_held_out"] = held_out
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def write_table(path: Path, images: Source, features: Tensors, held_out: np.ndarray | None, folder: str) -> None:
    """A row per image: path, label, split, held_out if known, f0, f1, ...; some rows at a time."""
    import pyarrow
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetWriter

    is_text, writer = ".csv" in path.name, None
    for name, values in features.items():
        split = images.splits[name]
        paths = [path_in_table(image, folder) if images.has_files else image for image in names_of(split)]
        for start in range(0, len(paths), ROWS_AT_A_TIME):
            rows = slice(start, start + ROWS_AT_A_TIME)
            labels = label_texts(split.all_labels, torch.arange(len(paths))[rows], images.classes)
            columns: dict[str, Any] = {"path": paths[rows], "label": labels}
            for key, texts in columns.items():  # in a file of text a spreadsheet must not take a cell for a formula
                cells = map(make_writable, texts)
                columns[key] = [escape_formula(cell) if is_text else cell for cell in cells]
            columns["split"] = [name] * len(labels)
            if held_out is not None:
                columns["held_out"] = held_out[rows] if name == "train" else np.ones(len(labels), bool)
            columns |= {f"f{i}": column for i, column in enumerate(values[rows].numpy().T)}
            table = pyarrow.table(columns)
            writer = writer or (CSVWriter if is_text else ParquetWriter)(path, table.schema)
            writer.write_table(table)
    if writer is not None:
        writer.close()


Tensors = dict[str, Any]  # split -> features
WRITERS: dict[str, Callable[..., None]] = {".npz": write_npz, ".csv": write_table, ".parquet": write_table}
