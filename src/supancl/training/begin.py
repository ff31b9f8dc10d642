"""The start of a run: initial weights or the newest checkpoint, the files of its folder, its log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from supancl.data.splits import Data
from supancl.errors import BadInput
from supancl.recipes import Recipe
from supancl.recipes.plugin_files import changed_plugins
from supancl.reporter import Reporter
from supancl.training.loop import Loop, resume_settings
from supancl.training.monitor import check_collapsed_run
from supancl.training.preflight import (
    check_same_content,
    check_same_data,
    check_same_device,
    check_same_settings,
    describe_content,
)
from supancl.training.trainer import Trainer
from supancl.weights.checkpoint import load_newest
from supancl.weights.encoder_file import is_readable, save_encoder, save_projector
from supancl.weights.metrics_log import MetricsLog, NoLog
from supancl.weights.provenance import hardware
from supancl.weights.run_end import record_stop
from supancl.weights.run_folder import RunFolder
from supancl.weights.start import describe_init, fill_encoder, load_init
from supancl.weights.writer import Writer

Start = Path | str | dict[str, str]  # as --init names it, or as recipe.json records it


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


def note_kept_settings(requested: Recipe | None, resolved: Recipe, reporter: Reporter) -> None:
    if requested is None:
        return
    for name in resume_settings(resolved):
        if requested.fields()[name][0] != (value := resolved.fields()[name][0]):
            reporter.note(f"continues with {name} = {value!r} from recipe.json")


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
        for file in changed_plugins(folder.read_plugin_digests()):
            reporter.warn(f"{file}: differs from the plugin that this run was begun with; training continues with it")
        check_same_device(folder, state, trainer.device)
        trainer.load(state)
        if trainer.monitor.collapsed and trainer.step < trainer.steps:
            reporter.warn(check_collapsed_run(trainer.recipe, trainer.step, folder.path))
    if trainer.step < (restart := trainer.recipe.schedule.restart_epoch * trainer.steps_per_epoch):
        raise BadInput(
            f"{folder.path}: schedule.restart_epoch = {trainer.recipe.schedule.restart_epoch} is for a run that "
            f"continues another one at step {restart}, and no checkpoint of that step is here; extend that run with "
            "--extend RUN, or leave the setting at 0"
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
            "several ranks with synchronised norms compile only views and pool (on a GPU); --set "
            "train.sync_norm=false also compiles the branches, with norms over the images of each rank"
        )
    if trainer.device.type == "cuda" and settings.replay and not trainer.feed.has_one_shape:
        reporter.note(
            "batches differ in shape, so the step is not captured; small images train at about 0.4 of the speed; "
            "crop the largest images"
        )
    device = str(trainer.device) if ranks.size == 1 else f"{ranks.size} ranks on {trainer.device.type}"
    reporter.on_start(recipe, data, folder.path, device, trainer.step, trainer.steps)
