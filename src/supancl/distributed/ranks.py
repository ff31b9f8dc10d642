"""Who takes which rows, what is gathered of them, and how ranks agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from supancl.errors import BadInput, SupanclError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
else:
    from supancl.lazy import dist, nn, torch

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Which rows of a batch are at hand: `count` of its `total` rows, from `first` on."""

    first: int
    count: int
    total: int

    @property
    def whole(self) -> bool:
        return self.count == self.total

    def of(self, rows: Tensor, dim: int = 0) -> Tensor:
        """These rows of something that has all of them."""
        return rows if self.whole else rows.narrow(dim, self.first, self.count)

    def amid(self, rows: Tensor) -> Tensor:
        """These rows in their place among all, with ones for those that are elsewhere."""
        if self.whole:
            return rows
        spread = rows.new_ones(self.total, *rows.shape[1:])
        spread[self.first : self.first + self.count] = rows
        return spread

    def of_views(self, rows: Tensor, views: int, dim: int = 0) -> Tensor:
        """These rows of each view, of something that has the rows of one view after those of another along `dim`."""
        if self.whole:
            return rows
        return self.of(rows.unflatten(dim, (views, self.total)), dim + 1).flatten(dim, dim + 1)


class Ended(SupanclError):
    """Another rank has ended; its reason is told where it is known."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


class Ranks:
    """How many processes train together, and which of them this is. One alone needs no process group."""

    def __init__(self, size: int = 1, rank: int = 0, local: int = 0) -> None:
        self.size, self.rank, self.local = size, rank, local
        self._asked: tuple[Any, Tensor] | None = None

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # --- rows ---------------------------------------------------------------------------------------------------------

    def parts(self, total: int) -> list[Part]:
        """Which rows each rank takes: as even as can be, in the order of the ranks."""
        least, more = divmod(total, self.size)
        counts = [least + (rank < more) for rank in range(self.size)]
        return [Part(sum(counts[:rank]), count, total) for rank, count in enumerate(counts)]

    def part(self, total: int) -> Part:
        return self.parts(total)[self.rank]

    def micros(self, total: int, count: int, device: torch.device) -> list[tuple[Tensor, Part, Tensor]]:
        """For each micro-batch: its rows, which of them this rank takes, and where those are in what it reads."""
        shared, at = [], 0
        for micro in torch.arange(total, device=device).chunk(count):
            part = self.part(len(micro))
            shared.append((micro, part, torch.arange(at, at + part.count, device=device)))
            at += part.count
        return shared

    def gather(self, rows: Tensor, total: int, dim: int = 0) -> Tensor:
        """All `total` rows in their order, from every rank's own; gradients flow back to where a row came from."""
        if self.size == 1:
            return rows
        parts = self.parts(total)
        mine = rows.movedim(dim, 0)
        padding = parts[0].count - len(mine)  # all send as much as the first one, who has the most
        if padding:
            mine = torch.cat([mine, mine.new_zeros(padding, *mine.shape[1:])])
        from supancl.distributed.exchange import Gathered

        gathered = Gathered.apply(mine.contiguous())
        return torch.cat([rows[: part.count] for rows, part in zip(gathered, parts, strict=True)]).movedim(0, dim)

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the ranks, without gradient."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def to_first(self, rows: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape, in the first one's memory; elsewhere none."""
        mine = rows.cpu().contiguous()
        everyones = [torch.empty_like(mine) for _ in range(self.size)] if self.leads else None
        dist.gather(mine, everyones)
        return everyones or []

    # --- gradients ----------------------------------------------------------------------------------------------------

    def wrapped(self, module: nn.Module, device: torch.device, gradients: str = "fp32") -> nn.Module:
        """The module with its gradients averaged over the ranks while backward still runs (torch's DDP)."""
        if self.size == 1:
            return module
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        kind = nn.parallel.DistributedDataParallel
        # statistics of batch norm are equal already, or are meant to be each rank's own
        named = {"forward_sync_buffers", "broadcast_buffers"} & set(inspect.signature(kind.__init__).parameters)
        settings: Any = {max(named): False}  # newer versions of torch warn of the older name
        wrapped = kind(module, device_ids=[device.index] if device.type == "cuda" else None, **settings)
        if gradients == "bf16":
            wrapped.register_comm_hook(None, bf16_compress_hook)
        return wrapped

    def apart(self, module: Any, yes: bool = True) -> AbstractContextManager[Any]:
        """Gradients of this micro-batch stay here until the last one's are averaged."""
        return cast(AbstractContextManager[Any], module.no_sync()) if self.size > 1 and yes else nullcontext()

    # --- agreement ----------------------------------------------------------------------------------------------------

    def once(self, work: Callable[[], T]) -> T:
        """What the first rank finds by this work, for all; where it cannot, all end with its reason."""
        if self.size == 1:
            return work()
        said: list[Any] = [None]
        if self.leads:
            try:
                said = [(work(), None)]
            except SupanclError as error:
                said = [(None, error)]
        dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
        found, reason = said[0]
        if reason is not None:
            raise reason
        return cast(T, found)

    def each(self, work: Callable[[], T]) -> T:
        """Every rank does this work by itself; where one cannot, all end with its reason."""
        if self.size == 1:
            return work()
        found: T | None = None
        own: SupanclError | None = None
        try:
            found = work()
        except SupanclError as error:
            own = error
        told = self.everyones(own)
        if own is not None:
            raise own
        for rank, reason in enumerate(told):
            if reason is not None:
                raise Ended(f"rank {rank} of {self.size}: {reason}", reason.exit_code)
        return cast(T, found)

    def alike(self, value: T, what: str) -> T:
        """The value, which must be the same on every rank."""
        told = self.everyones(value)
        for rank, other in enumerate(told):
            if other != told[0]:
                raise BadInput(
                    f"{what} differ between ranks: {told[0]} on rank 0, {other} on rank {rank}; give "
                    "every machine the same"
                )
        return value

    def everyones(self, value: T) -> list[T]:
        """What each rank brings, in their order."""
        if self.size == 1:
            return [value]
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, value)
        return told

    def stopped(self, received: Sequence[int]) -> int:
        """A signal that any rank has received, or 0: asked at every step, the same answer on all ranks.

        What is received now is known to all at the next step, so that nobody waits for the answer.
        """
        own = received[0] if received else 0
        if self.size == 1:
            return own
        asked = self.answered()
        number = torch.tensor(own)
        self._asked = dist.all_reduce(number, dist.ReduceOp.MAX, async_op=True), number
        return asked

    def answered(self) -> int:
        if self._asked is None:
            return 0
        work, number = self._asked
        self._asked = None
        work.wait()
        return int(number)


ALONE = Ranks()
