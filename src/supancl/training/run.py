"""A run in its folder: as a Python object, continued where it stopped, and extended in another folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import supancl
from supancl.config import AUTOMATIC, INCIDENTAL, MAY_CHANGE_ON_RESUME, fields_marked, flattened, parse_json, to_json
from supancl.core.specs import learning_rate
from supancl.data.opening import absolute_source, check_source
from supancl.data.sources.folder import check_out_folder
from supancl.distributed import from_environment
from supancl.errors import BadInput
from supancl.files import (
    Output,
    open_regular,
    read_sealed_json,
    read_text,
    reason,
    write_bytes,
    write_sealed_json,
)
from supancl.recipes import Recipe
from supancl.recipes.auto import open_settings, with_short_side
from supancl.recipes.recipe import fixed_settings, resolve_warmup
from supancl.recipes.shorthands import full_name
from supancl.reporter import current_reporter
from supancl.runs.folder import RunFolder, name_run, next_folder
from supancl.runs.log import has_collapsed, read_end
from supancl.runs.provenance import commit, versions

if TYPE_CHECKING:
    from supancl.core.encoders import Encoder
    from supancl.probes import Features


@dataclass(frozen=True, repr=False)
class Run:
    """A pretraining: its folder, the trained encoder in eval mode, and the logged rows."""

    folder: Path
    encoder: Encoder
    metrics: list[dict[str, Any]]
    collapsed: bool

    @property
    def recipe(self) -> Recipe:
        """Every setting of the run, as recipe.json has it."""
        return RunFolder(self.folder).read_recipe()[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels' numbers."""
        return RunFolder(self.folder).read_recipe()[1]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """What `supancl evaluate` has written for this run by now, by name: {"knn": {"accuracy": 93.1, ...}, ...}."""
        return read_results(self.folder)

    def evaluate(self, protocol: str | None = None, **settings: Any) -> dict[str, Any]:
        """`supancl.evaluate` of this run: k-NN and linear accuracy, or one protocol."""
        return supancl.evaluate(self, protocol, **settings)

    def predict(self, data: str | Path | None = None, **settings: Any) -> dict[str, Any]:
        """`supancl.predict` with this run: a table of labels for images."""
        return supancl.predict(self, data=data, **settings)

    def embed(self, data: Any, **settings: Any) -> Features:
        """`supancl.embed` with this run: the features of images."""
        return supancl.embed(self, data, **settings)

    def export(self, out: str | Path, **settings: Any) -> dict[str, Any]:
        """`supancl.export` of this run: its encoder for other libraries."""
        return supancl.export(self, out, **settings)

    def report(self, **settings: Any) -> dict[str, Any]:
        """`supancl.report` of this run: one page."""
        return supancl.report(self, **settings)

    def summary(self) -> dict[str, Any]:
        """What `--json` writes of a run."""
        last = {key: value for row in self.metrics[-2:] for key, value in row.items() if key != "kind"}
        return {"run": str(self.folder), "collapsed": self.collapsed, "last": last}

    def __repr__(self) -> str:
        last = {key: value for row in self.metrics for key, value in row.items() if value is not None}
        figures = {name: last[name] for name in ("epoch", "knn", "knn_map") if name in last}
        listed = [f"{name}={value:.4g}" for name, value in figures.items()]
        return f"Run({', '.join([str(self.folder), *listed, *['collapsed'] * self.collapsed])})"


def read_result(file: Path) -> dict[str, Any]:
    """A result of an evaluation, compared with its digest."""
    try:
        content = read_sealed_json(file)
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} is damaged ({reason(error)}); evaluate the run again, or remove the file") from None
    return {key: value for key, value in content.items() if key != "digest"}


def read_results(run: Path) -> dict[str, dict[str, Any]]:
    """The results in a run folder by the names of their files."""
    return {file.stem: read_result(file) for file in sorted(RunFolder(run).evaluations.glob("*.json"))}


def load(path: Path | str) -> Run:
    """Read a run folder: its encoder, as of the last epoch that was completed, its log, recipe and results.

    An encoder without a run is opened with `load_encoder` or, from other libraries, with `open_encoder`.

    >>> from supancl import pretrain
    >>> _ = pretrain("digits.supsiam", out="runs/digits", epochs=1, limit=128)
    >>> run = load("runs/digits")
    >>> run.encoder.width, run.recipe.name, run.classes[:3], run.results
    (64, 'digits.supsiam', ('0', '1', '2'), {})
    """
    from supancl.runs.encoder_file import load_encoder

    folder = RunFolder(Path(path))
    if not folder.has_run and (folder.path.is_file() or folder.encoder.exists()):
        raise BadInput(f"{path} holds an encoder but no run; open it with supancl.load_encoder({str(path)!r})")
    encoder = load_encoder(folder.path)  # explains a path that does not exist
    if not folder.has_run:
        raise BadInput(f"{path} holds no run (no recipe.json); give a run folder")
    folder.check_recipe_file()
    return Run(folder.path, encoder, folder.metrics(), bool(has_collapsed(folder)))


def read_finished_run(folder: RunFolder) -> Run | None:
    """The run in this folder if it is finished and none of its checkpoints was kept, else None."""
    from supancl.runs.encoder_file import load_encoder

    if not folder.has_run or not folder.end_file.exists() or folder.checkpoint_files():
        return None
    if (end := read_end(folder)) is None:  # to start again at step 0 would overwrite the encoder
        raise BadInput(
            f"{folder.end_file} is damaged or of another run, and there is no checkpoint; restore it, or remove it to "
            "start again at step 0"
        )
    return Run(folder.path, load_encoder(folder.path), folder.metrics(), end.collapsed)


# --- continuing -------------------------------------------------------------------------------------------------------


def run_folder_for(recipe: Recipe | None, out: Path | str | None) -> RunFolder:
    if out is None and recipe is None:
        raise BadInput("resume continues the run in out; name it")
    return RunFolder(Path(out) if out is not None else next_folder(recipe.name))  # type: ignore[union-attr]


def continued_recipe(folder: RunFolder, requested: Recipe | None) -> Recipe:
    """The recipe of a resumed run: its recipe.json, with the few settings that may change if they are requested."""
    saved, _ = folder.read_recipe()
    if requested is None:
        return saved
    images = folder.read_data()[0].get("train")
    requested = with_short_side(resolve_warmup(requested, images if isinstance(images, int) else None))
    old, new = flattened(saved), flattened(requested)
    may_change, automatic = (fields_marked(requested, mark) for mark in (MAY_CHANGE_ON_RESUME, AUTOMATIC))
    # their content is compared when they are read; the other settings follow from data
    not_compared = {"sources", "data.source", "data.joined", *open_settings(requested)}
    not_compared |= {key for key, value in automatic.items() if new[key] == value and key not in may_change}
    changed: dict[str, Any] = {}
    for key in dict.fromkeys(["train.epochs", *new]):  # first: a warm-up may follow from it
        value = new[key]
        if key in not_compared or value == old.get(key):
            continue
        if key not in may_change:
            raise BadInput(
                f"{key} = {value!r} differs from {old.get(key)!r} in {folder.recipe_file}; a run keeps its own "
                f"settings: to train longer, extend the finished run {folder.path}; for others, start another run with "
                f"init {folder.path} and another out"
            )
        if value is not None and (value != may_change[key] or key in requested.sources):
            changed[key] = value
    places, before = (list(map(absolute_source, each.data.all_sources)) for each in (requested, saved))
    if places != before:
        for source in places:
            check_out_folder(source, folder.path)
        changed |= {"data.source": places[0], "data.joined": tuple(places[1:])}
    return saved.with_set(changed, because="changed on resume") if changed else saved


# --- extending --------------------------------------------------------------------------------------------------------


def extend_run(run: RunFolder, out: Path | str | None, given: Mapping[str, Any], reads_source: bool) -> Path:
    """Make a folder like that of a run that was stopped at the last step of `run`, whole or not at all.

    The caller resumes it. Other ranks wait for it when they join.
    """
    from supancl.runs.checkpoint import load_newest

    base, _ = run.read_recipe()
    changes = {full_name(base, name): value for name, value in given.items()}
    recipe = extended_recipe(base, changes, run)
    if from_environment().rank > 0:
        return run_folder_for(recipe, out).path
    run.check_recipe_file()
    early = run.describe_early_end(base)
    state, _ = load_newest(run.checkpoints)
    if state is None and not early:
        raise BadInput(f"{run.path} keeps no checkpoint to continue from; start another run with init {run.path}")
    if state is None or early or any(row["step"] != state["step"] for row in run.metrics()[-1:]):
        raise BadInput(f"{run.path} is not finished ({early or 'its newest checkpoint is older'}); resume it first")
    for source in recipe.data.all_sources if reads_source else ():
        check_source(source)
    folder = run_folder_for(recipe, out)
    folder.check_free(resume=False)
    check_out_folder(recipe.data.source, folder.path)
    with Output(folder.path).folder() as temporary:
        write_extension(RunFolder(temporary), run, recipe, base, state)
    rate = recipe.learning_rate * recipe.schedule.restart_rate
    current_reporter().note(
        f"{run.path} continues to epoch {recipe.train.epochs} in {folder.path}: the learning rate starts again at "
        f"{rate:.4g}, {recipe.schedule.restart_rate:.3g} of its peak (schedule.restart_rate)"
    )
    return folder.path


def extended_recipe(base: Recipe, changes: dict[str, Any], run: RunFolder) -> Recipe:
    """The recipe of the run with more epochs and a schedule that starts again at its end."""
    before, epochs = base.train.epochs, changes.pop("train.epochs", None)
    if not isinstance(epochs, int) or epochs <= before:
        raise BadInput(f"extend {run.path}: give epochs, the epoch to continue to, more than {before}")
    may_change = {*fields_marked(base, MAY_CHANGE_ON_RESUME), *fields_marked(base.train, INCIDENTAL, "train")}
    may_change = (may_change - {"train.seed"}) | {"schedule.restart_rate", "data.source"}
    for key, value in changes.items():
        if key not in may_change and flattened(base.with_set({key: value})).get(key) != flattened(base).get(key):
            raise BadInput(
                f"{key} = {value!r}: a run is extended with its own settings; to change them, start another run with "
                f"init {run.path}"
            )
    planned = learning_rate(replace(base.schedule, restart_epoch=0), 1.0, epochs, 1)
    extension = {
        "train.epochs": epochs,
        "schedule.restart_epoch": before,
        "schedule.restart_rate": float(f"{planned(before):.4g}"),
    }
    extended = base.with_set(extension, because=f"extends {run.path.resolve()}")
    return extended.with_set(changes) if changes else extended


def write_extension(folder: RunFolder, run: RunFolder, recipe: Recipe, base: Recipe, state: Mapping[str, Any]) -> None:
    """Write what `resume` needs. Versions stay those of the first start, because pixels were read with them."""
    from supancl.runs.checkpoint import save_checkpoint

    folder.checkpoints.mkdir(parents=True)
    for old, new in ((run.metrics_file, folder.metrics_file), (run.content_file, folder.content_file)):
        if old.exists():
            with open_regular(old) as file:
                write_bytes(new, file.read())
    content = parse_json(read_text(run.recipe_file))
    content["recipe"] = to_json(recipe)
    data, classes = run.read_data()
    content["run"] = name_run(recipe, classes, data)
    content["extended_from"] = {
        "run": str(run.path.resolve()),
        "epochs": base.train.epochs,
        "step": state["step"],
        "learning_rate": float(f"{recipe.learning_rate * recipe.schedule.restart_rate:.6g}"),
        "versions": versions(),
        "commit": commit(),
    }
    write_sealed_json(folder.recipe_file, content)
    kept_state = {key: value for key, value in state.items() if key not in ("schema_version", "digest")}
    save_checkpoint(folder.checkpoints, state["step"], {**kept_state, "settings": fixed_settings(recipe)})
