"""What people do with an encoder; here is how every command opens it, and finds its images and a place to write."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from typing_extensions import TypedDict

from supancl.config import Count, checked
from supancl.errors import BadInput
from supancl.files import make_writable

if TYPE_CHECKING:
    from supancl.core.encoders import Encoder
    from supancl.evaluation.encoder import EvaluatedEncoder
    from supancl.training.run import Run

EncoderArgument = Union["Run", "Encoder", str, Path]
EncodersArgument = EncoderArgument | list[str] | Sequence[EncoderArgument]


class ForeignOptions(TypedDict, total=False):
    """What the file of another library may not say about its encoder.

    Parameters
    ----------
    size
        side of the encoder's input
    mean
        mean of the encoder's input per channel
    std
        standard deviation of the encoder's input per channel
    branch
        which branch, if a file has both (default online)
    prefix
        prefix of the encoder's tensors, if the format is unknown
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    branch: Literal["online", "target"]
    prefix: str


class EncoderOptions(ForeignOptions, total=False):
    """How encoders are opened and features computed.

    Parameters
    ----------
    layer
        layer whose features are used (default: the encoder's output), or the run's projector
    normalize
        scale features to unit length
    device
        auto, cpu, cuda or cuda:N
    batch_size
        images per forward pass (default 256)
    no_cache
        compute features without the cache
    partial
        accept incomplete benchmark data sets, with a remark
    columns
        columns of a .csv, if they have other names: image=file,label=species[,split=part]
    skip_bad_images
        list unreadable images and leave them out
    """

    layer: str
    normalize: bool
    device: str
    batch_size: int
    no_cache: bool
    partial: bool
    columns: str
    skip_bad_images: bool


def open_encoders(
    encoders: Any, options: Mapping[str, Any], *, baselines: bool = False, saves_results: bool = True
) -> list[EvaluatedEncoder]:
    """The encoders; if results are saved in their runs, runs that cannot be written to are refused."""
    from supancl.runs.hub import split_encoder_name

    given = list(encoders) if isinstance(encoders, (list, tuple)) else [encoders]
    for encoder in given:
        if isinstance(encoder, (str, Path)):
            split_encoder_name(str(encoder))  # a file that is missing is refused before torch is imported
    checked(options.get("batch_size", 256), Count, "batch_size")
    from supancl.evaluation.encoder import open_evaluated_encoders

    return open_evaluated_encoders(given, options, baselines, saves_results)


def run_source(encoder: Any, data: str | Path | None, out: str | Path | None, name: str) -> tuple[str, Path]:
    """The data to use and the place to write to: by default the run's data and folder; without a run, this folder."""
    from supancl.runs.folder import RunFolder

    run = RunFolder(Path(str(getattr(encoder, "folder", encoder))))
    if data is None and not run.has_run:
        raise BadInput(f"{encoder} is no run, so it has no images; name data")
    source = run.read_recipe()[0].data.source if data is None else str(data)
    check_named_source(source)
    return source, Path(out) if out is not None else run.path / name if run.has_run else Path(name)


def check_named_source(source: str) -> None:
    """Refuse a source that is not there; benchmarks are looked for when they are opened."""
    from supancl.data.opening import check_source

    if "@" not in source:
        check_source(source)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows of texts, with what a file of text cannot hold as escapes."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([make_writable(text) for text in row])
