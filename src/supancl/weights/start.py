"""Where the first weights of a run came from: recipe.json records it, and evaluation compares with them."""

from __future__ import annotations

from pathlib import Path

from supancl.core.encoders import Encoder
from supancl.errors import BadInput
from supancl.weights.digests import content_digest
from supancl.weights.encoder_file import initialize_encoder


def describe_init(encoder: Encoder, init: Path | str) -> dict[str, str]:
    """The place of the weights that `encoder` was just filled with, and their digest: the file may change later."""
    return {"from": str(Path(init).resolve()) if Path(init).exists() else str(init), "digest": _digest(encoder)}


def load_init(encoder: Encoder, init: dict[str, str]) -> Encoder:
    """Fill an encoder of the run's architecture with the weights that the run started from."""
    initialize_encoder(encoder, init["from"])
    if _digest(encoder) != init["digest"]:
        raise BadInput(f"{init['from']} has changed since the run started from it; restore it")
    return encoder


def _digest(encoder: Encoder) -> str:
    return content_digest(sorted(encoder.body.state_dict().items()))
