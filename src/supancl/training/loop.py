"""The training loop: around the step, a run that can be stopped anywhere and says when it goes wrong."""

from __future__ import annotations

import copy
import shlex
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.data.splits import Data, open_data
from supancl.data.store.stream import stream_remarks
from supancl.distributed import Ranks, desynchronize, opened
from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite, program
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.recipes.recipe import describe_resolution
from supancl.reporter import Reporter
from supancl.training.cuda.capture import from_compiler
from supancl.training.cuda.layers import plain
from supancl.training.cuda.reuse import is_kept, trainer_for
from supancl.training.monitor import alarm, all_the_same, going_on
from supancl.training.preflight import (
    check_data,
    check_ranks,
    check_same_data,
    check_same_device,
    determinism,
    folder_of,
    out_of_memory,
    own_folder,
    pick_device,
    settled,
    too_large,
    with_speed,
)
from supancl.training.signals import signals_noted
from supancl.training.step import WARM_UP, Look, Trainer
from supancl.weights.checkpoint import load_newest
from supancl.weights.encoder_file import initialize, readable, save_encoder, save_projector
from supancl.weights.metrics_log import MetricsLog, NoLog
from supancl.weights.run_folder import RunFolder
from supancl.weights.writer import Writer

MOST_SKIPS = 20  # steps without a finite loss, before a run that skips them gives up
MOST_ROLLBACKS = 3
KEPT = ("on_nan", "on_collapse")  # settings of recipe.json that a run may go on with otherwise than it began


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
    if recipe is not None and data is not None and "source" in data.described:
        recipe = replace(recipe, data=replace(recipe.data, source=str(data.described["source"])))
    with opened(torch.cuda.is_available()) as ranks:
        reporter = reporter if reporter is not None and ranks.leads else Reporter()
        return _pretrained(recipe, data, out, resume, init, reporter, ranks)


def _pretrained(
    recipe: Recipe | None,
    data: Data | None,
    out: Path | str | None,
    resume: bool,
    init: Path | str | None,
    reporter: Reporter,
    ranks: Ranks,
) -> Run:
    settings = ranks.once(lambda: settled(recipe, folder_of(recipe, out), resume, init))
    if recipe is not None and (line := describe_resolution(recipe, settings)):
        reporter.note(line)
    device, found = ranks.each(lambda: _means(settings, data, reporter, ranks))
    chosen = with_speed(settings, device, len(found.train), ranks.size)
    for name in KEPT:
        if recipe is not None and getattr(recipe.train, name) != getattr(chosen.train, name):
            reporter.note(f"goes on with train.{name} = {getattr(chosen.train, name)!r}, as recipe.json has it")
    for remark in found.remarks:
        reporter.warn(remark)
    with ExitStack() as stack:
        folder = RunFolder(ranks.once(lambda: stack.enter_context(own_folder(chosen, out, resume))))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(determinism(chosen.train.deterministic))
        try:
            trainer = _trained(chosen, found, device, folder, resume, init, reporter, ranks)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise BadInput(too_large(chosen, device)) from None
    desynchronize(trainer.branches)
    trainer.branches.join(1)  # whoever trains it further brings batches of their own
    plain(trainer.branches)
    encoder: Encoder = trainer.branches.encoder  # type: ignore[assignment]
    if is_kept(trainer):
        encoder = copy.deepcopy(encoder)
    return Run(folder.path, encoder.eval(), ranks.once(folder.metrics), trainer.monitor.collapsed)


def _means(recipe: Recipe, data: Data | None, reporter: Reporter, ranks: Ranks) -> tuple[torch.device, Data]:
    """The device and the data of this process, which fit the recipe and each other."""
    device = pick_device(recipe.train.device, None if ranks.size == 1 else ranks.local)
    if data is None:
        data = open_data(recipe.data, recipe.encoder.channels, reporter.reading)
    check_data(recipe, data)
    check_ranks(recipe, ranks.size)
    return device, data


def _trained(
    recipe: Recipe,
    data: Data,
    device: torch.device,
    folder: RunFolder,
    resume: bool,
    init: Path | str | None,
    reporter: Reporter,
    ranks: Ranks,
) -> Trainer:
    ranks.alike(data.described.get("fingerprint"), "the data")
    trainer = trainer_for(recipe, data, device, reporter.reading, ranks)
    with Writer() as writer:  # however the run ends, what is being written is first finished
        _begin(trainer, data, folder, resume, init, reporter, writer)
        log = MetricsLog(folder, trainer.step if resume else None) if ranks.leads else NoLog()
        try:
            _loop(trainer, folder, data, log, reporter, writer)
        finally:
            trainer.feed.close()
            log.close()
            reporter.ends()
    return trainer


def _begin(
    trainer: Trainer,
    data: Data,
    folder: RunFolder,
    resume: bool,
    init: Path | str | None,
    reporter: Reporter,
    writer: Writer,
) -> None:
    recipe, ranks = trainer.recipe, trainer.ranks
    if init is not None:
        trainer.branches.encoder.load_state_dict(ranks.once(lambda: _initial(trainer, init)))
        trainer.branches.copy_to_target()
    state = ranks.once(lambda: state_to_resume(folder.checkpoints, reporter)) if resume else None
    if state is not None:
        ranks.once(lambda: check_same_data(folder, data))
        check_same_device(folder, state, trainer.device)
        trainer.load(state)
        if trainer.monitor.collapsed and trainer.step < trainer.steps:
            reporter.warn(going_on(recipe, trainer.step, folder.path))
    ranks.once(lambda: _write_start(trainer, data, folder))
    if recipe.train.on_nan == "rollback" and state is None:
        _save(trainer, folder, writer)  # so that there is something to go back to
        ranks.once(writer.wait)
    if recipe.loss.sees_batch(trainer.pool) and recipe.train.accumulate > 1:
        reporter.note(
            f"with train.accumulate = {recipe.train.accumulate} the loss compares images within a "
            f"micro-batch of {recipe.train.batch_size // recipe.train.accumulate}, not the whole batch"
        )
    if recipe.train.compile and recipe.train.sync_norm and ranks.size > 1:
        reporter.note(
            "several ranks whose norms see the whole batch compile no more than views and pool (on a GPU); "
            "with --set train.sync_norm=false they compile the branches, and norms see a rank's own images"
        )
    if trainer.device.type == "cuda" and recipe.train.replay and not trainer.feed.one_shape:
        reporter.note(
            "batches change their shape, so the step is not captured, at about 0.4 of the speed for small "
            "images; crop the largest images"
        )
    where = str(trainer.device) if ranks.size == 1 else f"{ranks.size} ranks on {trainer.device.type}"
    reporter.begins(recipe, data, folder.path, where, trainer.step, trainer.steps)


def _initial(trainer: Trainer, init: Path | str) -> dict[str, Tensor]:
    initialize(trainer.branches.encoder, init)  # type: ignore[arg-type]
    return {name: value.cpu() for name, value in trainer.branches.encoder.state_dict().items()}


def _write_start(trainer: Trainer, data: Data, folder: RunFolder) -> None:
    folder.tidy()
    if trainer.step == 0:  # one that ended before its first checkpoint begins anew, on the data as they are now
        folder.write_recipe(trainer.recipe, data.classes, data.described)
    else:
        for name in KEPT if trainer.step < trainer.steps else ():  # what is left of the run hangs on them
            folder.note_setting(trainer.recipe, "train", name)
        folder.note_setting(trainer.recipe, "data", "source")  # they may have moved
    if trainer.step == trainer.steps and not readable(folder.encoder):  # no epoch is left that would end with it
        save_encoder(folder.encoder, trainer.branches.encoder, data.classes, trainer.recipe.name)  # type: ignore[arg-type]
    if trainer.step == trainer.steps and not readable(folder.projector):
        save_projector(folder.projector, trainer.branches.projector, trainer.recipe.name)
    folder.keep_metrics_until(trainer.step)


def _save(trainer: Trainer, folder: RunFolder, writer: Writer) -> None:
    state = trainer.state()
    trainer.ranks.once(lambda: writer.save(folder.checkpoints, trainer.step, state))


def state_to_resume(checkpoints: Path, reporter: Reporter) -> dict[str, Any] | None:
    """The newest sound checkpoint of a run; what was passed over, or that there is none, is said."""
    state, damaged = load_newest(checkpoints)
    for line in damaged:
        reporter.warn(f"{line}; going on from the one before it")
    if state is None:
        reporter.note(f"{checkpoints.parent} holds no checkpoint yet: starting at step 0")
    return state


def _loop(trainer: Trainer, folder: RunFolder, data: Data, log: MetricsLog, reporter: Reporter, writer: Writer) -> None:
    settings = trainer.recipe.train
    rollbacks, since, images = 0, time.perf_counter(), 0
    targets = torch.empty(0)
    with signals_noted() as received:
        while trainer.step < trainer.steps:
            if trainer.step in trainer.bad_steps:
                trainer.step += 1
            else:
                if trainer.warmed == WARM_UP and trainer.replay is None:
                    writer.wait()  # while a step is recorded, no other thread may wait for the GPU
                    _capture(trainer, reporter)
                stepped = _advanced(trainer, reporter)
                if stepped is None:
                    rollbacks = _not_finite(trainer, trainer.step, folder, data, rollbacks, log, reporter, writer)
                    continue
                targets, images = stepped, images + settings.batch_size
            stop = trainer.ranks.stopped(received)  # whichever rank was told to
            row, epoch_ends = None, trainer.step % trainer.steps_per_epoch == 0
            often = settings.checkpoint_every is not None and trainer.step % settings.checkpoint_every == 0
            looks = trainer.step % settings.log_every == 0 or epoch_ends
            seen = trainer.look(targets) if looks else None
            bad = seen.bad_step if seen is not None else trainer.bad_step() if often or stop else None
            if bad is not None:
                rollbacks = _not_finite(trainer, bad, folder, data, rollbacks, log, reporter, writer)
                continue
            if seen is not None:
                row = _train_row(trainer, seen, images / max(time.perf_counter() - since, 1e-9))
                log.write(row)
                since, images = time.perf_counter(), 0
            reporter.stepped(trainer.step, row)
            if (epoch_ends or often or stop) and not trainer.sound():
                raise NonFinite(
                    f"the weights are not finite numbers after step {trainer.step}; nothing was saved over "
                    "the last checkpoint",
                    "try a lower --set optimizer.lr",
                )
            if epoch_ends:
                _close_epoch(trainer, folder, data, targets, log, reporter, writer)
                since = time.perf_counter()
            collapsing = trainer.monitor.collapsed and not trainer.monitor.told
            trainer.monitor.told |= collapsing
            if epoch_ends or often or stop or collapsing:
                _save(trainer, folder, writer)
            if collapsing:
                _tell_collapse(trainer, folder, reporter, writer)
            if stop and trainer.step < trainer.steps:
                trainer.ranks.once(writer.wait)
                name = signal.Signals(stop).name
                how = f"{program()} pretrain --resume --out {shlex.quote(str(folder.path))}"
                at = f"step {trainer.step} of {trainer.steps}"
                raise Interrupted(f"stopped by {name} at {at}, saved; continue with: {how}", stop)
        trainer.ranks.once(writer.wait)


def _advanced(trainer: Trainer, reporter: Reporter) -> Tensor | None:
    """The next step; where the compiler fails at it, the step is taken as written, and so are all that follow."""
    try:
        targets = trainer.advance()
    except Exception as error:
        if not trainer.compiled or trainer.ranks.size > 1 or not from_compiler(error):
            raise  # several ranks have exchanged by now, and none may begin the step anew
        trainer.compile(False)
        reporter.warn(
            f"the step could not be compiled ({reason(error)}); going on as written, at about 0.6 of the "
            "speed; --set train.compile=false tries no more"
        )
        targets = trainer.advance()
    if trainer.ranks.leads:
        for remark in _uncompiled(trainer):
            reporter.warn(remark)
    return targets


def _uncompiled(trainer: Trainer) -> list[str]:
    """What the compiler could not do since this was last asked."""
    said, trainer.unsaid = trainer.unsaid, []
    who = "" if trainer.ranks.leads else "another rank: "
    return [f"{who}{each}; done as written, which is slower; --set train.compile=false tries no more" for each in said]


def _capture(trainer: Trainer, reporter: Reporter) -> None:
    """Record the step for replay; where that fails the run goes on without, and says what it costs."""
    try:
        trainer.capture()
    except RuntimeError as error:
        trainer.warmed = WARM_UP + 1
        trainer.replay = None
        reporter.warn(
            f"the step could not be captured as a CUDA graph ({reason(error)}); going on without, at about "
            "0.4 of the speed for small images; --set train.replay=false tries no more"
        )


def _train_row(trainer: Trainer, seen: Look, images_per_second: float) -> dict[str, Any]:
    last, terms = trainer.step - 1, trainer.recipe.loss.kind not in ("contrast", "crossentropy")
    return {
        "kind": "train",
        "step": trainer.step,
        "epoch": last // trainer.steps_per_epoch,
        "loss": seen.loss,
        "ssl": seen.ssl if terms else None,  # those losses have one term
        "sup": seen.sup if terms else None,
        "lr": trainer.rates[0](last),
        "predictor_lr": trainer.rates[1](last) if trainer.recipe.heads.predictor is not None else None,
        "momentum": trainer.momentum_at(last) if trainer.recipe.branches.target == "momentum" else None,
        "std": trainer.monitor.note(seen.std),
        "images_per_second": images_per_second,
    }


def _close_epoch(
    trainer: Trainer,
    folder: RunFolder,
    data: Data,
    targets: Tensor,
    log: MetricsLog,
    reporter: Reporter,
    writer: Writer,
) -> None:
    """What an epoch ends with: the monitor's values, and the encoder and the projector as they are now."""
    settings, encoder = trainer.recipe.train, trainer.branches.encoder
    done = trainer.step // trainer.steps_per_epoch
    if settings.monitor_every and (done % settings.monitor_every == 0 or done == settings.epochs):
        row = {"kind": "monitor", "step": trainer.step, "epoch": done - 1}
        half, last = settings.precision == "bf16", done == settings.epochs
        row |= trainer.ranks.once(
            lambda: trainer.monitor.measure(encoder, targets, trainer.pool, trainer.device, half, last)  # type: ignore[arg-type]
        )
        trainer.monitor.load(trainer.ranks.once(trainer.monitor.state))  # the first rank has seen more than the others
        log.write(row)
        reporter.epoch_ended(row)
    own = [*stream_remarks(trainer.train_images.store), *_uncompiled(trainer)]  # each rank has read other images
    for remark in dict.fromkeys(chain.from_iterable(trainer.ranks.everyones(own))):
        reporter.warn(remark)
    trainer.ranks.once(lambda: writer.save_encoder(folder.encoder, encoder, data.classes, trainer.recipe.name))  # type: ignore[arg-type]
    trainer.ranks.once(lambda: writer.save_projector(folder.projector, trainer.branches.projector, trainer.recipe.name))


def _tell_collapse(trainer: Trainer, folder: RunFolder, reporter: Reporter, writer: Writer) -> None:
    text = alarm(trainer.recipe, trainer.monitor, trainer.step)
    if trainer.recipe.train.on_collapse == "stop":
        trainer.ranks.once(writer.wait)
        raise Collapsed(text, all_the_same(folder.path) if trainer.step < trainer.steps else "")
    reporter.warn(text)


def _not_finite(
    trainer: Trainer,
    step: int,
    folder: RunFolder,
    data: Data,
    rollbacks: int,
    log: MetricsLog,
    reporter: Reporter,
    writer: Writer,
) -> int:
    """Stop, pass the step over, or go back to the last checkpoint and pass it over then."""
    policy, files = trainer.recipe.train.on_nan, data.train.named(trainer.order.positions(step))
    shown = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    what = f"the loss or its gradient is not a finite number at step {step} (images {shown})"
    half = trainer.recipe.train.precision == "bf16"
    anew = "start anew with a lower --set optimizer.lr" + (" or --precision fp32" if half else "")
    resume = f"{program()} pretrain --resume --on-nan skip --out {shlex.quote(str(folder.path))}"
    without = f"to go on without such steps, looking at every loss (slower on a GPU): {resume}"
    if policy == "stop":
        raise NonFinite(what, f"{without}; or {anew}")
    if policy == "rollback":
        if rollbacks >= MOST_ROLLBACKS:
            raise NonFinite(f"{what}, after {rollbacks} rollbacks", f"{without}; or {anew}")
        trainer.ranks.once(writer.wait)
        known, (state, _) = trainer.bad_steps, trainer.ranks.once(lambda: load_newest(folder.checkpoints))
        if state is not None:
            trainer.load(state)
            log.rewind(trainer.step)
            trainer.bad_steps = known
        reporter.warn(f"{what}; back to step {trainer.step}, this batch will be left out")
    else:
        reporter.warn(f"{what}; step skipped")
    trainer.bad_steps.append(step)
    if policy == "skip" and len(trainer.bad_steps) > MOST_SKIPS:
        raise NonFinite(f"{what}, after {MOST_SKIPS} skipped steps", anew)
    return rollbacks + 1
