"""Pictures and pages."""

from typing import TYPE_CHECKING

from supancl.lazy import lazy_names

if TYPE_CHECKING:
    from supancl.reports.pictures import loss_curves, tsne_panels
else:  # a table needs neither torch nor matplotlib
    __getattr__ = lazy_names(__name__, {"supancl.reports.pictures": "loss_curves tsne_panels"})

__all__ = ["loss_curves", "tsne_panels"]
