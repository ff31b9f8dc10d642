"""The formats of an export: what each writes, how it is loaded, and which packages that needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from supancl.use import graphs, hugging_face, torchvision_file
from supancl.use.exported import ONNX_TOLERANCE, TORCH_TOLERANCE, CannotHold, ExportedEncoder, Features


@dataclass(frozen=True)
class Way:
    """One way to load a format. One that needs further packages is optional: the format is useful without it."""

    name: str
    load: Callable[[ExportedEncoder], Features]
    tolerance: float = TORCH_TOLERANCE
    packages: tuple[str, ...] = ()
    extra: str = ""  # of supancl, which installs the packages


@dataclass(frozen=True)
class Format:
    """Files of one kind. Without its packages it cannot be written."""

    name: str
    files: tuple[str, ...]
    write: Callable[[ExportedEncoder], None]
    ways: tuple[Way, ...]
    packages: tuple[str, ...] = ()
    extra: str = ""


FORMATS = {
    row.name: row
    for row in (
        Format(
            "hf",
            (hugging_face.CONFIG, hugging_face.WEIGHTS),
            hugging_face.write_folder,
            (
                Way("timm", hugging_face.load_with_timm),
                Way("timm checkpoint_path", hugging_face.load_checkpoint_with_timm),
                Way(
                    "transformers",
                    hugging_face.load_with_transformers,
                    packages=("transformers",),
                    extra="transformers",
                ),
            ),
        ),
        Format(
            "onnx",
            (graphs.ONNX,),
            graphs.write_onnx,
            (Way("onnxruntime", graphs.load_onnx, ONNX_TOLERANCE),),
            ("onnx", "onnxscript", "onnxruntime"),
            "onnx",
        ),
        Format("pt2", (graphs.PT2,), graphs.write_pt2, (Way("torch.export", graphs.load_pt2),)),
        Format(
            "torchvision",
            (torchvision_file.FILE,),
            torchvision_file.write_torchvision,
            (Way("torchvision", torchvision_file.load_torchvision),),
        ),
    )
}


@dataclass(frozen=True)
class Written:
    """A format that was written and loaded back: per way the largest difference, and why other ways were not."""

    files: dict[str, int]  # name -> bytes
    differences: dict[str, float]
    not_loaded: dict[str, str]


def describe_missing(packages: Sequence[str], extra: str) -> str:
    """`needs onnx; pip install 'supancl[onnx]'`, or empty if all packages are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    return f"needs {', '.join(missing)}; pip install 'supancl[{extra}]'" if missing else ""


def write_and_check(exported: ExportedEncoder, row: Format) -> Written:
    """Write a format, load it in every way that the installed packages allow, and compare features with ours.

    Raises CannotHold if the format cannot hold the encoder or gives other features; its files are then removed.
    """
    if missing := describe_missing(row.packages, row.extra):
        raise CannotHold(missing)
    differences: dict[str, float] = {}
    not_loaded: dict[str, str] = {}
    try:
        row.write(exported)
        for way in row.ways:
            if missing := describe_missing(way.packages, way.extra):
                not_loaded[way.name] = missing
                continue
            try:
                differences[way.name] = compare(exported, way, way.load(exported))
            except CannotHold as error:
                if not way.packages:
                    raise
                not_loaded[way.name] = str(error)
    except CannotHold:
        for name in row.files:
            (exported.folder / name).unlink(missing_ok=True)
        raise
    return Written({name: (exported.folder / name).stat().st_size for name in row.files}, differences, not_loaded)


@torch.inference_mode()
def compare(exported: ExportedEncoder, way: Way, features: Features) -> float:
    """The largest difference from our features, as a fraction of the largest feature."""
    images = exported.images.views
    ours, theirs = exported.encoder(images), features(images)
    if theirs.shape != ours.shape:
        raise CannotHold(f"{way.name} gives features of shape {tuple(theirs.shape)}, ours are {tuple(ours.shape)}")
    scale = ours.abs().max().item() or 1.0
    difference: float = (theirs - ours).abs().max().item() / scale
    if not difference <= way.tolerance:  # nan too
        raise CannotHold(
            f"{way.name} gives other features (difference {difference:.1e}, at most {way.tolerance:.0e} is accepted)"
        )
    return difference
