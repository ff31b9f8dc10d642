"""Fine-tuning a detector: a loop that can be stopped anywhere, and a test at its end."""

from __future__ import annotations

import math
import shlex
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import AUTOMATIC, fields_marked, flattened, to_json
from supancl.core.encoders import EncoderSpec
from supancl.core.precision import auto_precision, autocast_for
from supancl.data.order import derive_seed
from supancl.detect.batches import Batches
from supancl.detect.layouts import DetectData, open_scenes
from supancl.detect.metrics import Found, coco_counter, coco_scores
from supancl.detect.model import (
    Detector,
    absolute_encoder,
    build_detector,
    encoder_weights,
    laid_out,
    normalization_of,
    open_body,
)
from supancl.detect.saving import DetectFolder, save_detector
from supancl.detect.scenes import Scenes, for_testing, for_training
from supancl.detect.spec import DetectSpec, rate
from supancl.detect.testing import detect, measure_norms
from supancl.distributed import require_single_process
from supancl.errors import BadInput, Interrupted, NonFinite, plural
from supancl.reporter import Reporter
from supancl.stats import seed_stats
from supancl.training.begin import load_state_to_resume
from supancl.training.preflight import pick_device
from supancl.training.signals import record_signals
from supancl.weights.checkpoint import save_checkpoint
from supancl.weights.metrics_log import MetricsLog

STEPS = 7  # which stream of random numbers draws sizes and regions


@dataclass(frozen=True, eq=False)
class DetectRun:
    """A finished run: its folder, its test scores, the logged rows, and what it found in the test images."""

    folder: Path
    scores: dict[str, Any]
    metrics: list[dict[str, Any]]
    test: Scenes
    found: list[Found]


class Training:
    """Weights, optimizer and step: what a checkpoint holds. Random numbers are a function of seed and step."""

    def __init__(self, detector: Detector, device: torch.device, precision: str) -> None:
        self.spec, self.device, self.precision = detector.spec, device, precision
        self.detector = laid_out(detector, device).train()
        self.optimizer = torch.optim.SGD(detector.groups(), lr=self.spec.lr, momentum=self.spec.momentum)
        self.step = 0
        self.total: dict[str, Tensor] = {}
        self.summed = 0

    def advance(self, batches: Batches) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.spec, self.step)
        images, targets = batches(self.step)
        torch.manual_seed(derive_seed(self.spec.seed, STEPS, self.step))
        with autocast_for(self.device, self.precision):
            losses: dict[str, Tensor] = self.detector(images, targets)
        loss = torch.stack([value.float() for value in losses.values()]).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        for name, value in {"loss": loss, **losses}.items():
            self.total[name] = self.total.get(name, torch.zeros((), device=self.device)) + value.detach().float()
        self.step, self.summed = self.step + 1, self.summed + 1

    def mean_since(self) -> dict[str, float]:
        """The losses since the last call; one that is no number ends the run."""
        means = {name: float(value) / self.summed for name, value in self.total.items()}
        self.total, self.summed = {}, 0
        if not all(value == value and abs(value) != float("inf") for value in means.values()):
            raise NonFinite(
                f"the loss is not a finite number at or before step {self.step}; try a lower --set "
                "lr=VALUE, a longer --set warmup=N, or --precision fp32"
            )
        return means

    def state(self) -> dict[str, Any]:
        return {
            "kind": "detector",
            "step": self.step,
            "detector": self.detector.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any], folder: DetectFolder) -> None:
        if state.get("kind") != "detector":
            raise BadInput(f"{folder.checkpoints} holds checkpoints of another kind of run; choose another --out")
        self.detector.load_state_dict(state["detector"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])


def train_detector(
    encoder: str, data: DetectData, spec: DetectSpec, out: Path | str, *, resume: bool = False,
    reporter: Reporter | None = None,
) -> DetectRun:  # fmt: skip
    """Fine-tune a detector from an encoder (see `open_body`), test it, and keep everything in `out`."""
    require_single_process("a detector")
    reporter, encoder = reporter or Reporter(), absolute_encoder(encoder)
    coco_counter()  # whether the test can be counted is asked before the work
    device = pick_device(spec.device)
    body, encoder_spec = open_body(encoder, spec.seed)  # what costs little is looked at first
    folder = DetectFolder(Path(out))
    folder.check_place()
    folder.check_free(resume)
    train, test = open_scenes(data)
    for remark in (*train.remarks, *test.remarks):
        reporter.warn(remark)
    train = for_training(train, spec.train_difficult, spec.keep_empty, spec.memory_gb)
    test = for_testing(test, spec.memory_gb)
    folder.create()
    with folder.locked(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        folder.check_free(resume)  # again: reading the images takes time
        settings = {
            "spec": spec,
            "data": data,
            "encoder": encoder,
            "weights": encoder_weights(encoder),
            "encoder_spec": encoder_spec,
            "classes": train.classes,
            "fingerprint": train.fingerprint(),
            "test_fingerprint": test.fingerprint(),
            "train_images": len(train),
            "test_images": len(test),
        }
        detector = build_detector(body, spec, len(train.classes), normalization_of(encoder_spec))
        training = Training(detector, device, precision_of(spec, device))
        _begin(training, folder, settings, resume, reporter)
        log = MetricsLog(folder, training.step if resume else None)
        try:
            return _loop(training, train, test, folder, encoder_spec, log, reporter)
        finally:
            log.close()
            reporter.ends()


def precision_of(spec: DetectSpec, device: torch.device) -> str:
    """What a run of this recipe computes in on this device."""
    return auto_precision(device) if spec.precision == "auto" else spec.precision


def _begin(
    training: Training, folder: DetectFolder, settings: dict[str, Any], resume: bool, reporter: Reporter
) -> None:
    if resume and folder.holds_run:
        kept, _, encoder, content = folder.read_settings()
        _same(kept, training.spec, folder)
        told = {
            "encoder": (encoder, settings["encoder"]),
            "the encoder's weights": (content.get("weights"), settings["weights"]),
            "the training images": (content.get("fingerprint"), settings["fingerprint"]),
            "the test images": (content.get("test_fingerprint"), settings["test_fingerprint"]),
        }
        for name, (was, now) in told.items():
            if was is not None and was != now:
                raise BadInput(
                    f"{name} changed since {folder.path} began ({was} -> {now}); bring back what it was, or "
                    "start another run"
                )
        state = load_state_to_resume(folder.checkpoints, reporter)
        if state is not None:
            training.load(state, folder)
            reporter.note(f"going on at step {training.step} of {training.spec.iters}")
    else:
        folder.write_settings(settings)
    folder.keep_metrics_until(training.step)
    reporter.note(
        f"{training.spec.arch} detector from {settings['encoder']}: {settings['train_images']} training "
        f"and {plural(settings['test_images'], 'test image')}, "
        f"{plural(len(settings['classes']), 'class', 'classes')}; {training.device}, "
        f"{training.precision} -> {folder.path}"
    )


def _same(kept: DetectSpec, asked: DetectSpec, folder: DetectFolder) -> None:
    old, new, left_open = flattened(kept), flattened(asked), fields_marked(asked, AUTOMATIC)
    for name, value in new.items():
        if to_json(value) != to_json(old[name]) and left_open.get(name) != value:
            raise BadInput(
                f"{name} = {value!r} differs from {old[name]!r} in {folder.recipe_file}; a run continues "
                "with its own settings"
            )


def _loop(
    training: Training, train: Scenes, test: Scenes, folder: DetectFolder, encoder: EncoderSpec, log: MetricsLog,
    reporter: Reporter,
) -> DetectRun:  # fmt: skip
    spec, row = training.spec, None
    tested = any(each["kind"] == "test" and each["step"] == training.step for each in folder.metrics())
    with Batches(train, spec, training.device, spec.iters) as batches, record_signals() as received:
        if _test_is_due(training) and not tested:  # the run was stopped before it
            _test(training, train, test, log, reporter)
        since, images = time.perf_counter(), 0
        while training.step < spec.iters:
            training.advance(batches)
            images += spec.batch_size
            ends, stops = training.step == spec.iters, bool(received)  # asked once: what stops here is saved here
            saves = ends or stops or training.step % spec.checkpoint_every == 0 or _test_is_due(training)
            if training.step % spec.log_every == 0 or saves:
                losses = training.mean_since()  # waits for the device, so that the time below is the true one
                row = {
                    "kind": "train",
                    "step": training.step,
                    **losses,
                    "lr": rate(spec, training.step - 1),
                    "images_per_second": images / max(time.perf_counter() - since, 1e-9),
                }
                log.write(row)
                since, images = time.perf_counter(), 0
            reporter.reading("training the detector", training.step, spec.iters)
            reporter.stepped(training.step, row)
            if saves:  # before the test, which may take longer than whoever stops the run will wait
                save_checkpoint(folder.checkpoints, training.step, training.state())
            if stops and not ends:
                name = signal.Signals(received[0]).name
                how = f"supancl detect train --resume --out {shlex.quote(str(folder.path))}"
                raise Interrupted(
                    f"stopped by {name} at step {training.step} of {spec.iters}, saved; continue with: {how}",
                    received[0],
                )
            if _test_is_due(training):
                _test(training, train, test, log, reporter)
                since = time.perf_counter()
    scores, found = _test(training, train, test, log, reporter)
    scores |= _memory(training.device)
    save_detector(folder.detector, training.detector, encoder, train.classes)
    folder.write_evaluation("detect", {**scores, "data": test.where, "iters": spec.iters, "seed": spec.seed})
    return DetectRun(folder.path, scores, folder.metrics(), test, found)


def _test_is_due(training: Training) -> bool:
    """A test on the way; the one at the end is always made."""
    step, spec = training.step, training.spec
    return 0 < step < spec.iters and spec.eval_every > 0 and step % spec.eval_every == 0


def _test(
    training: Training, train: Scenes, test: Scenes, log: MetricsLog, reporter: Reporter
) -> tuple[dict[str, Any], list[Found]]:
    """Precise BN, every test image, COCO's counting."""
    spec = training.spec
    with Batches(train, spec, training.device, spec.precise_bn) as batches:
        measure_norms(training.detector, batches, spec.precise_bn, training.precision, spec.seed)
    found = detect(training.detector, test, training.device, training.precision, reporter.reading)
    scores = coco_scores(test, found)
    row = {"kind": "test", "step": training.step, **{name: scores[name] for name in ("AP", "AP50", "AP75")}}
    log.write(row | _memory(training.device))
    reporter.note(f"step {training.step}: {told(scores)}")
    return scores, found


def _memory(device: torch.device) -> dict[str, float]:
    """The most that tensors have taken on a GPU since the process began, training and testing."""
    return {"peak_memory_gb": torch.cuda.max_memory_allocated(device) / 1e9} if device.type == "cuda" else {}


def told(scores: dict[str, Any]) -> str:
    names = ("AP", "AP50", "AP75")
    return "  ".join(f"{name} {scores[name]:.2f}" if scores[name] is not None else f"{name} -" for name in names)


def spread(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Mean and sample standard deviation of AP, AP50 and AP75 over seeds; one seed has no deviation."""
    result: dict[str, dict[str, float | int | None]] = {}
    for name in ("AP", "AP50", "AP75"):
        values = [run[name] for run in runs if run[name] is not None]
        mean, sd = seed_stats(values, statistics.mean)  # not fmean: files keep every bit of it
        result[name] = {
            "mean": None if math.isnan(mean) else mean,
            "std": None if math.isnan(sd) else sd,
            "n": len(values),
        }
    return result
