"""`export`: write an encoder for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from supancl.config import FLAG
from supancl.reporter import current_reporter, say
from supancl.runs.hub import split_encoder_name
from supancl.use.evaluate import EncoderArgument
from supancl.use.names import check_formats, check_out


def export(
    encoder: EncoderArgument, out: Annotated[str | Path, FLAG], *, format: tuple[str, ...] | str | None = None
) -> dict[str, Any]:
    """Write an encoder for timm, transformers, ONNX, torchvision or torch.export.

    Each format is compared with the encoder, and a README.md says how to load it.

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
    names = [format] if isinstance(format, str) else format
    formats = None if names is None else check_formats(list(names))
    check_out(Path(out))
    location = str(getattr(encoder, "folder", encoder))
    split_encoder_name(location)
    from supancl.use.exporting import export_encoder

    result = export_encoder(location, out, formats, current_reporter())
    say(
        f"{result['out']}: {result['architecture']}, {result['width']} features; each format compared with the run on "
        f"{result['compared_on']}"
    )
    for name, row in result["formats"].items():
        size = sum(row["files"].values()) / 1e6
        ways = [
            f"{way} ({f'difference {difference:.1e}' if difference else 'equal'})"
            for way, difference in row["differences"].items()
        ]
        say(f"{name}: {', '.join(row['files'])}, {size:.1f} MB; loads with {', '.join(ways)}")
        for way, why in row["not_loaded"].items():
            say(f"  not loaded with {way}: {why}")
    for name, why in result["left_out"].items():
        say(f"left out: {name} ({why})")
    say(f"{result['out']}/README.md says how to load each; the weights belong to whoever trained them")
    return result
