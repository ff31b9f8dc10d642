"""Detectors for Table 4: folders of `supancl detect train` and the encoders that they began from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import flattened
from supancl.errors import BadInput


class ScoredDetector(NamedTuple):
    """A trained and tested detector: the encoder it began from, its seed, its settings in words, its scores."""

    path: Path
    encoder: str
    weights: str  # checksum of that encoder; empty in folders of 0.1.0
    seed: int
    how: str
    scores: dict[str, Any]

    def began_from(self, run: Path) -> bool:
        """Whether its encoder is that of this run folder, by path."""
        named = Path(self.encoder)
        return (named.parent if named.name == "encoder.safetensors" else named).resolve() == run.resolve()


def holds_detectors(path: Path) -> bool:
    """Whether a folder is a detector's, or one of several seeds."""
    return os.path.isfile(path / "detect.json") or any(path.glob("seed-*/detect.json"))  # False where we may not look


def read_detectors(path: Path) -> list[ScoredDetector]:
    """The detectors of a folder of `supancl detect train`: one, or one a seed."""
    from supancl.detect.comparing import NOT_THE_METHOD, open_finished  # torchvision's detectors take time to import
    from supancl.detect.spec import detect_spec

    found = []
    for run in open_finished(str(path)):
        usual = flattened(detect_spec(run.spec.arch))
        changed = {
            name: value
            for name, value in flattened(run.spec).items()
            if name not in {*NOT_THE_METHOD, "precision", "iters", "batch_size"} and value != usual[name]
        }
        marks = [changed, run.told.get("fingerprint"), run.told.get("test_fingerprint")]
        short = hashlib.sha256(json.dumps(marks, sort_keys=True, default=str).encode()).hexdigest()[:6]
        where = Path(str(run.scores.get("data", ""))).name
        how = (
            f"{run.spec.arch} detector, {run.spec.iters} iterations of {run.spec.batch_size} images, tested on "
            f"{run.scores.get('images')} images of {where} (settings {short}"
            f"{f': {len(changed)} not the usual ones' if changed else ''})"
        )
        found.append(
            ScoredDetector(run.path, run.encoder, str(run.told.get("weights") or ""), run.spec.seed, how, run.scores)
        )
    return found


def detectors_beside(runs: Iterable[Path]) -> Iterator[ScoredDetector]:
    """Tested detectors in the runs' folders and in the folders that these lie in; unfinished ones are left out."""
    places = dict.fromkeys(place for run in runs for place in (run, run.parent) if place.is_dir())
    for place in places:
        for folder in (path for path in sorted(place.iterdir()) if os.path.isdir(path) and holds_detectors(path)):
            try:
                yield from read_detectors(folder)
            except BadInput:
                continue
