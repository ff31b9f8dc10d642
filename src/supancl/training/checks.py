"""Whether a recipe can be trained: on these data, with these labels, in the memory of this device."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from supancl.core.labels import Labels
from supancl.core.methods import assemble
from supancl.core.specs import PoolSpec
from supancl.data.splits import Data
from supancl.data.views.specs import Crops
from supancl.distributed import SINGLE_PROCESS
from supancl.errors import BadInput
from supancl.recipes import Recipe

PROCESS_BYTES = 0.8e9  # Python with torch, before anything is loaded
WORKSPACE = 1.3  # gradients of activations and the libraries' buffers, as a part of what backward needs
MEASURED_IMAGES = 4  # whose activations are added up


def check_memory(recipe: Recipe, device: torch.device) -> str:
    """Refuse a run that does not fit the memory of its device; else how much it needs, empty if that is unknown."""
    available, needed = available_memory(device), estimate_memory(recipe, device)
    if needed is None or available is None:
        return ""
    if needed > available:
        raise BadInput(
            f"the run needs about {needed / 1e9:.1f} GB of memory, and {device.type} has {available / 1e9:.1f} left; "
            "set a smaller train.batch_size, views.size, pool.size or encoder.name"
        )
    return f"memory: about {needed / 1e9:.1f} GB of {available / 1e9:.1f} GB, besides the images"


def estimate_memory(recipe: Recipe, device: torch.device) -> float | None:
    """Bytes that a run needs besides its images, from the shapes of its tensors; None for toy data and for plugins."""
    if not isinstance(recipe.views, Crops):
        return None
    try:
        trained, others, per_image = _tensor_sizes(recipe)
    except BadInput:  # an encoder that nobody knows, for example
        raise
    except Exception:  # code of a plugin, or of another library, that needs real tensors
        return None
    moments = 2 if recipe.optimizer.name == "adamw" else 1
    state = (1 + moments) * trained + others
    copies = 1 if device.type == "cuda" else 2  # on a CPU, a checkpoint is copied in the same memory
    halved = 0.5 if device.type == "cuda" and recipe.train.precision != "fp32" else 1.0
    activations = WORKSPACE * halved * per_image * recipe.train.batch_size / recipe.train.accumulate
    return PROCESS_BYTES + copies * state + trained + activations


def _tensor_sizes(recipe: Recipe) -> tuple[float, float, float]:
    """Bytes of trained weights; of the target branch, buffers and pool; and per image of what backward needs."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of timm's models initialise a classifier without classes
        branches, pool = assemble(
            recipe.encoder, recipe.heads, recipe.branches, recipe.pool, recipe.loss, 2, SINGLE_PROCESS
        )
        images = torch.zeros(2, MEASURED_IMAGES, recipe.encoder.channels, recipe.encoder.size, recipe.encoder.size)
        weights, saved = {t.untyped_storage()._cdata for t in branches.parameters()}, {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                saved[storage._cdata] = tensor  # kept, so that no other storage takes its place
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            branches(images)
    trained = sum(p.nbytes for p in branches.parameters() if p.requires_grad)
    everything = [*branches.parameters(), *branches.buffers(), *(pool.buffers() if pool is not None else ())]
    activations = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    return trained, sum(t.nbytes for t in everything) - trained, activations / MEASURED_IMAGES


def available_memory(device: torch.device) -> float | None:
    """Bytes that this process may still take on the device, within the limit of a container; None if unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        limits.append(float((group / "memory.max").read_text()) - float((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such file, or a limit of "max"
        pass
    return min(limits, default=None)


# --- data -------------------------------------------------------------------------------------------------------------


def check_data(recipe: Recipe, data: Data, ranks: int = 1) -> None:
    """Refuse data that cannot train this recipe: other shapes, too few images, labels that tell its loss nothing."""
    source, settings = str(data.summary.get("source") or "the data"), recipe.train
    shape = data.train.batch(torch.zeros(1, dtype=torch.long)).pixels.shape
    holds, takes = "vectors" if len(shape) == 2 else "images", "vectors" if recipe.views.kind == "masks" else "images"
    encodes = "vectors" if recipe.encoder.name == "linear" else "images"
    channels = shape[1] if holds == "images" else recipe.encoder.channels
    per_step = settings.batch_size // settings.accumulate
    least = ranks * (1 if settings.sync_norm else 2)  # without synchronised statistics, batch norm needs two images
    out, classes = recipe.heads.projector.out, len(data.classes)
    labels, present = data.train.all_labels, data.train.class_ids()
    has_one_target = not labels.has_one_each and labels.count_distinct() == 1
    found = f"only one class, {data.classes[present[0]]!r}" if len(present) == 1 else "all the same labels"
    problems = {
        f"it holds {holds}; {recipe.name} takes {takes}, and its encoder {recipe.encoder.name!r} {encodes}; choose "
        "another recipe, encoder.name or data": not holds == takes == encodes,
        f"images have {channels} channels, {recipe.name} takes {recipe.encoder.channels}; set "
        f"encoder.channels={channels}": channels != recipe.encoder.channels,
        f"training images: {len(data.train)}, fewer than a batch of {settings.batch_size}; set train.batch_size, or "
        "add images": len(data.train) < settings.batch_size,
        f"train.batch_size / train.accumulate = {per_step} is too small for {ranks} ranks; use "
        f"train.batch_size={least * settings.accumulate} or more, or fewer ranks": ranks > 1 and per_step < least,
        f"heads.projector.out = {out} is fewer than its {classes} classes; set heads.projector.out=null, which takes "
        "their number": not recipe.loss.normalizes and out is not None and out < classes,
        f"its training images have {found if present else 'no label'}, and {recipe.method} needs two classes; put "
        "images into class folders, or use simsiam or byol": recipe.loss.supervised
        and (len(present) < 2 or has_one_target),
    }
    for problem, is_met in problems.items():
        if is_met:
            raise BadInput(f"{source}: {problem}")


def fit_labels(recipe: Recipe, data: Data) -> Data:
    """The data with labels that the loss and the pool can take; refused if they need labels and cannot take these."""
    labels, source, loss = data.train.all_labels, str(data.summary.get("source") or "the data"), recipe.loss
    if labels.has_one_each:
        return data
    if not loss.takes_pairs or type(recipe.pool) is not PoolSpec:
        if loss.supervised:
            labels.check_single(source, f"loss.kind = {loss.kind} with pool.kind = {recipe.pool.kind}")
        return replace(data, train=replace(data.train, all_labels=Labels.of(labels.rarest)))
    compares_targets = loss.needs_pool and loss.stores_unlabelled  # not means of classes
    if compares_targets and recipe.pool.kind == "class-queues" and labels.classes.shape[1] > 1:
        raise BadInput(
            f"{source}: images have several labels, so class queues hold copies of a target, which {recipe.method} "
            "would compare with each; set pool.kind=queue"
        )
    if getattr(loss, "form", "") == "binary" and float(labels.weights.max()) > 1:
        raise BadInput(f"{source}: a label weighs more than 1, and loss.form = binary takes probabilities; use softmax")
    return data
