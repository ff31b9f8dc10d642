"""Export weights under the names of torchvision: an FPN detector as a whole, else the backbone alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from supancl.detection.model import Detector, open_body
from supancl.detection.saving import is_detector, load_detector
from supancl.errors import BadInput
from supancl.files import check_is_new, write_atomically
from supancl.runs.checkpoint import save_with_torch


def export_detector(path: str, out: Path | str) -> dict[str, Any]:
    """Write a detector's run, or an encoder, for torchvision; returns what was written."""
    file = Path(out)
    if file.suffix not in (".pth", ".pt"):
        raise BadInput(f"out {file}: must end in .pth or .pt, which torchvision reads")
    check_is_new(file)
    if not file.parent.is_dir():
        raise BadInput(f"no folder {file.parent}; create it, or choose another out")
    if Path(path).exists() and is_detector(Path(path)):
        saved = load_detector(path)
        state, kind = torchvision_weights(saved.detector)
        classes = saved.classes
    else:
        state, kind, classes = dict(open_body(path)[0].state_dict()), "backbone", ()
    state = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    write_atomically(file, lambda temporary: save_with_torch(temporary, state))
    return {"what": kind, "tensors": len(state), "classes": list(classes), "out": str(file)}


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
