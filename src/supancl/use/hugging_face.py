"""config.json and model.safetensors, which timm and transformers load."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from torch import Tensor

from supancl.files import reason, write_json
from supancl.runs.encoder_file import save_safetensors
from supancl.runs.hub import TimmModel, to_timm
from supancl.use.exported import CannotHold, ExportedEncoder, Features, check_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def write_folder(exported: ExportedEncoder) -> None:
    """Write both files. The weights keep the metadata of encoder.safetensors, so that supancl reads them back."""
    model, arguments, classifier = find_timm_model(exported)
    weights = {name: value.detach().clone() for name, value in exported.encoder.body.state_dict().items()}
    # "pt": transformers wants it
    save_safetensors(exported.folder / WEIGHTS, weights, {**exported.metadata, "format": "pt"})
    images = exported.preprocessing
    config = {
        "architecture": model.architecture,
        "num_classes": 0,
        "num_features": exported.encoder.width,
        "model_args": arguments,
        # timm's own values of this architecture are about other weights: none of them is copied
        "pretrained_cfg": {
            "tag": exported.tag,
            "custom_load": False,
            **images,
            "fixed_input_size": "img_size" in arguments,
            "num_classes": 0,
            "pool_size": None,
            "first_conv": None,  # else timm adapts the weights of images without 3 channels
            "classifier": classifier,  # so that num_classes=N adds one
            "license": "other",
        },
    }
    write_json(exported.folder / CONFIG, config)


def find_timm_model(exported: ExportedEncoder) -> tuple[TimmModel, dict[str, Any], Any]:
    """The model of timm, all its arguments, and the name of its classifier; refuse an encoder that timm lacks."""
    import timm

    spec, model = exported.encoder.spec, to_timm(exported.encoder.spec)
    if model.is_ours:
        import supancl.use.timm_models  # noqa: F401 - registers it
    if not timm.is_model(model.architecture):
        raise CannotHold(f"timm has no architecture for the encoder {spec.name!r}")
    arguments: dict[str, Any] = {"in_chans": spec.channels, "img_size": spec.size, **model.arguments}
    try:
        body = timm.create_model(model.architecture, num_classes=0, **arguments)
    except TypeError:  # convolutional models take any size and do not know the argument
        del arguments["img_size"]
        body = timm.create_model(model.architecture, num_classes=0, **arguments)
    check_tensors(exported, body, f"timm's {model.architecture}")
    settings: Any = body.pretrained_cfg
    return model, arguments, settings.get("classifier")


def load_with_timm(exported: ExportedEncoder) -> Features:
    """`timm.create_model("local-dir:...", pretrained=True)`."""
    import timm

    features: Features = timm.create_model(f"local-dir:{exported.folder}", pretrained=True).eval()
    return features


def load_checkpoint_with_timm(exported: ExportedEncoder) -> Features:
    """`timm.create_model(NAME, checkpoint_path=...)`, with the arguments that config.json names."""
    import timm

    config = json.loads((exported.folder / CONFIG).read_text())
    path = str(exported.folder / WEIGHTS)
    model = timm.create_model(config["architecture"], checkpoint_path=path, num_classes=0, **config["model_args"])
    features: Features = model.eval()
    return features


def load_with_transformers(exported: ExportedEncoder) -> Features:
    """`transformers.AutoModel.from_pretrained(...)`."""
    with _quiet_transformers():
        library: Any = import_module("transformers")
        try:
            model = library.AutoModel.from_pretrained(str(exported.folder)).eval()
        except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise CannotHold(f"transformers cannot load it ({reason(error)})") from None

    def features(images: Tensor) -> Tensor:
        pooled: Tensor = model(images).pooler_output
        return pooled

    return features


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without transformers' progress bars and remarks about backends."""
    remarks: Any = import_module("transformers.utils.logging")
    level = remarks.get_verbosity()
    had_bars = remarks.is_progress_bar_enabled()
    remarks.set_verbosity(logging.ERROR)
    remarks.disable_progress_bar()
    try:
        yield
    finally:
        remarks.set_verbosity(level)
        if had_bars:
            remarks.enable_progress_bar()
