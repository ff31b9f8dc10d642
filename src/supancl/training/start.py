"""`pretrain`: images and a recipe become a run folder with an encoder.

A new run's recipe is completed by `resolve` from the data and the device; a resumed run has that of its recipe.json
(`continued_recipe` in run.py); an extended run is a copy of a finished one that is then resumed. Torch is imported when
training begins, so that a mistake is reported at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from typing_extensions import Unpack

from supancl.config import FLAG, PYTHON
from supancl.data.from_python import Images, is_image_file, list_images, split_labels
from supancl.data.opening import check_source, load, open_data, survey_data, survey_source
from supancl.data.preparing import prepare_data
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.sources.folder import check_out_folder
from supancl.data.sources.libraries import local_caches
from supancl.data.splits import Data
from supancl.data.views.specs import Crops
from supancl.distributed import from_environment, join_ranks
from supancl.errors import BadInput, is_out_of_memory
from supancl.files import make_folder, reason
from supancl.loggers import open_loggers
from supancl.recipes import Recipe, find_recipe, is_recipe_file, register_encoder
from supancl.recipes.auto import (
    VIEW_SIZES,
    default_recipe,
    describe_choices,
    fit_recipe,
    is_to_be_fitted,
    with_short_side,
)
from supancl.recipes.recipe import describe_changes, resolve_warmup, validated_recipe
from supancl.recipes.shorthands import RecipeSettings, parse_set, with_settings
from supancl.reporter import Reporter, current_reporter, default_reporter, report_to
from supancl.runs.folder import RunFolder
from supancl.training.run import Run, continued_recipe, extend_run, read_finished_run, run_folder_for

DataArgument = Data | str | Path | list[str | Path] | Images | tuple[Images, Any]


def pretrain(
    recipe: Recipe | str | Path | None = None,
    data: Annotated[DataArgument | list[str] | None, FLAG] = None,
    out: Annotated[Path | str | None, FLAG] = None,
    *,
    resume: bool = False,
    extend: Path | str | None = None,
    init: Path | str | None = None,
    set: Mapping[str, Any] | list[str] | None = None,
    compat: Literal["paper", "released-code"] | None = None,
    logger: list[str] | None = None,
    reporter: Annotated[Reporter | None, PYTHON] = None,
    verbose: Annotated[bool | None, PYTHON] = None,
    **settings: Unpack[RecipeSettings],
) -> Run:
    """Train an encoder on images and write everything to a run folder.

    Without a recipe, every setting is chosen from the images, their labels and the device. Stop the run at any time
    and continue it with `resume`. Under torchrun all ranks train together: each makes the same call.

    Parameters
    ----------
    recipe
        a recipe or a method by name (`supancl recipes` lists them), or a file of settings: a run's recipe.json, or a
        .json or .yaml of yours
    data
        digits, toy, a folder, .npz, .csv, .tar shards, torchvision:NAME@ROOT, hf:NAME; several are joined. In Python
        also images or (images, labels): arrays (N, H, W[, C]) or tensors (N, C, H, W) of uint8, lists of Pillow images
        or paths, a data set of torch, or what `open_data` returns; label -1 means unlabelled
    out
        run folder (default: runs/RECIPE-NNN)
    resume
        continue the run in `out` with the settings saved there
    extend
        continue a finished run to more `epochs`, in another folder
    init
        start from trained weights: a run, a weight file, timm:NAME or torchvision:NAME (docs/import.md)
    set
        any field of the recipe, such as loss.alpha=0.3 (`supancl recipes NAME` lists them)
    compat
        follow the paper, or the authors' code
    logger
        also log to wandb or mlflow, offline unless their own variables say otherwise; may be given several times
    reporter
        receives progress instead of the terminal
    verbose
        show progress; by default in a terminal and in a notebook

    Returns
    -------
    Run
        the folder, the encoder (a torch module in eval mode), and the logged rows

    Examples
    --------
    $ supancl pretrain --data photos
    $ supancl pretrain supsiam --data photos --init timm:resnet18

    >>> run = pretrain("digits.supsiam", out="runs/digits", epochs=1, alpha=0.3, limit=128)
    >>> run.recipe.loss.alpha, run.recipe.train.epochs
    (0.3, 1)
    """
    given: dict[str, Any] = {**settings, **parse_set(set)}
    if not isinstance(given.get("encoder", ""), str):
        given["encoder"] = register_module(given["encoder"])
    if (method := given.pop("method", None)) is not None:
        if recipe is not None:
            raise BadInput(f"method {method}: {recipe} has its own method; give one of them")
        recipe = method
    if (sources := as_sources(data)) is not None:
        data, given = None, {"data.source": sources[0], "data.joined": tuple(sources[1:]), **given}
    if "labels" in given:
        raise BadInput("labels go with their images: data=(images, labels)")
    with ExitStack() as stack:
        if reporter is None:
            reporter = current_reporter() if verbose is None else default_reporter(verbose)
        stack.enter_context(report_to(open_loggers(logger or (), reporter)))
        if extend is not None and not (resume and RunFolder(Path(out or "")).has_run):
            if recipe is not None or init is not None or compat is not None:
                raise BadInput(f"extend {extend} has its own settings; leave recipe, init and compat out")
            out, resume, given = extend_run(RunFolder(Path(extend)), out, given, data is None), True, {}
        requested, opened = requested_run(recipe, data, out, resume, init, compat, given)
        run = train(requested, opened, out, resume=resume, init=init)
        if from_environment().rank == 0:  # other ranks may not see the folder
            current_reporter().on_finished(run.folder)
        return run


def requested_run(
    recipe: Any, data: Any, out: Any, resume: bool, init: Any, compat: Any, given: Mapping[str, Any]
) -> tuple[Recipe | None, Data | None]:
    """The recipe that is asked for, None for that of the run in `out`; and the data if they are Python objects."""
    if resume and init is not None:
        raise BadInput("init starts a run and resume continues one; give one of them")
    if resume and out is not None and (folder := RunFolder(Path(out))).has_run:
        requested = requested_again(folder, recipe, compat, given)
        return requested, open_given(requested or folder.read_recipe()[0], data)
    if resume and recipe is None and not given:  # with several machines, the run may be on the first one's disk alone
        return None, None
    if recipe is None and data is None and "data.source" not in given:
        raise BadInput(
            "no images: give data, such as a folder (docs/own-data.md), a recipe that names its data (supancl "
            "recipes), or resume with out"
        )
    return requested_recipe(recipe, data, compat, given)


def train(
    recipe: Recipe | None,
    data: Data | None = None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    init: Path | str | None = None,
) -> Run:
    """Train this recipe on opened data, or on its own source; None continues the run in `out` as it is saved.

    The caller's random state is restored at the end.
    """
    import torch

    from supancl.distributed.ranks import pick_device
    from supancl.training.checks import check_data, check_memory, fit_labels
    from supancl.training.pretraining import Pretraining
    from supancl.training.speed import is_compiler_error, with_speed
    from supancl.training.trainer import Trainer

    if recipe is not None and data is not None and "source" in data.summary:
        joined: Any = data.summary.get("joined", ())
        named = replace(recipe.data, source=str(data.summary["source"]), joined=tuple(joined))
        recipe = replace(recipe, data=named)
    with join_ranks(torch.cuda.is_available()) as ranks, ExitStack() as stack:
        reporter = current_reporter() if ranks.is_rank0 else Reporter()
        stack.enter_context(report_to(reporter))
        resolved, ended = ranks.on_rank0(lambda: settle_recipe(recipe, data, run_folder_for(recipe, out), resume, init))
        if ended is not None:
            reporter.note(f"{ended.folder} is finished and keeps no checkpoint; to train it again, remove it")
            return ended
        device = pick_device(resolved.train.device, None if ranks.size == 1 else ranks.local_rank)
        with local_caches(resolved.data.all_sources if recipe is None else ()):  # what a run names is not looked up
            if memory := check_memory(resolved, device):
                reporter.note(memory)
            if data is None:
                for name in resolved.data.all_sources:
                    check_source(name)
                data = open_data(resolved.data, resolved.encoder.channels)
            check_data(resolved, data, ranks.size)  # before anything is written
            run_data = fit_labels(resolved, data)
        ranks.assert_equal(run_data.summary.get("fingerprint"), "the data")
        images = len(run_data.train)
        run_recipe = resolve_warmup(resolved, images)
        for line in describe_changes(resolved, run_recipe):
            reporter.note(line)
        run_recipe = with_speed(run_recipe, device, images, ranks.size)
        for line in run_data.remarks:
            reporter.warn(line)
        folder = RunFolder(ranks.on_rank0(lambda: stack.enter_context(claim_folder(run_recipe, out, resume))))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(deterministic_mode(run_recipe.train.deterministic))
        try:
            gc.collect()  # the trainer of an earlier run has reference cycles
            trainer = Trainer(run_recipe, run_data, device, ranks)
            # within the loop, the bar of the run shows how far it is
            with Pretraining(trainer, run_data, folder, resume, init, reporter) as loop, report_to(Reporter()):
                loop.run()
            if better_start := ranks.on_rank0(folder.compare_with_start):
                reporter.warn(better_start)
            encoder = trainer.model.copy_encoder(run_recipe)
        except (RuntimeError, MemoryError) as error:
            if is_compiler_error(error):
                raise BadInput(f"the step could not be compiled ({reason(error)}); set train.compile=false") from None
            if not is_out_of_memory(error):
                raise
            raise BadInput(
                f"the memory of {device} is too small for batches of {run_recipe.train.batch_size}; set a larger "
                "train.accumulate, or a smaller train.batch_size, views.size, pool.size or encoder.name"
            ) from None
        return Run(folder.path, encoder, ranks.on_rank0(folder.metrics), trainer.monitor.collapsed)


# --- what is asked for ------------------------------------------------------------------------------------------------


def register_module(module: Any) -> str:
    """The name under which copies of this torch module are encoders."""
    import copy

    name = type(module).__name__
    register_encoder(name, lambda spec: copy.deepcopy(module))
    return name


def as_sources(data: Any) -> list[str] | None:
    """The names of sources, or None if `data` is something else: opened data, or images."""
    names = [data] if isinstance(data, (str, Path)) else data
    is_list = isinstance(names, (list, tuple)) and len(names) > 0
    if not is_list or not all(isinstance(name, (str, Path)) for name in names) or all(map(is_image_file, names)):
        return None
    return [str(name) for name in names]


def requested_recipe(
    recipe: Recipe | str | Path | None, data: Any, compat: Any, given: Mapping[str, Any]
) -> tuple[Recipe, Data | None]:
    """The recipe of a new run as it is asked for, and its data if they are Python objects."""
    requested = find_recipe("auto.supsiam" if recipe is None else recipe, compat, given)
    opened = open_given(requested, data)
    if recipe is None:
        survey = survey_source(requested.data, requested.encoder.channels) if opened is None else survey_data(opened)
        requested = find_recipe(default_recipe(survey), compat, given)
    if opened is None and not requested.data.stream and from_environment().size == 1:
        for name in requested.data.all_sources:
            check_source(name)
    return requested, opened


def requested_again(folder: RunFolder, recipe: Any, compat: str | None, given: Mapping[str, Any]) -> Recipe | None:
    """The recipe that a resumed run is asked to continue with; None if nothing is asked for."""
    saved = folder.read_recipe()[0]
    if isinstance(recipe, Recipe) or (recipe is not None and is_recipe_file(str(recipe))):
        return find_recipe(recipe, compat, given)
    if recipe is not None and str(recipe) != saved.name and f"auto.{recipe}" != saved.name:
        raise BadInput(f"{folder.path} holds a run of {saved.name}, not of {recipe}; choose another out")
    if compat is not None and compat != saved.compat:
        raise BadInput(f"compat = {compat!r} differs from {saved.compat!r} in {folder.recipe_file}; leave it out")
    return with_settings(saved, given) if given else None


def open_given(recipe: Recipe, data: Any) -> Data | None:
    """Images, or (images, labels), opened as the recipe says: its channels, and what it holds out, limits and hides."""
    if data is None or isinstance(data, Data):
        return data
    spec = with_short_side(recipe).data
    if is_to_be_fitted(recipe) and isinstance(recipe.views, Crops):  # the size of its views is not chosen yet
        spec = with_short_side(recipe.with_set({"views.size": VIEW_SIZES[-1]})).data
    spec, channels = replace(spec, source=FROM_PYTHON, joined=()), recipe.encoder.channels
    listing = list_images(*split_labels(data, spec, channels), spec, channels)
    return prepare_data(load(listing, channels, spec), spec)


# --- the recipe of the run --------------------------------------------------------------------------------------------


def settle_recipe(
    recipe: Recipe | None, data: Data | None, folder: RunFolder, resume: bool, init: Path | str | None
) -> tuple[Recipe, Run | None]:
    """The recipe of the run: that of recipe.json if it is resumed, else the resolved one; and the run if it has ended.

    Nothing is written.
    """
    recipe = None if recipe is None else validated_recipe(recipe)  # one made in Python is not validated yet
    folder.check_free(resume)  # before the data are read, which may take an hour
    if resume and folder.has_run:
        return continued_recipe(folder, recipe), read_finished_run(folder)
    if recipe is None:
        raise BadInput(f"{folder.path} holds no run to continue; name a recipe to start one")
    for source in recipe.data.all_sources:
        check_out_folder(source, folder.path)
    return resolve(recipe, data, init), None


def resolve(recipe: Recipe, data: Data | None = None, init: Path | str | None = None) -> Recipe:
    """The recipe with every open setting chosen from the data, the device and the start; each choice is reported."""
    from supancl.distributed.ranks import pick_device

    requested, reporter = recipe, current_reporter()
    if init is not None:
        from supancl.runs.importing import follow_start

        recipe = follow_start(recipe, init)
    if is_to_be_fitted(recipe):
        survey = survey_source(recipe.data, recipe.encoder.channels) if data is None else survey_data(data)
        on_gpu = pick_device(recipe.train.device).type == "cuda"
        recipe = fit_recipe(recipe, survey, on_gpu, init is not None)
        for line in describe_choices(requested, recipe, survey, on_gpu, init is not None):
            reporter.note(line)
    resolved = resolve_warmup(recipe)
    for line in describe_changes(recipe, resolved):
        reporter.note(line)
    return with_short_side(resolved)


# --- folder, process, data --------------------------------------------------------------------------------------------


@contextmanager
def claim_folder(recipe: Recipe, out: Path | str | None, resume: bool) -> Iterator[Path]:
    """Make and lock the folder of this run; without `out`, the next one that no other run takes at the same time."""
    folder = run_folder_for(recipe, out)
    while out is None:
        make_folder(folder.path.parent)
        try:
            folder.path.mkdir()
            break
        except FileExistsError:
            folder = run_folder_for(recipe, out)
    with folder.claim(resume, is_new=out is None):
        yield folder.path


@contextmanager
def deterministic_mode(enabled: bool) -> Iterator[None]:
    """Use deterministic algorithms in the block if enabled, then restore the caller's settings."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(enabled or before)
    torch.backends.cudnn.benchmark = not enabled
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
