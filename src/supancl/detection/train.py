"""Fine-tune a detector: a loop that can be stopped and resumed at any step, and a test at its end by COCO's AP."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.config import INCIDENTAL, fields_marked, from_json, to_json
from supancl.data.order import derive_seed
from supancl.detection import DetectSpec, detect_spec, learning_rate
from supancl.detection.model import Detector, build_detector, move_to_device, open_start, save_detector
from supancl.detection.scenes import (
    Batches,
    DetectData,
    Scenes,
    open_scenes,
    prepare_for_testing,
    prepare_for_training,
)
from supancl.detection.test import (
    SCORES,
    Detections,
    coco_evaluator,
    coco_scores,
    detect,
    percent,
    recompute_norm_statistics,
)
from supancl.distributed import require_single_process
from supancl.distributed.ranks import auto_precision, autocast_for, pick_device
from supancl.errors import BadInput, NonFinite
from supancl.evaluation.encoder import encoder_key
from supancl.evaluation.results import Row
from supancl.files import read_sealed_json, write_sealed_json
from supancl.reporter import Reporter
from supancl.runs.encoder_file import SCHEMA_VERSION
from supancl.runs.folder import RunFolder
from supancl.runs.importing import absolute_start
from supancl.runs.provenance import commit, versions
from supancl.training.loop import Loop, load_state_to_resume

STEP_STREAM = 7  # of random numbers, for sizes and regions


class DetectFolder(RunFolder):
    """detect.json, metrics.jsonl, checkpoints/, detector.safetensors, tensorboard/, evaluate/, pictures."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.recipe_file = path / "detect.json"
        self.detector = path / "detector.safetensors"

    def write_settings(self, settings: dict[str, Any]) -> None:
        content = {"schema_version": SCHEMA_VERSION, **settings, "versions": versions(), "commit": commit()}
        write_sealed_json(self.recipe_file, to_json(content))

    def check_same(self, settings: dict[str, Any]) -> None:
        """Refuse to continue a run with other settings, weights or images than it began with."""
        saved, now = self.read_settings()[3], to_json(settings)
        names = ("encoder", "weights", "training_images", "test_images")
        before = saved["spec"] | {name: saved.get(name) for name in names}
        for name, value in (now["spec"] | {name: now[name] for name in names}).items():
            if before.get(name, value) != value:
                raise BadInput(
                    f"{name} was {before[name]} in {self.recipe_file}, is {value}; restore it, or start another run"
                )

    def read_settings(self) -> tuple[DetectSpec, DetectData, str, dict[str, Any]]:
        """The spec, the data, the name of the encoder, and all of detect.json."""
        try:
            content = read_sealed_json(self.recipe_file)
            spec = from_json(DetectSpec, content["spec"], "")
            data = from_json(DetectData, content["data"], "data")
            return spec, data, str(content["encoder"]), content
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, BadInput) as error:
            raise BadInput(f"{self.recipe_file}: not the settings of a detector's run ({error}); restore it") from None


class DetectRun(NamedTuple):
    """A finished run: its test scores, logged rows, and its detections in the test images."""

    scores: dict[str, Any]
    metrics: list[dict[str, Any]]
    test: Scenes
    detections: list[Detections]


class Training:
    """Weights, optimizer and step, as saved in checkpoints. Random numbers are a function of seed and step."""

    def __init__(self, detector: Detector, device: torch.device) -> None:
        self.spec, self.device, self.precision = detector.spec, device, precision_of(detector.spec, device)
        self.detector = move_to_device(detector, device).train()
        self.optimizer = torch.optim.SGD(detector.parameter_groups(), lr=self.spec.lr, momentum=self.spec.momentum)
        self.step = 0
        self.loss_sums: dict[str, Tensor] = {}
        self.steps_summed = 0

    def advance(self, batches: Batches) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.spec, self.step)
        images, targets = batches(self.step)
        torch.manual_seed(derive_seed(self.spec.seed, STEP_STREAM, self.step))
        with autocast_for(self.device, self.precision):
            losses: dict[str, Tensor] = self.detector(images, targets)
        loss = torch.stack([value.float() for value in losses.values()]).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        zero = torch.zeros((), device=self.device)
        for name, value in {"loss": loss, **losses}.items():
            self.loss_sums[name] = self.loss_sums.get(name, zero) + value.detach().float()
        self.step, self.steps_summed = self.step + 1, self.steps_summed + 1

    def drain_losses(self) -> dict[str, float]:
        """Mean losses since the last call; raises NonFinite if one is not finite."""
        means = {name: float(value) / self.steps_summed for name, value in self.loss_sums.items()}
        self.loss_sums, self.steps_summed = {}, 0
        if not all(map(math.isfinite, means.values())):
            raise NonFinite(f"the loss is not finite at or before step {self.step}; lower lr, or give precision fp32")
        return means

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "detector": self.detector.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.detector.load_state_dict(state["detector"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])


def train_detector(
    encoder: str, data: DetectData, spec: DetectSpec, out: Path | str, *, resume: bool = False,
    reporter: Reporter | None = None,
) -> DetectRun:  # fmt: skip
    """Fine-tune a detector from an encoder (see `open_start`), test it, and save everything in `out`."""
    require_single_process("a detector")
    reporter, encoder = reporter or Reporter(), absolute_start(encoder)
    coco_evaluator()  # raises now, not after training, if pycocotools is missing
    device = pick_device(spec.device)
    start = open_start(encoder, spec.seed)  # cheap checks first
    folder = DetectFolder(Path(out))
    folder.check_free(resume)
    train, test = open_scenes(data)
    train = prepare_for_training(train, spec.train_difficult, spec.keep_empty, spec.memory_gb)
    test = prepare_for_testing(test, spec.memory_gb, spec.test_limit)
    with folder.claim(resume), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        settings = {
            "spec": spec,
            "data": data,
            "encoder": encoder,
            "weights": "" if encoder.startswith("random:") else encoder_key(start),
            "training_images": train.fingerprint(),
            "test_images": test.fingerprint(),
        }
        training = Training(build_detector(start, spec, train.classes), device)
        if folder.has_run:
            folder.check_same(settings)
            if (state := load_state_to_resume(folder.checkpoints, reporter)) is not None:
                training.load(state)
                reporter.note(f"continuing at step {training.step} of {spec.iters}")
        else:
            folder.write_settings(settings)
        folder.keep_metrics_until(training.step)
        reporter.note(
            f"{spec.arch} detector from {encoder}: images {len(train)}, test images {len(test)}, classes "
            f"{len(train.classes)}; {device}, {training.precision} -> {folder.path}"
        )
        with DetectLoop(training, train, test, folder, resume, reporter) as loop:
            loop.run()
            scores, detections = loop.measure()
        save_detector(folder.detector, training.detector)
        folder.write_evaluation("detect", {**scores, "data": test.location, "iters": spec.iters, "seed": spec.seed})
        return DetectRun(scores, folder.metrics(), test, detections)


def precision_of(spec: DetectSpec, device: torch.device) -> str:
    """The precision of a run with this recipe on this device."""
    return auto_precision(device) if spec.precision == "auto" else spec.precision


class DetectLoop(Loop):
    """The loop of a detector's training, with tests every `eval_every` steps."""

    command, logs_saves = "detect train", True

    def __init__(
        self, training: Training, train: Scenes, test: Scenes, folder: DetectFolder, resumed: bool, reporter: Reporter
    ) -> None:
        super().__init__(folder, training.step if resumed else None, reporter)
        self.training, self.spec, self.scenes, self.test = training, training.spec, train, test
        self.log_every, self.checkpoint_every = self.spec.log_every, self.spec.checkpoint_every
        self.batches = Batches(train, self.spec, training.device, self.spec.iters)

    @property
    def step(self) -> int:  # type: ignore[override]
        return self.training.step

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.spec.iters

    def advance(self) -> int:
        self.training.advance(self.batches)
        self.reporter.on_progress("training the detector", self.step, self.steps)
        return self.spec.batch_size

    def row(self) -> dict[str, Any] | None:
        if not self.training.steps_summed:
            return None
        losses = self.training.drain_losses()  # waits for the device, so that the time is right
        return {"kind": "train", "step": self.step, **losses, "lr": learning_rate(self.spec, self.step - 1)}

    def part_ends(self) -> bool:
        every = self.spec.eval_every
        return self.step == self.steps or (every > 0 and self.step % every == 0)

    def end_part(self) -> None:
        if self.step < self.steps:  # the last test follows the last checkpoint
            self.measure()

    def state(self) -> dict[str, Any]:
        return self.training.state()

    def close_inputs(self) -> None:
        self.batches.__exit__()

    def measure(self) -> tuple[dict[str, Any], list[Detections]]:
        """Run precise BN, detect in every test image, and compute COCO's scores."""
        training, spec, device = self.training, self.spec, self.training.device
        with Batches(self.scenes, spec, device, spec.precise_bn) as batches:
            recompute_norm_statistics(training.detector, batches, spec.precise_bn, training.precision, spec.seed)
        detections = detect(training.detector, self.test, device, training.precision, self.reporter.on_progress)
        scores = coco_scores(self.test, detections)
        memory = {"peak_memory_gb": torch.cuda.max_memory_allocated(device) / 1e9} if device.type == "cuda" else {}
        self.write({"kind": "test", "step": self.step, **{name: scores[name] for name in SCORES}, **memory})
        self.reporter.note(f"step {self.step}: {'  '.join(f'{name} {percent(scores[name])}' for name in SCORES)}")
        return scores | memory, detections


# --- results ----------------------------------------------------------------------------------------------------------


def detector_rows(path: Path) -> list[Row]:
    """The scores of the detectors of `supancl detect train` in this very folder: of one, or of one per seed."""
    seeds = sorted(file.parent for file in path.glob("seed-*/detect.json"))
    return [row for each in ([path] if DetectFolder(path).has_run else seeds) for row in _rows_of(DetectFolder(each))]


def _rows_of(folder: DetectFolder) -> list[Row]:
    spec, _, encoder, settings = folder.read_settings()
    file = folder.evaluations / "detect.json"
    try:
        scores = read_sealed_json(file)
        values = {metric: scores[metric] for metric in ("AP", "AP50")}
    except (OSError, ValueError, KeyError):
        raise BadInput(f"{file}: no scores of a detector; test it with supancl detect eval {folder.path}") from None
    usual, ignored = detect_spec(spec.arch, {"iters": spec.iters}), fields_marked(spec, INCIDENTAL)
    names = (name for name in to_json(spec) if name not in ignored and getattr(spec, name) != getattr(usual, name))
    changed = "".join(f", {name} {getattr(spec, name)}" for name in names)
    data = Path(str(scores.get("data", ""))).name
    detector = (
        f"{spec.arch} detector, {spec.iters} iterations{changed}, tested on {scores.get('images')} images of {data} "
        f"(images {settings.get('training_images')}, {settings.get('test_images')})"
    )
    about: dict[str, Any] = {"seed": spec.seed, "digest": str(settings.get("weights") or ""), "name": str(folder.path)}
    return [
        Row(encoder, data, "detect", metric, value, {"detector": detector}, **about)
        for metric, value in values.items()
        if isinstance(value, (int, float))
    ]
