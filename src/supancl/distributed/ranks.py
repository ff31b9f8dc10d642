"""Which rows each rank takes, how they are gathered, how ranks agree, and the device and precision of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from supancl.errors import BadInput, SupanclError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
else:
    from supancl.lazy import dist, nn, torch

T = TypeVar("T")


@dataclass(frozen=True)
class RowRange:
    """The rows of a batch that this process has: `count` of its `total` rows, starting at `first`."""

    first: int
    count: int
    total: int

    @property
    def is_whole_batch(self) -> bool:
        return self.count == self.total

    def select(self, rows: Tensor, dim: int = 0) -> Tensor:
        """These rows of a tensor that has all of them."""
        return rows if self.is_whole_batch else rows.narrow(dim, self.first, self.count)

    def select_per_view(self, rows: Tensor, views: int, dim: int = 0) -> Tensor:
        """These rows of each view, from a tensor with the views one after another along `dim`."""
        if self.is_whole_batch:
            return rows
        return self.select(rows.unflatten(dim, (views, self.total)), dim + 1).flatten(dim, dim + 1)


class RankFailed(SupanclError):
    """Another rank has failed; the message gives its reason if it is known."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Ranks:
    """How many processes train together, and which one this is. A single process needs no process group."""

    def __init__(self, size: int = 1, rank: int = 0, local_rank: int = 0) -> None:
        self.size, self.rank, self.local_rank = size, rank, local_rank
        self._pending_signal: tuple[Any, Tensor] | None = None

    @property
    def is_rank0(self) -> bool:
        return self.rank == 0

    # --- rows ---------------------------------------------------------------------------------------------------------

    def row_range(self, total: int) -> RowRange:
        """The rows of this rank: as even as possible, in rank order."""
        least, more = divmod(total, self.size)
        return RowRange(self.rank * least + min(self.rank, more), least + (self.rank < more), total)

    def micro_batches(self, total: int, count: int, device: torch.device) -> list[tuple[Tensor, RowRange, Tensor]]:
        """For each micro-batch: its rows, which of them this rank takes, and their positions among this rank's rows."""
        micro_batches, start = [], 0
        for rows in torch.arange(total, device=device).chunk(count):
            row_range = self.row_range(len(rows))
            micro_batches.append((rows, row_range, torch.arange(start, start + row_range.count, device=device)))
            start += row_range.count
        return micro_batches

    def gather(self, rows: Tensor, total: int, dim: int = 0) -> Tensor:
        """All `total` rows in order, from the rows of every rank; gradients flow back to the rank a row came from."""
        if self.size == 1:
            return rows
        from supancl.distributed.norms import AllGather

        local_rows, most = rows.movedim(dim, 0), -(-total // self.size)  # ranks with a row less than most are padded
        padding = local_rows.new_zeros(most - len(local_rows), *local_rows.shape[1:])
        gathered = AllGather.apply(torch.cat([local_rows, padding]).contiguous())
        counts = [Ranks(self.size, rank).row_range(total).count for rank in range(self.size)]
        return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)]).movedim(0, dim)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over the ranks in place, without gradient."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather_on_rank0(self, rows: Tensor) -> list[Tensor]:
        """The equally shaped tensors of all ranks, in the host memory of rank 0; an empty list on other ranks."""
        local_rows = rows.cpu().contiguous()
        gathered = [torch.empty_like(local_rows) for _ in range(self.size)] if self.is_rank0 else None
        dist.gather(local_rows, gathered)
        return gathered or []

    # --- gradients ----------------------------------------------------------------------------------------------------

    def wrap_in_ddp(self, module: nn.Module, device: torch.device, gradients: str = "fp32") -> nn.Module:
        """The module in torch's DDP, which averages gradients over the ranks during backward."""
        if self.size == 1:
            return module
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        ddp = nn.parallel.DistributedDataParallel
        # batch norm statistics are already equal, or differ per rank on purpose
        names = {"forward_sync_buffers", "broadcast_buffers"} & set(inspect.signature(ddp.__init__).parameters)
        settings: Any = {max(names): False}  # newer versions of torch warn about the older name
        wrapped = ddp(module, device_ids=[device.index] if device.type == "cuda" else None, **settings)
        if gradients == "bf16":
            wrapped.register_comm_hook(None, bf16_compress_hook)
        return wrapped

    def no_sync(self, module: Any, enabled: bool = True) -> AbstractContextManager[Any]:
        """Accumulate gradients locally: those of all micro-batches are averaged with the last one."""
        return cast(AbstractContextManager[Any], module.no_sync()) if self.size > 1 and enabled else nullcontext()

    # --- agreement ----------------------------------------------------------------------------------------------------

    def on_rank0(self, work: Callable[[], T]) -> T:
        """Do this on rank 0 and return its result on every rank; if it fails, all ranks raise its error."""
        if self.size == 1:
            return work()
        outcome: list[Any] = [None]
        if self.is_rank0:
            try:
                outcome = [(work(), None)]
            except SupanclError as error:
                outcome = [(None, error)]
        dist.broadcast_object_list(outcome, src=0, device=torch.device("cpu"))
        result, failure = outcome[0]
        if failure is not None:
            raise failure
        return cast(T, result)

    def assert_equal(self, value: T, name: str) -> T:
        """Return the value; refuse it if it differs between ranks."""
        values = self.all_gather_object(value)
        if any(other != values[0] for other in values):
            raise BadInput(f"{name} differ between ranks: {values}; use the same on every machine")
        return value

    def all_gather_object(self, value: T) -> list[T]:
        """The value of each rank, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def signal_on_any_rank(self, received: Sequence[int]) -> int:
        """The number of a signal that any rank has received, or 0; equal on all ranks.

        Called at every step. A signal is reported one step later, so that no rank waits for the others.
        """
        number = received[0] if received else 0
        if self.size == 1:
            return number
        previous = self.wait_for_signal()
        tensor = torch.tensor(number)
        self._pending_signal = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True), tensor
        return previous

    def wait_for_signal(self) -> int:
        """Finish the exchange that `signal_on_any_rank` began and return its result."""
        if self._pending_signal is None:
            return 0
        work, tensor = self._pending_signal
        self._pending_signal = None
        work.wait()
        return int(tensor)


SINGLE_PROCESS = Ranks()


def pick_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device with this name, or the best one for "auto"; each rank on this machine (`local_rank`) gets its GPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(("cuda" if gpus else "cpu") if name == "auto" else name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"device {name!r}: must be auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")
    index = local_rank if device.index is None else device.index
    if gpus <= (index or 0):
        raise BadInput(f"device {name}: GPUs that torch can use: {gpus}; use cpu, or fewer ranks")
    if index is None:
        return device
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def has_bf16(device: torch.device) -> bool:
    """Whether the device supports bf16: a GPU without emulation, a CPU always."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def auto_precision(device: torch.device) -> Literal["fp32", "bf16"]:
    """What `auto` means: bf16 on a GPU that supports it, where it is faster."""
    return "bf16" if device.type == "cuda" and has_bf16(device) else "fp32"


def autocast_for(device: torch.device, precision: str, cache_weights: bool = True) -> torch.autocast:
    """The autocast context; without `cache_weights` weights are cast at each use, which captured steps need."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=cache_weights)
