"""A pretraining: its first moment, what it logs and saves, and how it ends.

A run begins with random weights, those of `init`, or its newest checkpoint.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from supancl.config import AUTOMATIC, MAY_CHANGE_ON_RESUME, fields_marked, flattened
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.splits import Data
from supancl.errors import BadInput, Collapsed, NonFinite
from supancl.files import digest, reason, write_bytes
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


class Pretraining(Loop):
    """The trainer of a run, and everything it reads and writes."""

    command = "pretrain"

    def __init__(
        self, trainer: Trainer, data: Data, folder: RunFolder, resume: bool, init: Path | str | None, reporter: Reporter
    ) -> None:
        self.trainer, self.data, self.recipe = trainer, data, trainer.recipe
        self.folder, self.reporter, self.ranks = folder, reporter, trainer.ranks
        settings = self.recipe.train
        self.log_every, self.checkpoint_every = settings.log_every, settings.checkpoint_every
        self.keeps_all = settings.keep == "all"
        self.stats: StepStats | None = None
        self.targets = torch.empty(0)
        start = self.load_start(resume, init)
        self.is_from_start = start is not None and self.step == 0
        self.ranks.on_rank0(lambda: self.write_start(start))
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
        if self.is_from_start and self.recipe.train.monitor_every:
            self.measure_start()
        super().run()
        end = RunEnd(self.step, self.trainer.monitor.collapsed)
        self.ranks.on_rank0(lambda: record_end(self.folder, end, self.recipe.train.keep))

    # --- the first moment ---------------------------------------------------------------------------------------------

    def load_start(self, resume: bool, init: Path | str | None) -> dict[str, str] | None:
        """Load the newest checkpoint or the weights of `init`, and return how recipe.json describes the latter.

        A run that ended before its first checkpoint starts again from the recorded weights.
        """
        trainer, folder, ranks, branches = self.trainer, self.folder, self.ranks, self.trainer.model.branches
        encoder: Any = branches.encoder
        start = ranks.on_rank0(folder.read_init) if resume else None
        state = ranks.on_rank0(lambda: load_state_to_resume(folder.checkpoints, self.reporter)) if resume else None

        def weights_of_start() -> dict[str, Tensor]:
            if start is not None:
                load_init(encoder, start)
            elif init is not None:
                fill_encoder(encoder, init)
            return {name: value.cpu() for name, value in encoder.state_dict().items()}

        if state is not None:
            self.continue_from(state)
        elif start is not None or init is not None:
            encoder.load_state_dict(ranks.on_rank0(weights_of_start))
            branches.copy_to_target()
            start = start or describe_init(encoder, str(init))
        if self.step < (restart := self.recipe.schedule.restart_epoch * trainer.steps_per_epoch):
            raise BadInput(
                f"{folder.path}: schedule.restart_epoch continues another run at step {restart}, and no checkpoint of "
                "that step is here; extend that run with extend RUN, or leave the setting at 0"
            )
        return start

    def continue_from(self, state: dict[str, Any]) -> None:
        """Load a checkpoint; refuse other settings, data, or another kind of device: its random numbers differ."""
        folder, saved, rng, device = self.folder, state["settings"], state.get("rng"), self.trainer.device.type
        if (key := first_changed_setting(saved, self.recipe)) is not None:
            value, before = flattened(self.recipe).get(key), saved.get(key, "its default")
            raise BadInput(
                f"{folder.recipe_file} was changed: {key} is {value!r}, the run was trained with {before!r}; put that "
                f"back, or start another run with init {folder.path} and another out"
            )
        if isinstance(rng, dict) and (rng.get("cuda") is None) != (device == "cpu"):
            original = "a CPU; hide the GPU with CUDA_VISIBLE_DEVICES=" if rng.get("cuda") is None else "a GPU"
            raise BadInput(
                f"{folder.path} cannot continue on {device}: it was started on {original}, or start another run from "
                f"its encoder with init {folder.path}"
            )
        self.ranks.on_rank0(lambda: check_same_data(folder, self.data))
        for file, before in folder.read("plugin_digests", dict[str, str]()).items():
            if Path(file).is_file() and digest(Path(file)) != before:
                self.reporter.warn(f"{file}: differs from the plugin that this run was begun with; it is used as it is")
        for line in self.ranks.on_rank0(lambda: check_same_content(folder, self.data)):
            self.reporter.warn(line)
        self.trainer.load(state)
        if self.trainer.monitor.collapsed and self.step < self.steps:
            self.reporter.warn(check_collapsed_run(self.recipe, self.step, folder.path))

    def write_start(self, start: dict[str, str] | None) -> None:
        """Bring the files of a run to its first step, or to the one where it stopped."""
        recipe, data, folder = self.recipe, self.data, self.folder
        folder.stop_file.unlink(missing_ok=True)
        if self.step == 0:  # a run that ended before its first checkpoint starts again, with the data of now
            content = data.content
            described = {} if content is None else {"content": content.digest, "content_of": CONTENT_OF[content.kind]}
            side = {} if recipe.data.stream else {"short_side": data.train.median_short_side()}
            about = {"init": start, "hardware": hardware(self.trainer.device)}
            folder.write_recipe(recipe, data.classes, {**data.summary, **described, **side}, about)
            if content is not None:  # for `evaluate` to find these images in others
                write_bytes(folder.content_file, content.to_bytes())
        else:
            free = set(fields_marked(recipe, MAY_CHANGE_ON_RESUME)) - set(fields_marked(recipe, AUTOMATIC))
            kept = sorted(free) if self.step < self.steps else []  # a finished run keeps its settings
            folder.record_settings(recipe, [*kept, "data.source", "data.joined"])  # the data may have moved
        for file, weights, metadata in self.weight_files() if self.step == self.steps else ():
            if not is_readable(file):  # no epoch is left that would write it
                save_safetensors(file, weights, metadata)
        folder.keep_metrics_until(self.step)

    def weight_files(self) -> list[tuple[Path, dict[str, Tensor], dict[str, str]]]:
        """Path, tensors and metadata of encoder.safetensors and projector.safetensors."""
        encoder: Any = self.trainer.model.branches.encoder
        projector: Any = self.trainer.model.branches.projector
        folder, name = self.folder, self.recipe.name
        about = encoder_metadata(folder.encoder, encoder, self.data.classes, name)
        return [
            (folder.encoder, encoder.body.state_dict(), about),
            (folder.projector, projector.state_dict(), projector_metadata(folder.projector, projector, name)),
        ]

    def measure_start(self) -> None:
        """Log how good the weights of `init` are on the held-out images, for `RunFolder.compare_with_start`."""
        row: dict[str, Any] = {"kind": "start", "step": 0, "epoch": 0}
        row |= self.ranks.on_rank0(lambda: self.monitor_values(torch.empty(0), is_last=True))
        self.write(row)
        if "linear_interval" in row:
            accuracy = "{:.1f}% [{:.1f}, {:.1f}]".format(row["linear"], *row["linear_interval"])
            self.reporter.note(f"before training: linear accuracy {accuracy} on {row['knn_queries']} held-out images")

    # --- what a step is -----------------------------------------------------------------------------------------------

    def advance(self) -> int:
        trainer = self.trainer
        if trainer.captured.is_due:
            self.writer.wait()  # no other thread may use the GPU while a step is recorded
            capture_step(trainer, self.reporter)
        self.targets = trainer.advance()
        return self.recipe.train.batch_size

    def check(self, logs: bool, saves: bool) -> None:
        inputs = self.trainer.inputs
        self.stats = inputs.drain_log(self.targets) if logs else None
        failed_step = self.stats.nonfinite_step if self.stats else inputs.nonfinite_step() if saves else None
        if failed_step is not None:
            self.stop_at(failed_step)
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
        for file in self.weight_files() if self.is_saved(True) else ():
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

    def stop_at(self, step: int) -> NoReturn:
        """End the run because of a step whose loss or gradient is not finite."""
        files = self.data.train.names_at(self.trainer.inputs.schedule.order.positions(step))
        listed = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
        raise NonFinite(
            f"the loss or its gradient is not a finite number at step {step} (images {listed})",
            "no checkpoint was written since; start again with a lower optimizer.lr or precision fp32",
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
