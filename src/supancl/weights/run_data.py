"""Whether a run's data are still those that it was begun with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from supancl.data.content import Content, read_content
from supancl.data.opening import is_same_source
from supancl.data.sources.tars import find_tars, is_tar
from supancl.data.splits import Data
from supancl.errors import BadInput, plural
from supancl.weights.provenance import versions
from supancl.weights.run_folder import RunFolder

RESTORE = "restore them, or start another run"


def check_same_data(folder: RunFolder, data: Data, way_out: str = RESTORE, prefix: str = "") -> None:
    """Refuse data that have changed since the run began: order, labels and held-out images depend on them."""
    saved, classes = folder.read_data()
    changed = f"{prefix}the data have changed since the run began"
    for key in ("classes", "train", "labelled", "held_out"):
        now = data.summary[key]
        if key in saved and saved[key] != now:
            raise BadInput(f"{changed}: {key.replace('_', ' ')} {now}, was {saved[key]}; {way_out}")
    if classes != data.classes or saved.get("fingerprint", "") not in ("", data.summary["fingerprint"]):
        raise BadInput(f"{changed}: other class names, files or labels; {way_out}")


def describe_content(content: Content | None) -> dict[str, object]:
    """What recipe.json says of the content of the images, and of how it was taken."""
    if content is None:
        return {}
    how = {"pixels": "every pixel", "shards": "size of each shard and bytes sampled from it"}[content.kind]
    return {"content": content.digest, "content_of": how}


def check_same_content(folder: RunFolder, data: Data, way_out: str = RESTORE) -> list[str]:
    """Refuse images that were replaced under the same names since the run began; returns remarks.

    Only the content counts: data may have been moved or copied.
    """
    saved, current = folder.read_data()[0].get("content"), data.content
    if saved is None or current is None:
        return [f"{folder.recipe_file} has no checksum of the images, so images that were replaced would go unnoticed"]
    before = read_content(folder.content_file)
    if saved == current.digest:
        if not current.has_other_stamps(before):
            return []
        return ["shards have another time or inode than when the run began; their sizes and sampled bytes are the same"]
    names = current.changed_names(before)
    count = plural(len(names), "image or shard", "images or shards") if names else "images"
    example = f", such as {names[0]}" if names else ""
    changed = f"the content of {count} has changed since the run began{example}"
    decoder, this_decoder = folder.read_versions().get("pillow"), versions().get("pillow")
    if decoder != this_decoder and current.kind == "pixels":
        return [f"{changed}; that may be pillow, which was {decoder} and is {this_decoder}"]
    raise BadInput(f"{changed}; {way_out}")


def is_same_or_moved(requested: Any, saved: Any) -> bool:
    """Whether a run may continue with this source: the saved one, or any if the saved one no longer exists.

    Of several joined sources, each is compared with the saved one in its place. Once the data are read,
    `check_same_data` compares file names and labels.
    """
    if not isinstance(requested, str):
        return len(requested) == len(saved or ()) and all(map(is_same_or_moved, requested, saved or ()))
    return is_same_source(requested, saved) or _is_gone(saved)


def _is_gone(source: str) -> bool:
    """Whether a source saved with an absolute path (also NAME@ROOT and hf:PATH) no longer exists."""
    root = source if Path(source).is_absolute() else source.partition("@")[2] or source.removeprefix("hf:")
    if not Path(root).is_absolute() or Path(root).exists():
        return False
    try:
        return not (is_tar(root) and find_tars(root))  # {000..009}.tar is a pattern
    except BadInput:
        return True
