"""`supancl.pretrain` and `supancl.extend_run`: a name, a folder or arrays, and a few settings become a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from supancl.api.progress import progress_reporter
from supancl.data.from_python import Images, is_image_file, source_from_images, split_labels
from supancl.data.preparing import prepare_data
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.splits import Data
from supancl.data.survey import Survey, survey_data, survey_source
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, explained_in_python
from supancl.recipes import Recipe
from supancl.recipes import recipe as recipe_named
from supancl.recipes.auto import VIEW_SIZES, default_recipe, is_to_be_fitted
from supancl.recipes.plugin_files import refuse_while_loading
from supancl.recipes.recipe_file import is_recipe_file, recipe_from_file
from supancl.recipes.shorthands import with_settings
from supancl.reporter import Reporter
from supancl.training import extending
from supancl.training import pretrain as training
from supancl.training.preflight import with_short_side
from supancl.training.run import Run
from supancl.weights.run_folder import RunFolder

Source = str | Path
DataArgument = Data | Source | list[Source] | Images | tuple[Images, Any]


@explained_in_python
def pretrain(
    recipe: Recipe | str | Path | None = None,
    data: DataArgument | None = None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    init: Path | str | None = None,
    reporter: Reporter | None = None,
    verbose: bool | None = None,
    **settings: Any,
) -> Run:
    """Train an encoder, write everything to a run folder, and return the run.

    `recipe` is a name (`supancl recipes` lists them), a file of settings, or a `Recipe`. Without one, the settings are
    chosen from the data and the device. `data` is a source as for `--data` (a folder, a .npz, ...) or several; images,
    or (images, labels), where images are an array (N, H, W[, C]) or a tensor (N, C, H, W) of uint8, or a list of Pillow
    images or paths, and labels are numbers or names, -1 for unlabelled; a data set of torch; or what `open_data`
    returns. `out` is the run folder (else runs/RECIPE-NNN). Further arguments are settings: `epochs=10`, `alpha=0.3`,
    `batch_size=64`, and any field by its dotted name, `**{"views.size": 64}`; with a name also
    `compat="released-code"`.

    `init` starts from trained weights (docs/import.md). `resume` continues the run in `out` with the settings saved
    there. Progress shows in a terminal and in a notebook; `verbose=False` hides it, `True` also prints it to a file. A
    `reporter` of your own receives it instead. Under torchrun all ranks train together: each makes the same call.

    >>> run = pretrain("digits.supsiam", out="runs/digits", epochs=1, alpha=0.3, limit=128)
    >>> run.recipe.loss.alpha, run.recipe.train.epochs
    (0.3, 1)
    >>> import numpy as np
    >>> images, labels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8), np.arange(40) % 2
    >>> pretrain("digits.supsiam", (images, labels), epochs=1, batch_size=18).folder
    PosixPath('runs/digits.supsiam-001')
    """
    refuse_while_loading()
    reporter = progress_reporter(verbose) if reporter is None else reporter
    if "labels" in settings:
        raise BadInput("labels go with their images: data=(images, labels)")
    if (sources := as_sources(data)) is not None:
        data, settings = None, {"data.source": sources[0], "data.joined": tuple(sources[1:]), **settings}
    if recipe is None and not resume and data is None and sources is None:
        raise BadInput(
            "give images, data=FOLDER or arrays (docs/python.md), a recipe (supancl recipes lists them), or "
            "resume=True with out=FOLDER"
        )
    continues = recipe is None and resume
    if continues:
        requested, opened, survey = *open_saved(out, data, settings), None
    else:
        requested, opened, survey = open_request(recipe, data, settings)
    return training.pretrain(requested, opened, out, resume=resume, init=init, reporter=reporter, survey=survey)


@explained_in_python
def extend_run(
    run: Path | str,
    epochs: int,
    out: Path | str | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    data: DataArgument | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Continue a finished run to `epochs` in a new folder; `run` itself is only read.

    Weights, target branch, optimizer, pool and random state are those of the run's last checkpoint. The learning rate
    starts again where a run of `epochs` would be by then, and falls to zero by a cosine; `schedule.restart_rate` in
    `changes` is another part of the peak. Other settings stay, except those that may also change on resume. `data` are
    the run's, as for `pretrain`: give arrays again, which a run does not keep, or the place that its source moved to.
    """
    if (sources := as_sources(data)) is not None:
        data, changes = None, {"data.source": sources[0], "data.joined": tuple(sources[1:]), **(changes or {})}
    opened = open_saved(run, data, {})[1]
    return extending.extend_run(run, epochs, out, changes=changes, data=opened, reporter=reporter)


def as_sources(data: Any) -> list[str] | None:
    """The names of sources, or None if `data` is something else: opened data, or images."""
    names = [data] if isinstance(data, (str, Path)) else data
    is_list = isinstance(names, (list, tuple)) and len(names) > 0
    if not is_list or not all(isinstance(name, (str, Path)) for name in names) or all(map(is_image_file, names)):
        return None
    return [str(name) for name in names]


def open_saved(out: Path | str | None, data: Any, settings: Mapping[str, Any]) -> tuple[Recipe | None, Any]:
    """The recipe of the run in this folder if settings change it (else None: as it is saved), and the data."""
    folder = RunFolder(Path(out or ""))
    if out is None or not folder.has_run:
        return None, None
    saved = folder.read_recipe()[0]
    opened = data if data is None or isinstance(data, Data) else open_images(saved, data)
    return with_settings(saved, settings) if settings else None, opened


def open_request(
    recipe: Recipe | str | Path | None, data: Any, settings: Mapping[str, Any]
) -> tuple[Recipe, Any, Survey | None]:
    """The recipe that is asked for; the data, unless they are a source to be opened later; their survey, if made."""
    survey, requested = None, find_recipe("auto.supsiam" if recipe is None else recipe, settings)
    opened = data if data is None or isinstance(data, Data) else open_images(requested, data)
    if recipe is None:
        channels = requested.encoder.channels
        survey = survey_source(requested.data, channels) if opened is None else survey_data(opened)
        requested = find_recipe(default_recipe(survey), settings)
    return requested, opened, survey


def find_recipe(recipe: Recipe | str | Path, settings: Mapping[str, Any]) -> Recipe:
    """The recipe of this name or in this file, with settings."""
    if isinstance(recipe, Recipe):
        return with_settings(recipe, settings)
    if not isinstance(recipe, (str, Path)):
        raise BadInput(
            f"the recipe is of type {type(recipe).__name__}; give a name such as 'cifar100.supsiam', or a Recipe"
        )
    name = str(recipe)
    return with_settings(recipe_from_file(name), settings) if is_recipe_file(name) else recipe_named(name, **settings)


def open_images(recipe: Recipe, data: Any) -> Data:
    """Images, or (images, labels), opened as the recipe says: its channels, and what it holds out, limits and hides."""
    spec = with_short_side(recipe).data
    if is_to_be_fitted(recipe) and isinstance(recipe.views, Crops):  # the size of its views is not chosen yet
        largest = recipe.with_set({"views.size": VIEW_SIZES[-1]})
        spec = with_short_side(largest).data
    spec, channels = replace(spec, source=FROM_PYTHON, joined=()), recipe.encoder.channels
    return prepare_data(source_from_images(*split_labels(data, spec, channels), spec, channels), spec)
