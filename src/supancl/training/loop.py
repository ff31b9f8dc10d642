"""The training loop: log, checkpoints, signals and the monitor around the step."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor

from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.splits import Data
from supancl.data.threads import WaitStopped
from supancl.errors import Collapsed, Interrupted, NonFinite, program_name
from supancl.files import reason
from supancl.recipes.plugins import plugin_flags
from supancl.reporter import Reporter
from supancl.runs.checkpoint import Writer, load_newest
from supancl.runs.folder import RunFolder
from supancl.runs.log import MetricsLog, RunEnd, record_end
from supancl.training.inputs import StepStats
from supancl.training.monitor import advice_to_continue, collapse_message
from supancl.training.signals import record_signals
from supancl.training.trainer import Trainer

# a run with on_nan=skip gives up at this many steps, or at more than this fraction of an epoch's steps
MAX_SKIPPED_STEPS = 20
MAX_SKIPPED_FRACTION = 0.05  # one step of an epoch may always be skipped
MAX_ROLLBACKS = 3


@dataclass
class Loop:
    """A run in training: the trainer, and everything it reads and writes."""

    trainer: Trainer
    data: Data
    folder: RunFolder
    log: MetricsLog
    reporter: Reporter
    writer: Writer
    rollbacks: int = 0

    def measure_start(self) -> None:
        """Log how good the weights of --init are on the held-out images: `RunFolder.compare_with_start` reads it."""
        row: dict[str, Any] = {"kind": "start", "step": 0, "epoch": 0}
        row |= self.trainer.ranks.on_rank0(lambda: self.monitor_values(torch.empty(0), is_last=True))
        self.log.write(row)
        if "linear_interval" in row:
            low, high = row["linear_interval"]
            self.reporter.note(
                f"before training: linear {row['linear']:.1f}% [{low:.1f}, {high:.1f}] and k-NN {row['knn']:.1f}% of "
                f"{row['knn_queries']} held-out images"
            )

    def run(self) -> None:
        """Train to the last step, or until a signal, a collapse or a non-finite loss."""
        trainer, settings = self.trainer, self.trainer.recipe.train
        since, images, targets = time.perf_counter(), 0, torch.empty(0)
        # several ranks stop after the same step
        with record_signals(self.reporter.note, stops_waits=trainer.ranks.size == 1) as received:
            while trainer.step < trainer.steps:
                if trainer.step in trainer.skipped_steps:
                    trainer.step += 1
                else:
                    if trainer.captured.is_due:
                        self.writer.wait()  # no other thread may use the GPU while a step is recorded
                        capture_step(trainer, self.reporter)
                    try:
                        new_targets = trainer.advance()
                    except WaitStopped:
                        self.stop_before_step(received[0])
                    finally:  # report it even if the step fails for another reason
                        report_compile_failures(trainer, self.reporter)
                    if new_targets is None:
                        handle_nonfinite(self, trainer.step)
                        continue
                    targets, images = new_targets, images + settings.batch_size
                signal_number = trainer.ranks.signal_on_any_rank(received)
                epoch_ends = trainer.step % trainer.steps_per_epoch == 0
                every = settings.checkpoint_every
                checkpoint_is_due = every is not None and trainer.step % every == 0
                logs = epoch_ends or trainer.step % settings.log_every == 0
                saves = self.epoch_is_saved(epoch_ends) or checkpoint_is_due or bool(signal_number)
                stats = trainer.inputs.drain_log(targets) if logs else None
                failed_step = stats.nonfinite_step if stats else trainer.inputs.nonfinite_step() if saves else None
                if failed_step is not None:
                    handle_nonfinite(self, failed_step)
                    continue
                row = None
                if stats is not None:
                    row = self.train_row(stats, images / max(time.perf_counter() - since, 1e-9))
                    self.log.write(row)
                    since, images = time.perf_counter(), 0
                self.reporter.on_step(trainer.step, row)
                if saves and not trainer.model.weights_are_finite():
                    raise NonFinite(
                        f"the weights are not finite numbers after step {trainer.step}; nothing was saved over "
                        "the last checkpoint",
                        "try a lower optimizer.lr",
                    )
                if epoch_ends:
                    self.end_epoch(targets)
                    since = time.perf_counter()
                self.save_and_warn(saves)
                if signal_number and trainer.step < trainer.steps:
                    self.stop(signal_number)
            self.finish()

    def train_row(self, stats: StepStats, images_per_second: float) -> dict[str, Any]:
        trainer, recipe, schedule = self.trainer, self.trainer.recipe, self.trainer.inputs.schedule
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
            "images_per_second": images_per_second,
        }

    def epoch_is_saved(self, epoch_ends: bool) -> bool:
        trainer = self.trainer
        epochs_done = trainer.step // trainer.steps_per_epoch
        is_due = epochs_done % trainer.recipe.train.checkpoint_epochs == 0 or trainer.step >= trainer.steps
        return epoch_ends and is_due

    def end_epoch(self, targets: Tensor) -> None:
        """Measure and log the monitor's values; where the epoch is saved, write the encoder and the projector."""
        trainer, recipe = self.trainer, self.trainer.recipe
        settings, ranks, branches = recipe.train, trainer.ranks, trainer.model.branches
        epochs_done = trainer.step // trainer.steps_per_epoch
        is_last = epochs_done == settings.epochs
        if settings.monitor_every and (epochs_done % settings.monitor_every == 0 or is_last):
            row = {"kind": "monitor", "step": trainer.step, "epoch": epochs_done - 1}
            row |= ranks.on_rank0(lambda: self.monitor_values(targets, is_last))
            trainer.monitor.load(ranks.on_rank0(trainer.monitor.state))  # only rank 0 has measured
            self.log.write(row)
            self.reporter.on_epoch(row)
        remarks = [*trainer.inputs.images.store.new_remarks(), *take_compile_failures(trainer)]
        for remark in dict.fromkeys(chain.from_iterable(ranks.all_gather_object(remarks))):
            self.reporter.warn(remark)
        if not self.epoch_is_saved(True):
            return
        encoder: Any = branches.encoder
        ranks.on_rank0(lambda: self.writer.save_encoder(self.folder.encoder, encoder, self.data.classes, recipe.name))
        ranks.on_rank0(lambda: self.writer.save_projector(self.folder.projector, branches.projector, recipe.name))

    def monitor_values(self, targets: Tensor, is_last: bool) -> dict[str, Any]:
        trainer, model = self.trainer, self.trainer.model
        encoder: Any = model.branches.encoder
        half = trainer.recipe.train.precision == "bf16"
        return trainer.monitor.measure(encoder, targets, model.pool, trainer.device, half, is_last)

    # --- ends and alarms ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        self.log.sync()
        state = self.trainer.state()
        trainer, keep_all = self.trainer, self.trainer.recipe.train.keep == "all"
        trainer.ranks.on_rank0(lambda: self.writer.save(self.folder.checkpoints, trainer.step, state, keep_all))

    def finish(self) -> None:
        """Record the end of the run once everything is on disk, and keep only the checkpoints of `train.keep`."""
        self.wait_for_writer()
        trainer = self.trainer
        end = RunEnd(trainer.step, trainer.monitor.collapsed)
        trainer.ranks.on_rank0(lambda: record_end(self.folder, end, trainer.recipe.train.keep))

    def wait_for_writer(self) -> None:
        self.trainer.ranks.on_rank0(self.writer.wait)

    def save_and_warn(self, saves: bool) -> None:
        """Save if `saves`, and before the alarm of a collapse, which is raised once."""
        monitor = self.trainer.monitor
        collapsing = monitor.collapsed and not monitor.alarm_raised
        monitor.alarm_raised |= collapsing
        if saves or collapsing:
            self.save()
        if not collapsing:
            return
        message = collapse_message(self.trainer.recipe, monitor, self.trainer.step)
        if self.trainer.recipe.train.on_collapse == "stop":
            self.wait_for_writer()
            is_finished = self.trainer.step >= self.trainer.steps
            raise Collapsed(message, "" if is_finished else advice_to_continue(self.folder.path))
        self.reporter.warn(message)

    def stop_before_step(self, number: int) -> NoReturn:
        """End the run while a step waits for its images: its state is that after the step before."""
        trainer = self.trainer
        if trainer.inputs.nonfinite_step() is None and trainer.model.weights_are_finite():
            self.save()
        self.stop(number)

    def stop(self, number: int) -> NoReturn:
        """End the run after a signal; its state is saved."""
        self.wait_for_writer()
        name, position = signal.Signals(number).name, f"step {self.trainer.step} of {self.trainer.steps}"
        plugins = plugin_flags(self.folder.read_plugins())
        command = f"{program_name()} pretrain --resume --out {shlex.quote(str(self.folder.path))}{plugins}"
        again = "; give it the same data again" if self.trainer.recipe.data.source == FROM_PYTHON else ""
        raise Interrupted(f"stopped by {name} at {position}, saved; continue with: {command}{again}", number)

    def roll_back(self) -> None:
        """Load the newest checkpoint, but keep the list of skipped steps."""
        trainer, skipped_steps = self.trainer, self.trainer.skipped_steps
        self.wait_for_writer()
        state, _ = trainer.ranks.on_rank0(lambda: load_newest(self.folder.checkpoints))
        if state is not None:
            trainer.load(state)
            self.log.rewind(trainer.step)
            trainer.skipped_steps = skipped_steps


def report_compile_failures(trainer: Trainer, reporter: Reporter) -> None:
    """Report failures of the compiler on rank 0; those of other ranks are reported at the end of the epoch."""
    for line in take_compile_failures(trainer) if trainer.ranks.is_rank0 else ():
        reporter.warn(line)


def take_compile_failures(trainer: Trainer) -> list[str]:
    """Messages about failures of the compiler since the last call."""
    prefix = "" if trainer.ranks.is_rank0 else "another rank: "
    return [f"{prefix}{line}; train.compile=false skips the attempt" for line in trainer.compilation.take_failures()]


def capture_step(trainer: Trainer, reporter: Reporter) -> None:
    """Record the step for replay; if that fails, warn and continue without."""
    try:
        trainer.capture()
    except RuntimeError as error:
        reporter.warn(
            f"the step could not be captured as a CUDA graph ({reason(error)}); continuing without, at about "
            "0.4 of the speed for small images; train.replay=false skips the attempt"
        )


def handle_nonfinite(loop: Loop, step: int) -> None:
    """Stop, skip the step, or roll back to the last checkpoint and skip the step then."""
    trainer, settings = loop.trainer, loop.trainer.recipe.train
    files = loop.data.train.names_at(trainer.inputs.schedule.order.positions(step))
    listed = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    cause = f"the loss or its gradient is not a finite number at step {step} (images {listed})"
    restart = "start again with a lower optimizer.lr"
    restart += " or precision fp32" if settings.precision == "bf16" else ""
    resume = f"{program_name()} pretrain --resume --on-nan skip --out {shlex.quote(str(loop.folder.path))}"
    resume += plugin_flags(loop.folder.read_plugins())
    advice = f"to continue without such steps, checking every loss (slower on a GPU): {resume}; or {restart}"
    if settings.on_nan == "stop":
        raise NonFinite(cause, advice)
    if settings.on_nan == "rollback":
        if loop.rollbacks >= MAX_ROLLBACKS:
            raise NonFinite(f"{cause}, after {loop.rollbacks} rollbacks", advice)
        loop.roll_back()
        loop.reporter.warn(f"{cause}; rolled back to step {trainer.step}, this batch will be skipped")
    else:
        loop.reporter.warn(f"{cause}; step skipped")
    loop.rollbacks += 1
    trainer.skipped_steps.append(step)
    if settings.on_nan == "skip":
        check_skipped_steps(trainer.skipped_steps, step, trainer.steps_per_epoch, cause, restart)


def check_skipped_steps(skipped: Sequence[int], step: int, steps_per_epoch: int, cause: str, advice: str) -> None:
    """Give up if too many steps were skipped: what is left would not be the run that was asked for."""
    if len(skipped) >= MAX_SKIPPED_STEPS:
        raise NonFinite(f"{cause}, as at {len(skipped) - 1} steps before", advice)
    in_epoch = sum(other // steps_per_epoch == step // steps_per_epoch for other in skipped)
    if in_epoch > max(1, MAX_SKIPPED_FRACTION * steps_per_epoch):
        percent = f"{MAX_SKIPPED_FRACTION:.0%}"
        raise NonFinite(f"{cause}: {in_epoch} of the epoch's {steps_per_epoch} steps, more than {percent}", advice)
