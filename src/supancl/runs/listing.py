"""Which runs are below a folder, and how each of them stands. Nothing is loaded, and nothing is trusted."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import parse_json
from supancl.errors import BadInput
from supancl.files import is_locked, read_json, read_text, reason
from supancl.reporter import track
from supancl.runs.folder import RunFolder
from supancl.runs.log import peek_collapsed, read_end, read_rows

INNER_FOLDERS = ("checkpoints", "tensorboard", "evaluate", "loggers", "wandb", "mlruns")  # of a run
OWN_DATA = re.compile(r"(?:knn(?:-k\d+)?|linear)\.json")  # results on the run's own held-out images


class Accuracy(NamedTuple):
    """In percent, and of how many images; None if that is not known. Of several labels it is mean average precision."""

    percent: float | None
    images: int | None
    is_map: bool = False


@dataclass(frozen=True)
class ListedRun:
    """A run as a list shows it; what is not known is None or empty."""

    path: Path
    state: str  # running, finished, collapsed, stopped at N, damaged
    recipe: str = ""
    data: str = ""
    epochs_done: int = 0
    epochs: int | None = None
    nbytes: int = 0
    last_written: float = math.nan  # in seconds since 1970
    knn: float | None = None  # in percent of held-out images
    linear: float | None = None
    tested_images: int | None = None
    has_several_labels: bool = False  # then `knn` and `linear` are mean average precision
    problem: str = ""  # of a damaged one


def find_runs(folder: Path) -> Iterator[Path]:
    """Every run folder below this one, and the folder itself if it is a run; links and hidden folders are left out."""
    for path, folders, files in os.walk(folder):
        if "recipe.json" in files or "detect.json" in files or _has_remains(Path(path), files):
            yield Path(path)
            folders[:] = [name for name in folders if name not in INNER_FOLDERS]
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _has_remains(path: Path, files: list[str]) -> bool:
    """Whether a folder without recipe.json was a run."""
    return "metrics.jsonl" in files or any((path / "checkpoints").glob("step-*.pt"))


def find_listed_runs(folder: Path) -> list[ListedRun]:
    """The runs below a folder; one that is damaged is listed with what is wrong."""
    if not folder.is_dir():
        raise BadInput(f"no folder {folder}; name the folder that holds your runs (default: runs)")
    return [describe_run(path) for path in track(list(find_runs(folder)), "reading runs")]


def describe_run(path: Path) -> ListedRun:
    """How a run stands. Never raises because of what is in the folder."""
    folder, nbytes = RunFolder(path), folder_bytes(path)
    try:
        if not folder.has_run and (path / "detect.json").exists():
            return _describe_detector(path, nbytes)
        stored = parse_json(read_text(folder.recipe_file))["recipe"]
        recipe, data, epochs = stored["name"], stored["data"]["source"], stored["train"]["epochs"]
        if not (isinstance(recipe, str) and isinstance(data, str) and isinstance(epochs, int)):
            raise ValueError("no name, data or epochs")
        rows = read_rows(folder.metrics_file)[0] if folder.metrics_file.exists() else []
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        why = f"recipe.json: {reason(error)}"
        return ListedRun(path, "damaged", nbytes=nbytes, last_written=_mtime(path), problem=why)
    is_finished = read_end(folder) is not None
    knn, linear = (_newest_accuracy(folder, rows, name) for name in ("knn", "linear"))
    last = rows[-1] if rows else {"epoch": 0}
    return ListedRun(
        path,
        _state(folder, is_finished),
        recipe,
        data,
        last["epoch"] + (last.get("kind") == "monitor" or (is_finished and bool(rows))),
        epochs,
        nbytes,
        _mtime(folder.metrics_file if folder.metrics_file.exists() else folder.recipe_file),
        knn.percent,
        linear.percent,
        linear.images or knn.images,
        knn.is_map or linear.is_map,
    )


def _state(folder: RunFolder, is_finished: bool) -> str:
    if is_locked(folder.lock_file):
        return "running"
    if peek_collapsed(folder):
        return "collapsed"
    if is_finished:
        return "finished"
    newest = folder.checkpoint_files()[-1:]
    step = newest[0].stem.removeprefix("step-").lstrip("0") if newest else ""
    return f"stopped at {step or 0}"


def _newest_accuracy(folder: RunFolder, rows: list[dict[str, Any]], name: str) -> Accuracy:
    """That of the last `supancl evaluate NAME` on the run's own data; k-NN else of the last check while training."""
    checks = [
        (row.get(key), row.get("knn_queries"), key != name)
        for row in [row for row in rows if row["kind"] == "monitor" and name == "knn"][-1:]
        for key in (f"{name}_map", name)
        if key in row
    ]
    files = [path for path in folder.evaluations.glob(f"{name}*.json") if OWN_DATA.fullmatch(path.name)]
    for path in sorted(files, key=_mtime):
        result = read_json(path)
        is_map = "map" in result
        checks.append((result.get("map" if is_map else "accuracy"), result.get("tested_images"), is_map))
    for percent, images, is_map in reversed(checks):
        if isinstance(percent, (int, float)) and math.isfinite(percent):
            return Accuracy(float(percent), images if isinstance(images, int) else None, is_map)
    return Accuracy(None, None)


def _describe_detector(path: Path, nbytes: int) -> ListedRun:
    content = parse_json(read_text(path / "detect.json"))
    is_finished = (path / "detector.safetensors").exists()
    state = "running" if is_locked(path / ".lock") else "finished" if is_finished else "stopped"
    return ListedRun(path, state, "detector", str(content["data"]["root"]), nbytes=nbytes, last_written=_mtime(path))


def folder_bytes(folder: Path) -> int:
    """The bytes of all files below a folder; of a link only its own."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # removed in the meantime
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def _mtime(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return math.nan
