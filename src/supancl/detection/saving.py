"""Detectors on disk: detector.safetensors, which needs nothing else, the run folder, and weights for torchvision."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.config import flattened, from_json, parse_json, to_json
from supancl.core.encoders import EncoderSpec
from supancl.detection.layouts import DetectData
from supancl.detection.model import Detector, build_detector, copy_resnet, normalization_of, open_body
from supancl.detection.spec import DetectSpec, detect_spec
from supancl.errors import BadInput
from supancl.evaluation.rows import Row
from supancl.files import Output, did_you_mean_path, is_as_written, read_text, write_sealed_json
from supancl.runs.checkpoint import save_with_torch
from supancl.runs.encoder_file import SCHEMA_VERSION, read_header, read_safetensors, save_safetensors
from supancl.runs.folder import RunFolder
from supancl.runs.provenance import commit, versions


@dataclass(frozen=True)
class LoadedDetector:
    """A detector in eval mode, its encoder's spec and its class names."""

    detector: Detector
    encoder: EncoderSpec
    classes: tuple[str, ...]


class DetectFolder(RunFolder):
    """detect.json, metrics.jsonl, checkpoints/, detector.safetensors, tensorboard/, evaluate/, pictures."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.recipe_file = path / "detect.json"
        self.detector = path / "detector.safetensors"

    def write_settings(self, settings: dict[str, Any]) -> None:
        content = {"schema_version": SCHEMA_VERSION, **settings, "versions": versions(), "commit": commit()}
        write_sealed_json(self.recipe_file, to_json(content))

    def read_settings(self) -> tuple[DetectSpec, DetectData, str, dict[str, Any]]:
        """The spec, the data, the name of the encoder, and all of detect.json."""
        try:
            content = parse_json(read_text(self.recipe_file))
            if not is_as_written(content):
                raise ValueError("it differs from its digest")
            spec = from_json(DetectSpec, content["spec"], "")
            data = from_json(DetectData, content["data"], "data")
            return spec, data, str(content["encoder"]), content
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{self.path} holds no detector run (detect.json); give the folder of one") from None
        except (ValueError, KeyError, TypeError, RecursionError, BadInput) as error:
            raise BadInput(f"{self.recipe_file}: damaged ({error}); restore it, or choose another out") from None


def save_detector(path: Path, detector: Detector, encoder: EncoderSpec, classes: tuple[str, ...]) -> None:
    weights = {name: value.detach().cpu().clone() for name, value in detector.state_dict().items()}
    metadata = {
        "schema_version": str(SCHEMA_VERSION), "kind": "detector", "spec": json.dumps(to_json(detector.spec)),
        "encoder": json.dumps(to_json(encoder)), "classes": json.dumps(classes),
    }  # fmt: skip
    save_safetensors(path, weights, metadata)


def is_detector(path: Path) -> bool:
    """Whether a path is a detector's run or file, not an encoder's."""
    file = path / "detector.safetensors" if path.is_dir() else path
    return file.suffix == ".safetensors" and file.is_file() and read_header(file)[0].get("kind") == "detector"


def load_detector(path: Path | str) -> LoadedDetector:
    """The detector of a run of `supancl detect train`, or of a detector.safetensors, in eval mode."""
    file = Path(path)
    file = file / "detector.safetensors" if file.is_dir() else file
    if not file.exists():
        raise BadInput(f"no file {file}{did_you_mean_path(file) or '; give a finished run of supancl detect train'}")
    metadata, shapes = read_header(file)
    if metadata.get("kind") != "detector":
        raise BadInput(f"{file} is not a detector of supancl; train one with supancl detect train")
    try:
        version = int(metadata["schema_version"])
        if version > SCHEMA_VERSION:
            raise BadInput(f"{file} was written by a newer supancl (schema {version}, known {SCHEMA_VERSION}); upgrade")
        spec = from_json(DetectSpec, parse_json(metadata["spec"]), "")
        encoder = from_json(EncoderSpec, parse_json(metadata["encoder"]), "encoder")
        classes = tuple(map(str, parse_json(metadata["classes"])))
    except (KeyError, ValueError) as error:
        raise BadInput(f"{file}: its description is damaged ({error}); copy it again") from None
    with torch.device("meta"):  # without memory: the description may claim anything
        skeleton = build_detector(copy_resnet(encoder.build()), spec, len(classes), normalization_of(encoder))
    expected = {name: value.shape for name, value in skeleton.state_dict().items()}
    if wrong := sorted(name for name in expected | shapes if expected.get(name) != shapes.get(name)):
        raise BadInput(f"{file}: its tensors do not fit its description ({wrong[0]}); copy it again")
    detector = build_detector(copy_resnet(encoder.build()), spec, len(classes), normalization_of(encoder))
    detector.load_state_dict(read_safetensors(file)[0])
    detector.eval()
    return LoadedDetector(detector, encoder, classes)


class FinishedRun(NamedTuple):
    """A finished run: its encoder, settings and scores."""

    path: Path
    encoder: str
    spec: DetectSpec
    settings: dict[str, Any]  # all of detect.json
    scores: dict[str, Any]


def read_finished_runs(path: Path) -> list[FinishedRun]:
    """The run in this folder; a folder of several seeds gives one run per seed."""
    seeds = [file.parent for file in path.glob("seed-*/detect.json")]
    seeds.sort(key=lambda folder: (len(folder.name), folder.name))
    folders = [path] if DetectFolder(path).has_run else seeds
    if not folders:
        raise BadInput(f"{path} holds no detector run; make one with supancl detect train")
    return [_read_finished_run(DetectFolder(folder)) for folder in folders]


def _read_finished_run(folder: DetectFolder) -> FinishedRun:
    spec, _, encoder, settings = folder.read_settings()
    file = folder.evaluations / "detect.json"
    try:
        scores = parse_json(read_text(file))
        if not is_as_written(scores) or not {"AP", "AP50", "AP75", "classes"} <= scores.keys():
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError):
        raise BadInput(f"{file}: no scores of a detector; test it with supancl detect eval {folder.path}") from None
    return FinishedRun(folder.path, encoder, spec, settings, scores)


# --- weights for torchvision ------------------------------------------------------------------------------------------


def export_detector(path: str, out: Path | str) -> dict[str, Any]:
    """Write a detector's run, or an encoder, under torchvision's names; returns what was written."""
    output = Output(Path(out), (".pth", ".pt")).check()
    classes: tuple[str, ...] = ()
    if Path(path).exists() and is_detector(Path(path)):
        saved = load_detector(path)
        state, kind, classes = *torchvision_weights(saved.detector), saved.classes
    else:
        state, kind = dict(open_body(path)[0].state_dict()), "backbone"
    state = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    output.write(lambda temporary: save_with_torch(temporary, state))
    return {"what": kind, "tensors": len(state), "classes": list(classes), "out": str(out)}


def torchvision_weights(detector: Detector) -> tuple[dict[str, Tensor], str]:
    """The tensors under torchvision's names, and what they form: `fpn`, or `backbone` because it has no C4 detector."""
    state = detector.state_dict()
    if detector.spec.arch == "fpn":
        return dict(state), "fpn"
    weights = {}
    for name, value in state.items():
        resnet_name = re.sub(r"^(backbone\.body\.|backbone\.|roi_heads\.box_head\.)", "", name)
        if re.match(r"(conv1|bn1|layer[1-4])\.", resnet_name):
            weights[resnet_name] = value
    return weights, "backbone"


# settings in which detectors may differ and still be averaged and ranked together, or that the row names
FREE_FIELDS = {
    *("seed", "device", "workers", "memory_gb", "log_every", "checkpoint_every", "eval_every"),
    *("precision", "iters", "batch_size"),
}


def detector_rows(path: Path) -> list[Row]:
    """The scores of the detectors of `supancl detect train` in this very folder: of one, or of one per seed."""
    rows = []
    for run in read_finished_runs(path):
        defaults = flattened(detect_spec(run.spec.arch))
        fields = {name: value for name, value in flattened(run.spec).items() if name not in FREE_FIELDS}
        changed = {name: value for name, value in fields.items() if value != defaults[name]}
        identity = [changed, run.settings.get("fingerprint"), run.settings.get("test_fingerprint")]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:6]
        data = Path(str(run.scores.get("data", ""))).name
        detector = (
            f"{run.spec.arch} detector, {run.spec.iters} iterations of {run.spec.batch_size} images, tested on "
            f"{run.scores.get('images')} images of {data} (settings {digest}, not the usual ones: {len(changed)})"
        )
        weights, seed = str(run.settings.get("weights") or ""), run.spec.seed
        settings = {"detector": detector}
        rows += [
            Row(run.encoder, data, "detect", metric, value, settings, seed=seed, digest=weights, name=str(run.path))
            for metric in ("AP", "AP50")
            if isinstance(value := run.scores.get(metric), (int, float))
        ]
    return rows
