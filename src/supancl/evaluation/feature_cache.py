"""A cache of features on disk. The key covers weights, pixels, view and layer, so entries are never stale."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from supancl.config import to_json
from supancl.core.encoders import Encoder, EncoderSpec
from supancl.data.splits import Split
from supancl.data.store.cache import FEATURES_FOLDER, cache_root
from supancl.errors import BadInput
from supancl.files import (
    check_regular,
    make_inner_folder,
    reason,
    remove_left_over_files,
    why_unwritable,
    write_atomically,
)

VERSION = 2  # of results: 2 since crops begin at whole pixels
CACHE_VERSION = 4  # of features that are kept: 4 since images are known by their checksums


def encoder_key(encoder: Encoder) -> str:
    """A checksum of the architecture and every weight.

    Settings with default values are left out, so that a new setting does not change the keys of existing encoders.
    """
    usual = to_json(EncoderSpec())
    spec = {key: value for key, value in to_json(encoder.spec).items() if key == "name" or value != usual[key]}
    return weights_key(encoder.body.state_dict(), json.dumps(spec, sort_keys=True))


def weights_key(tensors: Mapping[str, Tensor], architecture: str = "") -> str:
    """A checksum of named tensors and a description of their architecture."""
    content = hashlib.sha256(architecture.encode())
    for name, value in sorted(tensors.items()):
        content.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        content.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:24]


def pixels_key(split: Split) -> str | None:
    """A checksum of the images in order; None if changes cannot be detected."""
    checksums = split.store.pixel_checksums(split.index.cpu())
    return None if checksums is None else hashlib.sha256(checksums.tobytes()).hexdigest()[:24]


def _checksum(path: Path, values: Tensor) -> str:
    """Of the values and of the file's name, which is their key."""
    return str(zlib.crc32(values.numpy().data, zlib.crc32(path.name.encode())))


class FeatureCache:
    """A folder of features in the cache; above `max_bytes` the least recently used are removed."""

    def __init__(self, root: Path | None = None, max_bytes: float = 20e9) -> None:
        self.folder, self.max_bytes = (root or cache_root()) / FEATURES_FOLDER, max_bytes

    def path(self, weights: str, split: Split, settings: str) -> Path | None:
        """The file for the features of this split: `weights` is the encoder's key, `settings` has view and layer."""
        pixels = pixels_key(split)
        if pixels is None:
            return None
        key = hashlib.sha256(json.dumps([CACHE_VERSION, weights, pixels, settings]).encode()).hexdigest()[:24]
        return self.folder / f"{key}.safetensors"

    def read(self, path: Path, rows: int) -> Tensor | None:
        """The features, or None if they are missing or damaged."""
        try:
            check_regular(path)
            with safe_open(path, framework="pt") as handle:
                values: Tensor = handle.get_tensor("values")
                checksum = (handle.metadata() or {}).get("crc32")
        except (OSError, SafetensorError):
            return None
        if values.ndim != 2 or len(values) != rows or checksum != _checksum(path, values):
            return None
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)  # last used
        return values

    def write(self, path: Path, values: Tensor) -> str:
        """Store features; returns why that failed, else an empty string: evaluation works without a cache."""
        values = values.contiguous()
        metadata = {"crc32": _checksum(path, values)}
        try:
            make_inner_folder(self.folder)
            write_atomically(path, lambda temporary: save_file({"values": values}, temporary, metadata=metadata))
        except (OSError, BadInput) as error:
            return why_unwritable(self.folder) or reason(error)
        remove_left_over_files(self.folder)
        with contextlib.suppress(OSError):
            self._make_room(path)
        return ""

    def _make_room(self, newest: Path) -> None:
        files = [
            (status.st_mtime, status.st_size, path)
            for path in self.folder.iterdir()
            if (status := path.stat()) and path != newest and not path.name.startswith(".")
        ]
        total = newest.stat().st_size + sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
