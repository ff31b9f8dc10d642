"""Weights with the metadata needed to use them: encoder, projector and classifier.safetensors, and kept features."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from supancl.config import from_json, parse_json, to_json
from supancl.core.encoders import Encoder, EncoderSpec, UnknownEncoder, tensor_shapes
from supancl.core.specs import MLP
from supancl.errors import BadInput, program_name
from supancl.files import did_you_mean_path, open_regular, reason, write_atomically
from supancl.recipes.plugins import plugin_hint
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.runs.provenance import content_digest

SCHEMA_VERSION = 1  # of the metadata
SHORT_SIDE = "short_side"  # in pixels: the median of the training images, as they were stored
EXPORTED_FILE = "model.safetensors"  # the name that timm and transformers look for
MAX_HEADER_BYTES = 32 * 2**20  # a million class names have half of that
T = TypeVar("T")


# --- safetensors with a digest ----------------------------------------------------------------------------------------


def save_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata atomically, with their digest."""
    plain = torch.contiguous_format
    copies = {name: value.detach().cpu().clone(memory_format=plain) for name, value in tensors.items()}
    with_digest = {**metadata, "digest": _weights_digest(copies, metadata)}
    write_atomically(path, lambda temporary: save_file(copies, temporary, metadata=with_digest))


def _weights_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    content = sorted(tensors.items()), sorted((key, value) for key, value in metadata.items() if key != "digest")
    return content_digest(content)


def read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file, compared with its digest if it has one; other libraries write none."""
    with _open_safetensors(file) as handle:
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        metadata: dict[str, str] = handle.metadata() or {}
    if {"schema_version", "digest"} <= set(metadata) and metadata["digest"] != _weights_digest(tensors, metadata):
        raise BadInput(f"{file} is damaged: its content differs from its digest; {_write_again(file)}")
    check_same_run(file, metadata)
    return tensors, metadata


def read_header(file: Path) -> tuple[dict[str, str], dict[str, torch.Size]]:
    """The metadata and the shapes of the tensors, none of which is read."""
    with _open_safetensors(file) as handle:
        shapes = {name: torch.Size(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
        return handle.metadata() or {}, shapes


@contextmanager
def _open_safetensors(file: Path) -> Iterator[Any]:
    try:
        with open_regular(file) as opened:  # safetensors would wait for a FIFO, and reports no permission as missing
            length = int.from_bytes(opened.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise SafetensorError(f"its header has {length:,} bytes, it may have {MAX_HEADER_BYTES:,}")
        with safe_open(file, framework="pt") as handle:
            yield handle
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{file}: no readable safetensors file ({reason(error)}); {_write_again(file)}") from None


def _write_again(file: Path) -> str:
    return (
        "copy it again, or if a run wrote it, let the run write it again with: "
        f"{program_name()} pretrain --resume --out {quote(str(file.parent))}"
    )


def check_same_run(file: Path, metadata: Mapping[str, str]) -> None:
    """Refuse weights in the folder of another run than the one that wrote them."""
    folder, name = RunFolder(file.parent), metadata.get("run")
    if name and folder.read("run", "") not in ("", name):
        raise BadInput(f"{file} is of another run than {folder.recipe_file}; {_write_again(file)}")


def is_readable(file: Path) -> bool:
    """Whether a safetensors file exists and is intact."""
    try:
        read_safetensors(file)
    except BadInput:
        return False
    return True


def _metadata(path: Path, classes: tuple[str, ...] | None = None, **values: str) -> dict[str, str]:
    """Metadata with the name of the run in whose folder a file is written, so that files of two runs are not mixed."""
    name = RunFolder(path.parent).read("run", "")
    named = {"classes": json.dumps(classes)} if classes is not None else {}
    return {**({"run": name} if name else {}), "schema_version": str(SCHEMA_VERSION), **named, **values}


# --- encoders and projectors ------------------------------------------------------------------------------------------


def save_encoder(
    path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str, short_side: int | None = None
) -> None:
    """Write encoder.safetensors: weights under the architecture's names, with metadata.

    `short_side` is the median one of the training images; that of the run, if the file is in a run folder.
    """
    save_safetensors(path, encoder.body.state_dict(), encoder_metadata(path, encoder, classes, recipe, short_side))


def encoder_metadata(
    path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str, short_side: int | None = None
) -> dict[str, str]:
    side = short_side or RunFolder(path.parent).read("data", dict[str, Any]()).get("short_side")
    return _metadata(
        path,
        classes,
        **({SHORT_SIDE: str(side)} if isinstance(side, int) else {}),
        encoder=json.dumps(to_json(encoder.spec)),
        name=encoder.spec.name,
        width=str(encoder.width),
        input_size=str(encoder.size),
        mean=json.dumps(encoder.mean),
        std=json.dumps(encoder.std),
        recipe=recipe,
    )


def projector_metadata(path: Path, projector: nn.Module, recipe: str) -> dict[str, str]:
    head, width = MLP.describe(projector.state_dict())
    return _metadata(path, head=json.dumps(to_json(head)), input_width=str(width), recipe=recipe)


def load_projector(path: Path | str) -> nn.Sequential:
    """The online projector of a run, in eval mode; `path` is the run folder or its encoder.safetensors."""
    folder = folder_of_encoder(Path(path))
    file = folder / "projector.safetensors"
    if not file.exists():
        raise BadInput(f"{folder} has no {file.name}; name another run folder, or choose another layer")
    weights, metadata = read_safetensors(file)
    try:
        head, width = from_json(MLP, parse_json(metadata["head"]), "head"), parse_json(metadata["input_width"])
        if not isinstance(width, int) or (head, width) != MLP.describe(weights):  # before layers of any size are made
            raise ValueError("its tensors do not match its metadata")
        projector = head.build(width)
        projector.load_state_dict(weights)
    except (ValueError, LookupError, RuntimeError, BadInput) as error:
        raise BadInput(f"{file}: no projector that supancl wrote ({reason(error)}); copy it again") from None
    return projector.eval()


def load_encoder(path: Path | str) -> Encoder:
    """The encoder of a run folder, of a folder that `supancl export` wrote, or of a file of them, in eval mode."""
    file = find_encoder_file(Path(path))
    spec = read_encoder_spec(file)
    if spec is None:
        raise BadInput(f"{file}: no metadata of an encoder; give a file that supancl wrote")
    try:
        expected = tensor_shapes(spec)
        if expected is not None:  # before any is read or built
            check_shapes(without_head(read_header(file)[1], expected), expected, spec.name, file)
        weights, _ = read_safetensors(file)
        with torch.random.fork_rng(devices=[]):
            encoder = spec.build()
    except UnknownEncoder as error:
        hint = plugin_hint(RunFolder(file.parent).read("plugins", list[str]()))
        raise BadInput(f"{file}: {error} ({hint})") from None
    except BadInput as error:
        raise BadInput(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    load_weights(encoder, weights, file)
    return encoder.eval()


def read_encoder_spec(file: Path) -> EncoderSpec | None:
    """The encoder that the metadata of a file describe; None if supancl did not write it."""
    if file.suffix != ".safetensors" or "encoder" not in (metadata := read_header(file)[0]):
        return None
    try:
        if int(metadata["schema_version"]) > SCHEMA_VERSION:
            raise BadInput(f"it was written by a newer supancl (schema {metadata['schema_version']}); upgrade")
        return from_json(EncoderSpec, parse_json(metadata["encoder"]), "encoder")
    except (KeyError, ValueError, BadInput) as error:
        raise BadInput(f"{file}: {reason(error)}; {_write_again(file)}") from None


def is_exported(folder: Path) -> bool:
    """Whether `supancl export` wrote this folder: its weights have the metadata of an encoder.safetensors."""
    file = folder / EXPORTED_FILE
    return file.is_file() and not (folder / "encoder.safetensors").exists() and "encoder" in read_header(file)[0]


def find_encoder_file(path: Path) -> Path:
    """The weights of a run folder or of an exported folder; a file is itself."""
    file = path / EXPORTED_FILE if is_exported(path) else path / "encoder.safetensors" if path.is_dir() else path
    if file.exists():
        return file
    if (path / "recipe.json").exists():
        raise BadInput(
            f"{path} holds no {file.name}, which a run writes after its first epoch; continue it "
            f"with: {program_name()} pretrain --resume --out {quote(str(path))}"
        )
    hint = "" if path.is_dir() else did_you_mean_path(path)
    raise BadInput(f"no file {file}{hint or '; give a run folder or an encoder.safetensors'}")


def load_weights(encoder: Encoder, weights: dict[str, Tensor], file: Path) -> None:
    """Load tensors with the architecture's names into an encoder; refuse missing or extra ones."""
    expected = {name: value.shape for name, value in encoder.body.state_dict().items()}
    weights = without_head(weights, expected)
    check_shapes({name: value.shape for name, value in weights.items()}, expected, encoder.spec.name, file)
    encoder.body.load_state_dict(weights)


def without_head(tensors: Mapping[str, T], expected: Mapping[str, object]) -> dict[str, T]:
    """The tensors without those of a classifier on top, which is not part of the encoder."""
    return {name: value for name, value in tensors.items() if name in expected or not name.startswith(("fc.", "head."))}


def check_shapes(
    shapes: Mapping[str, torch.Size], expected: Mapping[str, torch.Size], encoder: str, file: Path
) -> None:
    """Refuse tensors of other names or shapes than the encoder expects."""
    for name in [*expected, *shapes]:
        found, needed = (None if name not in each else tuple(each[name]) for each in (shapes, expected))
        if found != needed:
            raise BadInput(
                f"{file}: tensor {name!r} has shape {found}, encoder {encoder!r} needs {needed}; is it another "
                "architecture?"
            )


# --- classifiers and kept features ------------------------------------------------------------------------------------


CLASSIFIER_FILE = "classifier.safetensors"


class ClassifierFile(NamedTuple):
    """A linear layer with its class names; `made_from` says with what it was fitted, `source` on which images."""

    weight: Tensor  # (classes, width)
    bias: Tensor  # (classes,)
    classes: tuple[str, ...]
    source: str
    made_from: str


def load_classifier(path: Path) -> ClassifierFile:
    """Read a classifier that supancl wrote; refuse a damaged file and one whose parts do not fit."""
    if not path.exists():
        raise BadInput(f"no classifier {path}{did_you_mean_path(path) or '; give the out of an evaluate finetune'}")
    tensors, classes, metadata = load_with_classes(path)
    weight, bias = tensors.get("weight", torch.empty(0)).float(), tensors.get("bias", torch.empty(0)).float()
    is_finite = bool(torch.isfinite(weight).all() and torch.isfinite(bias).all())
    if weight.ndim != 2 or not weight.shape[:1] == bias.shape == (len(classes),) or not is_finite:
        raise BadInput(f"{path}: not one finite row of weights for each of its {len(classes)} classes; copy it again")
    return ClassifierFile(weight, bias, classes, metadata.get("source", ""), metadata.get("made_from", ""))


def save_with_classes(path: Path, tensors: dict[str, Tensor], classes: tuple[str, ...], **about: str) -> None:
    save_safetensors(path, tensors, _metadata(path, classes, **about))


def load_with_classes(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...], dict[str, str]]:
    """The tensors, class names and metadata of a file that supancl wrote; refuses a damaged one."""
    tensors, metadata = read_safetensors(path)
    try:
        version, classes = int(metadata["schema_version"]), parse_json(metadata["classes"])
        if version != SCHEMA_VERSION or "digest" not in metadata or not isinstance(classes, list):
            raise ValueError
    except (KeyError, ValueError):
        raise BadInput(f"{path}: no class names and digest of schema {SCHEMA_VERSION}; write it again") from None
    return tensors, tuple(map(str, classes)), metadata
