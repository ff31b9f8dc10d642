"""`supancl export`: one folder with an encoder in every format, each loaded back and compared before it is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from supancl.detection.saving import is_detector
from supancl.errors import BadInput, program_name
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions, open_evaluated_encoder
from supancl.files import (
    describe_write_failure,
    left_over_files,
    make_folder,
    reason,
    sync_folder,
    temporary_path,
    write_text,
)
from supancl.reporter import Reporter, track
from supancl.runs.encoder_file import (
    EXPORTED_FILE,
    encoder_metadata,
    find_encoder_file,
    is_exported,
    read_header,
)
from supancl.use.card import CARD, write_card
from supancl.use.exported import MAKE_ROOM, CannotHold, ExportedEncoder
from supancl.use.formats import FORMATS, Written, describe_missing, write_and_check
from supancl.use.images import read_check_images
from supancl.use.names import check_formats, check_out


def export_encoder(
    location: str | Path,
    out: str | Path,
    formats: Sequence[str] | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Write the encoder of a run to the new folder `out`, and describe what was written and compared.

    `location` is anything that `open_encoder` takes. `formats` are names of FORMATS; each of them must work. Without
    it, every format is written that can hold this encoder and whose packages are installed.
    """
    folder, names = Path(out), list(FORMATS) if formats is None else check_formats(formats)
    check_out(folder)
    for name in names if formats is not None else ():  # before any work
        if missing := describe_missing(FORMATS[name].packages, FORMATS[name].extra):
            raise BadInput(f"format {name}: {missing}")
    if Path(location).exists() and is_detector(Path(location)):
        raise BadInput(
            f"{location} is a detector; export it with: {program_name()} detect export {location} --out FILE.pth"
        )
    options = EvaluationOptions(torch.device("cpu"), cache_features=False)
    evaluated = open_evaluated_encoder(str(location), options)
    with _temporary_folder(folder) as temporary:
        exported = _prepare(evaluated, temporary)
        written, left_out = _write_formats(exported, names, is_choice=formats is not None)
        write_text(temporary / CARD, write_card(folder.name, evaluated, exported, written), MAKE_ROOM)
    return _describe(evaluated, folder, exported, written, left_out)


@contextlib.contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name at the end; after an error nothing is left of it."""
    new_parents = [path for path in folder.absolute().parents if not path.exists()]
    make_folder(folder.parent)
    for path in left_over_files(folder.parent):  # of an export that was killed
        if path.is_dir() and not path.is_symlink() and path.name.startswith(f".{folder.name}."):
            shutil.rmtree(path, ignore_errors=True)
    temporary = temporary_path(folder)
    make_folder(temporary, exist_ok=False)
    try:
        yield temporary
        check_out(folder)  # someone may have made it in the meantime
        try:
            os.rename(temporary, folder)
        except OSError as error:
            raise BadInput(describe_write_failure(folder, reason(error), MAKE_ROOM)) from None
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # folders that hold something are kept
            for path in new_parents:
                path.rmdir()


def _prepare(evaluated: EvaluatedEncoder, folder: Path) -> ExportedEncoder:
    metadata = _read_metadata(Path(evaluated.location))
    if "encoder" not in metadata:  # another library's file
        metadata = encoder_metadata(folder / EXPORTED_FILE, evaluated.encoder, (), f"export:{evaluated.label}")
    return ExportedEncoder(evaluated.encoder, metadata, read_check_images(evaluated, metadata), folder, evaluated.label)


def _read_metadata(location: Path) -> dict[str, str]:
    """The metadata of an encoder that supancl wrote: they go with the weights. Of other files, nothing of use."""
    if (location / "encoder.safetensors").exists() or is_exported(location):
        location = find_encoder_file(location)
    return read_header(location)[0] if location.is_file() and location.suffix == ".safetensors" else {}


def _write_formats(
    exported: ExportedEncoder, names: Sequence[str], is_choice: bool
) -> tuple[dict[str, Written], dict[str, str]]:
    """What was written, and why other formats were left out. A format that the user chose must work."""
    written: dict[str, Written] = {}
    left_out: dict[str, str] = {}
    for name in track(names, "writing formats and comparing them"):
        try:
            written[name] = write_and_check(exported, FORMATS[name])
        except CannotHold as error:
            if is_choice:
                raise BadInput(f"format {name}: {error}; leave format out for every format that works") from None
            left_out[name] = str(error)
    if not written:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise BadInput(f"{exported.encoder.spec.name}: no format can hold it ({reasons})")
    return written, left_out


def _describe(
    evaluated: EvaluatedEncoder,
    folder: Path,
    exported: ExportedEncoder,
    written: dict[str, Written],
    left_out: dict[str, str],
) -> dict[str, Any]:
    spec = exported.encoder.spec
    return {
        "encoder": evaluated.location,
        "out": str(folder),
        "architecture": spec.name,
        "channels": spec.channels,
        "size": spec.size,
        "width": exported.encoder.width,
        "formats": {
            name: {"files": row.files, "differences": row.differences, "not_loaded": row.not_loaded}
            for name, row in written.items()
        },
        "left_out": left_out,
        "compared_on": exported.images.origin,
    }
