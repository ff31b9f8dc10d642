"""Sources of images, batches of them, their views and their order."""

from typing import TYPE_CHECKING

from supancl.lazy import lazy_names

if TYPE_CHECKING:
    from supancl.data.opening import from_arrays, open_data
    from supancl.data.spec import DataSpec
    from supancl.data.splits import Data, Split
    from supancl.data.store.memory import Batch
    from supancl.data.views.specs import Crops, Masks

__all__ = ["Batch", "Crops", "Data", "DataSpec", "Masks", "Split", "from_arrays", "open_data"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
