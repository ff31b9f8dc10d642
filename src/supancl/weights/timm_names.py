"""What an encoder is called in timm, and which encoder a timm architecture with its arguments is.

Architectures that timm lacks have names that begin with `supancl_`; `supancl.use.timm_models` registers them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from supancl.core.specs import EncoderSpec
from supancl.errors import BadInput

CIFAR_RESNET = re.compile(r"cifar-(resnet\d+)(-pad2|-norelu)?")
STEM_ARGUMENTS: dict[str | None, dict[str, Any]] = {
    None: {},
    "-pad2": {"stem_padding": 2},
    "-norelu": {"stem_relu": False},
}
VIT_SMALL = "vit_small_patch16_224", {"num_heads": 12}  # timm's has 6; no tensor shows it
# these say what the rest of a folder says too, or matter only in training
WITHOUT_EFFECT = ("in_chans", "img_size", "num_classes", "drop_rate", "drop_path_rate")


class TimmModel(NamedTuple):
    """A name for `timm.create_model`, and arguments besides in_chans, img_size and num_classes."""

    architecture: str
    arguments: dict[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether timm knows it only after `import supancl.use.timm_models`."""
        return self.architecture.startswith("supancl_")


def to_timm(spec: EncoderSpec) -> TimmModel:
    """The model of timm that may hold this encoder; whether timm has it is not looked up.

    >>> to_timm(EncoderSpec("cifar-resnet18-pad2"))
    TimmModel(architecture='supancl_cifar_resnet18', arguments={'stem_padding': 2})
    """
    if spec.name == "vit-small":
        return TimmModel(*VIT_SMALL)
    if spec.name == "cnn":
        return TimmModel("supancl_cnn", {"width": spec.width or 128})
    if match := CIFAR_RESNET.fullmatch(spec.name):
        return TimmModel(f"supancl_cifar_{match[1]}", STEM_ARGUMENTS[match[2]])
    return TimmModel(spec.name.rpartition(":")[2].partition(".")[0], {})


def from_timm(architecture: str, arguments: Mapping[str, Any]) -> tuple[str, int | None]:
    """The name of an encoder and its width, if that is not fixed; other arguments than ours are refused.

    >>> from_timm("vit_small_patch16_224", {"img_size": 32, "num_heads": 12})
    ('vit-small', None)
    """
    given = {key: value for key, value in arguments.items() if key not in WITHOUT_EFFECT}
    if (architecture, given) == VIT_SMALL:
        return "vit-small", None
    if architecture == "supancl_cnn" and set(given) <= {"width"}:
        width = given.get("width", 128)
        if not isinstance(width, int) or width < 1:
            raise BadInput(f"model_args.width = {width!r}: must be a whole number of at least 1")
        return "cnn", width
    if architecture.startswith("supancl_cifar_"):
        for suffix, stem in STEM_ARGUMENTS.items():
            if given == stem:
                return f"cifar-{architecture.removeprefix('supancl_cifar_')}{suffix or ''}", None
    if given:
        raise BadInput(
            f"model_args sets {', '.join(sorted(map(str, given)))}, which changes {architecture}, and supancl has no "
            "encoder for that; register one in a --plugin FILE (docs/extending.md)"
        )
    return f"timm:{architecture}", None
