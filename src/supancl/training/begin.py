"""The first moment of a run: its weights or newest checkpoint, its files, and what a user should know before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import AUTOMATIC, MAY_CHANGE_ON_RESUME, fields_marked, flattened
from supancl.data.splits import Data
from supancl.errors import BadInput
from supancl.recipes import Recipe
from supancl.recipes.recipe import first_changed_setting
from supancl.reporter import Reporter
from supancl.runs.checkpoint import Writer, load_newest
from supancl.runs.encoder_file import is_readable, save_encoder, save_projector
from supancl.runs.folder import RunFolder, check_same_content, check_same_data, describe_content
from supancl.runs.importing import describe_init, fill_encoder, load_init
from supancl.runs.log import MetricsLog, NoLog, record_stop
from supancl.runs.provenance import hardware
from supancl.training.loop import Loop
from supancl.training.monitor import check_collapsed_run
from supancl.training.trainer import Trainer

Start = Path | str | dict[str, str]  # as init names it, or as recipe.json records it


@contextmanager
def begin_run(
    trainer: Trainer, data: Data, folder: RunFolder, resume: bool, init: Path | str | None, reporter: Reporter
) -> Iterator[Loop]:
    """The loop of a run, at its first step or where it stopped. Files and threads are closed at the end."""
    with Writer() as writer:  # at its end, pending writes are finished
        recorded = trainer.ranks.on_rank0(folder.read_init) if resume else None
        # a run that ended before its first checkpoint starts again from the recorded weights
        state = _load_start(trainer, data, folder, resume, init if recorded is None else recorded, reporter)
        is_filled = state is None and recorded is None and init is not None
        start = describe_init(trainer.model.branches.encoder, str(init)) if is_filled else recorded
        about = {"init": start, "hardware": hardware(trainer.device)}
        for remark in trainer.ranks.on_rank0(lambda: _write_start(trainer, data, folder, about)):
            reporter.warn(remark)
        log = MetricsLog(folder, trainer.step if resume else None) if trainer.ranks.is_rank0 else NoLog()
        loop = Loop(trainer, data, folder, log, reporter, writer)
        try:
            if trainer.recipe.train.on_nan == "rollback" and state is None:
                loop.save()  # a checkpoint to roll back to
                loop.wait_for_writer()
            _announce(trainer, data, folder, reporter)
            if state is None and start is not None and trainer.recipe.train.monitor_every:
                loop.measure_start()
            yield loop
        except Exception as error:
            if trainer.ranks.is_rank0:
                record_stop(folder, trainer.step, error)
            raise
        finally:
            trainer.feed.close()
            log.close()
            reporter.on_end()


def _load_start(
    trainer: Trainer, data: Data, folder: RunFolder, resume: bool, init: Start | None, reporter: Reporter
) -> dict[str, Any] | None:
    """Load the initial weights or the newest checkpoint, and return that checkpoint if there is one."""
    ranks, branches = trainer.ranks, trainer.model.branches
    state = ranks.on_rank0(lambda: load_state_to_resume(folder.checkpoints, reporter)) if resume else None
    if state is None and init is not None:
        branches.encoder.load_state_dict(ranks.on_rank0(lambda: _load_initial_weights(branches.encoder, init)))
        branches.copy_to_target()
    if state is not None:
        check_same_settings(folder, state, trainer.recipe)
        ranks.on_rank0(lambda: check_same_data(folder, data))
        for remark in ranks.on_rank0(lambda: check_same_content(folder, data)):
            reporter.warn(remark)
        check_same_device(folder, state, trainer.device)
        trainer.load(state)
        if trainer.monitor.collapsed and trainer.step < trainer.steps:
            reporter.warn(check_collapsed_run(trainer.recipe, trainer.step, folder.path))
    if trainer.step < (restart := trainer.recipe.schedule.restart_epoch * trainer.steps_per_epoch):
        raise BadInput(
            f"{folder.path}: schedule.restart_epoch = {trainer.recipe.schedule.restart_epoch} is for a run that "
            f"continues another one at step {restart}, and no checkpoint of that step is here; extend that run with "
            "extend RUN, or leave the setting at 0"
        )
    return state


def _load_initial_weights(encoder: Any, init: Start) -> dict[str, Tensor]:
    if isinstance(init, dict):
        load_init(encoder, init)
    else:
        fill_encoder(encoder, init)
    return {name: value.cpu() for name, value in encoder.state_dict().items()}


def load_state_to_resume(checkpoints: Path, reporter: Reporter) -> dict[str, Any] | None:
    """Load the newest readable checkpoint of a run; report damaged ones, and if there is none."""
    state, remarks = load_newest(checkpoints)
    for remark in remarks:
        reporter.warn(remark)
    if state is None:
        reporter.note(f"{checkpoints.parent} holds no checkpoint yet: starting at step 0")
    return state


def _write_start(trainer: Trainer, data: Data, folder: RunFolder, about: dict[str, Any]) -> list[str]:
    """Bring the files of a run to its first step, or to the one where it stopped; returns remarks on them."""
    recipe, branches = trainer.recipe, trainer.model.branches
    folder.remove_temporary_files()
    folder.stop_file.unlink(missing_ok=True)
    if trainer.step == 0:  # a run that ended before its first checkpoint starts again, with the data of now
        side = {} if recipe.data.stream else {"short_side": data.train.median_short_side()}
        folder.write_recipe(recipe, data.classes, {**data.summary, **describe_content(data.content), **side}, about)
        folder.write_content(data.content)
    else:
        # a finished run keeps its settings
        for name in resume_settings(recipe) if trainer.step < trainer.steps else ():
            folder.record_setting(recipe, *name.split("."))
        for name in ("source", "joined"):  # the data may have moved
            folder.record_setting(recipe, "data", name)
    if trainer.step == trainer.steps and not is_readable(folder.encoder):  # no epoch is left that would write it
        save_encoder(folder.encoder, branches.encoder, data.classes, recipe.name)
    if trainer.step == trainer.steps and not is_readable(folder.projector):
        save_projector(folder.projector, branches.projector, recipe.name)
    return folder.keep_metrics_until(trainer.step)


def _announce(trainer: Trainer, data: Data, folder: RunFolder, reporter: Reporter) -> None:
    """Report what a user should know before the first step."""
    recipe, ranks, settings = trainer.recipe, trainer.ranks, trainer.recipe.train
    if settings.accumulate > 1:
        sees_batch = recipe.loss.sees_batch(trainer.model.pool)
        reporter.note(
            f"with train.accumulate = {settings.accumulate} {'the loss and ' * sees_batch}batch norm "
            f"{'see' if sees_batch else 'sees'} micro-batches of {settings.batch_size // settings.accumulate}, not the "
            "whole batch, so results differ"
        )
    if settings.compile and settings.sync_norm and ranks.size > 1:
        reporter.note(
            "several ranks with synchronised norms compile only views and pool (on a GPU); set "
            "train.sync_norm=false also compiles the branches, with norms over the images of each rank"
        )
    if trainer.device.type == "cuda" and settings.replay and not trainer.feed.has_one_shape:
        reporter.note(
            "batches differ in shape, so the step is not captured; small images train at about 0.4 of the speed; "
            "crop the largest images"
        )
    device = str(trainer.device) if ranks.size == 1 else f"{ranks.size} ranks on {trainer.device.type}"
    reporter.on_start(recipe, data, folder.path, device, trainer.step, trainer.steps)


def check_same_settings(folder: RunFolder, state: dict[str, Any], recipe: Recipe) -> None:
    """Refuse to continue a checkpoint with settings other than those it was trained with."""
    saved = state["settings"]
    if (key := first_changed_setting(saved, recipe)) is not None:
        value, before = flattened(recipe).get(key), saved.get(key, "its default")
        raise BadInput(
            f"{folder.recipe_file} was changed: {key} is {value!r}, the run was trained with {before!r}; put that "
            f"back, or start another run with init {folder.path} and another out"
        )


def check_same_device(folder: RunFolder, state: dict[str, Any], device: torch.device) -> None:
    """Refuse another kind of device: it would draw other random numbers."""
    rng = state.get("rng")
    if not isinstance(rng, dict) or (rng.get("cuda") is None) == (device.type == "cpu"):
        return
    original, current = ("a CPU", "a GPU") if device.type == "cuda" else ("a GPU", "a CPU")
    advice = "hide the GPU with CUDA_VISIBLE_DEVICES=" if device.type == "cuda" else "continue it where there is one"
    raise BadInput(
        f"{folder.path} was started on {original} and cannot continue on {current}; {advice}, or start another run "
        f"from its encoder with init {folder.path}"
    )


def resume_settings(recipe: Recipe) -> list[str]:
    """Settings that may change when a run is resumed; recipe.json then records the new value."""
    automatic = fields_marked(recipe, AUTOMATIC)
    return [name for name in fields_marked(recipe, MAY_CHANGE_ON_RESUME) if name not in automatic]
