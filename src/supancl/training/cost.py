"""The memory that a run will take, from the shapes of its tensors; and figures in words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.config import flattened
from supancl.core.losses import Loss
from supancl.core.methods import assemble
from supancl.core.specs import BranchSpec, EncoderSpec, HeadSpec, PoolSpec
from supancl.data.views.specs import Crops
from supancl.distributed import SINGLE_PROCESS
from supancl.errors import BadInput
from supancl.recipes import Recipe

PROCESS_BYTES = 0.8e9  # Python with torch, before anything is loaded
WORKSPACE = 1.3  # gradients of activations and the libraries' buffers, as a part of what backward needs
MEASURED_IMAGES = 4  # whose activations are added up
DAY = 86_400.0  # seconds
LADDER: tuple[dict[str, Any], ...] = (
    {"pool.size": 8192},
    {"train.batch_size": 64},
    {"train.batch_size": 32},
    {"encoder.name": "resnet18", "train.batch_size": 64},
    {"encoder.name": "resnet18", "train.batch_size": 32},
    {"encoder.name": "resnet18", "views.size": 128, "train.batch_size": 32},
    {"encoder.name": "resnet18", "views.size": 64, "train.batch_size": 32},
    {"encoder.name": "resnet18", "views.size": 64, "train.batch_size": 16},
    {"train.batch_size": 16},  # for a run that keeps its encoder
    {"train.batch_size": 8},
)  # settings that need less and less memory


@dataclass(frozen=True)
class Memory:
    """Bytes that a run needs on its device, without its images: weights with all that belongs to them, activations."""

    weights: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.activations + PROCESS_BYTES


def estimate_memory(recipe: Recipe, device: torch.device) -> Memory | None:
    """Memory of a run, from the shapes of its tensors; None for toy data and for a plugin's parts."""
    if not isinstance(recipe.views, Crops):
        return None
    try:
        sizes = _tensor_sizes(recipe.encoder, recipe.heads, recipe.branches, recipe.pool, recipe.loss)
    except BadInput:  # an encoder that nobody knows, for example
        raise
    except Exception:  # code of a plugin, or of another library, that needs real tensors
        return None
    moments = 2 if recipe.optimizer.name == "adamw" else 1
    micro_batch = recipe.train.batch_size / recipe.train.accumulate
    halved = 0.5 if device.type == "cuda" and recipe.train.precision != "fp32" else 1.0
    activations = WORKSPACE * halved * sizes.saved_per_image * micro_batch
    return Memory((2 + moments) * sizes.trained + sizes.others, activations)


class TensorSizes(NamedTuple):
    trained: float  # bytes of weights that are trained
    others: float  # bytes of the target branch, buffers and the pool
    saved_per_image: float  # bytes of activations that backward needs


@lru_cache(maxsize=32)
def _tensor_sizes(
    encoder: EncoderSpec, heads: HeadSpec, branches_spec: BranchSpec, pool_spec: PoolSpec, loss: Loss
) -> TensorSizes:
    with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of timm's models initialise a classifier without classes
        branches, pool = assemble(encoder, heads, branches_spec, pool_spec, loss, 2, SINGLE_PROCESS)
        images = torch.zeros(2, MEASURED_IMAGES, encoder.channels, encoder.size, encoder.size)
        saved = _bytes_saved_for_backward(branches, images)
    trained = sum(p.nbytes for p in branches.parameters() if p.requires_grad)
    everything = [*branches.parameters(), *branches.buffers(), *(pool.buffers() if pool is not None else ())]
    return TensorSizes(trained, sum(t.nbytes for t in everything) - trained, saved / MEASURED_IMAGES)


def _bytes_saved_for_backward(branches: torch.nn.Module, images: Tensor) -> float:
    """Bytes of all tensors that backward needs, weights excepted."""
    weights = {t.untyped_storage()._cdata for t in branches.parameters()}
    saved: dict[int, int] = {}
    tensors: list[Tensor] = []  # so that no storage is freed and another one takes its place

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage.nbytes()
            tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = branches(images)
    del outputs
    return float(sum(saved.values()))


def available_memory(device: torch.device) -> float | None:
    """Bytes that this process may still take on the device; None if that is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    limits = [*_control_group_room()]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    return min(limits, default=None)


def _control_group_room() -> Iterator[float]:
    """What the limit of a container leaves."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            yield float(Path(limit).read_text()) - float(Path(used).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue


def check_memory(recipe: Recipe, device: torch.device, keeps_encoder: bool = False) -> str:
    """Refuse a run that does not fit the memory of its device, with settings that do; else how much it needs.

    The text is empty if that is unknown. `keeps_encoder`: the run starts from weights, so no other encoder is proposed.
    """
    available, needed = available_memory(device), estimate_memory(recipe, device)
    if needed is None:
        return ""
    if available is None or needed.total <= available:
        room = "" if available is None else f" of {in_gigabytes(available)}"
        return f"about {in_gigabytes(needed.total)}{room}"
    owner = "the GPU has" if device.type == "cuda" else "this machine has"
    message = f"the run needs about {in_gigabytes(needed.total)} of memory, {owner} {in_gigabytes(available)} left"
    for settings in LADDER:
        if keeps_encoder and "encoder.name" in settings:
            continue
        smaller = _with_smaller(recipe, settings)
        memory = None if smaller is None else estimate_memory(smaller, device)
        if memory is not None and memory.total <= available:
            flags = " ".join(f"--set {name}={value}" for name, value in settings.items())
            raise BadInput(f"{message}; {in_gigabytes(memory.total)} are enough with {flags}")
    raise BadInput(f"{message}; use smaller views (--set views.size) or a smaller encoder (--set encoder.name)")


def _with_smaller(recipe: Recipe, settings: dict[str, Any]) -> Recipe | None:
    """The recipe with these settings; None if they are not valid for it, or not smaller."""
    before = flattened(recipe)
    if any(isinstance(value, int) and value > before.get(name, value) for name, value in settings.items()):
        return None
    try:
        return recipe.with_set(settings)
    except BadInput:
        return None


def in_words(seconds: float) -> str:
    for unit, length in (("days", DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"


def in_gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB"
