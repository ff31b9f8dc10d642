"""A faster step of the same values: compiled, or recorded as a CUDA graph and replayed.

`compile_step` replaces methods of `Step` by compiled ones. `CapturedStep` records a step once and replays it: one
launch per step instead of thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.config import AUTOMATIC, fields_marked
from supancl.data.store.memory import Batch
from supancl.distributed import Ranks
from supancl.distributed.ranks import auto_precision, has_bf16
from supancl.errors import BadInput
from supancl.recipes import Recipe
from supancl.training.step import Step

MIN_STEPS_TO_COMPILE = 5_000  # compiling takes about a minute and saves some milliseconds per step
WARM_UP_STEPS = 3  # before capturing: libraries choose their kernels and allocate memory


def with_speed(recipe: Recipe, device: torch.device, images: int, ranks: int = 1) -> Recipe:
    """Choose precision, compilation and replay for this device, unless the recipe sets them.

    For several ranks only the precision: the run may continue later in a single process.
    """
    settings, cuda = recipe.train, device.type == "cuda"
    if settings.precision == "bf16" and not has_bf16(device):
        raise BadInput(f"train.precision = bf16: {device} has no bf16; use fp32")
    steps = images // settings.batch_size * settings.epochs
    best = {
        "train.precision": auto_precision(device),
        "train.compile": cuda
        and steps >= MIN_STEPS_TO_COMPILE
        and not settings.deterministic
        and (settings.compile is not None or can_compile(device)),
        "train.replay": cuda and not settings.deterministic,
    }
    automatic = fields_marked(recipe, AUTOMATIC)
    chosen = {
        key: value
        for key, value in best.items()
        if getattr(settings, key.removeprefix("train.")) == automatic[key] and (ranks == 1 or key == "train.precision")
    }
    return recipe.with_set(chosen, because=f"automatic, on {device.type}") if chosen else recipe


# --- compiling --------------------------------------------------------------------------------------------------------


def is_compiler_error(error: BaseException) -> bool:
    """Whether the compiler failed, and not the compiled code."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))


def can_compile(device: torch.device) -> bool:
    """Whether the compiler works here: without a C compiler it does not."""
    try:
        torch.compile(torch.add)(torch.ones(1, device=device), 1)
    except Exception as error:
        if not is_compiler_error(error):
            raise
        return False
    return True


def compile_step(step: Step, ranks: Ranks) -> None:
    """Replace methods of the step by compiled ones: branches and loss as one graph.

    Several ranks exchange data within a step: they compile only views, pool and unsynchronised branches.
    """
    torch.compiler.reset()  # of earlier runs in this process: the compiler gives up on a function after eight modules
    if ranks.size == 1:
        step.forward_and_loss = torch.compile(step.forward_and_loss)  # type: ignore[method-assign]
    elif not step.recipe.train.sync_norm:
        step.branches = torch.compile(step.branches)
    if step.model.device.type == "cuda":  # where these are dozens of short kernels
        step.render = torch.compile(step.render)
        if step.model.pool is not None:
            step.push = torch.compile(step.push)


# --- a captured step --------------------------------------------------------------------------------------------------


class CapturedStep:
    """Runs a step, and replays it once it is captured.

    Warm-up steps run on a side stream, as the captured step will.
    """

    def __init__(self, step: Callable[[Batch | None], Tensor], device: torch.device, may_replay: bool) -> None:
        self.step, self.device, self.may_replay = step, device, may_replay
        self.replay: Replay | None = None
        self.warm_up_steps_done = 0

    def __call__(self, batch: Batch | None) -> Tensor:
        if self.replay is not None:
            return self.replay(batch)
        if not self.may_replay or self.warm_up_steps_done >= WARM_UP_STEPS:  # more warm-up steps: capturing has failed
            return self.step(batch)
        with on_side_stream(self.device):
            targets = self.step(batch)
        self.warm_up_steps_done += 1
        return targets

    @property
    def is_due(self) -> bool:
        """Whether the step should be captured now."""
        return self.replay is None and self.may_replay and self.warm_up_steps_done == WARM_UP_STEPS

    def capture(self, generator: torch.Generator, batch: Batch | None) -> None:
        """Record the next step without taking it. Raises the libraries' error if that fails."""
        self.warm_up_steps_done = WARM_UP_STEPS + 1  # try only once
        self.replay = Replay(self.step, generator, batch)


class Replay:
    """Calling it repeats the recorded step with the current values of its tensors.

    A batch is copied to where the recorded step reads it, so its shape must not change.
    """

    def __init__(self, step: Callable[[Batch | None], Tensor], generator: torch.Generator, batch: Batch | None):
        self.batch = None if batch is None else Batch(*(None if tensor is None else tensor.clone() for tensor in batch))  # type: ignore[arg-type]
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)  # each replay continues its random numbers
        memory_pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.current_stream()
        try:
            with torch.cuda.stream(stream), torch.cuda.graph(self.graph, pool=memory_pool):  # restores it on failure
                self.targets = step(self.batch)
        except BaseException:
            end_failed_capture(generator, stream.device_index, memory_pool)
            raise

    def __call__(self, batch: Batch | None) -> Tensor:
        for recorded, new in zip(self.batch or (), batch or (), strict=True):
            if recorded is not None and new is not None:
                recorded.copy_(new, non_blocking=True)
        self.graph.replay()
        return self.targets


def end_failed_capture(generator: torch.Generator, device: int, memory_pool: tuple[int, int]) -> None:
    """Clean up after a failed capture, so that training can continue without.

    torch leaves generators that refuse to draw outside of a graph, and memory that would never be freed.
    """
    for registered in (generator, torch.cuda.default_generators[device]):
        registered.graphsafe_set_state(registered.clone_state())
    with suppress(RuntimeError, AttributeError):  # torch has done it already, or names these functions differently
        torch._C._cuda_endAllocateToPool(device, memory_pool)
        torch._C._cuda_releasePool(device, memory_pool)


@contextmanager
def on_side_stream(device: torch.device) -> Iterator[None]:
    """Run on a side stream, as the captured step will: autograd remembers the stream that it accumulates on."""
    current = torch.cuda.current_stream(device)
    side = _side_stream(current.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all steps, because torch keeps separate memory for each stream."""
    return torch.cuda.Stream(device)


# --- layers -----------------------------------------------------------------------------------------------------------


class FoldedConv2d(nn.Conv2d):
    """A strided convolution of few channels, computed as one of stride 1 with stride^2 times as many channels.

    Each stride x stride square of pixels becomes one pixel; the kernel is padded with zeros to full squares and folded
    in the same way. Tensor cores process eight channels at a time, so a stem with three wastes most of them.
    """

    def forward(self, images: Tensor) -> Tensor:
        size, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        front = -padding % stride
        padded_size = math.ceil((size + front) / stride) * stride
        pad = [0, 0, 0, 0]
        for side, pixels in ((0, images.shape[-1]), (2, images.shape[-2])):
            outputs = (pixels + 2 * padding - size) // stride + 1
            pad[side] = padding + front
            pad[side + 1] = (outputs - 1) * stride + padded_size - pixels - pad[side]
        back = padded_size - size - front
        padded = F.pad(images, pad), F.pad(self.weight, (front, back, front, back))
        folded, weight = (F.pixel_unshuffle(tensor, stride) for tensor in padded)
        extra_channels = -folded.shape[1] % 8
        if extra_channels:
            folded, weight = (F.pad(tensor, (0, 0, 0, 0, 0, extra_channels)) for tensor in (folded, weight))
        return F.conv2d(folded.contiguous(memory_format=torch.channels_last), weight, self.bias)


def optimize_for_cuda(module: nn.Module) -> None:
    """Change the layers that have a faster form on GPUs, in place."""
    for layer in module.modules():
        if _is_foldable(layer):
            layer.__class__ = FoldedConv2d


def _is_foldable(layer: nn.Module) -> bool:
    """Whether it is a square, strided convolution of at most four channels with zero padding."""
    return (
        type(layer) is nn.Conv2d and layer.in_channels <= 4 and layer.groups == 1 and layer.padding_mode == "zeros"
        and layer.dilation == (1, 1) and not isinstance(layer.padding, str) and layer.stride[0] > 1
        and all(len(set(sides)) == 1 for sides in (layer.kernel_size, layer.stride, layer.padding))
    )  # fmt: skip
