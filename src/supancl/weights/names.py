"""Split the name of an encoder on the command line into name and file, without torch and without reading the file."""

from __future__ import annotations

from pathlib import Path

from supancl.core.specs import suggest_timm
from supancl.errors import BadInput
from supancl.files import did_you_mean_path


def split_encoder_name(text: str) -> tuple[str | None, Path]:
    """Split NAME@FILE into (NAME, FILE); an existing path gives (None, path), even with an @ in it.

    torchvision:MODEL and timm:MODEL stand for the file in the cache of these libraries, which fetch a missing one.
    A missing FILE is refused.
    """
    if Path(text).exists() or "@" not in text:
        if not Path(text).exists():
            kind = text.partition(":")[0]
            if kind in ("torchvision", "timm"):
                from supancl.weights.cached import find_weights

                return text, find_weights(text)
            options = "a run folder, an encoder.safetensors, a checkpoint, torchvision:NAME[@FILE] or timm:NAME[@FILE]"
            hint = did_you_mean_path(text) or suggest_timm(text)
            raise BadInput(f"no file {text}{hint or f'; give {options}'}")
        return None, Path(text)
    name, _, file = text.partition("@")
    if not Path(file).is_file():
        raise BadInput(f"no file {file} (of {text}); give NAME@FILE with a local weight file")
    return name, Path(file)
