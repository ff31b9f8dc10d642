"""What was measured of one run: each number of a table by every procedure used, the paper's first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from supancl.data.opening import is_same_source
from supancl.data.sources.benchmarks import BENCHMARKS
from supancl.errors import BadInput
from supancl.evaluation.feature_cache import encoder_key
from supancl.evaluation.naming import non_default_settings, registered_name, source_of
from supancl.evaluation.overlap import data_set_of
from supancl.evaluation.ridge import TRAINED_IMAGES
from supancl.recipes import Recipe
from supancl.runs.encoder_file import load_encoder
from supancl.runs.folder import RunFolder, folder_of_encoder, has_collapsed
from supancl.stats import seed_stats

LARGEST = 1e100  # a larger number in a log or a result is damage
PROBES = {"lbfgs": "convex probe", "sgd": "SGD probe"}
MONITOR = "the monitor's last check"
PROJECTOR_FEATURES = "projector features of training images"
# (layer, split) of `evaluate variance` -> order of preference and words; the paper's, as we read it, comes first
VARIANCES = {
    ("projector", "train"): (0, PROJECTOR_FEATURES),
    ("pooled", "held-out"): (1, "encoder features of held-out images"),
    ("pooled", "test"): (1, "encoder features of test images"),
}
# settings that may differ from the protocol's usual ones, because `MeasuredValue.how` names them
FREE_SETTINGS = {"linear": ("split", "probe"), "knn": ("split",), "variance": ("split", "layer")}


class MeasuredValue(NamedTuple):
    """A number of one run with its interval (nan if it has none), and how it was measured.

    Numbers with a different `how` are neither averaged nor ranked together. The smallest `order` is the procedure
    closest to the paper's. `sd` is over several detectors of one encoder.
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
    weights: str  # checksum of that encoder
    seed: int
    how: str
    scores: dict[str, Any]

    def began_from(self, run: Path) -> bool:
        """Whether its encoder is that of this run folder, by path."""
        return folder_of_encoder(Path(self.encoder)).resolve() == run.resolve()


@dataclass
class Entry:
    """One run; or one encoder with nothing but evaluations, and then without a recipe."""

    path: Path
    recipe: Recipe | None = None
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)  # of a toy study, which has no run folders
    conditions: str = ""  # of a toy study: its reading, and sizes that differ from the paper
    fingerprint: str = ""  # of the data, independent of their path
    unfinished: str = ""  # how far the log goes, if the run was not trained to its end
    detectors: list[ScoredDetector] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)  # what is not in the table, and why

    def find(self, measure: str, probe: str = "lbfgs") -> list[MeasuredValue]:
        """The measure by each procedure used, the preferred one first; empty if it was not measured.

        Test images come before held-out ones; linear accuracy by `probe` comes before the other probe's.
        """
        if self.unfinished:
            self.excluded.add(f"{self.path}: not counted, {self.unfinished}")
            return []
        if measure in self.values:
            values = [MeasuredValue(self.values[measure])]
        elif measure in ("ap", "ap50"):
            values = self._from_detectors(measure.upper())
        else:
            values = sorted(self._from_evaluations(measure, probe), key=lambda value: value.order)
            if not values and self.recipe is not None and not self.values:
                values = self._from_log(measure)
        return list({value.how: value for value in reversed(values) if math.isfinite(value.value)}.values())[::-1]

    def value(self, measure: str) -> float | None:
        """The number by the preferred procedure; None if it was not measured or the run is unfinished."""
        values = self.find(measure)
        return values[0].value if values else None

    # --- evaluations --------------------------------------------------------------------------------------------------

    def _from_evaluations(self, measure: str, probe: str) -> Iterator[MeasuredValue]:
        kind, _, data_set = measure.partition(":")
        if kind in ("within", "ratio"):
            for evaluation in self._matching_evaluations("variance", kind):
                preference, how = VARIANCES[
                    str(evaluation.get("layer", "pooled")), str(evaluation.get("split", "held-out"))
                ]
                yield _read_value(evaluation, kind, how, (preference,), scale=100 if kind == "ratio" else 1)
        elif kind == "knn":
            for evaluation in self._matching_evaluations("knn", "accuracy"):
                yield _read_value(evaluation, "accuracy", images_of(evaluation), (_image_order(evaluation),))
        elif kind == "linear":
            for evaluation in self._matching_evaluations("linear", "accuracy", data_set):
                probe_name = str(evaluation.get("probe", "lbfgs"))
                how = probe_of(evaluation)
                is_other_probe, image_order = int(probe_name != probe), _image_order(evaluation)
                # Table 4: the paper's probe comes first
                order = (is_other_probe, image_order) if probe == "sgd" else (image_order, is_other_probe)
                yield _read_value(
                    evaluation, "accuracy", f"{how}, {images_of(evaluation)}", order if probe_name in PROBES else (2, 2)
                )
        else:
            for evaluation in self._matching_evaluations(
                f"{kind}-{data_set.replace(':', '-')}", "accuracy", data_set.partition(":")[0]
            ):
                yield _read_value(evaluation, "accuracy", "", ())

    def _matching_evaluations(self, base: str, key: str, data_set: str = "") -> Iterator[dict[str, Any]]:
        """Evaluations of this name that belong in a table; the reasons for the others go to `excluded`.

        k-NN, linear accuracy and variance are on the run's training data, or on `data_set` if that is another one.
        """
        on_training_data = base in FREE_SETTINGS and data_set in ("", self.pretrained_on)
        for name, evaluation in self.evaluations.items():
            if not _numbers([evaluation], key) or not self._matches_cell(
                name, evaluation, base, data_set, on_training_data
            ):
                continue
            reason = self._why_excluded(evaluation, on_training_data, data_set, FREE_SETTINGS.get(base, ()))
            if reason:
                self.excluded.add(f"{self.path}: {name}.json {reason}")
            else:
                yield evaluation

    def _matches_cell(
        self, name: str, evaluation: Mapping[str, Any], base: str, data_set: str, on_training_data: bool
    ) -> bool:
        """Whether an evaluation belongs to a cell: by its name or, on other data, by the data set."""
        full_name, source = str(evaluation.get("base", name)), source_of(evaluation)
        if base not in FREE_SETTINGS:
            return full_name == base
        protocol, _, on_data = full_name.partition("-")
        if protocol != base:
            return False
        if on_training_data:  # another copy of the same data set is the same data
            return not on_data or bool(source and self.pretrained_on and data_set_of(source) == self.pretrained_on)
        return bool(on_data) and (data_set_of(source) if source else on_data) == data_set

    def _why_excluded(
        self, evaluation: Mapping[str, Any], on_training_data: bool, data_set: str, free_settings: Sequence[str]
    ) -> str:
        """Why an evaluation does not belong in a table of the paper; empty if it does."""
        source, changed = (
            source_of(evaluation),
            {key: value for key, value in non_default_settings(evaluation).items() if key not in free_settings},
        )
        if on_training_data and self.recipe is not None and source and not self._is_training_data(source):
            return f"was measured on {source}, not on the data of the run"
        if (
            not free_settings
            and data_set in BENCHMARKS
            and source
            and data_set not in (source, registered_name(source))
        ):
            return f"was measured on {source}, not on {data_set}@ROOT, the data set of the table"
        if isinstance(evaluation.get("weights"), str) and self.encoder_checksum not in ("", evaluation["weights"]):
            return "was measured with other weights than the run has now (before its last epoch?); measure it again"
        if evaluation.get("overlaps_training"):
            return "was measured on images that the run was trained on"
        if evaluation.get("partial"):
            return "was measured on an incomplete data set"
        if "layer" in free_settings:
            layer_and_split = str(evaluation.get("layer", "pooled")), str(evaluation.get("split", "held-out"))
            changed |= (
                {} if layer_and_split in VARIANCES else {"layer": layer_and_split[0], "split": layer_and_split[1]}
            )
        if changed:
            return f"has other settings ({', '.join(f'{key} {value}' for key, value in changed.items())})"
        return ""

    def _is_training_data(self, source: str) -> bool:
        assert self.recipe is not None
        training_source = self.recipe.data.source
        data_set = data_set_of(source)
        return is_same_source(source, training_source) or (
            data_set is not None and data_set == data_set_of(training_source)
        )

    # --- detectors and logs -------------------------------------------------------------------------------------------

    def _from_detectors(self, score: str) -> list[MeasuredValue]:
        """The mean over this encoder's detectors, per setting; the setting with most seeds first."""
        by_setting: dict[str, dict[int, float]] = {}
        for detector in self.detectors:
            if detector.weights and self.encoder_checksum and detector.weights != self.encoder_checksum:
                self.excluded.add(f"{detector.path}: has other weights than {self.path} now; train it again")
            elif detector.seed in by_setting.setdefault(detector.how, {}):
                self.excluded.add(f"{detector.path}: not counted, it has seed {detector.seed} of another detector")
            elif number := _numbers([detector.scores], score):
                by_setting[detector.how][detector.seed] = number[0]
        by_seeds = [(how, list(seeds.values())) for how, seeds in by_setting.items() if seeds]
        by_seeds.sort(key=lambda item: -len(item[1]))
        summaries = [(how, seed_stats(values)) for how, values in by_seeds]
        return [MeasuredValue(mean, math.nan, how, (), sd) for how, (mean, sd) in summaries]

    def _from_log(self, measure: str) -> list[MeasuredValue]:
        """Read metrics.jsonl: losses of the last epoch, k-NN and variance of the monitor's last check."""
        folder = RunFolder(self.path)
        if measure == "collapsed":
            collapsed = has_collapsed(folder)
            return [] if collapsed is None else [MeasuredValue(float(collapsed))]
        rows = folder.metrics()
        if measure == "sup" and self.recipe is not None and not self._has_supervised_target(self.recipe):
            return []  # the log repeats l_ssl there
        if measure in ("ssl", "sup"):
            train = [row for row in rows if row["kind"] == "train"]
            last = _numbers((row for row in train if row["epoch"] == train[-1]["epoch"]), measure)
            return [MeasuredValue(statistics.fmean(last))] if last else []
        key = {"knn": "knn", "within": "s_w", "ratio": "s_w/s_t"}.get(measure, "")
        checks = _numbers((row for row in rows if row["kind"] == "monitor"), key)
        return [MeasuredValue((100 if measure == "ratio" else 1) * checks[-1], how=MONITOR)] if checks else []

    @staticmethod
    def _has_supervised_target(recipe: Recipe) -> bool:
        return recipe.loss.supervised or recipe.pool.kind != "none"

    # --- identity ---------------------------------------------------------------------------------------------------

    @cached_property
    def encoder_checksum(self) -> str:
        """The checksum of the run's current encoder; empty if it cannot be read (copied evaluations have none)."""
        try:
            return "" if self.recipe is None else encoder_key(load_encoder(self.path))
        except BadInput:
            return ""

    @property
    def weights(self) -> set[str]:
        """Checksums of the encoders that were evaluated."""
        return {
            evaluation["weights"]
            for evaluation in self.evaluations.values()
            if isinstance(evaluation.get("weights"), str)
        }

    @cached_property
    def pretrained_on(self) -> str:
        """The benchmark that the run was trained on, else the family of its recipe (`digits`)."""
        if self.recipe is None:
            return ""
        data_set = data_set_of(self.recipe.data.source) if self.recipe.data.source else None
        return data_set if data_set in ("cifar10", "cifar100") else self.recipe.name.split(".")[0]


def probe_of(evaluation: Mapping[str, Any]) -> str:
    """The probe of a linear accuracy in words; for the convex one, also which images chose its ridge."""
    probe_name = str(evaluation.get("probe", "lbfgs"))
    on_trained = probe_name == "lbfgs" and evaluation.get("chosen_on") == TRAINED_IMAGES
    return PROBES.get(probe_name, probe_name) + (f" (ridge chosen on {TRAINED_IMAGES})" if on_trained else "")


def images_of(evaluation: Mapping[str, Any]) -> str:
    """Which images it was measured on, in words."""
    evaluated_split = str(evaluation.get("judged", ""))
    return f"{evaluated_split if evaluated_split in ('test', 'val') else evaluation.get('split', 'held-out')} images"


def _image_order(evaluation: Mapping[str, Any]) -> int:
    return 0 if images_of(evaluation) == "test images" else 1


def _read_value(
    evaluation: Mapping[str, Any], key: str, how: str, order: tuple[int, ...], scale: float = 1
) -> MeasuredValue:
    interval = _numbers([evaluation], "interval") or [math.nan]
    return MeasuredValue(scale * _numbers([evaluation], key)[0], interval[0], how, order)


def _numbers(rows: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """The numbers of this name; a row without it, or with something else there, has none."""
    values = [row.get(key) for row in rows]
    return [float(value) for value in values if isinstance(value, (int, float)) and abs(value) <= LARGEST]
