"""What a run starts from: its device, settings that are left to be chosen by themselves, and data that fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from supancl.config import AUTOMATIC, MAY_CHANGE_ON_RESUME, fields_marked, flattened
from supancl.core.precision import auto_precision, has_bf16
from supancl.data.opening import absolute_source, same_source
from supancl.data.sources.folder import check_apart
from supancl.data.sources.tars import is_tar, tar_files
from supancl.data.splits import Data
from supancl.data.views.specs import Crops
from supancl.errors import BadInput, counted
from supancl.recipes import Recipe
from supancl.recipes.recipe import TrainSpec, resolve_warmup, validated_recipe
from supancl.weights.encoder_file import find_encoder_file
from supancl.weights.run_folder import RunFolder, next_folder

WORTH_COMPILING = 5_000  # steps; compiling takes about a minute and saves some milliseconds a step
LARGE_POOL = 100_000  # targets; the paper's are of 8192
MOST_STEPS = 1_000_000_000  # 12 days at a millisecond each; more is a slip of the finger


def pick_device(name: str, local: int | None = None) -> torch.device:
    """`local`: of several ranks on this machine, which one this is; each has a GPU of its own."""
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: no GPU that torch can use; take --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and local is not None:
        if local >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise BadInput(
                f"{counted(count, 'GPU is', 'GPUs are')} too few for at least {local + 1} ranks on this "
                f"machine; take torchrun --nproc-per-node {count}, or --device cpu"
            )
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device(name)


def check_ranks(recipe: Recipe, ranks: int) -> None:
    """Every rank needs rows of every micro-batch, and two of them where its batch norm sees no others."""
    settings = recipe.train
    micro, least = settings.batch_size // settings.accumulate, 1 if settings.sync_norm else 2
    if ranks > 1 and micro < ranks * least:
        why = "" if settings.sync_norm else " at 2 each, which batch norm needs with train.sync_norm=false"
        raise BadInput(
            f"{counted(micro, 'image')} at a time (train.batch_size / train.accumulate) "
            f"{'is' if micro == 1 else 'are'} too few for {ranks} ranks{why}; use --batch-size "
            f"{ranks * least * settings.accumulate} or more, or fewer ranks"
        )


def check_data(recipe: Recipe, data: Data) -> None:
    """Refuse data that cannot train this recipe, before anything is written."""
    where = str(data.described.get("source") or "the data")
    pixels = data.train.batch(torch.zeros(1, dtype=torch.long)).pixels
    if (pixels.ndim == 2) != (recipe.views.kind == "masks"):
        kind, wants = ("vectors", "images") if pixels.ndim == 2 else ("images", "vectors (toy)")
        raise BadInput(f"{where} holds {kind}, recipe {recipe.name} takes {wants}")
    if pixels.ndim == 4 and recipe.encoder.name == "linear":
        raise BadInput(f"{where} holds images, encoder 'linear' takes vectors (toy); --set encoder.name=cnn")
    if pixels.ndim == 2 and recipe.encoder.name != "linear":
        raise BadInput(f"{where} holds vectors, encoder {recipe.encoder.name!r} takes images; choose linear")
    if pixels.ndim == 4 and pixels.shape[1] != recipe.encoder.channels:
        raise BadInput(
            f"{where}: images have {counted(pixels.shape[1], 'channel')}, recipe {recipe.name} takes "
            f"{recipe.encoder.channels}; --set encoder.channels={pixels.shape[1]} or convert them"
        )
    if len(data.train) < recipe.train.batch_size:
        raise BadInput(
            f"{where}: {counted(len(data.train), 'training image is', 'training images are')} fewer than a "
            f"batch of {recipe.train.batch_size}; "
            + (f"use --batch-size {len(data.train)} or less" if len(data.train) > 1 else "add images")
        )
    per_epoch = len(data.train) // recipe.train.batch_size
    if per_epoch * recipe.train.epochs > MOST_STEPS:
        raise BadInput(
            f"train.epochs = {recipe.train.epochs} of {counted(per_epoch, 'step')} each are "
            f"{per_epoch * recipe.train.epochs:,} steps, more than {MOST_STEPS:,}; use --epochs "
            f"{max(1, MOST_STEPS // per_epoch)} or less"
        )
    out = recipe.heads.projector.out
    if not recipe.loss.normalizes and out is not None and out < len(data.classes):
        raise BadInput(
            f"heads.projector.out = {out} is fewer than the {len(data.classes)} classes of {where}; "
            "--set heads.projector.out=null takes their number"
        )
    if recipe.loss.supervised:
        present = data.train.present()
        if not present:
            raise BadInput(
                f"{where}: no training image has a label, which {recipe.method} needs; put images into "
                "class folders, or take simsiam or byol"
            )
        if len(present) == 1:
            # a refusal is all that is said, so what the reader noticed of the folder belongs to it
            hints = "".join(f" ({remark})" for remark in data.remarks if "the only class is" in remark)
            raise BadInput(
                f"{where}: only one class, {data.classes[present[0]]!r}, has training images; "
                f"{recipe.method} needs two, or take simsiam or byol" + hints
            )


def check_same_data(
    folder: RunFolder, data: Data, way_out: str = "bring them back, or start another run", where: str = ""
) -> None:
    """A run continues, and is judged, on the data it began with: order, labels and what is held out hang on them."""
    kept, classes = folder.read_data()
    changed = f"{where}the data have changed since the run began"
    for key in ("classes", "train", "labelled", "held_out"):
        now = data.described[key]
        if key in kept and kept[key] != now:
            raise BadInput(f"{changed}: {key.replace('_', ' ')} {now}, was {kept[key]}; {way_out}")
    if classes != data.classes or kept.get("fingerprint", "") not in ("", data.described["fingerprint"]):
        raise BadInput(f"{changed}: other class names, files or labels; {way_out}")


def check_same_device(folder: RunFolder, state: dict[str, Any], device: torch.device) -> None:
    """Random numbers go on only on the kind of device that drew them."""
    rng = state.get("rng")
    if not isinstance(rng, dict) or (rng.get("cuda") is None) == (device.type == "cpu"):
        return
    begun, here = ("a CPU", "a GPU") if device.type == "cuda" else ("a GPU", "a CPU")
    way = "hide the GPU with CUDA_VISIBLE_DEVICES=" if device.type == "cuda" else "continue it where there is one"
    raise BadInput(
        f"{folder.path} was begun on {begun} and cannot go on on {here}; {way}, or start another run from "
        f"its encoder with --init {folder.path}"
    )


def with_short_side(recipe: Recipe) -> Recipe:
    """Photographs are decoded no larger than the views need: the smallest crop still has the views' own size."""
    if recipe.data.short_side is not None or not isinstance(recipe.views, Crops):
        return recipe
    crops = [(recipe.views.size, recipe.views.scale[0])]
    if recipe.views.local is not None:
        crops.append((recipe.views.local.size, recipe.views.local.scale[0]))
    side = max(math.ceil(size / math.sqrt(scale)) for size, scale in crops)
    return recipe.with_set({"data.short_side": side}, because="views.size and views.scale")


def with_speed(recipe: Recipe, device: torch.device, images: int, ranks: int = 1) -> Recipe:
    """Precision, compilation and replay as they are best on this device, where the recipe leaves them open.

    Several ranks do not compile or replay by themselves: that is left open, for the run may go on with one of them.
    """
    settings, cuda = recipe.train, device.type == "cuda"
    if settings.precision == "bf16" and not has_bf16(device):
        raise BadInput(f"--precision bf16: {torch.cuda.get_device_name(device)} has no bf16; take --precision fp32")
    steps = images // settings.batch_size * settings.epochs
    chosen = {
        "train.precision": auto_precision(device),
        "train.compile": cuda and steps >= WORTH_COMPILING and not settings.deterministic,
        "train.replay": cuda and not settings.deterministic and settings.on_nan != "skip",
    }
    left_open = fields_marked(recipe, AUTOMATIC)
    open_ones = {
        key: value
        for key, value in chosen.items()
        if getattr(settings, key.removeprefix("train.")) == left_open[key] and (ranks == 1 or key == "train.precision")
    }
    return recipe.with_set(open_ones, because=f"by itself, on {device.type}") if open_ones else recipe


def agrees(key: str, asked: Any, kept: Any) -> bool:
    """Whether a setting asked for is the one a run was begun with; one that was left open always is."""
    left_open = fields_marked(TrainSpec(), AUTOMATIC, "train")
    return bool(asked == kept) or (key in left_open and asked == left_open[key])


# --- its folder and its settings --------------------------------------------------------------------------------------


def folder_of(recipe: Recipe | None, out: Path | str | None) -> RunFolder:
    if out is not None:
        return RunFolder(Path(out))
    if recipe is None:
        raise BadInput("name a recipe (supancl recipes lists them), or --resume with --out DIR")
    return RunFolder(next_folder(recipe.name))


@contextmanager
def own_folder(recipe: Recipe, out: Path | str | None, resume: bool) -> Iterator[Path]:
    """A folder that this run alone writes in, made where there is none."""
    folder = folder_of(recipe, out)
    folder.create()
    while out is None and not folder.created:  # another run has taken the number meanwhile
        folder = folder_of(recipe, out)
        folder.create()
    with folder.lock():
        folder.check_free(resume)  # again: reading the data takes time, in which another run may have begun here
        yield folder.path


def other_settings(key: str, folder: RunFolder) -> str:
    """Advice when a resumed run asks for a different value; another encoder cannot take the weights over."""
    begin = "another --out" if key.startswith("encoder.") else f"--init {folder.path} and another --out"
    return f"a run continues with its own settings; to change them, start another run with {begin}"


def asked_anew(recipe: Recipe, kept: Recipe) -> dict[str, Any]:
    """Of the settings that a run may change as it goes on, those that are asked for and other than it has them."""
    old, new = flattened(kept), flattened(recipe)
    return {
        key: new[key]
        for key, nothing in fields_marked(recipe, MAY_CHANGE_ON_RESUME).items()
        if new[key] not in (None, old[key]) and (new[key] != nothing or key in recipe.sources)
    }


def is_same_or_moved(asked: str, kept: str) -> bool:
    """Whether a run may go on with this source: its own, or another place where its own is no longer where it was.

    That it is the same data, by their files' names and labels, is seen once they are read (check_same_data).
    """
    return same_source(asked, kept) or _gone(kept)


def _gone(source: str) -> bool:
    """Whether a source that a run kept by its absolute path, as NAME@ROOT and hf:PATH do too, is no longer there."""
    root = source if Path(source).is_absolute() else source.partition("@")[2] or source.removeprefix("hf:")
    if not Path(root).is_absolute() or Path(root).exists():
        return False
    try:
        return not (is_tar(root) and tar_files(root))  # {000..009}.tar is no file
    except BadInput:
        return True


def resolve_recipe(recipe: Recipe | None, folder: RunFolder, resume: bool, init: Path | str | None) -> Recipe:
    """The recipe of the run: its own recipe.json when it goes on, which must agree with what is asked for."""
    recipe = None if recipe is None else validated_recipe(recipe)  # one put together by hand has not been yet
    if not resume or not folder.has_run:
        folder.check_place()  # all before the data are read, which may take an hour
        folder.check_free(resume)
        if recipe is None:
            raise BadInput(f"{folder.path} holds no run to continue; name a recipe to start one")
        check_apart(recipe.data.source, folder.path)
        if init is not None:
            find_encoder_file(Path(init))
        return with_short_side(resolve_warmup(recipe))
    if init is not None:
        raise BadInput("--init starts a run and --resume continues one; give one of them")
    kept, _ = folder.read_recipe()
    if recipe is None:
        return kept
    old, new = (
        flattened(replace(kept, sources={})),
        flattened(replace(with_short_side(resolve_warmup(recipe)), sources={})),
    )
    free = fields_marked(recipe, MAY_CHANGE_ON_RESUME)
    for key, value in new.items():
        if key in free:
            continue
        moved = key == "data.source" and is_same_or_moved(str(value), str(old.get(key)))
        if not moved and not agrees(key, value, old.get(key)):
            raise BadInput(
                f"{key} = {value!r} differs from {old.get(key)!r} in {folder.recipe_file}; "
                f"{other_settings(key, folder)}"
            )
    changed = asked_anew(recipe, kept)
    if not same_source(recipe.data.source, kept.data.source):
        check_apart(recipe.data.source, folder.path)
        changed["data.source"] = absolute_source(recipe.data.source)
    return kept.with_set(changed, because="asked for as the run went on") if changed else kept


# --- its process ------------------------------------------------------------------------------------------------------


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """As the recipe asks while it runs; the caller's own choice comes back afterwards."""
    before = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(wanted or before)
    torch.backends.cudnn.benchmark = not wanted
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warned)
        torch.backends.cudnn.benchmark = benchmark


def out_of_memory(error: BaseException) -> bool:
    """Whether it was memory that lacked: on a CPU torch has no error of its own for that."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error)


def too_large(recipe: Recipe, device: torch.device) -> str:
    """What to lower where the memory does not do."""
    settings, whose = recipe.train, "the GPU's" if device.type == "cuda" else "this machine's"
    has = f" ({torch.cuda.get_device_properties(device).total_memory / 1e9:.0f} GB)" if device.type == "cuda" else ""
    half = settings.accumulate * 2
    ways = [f"--accumulate {half}"] if settings.batch_size % half == 0 and settings.batch_size // half > 1 else []
    ways += [f"--batch-size {settings.batch_size // 2}"] if settings.batch_size >= 4 else []
    ways += ["--precision bf16"] if settings.precision == "fp32" and device.type == "cuda" else []
    ways += ["a smaller --set pool.size"] if recipe.pool.kind != "none" and recipe.pool.size > LARGE_POOL else []
    way = " or ".join(ways) or "smaller views (--set views.size) or a smaller encoder"
    return f"{whose} memory{has} is too small for batches of {settings.batch_size}; try {way}"
