"""torchvision.pth: a state dict for the model of torchvision with the same tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from supancl.core.encoders import find_classifier
from supancl.use.exported import CannotHold, ExportedEncoder, Features, check_tensors

FILE = "torchvision.pth"


class TorchvisionModel(NamedTuple):
    """A name for `torchvision.models.get_model`, its arguments, and the layer that is the classifier."""

    name: str
    arguments: dict[str, Any]
    classifier: str


def find_torchvision_model(exported: ExportedEncoder) -> TorchvisionModel:
    """The model of torchvision with the encoder's tensors; refuse an encoder that torchvision lacks."""
    import torchvision

    spec = exported.encoder.spec
    name = spec.name.rpartition(":")[2].partition(".")[0]
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise CannotHold(f"torchvision has no architecture for the encoder {spec.name!r}")
    if spec.channels != 3:
        raise CannotHold(f"torchvision's {name} takes images of 3 channels, this encoder {spec.channels}")
    arguments = {"image_size": spec.size} if name.startswith("vit_") else {}
    with torch.device("meta"):  # only names and shapes are looked at
        model = torchvision.models.get_model(name, weights=None, **arguments)
    classifier = find_classifier(model)
    model.set_submodule(classifier, torch.nn.Identity())
    check_tensors(exported, model, f"torchvision's {name}")
    return TorchvisionModel(name, arguments, classifier)


def write_torchvision(exported: ExportedEncoder) -> None:
    find_torchvision_model(exported)
    weights = {
        name: value.detach().cpu().contiguous().clone() for name, value in exported.encoder.body.state_dict().items()
    }

    def write(path: Path) -> None:
        with open(path, "wb") as file:  # given a path, torch hides why it could not write
            torch.save(weights, file)

    exported.save(FILE, write)


def load_torchvision(exported: ExportedEncoder) -> Features:
    import torchvision

    name, arguments, classifier = find_torchvision_model(exported)
    model = torchvision.models.get_model(name, weights=None, **arguments)
    model.set_submodule(classifier, torch.nn.Identity())
    model.load_state_dict(torch.load(exported.folder / FILE, weights_only=True))
    features: Features = model.eval()
    return features
