"""`pretrain`: a recipe and data become a run folder with an encoder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from supancl.data.opening import check_source, open_data
from supancl.data.splits import Data
from supancl.data.survey import Survey
from supancl.distributed import Ranks, join_ranks
from supancl.errors import BadInput, is_out_of_memory
from supancl.recipes import Recipe
from supancl.recipes.auto import is_to_be_fitted
from supancl.recipes.warmup import describe_resolution, resolve_label_warmup
from supancl.reporter import Reporter, report_to
from supancl.training.begin import begin_run, note_kept_settings
from supancl.training.cost import check_memory
from supancl.training.cuda.reuse import trainer_for
from supancl.training.fitting import fit_to_data
from supancl.training.label_checks import fit_labels
from supancl.training.preflight import (
    check_data,
    check_ranks,
    deterministic_mode,
    lock_run_folder,
    out_of_memory_message,
    pick_device,
    resolve_recipe,
    run_folder_for,
    with_speed,
)
from supancl.training.run import Run as Run
from supancl.weights.checkpoint import checkpoints
from supancl.weights.encoder_file import load_encoder
from supancl.weights.run_end import read_end
from supancl.weights.run_folder import RunFolder


def pretrain(
    recipe: Recipe | None,
    data: Data | None = None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    init: Path | str | None = None,
    reporter: Reporter | None = None,
    survey: Survey | None = None,
) -> Run:
    """Train an encoder with this recipe and write everything to a run folder.

    `data` replaces the recipe's source. `resume` continues from the newest checkpoint in `out`, with the settings
    saved there (`recipe` may then be None). `survey` is that of the data if the caller has made it, so that a recipe
    that is fitted to them does not list them again. The caller's random state is restored at the end. Under torchrun
    all ranks train together: each makes the same call and gets the same run.
    """
    recipe = name_source(recipe, data)
    with join_ranks(torch.cuda.is_available()) as ranks, ExitStack() as stack:
        reporter = reporter if reporter is not None and ranks.is_rank0 else Reporter()
        stack.enter_context(report_to(reporter))
        fit = partial(fit_to_data, data=data, survey=survey, init=init, reporter=reporter)
        resolved = ranks.on_rank0(lambda: resolve_recipe(recipe, run_folder_for(recipe, out), resume, init, fit))
        if recipe is not None and not is_to_be_fitted(recipe):
            for line in describe_resolution(recipe, resolved):
                reporter.note(line)
        if resume and (finished := ranks.on_rank0(lambda: read_finished_run(out))) is not None:
            reporter.note(
                f"{finished.folder} is finished and keeps no checkpoint, so there is nothing to continue; to train it "
                "again, remove its finished.json"
            )
            return finished
        device, run_data = ranks.on_every_rank(lambda: open_device_and_data(resolved, data, reporter, ranks, init))
        images = len(run_data.train)
        run_recipe = resolve_label_warmup(resolved, images)
        for line in describe_resolution(resolved, run_recipe, images):
            reporter.note(line)
        run_recipe = with_speed(run_recipe, device, images, ranks.size)
        note_kept_settings(recipe, run_recipe, reporter)
        for remark in run_data.remarks:
            reporter.warn(remark)
        folder = RunFolder(ranks.on_rank0(lambda: stack.enter_context(lock_run_folder(run_recipe, out, resume))))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(deterministic_mode(run_recipe.train.deterministic))
        try:
            ranks.assert_equal(run_data.summary.get("fingerprint"), "the data")
            trainer = trainer_for(run_recipe, run_data, device, ranks)
            # within the loop, the bar of the run shows how far it is
            with begin_run(trainer, run_data, folder, resume, init, reporter) as loop, report_to(Reporter()):
                loop.run()
            if better_start := ranks.on_rank0(folder.compare_with_start):
                reporter.warn(better_start)
            encoder = trainer.model.copy_encoder(run_recipe)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise BadInput(out_of_memory_message(run_recipe, device)) from None
        return Run(folder.path, encoder, ranks.on_rank0(folder.metrics), trainer.monitor.collapsed)


def name_source(recipe: Recipe | None, data: Data | None) -> Recipe | None:
    """The recipe with the source that opened data come from."""
    if recipe is None or data is None or "source" not in data.summary:
        return recipe
    source, joined = str(data.summary["source"]), data.summary.get("joined", ())
    return replace(recipe, data=replace(recipe.data, source=source, joined=tuple(joined)))  # type: ignore[arg-type]


def read_finished_run(out: Path | str | None) -> Run | None:
    """The run in this folder if it is finished and none of its checkpoints was kept, else None."""
    folder = RunFolder(Path(out or ""))
    if out is None or not folder.has_run or not folder.end_file.exists() or checkpoints(folder.checkpoints):
        return None
    if (end := read_end(folder)) is None:  # to start again at step 0 would overwrite the encoder
        raise BadInput(
            f"{folder.end_file} is damaged or of another run, and there is no checkpoint; restore it, or remove it to "
            "start again at step 0"
        )
    return Run(folder.path, load_encoder(folder.path), folder.metrics(), end.collapsed)


def open_device_and_data(
    recipe: Recipe, data: Data | None, reporter: Reporter, ranks: Ranks, init: Path | str | None = None
) -> tuple[torch.device, Data]:
    """The device and the data of this process, checked against the recipe."""
    device = pick_device(recipe.train.device, None if ranks.size == 1 else ranks.local_rank)
    if data is None:
        for name in recipe.data.all_sources:
            check_source(name)
    # before the data are read, which may take an hour
    memory = check_memory(recipe, device, keeps_encoder=init is not None)
    if memory:
        reporter.note(f"memory: {memory}, besides the images")
    if data is None:
        data = open_data(recipe.data, recipe.encoder.channels)
    check_data(recipe, data)
    check_ranks(recipe, ranks.size)
    return device, fit_labels(recipe, data)
