"""A sha256 of every file of a source, to find out later whether any of them has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supancl.config import parse_json
from supancl.data.decode import map_in_order
from supancl.data.sources import csv_table
from supancl.data.sources.tars import find_tars, is_tar
from supancl.errors import BadInput
from supancl.files import digest, is_as_written, read_text, reason, write_sealed_json
from supancl.reporter import track


@dataclass(frozen=True)
class Comparison:
    """Files of a source by what became of them since their digests were written."""

    same: int
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        return not (self.changed or self.missing or self.new)


def digest_files(source: str) -> dict[str, str]:
    """Name below the source's folder -> sha256, of every file of a folder, .csv, .npz or of tar shards."""
    root, files = _list_files(source)
    digests: dict[str, str] = {}
    for file, value in track(zip(files, map_in_order(_try_digest, files), strict=True), "reading files", len(files)):
        digests[file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)] = value
    return digests


def _try_digest(file: Path) -> str:
    try:
        return digest(file)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({reason(error)}); restore it, or check its permissions") from None


def _list_files(source: str) -> tuple[Path, Sequence[Path]]:
    """The folder of a source, and its files."""
    if is_tar(source):
        tars = find_tars(source)
        return tars[0].parent, tars
    path = Path(source)
    if path.is_dir():
        return path, sorted(file for file in path.rglob("*") if file.is_file())
    if path.suffix.lower() == ".csv" and path.is_file():
        images = [item for _, item, _ in csv_table.list_csv(path).entries if isinstance(item, Path)]
        return path.parent, [path, *sorted(set(images))]
    if path.is_file():
        return path.parent, [path]
    raise BadInput(f"{source}: only files have digests; give a folder, a .csv, a .npz or tar shards")


def write_digests(path: Path, digests: Mapping[str, str]) -> None:
    write_sealed_json(path, {"sha256": dict(digests)})


def compare_digests(path: Path, digests: Mapping[str, str]) -> Comparison:
    """The files now, compared with the digests that were written to `path`."""
    try:
        content = parse_json(read_text(path))
        before = {str(name): str(value) for name, value in content["sha256"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{path}: not a file of digests; give one that hash wrote, or a new name") from None
    if not is_as_written(content):
        raise BadInput(f"{path} is damaged: it differs from its digest; restore it, or give a new name")
    return Comparison(
        same=sum(before.get(name) == value for name, value in digests.items()),
        changed=sorted(name for name, value in digests.items() if before.get(name, value) != value),
        missing=sorted(set(before) - set(digests)),
        new=sorted(set(digests) - set(before)),
    )
