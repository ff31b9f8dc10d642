"""What can be deleted below a folder of runs: checkpoints of finished runs, left-over temporary files, unused caches.

Unfinished runs, folders that a process holds, and links are never touched.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from supancl.data.store.cache_folders import list_caches, remove_cache
from supancl.errors import BadInput, plural
from supancl.files import LEFT_OVER_AGE, is_locked, reason
from supancl.weights.encoder_file import is_readable
from supancl.weights.run_end import RunEnd, has_collapsed, record_end
from supancl.weights.run_folder import RunFolder
from supancl.weights.run_list import INNER_FOLDERS, ListedRun, describe_run, find_listed_runs, folder_bytes

TEMPORARY_NAME = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")  # files.temporary_path
UNUSED_DAYS = 30  # after which a cache may go: decoding again takes minutes


class Deletion(NamedTuple):
    """Files that may be deleted together, and why."""

    kind: str  # checkpoints, temporary or cache
    path: Path  # the run, the file or the cache
    files: int
    nbytes: int
    why: str


class Plan(NamedTuple):
    """What may be deleted, and remarks on what must stay although it looks like it."""

    deletions: list[Deletion]
    remarks: list[str]


def plan_pruning(folder: Path, caches: bool = True) -> Plan:
    """What could be deleted below a folder; nothing is deleted."""
    plan = Plan([], [])
    runs = find_listed_runs(folder)
    for run in runs:
        if run.recipe != "detector" and run.finished and run.state != "running":
            _plan_run(run, plan)
    unfinished = [run.path for run in runs if not run.finished or run.state == "running"]
    plan.deletions.extend(_temporary_deletions(folder, unfinished))
    plan.deletions.extend(_cache_deletions() if caches else ())
    return plan


def _plan_run(run: ListedRun, plan: Plan) -> None:
    folder = RunFolder(run.path)
    files, links = _own_files(folder)
    plan.remarks.extend(f"{path} is a link and stays" for path in links)
    if not files:
        return
    if not is_readable(folder.encoder):
        plan.remarks.append(
            f"{run.path}: its checkpoint stays, because encoder.safetensors is missing or damaged; write it again "
            f"with: supancl pretrain --resume --out {run.path}"
        )
        return
    nbytes = sum(path.lstat().st_size for path in files)
    plan.deletions.append(Deletion("checkpoints", run.path, len(files), nbytes, "finished; its encoder stays"))


def _own_files(folder: RunFolder) -> tuple[list[Path], list[Path]]:
    """The checkpoints of a run, and the links in their place."""
    if folder.checkpoints.is_symlink():
        return [], [folder.checkpoints]
    files = folder.checkpoint_files()
    links = [path for path in files if path.is_symlink()]
    return ([] if links else files), links


def _temporary_deletions(folder: Path, unfinished: list[Path]) -> Iterator[Deletion]:
    """Half-written files and folders of killed processes, outside of runs that are unfinished."""
    for path, folders, files in os.walk(folder):
        here = Path(path)
        if here in unfinished:
            folders[:] = [name for name in folders if name not in INNER_FOLDERS]
            continue
        for name in (*folders, *files):
            if TEMPORARY_NAME.fullmatch(name) and not (here / name).is_symlink() and _is_old(here / name):
                nbytes = folder_bytes(here / name) if name in folders else (here / name).lstat().st_size
                yield Deletion("temporary", here / name, 1, nbytes, "left over by a process that was killed")
        folders[:] = [name for name in folders if not name.startswith(".")]


def _is_old(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime >= LEFT_OVER_AGE
    return False


def _cache_deletions() -> Iterator[Deletion]:
    for cache in list_caches():
        days = (time.time() - cache.last_used) / 86400
        if days >= UNUSED_DAYS and not cache.folder.is_symlink() and not is_locked(cache.folder / ".lock"):
            why = f"cache of {cache.source}, unused for {plural(int(days), 'day')}"
            files = sum(path.is_file() for path in cache.folder.iterdir())
            yield Deletion("cache", cache.folder, files, cache.nbytes, why)


def delete(deletion: Deletion) -> str:
    """Delete what a plan names, if that still holds; returns why not, or an empty string."""
    try:
        if deletion.kind == "checkpoints":
            _delete_checkpoints(deletion.path)
        elif deletion.kind == "cache":
            remove_cache(deletion.path, _refuse_to_wait)
        elif deletion.path.is_dir():
            shutil.rmtree(deletion.path)
        else:
            deletion.path.unlink(missing_ok=True)
    except OSError as error:
        return f"{deletion.path} stays ({reason(error)})"
    except BadInput as error:
        return f"{deletion.path} stays ({error})"
    return ""


def _delete_checkpoints(path: Path) -> None:
    """Remove a run's checkpoints while nobody else may write there; finished.json then says that it is finished."""
    folder = RunFolder(path)
    folder.check_links()
    with folder.lock():
        run = describe_run(path)
        if run.end_step is None or _own_files(folder)[1]:
            raise BadInput("it has changed in the meantime")
        record_end(folder, RunEnd(run.end_step, bool(has_collapsed(folder))), keep="none")


def _refuse_to_wait(owner: str) -> None:
    raise BadInput(f"in use by process {owner}")
