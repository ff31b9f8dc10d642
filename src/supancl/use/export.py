"""`export` and `import_checkpoint`: an encoder for other libraries, and from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from supancl.config import FLAG
from supancl.errors import BadInput, did_you_mean
from supancl.files import Output
from supancl.reporter import say, track
from supancl.runs.hub import split_encoder_name
from supancl.use import EncoderArgument, open_encoders

FORMAT_NAMES = ("hf", "onnx", "pt2", "torchvision")


def export(
    encoder: EncoderArgument, out: Annotated[str | Path, FLAG], *, format: tuple[str, ...] | str | None = None
) -> dict[str, Any]:
    """Write an encoder for timm, transformers, ONNX or torchvision.

    Each format is compared with the encoder on images of its run, and a README.md says how to load it.

    Parameters
    ----------
    encoder
        a run folder, or any encoder that evaluate takes
    out
        the folder to make
    format
        some of hf, onnx, pt2 and torchvision (default: every one that can hold the encoder)

    Returns
    -------
    dict
        the files of each format, and how far its features differ

    Examples
    --------
    $ supancl export runs/photos --out photos-encoder
    $ supancl export runs/photos --out photos-encoder --format hf,onnx
    """
    names = list(dict.fromkeys([format] if isinstance(format, str) else format or FORMAT_NAMES))
    for name in names:
        if name not in FORMAT_NAMES:
            raise BadInput(f"format {name}: no such format{did_you_mean(name, FORMAT_NAMES)}")
    output = Output(Path(out)).check()
    (evaluated,) = open_encoders(encoder, {"device": "cpu", "no_cache": True}, saves_results=False)
    from supancl.use.card import write_card
    from supancl.use.exporting import CannotHold, prepare, write_and_check

    evaluated.encoder.eval()
    written: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    with output.folder() as folder:
        exported = prepare(evaluated, folder)
        for name in track(names, "writing formats and comparing them"):
            try:
                written[name] = write_and_check(exported, name)
            except CannotHold as error:
                if format is not None:
                    raise BadInput(f"format {name}: {error}; leave format out for every format that works") from None
                left_out[name] = str(error)
        if not written:
            raise BadInput(f"{exported.encoder.spec.name}: no format can hold it ({left_out})")
        write_card(output.path.name, evaluated, exported, written).save(folder / "README.md")
    spec = exported.encoder.spec
    say(
        f"{out}: {spec.name}, {exported.encoder.width} features; each format compared with the encoder on "
        f"{exported.origin}"
    )
    for name, row in written.items():
        size = sum(row["files"].values()) / 1e6
        say(f"{name}: {', '.join(row['files'])}, {size:.1f} MB; largest difference {row['difference']:.1e}")
    for name, why in left_out.items():
        say(f"left out: {name} ({why})")
    say(f"{out}/README.md says how to load each; the weights belong to whoever trained them")
    return {
        "encoder": evaluated.location,
        "out": str(out),
        "architecture": spec.name,
        "channels": spec.channels,
        "size": spec.size,
        "width": exported.encoder.width,
        "formats": written,
        "left_out": left_out,
        "compared_on": exported.origin,
    }


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
