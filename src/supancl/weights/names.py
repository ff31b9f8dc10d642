"""What the name of an encoder on the command line stands for; nothing is read, and torch is not needed."""

from __future__ import annotations

from pathlib import Path

from supancl.errors import BadInput
from supancl.files import beside


def split_encoder_name(text: str) -> tuple[str | None, Path]:
    """NAME@FILE, or a path; a path that has an @ in it and exists is a path. A file that is missing is refused."""
    if Path(text).exists() or "@" not in text:
        if not Path(text).exists():
            kind = text.partition(":")[0]
            if kind in ("torchvision", "timm"):
                raise BadInput(f"{text}: no weight file; give {text}@FILE (nothing is downloaded)")
            way = "a run folder, an encoder.safetensors, a checkpoint, torchvision:NAME@FILE or timm:NAME@FILE"
            raise BadInput(f"no file {text}{beside(text) or f'; give {way}'}")
        return None, Path(text)
    name, _, file = text.partition("@")
    if not Path(file).is_file():
        raise BadInput(f"no file {file} (of {text}); give NAME@FILE with a local weight file")
    return name, Path(file)
