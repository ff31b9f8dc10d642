"""A pretraining: its first moment, what it logs and saves, and how it ends.

A run begins with random weights, those of `init`, or its newest checkpoint.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from supancl.config import AUTOMATIC, MAY_CHANGE_ON_RESUME, fields_marked, flattened
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.splits import Data
from supancl.errors import BadInput, Collapsed, NonFinite, program_name
from supancl.files import digest, reason
from supancl.recipes.plugins import plugin_flags
from supancl.recipes.recipe import first_changed_setting
from supancl.reporter import Reporter
from supancl.runs.encoder_file import encoder_metadata, is_readable, projector_metadata, save_safetensors
from supancl.runs.folder import CONTENT_OF, RunFolder, check_same_content, check_same_data
from supancl.runs.importing import describe_init, fill_encoder, load_init
from supancl.runs.log import RunEnd, record_end
from supancl.runs.provenance import hardware
from supancl.training.loop import Loop, load_state_to_resume
from supancl.training.monitor import advice_to_continue, check_collapsed_run, collapse_message
from supancl.training.step import StepStats
from supancl.training.trainer import Trainer

T = TypeVar("T")
# a run with on_nan=skip gives up at this many steps, or at more than this fraction of an epoch's steps
MAX_SKIPPED_STEPS = 20
MAX_SKIPPED_FRACTION = 0.05  # one step of an epoch may always be skipped


class Pretraining(Loop):
    """The trainer of a run, and everything it reads and writes."""

    command = "pretrain"

    def __init__(
        self, trainer: Trainer, data: Data, folder: RunFolder, resume: bool, init: Path | str | None, reporter: Reporter
    ) -> None:
        self.trainer, self.data, self.recipe, self.ranks = trainer, data, trainer.recipe, trainer.ranks
        settings = self.recipe.train
        self.log_every, self.checkpoint_every = settings.log_every, settings.checkpoint_every
        self.keeps_all = settings.keep == "all"
        self.stats: StepStats | None = None
        self.targets = torch.empty(0)
        recorded = self.ranks.on_rank0(folder.read_init) if resume else None
        # a run that ended before its first checkpoint starts again from the recorded weights
        is_new = not load_start(trainer, data, folder, resume, init if recorded is None else recorded, reporter)
        start = recorded
        if is_new and recorded is None and init is not None:
            start = describe_init(trainer.model.branches.encoder, init)
        about = {"init": start, "hardware": hardware(trainer.device)}
        self.ranks.on_rank0(lambda: write_start(trainer, data, folder, about))
        super().__init__(folder, self.step if resume else None, reporter, self.ranks)

    @property
    def step(self) -> int:  # type: ignore[override]
        return self.trainer.step

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.trainer.steps

    def run(self) -> None:
        """Train to the last step, or until a signal, a collapse or a non-finite loss, and record the end."""
        device = str(self.trainer.device)
        device = device if self.ranks.size == 1 else f"{self.ranks.size} ranks on {self.trainer.device.type}"
        self.reporter.on_start(self.recipe, self.data, self.folder.path, device, self.step, self.steps)
        super().run()
        end = RunEnd(self.step, self.trainer.monitor.collapsed)
        self.ranks.on_rank0(lambda: record_end(self.folder, end, self.recipe.train.keep))

    # --- what a step is -----------------------------------------------------------------------------------------------

    def advance(self) -> int | None:
        trainer = self.trainer
        if trainer.step in trainer.skipped_steps:
            trainer.step += 1
            return 0
        if trainer.captured.is_due:
            self.writer.wait()  # no other thread may use the GPU while a step is recorded
            capture_step(trainer, self.reporter)
        new_targets = trainer.advance()
        if new_targets is None:
            self.handle_nonfinite(trainer.step)
            return None
        self.targets = new_targets
        return self.recipe.train.batch_size

    def check(self, logs: bool, saves: bool) -> None:
        inputs = self.trainer.inputs
        self.stats = inputs.drain_log(self.targets) if logs else None
        failed_step = self.stats.nonfinite_step if self.stats else inputs.nonfinite_step() if saves else None
        if failed_step is not None:
            self.handle_nonfinite(failed_step)
        if saves and not self.trainer.model.weights_are_finite():
            raise NonFinite(
                f"the weights are not finite numbers after step {self.step}; nothing was saved over the last "
                "checkpoint",
                "try a lower optimizer.lr",
            )

    def row(self) -> dict[str, Any] | None:
        trainer, recipe, schedule, stats = self.trainer, self.recipe, self.trainer.inputs.schedule, self.stats
        assert stats is not None
        last_step, has_two_terms = trainer.step - 1, recipe.loss.has_two_terms
        return {
            "kind": "train",
            "step": trainer.step,
            "epoch": last_step // trainer.steps_per_epoch,
            "loss": stats.loss,
            "ssl": stats.ssl if has_two_terms else None,
            "sup": stats.sup if has_two_terms else None,
            "lr": schedule.rates[0](last_step),
            "predictor_lr": schedule.rates[1](last_step) if recipe.heads.predictor is not None else None,
            "momentum": schedule.momentum(last_step) if recipe.branches.target == "momentum" else None,
            "std": trainer.monitor.note(stats.std),
        }

    # --- epochs -------------------------------------------------------------------------------------------------------

    def part_ends(self) -> bool:
        return self.step % self.trainer.steps_per_epoch == 0

    def is_saved(self, part_ends: bool) -> bool:
        epochs_done = self.step // self.trainer.steps_per_epoch
        return part_ends and (epochs_done % self.recipe.train.checkpoint_epochs == 0 or self.step >= self.steps)

    def end_part(self) -> None:
        """Measure and log the monitor's values; where the epoch is saved, write the encoder and the projector."""
        trainer, settings = self.trainer, self.recipe.train
        epochs_done, every = trainer.step // trainer.steps_per_epoch, settings.monitor_every
        is_last = epochs_done == settings.epochs
        if every and (epochs_done % every == 0 or is_last):
            row = {"kind": "monitor", "step": trainer.step, "epoch": epochs_done - 1}
            row |= self.ranks.on_rank0(lambda: self.monitor_values(self.targets, is_last))
            trainer.monitor.load(self.ranks.on_rank0(trainer.monitor.state))  # only rank 0 has measured
            self.write(row)
            self.reporter.on_epoch(row)
        for lines in self.ranks.all_gather_object(trainer.inputs.images.store.new_remarks()):
            for line in lines:
                self.reporter.warn(line)
        for file in weight_files(trainer, self.folder, self.data.classes) if self.is_saved(True) else ():
            self.ranks.on_rank0(partial(self.writer.save_weights, *file))

    def monitor_values(self, targets: Tensor, is_last: bool) -> dict[str, Any]:
        trainer, model = self.trainer, self.trainer.model
        encoder: Any = model.branches.encoder
        half = self.recipe.train.precision == "bf16"
        return trainer.monitor.measure(encoder, targets, model.pool, trainer.device, half, is_last)

    # --- ends and alarms ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return self.trainer.state()

    def close_inputs(self) -> None:
        self.trainer.feed.close()

    def advice(self) -> str:
        again = "; give it the same data again" if self.recipe.data.source == FROM_PYTHON else ""
        return plugin_flags(self.folder.read("plugins", list[str]())) + again

    def keep(self, saves: bool) -> None:
        """Save if `saves`, and before the alarm of a collapse, which is raised once."""
        monitor = self.trainer.monitor
        collapsing = monitor.collapsed and not monitor.alarm_raised
        monitor.alarm_raised |= collapsing
        super().keep(saves or collapsing)
        if not collapsing:
            return
        message = collapse_message(self.recipe, monitor, self.step)
        if self.recipe.train.on_collapse == "stop":
            self.ranks.on_rank0(self.writer.wait)
            raise Collapsed(message, "" if self.step >= self.steps else advice_to_continue(self.folder.path))
        self.reporter.warn(message)

    def handle_nonfinite(self, step: int) -> None:
        """Stop, or skip the step: one in twenty of an epoch, and twenty in all."""
        trainer = self.trainer
        files = self.data.train.names_at(trainer.inputs.schedule.order.positions(step))
        listed = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
        cause = f"the loss or its gradient is not a finite number at step {step} (images {listed})"
        skipped = trainer.skipped_steps
        in_epoch = sum(other // trainer.steps_per_epoch == step // trainer.steps_per_epoch for other in skipped)
        most = max(1, MAX_SKIPPED_FRACTION * trainer.steps_per_epoch)
        if self.recipe.train.on_nan == "skip" and len(skipped) + 1 < MAX_SKIPPED_STEPS and in_epoch + 1 <= most:
            self.reporter.warn(f"{cause}; step skipped")
            skipped.append(step)
            return
        cause += f"; skipped steps: {len(skipped)}" if skipped else ""
        command = f"{program_name()} pretrain --resume --on-nan skip --out {shlex.quote(str(self.folder.path))}"
        raise NonFinite(
            cause,
            f"to continue without such steps, checking every loss (slower on a GPU): {command}{self.advice()}; "
            "or start again with a lower optimizer.lr or precision fp32",
        )


def capture_step(trainer: Trainer, reporter: Reporter) -> None:
    """Record the step for replay; if that fails, warn and continue without."""
    try:
        trainer.capture()
    except RuntimeError as error:
        reporter.warn(
            f"the step could not be captured as a CUDA graph ({reason(error)}); continuing without, at about "
            "0.4 of the speed for small images; train.replay=false skips the attempt"
        )


# --- the first moment of a run ----------------------------------------------------------------------------------------


def load_start(
    trainer: Trainer, data: Data, folder: RunFolder, resume: bool, init: Path | str | dict[str, str] | None,
    reporter: Reporter,
) -> bool:  # fmt: skip
    """Load the newest checkpoint or the initial weights; whether there was a checkpoint."""
    ranks, branches = trainer.ranks, trainer.model.branches
    state = ranks.on_rank0(lambda: load_state_to_resume(folder.checkpoints, reporter)) if resume else None
    if state is None and init is not None:
        branches.encoder.load_state_dict(ranks.on_rank0(lambda: load_initial_weights(branches.encoder, init)))
        branches.copy_to_target()
    if state is not None:
        check_same_run(folder, state, trainer)
        ranks.on_rank0(lambda: check_same_data(folder, data))
        for file, saved in folder.read("plugin_digests", dict[str, str]()).items():
            if Path(file).is_file() and digest(Path(file)) != saved:
                reporter.warn(f"{file}: differs from the plugin that this run was begun with; it is used as it is now")
        for line in ranks.on_rank0(lambda: check_same_content(folder, data)):
            reporter.warn(line)
        trainer.load(state)
        if trainer.monitor.collapsed and trainer.step < trainer.steps:
            reporter.warn(check_collapsed_run(trainer.recipe, trainer.step, folder.path))
    if trainer.step < (restart := trainer.recipe.schedule.restart_epoch * trainer.steps_per_epoch):
        raise BadInput(
            f"{folder.path}: schedule.restart_epoch continues another run at step {restart}, and no checkpoint of that "
            "step is here; extend that run with extend RUN, or leave the setting at 0"
        )
    return state is not None


def load_initial_weights(encoder: Any, init: Path | str | dict[str, str]) -> dict[str, Tensor]:
    if isinstance(init, dict):
        load_init(encoder, init)
    else:
        fill_encoder(encoder, init)
    return {name: value.cpu() for name, value in encoder.state_dict().items()}


def write_start(trainer: Trainer, data: Data, folder: RunFolder, about: dict[str, Any]) -> None:
    """Bring the files of a run to its first step, or to the one where it stopped."""
    recipe = trainer.recipe
    folder.stop_file.unlink(missing_ok=True)
    if trainer.step == 0:  # a run that ended before its first checkpoint starts again, with the data of now
        content = data.content
        described = {} if content is None else {"content": content.digest, "content_of": CONTENT_OF[content.kind]}
        side = {} if recipe.data.stream else {"short_side": data.train.median_short_side()}
        folder.write_recipe(recipe, data.classes, {**data.summary, **described, **side}, about)
        folder.write_content(content)
    else:
        free = set(fields_marked(recipe, MAY_CHANGE_ON_RESUME)) - set(fields_marked(recipe, AUTOMATIC))
        kept = sorted(free) if trainer.step < trainer.steps else []  # a finished run keeps its settings
        folder.record_settings(recipe, [*kept, "data.source", "data.joined"])  # the data may have moved
    # after the last step no epoch is left that would write them
    for file, weights, metadata in weight_files(trainer, folder, data.classes) if trainer.step == trainer.steps else ():
        if not is_readable(file):
            save_safetensors(file, weights, metadata)
    folder.keep_metrics_until(trainer.step)


def weight_files(
    trainer: Trainer, folder: RunFolder, classes: tuple[str, ...]
) -> list[tuple[Path, dict[str, Tensor], dict[str, str]]]:
    """Path, tensors and metadata of encoder.safetensors and projector.safetensors."""
    encoder, projector, name = trainer.model.branches.encoder, trainer.model.branches.projector, trainer.recipe.name
    about = encoder_metadata(folder.encoder, encoder, classes, name)
    return [
        (folder.encoder, encoder.body.state_dict(), about),
        (folder.projector, projector.state_dict(), projector_metadata(folder.projector, projector, name)),
    ]


def check_same_run(folder: RunFolder, state: dict[str, Any], trainer: Trainer) -> None:
    """Refuse to continue a checkpoint with other settings, or on another kind of device: its random numbers differ."""
    saved = state["settings"]
    if (key := first_changed_setting(saved, trainer.recipe)) is not None:
        value, before = flattened(trainer.recipe).get(key), saved.get(key, "its default")
        raise BadInput(
            f"{folder.recipe_file} was changed: {key} is {value!r}, the run was trained with {before!r}; put that "
            f"back, or start another run with init {folder.path} and another out"
        )
    rng = state.get("rng")
    if isinstance(rng, dict) and (rng.get("cuda") is None) != (trainer.device.type == "cpu"):
        original = "a CPU; hide the GPU with CUDA_VISIBLE_DEVICES=" if rng.get("cuda") is None else "a GPU"
        raise BadInput(
            f"{folder.path} cannot continue on {trainer.device.type}: it was started on {original}, or start another "
            f"run from its encoder with init {folder.path}"
        )
