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
from supancl.evaluation.results import data_name
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
from supancl.runs.hub import TimmModel, to_timm

MOST_IMAGES = 17
LARGEST_SMALL_INPUT = 64  # px; smaller inputs may be for images that are as small, which have no margin to cut off
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

    def describe(self) -> dict[str, str]:
        """What a file without a config.json should say about itself."""
        about = {"encoder": self.encoder.spec.name, "width": str(self.encoder.width), "recipe": self.tag}
        return {**about, "preprocessing": json.dumps(self.preprocessing)}

    @property
    def timm_name(self) -> TimmModel:
        return to_timm(self.encoder.spec)

    @cached_property
    def timm_body(self) -> tuple[nn.Module, dict[str, Any]]:
        """The model of timm, and all its arguments; refuses an encoder that timm lacks."""
        import timm

        spec, name = self.encoder.spec, self.timm_name
        if name.is_ours:
            import supancl.use.timm_models  # noqa: F401 - registers it
        if not timm.is_model(name.architecture):
            raise CannotHold(f"timm has no architecture for the encoder {spec.name!r}")
        arguments: dict[str, Any] = {"in_chans": spec.channels, "img_size": spec.size, **name.arguments}
        try:
            body = timm.create_model(name.architecture, num_classes=0, **arguments)
        except TypeError:  # convolutional models take any size and do not know the argument
            del arguments["img_size"]
            body = timm.create_model(name.architecture, num_classes=0, **arguments)
        self.check_tensors(body, f"timm's {name.architecture}")
        return body, arguments

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


# --- formats ----------------------------------------------------------------------------------------------------------


def write_hf(exported: Exported) -> None:
    """config.json and model.safetensors, with the metadata of encoder.safetensors, so that supancl reads them back."""
    from timm.models import save_for_hf

    body, arguments = exported.timm_body
    settings: Any = body.pretrained_cfg
    body.load_state_dict(exported.encoder.body.state_dict())
    # timm's own values of this architecture are about other weights: none of them is copied
    body.pretrained_cfg = {  # type: ignore[assignment]
        "architecture": exported.timm_name.architecture,
        "tag": exported.tag,
        "custom_load": False,
        **exported.preprocessing,
        "fixed_input_size": "img_size" in arguments,
        "num_classes": 0,
        "pool_size": None,
        "first_conv": None,  # else timm adapts the weights of images without 3 channels
        "classifier": settings.get("classifier"),  # so that num_classes=N adds one
        "license": "other",
    }
    save_for_hf(body, str(exported.folder), model_args=arguments, safe_serialization=True)
    metadata = {**exported.metadata, "format": "pt"}  # transformers wants it
    save_safetensors(exported.folder / EXPORTED_FILE, exported.encoder.body.state_dict(), metadata)


def load_hf(exported: Exported) -> Features:
    import timm

    model: Features = timm.create_model(f"local-dir:{exported.folder}", pretrained=True).eval()
    return model


def write_onnx(exported: Exported) -> None:
    """One file with a batch axis of any size, and the preprocessing as metadata."""
    program = exported.program
    names = {"input_names": ["images"], "output_names": ["features"], "dynamic_shapes": ({0: "batch"},)}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            converted: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
        converted.model.metadata_props.update(exported.describe())
        converted.save(str(exported.folder / "model.onnx"), external_data=False)  # a file of protobuf holds 2 GB
    except Exception as error:  # the exporter has many kinds of errors
        raise CannotHold(f"torch.onnx cannot convert {exported.encoder.spec.name} ({reason(error)})") from None


def load_onnx(exported: Exported) -> Features:
    import onnxruntime

    path = str(exported.folder / "model.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])


def write_pt2(exported: Exported) -> None:
    extra = {"supancl.json": json.dumps(exported.describe())}
    torch.export.save(exported.program, exported.folder / "model.pt2", extra_files=extra)


def load_pt2(exported: Exported) -> Features:
    model: Features = torch.export.load(exported.folder / "model.pt2").module()
    return model


def write_torchvision(exported: Exported) -> None:
    _ = exported.torchvision_model  # refused here if there is none
    weights = {name: value.contiguous().clone() for name, value in exported.encoder.body.state_dict().items()}
    torch.save(weights, exported.folder / "torchvision.pth")


def load_torchvision(exported: Exported) -> Features:
    import torchvision

    name, arguments, classifier = exported.torchvision_model
    model = torchvision.models.get_model(name, weights=None, **arguments)
    model.set_submodule(classifier, nn.Identity())
    model.load_state_dict(torch.load(exported.folder / "torchvision.pth", weights_only=True))
    features: Features = model.eval()
    return features


class Format(NamedTuple):
    """Files of one kind, and the packages without which it cannot be written."""

    files: tuple[str, ...]
    write: Callable[[Exported], None]
    load: Callable[[Exported], Features]
    tolerance: float = 1e-5  # of the largest feature
    packages: tuple[str, ...] = ()


FORMATS = {
    "hf": Format(("config.json", EXPORTED_FILE), write_hf, load_hf),
    "onnx": Format(("model.onnx",), write_onnx, load_onnx, 1e-4, ("onnx", "onnxscript", "onnxruntime")),
    "pt2": Format(("model.pt2",), write_pt2, load_pt2),
    "torchvision": Format(("torchvision.pth",), write_torchvision, load_torchvision),
}


def write_and_check(exported: Exported, name: str) -> dict[str, Any]:
    """Write a format, load it and compare its features with ours; returns the sizes of its files and the difference.

    Raises CannotHold if the format cannot hold the encoder or gives other features; its files are then removed.
    """
    row = FORMATS[name]
    if missing := [package for package in row.packages if find_spec(package) is None]:
        raise CannotHold(f"needs {', '.join(missing)}; pip install 'supancl[{name}]'")
    try:
        row.write(exported)
        with torch.inference_mode():
            ours, theirs = exported.encoder(exported.views), row.load(exported)(exported.views)
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
    side, is_vector = metadata.get(SHORT_SIDE, ""), spec.name == "linear"
    if not side and not is_vector and encoder.size <= LARGEST_SMALL_INPUT:
        evaluated.reporter.warn(
            f"{location}: size of its training images unknown; if it was at most {encoder.size} px, set crop_pct to 1 "
            "in config.json"
        )
    is_whole, why = side.isdecimal() and int(side) <= encoder.size, "the encoder has no run"
    shape = (spec.channels * spec.size,) if is_vector else (spec.channels, spec.size, spec.size)
    views = torch.randn(MOST_IMAGES, *shape, generator=torch.Generator().manual_seed(0))
    if evaluated.recipe is not None:
        try:
            data = peek_data(evaluated.recipe.data, spec.channels)
            split = data.held_out if len(data.held_out) else data.train
            batch = split.batch(torch.linspace(0, len(split) - 1, min(MOST_IMAGES, len(split))).long())
            views, why = evaluation_view(batch, encoder.size, encoder.mean, encoder.std), ""
        except (BadInput, OSError, ValueError) as error:
            why = f"the run's data cannot be read: {error}"
    origin = f"noise images ({why})" if why else f"{len(views)} images of {_data(evaluated)}"
    return Exported(encoder, metadata, views, origin, is_whole, folder, evaluated.label)


def _data(evaluated: EvaluatedEncoder) -> str:
    return "" if evaluated.recipe is None else " + ".join(map(data_name, evaluated.recipe.data.all_sources))
