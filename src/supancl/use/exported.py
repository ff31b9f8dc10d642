"""What the formats share: the encoder, the folder to write to, and one traced program."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from supancl.core.encoders import Encoder
from supancl.errors import BadInput
from supancl.files import reason, write_atomically
from supancl.use.images import CheckImages

TORCH_TOLERANCE, ONNX_TOLERANCE = 1e-5, 1e-4
MAKE_ROOM = "Make room, or choose another out"
Features = Callable[[Tensor], Tensor]  # normalised images -> features


class CannotHold(BadInput):
    """A format cannot hold this encoder, or its package is missing. Unless it was asked for, it is left out."""


@dataclass(frozen=True)
class ExportedEncoder:
    """An encoder in eval mode on the CPU, the metadata of its file, and the images that formats are compared on."""

    encoder: Encoder
    metadata: dict[str, str]
    images: CheckImages
    folder: Path  # where the files are written
    tag: str  # the recipe, or where the weights come from

    def save(self, name: str, write: Callable[[Path], None]) -> None:
        write_atomically(self.folder / name, write, MAKE_ROOM)

    @property
    def preprocessing(self) -> dict[str, Any]:
        """How an image becomes the encoder's input."""
        encoder = self.encoder
        return {
            "input_size": [encoder.spec.channels, encoder.size, encoder.size],
            "mean": per_channel(encoder.mean, encoder.spec.channels),
            "std": per_channel(encoder.std, encoder.spec.channels),
            "crop_pct": crop_fraction(encoder.size, self.images.is_whole),
            "crop_mode": "center",
            "interpolation": "bilinear",
        }

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The encoder traced for any batch size, for `pt2` and `onnx`."""
        example = self.images.views[:1].repeat(2, *[1] * (self.images.views.ndim - 1))
        # with one image torch would fix the batch to 1
        shapes = ({0: torch.export.Dim("batch", min=1)},)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(self.encoder, (example,), dynamic_shapes=shapes)
        except Exception as error:  # torch.export has many kinds of errors, and some are private
            raise CannotHold(f"torch.export cannot trace {self.encoder.spec.name} ({reason(error)})") from None

    def describe(self) -> dict[str, str]:
        """What a file without a config.json should say about itself."""
        return {
            "encoder": self.encoder.spec.name,
            "width": str(self.encoder.width),
            "recipe": self.tag,
            "preprocessing": json.dumps(self.preprocessing),
        }


def check_tensors(exported: ExportedEncoder, model: nn.Module, name: str) -> None:
    """Refuse a library's model whose tensors have other names or shapes than the encoder's."""
    theirs = {key: value.shape for key, value in model.state_dict().items()}
    ours = {key: value.shape for key, value in exported.encoder.body.state_dict().items()}
    for key in sorted(set(theirs) ^ set(ours)) or [key for key in ours if ours[key] != theirs[key]]:
        raise CannotHold(f"{name} has other tensors than the encoder {exported.encoder.spec.name!r}, such as {key}")


def per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) * (channels if len(values) == 1 else 1)


def crop_fraction(size: int, is_whole: bool) -> float:
    """timm's crop_pct with which its Resize reaches our short side.

    timm resizes to floor(size / crop_pct), we to round(8/7 size); 0.875 gives another number for some sizes.

    >>> crop_fraction(224, False), crop_fraction(32, False), crop_fraction(32, True)
    (0.875, 0.853333, 1.0)
    """
    if is_whole:
        return 1.0
    short_side = round(size * 8 / 7)
    return 0.875 if int(size / 0.875) == short_side else round(size / (short_side + 0.5), 6)
