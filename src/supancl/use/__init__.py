"""What people plug in: encoders in other formats (docs/export.md), a scikit-learn estimator, loggers."""

from typing import TYPE_CHECKING

from supancl.lazy import lazy_names

if TYPE_CHECKING:
    from supancl.use.exporting import export_encoder

__all__ = ["export_encoder"]

if not TYPE_CHECKING:  # lazily: `import supancl.use.timm_models` should load nothing else
    __getattr__ = lazy_names(__name__, {"supancl.use.exporting": "export_encoder"})
