"""Continue a finished run in a new folder: its checkpoint, log and settings are copied, with more epochs.

The new folder is that of a run that was stopped at the last step of the old one. From there on it resumes like any
other run, and never needs the old folder again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from supancl.config import INCIDENTAL, MAY_CHANGE_ON_RESUME, fields_marked, flattened, parse_json, to_json
from supancl.core.schedules import learning_rate
from supancl.data.opening import check_source
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import Data
from supancl.distributed import from_environment
from supancl.errors import BadInput, plural
from supancl.files import make_folder, open_regular, read_text, reason, temporary_path, write_bytes, write_sealed_json
from supancl.recipes import Recipe
from supancl.recipes.recipe import fixed_settings
from supancl.reporter import Reporter
from supancl.training.preflight import is_same_or_moved, run_folder_for
from supancl.training.pretrain import Run, pretrain
from supancl.weights.checkpoint import load_newest, save_checkpoint
from supancl.weights.provenance import commit, versions
from supancl.weights.run_folder import RunFolder, name_run


def extend_run(
    run: Path | str,
    epochs: int,
    out: Path | str | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    data: Data | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """`supancl.extend_run` with opened data; None: the run's source."""
    if from_environment().rank == 0:  # other ranks wait for it when they join
        reporter = reporter or Reporter()
        out = start_extension(RunFolder(Path(run)), epochs, out, changes or {}, reporter, reads_source=data is None)
    return pretrain(None, data, out, resume=True, reporter=reporter)


def start_extension(
    run: RunFolder,
    epochs: int,
    out: Path | str | None,
    changes: Mapping[str, Any],
    reporter: Reporter,
    reads_source: bool = False,
) -> Path:
    """Make the folder of the extended run, whole or not at all; returns its path.

    If the run will read its source, and that is gone, nothing is made.
    """
    base, _ = run.read_recipe()
    run.check_recipe_file()
    state = load_last_state(run, base)
    recipe = extended_recipe(base, epochs, changes, run)
    for source in recipe.data.all_sources if reads_source else ():
        check_source(source)
    folder = run_folder_for(recipe, out)
    folder.check_place()
    folder.check_free(resume=False)
    check_out_folder(recipe.data.source, folder.path)
    make_folder(folder.path.parent)
    temporary = temporary_path(folder.path)
    try:
        write_extension(RunFolder(temporary), run, recipe, base, state)
        os.rename(temporary, folder.path)
    except OSError as error:
        raise BadInput(f"cannot write to {folder.path} ({reason(error)}); choose another --out") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    rate = recipe.learning_rate * recipe.schedule.restart_rate
    falls = "" if recipe.schedule.decay == "constant" else ", and falls to zero by a cosine"
    reporter.note(
        f"{run.path} ({plural(base.train.epochs, 'epoch')}) continues to epoch {epochs} in {folder.path}: the "
        f"learning rate starts again at {rate:.4g}, {recipe.schedule.restart_rate:.3g} of its peak "
        f"(schedule.restart_rate){falls}"
    )
    return folder.path


def load_last_state(run: RunFolder, base: Recipe) -> dict[str, Any]:
    """The last checkpoint of a finished run; refuses one that is unfinished or keeps none."""
    early = run.describe_early_end(base)
    if early:
        raise BadInput(f"{run.path} is not finished ({early}); finish it first: --resume --out {run.path}")
    state, _ = load_newest(run.checkpoints)
    if state is None:
        raise BadInput(
            f"{run.path} keeps no checkpoint to continue from (train.keep=none); start another run from its "
            f"encoder with --init {run.path}"
        )
    if any(row["step"] != state["step"] for row in run.metrics()[-1:]):
        raise BadInput(
            f"{run.path}: its newest intact checkpoint is of step {state['step']}, before its end; repeat the last "
            f"steps with --resume --out {run.path}"
        )
    return state


def extended_recipe(base: Recipe, epochs: int, changes: Mapping[str, Any], run: RunFolder) -> Recipe:
    """The recipe of the run with more epochs and a schedule that starts again at its end."""
    before = base.train.epochs
    if epochs <= before:
        raise BadInput(f"--epochs {epochs}: {run.path} has {plural(before, 'epoch')} already; name more than that")
    for key, value in changes.items():
        check_may_change(key, value, base, run)
    planned = learning_rate(replace(base.schedule, restart_epoch=0), 1.0, epochs, 1)
    extension = {
        "train.epochs": epochs,
        "schedule.restart_epoch": before,
        "schedule.restart_rate": float(f"{planned(before):.4g}"),
    }
    extended = base.with_set(extension, because=f"extends {run.path.resolve()}")
    return extended.with_set(changes) if changes else extended


def check_may_change(key: str, value: Any, base: Recipe, run: RunFolder) -> None:
    """Refuse a setting that would change what the run has learned so far."""
    may_change = {*fields_marked(base, MAY_CHANGE_ON_RESUME), *fields_marked(base.train, INCIDENTAL, "train")}
    if key in may_change - {"train.seed"} or key == "schedule.restart_rate":
        return
    if key == "data.source" and is_same_or_moved(str(value), base.data.source):
        return
    if flattened(base.with_set({key: value})).get(key) != flattened(base).get(key):
        raise BadInput(
            f"{key} = {value!r}: a run is extended with its own settings; to change them, start another run with "
            f"--init {run.path}"
        )


def write_extension(folder: RunFolder, run: RunFolder, recipe: Recipe, base: Recipe, state: Mapping[str, Any]) -> None:
    """Write what `--resume` needs. Versions stay those of the first start, because pixels were read with them."""
    folder.checkpoints.mkdir(parents=True)
    for old, new in ((run.metrics_file, folder.metrics_file), (run.content_file, folder.content_file)):
        if old.exists():
            with open_regular(old) as file:
                write_bytes(new, file.read())
    content = parse_json(read_text(run.recipe_file))
    content["recipe"] = to_json(recipe)
    data, classes = run.read_data()
    content["run"] = name_run(recipe, classes, data)
    content["extended_from"] = {
        "run": str(run.path.resolve()),
        "epochs": base.train.epochs,
        "step": state["step"],
        "learning_rate": float(f"{recipe.learning_rate * recipe.schedule.restart_rate:.6g}"),
        "versions": versions(),
        "commit": commit(),
    }
    write_sealed_json(folder.recipe_file, content)
    kept_state = {key: value for key, value in state.items() if key not in ("schema_version", "digest")}
    save_checkpoint(folder.checkpoints, state["step"], {**kept_state, "settings": fixed_settings(recipe)})
