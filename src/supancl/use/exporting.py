"""The formats of an export, each loaded back and compared with the encoder on images of the run; and the model card."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from supancl.core.encoders import Encoder, find_classifier
from supancl.data.opening import peek_data
from supancl.data.views.render import evaluation_view
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.files import reason
from supancl.runs.encoder_file import (
    EXPORTED_FILE,
    SHORT_SIDE,
    encoder_metadata,
    find_encoder_file,
    is_exported,
    read_header,
    save_safetensors,
)
from supancl.runs.hub import to_timm

MOST_IMAGES = 17
Features = Callable[[Tensor], Tensor]  # normalised images -> features


class CannotHold(BadInput):
    """A format cannot hold this encoder, or its package is missing. Unless it was asked for, it is left out."""


@dataclass(frozen=True)
class Exported:
    """An encoder in eval mode on the CPU, the metadata of its file, and the images that formats are compared on."""

    encoder: Encoder
    metadata: Mapping[str, str]
    views: Tensor  # normalised inputs of the encoder (n, C, H, W)
    origin: str  # `17 images of photos`, or why they are noise
    is_whole: bool  # the training images were no larger than the input, so no margin is cut off
    folder: Path  # where the files are written
    tag: str  # the recipe, or where the weights come from

    @property
    def preprocessing(self) -> dict[str, Any]:
        """How an image becomes the encoder's input."""
        encoder, channels = self.encoder, self.encoder.spec.channels
        mean, std = (list(v) * (channels if len(v) == 1 else 1) for v in (encoder.mean, encoder.std))
        crop = {"crop_pct": crop_fraction(encoder.size, self.is_whole), "crop_mode": "center"}
        size = [channels, encoder.size, encoder.size]
        return {"input_size": size, "mean": mean, "std": std, **crop, "interpolation": "bilinear"}

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The encoder traced for any batch size, for `pt2` and `onnx`."""
        example = self.views[:1].repeat(2, *[1] * (self.views.ndim - 1))  # with one image torch would fix the batch
        shapes = ({0: torch.export.Dim("batch", min=1)},)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(self.encoder, (example,), dynamic_shapes=shapes)
        except Exception as error:  # torch.export has many kinds of errors, and some are private
            raise CannotHold(f"torch.export cannot trace {self.encoder.spec.name} ({reason(error)})") from None

    @property
    def about(self) -> dict[str, str]:
        """What a file without a config.json should say about itself."""
        about = {"encoder": self.encoder.spec.name, "width": str(self.encoder.width), "recipe": self.tag}
        return {**about, "preprocessing": json.dumps(self.preprocessing)}

    @cached_property
    def torchvision_model(self) -> tuple[str, dict[str, Any], str]:
        """The name, arguments and classifier of torchvision's model; refuses an encoder that torchvision lacks."""
        import torchvision

        spec = self.encoder.spec
        name = spec.name.rpartition(":")[2].partition(".")[0]
        if name not in torchvision.models.list_models(module=torchvision.models) or spec.channels != 3:
            raise CannotHold(f"torchvision has no {name!r} of {spec.channels} channels")
        arguments = {"image_size": spec.size} if name.startswith("vit_") else {}
        with torch.device("meta"):  # only names and shapes are looked at
            model = torchvision.models.get_model(name, weights=None, **arguments)
        classifier = find_classifier(model)
        model.set_submodule(classifier, nn.Identity())
        self.check_tensors(model, f"torchvision's {name}")
        return name, arguments, classifier

    def check_tensors(self, model: nn.Module, name: str) -> None:
        """Refuse a library's model whose tensors have other names or shapes than the encoder's."""
        theirs, ours = ({key: value.shape for key, value in m.state_dict().items()} for m in (model, self.encoder.body))
        if theirs != ours:
            raise CannotHold(f"{name} has other tensors than the encoder {self.encoder.spec.name!r}")


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


# --- formats: each function writes its files, and returns what they hold as it loads them back ------------------------


def to_hf(exported: Exported) -> Features:
    """config.json and model.safetensors, with the metadata of encoder.safetensors, so that supancl reads them back."""
    import timm

    spec, (architecture, more) = exported.encoder.spec, to_timm(exported.encoder.spec)
    if architecture.startswith("supancl_"):
        import supancl.use.timm_models  # noqa: F401 - registers it
    if not timm.is_model(architecture):
        raise CannotHold(f"timm has no architecture for the encoder {spec.name!r}")
    arguments: dict[str, Any] = {"in_chans": spec.channels, "img_size": spec.size, **more}
    try:
        body = timm.create_model(architecture, num_classes=0, **arguments)
    except TypeError:  # convolutional models take any size and do not know the argument
        del arguments["img_size"]
        body = timm.create_model(architecture, num_classes=0, **arguments)
    exported.check_tensors(body, f"timm's {architecture}")
    body.load_state_dict(exported.encoder.body.state_dict())
    # timm's own values of this architecture are about other weights: none of them is copied
    classifier: Any = body.pretrained_cfg.get("classifier")  # type: ignore[operator, union-attr]
    body.pretrained_cfg = {  # type: ignore[assignment]
        "architecture": architecture,
        "tag": exported.tag,
        "custom_load": False,
        **exported.preprocessing,
        "fixed_input_size": "img_size" in arguments,
        "num_classes": 0,
        "pool_size": None,
        "first_conv": None,  # else timm adapts the weights of images without 3 channels
        "classifier": classifier,  # so that num_classes=N adds one
        "license": "other",
    }
    timm.models.save_for_hf(body, str(exported.folder), model_args=arguments, safe_serialization=True)
    metadata = {**exported.metadata, "format": "pt"}  # transformers wants it
    save_safetensors(exported.folder / EXPORTED_FILE, exported.encoder.body.state_dict(), metadata)
    model: Features = timm.create_model(f"local-dir:{exported.folder}", pretrained=True).eval()
    return model


def to_onnx(exported: Exported) -> Features:
    """One file with a batch axis of any size, and the preprocessing as metadata."""
    import onnxruntime

    program, path = exported.program, str(exported.folder / "model.onnx")
    names = {"input_names": ["images"], "output_names": ["features"], "dynamic_shapes": ({0: "batch"},)}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            converted: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
        converted.model.metadata_props.update(exported.about)
        converted.save(path, external_data=False)  # a file of protobuf holds 2 GB
    except Exception as error:  # the exporter has many kinds of errors
        raise CannotHold(f"torch.onnx cannot convert {exported.encoder.spec.name} ({reason(error)})") from None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])


def to_pt2(exported: Exported) -> Features:
    path = exported.folder / "model.pt2"
    torch.export.save(exported.program, path, extra_files={"supancl.json": json.dumps(exported.about)})
    model: Features = torch.export.load(path).module()
    return model


def to_torchvision(exported: Exported) -> Features:
    """The weights for torchvision's model without its classifier."""
    import torchvision

    name, arguments, classifier = exported.torchvision_model
    weights = {key: value.contiguous().clone() for key, value in exported.encoder.body.state_dict().items()}
    torch.save(weights, exported.folder / "torchvision.pth")
    model = torchvision.models.get_model(name, weights=None, **arguments)
    model.set_submodule(classifier, nn.Identity())
    model.load_state_dict(torch.load(exported.folder / "torchvision.pth", weights_only=True))
    features: Features = model.eval()
    return features


class Format(NamedTuple):
    """Files of one kind, and the packages without which it cannot be written."""

    files: tuple[str, ...]
    write: Callable[[Exported], Features]
    tolerance: float = 1e-5  # of the largest feature
    packages: tuple[str, ...] = ()


FORMATS = {
    "hf": Format(("config.json", EXPORTED_FILE), to_hf),
    "onnx": Format(("model.onnx",), to_onnx, 1e-4, ("onnx", "onnxscript", "onnxruntime")),
    "pt2": Format(("model.pt2",), to_pt2),
    "torchvision": Format(("torchvision.pth",), to_torchvision),
}


def write_and_check(exported: Exported, name: str) -> dict[str, Any]:
    """Write a format, load it and compare its features with ours; returns the sizes of its files and the difference.

    Raises CannotHold if the format cannot hold the encoder or gives other features; its files are then removed.
    """
    row = FORMATS[name]
    if missing := [package for package in row.packages if find_spec(package) is None]:
        raise CannotHold(f"needs {', '.join(missing)}; pip install 'supancl[{name}]'")
    try:
        load = row.write(exported)
        with torch.inference_mode():
            ours, theirs = exported.encoder(exported.views), load(exported.views)
        difference = float("nan")
        if theirs.shape == ours.shape:
            difference = (theirs - ours).abs().max().item() / (ours.abs().max().item() or 1.0)
        if not difference <= row.tolerance:  # nan too
            raise CannotHold(f"it gives other features (difference {difference:.1e})")
    except CannotHold:
        for file in row.files:
            (exported.folder / file).unlink(missing_ok=True)
        raise
    return {"files": {file: (exported.folder / file).stat().st_size for file in row.files}, "difference": difference}


# --- the encoder and its images ---------------------------------------------------------------------------------------


def prepare(evaluated: EvaluatedEncoder, folder: Path) -> Exported:
    """The encoder with the metadata of its file, and held-out images of its run; noise if there are none."""
    location, encoder, spec = Path(evaluated.location), evaluated.encoder, evaluated.encoder.spec
    if (location / "encoder.safetensors").exists() or is_exported(location):
        location = find_encoder_file(location)
    metadata = read_header(location)[0] if location.is_file() and location.suffix == ".safetensors" else {}
    if "encoder" not in metadata:  # another library's file
        metadata = encoder_metadata(folder / EXPORTED_FILE, encoder, (), f"export:{evaluated.label}")
    side, why = metadata.get(SHORT_SIDE, ""), "the encoder has no run"
    shape = [spec.channels, spec.size, spec.size] if spec.name != "linear" else [spec.channels * spec.size]
    views = torch.randn(MOST_IMAGES, *shape, generator=torch.Generator().manual_seed(0))
    if evaluated.recipe is not None:
        try:
            data = peek_data(evaluated.recipe.data, spec.channels)
            split = data.held_out if len(data.held_out) else data.train
            batch = split.batch(torch.linspace(0, len(split) - 1, min(MOST_IMAGES, len(split))).long())
            views, why = evaluation_view(batch, encoder.size, encoder.mean, encoder.std), ""
        except (BadInput, OSError, ValueError) as error:
            why = f"the run's data cannot be read: {error}"
    origin = f"noise images ({why})" if why else f"{len(views)} images of the run"
    is_whole = side.isdecimal() and int(side) <= encoder.size
    return Exported(encoder, metadata, views, origin, is_whole, folder, evaluated.label)
