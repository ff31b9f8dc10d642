"""`pretrain`: a recipe and data become a run folder with an encoder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from supancl.core.encoders import Encoder
from supancl.data.opening import open_data
from supancl.data.splits import Data
from supancl.distributed import Ranks, opened
from supancl.errors import BadInput
from supancl.recipes import Recipe
from supancl.recipes.recipe import describe_resolution
from supancl.reporter import Reporter
from supancl.training.begin import begin_run, say_what_differs
from supancl.training.cuda.reuse import trainer_for
from supancl.training.preflight import (
    check_data,
    check_ranks,
    determinism,
    folder_of,
    out_of_memory,
    own_folder,
    pick_device,
    resolve_recipe,
    too_large,
    with_speed,
)
from supancl.weights.run_folder import RunFolder


@dataclass(frozen=True)
class Run:
    """A finished pretraining: its folder, the trained encoder in eval mode, and the logged rows."""

    folder: Path
    encoder: Encoder
    metrics: list[dict[str, Any]]
    collapsed: bool


def pretrain(
    recipe: Recipe | None,
    data: Data | None = None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    init: Path | str | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Train an encoder as the recipe says and keep everything in a run folder.

    `data` takes the place of the recipe's own source. `resume` goes on from the newest checkpoint in `out`, with
    the settings kept there (`recipe` may then be None). The caller's random state is left as it was.
    Started by torchrun, all its ranks train together: every one calls this alike, and gets the same run.
    """
    if recipe is not None and data is not None and "source" in data.summary:
        recipe = replace(recipe, data=replace(recipe.data, source=str(data.summary["source"])))
    with opened(torch.cuda.is_available()) as ranks, ExitStack() as stack:
        reporter = reporter if reporter is not None and ranks.leads else Reporter()
        asked = ranks.once(lambda: resolve_recipe(recipe, folder_of(recipe, out), resume, init))
        if recipe is not None and (line := describe_resolution(recipe, asked)):
            reporter.note(line)
        device, found = ranks.each(lambda: open_device_and_data(asked, data, reporter, ranks))
        chosen = with_speed(asked, device, len(found.train), ranks.size)
        say_what_differs(recipe, chosen, reporter)
        for remark in found.remarks:
            reporter.warn(remark)
        folder = RunFolder(ranks.once(lambda: stack.enter_context(own_folder(chosen, out, resume))))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(determinism(chosen.train.deterministic))
        try:
            ranks.alike(found.summary.get("fingerprint"), "the data")
            trainer = trainer_for(chosen, found, device, reporter.reading, ranks)
            with begin_run(trainer, found, folder, resume, init, reporter) as loop:
                loop.run()
            encoder = trainer.model.copy_encoder(chosen)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise BadInput(too_large(chosen, device)) from None
        return Run(folder.path, encoder, ranks.once(folder.metrics), trainer.monitor.collapsed)


def open_device_and_data(
    recipe: Recipe, data: Data | None, reporter: Reporter, ranks: Ranks
) -> tuple[torch.device, Data]:
    """The device and the data of this process, which fit the recipe and each other."""
    device = pick_device(recipe.train.device, None if ranks.size == 1 else ranks.local)
    if data is None:
        data = open_data(recipe.data, recipe.encoder.channels, reporter.reading)
    check_data(recipe, data)
    check_ranks(recipe, ranks.size)
    return device, data
