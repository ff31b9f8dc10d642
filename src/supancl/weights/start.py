"""The weights that a run starts from: any encoder that an evaluation opens. recipe.json records where they were."""

from __future__ import annotations

from pathlib import Path

from supancl.core.encoders import Encoder, EncoderSpec
from supancl.errors import BadInput
from supancl.weights.cached import find_weights, is_model_folder
from supancl.weights.digests import content_digest
from supancl.weights.encoder_file import find_encoder_file, initialize_encoder, read_encoder_spec
from supancl.weights.importing import open_encoder


def read_start_spec(init: Path | str) -> EncoderSpec:
    """The architecture and images of a start; a file is refused if the names of its tensors tell no architecture."""
    if not Path(init).exists() or is_model_folder(Path(init)):
        return open_encoder(init).spec
    file = find_encoder_file(Path(init))
    return read_encoder_spec(file) or open_encoder(file).spec


def fill_encoder(encoder: Encoder, init: Path | str) -> None:
    """Fill an encoder with the weights of a start of the same architecture.

    `init` is what `open_encoder` takes, or a state dict with the names of the encoder's tensors.
    """
    if not Path(init).exists() or is_model_folder(Path(init)):
        _copy_weights(encoder, open_encoder(init), init)
        return
    try:
        initialize_encoder(encoder, init)
    except BadInput as error:
        if Path(init).is_dir() or read_encoder_spec(Path(init)) is not None:
            raise
        try:
            start = open_encoder(init)
        except BadInput:
            raise error from None
        _copy_weights(encoder, start, init)


def _copy_weights(encoder: Encoder, start: Encoder, init: Path | str) -> None:
    weights = start.body.state_dict()
    expected = encoder.body.state_dict()
    if {name: value.shape for name, value in weights.items()} != {n: value.shape for n, value in expected.items()}:
        raise BadInput(
            f"{init} is a {start.spec.name} for images of {start.size} px, the encoder a {encoder.spec.name} for "
            f"{encoder.size}; --set encoder.name={start.spec.name} --set encoder.size={start.size}"
        )
    encoder.body.load_state_dict(weights)


def describe_init(encoder: Encoder, init: Path | str) -> dict[str, str]:
    """The place of the weights that `encoder` was just filled with, and their digest: the file may change later."""
    return {"from": _absolute(str(init)), "digest": _digest(encoder)}


def _absolute(init: str) -> str:
    """The words with the path in them made absolute."""
    if Path(init).exists():
        return str(Path(init).resolve())
    name, separator, file = init.partition("@")
    return f"{name}@{Path(file).resolve()}" if separator else init


def load_init(encoder: Encoder, init: dict[str, str]) -> Encoder:
    """Fill an encoder of the run's architecture with the weights that the run started from; nothing is fetched."""
    name, file = init["from"].partition("@")[::2]
    is_cached = not file and name.startswith(("timm:", "torchvision:"))
    fill_encoder(encoder, f"{name}@{find_weights(name, fetch=False)}" if is_cached else init["from"])
    if _digest(encoder) != init["digest"]:
        raise BadInput(f"{init['from']} has changed since the run started from it; restore it")
    return encoder


def _digest(encoder: Encoder) -> str:
    return content_digest(sorted(encoder.body.state_dict().items()))
