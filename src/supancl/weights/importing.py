"""ENCODER, as every evaluation takes it: a run, a weight file with a model's name, or another library's checkpoint.

Nothing in a file is ever executed. Of two branches the online one is taken unless the target is asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import from_json
from supancl.core.encoders import IMAGENET_MEAN, IMAGENET_STD, Encoder, EncoderSpec
from supancl.errors import BadInput, counted
from supancl.files import check_place, make_folder
from supancl.weights.checkpoint import Damaged, Refused, load_tensors
from supancl.weights.encoder_file import load_encoder, load_weights, read_safetensors, save_encoder
from supancl.weights.formats import (
    FORMATS,
    PATCHES,
    PLACES,
    RESNETS,
    WRAPPER,
    Format,
    Identified,
    backbone,
    identify,
    locate,
    side_of,
)
from supancl.weights.names import split_encoder_name

__all__ = ["FORMATS", "Format", "Identified", "identify", "import_checkpoint", "open_encoder"]

# classifiers and projectors that live inside the backbone's own prefix
HEADS = ("fc.", "head.", "heads.", "head_dist.", "classifier.", "linear.", "projection_head.", "prototypes.")
# SupContrast and others keep their command line beside the weights; a Namespace only sets its own attributes
HARMLESS = (argparse.Namespace,)
OWN = Identified("supancl", "", "")


def open_encoder(
    text: str | Path, *, size: int | None = None, mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None, branch: str = "online", prefix: str | None = None,
) -> Encoder:  # fmt: skip
    """The encoder that `text` names, in eval mode.

    `text` is a run folder, an encoder.safetensors, NAME@FILE (NAME is torchvision:MODEL, timm:MODEL or an encoder of
    this package, FILE its weights) or a checkpoint in one of FORMATS. Files of others do not say what their images
    looked like: unless given, `size` is what the positions of a vision transformer are for, 32 for a 3 x 3 stem and
    224 otherwise, `mean` and `std` are ImageNet's. `prefix` names the backbone's tensors where no format does.
    """
    return _open(str(text), size, mean, std, branch, prefix)[0]


def import_checkpoint(
    text: str | Path, out: str | Path, *, size: int | None = None, mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None, branch: str = "online", prefix: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write what `open_encoder` opens as encoder.safetensors (`out`, or in the folder `out`) and say what it was."""
    path = Path(out) if Path(out).suffix == ".safetensors" else Path(out) / "encoder.safetensors"
    if path.exists():  # asked before the file is read, which may be a large one
        raise BadInput(f"{path} exists already; choose another --out, or remove it")
    check_place(path.parent)
    encoder, what = _open(str(text), size, mean, std, branch, prefix)
    make_folder(path.parent)
    save_encoder(path, encoder, (), f"import:{what.format}")
    return {
        "format": what.format, "prefix": what.prefix, "encoder": encoder.spec.name, "width": encoder.width,
        "channels": encoder.spec.channels, "size": encoder.size, "mean": list(encoder.mean), "std": list(encoder.std),
        "out": str(path),
    }  # fmt: skip


def _open(
    text: str, size: int | None, mean: Sequence[float] | None, std: Sequence[float] | None, branch: str,
    prefix: str | None,
) -> tuple[Encoder, Identified]:  # fmt: skip
    name, file = _parse(text)
    settings = {"size": size, "mean": mean, "std": std, "prefix": prefix}
    if file.is_dir() or (name is None and _is_own(file)):
        given = [key for key, value in settings.items() if value is not None] + ["branch"] * (branch != "online")
        if given:
            raise BadInput(f"{file} says itself what its encoder is; leave {', '.join(given)} out")
        return load_encoder(file), OWN
    for key, values in (("mean", mean), ("std", std)):
        if any(value > 1 for value in values or ()):
            raise BadInput(f"{key} {max(values or ()):g}: it is of pixels from 0 to 1; divide by 255")
    state = _read(file)
    try:
        what, names = _named(state, name, branch, prefix) if name is not None else _found(state, branch, prefix)
        encoder = _build(what.architecture, names, size, mean, std, named=name is not None)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    _fill(encoder, names, file)
    return encoder.eval(), what


def _parse(text: str) -> tuple[str | None, Path]:
    """NAME@FILE, or a path; torchvision's ResNets have short names here."""
    name, file = split_encoder_name(text)
    short = (name or "").removeprefix("torchvision:")
    return short if short in RESNETS.values() else name, file


def _is_own(file: Path) -> bool:
    return file.suffix == ".safetensors" and "encoder" in read_safetensors(file)[1]


def _read(file: Path) -> dict[str, Tensor]:
    """The state dict of a file, wherever in it that is."""
    if file.suffix == ".safetensors":
        return read_safetensors(file)[0]
    try:
        content = load_tensors(file, HARMLESS)
    except Damaged as error:
        raise BadInput(f"{error}; copy or fetch it again") from None
    except Refused as error:
        held = error.held or "more than tensors and plain containers"
        whole = held.startswith(("torch.nn.", "torchvision.", "timm.", "lightly."))  # a module, not a dict with one
        inner = ".state_dict()" if whole else "['state_dict']"
        raise BadInput(
            f"{file} holds {held} and is not opened, because loading it could run code; where you trust it, "
            "save its weights alone: torch.save({'state_dict': torch.load(IN, weights_only=False)"
            f"{inner}}}, OUT) (docs/import.md)"
        ) from None
    if "schema_version" in content:
        raise BadInput(f"{file} is a checkpoint of a run of supancl; give the run folder")
    for place in PLACES:
        found: Any = content
        for key in filter(None, place.split(".")):
            found = found.get(key) if isinstance(found, Mapping) else None
        items = found.items() if isinstance(found, Mapping) else ()
        tensors = {str(key): value for key, value in items if isinstance(value, Tensor)}
        if tensors:
            return tensors
    raise BadInput(
        f"{file}: no state dict in it, at the top level or under {', '.join(filter(None, PLACES))}; "
        f"its keys are {', '.join(map(str, list(content)[:6])) or 'none'}"
    )


def _found(state: dict[str, Tensor], branch: str, prefix: str | None) -> tuple[Identified, dict[str, Tensor]]:
    what = identify(state, branch, prefix)
    return what, backbone(state, what.prefix)


def _named(
    state: dict[str, Tensor], name: str, branch: str, prefix: str | None
) -> tuple[Identified, dict[str, Tensor]]:
    """The architecture is given; the prefix is that of the format, if it is one, else there is none."""
    try:
        row, found = locate(state, branch, prefix)
    except BadInput:
        if branch != "online" or prefix is not None:
            raise
        plain = {WRAPPER.sub("", key): value for key, value in state.items()}
        return Identified("weights", "", name), plain
    return Identified(row.name, found, name), backbone(state, found)


def _build(
    name: str, names: Mapping[str, Tensor], size: int | None, mean: Sequence[float] | None,
    std: Sequence[float] | None, named: bool,
) -> Encoder:  # fmt: skip
    stem = next((names[key] for key in ("conv1.weight", PATCHES) if key in names), None)
    channels = 3 if stem is None or stem.ndim != 4 else int(stem.shape[1])
    if channels != 3 and (mean is None or std is None):
        raise BadInput(
            f"takes images of {counted(channels, 'channel')}, and ImageNet's mean and std are for 3; give "
            f"mean and std with {counted(channels, 'number')} each (--mean, --std)"
        )
    side = side_of(names)
    if size is not None and side is not None and size != side:
        raise BadInput(f"its positions are for images of {side} px, not {size}; leave size out (--size)")
    usual = side or (32 if name.startswith("cifar-") else 224)
    usual_mean, usual_std = _colours(name if named else "")
    spec = {
        "name": name, "channels": channels, "size": usual if size is None else size,
        "mean": list(usual_mean if mean is None else mean), "std": list(usual_std if std is None else std),
    }  # fmt: skip
    return from_json(EncoderSpec, spec, "encoder").build()


def _colours(name: str) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and std: timm says what each of its own weights were trained with; everybody else uses ImageNet's.

    A checkpoint that was only recognised to have the shape of one of timm's models is everybody else's.
    """
    if name.startswith("timm:"):
        import timm

        known = timm.get_pretrained_cfg(name.removeprefix("timm:"))
        if known is not None:
            return known.mean, known.std
    return IMAGENET_MEAN, IMAGENET_STD


def _fill(encoder: Encoder, names: Mapping[str, Tensor], file: Path) -> None:
    own = encoder.body.state_dict()
    weights = {name: value for name, value in names.items() if name in own or not name.startswith(HEADS)}
    for name, value in own.items():
        if name.endswith("num_batches_tracked"):  # a count that files from before torch 0.4.1 do not have
            weights.setdefault(name, value)
    broken = next((name for name, value in weights.items() if not torch.isfinite(value).all()), None)
    if broken is not None:
        raise BadInput(f"{file}: tensor {broken!r} holds NaN or infinity; take one from before the run diverged")
    load_weights(encoder, weights, file)
