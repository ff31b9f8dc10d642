"""`pretrain`: images and a recipe become a run folder with an encoder.

A new run's recipe is completed by `resolve` from the data and the device; a resumed run has that of its recipe.json
(`continued_recipe`); an extended run is a copy of a finished one that is then resumed (`extend_run`). Torch is
imported when training begins, so that a mistake is reported at once.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typing_extensions import Unpack

from supancl.config import (
    AUTOMATIC,
    FLAG,
    INCIDENTAL,
    MAY_CHANGE_ON_RESUME,
    PYTHON,
    fields_marked,
    flattened,
    parse_json,
    to_json,
)
from supancl.core.labels import Labels
from supancl.core.schedules import learning_rate
from supancl.core.specs import PoolSpec
from supancl.data.from_python import Images, is_image_file, source_from_images, split_labels
from supancl.data.opening import absolute_source, check_source, is_same_source, open_data
from supancl.data.preparing import prepare_data
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import Data
from supancl.data.survey import survey_data, survey_source
from supancl.data.views.specs import Crops
from supancl.distributed import from_environment, join_ranks
from supancl.errors import BadInput, is_out_of_memory
from supancl.files import make_folder, open_regular, read_text, reason, temporary_path, write_bytes, write_sealed_json
from supancl.loggers import open_loggers
from supancl.recipes import Recipe, find_recipe, register_encoder
from supancl.recipes.auto import (
    VIEW_SIZES,
    default_recipe,
    describe_choices,
    fit_recipe,
    is_to_be_fitted,
    open_settings,
)
from supancl.recipes.plugin_files import refuse_while_loading
from supancl.recipes.recipe import TrainSpec, fixed_settings, resolve_warmup, validated_recipe
from supancl.recipes.recipe_file import is_recipe_file
from supancl.recipes.shorthands import RecipeSettings, full_name, parse_set, with_settings
from supancl.recipes.warmup import describe_resolution, resolve_label_warmup
from supancl.reporter import Reporter, current_reporter, default_reporter, report_to
from supancl.runs.folder import RunFolder, is_same_or_moved, name_run, next_folder
from supancl.runs.provenance import commit, versions

if TYPE_CHECKING:
    import torch

    from supancl.training.run import Run

DataArgument = Data | str | Path | list[str | Path] | Images | tuple[Images, Any]
MIN_STEPS_TO_COMPILE = 5_000  # compiling takes about a minute and saves some milliseconds per step


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
    refuse_while_loading()
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
            out, resume = extend_run(RunFolder(Path(extend)), out, recipe, init, compat, given, data is None), True
            recipe, given = None, {}
        if resume:
            if init is not None:
                raise BadInput("init starts a run and resume continues one; give one of them")
            if out is not None and RunFolder(Path(out)).has_run:
                requested = requested_again(RunFolder(Path(out)), recipe, compat, given)
                opened = open_given(requested or RunFolder(Path(out)).read_recipe()[0], data)
                return finished(train(requested, opened, out, resume=True))
            if recipe is None and not given:  # with several machines, the run may be on the first one's disk alone
                return finished(train(None, None, out, resume=True))
        if recipe is None and data is None and sources is None:
            raise BadInput(
                "no images: give data, such as a folder (docs/own-data.md), a recipe that names its data (supancl "
                "recipes), or resume with out"
            )
        requested, opened = requested_recipe(recipe, data, compat, given)
        return finished(train(requested, opened, out, resume=resume, init=init))


def finished(run: Run) -> Run:
    """The run, of which the reporter tells how it ended; other ranks than the first may not see its folder."""
    if from_environment().rank == 0:
        current_reporter().on_finished(run.folder)
    return run


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

    from supancl.core.precision import pick_device
    from supancl.training.loop import begin_run
    from supancl.training.memory import check_memory
    from supancl.training.run import Run, read_finished_run
    from supancl.training.trainer import trainer_for

    recipe = name_source(recipe, data)
    with join_ranks(torch.cuda.is_available()) as ranks, ExitStack() as stack:
        reporter = current_reporter() if ranks.is_rank0 else Reporter()
        stack.enter_context(report_to(reporter))
        resolved = ranks.on_rank0(lambda: settle_recipe(recipe, data, run_folder_for(recipe, out), resume, init))
        if resume and (ended := ranks.on_rank0(lambda: read_finished_run(out))) is not None:
            reporter.note(f"{ended.folder} is finished and keeps no checkpoint; to train it again, remove it")
            return ended
        device = pick_device(resolved.train.device, None if ranks.size == 1 else ranks.local_rank)
        run_data = ranks.on_every_rank(lambda: open_checked(resolved, data, check_memory(resolved, device), ranks.size))
        images = len(run_data.train)
        run_recipe = resolve_label_warmup(resolved, images)
        for line in describe_resolution(resolved, run_recipe, images):
            reporter.note(line)
        run_recipe = with_speed(run_recipe, device, images, ranks.size)
        for remark in run_data.remarks:
            reporter.warn(remark)
        folder = RunFolder(ranks.on_rank0(lambda: stack.enter_context(lock_run_folder(run_recipe, out, resume))))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(deterministic_mode(run_recipe.train.deterministic))
        try:
            ranks.assert_equal(run_data.summary.get("fingerprint"), "the data")
            trainer = trainer_for(run_recipe, run_data, device, ranks)
            # within the loop, the bar of the run shows how far it is
            with begin_run(trainer, run_data, folder, resume, init, reporter) as loop, report_to(Reporter()):
                loop.run()
            if better_start := ranks.on_rank0(folder.compare_with_start):
                reporter.warn(better_start)
            encoder = trainer.model.copy_encoder(run_recipe)
        except (RuntimeError, MemoryError) as error:
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
    return prepare_data(source_from_images(*split_labels(data, spec, channels), spec, channels), spec)


def name_source(recipe: Recipe | None, data: Data | None) -> Recipe | None:
    """The recipe with the source that opened data come from."""
    if recipe is None or data is None or "source" not in data.summary:
        return recipe
    source, joined = str(data.summary["source"]), data.summary.get("joined", ())
    return replace(recipe, data=replace(recipe.data, source=source, joined=tuple(joined)))  # type: ignore[arg-type]


# --- the recipe of the run --------------------------------------------------------------------------------------------


def settle_recipe(
    recipe: Recipe | None, data: Data | None, folder: RunFolder, resume: bool, init: Path | str | None
) -> Recipe:
    """The recipe of the run: that of recipe.json if the run is resumed, else the resolved one. Nothing is written."""
    recipe = None if recipe is None else validated_recipe(recipe)  # one made in Python is not validated yet
    folder.check_links()
    if resume and folder.has_run:
        return continued_recipe(folder, recipe)
    folder.check_free(resume)  # before the data are read, which may take an hour
    if recipe is None:
        raise BadInput(f"{folder.path} holds no run to continue; name a recipe to start one")
    for source in recipe.data.all_sources:
        check_out_folder(source, folder.path)
    return resolve(recipe, data, init)


def resolve(recipe: Recipe, data: Data | None = None, init: Path | str | None = None) -> Recipe:
    """The recipe with every open setting chosen from the data, the device and the start; each choice is reported."""
    from supancl.core.precision import pick_device

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
    for line in describe_resolution(recipe, resolved) if not is_to_be_fitted(requested) else ():
        reporter.note(line)
    return with_short_side(resolved)


def with_short_side(recipe: Recipe) -> Recipe:
    """Limit the decoded size of photographs to what the views need: the smallest crop still has the views' size."""
    if recipe.data.short_side is not None or not isinstance(recipe.views, Crops):
        return recipe
    crops = [(recipe.views.size, recipe.views.scale[0])]
    if recipe.views.local is not None:
        crops.append((recipe.views.local.size, recipe.views.local.scale[0]))
    side = max(math.ceil(size / math.sqrt(scale)) for size, scale in crops)
    return recipe.with_set({"data.short_side": side}, because="views.size and views.scale")


def with_speed(recipe: Recipe, device: torch.device, images: int, ranks: int = 1) -> Recipe:
    """Choose precision, compilation and replay for this device, unless the recipe sets them.

    For several ranks only the precision: the run may continue later in a single process.
    """
    from supancl.core.precision import auto_precision, has_bf16

    settings, cuda = recipe.train, device.type == "cuda"
    if settings.precision == "bf16" and not has_bf16(device):
        raise BadInput(f"train.precision = bf16: {device} has no bf16; use fp32")
    steps = images // settings.batch_size * settings.epochs
    best = {
        "train.precision": auto_precision(device),
        "train.compile": cuda and steps >= MIN_STEPS_TO_COMPILE and not settings.deterministic,
        "train.replay": cuda and not settings.deterministic and settings.on_nan != "skip",
    }
    automatic = fields_marked(recipe, AUTOMATIC)
    chosen = {
        key: value
        for key, value in best.items()
        if getattr(settings, key.removeprefix("train.")) == automatic[key] and (ranks == 1 or key == "train.precision")
    }
    return recipe.with_set(chosen, because=f"automatic, on {device.type}") if chosen else recipe


# --- resuming and extending -------------------------------------------------------------------------------------------


def continued_recipe(folder: RunFolder, recipe: Recipe | None) -> Recipe:
    """The recipe of a resumed run: its recipe.json, with the few settings that may change if they are requested."""
    saved, _ = folder.read_recipe()
    if recipe is None:
        return saved
    images = folder.read_data()[0].get("train")
    requested = with_short_side(resolve_warmup(recipe))
    requested = resolve_label_warmup(requested, images) if isinstance(images, int) else requested
    old, new = flattened(replace(saved, sources={})), flattened(replace(requested, sources={}))
    may_change = {*fields_marked(recipe, MAY_CHANGE_ON_RESUME), *open_settings(recipe)}
    for key, value in {"train.epochs": new["train.epochs"], **new}.items():  # first: a warm-up may follow from it
        if key in may_change:
            continue
        same_or_moved = key in ("data.source", "data.joined") and is_same_or_moved(value, old.get(key))
        if not same_or_moved and not is_same_or_automatic(key, value, old.get(key)):
            longer = f"to train longer, extend the finished run {folder.path} in another folder"
            advice = longer if key == "train.epochs" else f"start another run with init {folder.path} and another out"
            raise BadInput(
                f"{key} = {value!r} differs from {old.get(key)!r} in {folder.recipe_file}; a run continues with its "
                f"own settings: {advice}"
            )
    changed = changed_settings(recipe, saved)
    if not all(map(is_same_source, recipe.data.all_sources, saved.data.all_sources)):
        for source in recipe.data.all_sources:
            check_out_folder(source, folder.path)
        changed["data.source"], *joined = map(absolute_source, recipe.data.all_sources)
        changed["data.joined"] = tuple(joined)
    return saved.with_set(changed, because="changed on resume") if changed else saved


def is_same_or_automatic(key: str, requested: Any, saved: Any) -> bool:
    """Whether a requested setting is the saved one of a run, or left to be chosen automatically."""
    automatic = fields_marked(TrainSpec(), AUTOMATIC, "train")
    return bool(requested == saved) or (key in automatic and requested == automatic[key])


def changed_settings(recipe: Recipe, saved: Recipe) -> dict[str, Any]:
    """Settings that may change on resume, were requested, and differ from the saved ones."""
    old, new = flattened(saved), flattened(recipe)
    return {
        key: new[key]
        for key, default in fields_marked(recipe, MAY_CHANGE_ON_RESUME).items()
        if new[key] not in (None, old[key]) and (new[key] != default or key in recipe.sources)
    }


def extend_run(
    run: RunFolder,
    out: Path | str | None,
    recipe: Any,
    init: Any,
    compat: Any,
    given: Mapping[str, Any],
    reads_source: bool,
) -> Path | str | None:
    """Make a folder like that of a run that was stopped at the last step of `run`, whole or not at all.

    The caller resumes it. Other ranks wait for it when they join.
    """
    for name, value in (("recipe", recipe), ("init", init), ("compat", compat)):
        if value is not None:
            raise BadInput(f"extend {run.path} continues that run with its own settings; leave out {name} {value}")
    if from_environment().rank > 0:
        return out
    base, _ = run.read_recipe()
    changes = {full_name(base, name): value for name, value in given.items()}
    epochs = changes.pop("train.epochs", None)
    if not isinstance(epochs, int):
        raise BadInput(f"extend {run.path}: give epochs, the epoch to continue to, counted from the first")
    run.check_recipe_file()
    state = load_last_state(run, base)
    recipe = extended_recipe(base, epochs, changes, run)
    for source in recipe.data.all_sources if reads_source else ():
        check_source(source)
    folder = run_folder_for(recipe, out)
    folder.check_free(resume=False)
    check_out_folder(recipe.data.source, folder.path)
    make_folder(folder.path.parent)
    temporary = temporary_path(folder.path)
    try:
        write_extension(RunFolder(temporary), run, recipe, base, state)
        os.rename(temporary, folder.path)
    except OSError as error:
        raise BadInput(f"cannot write to {folder.path} ({reason(error)}); choose another out") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    rate = recipe.learning_rate * recipe.schedule.restart_rate
    current_reporter().note(
        f"{run.path} continues to epoch {epochs} in {folder.path}: the learning rate starts again at {rate:.4g}, "
        f"{recipe.schedule.restart_rate:.3g} of its peak (schedule.restart_rate)"
    )
    return folder.path


def load_last_state(run: RunFolder, base: Recipe) -> dict[str, Any]:
    """The last checkpoint of a finished run; refuses one that is unfinished or keeps none."""
    from supancl.runs.checkpoint import load_newest

    if early := run.describe_early_end(base):
        raise BadInput(f"{run.path} is not finished ({early}); resume it first")
    state, _ = load_newest(run.checkpoints)
    if state is None:
        raise BadInput(f"{run.path} keeps no checkpoint to continue from; start another run with init {run.path}")
    if any(row["step"] != state["step"] for row in run.metrics()[-1:]):
        raise BadInput(f"{run.path}: its newest checkpoint is of step {state['step']}, before its end; resume it first")
    return state


def extended_recipe(base: Recipe, epochs: int, changes: Mapping[str, Any], run: RunFolder) -> Recipe:
    """The recipe of the run with more epochs and a schedule that starts again at its end."""
    before = base.train.epochs
    if epochs <= before:
        raise BadInput(f"epochs = {epochs}: {run.path} has {before} already; name more than that")
    may_change = {*fields_marked(base, MAY_CHANGE_ON_RESUME), *fields_marked(base.train, INCIDENTAL, "train")}
    may_change = (may_change - {"train.seed"}) | {"schedule.restart_rate"}
    for key, value in changes.items():
        is_moved = key == "data.source" and is_same_or_moved(str(value), base.data.source)
        if key in may_change or is_moved:
            continue
        if flattened(base.with_set({key: value})).get(key) != flattened(base).get(key):
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
    return extended.with_set(dict(changes)) if changes else extended


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


# --- folder, process, data --------------------------------------------------------------------------------------------


def run_folder_for(recipe: Recipe | None, out: Path | str | None) -> RunFolder:
    if out is None and recipe is None:
        raise BadInput("resume continues the run in out; name it")
    return RunFolder(Path(out) if out is not None else next_folder(recipe.name))  # type: ignore[union-attr]


@contextmanager
def lock_run_folder(recipe: Recipe, out: Path | str | None, resume: bool) -> Iterator[Path]:
    """Make and lock the folder of this run."""
    folder = run_folder_for(recipe, out)
    folder.create()
    while out is None and not folder.created:  # another run has made this folder in the meantime
        folder = run_folder_for(recipe, out)
        folder.create()
    with folder.lock():
        folder.check_free(resume)  # again: another run may have started here while the data were read
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


def open_checked(recipe: Recipe, data: Data | None, memory: str, ranks: int) -> Data:
    """The data of this process, refused before anything is written if they cannot train the recipe."""
    if memory:
        current_reporter().note(memory)
    if data is None:
        for name in recipe.data.all_sources:
            check_source(name)
        data = open_data(recipe.data, recipe.encoder.channels)
    check_data(recipe, data, ranks)
    return fit_labels(recipe, data)


def check_data(recipe: Recipe, data: Data, ranks: int = 1) -> None:
    """Refuse data that cannot train this recipe: other shapes, too few images, labels that tell its loss nothing."""
    import torch

    source, settings = str(data.summary.get("source") or "the data"), recipe.train
    shape = data.train.batch(torch.zeros(1, dtype=torch.long)).pixels.shape
    holds, takes = "vectors" if len(shape) == 2 else "images", "vectors" if recipe.views.kind == "masks" else "images"
    encodes = "vectors" if recipe.encoder.name == "linear" else "images"
    if holds != takes or holds != encodes:
        raise BadInput(
            f"{source} holds {holds}; {recipe.name} takes {takes}, and its encoder {recipe.encoder.name!r} {encodes}; "
            "choose another recipe, encoder.name or data"
        )
    if holds == "images" and shape[1] != recipe.encoder.channels:
        raise BadInput(
            f"{source}: images have {shape[1]} channels, {recipe.name} takes {recipe.encoder.channels}; set "
            f"encoder.channels={shape[1]}"
        )
    if len(data.train) < settings.batch_size:
        raise BadInput(
            f"{source}: training images: {len(data.train)}, fewer than a batch of {settings.batch_size}; set "
            "train.batch_size, or add images"
        )
    least = ranks * (1 if settings.sync_norm else 2)  # without synchronised statistics, batch norm needs two images
    if ranks > 1 and settings.batch_size // settings.accumulate < least:
        raise BadInput(
            f"train.batch_size / train.accumulate = {settings.batch_size // settings.accumulate} is too small for "
            f"{ranks} ranks; use train.batch_size={least * settings.accumulate} or more, or fewer ranks"
        )
    out = recipe.heads.projector.out
    if not recipe.loss.normalizes and out is not None and out < len(data.classes):
        raise BadInput(
            f"heads.projector.out = {out} is fewer than the {len(data.classes)} classes of {source}; set "
            "heads.projector.out=null, which takes their number"
        )
    if recipe.loss.supervised:
        check_labels(recipe, data, source)


def check_labels(recipe: Recipe, data: Data, source: str) -> None:
    """Refuse labels that tell a supervised method nothing: none, or the same for all images."""
    present = data.train.class_ids()
    if len(present) < 2:
        found = f"only one class, {data.classes[present[0]]!r}" if present else "no label"
        raise BadInput(
            f"{source}: its training images have {found}, and {recipe.method} needs two classes; put images into class "
            "folders, or use simsiam or byol"
        )
    if not data.train.all_labels.has_one_each and data.train.all_labels.count_distinct() == 1:
        raise BadInput(
            f"{source}: all labelled training images have the same classes and weights, so {recipe.method} learns "
            "nothing from them; add images with others, or use simsiam or byol"
        )


def fit_labels(recipe: Recipe, data: Data) -> Data:
    """The data with labels that the loss and the pool can take; refused if they need labels and cannot take these."""
    labels, source = data.train.all_labels, str(data.summary.get("source") or "the data")
    if labels.has_one_each:
        return data
    if not recipe.loss.takes_pairs or type(recipe.pool) is not PoolSpec:
        if recipe.loss.supervised:
            labels.check_single(source, f"loss.kind = {recipe.loss.kind} with pool.kind = {recipe.pool.kind}")
        return replace(data, train=replace(data.train, all_labels=Labels.of(labels.rarest)))
    compares_targets = recipe.loss.needs_pool and recipe.loss.stores_unlabelled  # not means of classes
    if compares_targets and recipe.pool.kind == "class-queues" and labels.classes.shape[1] > 1:
        raise BadInput(
            f"{source}: an image has up to {labels.classes.shape[1]} labels, so class queues hold copies of a target, "
            f"which {recipe.method} would compare with each; set pool.kind=queue"
        )
    if getattr(recipe.loss, "form", "") == "binary" and float(labels.weights.max()) > 1:
        raise BadInput(
            f"{source}: a label has weight {float(labels.weights.max()):g}, and loss.form = binary takes "
            "probabilities; set loss.form=softmax"
        )
    return data
