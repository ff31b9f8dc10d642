"""What was measured of one run: every way in which a number of a table was found, the paper's way first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from supancl.data.opening import is_same_source
from supancl.data.sources.benchmarks import BENCHMARKS
from supancl.errors import BadInput
from supancl.evaluate.feature_cache import encoder_key
from supancl.evaluate.naming import has_old_crop, non_default_settings, registered_name, source_of
from supancl.evaluate.protocols import TRAINED_IMAGES
from supancl.evaluate.sources import data_set_of
from supancl.recipes import Recipe
from supancl.stats import seed_stats
from supancl.weights.checkpoint import load_newest
from supancl.weights.encoder_file import load_encoder
from supancl.weights.run_folder import RunFolder

PROBES = {"lbfgs": "convex probe", "sgd": "SGD probe"}
MONITOR = "the monitor's last check"
PROJECTED = "projector features of training images"
# (layer, split) of `evaluate variance` -> order of preference and words; the paper's, as we read it, comes first
VARIANCES = {
    ("projector", "train"): (0, PROJECTED),
    ("pooled", "held-out"): (1, "encoder features of held-out images"),
    ("pooled", "test"): (1, "encoder features of test images"),
}
# what may differ from the protocol's usual settings: it is part of the words of `Found.how` instead
FREE = {"linear": ("split", "probe"), "knn": ("split",), "variance": ("split", "layer")}


class Found(NamedTuple):
    """A number of one run with its interval, and how it was measured; nan where there is none.

    Numbers of different ways (`how`) are neither averaged nor ranked with one another. `order` sorts the ways of a
    measure: the smallest is nearest to the paper's. `sd` is over several detectors of one encoder.
    """

    value: float
    interval: float = math.nan
    how: str = ""
    order: tuple[int, ...] = ()
    sd: float = math.nan


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


@dataclass
class Entry:
    """One run, or one encoder of which only evaluations are known (then without a recipe)."""

    path: Path
    recipe: Recipe | None = None
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)  # of a toy study, which keeps no run folders
    conditions: str = ""  # of a toy study: its reading, and a size that is not the paper's
    fingerprint: str = ""  # of the data, wherever they lie
    unfinished: str = ""  # how far its log goes, of a run that was not trained to its end
    detectors: list[ScoredDetector] = field(default_factory=list)
    passed_over: set[str] = field(default_factory=set)  # what does not belong in the table, and why

    def find(self, measure: str, probe: str = "lbfgs") -> list[Found]:
        """Each way in which this was measured, once, the preferred one first; empty where it was not measured.

        Test images come before held-out ones; linear accuracy by `probe` comes before that by the other one.
        """
        if self.unfinished:
            self.passed_over.add(f"{self.path}: not counted, {self.unfinished}")
            return []
        if measure in self.values:
            ways = [Found(self.values[measure])]
        elif measure in ("ap", "ap50"):
            ways = self._detected(measure.upper())
        else:
            ways = sorted(self._evaluated(measure, probe), key=lambda found: found.order)
            if not ways and self.recipe is not None and not self.values:
                ways = self._logged(measure)
        return list({found.how: found for found in reversed(ways) if math.isfinite(found.value)}.values())[::-1]

    def value(self, measure: str) -> float | None:
        """The number by the preferred way; None where it was not measured, or before the run's end."""
        ways = self.find(measure)
        return ways[0].value if ways else None

    # --- evaluations --------------------------------------------------------------------------------------------------

    def _evaluated(self, measure: str, probe: str) -> Iterator[Found]:
        kind, _, rest = measure.partition(":")
        if kind in ("within", "ratio"):
            for evaluation in self._fitting("variance", kind):
                place, words = VARIANCES[
                    str(evaluation.get("layer", "pooled")), str(evaluation.get("split", "held-out"))
                ]
                yield _found(
                    evaluation, kind, words + crop_of(evaluation), (place,), scale=100 if kind == "ratio" else 1
                )
        elif kind == "knn":
            for evaluation in self._fitting("knn", "accuracy"):
                yield _found(
                    evaluation, "accuracy", images_of(evaluation) + crop_of(evaluation), (_image_order(evaluation),)
                )
        elif kind == "linear":
            for evaluation in self._fitting("linear", "accuracy", rest):
                named = str(evaluation.get("probe", "lbfgs"))
                words = probe_of(evaluation)
                other, images = int(named != probe), _image_order(evaluation)
                order = (other, images) if probe == "sgd" else (images, other)  # Table 4: the paper's probe above all
                yield _found(
                    evaluation, "accuracy", f"{words}, {images_of(evaluation)}", order if named in PROBES else (2, 2)
                )
        else:
            for evaluation in self._fitting(f"{kind}-{rest.replace(':', '-')}", "accuracy", rest.partition(":")[0]):
                yield _found(evaluation, "accuracy", "", ())

    def _fitting(self, base: str, key: str, data_set: str = "") -> Iterator[dict[str, Any]]:
        """Evaluations of that name that belong in a table; those that do not are noted.

        k-NN, linear accuracy and variance are of the run's own data, or of `data_set` where that is another one.
        """
        own = base in FREE and data_set in ("", self.pretrained_on)
        for name, evaluation in self.evaluations.items():
            if not isinstance(evaluation.get(key), (int, float)) or not self._is_meant(
                name, evaluation, base, data_set, own
            ):
                continue
            fault = self._fault(evaluation, own, data_set, FREE.get(base, ()))
            if fault:
                self.passed_over.add(f"{self.path}: {name}.json {fault}")
            else:
                yield evaluation

    def _is_meant(self, name: str, evaluation: Mapping[str, Any], base: str, data_set: str, own: bool) -> bool:
        """Whether an evaluation is the one a cell asks for: by its name, or, on other data, by what they are."""
        named, source = str(evaluation.get("base", name)), source_of(evaluation)
        if base not in FREE:
            return named == base
        protocol, _, of = named.partition("-")
        if protocol != base:
            return False
        if own:  # another copy of the same data set is the same data
            return not of or bool(source and self.pretrained_on and data_set_of(source) == self.pretrained_on)
        return bool(of) and (data_set_of(source) if source else of) == data_set

    def _fault(self, evaluation: Mapping[str, Any], own: bool, of: str, free: Sequence[str]) -> str:
        """Why an evaluation does not belong in a table of the paper; empty where it does."""
        source, other = (
            source_of(evaluation),
            {key: value for key, value in non_default_settings(evaluation).items() if key not in free},
        )
        if own and self.recipe is not None and source and not self._is_own(source):
            return f"is of {source}, not of the data it was trained on"
        if not free and of in BENCHMARKS and source and of not in (source, registered_name(source)):
            return f"is of {source}, not of {of}@ROOT, the data set that the table means"
        if isinstance(evaluation.get("weights"), str) and self.present not in ("", evaluation["weights"]):
            return (
                "is of other weights than the run's encoder has now (judged before its last epoch?); measure it again"
            )
        if evaluation.get("overlaps_training"):
            return "was measured on images that the run was trained on"
        if evaluation.get("partial"):
            return "is of a data set that was not whole"
        if "layer" in free:
            pair = str(evaluation.get("layer", "pooled")), str(evaluation.get("split", "held-out"))
            other |= {} if pair in VARIANCES else {"layer": pair[0], "split": pair[1]}
        if other:
            return f"has other settings ({', '.join(f'{key} {value}' for key, value in other.items())})"
        return ""

    def _is_own(self, source: str) -> bool:
        assert self.recipe is not None
        own = self.recipe.data.source
        known = data_set_of(source)
        return is_same_source(source, own) or (known is not None and known == data_set_of(own))

    # --- detectors and logs -------------------------------------------------------------------------------------------

    def _detected(self, score: str) -> list[Found]:
        """Per setting the mean over the detectors of this encoder; that of most seeds first."""
        ways: dict[str, dict[int, float]] = {}
        for detector in self.detectors:
            if detector.weights and self.present and detector.weights != self.present:
                self.passed_over.add(f"{detector.path}: is of other weights than {self.path} has now; train it again")
            elif detector.seed in ways.setdefault(detector.how, {}):
                self.passed_over.add(f"{detector.path}: not counted, it has seed {detector.seed} of another detector")
            elif (number := detector.scores.get(score)) is not None:
                ways[detector.how][detector.seed] = float(number)
        found = [(how, list(seeds.values())) for how, seeds in ways.items() if seeds]
        found.sort(key=lambda way: -len(way[1]))
        summaries = [(how, seed_stats(values)) for how, values in found]
        return [Found(mean, math.nan, how, (), sd) for how, (mean, sd) in summaries]

    def _logged(self, measure: str) -> list[Found]:
        """From metrics.jsonl: losses over the last epoch; k-NN and variance of the monitor's last check."""
        folder = RunFolder(self.path)
        if measure == "collapsed":
            state, _ = load_newest(folder.checkpoints)
            return [] if state is None else [Found(float(state["monitor"]["collapsed"]))]
        rows = folder.metrics()
        if measure == "sup" and self.recipe is not None and not self._has_supervised_target(self.recipe):
            return []  # what is logged there is l_ssl once more
        if measure in ("ssl", "sup"):
            train = [row for row in rows if row["kind"] == "train"]
            last = [row[measure] for row in train if row["epoch"] == train[-1]["epoch"] and row[measure] is not None]
            return [Found(statistics.fmean(last))] if last else []
        key = {"knn": "knn", "within": "s_w", "ratio": "s_w/s_t"}.get(measure, "")
        checks = [row[key] for row in rows if row["kind"] == "monitor" and row.get(key) is not None]
        return [Found((100 if measure == "ratio" else 1) * checks[-1], how=MONITOR)] if checks else []

    @staticmethod
    def _has_supervised_target(chosen: Recipe) -> bool:
        return chosen.loss.supervised or chosen.pool.kind != "none"

    # --- what it is ---------------------------------------------------------------------------------------------------

    @cached_property
    def present(self) -> str:
        """The checksum of the run's encoder as it is now; empty where none can be read: evaluations travel without."""
        try:
            return "" if self.recipe is None else encoder_key(load_encoder(self.path))
        except BadInput:
            return ""

    @property
    def weights(self) -> set[str]:
        """Of the encoders that the evaluations were made of."""
        return {
            evaluation["weights"]
            for evaluation in self.evaluations.values()
            if isinstance(evaluation.get("weights"), str)
        }

    @cached_property
    def pretrained_on(self) -> str:
        """The data set of the registry that the run was trained on, else the family of its recipe (`digits`)."""
        if self.recipe is None:
            return ""
        known = data_set_of(self.recipe.data.source) if self.recipe.data.source else None
        return known if known in ("cifar10", "cifar100") else self.recipe.name.split(".")[0]


def probe_of(evaluation: Mapping[str, Any]) -> str:
    """By which probe a linear accuracy was found, in words; the convex one by the images that chose its ridge."""
    named, chosen_on = str(evaluation.get("probe", "lbfgs")), evaluation.get("chosen_on")
    if named not in PROBES:
        return f"{named} (a study of 0.1.0)"
    if named == "lbfgs" and (chosen_on is None or chosen_on == TRAINED_IMAGES):
        return PROBES[named] + (" of 0.1.0" if chosen_on is None else f" (ridge chosen on {TRAINED_IMAGES})")
    return PROBES[named]


def images_of(evaluation: Mapping[str, Any]) -> str:
    """Which images it was measured on, in words."""
    judged = str(evaluation.get("judged", ""))
    return f"{judged if judged in ('test', 'val') else evaluation.get('split', 'held-out')} images"


def crop_of(evaluation: Mapping[str, Any]) -> str:
    """What is added to the words where images were cropped otherwise than now."""
    return ", crop of 0.1.0" if has_old_crop(evaluation) else ""


def _image_order(evaluation: Mapping[str, Any]) -> int:
    return 0 if images_of(evaluation) == "test images" else 1


def _found(evaluation: Mapping[str, Any], key: str, how: str, order: tuple[int, ...], scale: float = 1) -> Found:
    interval = evaluation.get("interval")
    return Found(
        scale * float(evaluation[key]), float(interval) if isinstance(interval, (int, float)) else math.nan, how, order
    )
