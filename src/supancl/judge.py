"""An encoder and a source become features and figures: what `evaluate` and `embed` do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supancl.checkpoint import load_encoder
from supancl.data.sources import Data, DataSpec, Split, open_data, open_source
from supancl.encoders import Encoder
from supancl.errors import BadInput
from supancl.evaluate import embed, knn_accuracy
from supancl.files import write_atomically
from supancl.run import RunFolder
from supancl.train import Reporter, pick_device


def evaluation_short_side(encoder: Encoder) -> int:
    """Images need not be decoded larger than what the centre crop is cut from: 256 for an input of 224."""
    return round(encoder.size * 8 / 7)


def check_kind(encoder: Encoder, split: Split, source: str) -> None:
    """Vectors are for a linear encoder, images for any other."""
    vectors = split.batch(torch.zeros(1, dtype=torch.long)).pixels.ndim == 2
    if vectors != (encoder.spec.name == "linear"):
        kind, wants = ("vectors", "images") if vectors else ("images", "vectors (toy)")
        raise BadInput(f"{source} holds {kind}, encoder {encoder.spec.name!r} takes {wants}; name other --data")


def data_for(encoder: Encoder, where: Path, source: str | None, reporter: Reporter, skip_bad_images: bool) -> Data:
    """The named source, or that of the run itself, with what the run held out and left out."""
    spec = None
    if source is None:
        folder = RunFolder(where)
        if not folder.holds_run:
            raise BadInput(f"{where} is no run folder, so it brings no data; name some with --data")
        spec = folder.read_recipe()[0].data
    spec = replace(spec or DataSpec(source=source or ""), short_side=evaluation_short_side(encoder))
    spec = replace(spec, skip_bad_images=skip_bad_images or spec.skip_bad_images)
    data = open_data(spec, encoder.spec.channels, reporter.reading)
    check_kind(encoder, data.train, spec.source)
    for remark in data.remarks:
        reporter.warn(remark)
    return data


def knn_of(
    where: str, source: str | None, k: int, temperature: float, device: str, reporter: Reporter,
    skip_bad_images: bool = False,
) -> dict[str, Any]:
    """k-NN accuracy of an encoder; kept in evaluate/knn.json where it is a run folder."""
    encoder, chosen = load_encoder(where), pick_device(device)
    encoder.to(chosen)
    data = data_for(encoder, Path(where), source, reporter, skip_bad_images)
    reference, queries = (embed(encoder, split, chosen).labelled() for split in (data.train, data.held_out))
    if not len(reference.labels) or not len(queries.labels):
        raise BadInput(f"{source or where}: k-NN needs labelled images, both to compare with and to judge; "
                       f"there are {len(reference.labels)} and {len(queries.labels)}")
    result = {
        "protocol": "knn",
        "encoder": where,
        "data": source or RunFolder(Path(where)).read_recipe()[0].data.source,
        "k": k,
        "temperature": temperature,
        "accuracy": knn_accuracy(reference, queries, k, temperature),
        "references": len(reference.labels),
        "queries": len(queries.labels),
        "classes": len(torch.unique(reference.labels)),
        "skipped": len(data.skipped),
    }
    if RunFolder(Path(where)).holds_run:
        RunFolder(Path(where)).write_evaluation("knn", result)
    return result


def embed_to_file(
    where: str, source: str, out: Path, device: str, reporter: Reporter, skip_bad_images: bool = False
) -> dict[str, Any]:
    """features.npz: per split SPLIT_features, SPLIT_labels and SPLIT_names, and class_names; plain arrays only."""
    if out.suffix != ".npz":
        raise BadInput(f"--out {out}: must end in .npz")
    if out.exists():
        raise BadInput(f"{out} exists; remove it or choose another --out")
    encoder, chosen = load_encoder(where), pick_device(device)
    encoder.to(chosen)
    spec = DataSpec(source=source, short_side=evaluation_short_side(encoder), skip_bad_images=skip_bad_images)
    found = open_source(spec, encoder.spec.channels, reporter.reading)
    check_kind(encoder, found.splits["train"], source)
    for remark in found.remarks:
        reporter.warn(remark)
    arrays: dict[str, Any] = {"class_names": np.array(found.classes, dtype=np.str_)}
    for name, split in found.splits.items():
        features = embed(encoder, split, chosen)
        arrays[f"{name}_features"] = features.values.numpy()
        arrays[f"{name}_labels"] = features.labels.numpy()
        arrays[f"{name}_names"] = np.array(split.named(torch.arange(len(split))), dtype=np.str_)

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write in {out.parent} ({error.strerror}); choose another --out") from None
    write_atomically(out, write)
    sizes = {name: len(split) for name, split in found.splits.items()}
    return {"out": str(out), "encoder": where, "data": source, "width": encoder.width, "splits": sizes,
            "skipped": len(found.skipped)}
