"""Checks and choices before a run: device, automatic settings, data, run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from supancl.config import AUTOMATIC, MAY_CHANGE_ON_RESUME, fields_marked, flattened
from supancl.core.precision import auto_precision, has_bf16
from supancl.data.content import Content, read_content
from supancl.data.opening import absolute_source, is_same_source
from supancl.data.sources.folder import check_out_folder
from supancl.data.sources.tars import find_tars, is_tar
from supancl.data.splits import Data
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, plural
from supancl.recipes import Recipe
from supancl.recipes.auto import open_settings
from supancl.recipes.recipe import TrainSpec, first_changed_setting, resolve_warmup, validated_recipe
from supancl.recipes.warmup import resolve_label_warmup
from supancl.training.label_checks import check_labels
from supancl.weights.provenance import versions
from supancl.weights.run_folder import RunFolder, next_folder

MIN_STEPS_TO_COMPILE = 5_000  # compiling takes about a minute and saves some milliseconds per step
LARGE_POOL = 100_000  # targets; the paper has 8192
MAX_STEPS = 1_000_000_000  # 12 days at a millisecond per step; more is a typing error


def pick_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device with this name, or the best one for "auto"; each rank on this machine (`local_rank`) gets its GPU."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"--device {name}: no GPU that torch can use; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and local_rank is not None:
        if local_rank >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise BadInput(
                f"{plural(count, 'GPU is', 'GPUs are')} too few for at least {local_rank + 1} ranks on this "
                f"machine; use torchrun --nproc-per-node {count}, or --device cpu"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device(name)


def check_ranks(recipe: Recipe, ranks: int) -> None:
    """Every rank needs one row of every micro-batch, and two if its batch norm is not synchronised."""
    settings = recipe.train
    micro_batch, least = settings.batch_size // settings.accumulate, 1 if settings.sync_norm else 2
    if ranks > 1 and micro_batch < ranks * least:
        why = "" if settings.sync_norm else " at 2 each, which batch norm needs with train.sync_norm=false"
        raise BadInput(
            f"{plural(micro_batch, 'image')} at a time (train.batch_size / train.accumulate) "
            f"{'is' if micro_batch == 1 else 'are'} too few for {ranks} ranks{why}; use --batch-size "
            f"{ranks * least * settings.accumulate} or more, or fewer ranks"
        )


def check_data(recipe: Recipe, data: Data) -> None:
    """Refuse data that cannot train this recipe, before anything is written."""
    source = str(data.summary.get("source") or "the data")
    pixels = data.train.batch(torch.zeros(1, dtype=torch.long)).pixels
    if (pixels.ndim == 2) != (recipe.views.kind == "masks"):
        kind, expected = ("vectors", "images") if pixels.ndim == 2 else ("images", "vectors (toy)")
        raise BadInput(
            f"{source} holds {kind}, recipe {recipe.name} takes {expected}; choose another recipe or other data"
        )
    if pixels.ndim == 4 and recipe.encoder.name == "linear":
        raise BadInput(f"{source} holds images, encoder 'linear' takes vectors (toy); --set encoder.name=cnn")
    if pixels.ndim == 2 and recipe.encoder.name != "linear":
        raise BadInput(f"{source} holds vectors, encoder {recipe.encoder.name!r} takes images; choose linear")
    if pixels.ndim == 4 and pixels.shape[1] != recipe.encoder.channels:
        raise BadInput(
            f"{source}: images have {plural(pixels.shape[1], 'channel')}, recipe {recipe.name} takes "
            f"{recipe.encoder.channels}; --set encoder.channels={pixels.shape[1]} or convert them"
        )
    if len(data.train) < recipe.train.batch_size:
        raise BadInput(
            f"{source}: {plural(len(data.train), 'training image is', 'training images are')} fewer than a "
            f"batch of {recipe.train.batch_size}; "
            + (f"use --batch-size {len(data.train)} or less" if len(data.train) > 1 else "add images")
        )
    steps_per_epoch = len(data.train) // recipe.train.batch_size
    if steps_per_epoch * recipe.train.epochs > MAX_STEPS:
        raise BadInput(
            f"train.epochs = {recipe.train.epochs} of {plural(steps_per_epoch, 'step')} each are "
            f"{steps_per_epoch * recipe.train.epochs:,} steps, more than {MAX_STEPS:,}; use --epochs "
            f"{max(1, MAX_STEPS // steps_per_epoch)} or less"
        )
    out = recipe.heads.projector.out
    if not recipe.loss.normalizes and out is not None and out < len(data.classes):
        raise BadInput(
            f"heads.projector.out = {out} is fewer than the {len(data.classes)} classes of {source}; "
            "--set heads.projector.out=null takes their number"
        )
    check_labels(recipe, data)


RESTORE = "restore them, or start another run"


def check_same_data(folder: RunFolder, data: Data, way_out: str = RESTORE, prefix: str = "") -> None:
    """Refuse data that have changed since the run began: order, labels and held-out images depend on them."""
    saved, classes = folder.read_data()
    changed = f"{prefix}the data have changed since the run began"
    for key in ("classes", "train", "labelled", "held_out"):
        now = data.summary[key]
        if key in saved and saved[key] != now:
            raise BadInput(f"{changed}: {key.replace('_', ' ')} {now}, was {saved[key]}; {way_out}")
    if classes != data.classes or saved.get("fingerprint", "") not in ("", data.summary["fingerprint"]):
        raise BadInput(f"{changed}: other class names, files or labels; {way_out}")


def describe_content(content: Content | None) -> dict[str, object]:
    """What recipe.json says of the content of the images, and of how it was taken."""
    if content is None:
        return {}
    how = {"pixels": "every pixel", "shards": "size of each shard and bytes sampled from it"}[content.kind]
    return {"content": content.digest, "content_of": how}


def check_same_content(folder: RunFolder, data: Data, way_out: str = RESTORE) -> list[str]:
    """Refuse images that were replaced under the same names since the run began; returns remarks.

    Only the content counts: data may have been moved or copied.
    """
    saved, current = folder.read_data()[0].get("content"), data.content
    if saved is None or current is None:
        return [f"{folder.recipe_file} has no checksum of the images, so images that were replaced would go unnoticed"]
    before = read_content(folder.content_file)
    if saved == current.digest:
        if not current.has_other_stamps(before):
            return []
        return ["shards have another time or inode than when the run began; their sizes and sampled bytes are the same"]
    names = current.changed_names(before)
    count = plural(len(names), "image or shard", "images or shards") if names else "images"
    example = f", such as {names[0]}" if names else ""
    changed = f"the content of {count} has changed since the run began{example}"
    decoder, this_decoder = folder.read_versions().get("pillow"), versions().get("pillow")
    if decoder != this_decoder and current.kind == "pixels":
        return [f"{changed}; that may be pillow, which was {decoder} and is {this_decoder}"]
    raise BadInput(f"{changed}; {way_out}")


def check_same_settings(folder: RunFolder, state: dict[str, Any], recipe: Recipe) -> None:
    """Refuse to continue a checkpoint with settings other than those it was trained with."""
    saved = state["settings"]
    if (key := first_changed_setting(saved, recipe)) is not None:
        value, before = flattened(recipe).get(key), saved.get(key, "its default")
        raise BadInput(
            f"{folder.recipe_file} was changed: {key} is {value!r}, the run was trained with {before!r}; put that "
            f"back, or start another run with --init {folder.path} and another --out"
        )


def check_same_device(folder: RunFolder, state: dict[str, Any], device: torch.device) -> None:
    """Refuse another kind of device: it would draw other random numbers."""
    rng = state.get("rng")
    if not isinstance(rng, dict) or (rng.get("cuda") is None) == (device.type == "cpu"):
        return
    original, current = ("a CPU", "a GPU") if device.type == "cuda" else ("a GPU", "a CPU")
    advice = "hide the GPU with CUDA_VISIBLE_DEVICES=" if device.type == "cuda" else "continue it where there is one"
    raise BadInput(
        f"{folder.path} was started on {original} and cannot continue on {current}; {advice}, or start another run "
        f"from its encoder with --init {folder.path}"
    )


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
    settings, cuda = recipe.train, device.type == "cuda"
    if settings.precision == "bf16" and not has_bf16(device):
        raise BadInput(f"--precision bf16: {torch.cuda.get_device_name(device)} has no bf16; use --precision fp32")
    steps = images // settings.batch_size * settings.epochs
    best = {
        "train.precision": auto_precision(device),
        "train.compile": cuda and steps >= MIN_STEPS_TO_COMPILE and not settings.deterministic,
        "train.replay": cuda and not settings.deterministic and settings.on_nan != "skip",
    }
    automatic = fields_marked(recipe, AUTOMATIC)
    settings_to_choose = {
        key: value
        for key, value in best.items()
        if getattr(settings, key.removeprefix("train.")) == automatic[key] and (ranks == 1 or key == "train.precision")
    }
    return recipe.with_set(settings_to_choose, because=f"automatic, on {device.type}") if settings_to_choose else recipe


def is_same_or_automatic(key: str, requested: Any, saved: Any) -> bool:
    """Whether a requested setting is the saved one of a run, or left to be chosen automatically."""
    automatic = fields_marked(TrainSpec(), AUTOMATIC, "train")
    return bool(requested == saved) or (key in automatic and requested == automatic[key])


# --- run folder and settings ------------------------------------------------------------------------------------------


def run_folder_for(recipe: Recipe | None, out: Path | str | None) -> RunFolder:
    if out is not None:
        return RunFolder(Path(out))
    if recipe is None:
        raise BadInput("name a recipe (supancl recipes lists them), or --resume with --out DIR")
    return RunFolder(next_folder(recipe.name))


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


def advice_for_changed_setting(key: str, folder: RunFolder) -> str:
    """Advice when a resumed run asks for a different value; --init needs the same encoder."""
    if key == "train.epochs":
        return f"to train longer, finish it and then continue it in another folder: --extend {folder.path} --epochs N"
    begin = "another --out" if key.startswith("encoder.") else f"--init {folder.path} and another --out"
    return f"a run continues with its own settings; to change them, start another run with {begin}"


def changed_settings(recipe: Recipe, saved: Recipe) -> dict[str, Any]:
    """Settings that may change on resume, were requested, and differ from the saved ones."""
    old, new = flattened(saved), flattened(recipe)
    return {
        key: new[key]
        for key, default in fields_marked(recipe, MAY_CHANGE_ON_RESUME).items()
        if new[key] not in (None, old[key]) and (new[key] != default or key in recipe.sources)
    }


def is_same_or_moved(requested: Any, saved: Any) -> bool:
    """Whether a run may continue with this source: the saved one, or any if the saved one no longer exists.

    Of several joined sources, each is compared with the saved one in its place. Once the data are read,
    `check_same_data` compares file names and labels.
    """
    if not isinstance(requested, str):
        return len(requested) == len(saved or ()) and all(map(is_same_or_moved, requested, saved or ()))
    return is_same_source(requested, saved) or _is_gone(saved)


def _is_gone(source: str) -> bool:
    """Whether a source saved with an absolute path (also NAME@ROOT and hf:PATH) no longer exists."""
    root = source if Path(source).is_absolute() else source.partition("@")[2] or source.removeprefix("hf:")
    if not Path(root).is_absolute() or Path(root).exists():
        return False
    try:
        return not (is_tar(root) and find_tars(root))  # {000..009}.tar is a pattern
    except BadInput:
        return True


def resolve_recipe(
    recipe: Recipe | None,
    folder: RunFolder,
    resume: bool,
    init: Path | str | None,
    fit: Callable[[Recipe], Recipe] = lambda recipe: recipe,
) -> Recipe:
    """The recipe of the run, for a new one after `fit` has chosen its open settings.

    A resumed run uses its recipe.json, which must agree with the requested recipe.
    """
    recipe = None if recipe is None else validated_recipe(recipe)  # one made in Python is not validated yet
    folder.check_links()
    if not resume or not folder.has_run:
        folder.check_place()  # before the data are read, which may take an hour
        folder.check_free(resume)
        if recipe is None:
            raise BadInput(f"{folder.path} holds no run to continue; name a recipe to start one")
        for source in recipe.data.all_sources:
            check_out_folder(source, folder.path)
        return with_short_side(resolve_warmup(fit(recipe)))
    if init is not None:
        raise BadInput("--init starts a run and --resume continues one; give one of them")
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
            raise BadInput(
                f"{key} = {value!r} differs from {old.get(key)!r} in {folder.recipe_file}; "
                f"{advice_for_changed_setting(key, folder)}"
            )
    changed = changed_settings(recipe, saved)
    if not all(map(is_same_source, recipe.data.all_sources, saved.data.all_sources)):
        for source in recipe.data.all_sources:
            check_out_folder(source, folder.path)
        changed["data.source"], *joined = map(absolute_source, recipe.data.all_sources)
        changed["data.joined"] = tuple(joined)
    return saved.with_set(changed, because="changed on resume") if changed else saved


# --- process ----------------------------------------------------------------------------------------------------------


@contextmanager
def deterministic_mode(enabled: bool) -> Iterator[None]:
    """Use deterministic algorithms in the block if enabled, then restore the caller's settings."""
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


def out_of_memory_message(recipe: Recipe, device: torch.device) -> str:
    """How to need less memory."""
    settings, owner = recipe.train, "the GPU's" if device.type == "cuda" else "this machine's"
    size = f" ({torch.cuda.get_device_properties(device).total_memory / 1e9:.0f} GB)" if device.type == "cuda" else ""
    doubled = settings.accumulate * 2
    options = (
        [f"--accumulate {doubled}"] if settings.batch_size % doubled == 0 and settings.batch_size // doubled > 1 else []
    )
    options += [f"--batch-size {settings.batch_size // 2}"] if settings.batch_size >= 4 else []
    options += ["--precision bf16"] if settings.precision == "fp32" and device.type == "cuda" else []
    options += ["a smaller --set pool.size"] if recipe.pool.kind != "none" and recipe.pool.size > LARGE_POOL else []
    advice = " or ".join(options) or "smaller views (--set views.size) or a smaller encoder"
    return f"{owner} memory{size} is too small for batches of {settings.batch_size}; try {advice}"
