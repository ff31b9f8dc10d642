"""`import_checkpoint`: write another library's encoder as encoder.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from supancl.config import FLAG
from supancl.reporter import say
from supancl.runs.hub import split_encoder_name


def import_checkpoint(
    encoder: str | Path,
    out: Annotated[str | Path, FLAG],
    *,
    size: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    branch: Literal["online", "target"] = "online",
    prefix: str | None = None,
) -> dict[str, Any]:
    """Convert another library's encoder to encoder.safetensors.

    Nothing in a file is executed.

    Parameters
    ----------
    encoder
        NAME@FILE, timm:NAME, torchvision:NAME, or a checkpoint of another library (docs/import.md)
    out
        the .safetensors to write, or a folder for encoder.safetensors
    size
        side of the encoder's input, if its file does not say
    mean
        mean of the encoder's input per channel, if its file does not say
    std
        standard deviation of the encoder's input per channel, if its file does not say
    branch
        which branch, if a file has both
    prefix
        prefix of the encoder's tensors, if the format is unknown

    Returns
    -------
    dict
        the recognised format, the architecture and the path of the file

    Examples
    --------
    $ supancl import checkpoint.pth --out imported
    $ supancl import timm:resnet18 --out resnet18.safetensors
    """
    split_encoder_name(str(encoder))
    from supancl.runs.importing import convert_checkpoint

    result = convert_checkpoint(str(encoder), out, size=size, mean=mean, std=std, branch=branch, prefix=prefix)
    say(", ".join(f"{key} {value}" for key, value in result.items() if value != ""))
    return result
