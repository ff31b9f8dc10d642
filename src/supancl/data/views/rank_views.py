"""Views of some rows of a batch, as they are in the whole of it.

What is drawn at random is drawn for every row, whoever has it: the same generator in the same state then gives an
image the same views, however many processes share the batch. Drawing costs little, rendering is for the own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from supancl.data.store.memory import Batch
from supancl.data.views.specs import Crops, Masks, ViewSpec
from supancl.distributed import Part


def in_part(views: ViewSpec, part: Part) -> ViewSpec:
    """The same views for rows that are a part of a batch."""
    if part.whole:
        return views
    settings = {field.name: getattr(views, field.name) for field in fields(views)}
    return PartOfCrops(**settings, part=part) if isinstance(views, Crops) else PartOfMasks(**settings, part=part)


@dataclass(frozen=True)
class PartOfCrops(Crops):
    """Crops of these rows."""

    part: Part = Part(0, 1, 1)

    def uniforms(self, n: int, device: torch.device, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        views = n // self.part.count
        taken = super().uniforms(self.part.total * views, device, generator)
        return {name: self.part.of_views(drawn, views, dim=1 if name == "box" else 0) for name, drawn in taken.items()}


@dataclass(frozen=True)
class PartOfMasks(Masks):
    """Masks of these rows."""

    part: Part = Part(0, 1, 1)

    def __call__(self, batch: Batch, *rest: Any, **named: Any) -> Tensor:
        whole = Batch(self.part.amid(batch.pixels))
        return self.part.of(super().__call__(whole, *rest, **named), 1)
