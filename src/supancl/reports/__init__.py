"""Pictures and pages."""

from supancl.reports.pictures import loss_curves, tsne_panels

__all__ = ["loss_curves", "tsne_panels"]
