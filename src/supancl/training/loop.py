"""The training loop: around the step, a run that can be stopped anywhere and says when it goes wrong."""

from __future__ import annotations

import shlex
import signal
import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from supancl.config import AUTOMATIC, MAY_CHANGE_ON_RESUME, fields_marked
from supancl.data.splits import Data
from supancl.errors import Collapsed, Interrupted, NonFinite, program_name
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.recipes.plugins import plugin_flags
from supancl.reporter import Reporter
from supancl.training.inputs import StepStats
from supancl.training.monitor import alarm, all_the_same
from supancl.training.nonfinite import handle_nonfinite
from supancl.training.signals import signals_noted
from supancl.training.trainer import Trainer
from supancl.weights.checkpoint import load_newest
from supancl.weights.metrics_log import MetricsLog
from supancl.weights.run_folder import RunFolder
from supancl.weights.writer import Writer


def resume_settings(recipe: Recipe) -> list[str]:
    """Settings that may change when a run is resumed; recipe.json then records the new value."""
    automatic = fields_marked(recipe, AUTOMATIC)
    return [name for name in fields_marked(recipe, MAY_CHANGE_ON_RESUME) if name not in automatic]


@dataclass
class Loop:
    """One run while it trains: the trainer, and all that it reads from and writes to."""

    trainer: Trainer
    data: Data
    folder: RunFolder
    log: MetricsLog
    reporter: Reporter
    writer: Writer
    rollbacks: int = 0

    def run(self) -> None:
        """Train to the last step, or until a signal, a collapse or a bad number ends it."""
        trainer, settings = self.trainer, self.trainer.recipe.train
        since, images, targets = time.perf_counter(), 0, torch.empty(0)
        with signals_noted() as received:
            while trainer.step < trainer.steps:
                if trainer.step in trainer.skipped_steps:
                    trainer.step += 1
                else:
                    if trainer.captured.is_due:
                        self.writer.wait()  # while a step is recorded, no other thread may wait for the GPU
                        capture_step(trainer, self.reporter)
                    try:
                        taken = trainer.advance()
                    finally:  # said even if the step then fails for another reason
                        report_compile_failures(trainer, self.reporter)
                    if taken is None:
                        handle_nonfinite(self, trainer.step)
                        continue
                    targets, images = taken, images + settings.batch_size
                stop = trainer.ranks.signal_on_any_rank(received)  # whichever rank got the signal
                epoch_ends = trainer.step % trainer.steps_per_epoch == 0
                often = settings.checkpoint_every is not None and trainer.step % settings.checkpoint_every == 0
                logs, saves = trainer.step % settings.log_every == 0 or epoch_ends, epoch_ends or often or bool(stop)
                seen = trainer.inputs.drain_log(targets) if logs else None
                failed = seen.nonfinite_step if seen else trainer.inputs.nonfinite_step() if saves else None
                if failed is not None:
                    handle_nonfinite(self, failed)
                    continue
                row = None
                if seen is not None:
                    row = self.train_row(seen, images / max(time.perf_counter() - since, 1e-9))
                    self.log.write(row)
                    since, images = time.perf_counter(), 0
                self.reporter.stepped(trainer.step, row)
                if saves and not trainer.model.weights_are_finite():
                    raise NonFinite(
                        f"the weights are not finite numbers after step {trainer.step}; nothing was saved over "
                        "the last checkpoint",
                        "try a lower --set optimizer.lr",
                    )
                if epoch_ends:
                    self.close_epoch(targets)
                    since = time.perf_counter()
                self.save_and_warn(saves)
                if stop and trainer.step < trainer.steps:
                    self.stop(stop)
            self.wait_for_writer()

    def train_row(self, seen: StepStats, images_per_second: float) -> dict[str, Any]:
        trainer, recipe, schedule = self.trainer, self.trainer.recipe, self.trainer.inputs.schedule
        last, two = trainer.step - 1, recipe.loss.has_two_terms
        return {
            "kind": "train",
            "step": trainer.step,
            "epoch": last // trainer.steps_per_epoch,
            "loss": seen.loss,
            "ssl": seen.ssl if two else None,
            "sup": seen.sup if two else None,
            "lr": schedule.rates[0](last),
            "predictor_lr": schedule.rates[1](last) if recipe.heads.predictor is not None else None,
            "momentum": schedule.momentum(last) if recipe.branches.target == "momentum" else None,
            "std": trainer.monitor.note(seen.std),
            "images_per_second": images_per_second,
        }

    def close_epoch(self, targets: Tensor) -> None:
        """What an epoch ends with: the monitor's values, and the encoder and the projector as they are now."""
        trainer, recipe = self.trainer, self.trainer.recipe
        settings, ranks, branches = recipe.train, trainer.ranks, trainer.model.branches
        done = trainer.step // trainer.steps_per_epoch
        if settings.monitor_every and (done % settings.monitor_every == 0 or done == settings.epochs):
            row = {"kind": "monitor", "step": trainer.step, "epoch": done - 1}
            row |= ranks.on_rank0(lambda: self.monitor_values(targets, last=done == settings.epochs))
            trainer.monitor.load(ranks.on_rank0(trainer.monitor.state))  # the first rank has seen more than the others
            self.log.write(row)
            self.reporter.epoch_ended(row)
        own = [*trainer.inputs.images.store.new_remarks(), *compile_failures(trainer)]  # each rank read other images
        for remark in dict.fromkeys(chain.from_iterable(ranks.all_gather_object(own))):
            self.reporter.warn(remark)
        encoder: Any = branches.encoder
        ranks.on_rank0(lambda: self.writer.save_encoder(self.folder.encoder, encoder, self.data.classes, recipe.name))
        ranks.on_rank0(lambda: self.writer.save_projector(self.folder.projector, branches.projector, recipe.name))

    def monitor_values(self, targets: Tensor, last: bool) -> dict[str, Any]:
        trainer, model = self.trainer, self.trainer.model
        encoder: Any = model.branches.encoder
        half = trainer.recipe.train.precision == "bf16"
        return trainer.monitor.measure(encoder, targets, model.pool, trainer.device, half, last)

    # --- ends and alarms ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        state = self.trainer.state()
        self.trainer.ranks.on_rank0(lambda: self.writer.save(self.folder.checkpoints, self.trainer.step, state))

    def wait_for_writer(self) -> None:
        self.trainer.ranks.on_rank0(self.writer.wait)

    def save_and_warn(self, saves: bool) -> None:
        """A checkpoint where one is due, and one before the alarm of a collapse, which is raised once."""
        monitor = self.trainer.monitor
        collapsing = monitor.collapsed and not monitor.alarm_raised
        monitor.alarm_raised |= collapsing
        if saves or collapsing:
            self.save()
        if not collapsing:
            return
        text = alarm(self.trainer.recipe, monitor, self.trainer.step)
        if self.trainer.recipe.train.on_collapse == "stop":
            self.wait_for_writer()
            goes_on = self.trainer.step < self.trainer.steps
            raise Collapsed(text, all_the_same(self.folder.path) if goes_on else "")
        self.reporter.warn(text)

    def stop(self, number: int) -> None:
        """End at a signal, with the run saved."""
        self.wait_for_writer()
        name, at = signal.Signals(number).name, f"step {self.trainer.step} of {self.trainer.steps}"
        plugins = plugin_flags(self.folder.read_plugins())
        how = f"{program_name()} pretrain --resume --out {shlex.quote(str(self.folder.path))}{plugins}"
        raise Interrupted(f"stopped by {name} at {at}, saved; continue with: {how}", number)

    def go_back(self) -> None:
        """To the newest checkpoint, with the steps to skip as they are known now."""
        trainer, known = self.trainer, self.trainer.skipped_steps
        self.wait_for_writer()
        state, _ = trainer.ranks.on_rank0(lambda: load_newest(self.folder.checkpoints))
        if state is not None:
            trainer.load(state)
            self.log.rewind(trainer.step)
            trainer.skipped_steps = known


def report_compile_failures(trainer: Trainer, reporter: Reporter) -> None:
    """What the compiler could not do is said by the first rank; the others wait for the end of the epoch."""
    for line in compile_failures(trainer) if trainer.ranks.is_rank0 else ():
        reporter.warn(line)


def compile_failures(trainer: Trainer) -> list[str]:
    """Lines about what the compiler could not do since this was last asked."""
    who = "" if trainer.ranks.is_rank0 else "another rank: "
    return [f"{who}{line}; --set train.compile=false tries no more" for line in trainer.compilation.take_failures()]


def capture_step(trainer: Trainer, reporter: Reporter) -> None:
    """Record the step for replay; where that fails the run goes on without, and says what it costs."""
    try:
        trainer.capture()
    except RuntimeError as error:
        reporter.warn(
            f"the step could not be captured as a CUDA graph ({reason(error)}); going on without, at about "
            "0.4 of the speed for small images; --set train.replay=false tries no more"
        )
