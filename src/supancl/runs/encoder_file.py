"""encoder.safetensors and projector.safetensors: weights with the metadata needed to use them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from supancl.config import from_json, parse_json, to_json
from supancl.core.encoders import Encoder, EncoderSpec, UnknownEncoder, tensor_shapes
from supancl.core.heads import MLP
from supancl.core.specs import suggest_timm
from supancl.errors import BadInput, program_name
from supancl.files import did_you_mean_path, open_regular, reason, write_atomically
from supancl.recipes.plugin_files import plugin_hint
from supancl.runs.checkpoint import DamagedFile, load_tensors
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.runs.provenance import content_digest

SCHEMA_VERSION = 1  # of the metadata
SHORT_SIDE = "short_side"  # in pixels: the median of the training images, as they were stored
EXPORTED_FILE = "model.safetensors"  # the name that timm and transformers look for
T = TypeVar("T")
MAX_HEADER_BYTES = 32 * 2**20  # a million class names have half of that
LIBRARY_HEADER_BYTES = 100_000_000  # what safetensors accepts; it refuses more, and says so


def save_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata atomically, with their digest; equal content gives equal bytes."""
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with_digest = {**metadata, "digest": _weights_digest(contiguous, metadata)}

    def write(temporary: Path) -> None:
        save_file(contiguous, temporary, metadata=with_digest)
        _sort_header(temporary)

    write_atomically(path, write)


def _weights_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    content = sorted(tensors.items()), sorted((key, value) for key, value in metadata.items() if key != "digest")
    return content_digest(content)


def _sort_header(file: Path) -> None:
    """Rewrite the header of a safetensors file in a fixed order; the library's order varies.

    A file is the header's length (8 bytes), the header as JSON padded with spaces, and the tensors at offsets that
    count from the header's end. The length is not changed, so nothing else moves.
    """
    with open(file, "r+b") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header: dict[str, Any] = json.loads(handle.read(length))
        metadata = dict(sorted(header.pop("__metadata__").items()))
        tensors = sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0]))
        entries = {name: {key: entry[key] for key in ("dtype", "shape", "data_offsets")} for name, entry in tensors}
        text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > length:
            raise RuntimeError(f"the header of {file.name} grew from {length} to {len(text)} bytes when it was sorted")
        handle.seek(8)
        handle.write(text.ljust(length))


def save_encoder(
    path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str, short_side: int | None = None
) -> None:
    """Write encoder.safetensors: weights under the architecture's names, with metadata.

    `short_side` is the median one of the training images; that of the run, if the file is in a run folder.
    """
    weights = {name: value.detach().cpu().clone() for name, value in encoder.body.state_dict().items()}
    metadata = encoder_metadata(path, encoder, classes, recipe)
    if short_side is not None:
        metadata[SHORT_SIDE] = str(short_side)
    save_safetensors(path, weights, metadata)


def encoder_metadata(path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str) -> dict[str, str]:
    side = RunFolder(path.parent).read_short_side()
    return {
        **_run_metadata(path),
        **({} if side is None else {SHORT_SIDE: str(side)}),
        "schema_version": str(SCHEMA_VERSION),
        "encoder": json.dumps(to_json(encoder.spec)),
        "name": encoder.spec.name,
        "width": str(encoder.width),
        "input_size": str(encoder.size),
        "mean": json.dumps(encoder.mean),
        "std": json.dumps(encoder.std),
        "classes": json.dumps(classes),
        "recipe": recipe,
    }


def save_projector(path: Path, projector: nn.Module, recipe: str) -> None:
    """Write projector.safetensors: the weights of the online projector and the spec of its layers."""
    weights = {name: value.detach().cpu().clone() for name, value in projector.state_dict().items()}
    save_safetensors(path, weights, projector_metadata(path, projector, recipe))


def projector_metadata(path: Path, projector: nn.Module, recipe: str) -> dict[str, str]:
    head, width = MLP.describe(projector.state_dict())
    return {
        **_run_metadata(path),
        "schema_version": str(SCHEMA_VERSION),
        "head": json.dumps(to_json(head)),
        "input_width": str(width),
        "recipe": recipe,
    }


def _run_metadata(path: Path) -> dict[str, str]:
    """The name of the run in whose folder a file is written, so that files of two runs are not mixed."""
    name = RunFolder(path.parent).read_run_name()
    return {"run": name} if name else {}


def check_same_run(file: Path, metadata: Mapping[str, str]) -> None:
    """Refuse weights in the folder of another run than the one that wrote them."""
    folder, name = RunFolder(file.parent), metadata.get("run")
    if name and folder.read_run_name() not in ("", name):
        raise BadInput(f"{file} is of another run than {folder.recipe_file}; {_write_again(file)}")


def load_projector(path: Path | str) -> nn.Sequential:
    """The online projector of a run, in eval mode; `path` is the run folder or its encoder.safetensors."""
    folder = folder_of_encoder(Path(path))
    file = folder / "projector.safetensors"
    if not file.exists():
        raise BadInput(f"{folder} has no {file.name}; name another run folder, or choose another --layer")
    weights, (spec, width) = _read_weights_and_metadata(file, "a projector", "head", "input_width")
    head = from_json(MLP, spec, "head")
    _check_projector(head, width, weights, file)
    projector = head.build(width)
    try:
        projector.load_state_dict(weights)
    except RuntimeError:
        raise BadInput(f"{file}: its tensors do not match its metadata; copy it again") from None
    return projector.eval()


def _check_projector(head: MLP, width: Any, weights: Mapping[str, Tensor], file: Path) -> None:
    """Refuse metadata that the tensors contradict, before layers of any size are made."""
    try:
        is_same = isinstance(width, int) and (head, width) == MLP.describe(weights)
    except (ValueError, LookupError):
        is_same = False
    if not is_same:
        raise BadInput(f"{file}: its tensors do not match its metadata; copy it again")


def load_encoder(path: Path | str) -> Encoder:
    """The encoder of a run folder, of a folder that `supancl export` wrote, or of a file of them, in eval mode."""
    file = find_encoder_file(Path(path))
    check_claimed_shapes(file)
    weights, (spec,) = _read_weights_and_metadata(file, "an encoder", "encoder")
    try:
        encoder = from_json(EncoderSpec, spec, "encoder").build()
    except UnknownEncoder as error:
        raise BadInput(f"{file}: {error} ({plugin_hint(RunFolder(file.parent).read_plugins())})") from None
    except BadInput as error:
        raise BadInput(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    load_weights(encoder, weights, file)
    return encoder.eval()


def _read_weights_and_metadata(file: Path, content: str, *keys: str) -> tuple[dict[str, Tensor], list[Any]]:
    """The weights of a file, and its metadata under these keys."""
    weights, metadata = read_safetensors(file)
    try:
        version, values = int(metadata["schema_version"]), [parse_json(metadata[key]) for key in keys]
    except (KeyError, ValueError):
        raise BadInput(f"{file}: no metadata of {content}; give a file that supancl wrote") from None
    if version > SCHEMA_VERSION:
        raise BadInput(
            f"{file} was written by a newer supancl (schema {version}, this one reads {SCHEMA_VERSION}); upgrade"
        )
    return weights, values


def check_claimed_shapes(file: Path) -> None:
    """Refuse a file whose tensors are not those of the encoder that it names, before any is read or built.

    A file whose metadata cannot be used is left to `load_encoder`.
    """
    metadata, shapes = read_header(file)
    try:
        if int(metadata["schema_version"]) > SCHEMA_VERSION:
            return
        spec = from_json(EncoderSpec, parse_json(metadata["encoder"]), "encoder")
        expected = tensor_shapes(spec)
    except (BadInput, KeyError, ValueError):
        return
    if expected is not None:
        check_shapes(without_head(shapes, expected), expected, spec.name, file)


def read_encoder_spec(file: Path) -> EncoderSpec | None:
    """The encoder that the metadata of a file describe; None if supancl did not write it."""
    if file.suffix != ".safetensors" or "encoder" not in (metadata := read_header(file)[0]):
        return None
    try:
        return from_json(EncoderSpec, parse_json(metadata["encoder"]), "encoder")
    except ValueError as error:
        raise BadInput(f"{file}: its metadata are damaged ({reason(error)}); {_write_again(file)}") from None


def initialize_encoder(encoder: Encoder, path: Path | str) -> None:
    """Fill an encoder from a run folder, an encoder.safetensors or a state dict (.pt, .pth) of its architecture."""
    file = find_encoder_file(Path(path))
    if file.suffix == ".safetensors":
        weights, _ = read_safetensors(file)
    else:
        try:
            content = load_tensors(file, mapped=True)
        except DamagedFile as error:
            raise BadInput(f"{error}; copy it again, or give another init") from None
        inner = content.get("state_dict", content)
        if not isinstance(inner, dict):
            raise BadInput(f"{file}: its state_dict is of type {type(inner).__name__}; give a dict of tensors by name")
        weights = {str(name): value for name, value in inner.items() if isinstance(value, Tensor)}
    load_weights(encoder, weights, file)


def is_exported(folder: Path) -> bool:
    """Whether `supancl export` wrote this folder: its weights have the metadata of an encoder.safetensors."""
    file = folder / EXPORTED_FILE
    return file.is_file() and not (folder / "encoder.safetensors").exists() and "encoder" in read_header(file)[0]


def find_encoder_file(path: Path) -> Path:
    if path.is_dir():
        file = path / "encoder.safetensors"
        if is_exported(path):
            return path / EXPORTED_FILE
        if not file.exists():
            if (path / "recipe.json").exists():
                raise BadInput(
                    f"{path} holds no encoder.safetensors, which a run writes after its first epoch; continue it "
                    f"with: {program_name()} pretrain --resume --out {quote(str(path))}"
                )
            candidate = next((file.parent for file in sorted(path.glob("*/encoder.safetensors"))), None)
            raise BadInput(
                f"{path} is not a run folder: it has no encoder.safetensors"
                + (
                    f"; did you mean {str(candidate)!r}?"
                    if candidate
                    else "; give a run folder or an encoder.safetensors"
                )
            )
        return file
    if not path.exists():
        hint = did_you_mean_path(path) or suggest_timm(str(path)) or "; give a run folder or an encoder.safetensors"
        raise BadInput(f"no file {path}{hint}")
    return path


def read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file, compared with its digest if it has one; other libraries write none."""
    with open_safetensors(file) as handle:
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        metadata: dict[str, str] = handle.metadata() or {}
    if {"schema_version", "digest"} <= set(metadata) and metadata["digest"] != _weights_digest(tensors, metadata):
        raise BadInput(f"{file} is damaged: its content differs from its digest; {_write_again(file)}")
    check_same_run(file, metadata)
    return tensors, metadata


def read_header(file: Path) -> tuple[dict[str, str], dict[str, torch.Size]]:
    """The metadata and the shapes of the tensors, none of which is read."""
    with open_safetensors(file) as handle:
        shapes = {name: torch.Size(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
        return handle.metadata() or {}, shapes


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    try:
        with open_regular(file) as opened:  # safetensors would wait for a FIFO, and reports no permission as missing
            length = int.from_bytes(opened.read(8), "little")
        if MAX_HEADER_BYTES < length <= LIBRARY_HEADER_BYTES:
            raise SafetensorError(f"its header has {length:,} bytes, it may have {MAX_HEADER_BYTES:,}")
        with safe_open(file, framework="pt") as handle:
            yield handle
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({reason(error)}); check its permissions") from None
    except SafetensorError as error:
        raise BadInput(f"{file}: not a safetensors file ({reason(error)}); {_write_again(file)}") from None


def _write_again(file: Path) -> str:
    return (
        "copy it again, or if a run wrote it, let the run write it again with: "
        f"{program_name()} pretrain --resume --out {quote(str(file.parent))}"
    )


def is_readable(file: Path) -> bool:
    """Whether a safetensors file exists and is intact."""
    try:
        read_safetensors(file)
    except BadInput:
        return False
    return True


def load_weights(encoder: Encoder, weights: dict[str, Tensor], file: Path) -> None:
    """Load tensors with the architecture's names into an encoder; refuse missing or extra ones."""
    expected = {name: value.shape for name, value in encoder.body.state_dict().items()}
    weights = without_head(weights, expected)
    check_shapes({name: value.shape for name, value in weights.items()}, expected, encoder.spec.name, file)
    try:
        encoder.body.load_state_dict(weights)
    except (RuntimeError, NotImplementedError) as error:  # sparse, quantised and meta tensors cannot be copied
        raise BadInput(f"{file}: its tensors cannot be loaded ({reason(error)}); save them as plain tensors") from None


def without_head(tensors: Mapping[str, T], expected: Mapping[str, object]) -> dict[str, T]:
    """The tensors without those of a classifier on top, which is not part of the encoder."""
    return {name: value for name, value in tensors.items() if name in expected or not name.startswith(("fc.", "head."))}


def check_shapes(
    shapes: Mapping[str, torch.Size], expected: Mapping[str, torch.Size], encoder: str, file: Path
) -> None:
    """Refuse tensors of other names or shapes than the encoder expects."""
    for name, shape in expected.items():
        if name not in shapes:
            raise BadInput(
                f"{file} has no tensor {name!r}, which encoder {encoder!r} needs; is it another architecture?"
            )
        if shapes[name] != shape:
            raise BadInput(
                f"{file}: tensor {name!r} is {tuple(shapes[name])}, encoder {encoder!r} "
                f"has {tuple(shape)}; is it another architecture?"
            )
    extra = sorted(set(shapes) - set(expected))
    if extra:
        raise BadInput(
            f"{file} has a tensor {extra[0]!r} that encoder {encoder!r} does not have; is it another architecture?"
        )
