"""Continuing a run: what may differ from its recipe.json, and a finished run that is extended in another folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from supancl.config import AUTOMATIC, INCIDENTAL, MAY_CHANGE_ON_RESUME, fields_marked, flattened, parse_json, to_json
from supancl.core.schedules import learning_rate
from supancl.data.opening import absolute_source, check_source, is_same_source
from supancl.data.sources.folder import check_out_folder
from supancl.distributed import from_environment
from supancl.errors import BadInput
from supancl.files import make_folder, open_regular, read_text, reason, temporary_path, write_bytes, write_sealed_json
from supancl.recipes import Recipe
from supancl.recipes.auto import open_settings, with_short_side
from supancl.recipes.recipe import TrainSpec, fixed_settings, resolve_warmup
from supancl.recipes.shorthands import full_name
from supancl.reporter import current_reporter
from supancl.runs.folder import RunFolder, is_same_or_moved, name_run, next_folder
from supancl.runs.provenance import commit, versions


def run_folder_for(recipe: Recipe | None, out: Path | str | None) -> RunFolder:
    if out is None and recipe is None:
        raise BadInput("resume continues the run in out; name it")
    return RunFolder(Path(out) if out is not None else next_folder(recipe.name))  # type: ignore[union-attr]


def continued_recipe(folder: RunFolder, recipe: Recipe | None) -> Recipe:
    """The recipe of a resumed run: its recipe.json, with the few settings that may change if they are requested."""
    saved, _ = folder.read_recipe()
    if recipe is None:
        return saved
    images = folder.read_data()[0].get("train")
    requested = with_short_side(resolve_warmup(recipe, images if isinstance(images, int) else None))
    old, new = flattened(replace(saved, sources={})), flattened(replace(requested, sources={}))
    may_change = {*fields_marked(recipe, MAY_CHANGE_ON_RESUME), *open_settings(recipe)}
    for key, value in {"train.epochs": new["train.epochs"], **new}.items():  # first: a warm-up may follow from it
        if key in may_change:
            continue
        same_or_moved = key in ("data.source", "data.joined") and is_same_or_moved(value, old.get(key))
        if not same_or_moved and not is_same_or_automatic(key, value, old.get(key)):
            longer = f"to train longer, extend the finished run {folder.path} in another folder"
            advice = longer if key == "train.epochs" else f"start another run with init {folder.path} and another out"
            raise BadInput(
                f"{key} = {value!r} differs from {old.get(key)!r} in {folder.recipe_file}; a run continues with its "
                f"own settings: {advice}"
            )
    changed = changed_settings(recipe, saved)
    if not all(map(is_same_source, recipe.data.all_sources, saved.data.all_sources)):
        for source in recipe.data.all_sources:
            check_out_folder(source, folder.path)
        changed["data.source"], *joined = map(absolute_source, recipe.data.all_sources)
        changed["data.joined"] = tuple(joined)
    return saved.with_set(changed, because="changed on resume") if changed else saved


def is_same_or_automatic(key: str, requested: Any, saved: Any) -> bool:
    """Whether a requested setting is the saved one of a run, or left to be chosen automatically."""
    automatic = fields_marked(TrainSpec(), AUTOMATIC, "train")
    return bool(requested == saved) or (key in automatic and requested == automatic[key])


def changed_settings(recipe: Recipe, saved: Recipe) -> dict[str, Any]:
    """Settings that may change on resume, were requested, and differ from the saved ones."""
    old, new = flattened(saved), flattened(recipe)
    return {
        key: new[key]
        for key, default in fields_marked(recipe, MAY_CHANGE_ON_RESUME).items()
        if new[key] not in (None, old[key]) and (new[key] != default or key in recipe.sources)
    }


def extend_run(
    run: RunFolder,
    out: Path | str | None,
    recipe: Any,
    init: Any,
    compat: Any,
    given: Mapping[str, Any],
    reads_source: bool,
) -> Path | str | None:
    """Make a folder like that of a run that was stopped at the last step of `run`, whole or not at all.

    The caller resumes it. Other ranks wait for it when they join.
    """
    for name, value in (("recipe", recipe), ("init", init), ("compat", compat)):
        if value is not None:
            raise BadInput(f"extend {run.path} continues that run with its own settings; leave out {name} {value}")
    if from_environment().rank > 0:
        return out
    base, _ = run.read_recipe()
    changes = {full_name(base, name): value for name, value in given.items()}
    epochs = changes.pop("train.epochs", None)
    if not isinstance(epochs, int):
        raise BadInput(f"extend {run.path}: give epochs, the epoch to continue to, counted from the first")
    run.check_recipe_file()
    state = load_last_state(run, base)
    recipe = extended_recipe(base, epochs, changes, run)
    for source in recipe.data.all_sources if reads_source else ():
        check_source(source)
    folder = run_folder_for(recipe, out)
    folder.check_free(resume=False)
    check_out_folder(recipe.data.source, folder.path)
    make_folder(folder.path.parent)
    temporary = temporary_path(folder.path)
    try:
        write_extension(RunFolder(temporary), run, recipe, base, state)
        os.rename(temporary, folder.path)
    except OSError as error:
        raise BadInput(f"cannot write to {folder.path} ({reason(error)}); choose another out") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    rate = recipe.learning_rate * recipe.schedule.restart_rate
    current_reporter().note(
        f"{run.path} continues to epoch {epochs} in {folder.path}: the learning rate starts again at {rate:.4g}, "
        f"{recipe.schedule.restart_rate:.3g} of its peak (schedule.restart_rate)"
    )
    return folder.path


def load_last_state(run: RunFolder, base: Recipe) -> dict[str, Any]:
    """The last checkpoint of a finished run; refuses one that is unfinished or keeps none."""
    from supancl.runs.checkpoint import load_newest

    if early := run.describe_early_end(base):
        raise BadInput(f"{run.path} is not finished ({early}); resume it first")
    state, _ = load_newest(run.checkpoints)
    if state is None:
        raise BadInput(f"{run.path} keeps no checkpoint to continue from; start another run with init {run.path}")
    if any(row["step"] != state["step"] for row in run.metrics()[-1:]):
        raise BadInput(f"{run.path}: its newest checkpoint is of step {state['step']}, before its end; resume it first")
    return state


def extended_recipe(base: Recipe, epochs: int, changes: Mapping[str, Any], run: RunFolder) -> Recipe:
    """The recipe of the run with more epochs and a schedule that starts again at its end."""
    before = base.train.epochs
    if epochs <= before:
        raise BadInput(f"epochs = {epochs}: {run.path} has {before} already; name more than that")
    may_change = {*fields_marked(base, MAY_CHANGE_ON_RESUME), *fields_marked(base.train, INCIDENTAL, "train")}
    may_change = (may_change - {"train.seed"}) | {"schedule.restart_rate"}
    for key, value in changes.items():
        is_moved = key == "data.source" and is_same_or_moved(str(value), base.data.source)
        if key in may_change or is_moved:
            continue
        if flattened(base.with_set({key: value})).get(key) != flattened(base).get(key):
            raise BadInput(
                f"{key} = {value!r}: a run is extended with its own settings; to change them, start another run with "
                f"init {run.path}"
            )
    planned = learning_rate(replace(base.schedule, restart_epoch=0), 1.0, epochs, 1)
    extension = {
        "train.epochs": epochs,
        "schedule.restart_epoch": before,
        "schedule.restart_rate": float(f"{planned(before):.4g}"),
    }
    extended = base.with_set(extension, because=f"extends {run.path.resolve()}")
    return extended.with_set(dict(changes)) if changes else extended


def write_extension(folder: RunFolder, run: RunFolder, recipe: Recipe, base: Recipe, state: Mapping[str, Any]) -> None:
    """Write what `resume` needs. Versions stay those of the first start, because pixels were read with them."""
    from supancl.runs.checkpoint import save_checkpoint

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
