"""Pictures, pages, and progress in a terminal."""

from typing import TYPE_CHECKING

from supancl.lazy import lazy_names

if TYPE_CHECKING:
    from supancl.reports.pictures import loss_curves, tsne_panels

__all__ = ["loss_curves", "tsne_panels"]

if not TYPE_CHECKING:  # the command line shows progress and errors without torch, which takes seconds
    __getattr__, __dir__ = lazy_names(__name__, __file__)
