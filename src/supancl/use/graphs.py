"""model.pt2 and model.onnx: the traced encoder, which needs no Python code of the architecture."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.files import reason
from supancl.use.exported import CannotHold, ExportedEncoder, Features

PT2, ONNX = "model.pt2", "model.onnx"
DESCRIPTION = "supancl.json"  # inside model.pt2
MAX_PROTOBUF_BYTES = 2**31 - 2**20  # a file without a second one for its weights


def write_pt2(exported: ExportedEncoder) -> None:
    program, extra = exported.program, {DESCRIPTION: json.dumps(exported.describe())}

    def write(path: Path) -> None:
        with open(path, "wb") as file:  # given a path, torch asks for the suffix .pt2
            torch.export.save(program, file, extra_files=extra)

    exported.save(PT2, write)


def load_pt2(exported: ExportedEncoder) -> Features:
    with open(exported.folder / PT2, "rb") as file:
        module: Features = torch.export.load(file).module()
    return module


def write_onnx(exported: ExportedEncoder) -> None:
    """Write one file with a batch axis of any size and opset of torch's choice, with the preprocessing as metadata."""
    nbytes = sum(value.numel() * value.element_size() for value in exported.encoder.state_dict().values())
    if nbytes > MAX_PROTOBUF_BYTES:
        raise CannotHold(f"an ONNX file holds up to 2 GB, and the weights have {nbytes / 1e9:.1f} GB")
    program = exported.program
    try:
        with _quiet_exporter():
            converted: Any = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: "batch"},),
                verbose=False,
            )
    except Exception as error:  # the exporter has many kinds of errors
        raise CannotHold(f"torch.onnx cannot convert {exported.encoder.spec.name} ({reason(error)})") from None
    converted.model.metadata_props.update(exported.describe())
    exported.save(ONNX, lambda path: converted.save(str(path), external_data=False))


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without the exporter's progress lines and its warnings about versions of operators."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def load_onnx(exported: ExportedEncoder) -> Features:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported.folder / ONNX), providers=["CPUExecutionProvider"])

    def features(images: Tensor) -> Tensor:
        (values,) = session.run(["features"], {"images": images.numpy()})
        return torch.from_numpy(values)

    return features
